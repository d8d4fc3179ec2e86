"""A prediction for the terminal: what was predicted, from what, how sure, what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.answer import Answer, AnswerPoint
from perfctl.orchestrator.analyse.cost import Rental, Room, Span, Training
from perfctl.orchestrator.report import prices as prices_text
from perfctl.orchestrator.report.numbers import (
    DASH,
    compact,
    compact_dollars,
    digits,
    dollars,
    duration,
    gigabytes,
    money,
    short_amount,
    with_range,
)
from perfctl.orchestrator.report.prices import days, sources, text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from perfctl.orchestrator.analyse.cost import Frontier

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
    yield text(
        f"\nWhere the {short_amount(exactly(point.step.seconds))} of a step at batch {point.step.case.batch:,} go"
    )
    grid = _grid("layer", "kind", ">time", ">part", "driven by")
    for share in shares[:LAYERS]:
        grid.add_row(*map(text, (
            share.layer or "(between layers)", share.kind, short_amount(exactly(share.seconds)), f"{share.part:.1%}",
            DRIVERS[share.limit],
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
        yield text(", ".join(f"{name} {short_amount(exactly(value))}" for name, value in point.step.phases.items()))
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


WAYS = {
    "measured": "measured here on this device",
    "fitted": "fitted to your own runs on this device",
    "transferred": "fitted to runs on another device, and moved by peaks and bandwidth",
    "roofline": "the roofline alone",
}


def terminal(found: Answer, best: Frontier | None, explain: bool) -> Iterator[RenderableType]:
    """Everything, part by part."""
    yield text(_heading(found))
    first = found.points[0]
    room = first.training.room
    lacks = room is not None and room.fits is False
    if len(found.points) == 1:
        yield _facts(_one(found, first))
    else:
        yield _facts(_all_grounds(found))
        yield batches(found)
    yield _facts(_about(found, first))
    if len(found.points) == 1 and first.training.rentals and not lacks:
        yield from costs(found, first.training)
    if explain:
        yield from explained(first)
    if best is not None:
        yield from frontier(found, best)


def _heading(found: Answer) -> str:
    question, subject = found.question, found.subject
    batch = ", ".join(str(size) for size in question.batches)
    how = f"training with {subject.optimizer}" if subject.training else "inference"
    where = f"{question.gpus} x {found.device.machine.name}" if question.gpus > 1 else found.device.machine.name
    return f"{subject.model}, {how}, batch {batch}, {question.precision}, on {where}"


def _one(found: Answer, point: AnswerPoint) -> list[tuple[str, str]]:
    job, training = found.question, point.training
    lacks = training.room is not None and training.room.fits is False
    rows = [("memory", _memory(training.room, ON_TOP[found.device.machine.kind]))] if lacks else []
    rows += [
        ("step", duration(training.step) + (", if it fitted" if lacks else "")),
        ("", with_range(training.samples_per_second, "samples/s")),
    ]
    if training.epoch is not None and training.steps is not None:
        name = "epoch" if found.subject.training else "all samples"
        rows.append((name, f"{duration(training.epoch)}: {training.steps:,} steps"))
    if training.whole is not None:
        rows.append(
            ("training" if found.subject.training else "all", f"{duration(training.whole)}: {job.epochs} epochs")
        )
    if not lacks:
        rows.append(("memory", _memory(training.room, ON_TOP[found.device.machine.kind])))
    rows += _parallel(training)
    return rows + _grounds(point)


def _memory(room: Room | None, on_top: str) -> str:
    """Whether it fits, by how much it does not, and the largest batch that does."""
    if room is None:
        return "not known"
    needed = f"{gigabytes(room.needed)} of tensors"
    if room.limit is None:
        return f"{needed}; how much the device has is not known"
    if not room.fits:
        largest = f"the largest batch that fits is {room.largest:,}" if room.largest else "not even one sample fits"
        return f"{needed}: does not fit in {gigabytes(room.limit)}, {gigabytes(room.lacking)} are missing; {largest}"
    most = f"; largest batch {room.largest:,}" if room.largest is not None else ""
    close = ", but little is left" if room.close else ""
    return f"{needed} of {gigabytes(room.limit)}: fits{close}{most} ({on_top})"


def _parallel(training: Training) -> list[tuple[str, str]]:
    found = training.parallel
    if found is None:
        return []
    said = f"efficiency {found.efficiency:.1%} of {found.gpus} GPUs"
    if found.communication is None:
        return [("in parallel", f"{said}, as said; {gigabytes(found.moved_bytes)} of gradients a step and GPU")]
    return [
        (
            "in parallel",
            f"{said}: {gigabytes(found.moved_bytes)} of gradients a step and GPU over {digits(found.link_gbs or 0)} GB/s"
            f" ({found.link}), {short_amount(exactly(found.communication))},"
            f" of which {short_amount(exactly(found.exposed or 0))} not hidden"
            f" (--overlap {found.overlap:g})",
        )
    ]


def _grounds(point: AnswerPoint) -> list[tuple[str, str]]:
    step = point.step
    covered = ""
    if step.coverage is not None:
        beyond = ", which this one goes beyond" if step.outside else ""
        covered = f"; the range is what covers {step.coverage:.0%} of held-out steps like those learned from{beyond}"
    rows = [("rests on", f"{WAYS[step.way]}: {step.source}{covered}")]
    rows += [("no better" if not place else "", why) for place, why in enumerate(filter(None, step.why_not))]
    rows += [("beyond data" if not place else "", said) for place, said in enumerate(step.outside)]
    return rows


def _all_grounds(found: Answer) -> list[tuple[str, str]]:
    """What each batch size rests on: said once for those that rest on the same."""
    same: dict[tuple[tuple[str, str], ...], list[AnswerPoint]] = {}
    for point in found.points:
        # Why a measurement is missing names its batch size; the ways and what lies beyond their data decide.
        same.setdefault(((point.step.way, point.step.source), *((said, "") for said in point.step.outside)), []).append(
            point
        )
    rows = []
    for points in same.values():
        batches = ", ".join(f"{point.training.job.batch:,}" for point in points)
        grounds = _grounds(points[0])
        rows += [(grounds[0][0], f"batch {batches}: {grounds[0][1]}" if len(same) > 1 else grounds[0][1]), *grounds[1:]]
    return rows


def _about(found: Answer, point: AnswerPoint) -> list[tuple[str, str]]:
    rows = [("device", f"{found.device.source}; roofline {short_amount(exactly(point.step.floor))} a step")]
    return rows + [("note" if not place else "", note) for place, note in enumerate(found.notes)]


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    from rich.table import Table

    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="dim", no_wrap=True, min_width=11)
    grid.add_column(overflow="fold")
    for name, said in rows:
        grid.add_row(text(name), text(said))
    return grid


def as_json(found: Answer, best: Frontier | None) -> dict[str, Any]:
    """Everything, every offer and every layer."""
    question, machine = found.question, found.device.machine
    return {
        "model": found.subject.model,
        "mode": "train" if found.subject.training else "infer",
        "optimizer": found.subject.optimizer or None,
        "precision": question.precision,
        "parameters": found.subject.parameters,
        "dataset_size": question.samples,
        "epochs": question.epochs,
        "gpus": question.gpus,
        "device": {
            **asdict(machine),
            "flops_per_second": dict(machine.flops_per_second),
            "source": found.device.source,
        },
        "prices": found.prices.where,
        "notes": list(found.notes),
        "batches": [_point(point) for point in found.points],
        "frontier": _frontier(best) if best is not None else None,
    }


def _point(point: AnswerPoint) -> dict[str, Any]:
    step, training = point.step, point.training
    return {
        "batch": step.case.batch,
        "step_s": _span(training.step),
        "step_one_gpu_s": _span(training.alone),
        "samples_per_s": _span(training.samples_per_second),
        "steps_per_epoch": training.steps,
        "epoch_s": _span(training.epoch),
        "training_s": _span(training.whole),
        "way": step.way,
        "source": step.source,
        "coverage": step.coverage,
        "why_not_better": [why for why in step.why_not if why],
        "beyond_the_data": list(step.outside),
        "roofline_s": step.floor,
        "phases_s": dict(step.phases),
        "memory": _room(training.room),
        "parallel": asdict(training.parallel) if training.parallel is not None else None,
        "offers": [_rental(rental) for rental in training.rentals],
        "energy": asdict(training.energy) if training.energy is not None else None,
        "layers": [asdict(share) for share in step.shares],
        "drivers": dict(step.drivers),
        "gaps": _gaps(point),
    }


def _gaps(point: AnswerPoint) -> dict[str, str]:
    """Name of a field that is null or empty -> why."""
    step, training = point.step, point.training
    job = training.job
    found = {
        "steps_per_epoch": "no --dataset-size" if job.samples is None else None,
        "epoch_s": "no --dataset-size" if job.samples is None else None,
        "training_s": "no --epochs" if job.epochs is None else None,
        "coverage": "no fit on this device: the range is that of the source" if step.coverage is None else None,
        "phases_s": "only measured and fitted steps know their phases" if not step.phases else None,
        "drivers": "only fits know them" if not step.drivers else None,
        "memory": "no lines of memory for this model: see notes" if training.room is None else None,
        "parallel": "one GPU" if training.parallel is None else None,
    }
    if training.room is not None and training.room.limit is None:
        found["memory.limit_bytes"] = "how much the device has is not known"
    if not training.rentals:
        found["offers"] = (
            "no --dataset-size" if training.billed is None else "no offer of this device in the price table"
        )
    if training.energy is None:
        found["energy"] = "no --dataset-size" if training.billed is None else "no power is known: --power"
    elif training.energy.cost is None:
        found["energy.cost"] = "no --tariff"
    return {name: why for name, why in found.items() if why is not None}


def _span(span: Span | None) -> dict[str, float] | None:
    return asdict(span) if span is not None else None


def _room(room: Room | None) -> dict[str, Any] | None:
    if room is None:
        return None
    return {
        "needed_bytes": room.needed,
        "limit_bytes": room.limit,
        "fits": room.fits,
        "lacking_bytes": room.lacking,
        "largest_batch": room.largest,
    }


def _rental(rental: Rental) -> dict[str, Any]:
    return {
        **prices_text.as_json(rental.price),
        "instances": rental.instances,
        "idle_gpus": rental.idle,
        "on_demand_usd": _span(rental.on_demand),
        "spot_usd": _span(rental.spot),
    }


def _frontier(best: Frontier) -> dict[str, Any]:
    return {
        "compared": best.compared,
        "too_large": best.too_large,
        "unknown": best.unknown,
        "choices": [
            {
                **prices_text.as_json(choice.price),
                "board": choice.board,
                "batch": choice.batch,
                "training_s": _span(choice.seconds),
                "on_demand_usd": _span(choice.dollars),
                "spot_usd": _span(choice.spot),
            }
            for choice in best.choices
        ],
    }
