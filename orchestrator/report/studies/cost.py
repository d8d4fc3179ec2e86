"""A bench of many networks. In the study of time and cost: correlations with their intervals, the
fit and its errors, the points that were measured. In the page: one part for all, a row a point.

A ledger, charts and memory for each network would make a page that no browser shows; they are a
command away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from perfctl.orchestrator.ledger.prepared import MODES, Study
from perfctl.orchestrator.predict import bench
from perfctl.orchestrator.predict.bench import (
    ALL,
    FEW,
    Coefficient,
    SizeObservation,
    SizeRelation,
    TimeCorrelation,
    build_unprofiled_bench_point,
    correlate_features_with_step_time,
    keep_fastest_points,
)
from perfctl.orchestrator.predict.fit import LeftOutErrors
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.relations import (
    QUANTITIES,
    SIZES,
    AxisFormat,
    FamilyDot,
    describe_feature,
    draw_family_scatter,
    draw_quantity_against_each_size,
    draw_quantity_against_size,
    draw_step_time_scatter,
    format_step_seconds,
    make_feature_chart_name,
)
from perfctl.orchestrator.report.numbers import format_percent
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.records import StudySubject, build_study_chapter
from perfctl.orchestrator.report.tables import (
    ROWS_SHOWN,
    Cell,
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
    time_column,
)
from perfctl.orchestrator.report.view import Section, View
from perfctl.orchestrator.statistics import group_by
from perfctl.records.bench import BenchPoint
from perfctl.records.run import Run

NAMES = {
    "vgg": "VGG",
    "resnet": "ResNet",
    "inception": "Inception",
    "mlp": "fully connected",
    ALL: "all families",
}
BASES = {
    "cpu": "On a CPU: peak of the process less what it held before the steps.",
    "gpu": "On a GPU: peak of what torch allocated on the device.",
}
"""Kind of a device -> what its memory is."""
SPREAD_MAX = 0.1
"""Interquartile range / median of a steady point."""
POINTS = 1000
"""Rows of the table of points."""
FIRST = ("flops:forward", "bytes:forward", "parameters", "layers")
LEFT_OUT = (
    "One row per network and batch size, the fastest of its runs. For layers, ledger, memory and "
    "commands of a network, use perfctl report --run ID --out network.html with one --run for "
    "each of its runs."
)
FIT_AXES = (
    AxisFormat("measured", format_step_seconds),
    AxisFormat("predicted without this network", format_step_seconds),
)


@dataclass(frozen=True, slots=True)
class BenchResults:
    """What the chapters are made of."""

    points: tuple[BenchPoint, ...]
    observations: tuple[SizeObservation, ...]
    """Sizes and quantities of each point."""
    relations: tuple[SizeRelation, ...]
    fits: tuple[LeftOutErrors, ...]

    @property
    def headline_family(self) -> str:
        """Return the family that findings are about: all of them, if there are several."""
        families = [row.family for row in self.relations]
        return ALL if ALL in families else families[0]


def build_bench_cost_study(
    points: Sequence[BenchPoint],
    observations: Sequence[SizeObservation],
    fits: Sequence[LeftOutErrors],
    *,
    calculator_page: str | None = None,
    missing_reasons: Sequence[tuple[str, str]],
    problems: Sequence[str] = (),
) -> StudySubject:
    """Return what the chapters are made of; ``calculator_page``: name of the page next to this
    one."""
    relations = tuple(bench.correlate_quantities_with_sizes(observations))
    measured = BenchResults(tuple(points), tuple(observations), relations, tuple(fits))
    families = dict.fromkeys(point.family for point in points)
    link = "The calculator: time, memory and cost of any training, offline"
    return StudySubject(
        {name: partial(chapter, measured) for name, chapter in CHAPTERS.items()},
        tuple(_list_bench_facts(points)),
        {"families": ", ".join(map(_format_family_name, families))},
        tuple(missing_reasons),
        links=((link, calculator_page),) if calculator_page else (),
        problems=tuple(problems),
    )


def _format_family_name(family: str) -> str:
    return NAMES.get(family, family)


def _list_bench_facts(points: Sequence[BenchPoint]) -> Iterator[tuple[str, str]]:
    machines = dict.fromkeys(point.machine for point in points)
    lists: dict[str, Sequence[object]] = {
        "batch sizes": sorted({point.batch for point in points}),
        "device": [machine.device for machine in machines],
        "threads": sorted({machine.threads for machine in machines if machine.threads is not None}),
        "mode": sorted({f"{point.mode}, {point.precision}" for point in points}),
        "torch": [machine.torch for machine in machines if machine.torch],
    }
    yield "points", f"{len(points)} of {len({point.model for point in points})} networks"
    for fact, values in lists.items():
        if values:
            yield fact, ", ".join(dict.fromkeys(map(str, values)))


def build_time_vs_parameters_chapter(measured: BenchResults) -> View:
    """Return time against parameters, all families in one chart."""
    rows = [
        row for row in measured.relations if (row.quantity, row.size) == (bench.TIME, "parameters")
    ]
    first = next(row for row in rows if row.family == measured.headline_family)
    text = (
        f"Time against parameters, {_format_family_name(first.family)}: "
        f"{_describe_rank_correlation(first)}."
    )
    return build_study_chapter(
        charts=(draw_quantity_against_size("parameters-time", measured.observations, rows),),
        tables=(_build_size_correlations_table("Time of a step against parameters", rows),),
        findings=(text,) if first.ranked else (),
    )


def build_quantity_vs_network_size_chapter(measured: BenchResults, quantity: str) -> View:
    """Return time, memory or FLOPs of a step against the sizes of the network, a table per
    family."""
    rows = [row for row in measured.relations if row.quantity == quantity]
    title = QUANTITIES[quantity].title
    by_family = group_by(rows, lambda row: row.family)
    tables = [
        _build_size_correlations_table(f"{_format_family_name(name)}: {title} against", same)
        for name, same in by_family.items()
    ]
    kinds = {point.machine.kind for point in measured.points}
    text = [BASES[kind] for kind in BASES if kind in kinds and quantity == bench.MEMORY]
    few = ", ".join(
        dict.fromkeys(_format_family_name(row.family) for row in rows if row.has_few_points)
    )
    warning = f"Fewer than {FEW} points: {few}. Their coefficients say little."
    findings: list[Finding | str] = []
    ranked = [row for row in by_family.get(measured.headline_family, ()) if row.ranked]
    if ranked:
        best = max(ranked, key=lambda row: abs(row.ranked.value) if row.ranked else 0.0)
        size = SIZES[best.size].title.partition(" (")[0]
        low, high = (best.ranked and best.ranked.interval) or (1.0, 1.0)
        lead = f"Of the sizes, {size} is the closest to the {title}"
        if low <= 0 <= high:
            lead = f"No size goes clearly with the {title}; the closest is {size}"
        findings.append(f"{lead}: {_describe_rank_correlation(best)}.")
    folded = []
    if quantity == bench.TIME:  # estimated values say more than sizes
        every = [
            row for row in correlate_features_with_step_time(measured.points) if row.family == ALL
        ]
        if every:
            folded.append(build_time_correlation_table("all families, estimated values", every))
        if few:
            findings.append(Finding(warning, "time", True))
    charts = draw_quantity_against_each_size(
        quantity.lower(), measured.observations, measured.relations, quantity
    )
    return build_study_chapter(
        (*text, *([warning] if few else ())), charts.values(), tables, folded, findings
    )


def _describe_rank_correlation(row: SizeRelation) -> str:
    """Return "Spearman 0.80 (0.61 to 0.90), 24 points"."""
    value, interval = _build_coefficient_cells(row.ranked, row.reason)
    between = f" ({interval.text})" if row.ranked and row.ranked.interval else ""
    return f"Spearman {value.text}{between}, {row.points} points"


def _build_size_correlations_table(caption: str, rows: Sequence[SizeRelation]) -> Table | None:
    is_of_families = len({row.size for row in rows}) == 1
    interval = text_column("95% interval")
    heads = [
        text_column("family" if is_of_families else "against"),
        *map(Column, ("points", "networks")),
        Column("Spearman", note="of ranks"),
        interval,
        Column("Pearson", note="of values"),
        interval,
        Column("exponent", note="slope of the logarithms: 1 where proportional"),
        text_column(""),
    ]
    cells = []
    for row in rows:
        warning = (
            f"fewer than {FEW} points" if row.has_few_points and row.ranked else row.reason or ""
        )
        cells.append(
            [
                _format_family_name(row.family) if is_of_families else SIZES[row.size].title,
                row.points,
                row.networks,
                *_build_coefficient_cells(row.ranked, row.reason),
                *_build_coefficient_cells(row.linear, row.reason),
                _build_two_decimals_cell(row.exponent, row.reason),
                text_cell(warning),
            ]
        )
    return build_table(caption, heads, cells)


def _build_coefficient_cells(item: Coefficient | None, reason: str | None) -> tuple[Cell, Cell]:
    if item is None:
        none = _build_two_decimals_cell(None, reason)
        return none, none
    interval = missing_cell("three points, or all on one line: no spread")
    if item.interval is not None:
        interval = text_cell(
            " to ".join(_build_two_decimals_cell(end).text for end in item.interval)
        )
    return _build_two_decimals_cell(item.value), interval


def _build_two_decimals_cell(value: float | None, reason: str | None = None) -> Cell:
    """Return two decimals; 0.00 without a sign."""
    if value is None:
        return missing_cell(reason or "not known")
    return Cell(f"{round(value, 2) + 0.0:.2f}", str(value), value=value)


def _compute_left_out_relative_errors(left_out: LeftOutErrors, family: str = ALL) -> list[float]:
    """Return the shares by which the predictions of a family's steps are off, ascending."""
    return sorted(
        abs(seconds / step.seconds - 1)
        for step, seconds in left_out.rows
        if family in (ALL, step.case.family)
    )


