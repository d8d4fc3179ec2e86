"""The study of time and cost as a page: what goes with what and how surely, the fit and its errors,
the calculator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from perfctl.orchestrator.report.studies.records import Chapter, StudyPage
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
from perfctl.records.bench import BenchPoint

NAMES = {
    "vgg": "VGG",
    "resnet": "ResNet",
    "inception": "Inception",
    "mlp": "fully connected",
    ALL: "all families",
}
ON_CPU = (
    "peak of the process less what it held before the steps: tensors, gradients, the optimizer's "
    "values, workspaces"
)
ON_GPU = "peak of what torch allocated on the device"
HOW = (
    (
        "Each coefficient stands with its number of points and its 95% interval (Fisher's z). "
        "Spearman's is of ranks: any rising curve gives 1. Pearson's is of the values: a straight "
        "line gives 1. Depth and width are each family's own (Inception's depth is its modules), "
        "so they are not compared across families."
    ),
    (
        "A network measured at several batch sizes gives several points that are not independent: "
        "for sizes of the network the intervals are narrower than they should be."
    ),
)
UNSTEADY = 0.1


def study_page(
    points: Sequence[BenchPoint],
    found: Sequence[Observation],
    fits: Sequence[LeftOut],
    *,
    calculator: str | None = None,
    missing: Sequence[tuple[str, str]] = (),
    origin: str | None = None,
    command: str | None = None,
) -> StudyPage:
    """points: measured; found: the same as observations; calculator: name of the page beside
    this one."""
    rows = bench.relations(found)
    chapters = [
        _first(found, rows),
        *(_quantity(points, found, rows, name) for name in bench.QUANTITIES),
    ]
    chapters += [*([_fit(fits)] if fits else []), _points(points)]
    links = (
        (("The calculator: time, memory and cost of any training, offline", calculator),)
        if calculator
        else ()
    )
    families = [NAMES.get(name, name) for name in dict.fromkeys(point.family for point in points)]
    return StudyPage(
        "cost",
        f"What a training step costs: {', '.join(families)}",
        tuple(_facts(points)),
        tuple(_findings(points, rows, fits, calculator)),
        tuple(chapters),
        tuple(missing),
        origin,
        command,
        links,
    )


def _facts(points: Sequence[BenchPoint]) -> Iterator[tuple[str, str]]:
    machines = dict.fromkeys(point.machine for point in points)
    yield "points", f"{len(points)} of {len({point.model for point in points})} networks"
    yield "batch sizes", ", ".join(map(str, sorted({point.batch for point in points})))
    yield "device", ", ".join(dict.fromkeys(machine.device for machine in machines))
    threads = sorted({machine.threads for machine in machines if machine.threads is not None})
    if threads:
        yield "threads", ", ".join(map(str, threads))
    yield "mode", ", ".join(sorted({f"{point.mode}, {point.precision}" for point in points}))
    yield (
        "torch",
        ", ".join(dict.fromkeys(machine.torch for machine in machines if machine.torch))
        or "not recorded",
    )


def _findings(
    points: Sequence[BenchPoint],
    rows: Sequence[Relation],
    fits: Sequence[LeftOut],
    calculator: str | None,
) -> Iterator[Finding]:
    pooled = ALL if any(row.family == ALL for row in rows) else rows[0].family
    first = next(
        row
        for row in rows
        if (row.family, row.quantity, row.size) == (pooled, bench.TIME, "parameters")
    )
    if first.ranked:
        text = (
            f"Time against parameters, {NAMES.get(pooled, pooled)}: Spearman "
            f"{_said(first.ranked)}, {first.points} points."
        )
        yield Finding(text, "parameters")
    for quantity in bench.QUANTITIES:
        mine = [
            row for row in rows if row.family == pooled and row.quantity == quantity and row.ranked
        ]
        if mine:
            yield _closest(quantity, mine)
    for one in fits:
        errors = _errors(one)
        text = (
            f"A network that the fit has not seen: median error {percent(median(errors))}, worst "
            f"{percent(max(errors))}."
        )
        yield Finding(text, "fit")
    if few := sorted({NAMES.get(row.family, row.family) for row in rows if row.few and row.ranked}):
        yield Finding(
            f"Fewer than {FEW} points in {', '.join(few)}: their coefficients say little.",
            "time",
            True,
        )
    if unsteady := sum(point.spread > UNSTEADY for point in points):
        text = (
            f"{unsteady} of {len(points)} points varied by more than {UNSTEADY:.0%} between "
            "quartiles: not a quiet machine."
        )
        yield Finding(text, "points", True)


def _closest(quantity: str, rows: Sequence[Relation]) -> Finding:
    best = max(rows, key=lambda row: abs(row.ranked.value) if row.ranked else 0.0)
    assert best.ranked is not None
    what, size = QUANTITIES[quantity][0], SIZES[best.size][0].partition(" (")[0]
    number = f"Spearman {_said(best.ranked)}, {best.points} points"
    low, high = best.ranked.interval or (best.ranked.value, best.ranked.value)
    if low <= 0 <= high:
        return Finding(
            f"No size goes clearly with the {what}; the closest is {size}: {number}.",
            quantity.lower(),
        )
    return Finding(
        f"Of the sizes, {size} is the closest to the {what}: {number}.", quantity.lower()
    )


def _said(one: Coefficient) -> str:
    return _number(one.value) + (
        f" ({' to '.join(map(_number, one.interval))})" if one.interval else ""
    )


def _first(found: Sequence[Observation], rows: Sequence[Relation]) -> Chapter:
    mine = [row for row in rows if (row.quantity, row.size) == (bench.TIME, "parameters")]
    chart = relation_chart("parameters-time", found, mine)
    made = _table("Time of a step against parameters", mine)
    text = (
        "The first thing to look at: does a model with more parameters take longer? All families "
        "in one chart."
    )
    return Chapter(
        "parameters",
        "Time against parameters",
        (text,),
        (chart,) if chart else (),
        (made,) if made else (),
    )


def _quantity(
    points: Sequence[BenchPoint],
    found: Sequence[Observation],
    rows: Sequence[Relation],
    quantity: str,
) -> Chapter:
    mine = [row for row in rows if row.quantity == quantity]
    key, title = quantity.lower(), QUANTITIES[quantity][0]
    shown: list[Table] = []
    for family in dict.fromkeys(row.family for row in mine):
        of_family = [row for row in mine if row.family == family]
        if made := _table(f"{NAMES.get(family, family)}: {title} against", of_family):
            shown.append(made)
    kinds = {point.machine.kind for point in points}
    basis = {
        bench.TIME: "Median of the measured steps, without loading data.",
        bench.MEMORY: "; ".join(
            [ON_CPU] * ("cpu" in kinds) + [ON_GPU] * ("gpu" in kinds)
        ).capitalize()
        + ".",
        bench.FLOPS: (
            "Forward and backward on paper; 1 multiply-add = 2 FLOPs. They are worked out, so "
            "nothing disturbs them."
        ),
    }[quantity]
    few = [NAMES.get(row.family, row.family) for row in mine if row.few]
    warned = (
        [
            (
                f"Fewer than {FEW} points: {', '.join(dict.fromkeys(few))}. These coefficients say "
                "little."
            )
        ]
        if few
        else []
    )
    charts = tuple(relation_charts(key, found, rows, quantity))
    heading = f"{title[0].upper()}{title[1:]} against sizes of the network"
    return Chapter(
        key, heading, (basis, *HOW, *warned), charts, tuple(shown), _calculated(points, quantity)
    )


def _calculated(points: Sequence[BenchPoint], quantity: str) -> tuple[Table, ...]:
    """Time against what is worked out from the shapes (FLOPs, bytes, operations), which says more
    than the sizes."""
    if quantity != bench.TIME:
        return ()
    every = [row for row in correlations(points) if row.family == ALL]
    made = correlation_table("all families, figures on paper", every) if every else None
    return (made,) if made else ()


def _table(caption: str, rows: Sequence[Relation]) -> Table | None:
    alone = len({row.size for row in rows}) == 1
    heads = [
        Column("family" if alone else "against", style="text"),
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
        name = NAMES.get(row.family, row.family) if alone else SIZES[row.size][0]
        why = row.reason or "not known"
        warned = (
            text_cell(f"fewer than {FEW} points")
            if row.few and row.ranked
            else text_cell(row.reason or "")
        )
        exponent = nothing(why) if row.exponent is None else _decimal(row.exponent)
        made.append(
            [
                name,
                row.points,
                row.networks,
                *_cells(row.ranked, why),
                *_cells(row.linear, why),
                exponent,
                warned,
            ]
        )
    return table(caption, heads, made)


def _cells(one: Coefficient | None, why: str) -> tuple[Cell, Cell]:
    if one is None:
        return nothing(why), nothing(why)
    if one.interval is None:
        return _decimal(one.value), nothing("three points, or all on one line: no spread")
    return _decimal(one.value), text_cell(" to ".join(map(_number, one.interval)))


def _decimal(value: float) -> Cell:
    return Cell(_number(value), str(value), value=value)


def _number(value: float) -> str:
    """Two decimals; 0.00 without a sign."""
    return f"{round(value, 2) + 0.0:.2f}"


def _errors(one: LeftOut) -> list[float]:
    """Share by which each step's prediction is off."""
    return [abs(seconds / measured.seconds - 1) for measured, seconds in one.rows]


