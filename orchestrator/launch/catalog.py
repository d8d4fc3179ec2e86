"""All profilers by name, what they need of this machine, and their command lines as text."""

from __future__ import annotations

import shlex

from perfctl.orchestrator.launch.images import check as images_check
from perfctl.orchestrator.launch.images import run
from perfctl.orchestrator.launch.profilers.base import Command, Profiler
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.profilers.table import RECORDERS, Recorder

PROFILERS: dict[str, type[Recorder | Replay]] = {**RECORDERS, "replay": Replay}
"""Name of each profiler -> its class, whose fields are its options."""


def check_tools(profiler: Profiler, device: str = "cpu", *, but: tuple[str, ...] = ()) -> None:
    """Raises ToolMissing when this machine lacks something that ``profiler`` needs: what, why, how
    to get it.

    ``but`` names tools that are not needed here, because the program has its own interpreter.
    """
    runs_in = run.inside()
    missing = images_check.lacking(profiler, device) if runs_in else profiler.missing()
    lacks = tuple(tool for tool in missing if tool.name not in but)
    images_check.refuse(lacks, f"here, inside {runs_in}" if runs_in else "here")


def printable(command: Command) -> str:
    """One line for a shell: environment variables, then the quoted arguments."""
    assignments = (
        f"{name}={shlex.quote(value)}" for name, value in sorted(command.environment.items())
    )
    return " ".join((*assignments, shlex.join(command.argv)))
