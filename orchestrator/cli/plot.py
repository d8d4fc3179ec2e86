"""perfctl plot"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions import peaks
from perfctl.orchestrator.actions.bench import bench_charts
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options, output, plot_speedup
from perfctl.orchestrator.cli.report import Peaks
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.report.chart_files import Drawn


_PARTS = ("work", "operations")
"""Charts of parts of a whole, which --pie draws as pies."""


def plot(
    name: Annotated[str | None, typer.Argument(help="Which chart; see --list.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the charts that this store gives.")] = False,
    out: Annotated[Path | None, typer.Option(help="FILE.pdf, .png or .svg. Default: NAME.pdf.")] = None,
    width_mm: Annotated[float, typer.Option(min=40, max=400, help="Width; 84 is one column of a paper.")] = 84,
    height_mm: Annotated[float | None, typer.Option(min=20, max=600, help="Height. Default: what it needs.")] = None,
    dpi: Annotated[int, typer.Option(min=50, max=1200, help="Dots an inch, of a png.")] = 300,
    sweep: Annotated[int | None, typer.Option(help="Only this sweep. Default: the newest run of each kind.")] = None,
    runs: Annotated[
        str | None, typer.Option("--runs", metavar="A,B,...", help="Speed-ups of these sweeps, runs or reports over A.")
    ] = None,
    allow: Annotated[
        str | None, typer.Option("--allow", metavar="LIST", help="With --runs: facts that may differ all the same.")
    ] = None,
    pie: Annotated[bool, typer.Option("--pie", help="Kinds of work and operations of a speed-up as pies.")] = False,
    peak: Peaks = "published",
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
    if pie and name is not None and not set(_PARTS) & set(name.split("-")):
        raise UsageError(
            f"--pie: '{name}' shows no parts of a whole", f"Charts whose names have {' or '.join(_PARTS)} do"
        )
    where = store or DEFAULT
    if runs is None and name is not None and name.startswith("bench-"):
        charts = bench_charts(where)  # without the page of each of its networks
    else:
        charts = (
            _charts(where, sweep, peak, pie) if runs is None else plot_speedup.named(runs, where, peak, allow, pie=pie)
        )
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


def _charts(store: Path, sweep: int | None, peak: str, pie: bool) -> dict[str, Drawn]:
    """name -> chart, in the page's order; the study's number stands before the name where there are several."""
    speedups = plot_speedup.of_store(store, sweep, peak, pie=pie)
    found = _of_page(store, sweep, peak) | speedups | (bench_charts(store) if sweep is None else {})
    if not found:
        raise PerfctlError(
            f"{store}: there is nothing to draw",
            "A chart needs a workload at several batch sizes, counters, or a speed-up",
        )
    return found


def _of_page(store: Path, sweep: int | None, peak: str) -> dict[str, Drawn]:
    from perfctl.orchestrator.report import busy_charts, chart_files
    from perfctl.orchestrator.report.view import page_view
    from perfctl.orchestrator.store import database, read

    with database.reading(store) as connection:
        runs = read.load(connection, read.run_ids(connection, sweep=sweep, latest_of_each=True))
    with chart_files.drawn() as found:
        page_view(runs, generated_at="", title=None, peaks=peaks.roofs(peak, store, runs))
    with chart_files.drawn() as across:
        busy_charts.across(runs)
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
    wide = max(14, *(len(name) for name in charts))
    for name, chart in charts.items():
        console.result(f"{name:{wide}} {chart.description.partition('. ')[0]}")