def _fit(fits: Sequence[LeftOut]) -> Chapter:
    text = (
        (
            "The fit that the calculator and perfctl predict use. Each network was left out once, "
            "with all its batch sizes, and predicted by a fit to the others: the errors are those "
            "of a network that was never measured."
        ),
        *(f"{one.fit.name}." for one in fits),
    )
    heads = [
        Column("family", style="text"),
        Column("points"),
        Column("median error"),
        Column("nine of ten below"),
        Column("worst error"),
    ]
    shown, folded, charts = [], [], []
    for place, one in enumerate(fits, 1):
        number = f" ({place})" if len(fits) > 1 else ""
        families = list(dict.fromkeys(measured.case.family for measured, _ in one.rows))
        rows = []
        for family in (*families, *([ALL] if len(families) > 1 else [])):
            kept = tuple(row for row in one.rows if family in (ALL, row[0].case.family))
            errors = sorted(_errors(replace(one, rows=kept)))
            ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
            rows.append(
                [
                    NAMES.get(family, family),
                    len(errors),
                    *map(share_cell, (median(errors), ninth, errors[-1])),
                ]
            )
        shown += (
            [made] if (made := table(f"Errors of networks left out{number}", heads, rows)) else []
        )
        folded += [made] if (made := _predictions(one, number)) else []
        charts.append(left_out_chart(f"fit-left-out-{place}", one, families))
    return Chapter(
        "fit", "The fit, and its errors", text, tuple(charts), tuple(shown), tuple(folded)
    )


