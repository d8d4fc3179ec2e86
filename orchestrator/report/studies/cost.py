"""Chapters of time and cost: what goes with what and how surely, the fit and its errors, the points
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
    by_family,
    relation_chart,
    relation_charts,
)
from perfctl.orchestrator.report.numbers import percent, time
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
    time_cell,
)
from perfctl.orchestrator.report.view import View
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


@dataclass(frozen=True, slots=True)
class Measured:
    """What the chapters are made of."""

    points: tuple[BenchPoint, ...]
    observations: tuple[Observation, ...]
    """Sizes and quantities of each point."""
    relations: tuple[Relation, ...]
    fits: tuple[LeftOut, ...]


def subject(
    points: Sequence[BenchPoint],
    observations: Sequence[Observation],
    fits: Sequence[LeftOut],
    *,
    calculator: str | None = None,
    missing: Sequence[tuple[str, str]] = (),
    problems: Sequence[str] = (),
) -> Subject:
    """Return what the chapters are made of; ``calculator``: name of the page beside this one."""
    relations = tuple(bench.relations(observations))
    measured = Measured(tuple(points), tuple(observations), relations, tuple(fits))
    chapters: dict[str, Callable[[], View]] = {
        quantity.lower(): partial(quantity_chapter, measured, quantity)
        for quantity in bench.QUANTITIES
    }
    chapters |= {
        "parameters": partial(parameters_chapter, measured),
        "fit": partial(fit_chapter, measured),
        "points": partial(points_chapter, measured),
    }
    families = [NAMES.get(name, name) for name in dict.fromkeys(point.family for point in points)]
    link = "The calculator: time, memory and cost of any training, offline"
    return Subject(
        chapters,
        tuple(_facts(points)),
        {"families": ", ".join(families)},
        tuple(missing),
        links=((link, calculator),) if calculator else (),
        problems=tuple(problems),
    )


def _facts(points: Sequence[BenchPoint]) -> Iterator[tuple[str, str]]:
    machines = list(dict.fromkeys(point.machine for point in points))
    torch = dict.fromkeys(machine.torch for machine in machines if machine.torch)
    threads = {machine.threads for machine in machines if machine.threads is not None}
    yield "points", f"{len(points)} of {len({point.model for point in points})} networks"
    yield "batch sizes", ", ".join(map(str, sorted({point.batch for point in points})))
    yield "device", ", ".join(dict.fromkeys(machine.device for machine in machines))
    if threads:
        yield "threads", ", ".join(map(str, sorted(threads)))
    yield "mode", ", ".join(sorted({f"{point.mode}, {point.precision}" for point in points}))
    yield "torch", ", ".join(torch) or "not recorded"


def parameters_chapter(measured: Measured) -> View:
    """Time against parameters, all families in one chart."""
    rows = [
        row for row in measured.relations if (row.quantity, row.size) == (bench.TIME, "parameters")
    ]
    pooled = _pooled(measured.relations)
    first = next(row for row in rows if row.family == pooled)
    text = f"Time against parameters, {NAMES.get(pooled, pooled)}: Spearman"
    return make_chapter(
        charts=(relation_chart("parameters-time", measured.observations, rows),),
        tables=(_table("Time of a step against parameters", rows),),
        findings=(f"{text} {_coefficient(first.ranked)}, {first.points} points.",)
        if first.ranked
        else (),
    )


def _pooled(relations: Sequence[Relation]) -> str:
    """Return the family that findings are about: all of them, where there are several."""
    return ALL if any(row.family == ALL for row in relations) else relations[0].family


def quantity_chapter(measured: Measured, quantity: str) -> View:
    """Time, memory or FLOPs of a step against the sizes of the network, a table a family."""
    rows = [row for row in measured.relations if row.quantity == quantity]
    title = QUANTITIES[quantity][0]
    tables = [
        _table(
            f"{NAMES.get(family, family)}: {title} against",
            [row for row in rows if row.family == family],
        )
        for family in dict.fromkeys(row.family for row in rows)
    ]
    kinds = {point.machine.kind for point in measured.points}
    text = [BASES[kind] for kind in BASES if kind in kinds and quantity == bench.MEMORY]
    few = dict.fromkeys(NAMES.get(row.family, row.family) for row in rows if row.few)
    if few:
        text.append(f"Fewer than {FEW} points: {', '.join(few)}. Their coefficients say little.")
    findings: list[Finding | str] = []
    pooled = _pooled(measured.relations)
    ranked = [row for row in rows if row.family == pooled and row.ranked]
    if ranked:
        findings.append(_closest(title, ranked))
    folded: tuple[Table | None, ...] = ()
    if quantity == bench.TIME:  # what is worked out from the shapes says more than sizes
        every = [row for row in correlations(measured.points) if row.family == ALL]
        if every:
            folded = (correlation_table("all families, figures on paper", every),)
        if few:
            unsure = f"Fewer than {FEW} points in {', '.join(sorted(few))}"
            findings.append(Finding(f"{unsure}: their coefficients say little.", "time", True))
    charts = relation_charts(quantity.lower(), measured.observations, measured.relations, quantity)
    return make_chapter(tuple(text), tuple(charts), tuple(tables), folded, tuple(findings))


def _closest(what: str, rows: Sequence[Relation]) -> str:
    best = max(rows, key=lambda row: abs(row.ranked.value) if row.ranked else 0.0)
    assert best.ranked is not None
    size = SIZES[best.size][0].partition(" (")[0]
    number = f"Spearman {_coefficient(best.ranked)}, {best.points} points"
    low, high = best.ranked.interval or (best.ranked.value, best.ranked.value)
    if low <= 0 <= high:
        return f"No size goes clearly with the {what}; the closest is {size}: {number}."
    return f"Of the sizes, {size} is the closest to the {what}: {number}."


def _coefficient(one: Coefficient) -> str:
    interval = f" ({' to '.join(map(_number, one.interval))})" if one.interval else ""
    return _number(one.value) + interval


def _table(caption: str, rows: Sequence[Relation]) -> Table | None:
    is_of_families = len({row.size for row in rows}) == 1
    heads = [
        Column("family" if is_of_families else "against", style="text"),
        Column("points"),
        Column("networks"),
        Column("Spearman", note="of ranks"),
        Column("95% interval", style="text"),
        Column("Pearson", note="of values"),
        Column("95% interval", style="text"),
        Column("exponent", note="slope of the logarithms: 1 where proportional"),
        Column("", style="text"),
    ]
    made = []
    for row in rows:
        why = row.reason or "not known"
        warning = f"fewer than {FEW} points" if row.few and row.ranked else row.reason or ""
        made.append(
            [
                NAMES.get(row.family, row.family) if is_of_families else SIZES[row.size][0],
                row.points,
                row.networks,
                *_coefficient_cells(row.ranked, why),
                *_coefficient_cells(row.linear, why),
                nothing(why) if row.exponent is None else _decimal(row.exponent),
                text_cell(warning),
            ]
        )
    return table(caption, heads, made)


def _coefficient_cells(one: Coefficient | None, why: str) -> tuple[Cell, Cell]:
    if one is None:
        return nothing(why), nothing(why)
    if one.interval is None:
        return _decimal(one.value), nothing("three points, or all on one line: no spread")
    return _decimal(one.value), text_cell(" to ".join(map(_number, one.interval)))


def _decimal(value: float) -> Cell:
    return Cell(_number(value), str(value), value=value)


def _number(value: float) -> str:
    """Return two decimals; 0.00 without a sign."""
    return f"{round(value, 2) + 0.0:.2f}"


def _errors(one: LeftOut) -> list[float]:
    """Return the share by which each step's prediction is off."""
    return [abs(seconds / step.seconds - 1) for step, seconds in one.rows]


