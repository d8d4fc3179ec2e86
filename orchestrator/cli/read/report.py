"""perfctl report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.progress import working


def report(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "perfctl-report.html"
    ),
    sweep: Annotated[
        int | None,
        typer.Option(
            help="Only this sweep. Default: the newest run of each kind, of a bench the fastest."
        ),
    ] = None,
    runs: Annotated[
        list[int] | None, typer.Option("--run", help="Only these runs (repeatable).")
    ] = None,
    studies: Annotated[
        int,
        typer.Option(
            "--studies",
            min=1,
            help="Most studies on the page, the newest; it says what is left out.",
        ),
    ] = 12,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    peaks: options.Peaks = "published",
    store: options.Store = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write one self-contained HTML page: counted and estimated FLOPs, time, memory, kernels, and
    what is missing."""
    from perfctl.orchestrator.actions import report as actions

    with working() as steps:
        page = actions.report(
            store or DEFAULT,
            out,
            sweep=sweep,
            runs=runs or (),
            studies=studies,
            title=title,
            peaks=peaks,
            messages=console,
            progress=steps,
        )
    if as_json:
        console.as_json(page, "report")
    else:
        console.result(f"Wrote {out} ({page.size / 1e6:.1f} MB, {len(page.runs)} runs)")
        if page.left_out:
            console.note(page.left_out)
    if open_page:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