def build_fit_error_chapter(measured: BenchResults) -> View:
    """Return the fit, with the error of each network left out once with all its batch sizes."""
    heads = [
        text_column("family"),
        *map(Column, ("points", "median error", "nine of ten below", "worst error")),
    ]
    columns = [
        name_column("network"),
        Column("batch"),
        time_column("measured"),
        time_column("predicted without it"),
        Column("off by"),
    ]
    tables, folded, charts, findings = [], [], [], []
    for number, left_out in enumerate(measured.fits, 1):
        suffix = f" ({number})" if len(measured.fits) > 1 else ""
        families = list(dict.fromkeys(step.case.family for step, _ in left_out.rows))
        rows = []
        for family in (*families, *([ALL] if len(families) > 1 else [])):
            errors = _compute_left_out_relative_errors(left_out, family)
            ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
            cells = map(share_cell, (median(errors), ninth, errors[-1]))
            rows.append([_format_family_name(family), len(errors), *cells])
        tables.append(build_table(f"Errors of networks left out{suffix}", heads, rows))
        steps = [
            [
                step.case.model,
                step.case.batch,
                step.seconds * 1e9,
                seconds * 1e9,
                share_cell(seconds / step.seconds - 1),
            ]
            for step, seconds in left_out.rows
        ]
        caption = f"Every step, predicted without its network{suffix}"
        folded.append(build_table(caption, columns, steps))
        charts.append(draw_predicted_vs_measured_chart(f"fit-left-out-{number}", left_out))
        errors = _compute_left_out_relative_errors(left_out)
        findings.append(
            f"A network that the fit has not seen: median error {format_percent(median(errors))}, "
            f"worst {format_percent(errors[-1])}."
        )
    names = (f"{left_out.fit.name}." for left_out in measured.fits)
    return build_study_chapter(names, charts, tables, folded, findings)


