"""Chapters of time and cost: correlations with their intervals, the fit and its errors, the points
that were measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from perfctl.orchestrator.predict import bench
from perfctl.orchestrator.predict.bench import (
    ALL,
    FEW,
    Coefficient,
    Observation,
    Relation,
    correlations,
)
from perfctl.orchestrator.predict.fit import LeftOut
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.relations import (
    QUANTITIES,
    SIZES,
    Axis,
    Dot,
    draw_families,
    relation_chart,
    relation_charts,
    show_step,
)
from perfctl.orchestrator.report.numbers import percent
from perfctl.orchestrator.report.page.bench import correlation_table, points_table
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.records import Subject, make_chapter
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    nothing,
    share_cell,
    table,
    text_cell,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.statistics import group_by
from perfctl.records.bench import BenchPoint

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
FIT_AXES = Axis("measured", show_step), Axis("predicted without this network", show_step)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the chapters are made of."""

    points: tuple[BenchPoint, ...]
    observations: tuple[Observation, ...]
    """Sizes and quantities of each point."""
    relations: tuple[Relation, ...]
    fits: tuple[LeftOut, ...]

    @property
    def pooled(self) -> str:
        """Return the family that findings are about: all of them, if there are several."""
        families = [row.family for row in self.relations]
        return ALL if ALL in families else families[0]


def subject(
    points: Sequence[BenchPoint],
    observations: Sequence[Observation],
    fits: Sequence[LeftOut],
    *,
    calculator: str | None = None,
    missing: Sequence[tuple[str, str]] = (),
    problems: Sequence[str] = (),
) -> Subject:
    """Return what the chapters are made of; ``calculator``: name of the page next to this one."""
    relations = tuple(bench.relations(observations))
    measured = Measured(tuple(points), tuple(observations), relations, tuple(fits))
    families = dict.fromkeys(point.family for point in points)
    link = "The calculator: time, memory and cost of any training, offline"
    return Subject(
        {name: partial(chapter, measured) for name, chapter in CHAPTERS.items()},
        tuple(_facts(points)),
        {"families": ", ".join(map(_name, families))},
        tuple(missing),
        links=((link, calculator),) if calculator else (),
        problems=tuple(problems),
    )


def _name(family: str) -> str:
    return NAMES.get(family, family)


def _facts(points: Sequence[BenchPoint]) -> Iterator[tuple[str, str]]:
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


def parameters_chapter(measured: Measured) -> View:
    """Return time against parameters, all families in one chart."""
    rows = [
        row for row in measured.relations if (row.quantity, row.size) == (bench.TIME, "parameters")
    ]
    first = next(row for row in rows if row.family == measured.pooled)
    text = f"Time against parameters, {_name(first.family)}: {_describe(first)}."
    return make_chapter(
        charts=(relation_chart("parameters-time", measured.observations, rows),),
        tables=(_table("Time of a step against parameters", rows),),
        findings=(text,) if first.ranked else (),
    )


def quantity_chapter(measured: Measured, quantity: str) -> View:
    """Return time, memory or FLOPs of a step against the sizes of the network, a table per
    family."""
    rows = [row for row in measured.relations if row.quantity == quantity]
    title = QUANTITIES[quantity].title
    by_family = group_by(rows, lambda row: row.family)
    tables = [_table(f"{_name(name)}: {title} against", same) for name, same in by_family.items()]
    kinds = {point.machine.kind for point in measured.points}
    text = [BASES[kind] for kind in BASES if kind in kinds and quantity == bench.MEMORY]
    few = ", ".join(dict.fromkeys(_name(row.family) for row in rows if row.few))
    warning = f"Fewer than {FEW} points: {few}. Their coefficients say little."
    findings: list[Finding | str] = []
    ranked = [row for row in by_family.get(measured.pooled, ()) if row.ranked]
    if ranked:
        findings.append(_describe_closest(title, ranked))
    folded = []
    if quantity == bench.TIME:  # estimated values say more than sizes
        every = [row for row in correlations(measured.points) if row.family == ALL]
        if every:
            folded.append(correlation_table("all families, estimated values", every))
        if few:
            findings.append(Finding(warning, "time", True))
    charts = relation_charts(quantity.lower(), measured.observations, measured.relations, quantity)
    return make_chapter(
        (*text, *([warning] if few else ())),
        charts.values(),
        tables,
        folded,
        findings,
    )


def _describe_closest(quantity: str, rows: Sequence[Relation]) -> str:
    best = max(rows, key=lambda row: abs(row.ranked.value) if row.ranked else 0.0)
    size = SIZES[best.size].title.partition(" (")[0]
    low, high = (best.ranked and best.ranked.interval) or (1.0, 1.0)
    if low <= 0 <= high:
        return (
            f"No size goes clearly with the {quantity}; the closest is {size}: {_describe(best)}."
        )
    return f"Of the sizes, {size} is the closest to the {quantity}: {_describe(best)}."


def _describe(row: Relation) -> str:
    """Return "Spearman 0.80 (0.61 to 0.90), 24 points"."""
    value, interval = _coefficient_cells(row.ranked, row.reason)
    between = f" ({interval.text})" if row.ranked and row.ranked.interval else ""
    return f"Spearman {value.text}{between}, {row.points} points"