def _predictions(one: LeftOut, number: str) -> Table | None:
    heads = [
        Column("network", style="code"),
        Column("batch"),
        Column("measured", base="ns"),
        Column("predicted without it", base="ns"),
        Column("off by"),
    ]
    rows = [
        [
            measured.case.model,
            measured.case.batch,
            time_cell(measured.seconds * 1e9),
            time_cell(seconds * 1e9),
            share_cell(seconds / measured.seconds - 1),
        ]
        for measured, seconds in one.rows
    ]
    return table(f"Every step, predicted without its network{number}", heads, rows)


def left_out_chart(name: str, one: LeftOut, families: Sequence[str]) -> Chart:
    """Each step predicted by a fit without its network, against what was measured."""
    dots = [
        Dot(
            measured.case.family,
            f"{measured.case.model}, batch {measured.case.batch}",
            measured.seconds,
            seconds,
        )
        for measured, seconds in one.rows
    ]
    axis = [
        Axis(title, lambda seconds: time(seconds * 1e9))
        for title in ("measured", "predicted without this network")
    ]
    said = f"median error {percent(median(_errors(one)))}"
    title = "Predicted by a fit without this network, against measured"
    colours = {family: place for place, family in enumerate(families)}
    drawing = by_family(
        name, f"{title}. {said}", dots, (axis[0], axis[1]), colours, {}, said, equal=True
    )
    return Chart(title, drawing, f"{len(dots)} points; on the line both are the same.")


def _points(points: Sequence[BenchPoint]) -> Chapter:
    made = points_table(points, limit=1000)
    text = "One row a network and batch size, the fastest of its runs. 1 multiply-add = 2 FLOPs."
    return Chapter("points", "What was measured", (text,), folded=(made,) if made else ())
