"""perfctl plot"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.cli import console, options, output, peaks
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.report.chart_files import Drawn


SPEEDUPS = "Charts of speed-ups: perfctl speedup --charts DIR"


def plot(
    name: Annotated[str | None, typer.Argument(help="Which chart; see --list.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the charts that this store gives.")] = False,
    out: Annotated[Path | None, typer.Option(help="FILE.pdf, .png or .svg. Default: NAME.pdf.")] = None,
    width_mm: Annotated[float, typer.Option(min=40, max=400, help="Width; 84 is one column of a paper.")] = 84,
    height_mm: Annotated[float | None, typer.Option(min=20, max=600, help="Height. Default: what it needs.")] = None,
    dpi: Annotated[int, typer.Option(min=50, max=1200, help="Dots an inch, of a png.")] = 300,
    sweep: Annotated[int | None, typer.Option(help="Only this sweep. Default: the newest run of each kind.")] = None,
    peak: peaks.Option = "published",
    force: output.Force = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Write one of the page's charts for a paper. The same store gives the same bytes."""
    from perfctl.orchestrator.report import chart_files

    if name is None and not listed:
        raise UsageError("no chart was named", "See which there are with 'perfctl plot --list'")
    target = out or Path(f"{name}.pdf")
    form = target.suffix.lower().removeprefix(".")
    if not listed:
        if form not in chart_files.FORMATS:
            raise UsageError(f"--out: '{target}' is no pdf, png or svg", "Name for instance ratio.pdf")
        output.check_free(target, force=force)
    charts = _charts(store or DEFAULT, sweep, peak)
    if listed:
        _list(charts, as_json)
        return
    assert name is not None
    chart = _chosen(charts, name)
    with output.replacing(target, force=force) as partial:
        chart_files.save(chart, partial, form, width_mm, height_mm, dpi)
    if as_json:
        console.as_json({"path": str(target), "chart": chart.name, "description": chart.description})
    else:
        console.result(f"Wrote {target}")


def _charts(store: Path, sweep: int | None, peak: str) -> dict[str, Drawn]:
    """name -> chart, in the page's order; the study's number stands before the name where there are several."""
    from perfctl.orchestrator.report import busy_charts, chart_files
    from perfctl.orchestrator.report.view import page_view
    from perfctl.orchestrator.store import database, read

    with database.reading(store) as connection:
        runs = read.load(connection, read.run_ids(connection, sweep=sweep, latest_of_each=True))
    with chart_files.drawn() as found:
        page_view(runs, generated_at="", title=None, peaks=peaks.roofs(peak, store, runs))
    with chart_files.drawn() as across:
        busy_charts.across(runs)
    if not found and not across:
        raise PerfctlError(
            f"{store}: there is nothing to draw",
            f"A chart needs a workload at several batch sizes, or counters. {SPEEDUPS}",
        )
    several = len({chart.name.partition("-")[0] for chart in found}) > 1
    named = {chart.name.partition("-")[2]: chart for chart in across}  # all models in one drawing
    return named | {chart.name if several else chart.name.partition("-")[2]: chart for chart in found}


def _chosen(charts: dict[str, Drawn], name: str) -> Drawn:
    if name in charts:
        return charts[name]
    raise UsageError(f"there is no chart '{name}' of this store", f"There are {', '.join(charts)}")


def _list(charts: dict[str, Drawn], as_json: bool) -> None:
    if as_json:
        console.as_json([{"name": name, "description": chart.description} for name, chart in charts.items()])
        return
    for name, chart in charts.items():
        console.result(f"{name:14} {chart.description.partition('. ')[0]}")
    console.note(SPEEDUPS)
