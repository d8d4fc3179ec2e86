"""perfctl report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options, output, peaks
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.errors import PerfctlError

STUDIES = 12
"""Studies on a page: more than a reader goes through, and some MB already."""


def report(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("perfctl-report.html"),
    sweep: Annotated[
        int | None, typer.Option(help="Only this sweep. Default: the newest run of each kind, of a bench the fastest.")
    ] = None,
    run: Annotated[list[int] | None, typer.Option(help="Only these runs (repeatable).")] = None,
    most: Annotated[
        int, typer.Option("--studies", min=1, help="Most studies on the page, the newest; it says what is left out.")
    ] = STUDIES,
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
        if not run and sweep is None:
            fastest, slower = read.fastest_bench_runs(connection)
            ids = sorted({*ids, *fastest} - {*slower})
        kept, others = (ids, 0) if run else read.newest_studies(connection, ids, most)
        runs = read.load(connection, kept)
        written = read.last_change(connection)
    if not runs:
        if sweep is not None:
            raise PerfctlError(
                f"{store}: it holds no run of a sweep {sweep}", "'perfctl runs --json' has the sweep_id of each"
            )
        raise PerfctlError(f"{store}: nothing to report: it holds no run", "Run a sweep, or 'perfctl ingest FILE'")
    left_out = _left_out(others, len(ids) - len(kept), most) if others else None
    roofs = peaks.roofs(peak, store, runs)
    write_whole(out, page.render(runs, generated_at=written, title=title, peaks=roofs, left_out=left_out))
    if as_json:
        console.as_json(
            {"path": str(out), "bytes": out.stat().st_size, "runs": [run.id for run in runs], "left_out": left_out}
        )
    else:
        console.result(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB, {len(runs)} runs)")
        if left_out:
            console.note(left_out)
    if open_page:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())


def _left_out(studies: int, runs: int, most: int) -> str:
    said = (
        f"{studies:,} older studies ({runs:,} runs) of the store are not in this page"
        if studies > 1
        else (f"1 older study ({runs:,} runs) of the store is not in this page")
    )
    return f"{said}: 'perfctl runs' lists them, --sweep or --run chooses, --studies {most + studies} shows all"


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing: a temporary name beside it, then a rename. Raises PerfctlError when that fails."""
    partial = output.unforeseen(path)
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise PerfctlError(f"{path}: cannot be written ({error.strerror})", "Name another file with --out") from error
