"""perfctl report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options, output, peaks
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.errors import PerfctlError


def report(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("perfctl-report.html"),
    sweep: Annotated[int | None, typer.Option(help="Only this sweep. Default: the newest run of each kind.")] = None,
    run: Annotated[list[int] | None, typer.Option(help="Only these runs (repeatable).")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    peak: peaks.Option = "published",
    store: options.Store = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write one self-contained HTML page: counted against estimated FLOPs, time, memory, kernels, and what is missing."""
    from perfctl.orchestrator.report import page
    from perfctl.orchestrator.store import database, read

    store = store or DEFAULT
    with database.reading(store) as connection:
        ids = run or read.run_ids(connection, sweep=sweep, latest_of_each=True)
        runs = read.load(connection, ids)
        written = read.last_change(connection)
    if not runs:
        raise PerfctlError(f"{store}: nothing to report: it holds no run", "Run a sweep, or 'perfctl ingest FILE'")
    write_whole(out, page.render(runs, generated_at=written, title=title, peaks=peaks.roofs(peak, store, runs)))
    if as_json:
        console.as_json({"path": str(out), "bytes": out.stat().st_size, "runs": [run.id for run in runs]})
    else:
        console.result(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB, {len(runs)} runs)")
    if open_page:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing: a temporary name beside it, then a rename. Raises PerfctlError when that fails."""
    partial = output.unforeseen(path)
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise PerfctlError(f"{path}: cannot be written ({error.strerror})", "Name another file with --out") from error
