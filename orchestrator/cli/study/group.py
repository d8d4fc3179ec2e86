"""perfctl study: the list of its commands."""

from __future__ import annotations

import typer

from perfctl.orchestrator.cli.study.cost import cost
from perfctl.orchestrator.cli.study.speedup import speedup

study = typer.Typer(
    name="study",
    no_args_is_help=True,
    help="Do a whole study: measure, compare, and write a page and a summary.",
)
study.command("speedup")(speedup)
study.command("cost")(cost)
