"""perfctl slurm: its declared commands, and "render study NAME", which takes the options of a
study."""

from __future__ import annotations

from perfctl.orchestrator.cli import commands
from perfctl.orchestrator.cli.cluster import studies
from perfctl.orchestrator.commands.slurm import GROUP

slurm = commands.group_of("slurm", GROUP)
slurm.command(
    "render-study", cls=commands.Command, context_settings=commands.PASS_ON_CONTEXT, hidden=True
)(commands.function_of(studies.COMMAND))
