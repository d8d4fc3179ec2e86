"""perfctl history"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.read.compare import gate_of
from perfctl.orchestrator.errors import UsageError


def history(
    store: Annotated[list[Path] | None, typer.Option(help="A store to read; may be repeated.")] = None,
    by: Annotated[str, typer.Option(metavar="time|commit", help="One point a sweep, or a commit.")] = "time",
    gate: Annotated[str, typer.Option(help="Changes up to this are not told.")] = "5%",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a page.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show step time, FLOPs, launches, memory and layer times of many runs, and where they changed.

    Only runs of one study, batch size, profiler, device and clocks make a line. A change is told where it is significant,
    with what else changed there. 1 multiply-add = 2 FLOPs.
    """
    from perfctl.orchestrator.actions.history import history as action
    from perfctl.orchestrator.report import history as texts

    if by not in ("time", "commit"):
        raise UsageError(f"--by: '{by}' is not known", "Say time or commit")
    found = action(store or [DEFAULT], by_commit=by == "commit", gate=gate_of(gate))
    if out is not None:
        from perfctl.orchestrator.actions.files import write_text
        from perfctl.orchestrator.report.page import page

        write_text(out, page.render_history(found))
        console.note(f"Wrote {out}")
    if as_json:
        console.as_json(texts.as_json(found), "history")
        return
    for line in texts.text(found):
        console.result(line)