def fit_chapter(measured: Measured) -> View:
    """The fit, with the error of each network left out once with all its batch sizes."""
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
    shown, folded, charts, findings = [], [], [], []
    for number, one in enumerate(measured.fits, 1):
        of = f" ({number})" if len(measured.fits) > 1 else ""
        families = list(dict.fromkeys(step.case.family for step, _ in one.rows))
        rows = []
        for family in (*families, *([ALL] if len(families) > 1 else [])):
            own = tuple(row for row in one.rows if family in (ALL, row[0].case.family))
            errors = sorted(_errors(replace(one, rows=own)))
            ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
            cells = map(share_cell, (median(errors), ninth, errors[-1]))
            rows.append([NAMES.get(family, family), len(errors), *cells])
        shown.append(table(f"Errors of networks left out{of}", heads, rows))
        steps = [
            [
                step.case.model,
                step.case.batch,
                time_cell(step.seconds * 1e9),
                time_cell(seconds * 1e9),
                share_cell(seconds / step.seconds - 1),
            ]
            for step, seconds in one.rows
        ]
        folded.append(table(f"Every step, predicted without its network{of}", columns, steps))
        charts.append(left_out_chart(f"fit-left-out-{number}", one, families))
        errors = _errors(one)
        findings.append(
            f"A network that the fit has not seen: median error {percent(median(errors))}, worst "
            f"{percent(max(errors))}."
        )
    names = tuple(f"{one.fit.name}." for one in measured.fits)
    return make_chapter(names, tuple(charts), tuple(shown), tuple(folded), tuple(findings))


def left_out_chart(name: str, one: LeftOut, families: Sequence[str]) -> Chart:
    """Each step predicted by a fit without its network, against what was measured."""
    dots = [
        Dot(step.case.family, f"{step.case.model}, batch {step.case.batch}", step.seconds, seconds)
        for step, seconds in one.rows
    ]
    axis = [
        Axis(title, lambda seconds: time(seconds * 1e9))
        for title in ("measured", "predicted without this network")
    ]
    error = f"median error {percent(median(_errors(one)))}"
    title = "Predicted by a fit without this network, against measured"
    colours = {family: number for number, family in enumerate(families)}
    drawing = by_family(
        name, f"{title}. {error}", dots, (axis[0], axis[1]), colours, {}, error, equal=True
    )
    return Chart(title, drawing, f"{len(dots)} points; on the line both are the same.")


def points_chapter(measured: Measured) -> View:
    """A row a network and batch size, the fastest of its runs."""
    points = measured.points
    unsteady = sum(point.spread > SPREAD_MAX for point in points)
    varied = f"varied by more than {SPREAD_MAX:.0%} between quartiles: not a quiet machine"
    finding = Finding(f"{unsteady} of {len(points)} points {varied}.", "points", True)
    return make_chapter(
        folded=(points_table(points, limit=1000),), findings=(finding,) if unsteady else ()
    )
