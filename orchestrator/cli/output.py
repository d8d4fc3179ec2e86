"""Option of commands that write files."""

from __future__ import annotations

from typing import Annotated

import typer

from perfctl.orchestrator.actions.files import check_free, replacing

__all__ = ["Force", "check_free", "replacing"]

Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
