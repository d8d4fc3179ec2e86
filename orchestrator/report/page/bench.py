"""A bench of many networks in the page: one part for all, with a row a point and the correlations
of time.

A ledger, charts and memory for each network would make a page that no browser shows; they are a
command away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfctl.orchestrator.ledger.prepared import MODES, Study
from perfctl.orchestrator.predict import bench as measured
from perfctl.orchestrator.predict.bench import (
    Correlation,
    correlations,
    fastest,
    point_of,
)
from perfctl.orchestrator.report.charts.relations import ENOUGH, bench_label, chart_name, scatter
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.page.section import Section, group_view
from perfctl.orchestrator.report.tables import (
    ROWS_SHOWN,
    Column,
    Table,
    amount,
    name_column,
    nothing,
    share_cell,
    table,
    text_cell,
    text_column,
    time_cell,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.statistics import group_by
from perfctl.records.bench import BenchPoint
from perfctl.records.run import Run

POINTS = 1000
"""Rows of the table of points."""
FIRST = ("flops:forward", "bytes:forward", "parameters", "layers")
LEFT_OUT = (
    "One row per network and batch size, the fastest of its runs. For layers, ledger, memory and "
    "commands of a network, use perfctl report --run ID --out network.html with one --run for "
    "each of its runs."
)


def points_table(
    points: Sequence[BenchPoint], runs: Sequence[int] = (), limit: int = ROWS_SHOWN
) -> Table | None:
    """A row a network and batch size; --json has the phases of a step, too. ``runs``: the run of
    each, for a page."""
    columns = [
        *([Column("run")] if runs else []),
        name_column("network"),
        Column("batch"),
        Column("FLOP", note="of a step; 1 multiply-add = 2 FLOPs"),
        Column("step", note="median"),
        Column("spread", note="interquartile range / median"),
    ]
    rows = [
        [
            *([text_cell(runs[index])] if runs else []),
            text_cell(point.model),
            point.batch,
            amount(measured.flops_of(point), ""),
            time_cell(point.step_ns[0]),
            share_cell(point.spread),
        ]
        for index, point in enumerate(points)
    ]
    return table("Points", columns, rows, limit=limit)


def correlation_table(family: str, related: Sequence[Correlation]) -> Table | None:
    """The figures of one family, the closest by rank first."""
    columns = [
        text_column("time against"),
        Column("points"),
        Column("Spearman"),
        Column("Pearson"),
        Column("Pearson, log"),
        Column("exponent", note="of the power law; 1 means proportional"),
    ]
    none = nothing("fewer than three points, or a constant value")
    rows = []
    for row in related:
        values = (row.spearman, row.pearson, row.pearson_log, row.slope_log)
        rows.append(
            (
                row.feature,
                row.points,
                *(none if v is None else text_cell(f"{v:.3f}") for v in values),
            )
        )
    correlation = table(f"{family}: correlation with the time of a step", columns, rows)
    if correlation is None or max(row.points for row in related) >= ENOUGH:
        return correlation
    return replace(
        correlation,
        notes=(
            *correlation.notes,
            f"Fewer than {ENOUGH} points: these correlations may be chance.",
        ),
    )


def bench_views(networks: Sequence[Study], first: int) -> Iterator[View]:
    """Yield one part for each device, mode and precision; ``first``: number of the first."""
    groups = group_by(networks, lambda study: (study.device, study.mode, study.precision))
    for number, group in enumerate(groups.values(), first):
        yield _view([run for study in group for run in study.runs], f"s{number}")


def _view(runs: Sequence[Run], key: str) -> View:
    timed = [(point, run) for run in runs if (point := point_of(run)) is not None]
    run_of = {id(point): run.id for point, run in timed}
    points = fastest(point for point, _ in timed)
    families = list(group_by(correlations(points), lambda row: row.family).values())
    note = "median of a step; the legend has Spearman's coefficient of each family"
    charts = (scatter(f"{key}-{chart_name(name)}", name, points, note) for name in FIRST)
    listed = points_table(points, [run_of[id(point)] for point in points], POINTS)
    related = (correlation_table(rows[0].family, rows) for rows in families)
    sections = [
        Section("Charts", charts=tuple(filter(None, charts)), key="charts"),
        Section("Points", (LEFT_OUT,), (listed,) if listed else (), key="points"),
        Section("Correlations with time", tables=tuple(filter(None, related)), key="goes-with"),
        Section("Environment", key="runs", environment=about.environment(runs)),
    ]
    mode = MODES.get(runs[0].mode or "", runs[0].mode)
    return group_view(
        key,
        ", ".join(filter(None, ("bench", mode, runs[0].precision))),
        runs,
        _facts(points, runs),
        (*(_closest(rows[0]) for rows in families), *_warnings(points, runs, len(timed))),
        (part for part in sections if part.charts or part.tables or part.environment or part.facts),
    )


def _closest(best: Correlation) -> Finding:
    family = "over all families" if best.family == measured.ALL else f"of {best.family}"
    rank = f"Spearman {best.spearman or 0.0:.2f}, {best.points} points"
    feature = bench_label(best.feature)
    return Finding(f"The step time {family} correlates best with {feature}: {rank}.", "goes-with")


def _facts(points: Sequence[BenchPoint], runs: Sequence[Run]) -> dict[str, str]:
    machines = [point.machine for point in points]
    threads = sorted({machine.threads for machine in machines if machine.threads is not None})
    versions = dict.fromkeys(machine.torch for machine in machines if machine.torch)
    return {
        "device": ", ".join(dict.fromkeys(machine.device for machine in machines))
        or "not recorded",
        "threads": " ".join(map(str, threads)),
        "points": f"{len(points)} of {len({point.model for point in points})} networks",
        "families": " ".join(dict.fromkeys(point.family for point in points)),
        "torch": " ".join(versions),
        "from": about.began(runs),
    }


def _warnings(points: Sequence[BenchPoint], runs: Sequence[Run], timed: int) -> Iterator[Finding]:
    texts = []
    if failed := [run for run in runs if run.status != "ok"]:
        texts.append(
            f"{len(failed)} runs are incomplete, run {failed[0].id} first: {failed[0].reason}."
        )
    if missing := len(runs) - len(failed) - timed:
        texts.append(
            f"{missing} complete runs are not in the chart: they have no timed step, or no device."
        )
    if unsteady := sum(point.spread > 0.1 for point in points):
        texts.append(
            f"{unsteady} of {len(points)} points varied by more than 10% between quartiles. Run "
            "perfctl bench FILE --steady 10 to measure them again."
        )
    return (Finding(text, "points", True) for text in texts)
