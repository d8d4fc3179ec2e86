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
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.relations import ENOUGH, bench_label, chart_name, scatter
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.columns import name_column, text_column
from perfctl.orchestrator.report.page.records import Finding, Section, StudyView
from perfctl.orchestrator.report.tables import (
    ROWS_SHOWN,
    Column,
    Table,
    amount,
    nothing,
    share_cell,
    table,
    text_cell,
    time_cell,
)
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
            *([text_cell(runs[place])] if runs else []),
            text_cell(point.model),
            point.batch,
            amount(measured.flops_of(point), ""),
            time_cell(point.step_ns[0]),
            share_cell(point.spread),
        ]
        for place, point in enumerate(points)
    ]
    return table("Points", columns, rows, limit=limit)


def correlation_table(family: str, found: Sequence[Correlation]) -> Table | None:
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
    for one in found:
        values = (one.spearman, one.pearson, one.pearson_log, one.slope_log)
        rows.append(
            (
                one.feature,
                one.points,
                *(none if v is None else text_cell(f"{v:.3f}") for v in values),
            )
        )
    made = table(f"{family}: correlation with the time of a step", columns, rows)
    if made is None or max(one.points for one in found) >= ENOUGH:
        return made
    return replace(
        made, notes=(*made.notes, f"Fewer than {ENOUGH} points: these correlations may be chance.")
    )


def bench_views(networks: Sequence[Study], first: int) -> Iterator[StudyView]:
    """One part for each device, mode and precision; ``first``: number of the first."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for study in networks:
        groups.setdefault((study.device, study.mode, study.precision), []).extend(study.runs)
    for number, runs in enumerate(groups.values(), first):
        yield _view(runs, f"s{number}")


def _view(runs: Sequence[Run], key: str) -> StudyView:
    made = [(point, run) for run in runs if (point := point_of(run)) is not None]
    run_of = {id(point): run.id for point, run in made}
    points = fastest(point for point, _ in made)
    found = correlations(points)
    families = [
        [row for row in found if row.family == name]
        for name in dict.fromkeys(row.family for row in found)
    ]
    note = "median of a step; the legend has Spearman's coefficient of each family"
    drawn = tuple(
        Chart(f"Step time over {bench_label(feature)}", svg, note)
        for feature in FIRST
        if (svg := scatter(f"{key}-{chart_name(feature)}", feature, points)) is not None
    )
    listed = points_table(points, [run_of[id(point)] for point in points], POINTS)
    related = tuple(one for rows in families if (one := correlation_table(rows[0].family, rows)))
    sections = (
        *([Section("charts", "Charts", charts=drawn)] if drawn else []),
        Section("points", "Points", tables=(listed,) if listed else (), note=LEFT_OUT),
        *([Section("goes-with", "Correlations with time", tables=related)] if related else []),
        Section("runs", "Environment", environment=about.environment(runs)),
    )
    closest = []
    for best in (rows[0] for rows in families):
        who = "over all families" if best.family == measured.ALL else f"of {best.family}"
        rank = f"Spearman {best.spearman or 0.0:.2f}, {best.points} points"
        text = f"The step time {who} correlates best with {bench_label(best.feature)}: {rank}."
        closest.append(Finding(text, "goes-with"))
    mode = MODES.get(runs[0].mode or "", runs[0].mode)
    return StudyView(
        key,
        ", ".join(part for part in ("bench", mode, runs[0].precision) if part),
        _facts(points, runs),
        about.origins(runs),
        tuple(closest),
        (),
        tuple(_warnings(points, runs, len(made))),
        sections,
    )


def _facts(points: Sequence[BenchPoint], runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    machines = dict.fromkeys(point.machine for point in points)
    threads = sorted({machine.threads for machine in machines if machine.threads is not None})
    facts = (
        (
            "device",
            ", ".join(dict.fromkeys(machine.device for machine in machines)) or "not recorded",
        ),
        ("threads", " ".join(map(str, threads))),
        ("points", f"{len(points)} of {len({point.model for point in points})} networks"),
        ("families", " ".join(dict.fromkeys(point.family for point in points))),
        ("torch", " ".join(dict.fromkeys(machine.torch for machine in machines if machine.torch))),
        ("from", about.began(runs)),
    )
    return tuple((name, value) for name, value in facts if value)


def _warnings(points: Sequence[BenchPoint], runs: Sequence[Run], timed: int) -> Iterator[Finding]:
    if failed := [run for run in runs if run.status != "ok"]:
        text = f"{len(failed)} runs are incomplete, run {failed[0].id} first: {failed[0].reason}."
        yield Finding(text, "points", True)
    if missing := len(runs) - len(failed) - timed:
        yield Finding(
            f"{missing} complete runs are not in the chart: they have no timed step, or no device.",
            "points",
            True,
        )
    if unsteady := sum(point.spread > 0.1 for point in points):
        text = f"{unsteady} of {len(points)} points varied by more than 10% between quartiles"
        yield Finding(
            f"{text}. Run perfctl bench FILE --steady 10 to measure them again.", "points", True
        )