def draw_predicted_vs_measured_chart(name: str, left_out: LeftOutErrors) -> Chart:
    """Return each step predicted by a fit without its network, against the measured one."""
    dots = [
        FamilyDot(
            step.case.family, f"{step.case.model}, batch {step.case.batch}", step.seconds, seconds
        )
        for step, seconds in left_out.rows
    ]
    families = dict.fromkeys(dot.family for dot in dots)
    error = f"median error {format_percent(median(_compute_left_out_relative_errors(left_out)))}"
    note = f"{len(dots)} points; on the line both are the same."
    chart = draw_family_scatter(
        name, FIT_AXES, dots, families, {}, note, corner_text=error, has_diagonal=True
    )
    return replace(chart, title="Predicted by a fit without this network, against measured")


def build_bench_points_chapter(measured: BenchResults) -> View:
    """Return a row per network and batch size, the fastest of its runs."""
    points = measured.points
    findings = [
        Finding(f"{text}: not a quiet machine.", "points", True)
        for text in _describe_unsteady_points(points)
    ]
    listed = build_bench_points_table(points, max_rows=POINTS)
    return build_study_chapter(folded=(listed,), findings=findings)


def _describe_unsteady_points(points: Sequence[BenchPoint]) -> Iterator[str]:
    if unsteady := sum(point.interquartile_over_median > SPREAD_MAX for point in points):
        yield (
            f"{unsteady} of {len(points)} points varied by more than {SPREAD_MAX:.0%} between "
            "quartiles"
        )


