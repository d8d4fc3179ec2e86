"""perfctl plot"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.plot import ChartName
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console as output
from perfctl.orchestrator.cli import options, progress
from perfctl.orchestrator.errors import UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.report.charts.files import Drawn


def plot(
    name: Annotated[str | None, typer.Argument(help="Which chart; see --list.")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the charts that this store gives.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="FILE.pdf, .png or .svg. Default: NAME.pdf.")
    ] = None,
    width_mm: Annotated[
        float, typer.Option(min=40, max=400, help="Width; 84 is one column of a paper.")
    ] = 84,
    height_mm: Annotated[
        float | None, typer.Option(min=20, max=600, help="Height. Default: what it needs.")
    ] = None,
    dpi: Annotated[int, typer.Option(min=50, max=1200, help="Dots an inch, of a png.")] = 300,
    sweep: Annotated[
        int | None, typer.Option(help="Only this sweep. Default: the newest run of each kind.")
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option(
            "--runs", metavar="A,B,...", help="Speed-ups of these sweeps, runs or reports over A."
        ),
    ] = None,
    allow: Annotated[
        str | None,
        typer.Option("--allow", metavar="LIST", help="With --runs: facts that may differ."),
    ] = None,
    pie: Annotated[
        bool, typer.Option("--pie", help="Kinds of work and operations of a speed-up as pies.")
    ] = False,
    peaks: options.Peaks = "published",
    force: output.Force = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Write one of the page's charts for a paper. The same store gives the same bytes."""
    from perfctl.orchestrator.actions import plot as actions

    source = actions.ChartSource(
        store or DEFAULT, sweep, tuple(options.names(runs)), tuple(options.names(allow)), pie, peaks
    )
    if listed or name is None:
        with progress.working() as now:
            now("looking for charts", 0, 1)
            found = actions.drawings(source, output)
        if listed:
            _list(found, as_json)
            return
        raise UsageError(
            "no chart was named",
            f"There are {', '.join(found)}; 'perfctl plot --list' says what they show",
        )
    with progress.working() as now:
        now(f"drawing {name}", 0, 1)
        done = actions.plot(
            name,
            source,
            out=out,
            width_mm=width_mm,
            height_mm=height_mm,
            dpi=dpi,
            force=force,
            messages=output,
        )
    if as_json:
        output.as_json(done, "plot")
    else:
        output.result(f"Wrote {done.path}")


def _list(charts: dict[str, Drawn], as_json: bool) -> None:
    if as_json:
        names = [ChartName(name, chart.description) for name, chart in charts.items()]
        output.as_json(names, "plot-list")
        return
    wide = max(14, *(len(name) for name in charts))
    for name, chart in charts.items():
        output.result(f"{name:{wide}} {chart.description.partition('. ')[0]}")
