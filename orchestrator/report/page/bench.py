"""A bench of many networks in the page: one part for all, with a row a point and the correlations
of time.

A ledger, charts and memory for each network would make a page that no browser shows; they are a
command away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfctl.orchestrator.ledger.prepared import MODES, Study
from perfctl.orchestrator.predict import bench as measured
from perfctl.orchestrator.predict.bench import (
    TimeCorrelation,
    build_bench_point,
    correlate_all_features,
    keep_fastest_points,
)
from perfctl.orchestrator.report.charts.relations import (
    ENOUGH,
    describe_feature,
    draw_feature_scatter,
    make_chart_name,
)
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.page.section import Section, build_group_view
from perfctl.orchestrator.report.tables import (
    ROWS_SHOWN,
    Column,
    Table,
    amount_cell,
    build_table,
    missing_cell,
    name_column,
    share_cell,
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


def build_points_table(
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
            amount_cell(measured.sum_point_flops(point), ""),
            time_cell(point.step_ns[0]),
            share_cell(point.spread),
        ]
        for index, point in enumerate(points)
    ]
    return build_table("Points", columns, rows, limit=limit)


def build_correlation_table(family: str, related: Sequence[TimeCorrelation]) -> Table | None:
    """The figures of one family, the closest by rank first."""
    columns = [
        text_column("time against"),
        Column("points"),
        Column("Spearman"),
        Column("Pearson"),
        Column("Pearson, log"),
        Column("exponent", note="of the power law; 1 means proportional"),
    ]
    none = missing_cell("fewer than three points, or a constant value")
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
    notes = [f"Fewer than {ENOUGH} points: these correlations may be chance."]
    is_enough = any(row.points >= ENOUGH for row in related)
    caption = f"{family}: correlation with the time of a step"
    return build_table(caption, columns, rows, () if is_enough else notes)


def build_bench_views(networks: Sequence[Study], first: int) -> Iterator[View]:
    """Yield one part for each device, mode and precision; ``first``: number of the first."""
    groups = group_by(networks, lambda study: (study.device, study.mode, study.precision))
    for number, group in enumerate(groups.values(), first):
        yield _build_bench_view([run for study in group for run in study.runs], f"s{number}")


def _build_bench_view(runs: Sequence[Run], key: str) -> View:
    timed = [(point, run) for run in runs if (point := build_bench_point(run)) is not None]
    run_of = {id(point): run.id for point, run in timed}
    points = keep_fastest_points(point for point, _ in timed)
    families = list(group_by(correlate_all_features(points), lambda row: row.family).values())
    note = "median of a step; the legend has Spearman's coefficient of each family"
    charts = (
        draw_feature_scatter(f"{key}-{make_chart_name(name)}", name, points, note) for name in FIRST
    )
    listed = build_points_table(points, [run_of[id(point)] for point in points], POINTS)
    related = (build_correlation_table(rows[0].family, rows) for rows in families)
    sections = [
        Section("Charts", charts=tuple(filter(None, charts)), key="charts"),
        Section("Points", (LEFT_OUT,), (listed,) if listed else (), key="points"),
        Section("Correlations with time", tables=tuple(filter(None, related)), key="goes-with"),
        Section("Environment", key="runs", environment=about.list_common_facts(runs)),
    ]
    mode = MODES.get(runs[0].mode or "", runs[0].mode)
    return build_group_view(
        key,
        ", ".join(filter(None, ("bench", mode, runs[0].precision))),
        runs,
        _list_bench_facts(points, runs),
        (
            *(_describe_best_correlation(rows[0]) for rows in families),
            *_warn_of_bad_points(points, runs, len(timed)),
        ),
        (part for part in sections if part.charts or part.tables or part.environment or part.facts),
    )


def _describe_best_correlation(best: TimeCorrelation) -> Finding:
    family = "over all families" if best.family == measured.ALL else f"of {best.family}"
    rank = f"Spearman {best.spearman or 0.0:.2f}, {best.points} points"
    feature = describe_feature(best.feature)
    return Finding(f"The step time {family} correlates best with {feature}: {rank}.", "goes-with")


def _list_bench_facts(points: Sequence[BenchPoint], runs: Sequence[Run]) -> dict[str, str]:
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
        "from": about.find_first_day(runs),
    }


def _warn_of_bad_points(
    points: Sequence[BenchPoint], runs: Sequence[Run], timed: int
) -> Iterator[Finding]:
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