def build_bench_points_table(
    points: Sequence[BenchPoint], run_ids: Sequence[int] = (), max_rows: int = ROWS_SHOWN
) -> Table | None:
    """A row a network and batch size; --json has the phases of a step, too. ``run_ids``: the run of
    each, for a page."""
    columns = [
        *([Column("run")] if run_ids else []),
        name_column("network"),
        Column("batch"),
        Column("FLOP", note="of a step; 1 multiply-add = 2 FLOPs"),
        Column("step", note="median"),
        Column("spread", note="interquartile range / median"),
    ]
    rows = [
        [
            *([text_cell(run_ids[index])] if run_ids else []),
            text_cell(point.model),
            point.batch,
            amount_cell(bench.sum_point_flops(point), ""),
            time_cell(point.step_ns[0]),
            share_cell(point.interquartile_over_median),
        ]
        for index, point in enumerate(points)
    ]
    return build_table("Points", columns, rows, max_rows=max_rows)


def build_time_correlation_table(family: str, related: Sequence[TimeCorrelation]) -> Table | None:
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
    notes = [f"Fewer than {FEW} points: these correlations may be chance."]
    is_enough = any(row.points >= FEW for row in related)
    caption = f"{family}: correlation with the time of a step"
    return build_table(caption, columns, rows, () if is_enough else notes)


def build_bench_views(bench_studies: Sequence[Study], first_number: int) -> Iterator[View]:
    """Yield one part for each device, mode and precision; ``first_number``: number of the first."""
    groups = group_by(bench_studies, lambda study: (study.device, study.mode, study.precision))
    for number, group in enumerate(groups.values(), first_number):
        yield _build_bench_view([run for study in group for run in study.runs], f"s{number}")


def _build_bench_view(runs: Sequence[Run], key: str) -> View:
    timed = [
        (point, run) for run in runs if (point := build_unprofiled_bench_point(run)) is not None
    ]
    run_of = {id(point): run.id for point, run in timed}
    points = keep_fastest_points(point for point, _ in timed)
    families = list(
        group_by(correlate_features_with_step_time(points), lambda row: row.family).values()
    )
    note = "median of a step; the legend has Spearman's coefficient of each family"
    charts = (
        draw_step_time_scatter(f"{key}-{make_feature_chart_name(name)}", name, points, note)
        for name in FIRST
    )
    listed = build_bench_points_table(points, [run_of[id(point)] for point in points], POINTS)
    related = (build_time_correlation_table(rows[0].family, rows) for rows in families)
    sections = [
        Section("Charts", charts=tuple(filter(None, charts)), key="charts"),
        Section("Points", (LEFT_OUT,), (listed,) if listed else (), key="points"),
        Section("Correlations with time", tables=tuple(filter(None, related)), key="goes-with"),
        Section("Environment", key="runs", environment=about.list_shared_environment_facts(runs)),
    ]
    findings = []
    for best, *_ in families:
        family = "over all families" if best.family == ALL else f"of {best.family}"
        rank = f"Spearman {best.spearman or 0.0:.2f}, {best.points} points"
        text = f"The step time {family} correlates best with {describe_feature(best.feature)}"
        findings.append(Finding(f"{text}: {rank}.", "goes-with"))
    mode = MODES.get(runs[0].mode or "", runs[0].mode)
    return about.build_run_group_view(
        key,
        ", ".join(filter(None, ("bench", mode, runs[0].precision))),
        runs,
        {
            **dict(_list_bench_facts(points)),
            "families": " ".join(dict.fromkeys(point.family for point in points)),
            "from": about.find_first_run_date(runs),
        },
        (
            *findings,
            *_warn_about_bad_bench_points(points, runs, len(timed)),
        ),
        (part for part in sections if part.charts or part.tables or part.environment or part.facts),
    )


def _warn_about_bad_bench_points(
    points: Sequence[BenchPoint], runs: Sequence[Run], timed_count: int
) -> Iterator[Finding]:
    texts = []
    if failed := [run for run in runs if run.status != "ok"]:
        texts.append(
            f"{len(failed)} runs are incomplete, run {failed[0].id} first: {failed[0].reason}."
        )
    if missing := len(runs) - len(failed) - timed_count:
        texts.append(
            f"{missing} complete runs are not in the chart: they have no timed step, or no device."
        )
    for text in _describe_unsteady_points(points):
        texts.append(f"{text}. Run perfctl bench FILE --steady 10 to measure them again.")
    return (Finding(text, "points", True) for text in texts)


CHAPTERS: dict[str, Callable[[BenchResults], View]] = {
    **{
        quantity.lower(): partial(build_quantity_vs_network_size_chapter, quantity=quantity)
        for quantity in bench.QUANTITIES
    },
    "parameters": build_time_vs_parameters_chapter,
    "fit": build_fit_error_chapter,
    "points": build_bench_points_chapter,
}
