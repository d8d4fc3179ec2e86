"""What perfctl bench show, bench export and plot make of the points in a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.cli import console, output
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.report.chart_files import Drawn
    from perfctl.parsers.bench_points import BenchPoint

_POINTS, _FIGURES = 12, 8
"""Rows of a table on the terminal."""


def load(store: Path | None) -> list[BenchPoint]:
    """The fastest run of each point, in the order they were first measured."""
    from perfctl.orchestrator.analyse.bench_points import fastest, points_of
    from perfctl.orchestrator.store import database, read

    with database.reading(store or DEFAULT) as connection:
        return fastest(points_of(read.load(connection, read.bench_run_ids(connection))))


def show(file: Path | None, family: str | None, store: Path | None, as_json: bool) -> None:
    """Points, and correlations by family; of an exported file where one is named. Raises ReportError when it is none."""
    from perfctl.orchestrator.analyse.correlate import correlations
    from perfctl.orchestrator.report import bench_view, terminal
    from perfctl.parsers.bench_points import read_points

    points = _some(list(read_points(file)) if file else load(store), family, file or store)
    found = correlations(points)
    if as_json:
        console.as_json(bench_view.as_json(points, found))
        return
    tables = [bench_view.points_table(points)]
    for part in terminal.shown([one for one in tables if one], _POINTS, "--json has them"):
        console.show(part)
    for name in dict.fromkeys(one.family for one in found):
        table = bench_view.correlation_table(name, [one for one in found if one.family == name])
        for part in terminal.shown([table] if table else [], _FIGURES, "--json has them"):
            console.show(part)
    if file is None:
        console.note("Drawings: perfctl plot bench-flops-forward; perfctl plot --list names them all")


def write(out: Path, store: Path | None, *, force: bool) -> None:
    """All points into one file."""
    from perfctl.parsers.bench_points import as_json

    output.check_free(out, force=force)
    points = _some(load(store), None, store)
    with output.replacing(out, force=force) as partial:
        partial.write_text(as_json(points), encoding="utf-8")
    console.result(f"Wrote {out}: {len(points)} points of {len({point.model for point in points})} networks")


def _some(points: list[BenchPoint], family: str | None, store: Path | None) -> list[BenchPoint]:
    there = list(dict.fromkeys(point.family for point in points))
    chosen = [point for point in points if family in (None, point.family)]
    if not points:
        raise PerfctlError(f"{store or DEFAULT}: there is no point of a bench in it", "Run 'perfctl bench FILE'")
    if not chosen:
        raise UsageError(f"--family: there is no point of '{family}'", f"There are {', '.join(there)}")
    return chosen


def charts(store: Path) -> dict[str, Drawn]:
    """name -> chart: time against each figure; empty where the store holds no bench."""
    from perfctl.orchestrator.report.bench_charts import bench_charts

    return bench_charts(load(store))
