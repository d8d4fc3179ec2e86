"""Tables of a prediction for the terminal: offers, batch sizes, layers, time against cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfctl.orchestrator.analyse.cost import Rental, Span
from perfctl.orchestrator.analyse.question import Answer, AnswerPoint
from perfctl.orchestrator.analyse.training import Training
from perfctl.orchestrator.report.amounts import (
    compact,
    compact_dollars,
    digits,
    dollars,
    gigabytes,
    money,
    short,
    with_range,
)
from perfctl.orchestrator.report.numbers import DASH
from perfctl.orchestrator.report.prices_text import days, sources, text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from perfctl.orchestrator.analyse.cost_frontier import Frontier

OFFERS, LAYERS = 12, 10
"""Rows shown; --json has all."""
DRIVERS = {"arithmetic": "FLOPs", "bytes": "bandwidth", "operations": "launches"}
ON_TOP = {
    "gpu": "the allocator's rounding, workspaces and the CUDA context come on top",
    "cpu": "Python, libraries and the allocator's rounding come on top",
}


def costs(found: Answer, training: Training) -> Iterator[RenderableType]:
    billed = f"{found.question.epochs} epochs" if training.whole is not None else "one epoch"
    whole = [rental for rental in training.rentals if rental.instances == 1]
    rentals = whole or training.rentals
    shown = rentals[:OFFERS]
    prices = [rental.price for rental in shown]
    yield text(f"\nCost of {billed}, prices of {days(prices)}, {found.prices.where} ({', '.join(sources(prices))})")
    yield _offers(shown, found)
    if len(rentals) > len(shown):
        yield text(f"and {len(rentals) - len(shown)} dearer: --json has them", "dim")
    said = "the network between machines is not in these times"
    if not whole:
        yield text(f"no offer has {training.job.gpus} GPUs in one instance: {said}")
    elif len(whole) < len(training.rentals):
        yield text(f"{len(training.rentals) - len(whole)} offers of fewer GPUs an instance are left out: {said}", "dim")
    if training.energy is not None:
        energy = training.energy
        cost = f", cost {with_range(energy.cost)} at the tariff" if energy.cost is not None else ""
        yield text(
            f"energy {with_range(energy.kwh, 'kWh')}{cost}: {digits(energy.watts)} W a GPU, {energy.source};"
            " without host and cooling"
        )


def _offers(rentals: Sequence[Rental], found: Answer) -> Table:
    grid = _grid("provider", "instance", "GPUs", ">on demand", ">spot")
    for rental in rentals:
        price = rental.price
        gpus = f"{rental.instances} x {price.count}" if rental.instances > 1 else str(price.count)
        idle = f", {rental.idle} idle" if rental.idle else ""
        may_be = "*" if len(price.boards) > 1 else ""
        grid.add_row(*map(text, (
            price.provider, f"{price.instance or price.gpu}{may_be}", f"{gpus}{idle}",
            dollars(rental.on_demand) if rental.on_demand is not None else DASH,
            money(rental.spot.value) if rental.spot is not None else DASH,
        )))  # fmt: skip
    if any(len(rental.price.boards) > 1 for rental in rentals):
        grid.caption = f"* the provider does not say which form; worked out as {found.device.machine.name}"
    return grid


def batches(found: Answer) -> Table:
    heads = ["batch", ">step", ">samples/s", ">memory", "fits"]
    several = found.points[0].training
    if several.billed is not None:
        heads += [">all epochs" if several.whole is not None else ">epoch", *([">cheapest"] if several.rentals else [])]
    grid = _grid(*heads, tight=True)
    for point in found.points:
        training, room = point.training, point.training.room
        lacks = room is not None and room.fits is False
        fits = DASH if room is None or room.fits is None else "no" if lacks else "little left" if room.close else "yes"
        row = [
            f"{training.job.batch:,}", compact(training.step), digits(training.samples_per_second.value),
            gigabytes(room.needed) if room is not None else DASH, fits,
        ]  # fmt: skip
        if training.billed is not None:
            costs = [rental.on_demand for rental in training.rentals if rental.on_demand and rental.instances == 1]
            cheapest = money(costs[0].value) if costs and not lacks else DASH
            row += [compact(training.billed), *([cheapest] if training.rentals else [])]
        grid.add_row(*map(text, row))
    largest = several.room.largest if several.room is not None else None
    if largest is not None:
        grid.caption = f"the largest batch that fits is {largest:,}; {ON_TOP[found.device.machine.kind]}"
    return grid


def explained(point: AnswerPoint) -> Iterator[RenderableType]:
    shares = point.step.shares
    if not shares:
        return
    yield text(f"\nWhere the {short(exactly(point.step.seconds))} of a step at batch {point.step.case.batch:,} go")
    grid = _grid("layer", "kind", ">time", ">part", "driven by")
    for share in shares[:LAYERS]:
        grid.add_row(*map(text, (
            share.layer or "(between layers)", share.kind, short(exactly(share.seconds)), f"{share.part:.1%}", DRIVERS[share.limit]
        )))  # fmt: skip
    yield grid
    rest = shares[LAYERS:]
    if rest:
        yield text(f"and {len(rest)} more: {sum(share.part for share in rest):.1%}; --json has them all", "dim")
    by_limit: dict[str, float] = {}
    for share in shares:
        by_limit[share.limit] = by_limit.get(share.limit, 0.0) + share.part
    said = ", ".join(f"{part:.0%} {DRIVERS[name]}" for name, part in sorted(by_limit.items(), key=lambda row: -row[1]))
    yield text(f"by what limits the layers: {said}")
    if point.step.phases:
        yield text(", ".join(f"{name} {short(exactly(value))}" for name, value in point.step.phases.items()))
    if point.step.drivers:
        said = ", ".join(f"{name} x {factor:.2f}" for name, factor in point.step.drivers[:5])
        yield text(f"what moves it from the middle of what was measured: {said}")


def frontier(found: Answer, best: Frontier) -> Iterator[RenderableType]:
    left_out = [f"{best.too_large} do not fit in memory"] if best.too_large else []
    left_out += [f"{best.unknown} have no price or no peak"] if best.unknown else []
    also = f" ({', '.join(left_out)})" if left_out else ""
    yield text(f"\nTime against cost: what no other of {best.compared} offers and batch sizes beats in both{also}")
    grid = _grid("time", ">on demand", ">spot", "offer", ">batch", tight=True)
    for choice in best.choices:
        price = choice.price
        offer = f"{price.provider} {price.instance}".strip()
        grid.add_row(*map(text, (
            compact(choice.seconds), compact_dollars(choice.dollars), money(choice.spot.value) if choice.spot is not None else DASH,
            f"{offer}, {price.count} x {choice.board}", str(choice.batch),
        )))  # fmt: skip
    yield grid
    if best.choices:
        when = days([choice.price for choice in best.choices])
        yield text(f"prices of {when}, {found.prices.where}; batches are of each GPU", "dim")


def _grid(*heads: str, tight: bool = False) -> Table:
    """Columns, those with ">" before their head to the right; ``tight``: one space between them, and none is broken."""
    from rich.table import Table

    grid = Table(box=None, header_style="dim", pad_edge=False, caption_justify="left", caption_style="dim")
    grid.padding = (0, 1 if tight else 2, 0, 0)
    for head in heads:
        side = "right" if head.startswith(">") else "left"
        grid.add_column(head.removeprefix(">"), justify=side, overflow="fold", no_wrap=tight and head != "offer")  # type: ignore[arg-type]
    return grid


def exactly(value: float) -> Span:
    """A figure without a range."""
    return Span(value, value, value)