def _table(caption: str, rows: Sequence[Relation]) -> Table | None:
    is_of_families = len({row.size for row in rows}) == 1
    interval = Column("95% interval", style="text")
    heads = [
        Column("family" if is_of_families else "against", style="text"),
        *map(Column, ("points", "networks")),
        Column("Spearman", note="of ranks"),
        interval,
        Column("Pearson", note="of values"),
        interval,
        Column("exponent", note="slope of the logarithms: 1 where proportional"),
        Column("", style="text"),
    ]
    cells = []
    for row in rows:
        warning = f"fewer than {FEW} points" if row.few and row.ranked else row.reason or ""
        cells.append(
            [
                _name(row.family) if is_of_families else SIZES[row.size].title,
                row.points,
                row.networks,
                *_coefficient_cells(row.ranked, row.reason),
                *_coefficient_cells(row.linear, row.reason),
                _decimal_cell(row.exponent, row.reason),
                text_cell(warning),
            ]
        )
    return table(caption, heads, cells)


def _coefficient_cells(item: Coefficient | None, reason: str | None) -> tuple[Cell, Cell]:
    if item is None:
        return _decimal_cell(None, reason), _decimal_cell(None, reason)
    interval = nothing("three points, or all on one line: no spread")
    if item.interval is not None:
        interval = text_cell(" to ".join(_decimal_cell(end).text for end in item.interval))
    return _decimal_cell(item.value), interval


def _decimal_cell(value: float | None, reason: str | None = None) -> Cell:
    """Return two decimals; 0.00 without a sign."""
    if value is None:
        return nothing(reason or "not known")
    return Cell(f"{round(value, 2) + 0.0:.2f}", str(value), value=value)


def _errors(left_out: LeftOut, family: str = ALL) -> list[float]:
    """Return the shares by which the predictions of a family's steps are off, ascending."""
    return sorted(
        abs(seconds / step.seconds - 1)
        for step, seconds in left_out.rows
        if family in (ALL, step.case.family)
    )


def fit_chapter(measured: Measured) -> View:
    """Return the fit, with the error of each network left out once with all its batch sizes."""
    heads = [
        Column("family", style="text"),
        *map(Column, ("points", "median error", "nine of ten below", "worst error")),
    ]
    columns = [
        Column("network", style="code"),
        Column("batch"),
        Column("measured", base="ns"),
        Column("predicted without it", base="ns"),
        Column("off by"),
    ]
    tables, folded, charts, findings = [], [], [], []
    for number, left_out in enumerate(measured.fits, 1):
        suffix = f" ({number})" if len(measured.fits) > 1 else ""
        families = list(dict.fromkeys(step.case.family for step, _ in left_out.rows))
        rows = []
        for family in (*families, *([ALL] if len(families) > 1 else [])):
            errors = _errors(left_out, family)
            ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
            cells = map(share_cell, (median(errors), ninth, errors[-1]))
            rows.append([_name(family), len(errors), *cells])
        tables.append(table(f"Errors of networks left out{suffix}", heads, rows))
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
        folded.append(table(caption, columns, steps))
        charts.append(left_out_chart(f"fit-left-out-{number}", left_out))
        errors = _errors(left_out)
        findings.append(
            f"A network that the fit has not seen: median error {percent(median(errors))}, worst "
            f"{percent(errors[-1])}."
        )
    names = (f"{left_out.fit.name}." for left_out in measured.fits)
    return make_chapter(names, charts, tables, folded, findings)


def left_out_chart(name: str, left_out: LeftOut) -> Chart:
    """Return each step predicted by a fit without its network, against the measured one."""
    dots = [
        Dot(step.case.family, f"{step.case.model}, batch {step.case.batch}", step.seconds, seconds)
        for step, seconds in left_out.rows
    ]
    families = dict.fromkeys(dot.family for dot in dots)
    error = f"median error {percent(median(_errors(left_out)))}"
    note = f"{len(dots)} points; on the line both are the same."
    chart = draw_families(name, FIT_AXES, dots, families, {}, note, corner=error, has_diagonal=True)
    return replace(chart, title="Predicted by a fit without this network, against measured")


def points_chapter(measured: Measured) -> View:
    """Return a row per network and batch size, the fastest of its runs."""
    points = measured.points
    unsteady = sum(point.spread > SPREAD_MAX for point in points)
    varied = f"varied by more than {SPREAD_MAX:.0%} between quartiles: not a quiet machine"
    finding = Finding(f"{unsteady} of {len(points)} points {varied}.", "points", True)
    listed = points_table(points, limit=1000)
    return make_chapter(folded=(listed,), findings=(finding,) if unsteady else ())


CHAPTERS: dict[str, Callable[[Measured], View]] = {
    **{
        quantity.lower(): partial(quantity_chapter, quantity=quantity)
        for quantity in bench.QUANTITIES
    },
    "parameters": parameters_chapter,
    "fit": fit_chapter,
    "points": points_chapter,
}
