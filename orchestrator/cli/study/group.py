"""perfctl study: the list of its commands."""

from __future__ import annotations

import typer

from perfctl.orchestrator.cli.commands import CommandList
from perfctl.orchestrator.cli.measure.profilers import PASS_ON_CONTEXT, SweepCommand
from perfctl.orchestrator.cli.study.cost import cost
from perfctl.orchestrator.cli.study.flops import flops
from perfctl.orchestrator.cli.study.inference import inference
from perfctl.orchestrator.cli.study.speedup import speedup

study = typer.Typer(
    name="study",
    cls=CommandList,
    no_args_is_help=True,
    help="Do a whole study: measure, compare, and write a page and a summary.",
)
study.command(
    "flops", short_help="FLOPs of a network against pen and paper.", cls=SweepCommand, context_settings=PASS_ON_CONTEXT
)(flops)
study.command("inference", short_help="Inference at low batch: models x batch sizes.")(inference)
study.command("speedup", short_help="U-Net and BiLSTM: each device against the first.")(speedup)
study.command("cost", short_help="What the time, memory and FLOPs of networks depend on.")(cost)
