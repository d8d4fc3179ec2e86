"""A prediction: its view with figures, grounds, ranges and costs, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from perfctl.orchestrator.counts.hardware.machines import Device
from perfctl.orchestrator.predict.answer import Answer, AnswerPoint
from perfctl.orchestrator.predict.cost import Choice, Frontier, Rental, Room, Span, Training
from perfctl.orchestrator.predict.predict import WAYS, StepTime
from perfctl.orchestrator.predict.prices import Price
from perfctl.orchestrator.report import prices as prices_text
from perfctl.orchestrator.report.numbers import (
    digits,
    dollars,
    duration,
    gigabytes,
    money,
    with_range,
)
from perfctl.orchestrator.report.prices import PriceRow, days, sources
from perfctl.orchestrator.report.tables import (
    Column,
    Table,
    count,
    dense_table,
    nothing,
    text_cell,
    text_columns,
    whole_table,
)
from perfctl.orchestrator.report.view import View

NOT_OFFERED = nothing("not offered")
OFFERS, LAYERS = 12, 10
"""Rows shown; --json has all."""
DRIVERS = {"arithmetic": "FLOPs", "bytes": "bandwidth", "operations": "launches"}
ON_TOP = {
    "gpu": "reserved for the CUDA context and cuDNN, docs/formulas.md",
    "cpu": "excludes Python, libraries and the allocator's rounding",
}
"""What stands beside the tensors: on a GPU :data:`RESERVE` of estimate.memory."""

_NOT_APART = "measured and fitted steps do not separate host time from GPU time"


@dataclass(frozen=True, slots=True)
class OfferOutput:
    """One offer for the whole training."""

    JSON_INLINED = ("price", "rental")

    price: PriceRow
    rental: Rental


@dataclass(frozen=True, slots=True)
class ChoiceOutput:
    """One choice that no other beats in both time and cost."""

    JSON_INLINED = ("price", "choice")

    price: PriceRow
    choice: Choice


@dataclass(frozen=True, slots=True)
class FrontierOutput:
    """The choices that no other beats, and how many were compared."""

    compared: int
    too_large: int
    unknown: int
    unsure: int
    choices: list[ChoiceOutput]


@dataclass(frozen=True, slots=True)
class PredictedBatch:
    """The prediction for one batch size. ``gaps`` has the reason of what is null or empty."""

    JSON_INLINED = ("training", "step")

    batch: int
    training: Training
    step: StepTime
    tokens_per_s: Span | None
    nearest: str | None
    why_not_better: list[str]
    offers: list[OfferOutput]
    drivers: Mapping[str, float]
    """What the time goes with -> share."""
    gaps: Mapping[str, str]
    """Key that is null or empty -> why."""


@dataclass(frozen=True, slots=True)
class PredictOutput:
    """Times in seconds, memory in bytes, money in US dollars, energy in kWh."""

    model: str
    """As it was named."""
    mode: str
    optimizer: str | None
    precision: str
    parameters: int
    dataset_size: int | None
    epochs: int | None
    gpus: int
    device: Device
    prices: str
    """Where the prices are from."""
    notes: tuple[str, ...]
    tokens_per_sample: int | None
    batches: list[PredictedBatch]
    frontier: FrontierOutput | None
    """null: no --frontier."""


def _costs(answer: Answer, training: Training) -> Table:
    """Return what the training costs by offer, the cheapest first."""
    single = _single(training)
    rentals = single or training.rentals
    shown = rentals[:OFFERS]
    rows = []
    for rental in shown:
        price = rental.price
        gpus = f"{rental.instances} x {price.count}" if rental.instances > 1 else str(price.count)
        rows.append(
            (
                price.provider,
                price.instance or price.gpu,
                f"{gpus}, {rental.idle} idle" if rental.idle else gpus,
                text_cell(dollars(rental.on_demand)) if rental.on_demand else NOT_OFFERED,
                text_cell(money(rental.spot.value)) if rental.spot else NOT_OFFERED,
                prices_text.when(price, answer.prices.today),
            )
        )
    notes = _notes_on_prices(answer, [rental.price for rental in shown])
    if len(rentals) > len(shown):
        notes.append(f"and {len(rentals) - len(shown)} more expensive offers: see --json")
    network = "these times exclude the network between machines"
    if not single:
        notes.append(f"no offer has {training.job.gpus} GPUs in one instance; {network}")
    elif left_out := len(training.rentals) - len(single):
        notes.append(f"{left_out} offers with fewer GPUs per instance are omitted; {network}")
    if (energy := training.energy) is not None:
        cost = (
            f", cost {with_range(energy.cost)} at the electricity price"
            if energy.cost is not None
            else ""
        )
        notes.append(
            f"energy {with_range(energy.kwh, 'kWh')}{cost}: {digits(energy.watts)} W per GPU, "
            f"{energy.source}; without host and cooling"
        )
    billed = f"{answer.question.epochs} epochs" if training.whole is not None else "one epoch"
    columns = [
        *text_columns("provider", "instance", "GPUs"),
        Column("on demand"),
        Column("spot"),
        *text_columns("price of"),
    ]
    return dense_table(f"Cost of {billed}", columns, rows, notes)


def _notes_on_prices(answer: Answer, prices: Sequence[Price]) -> list[str]:
    """Return where the prices are from, and which are old."""
    where = f"{answer.prices.where} ({'; '.join(sources(prices))})"
    return [f"prices of {days(prices)}, {where}", *prices_text.old(answer.prices, prices)]


def is_too_large(training: Training) -> bool:
    """Return whether it is known that the step does not fit."""
    return training.room is not None and training.room.fits is False


def _batches(answer: Answer) -> Table:
    """Return a row for each batch size, and what the columns rest on."""
    tokens, first = answer.subject.tokens, answer.points[0].training
    is_billed, has_offers = first.billed is not None, bool(first.rentals)
    columns = [
        Column("batch"),
        Column("step"),
        Column("tokens/s" if tokens is not None else "samples/s"),
        Column("memory"),
        *([Column("all epochs" if first.whole is not None else "epoch")] * is_billed),
        *([Column("cheapest")] * (is_billed and has_offers)),
    ]
    rows = []
    for point in answer.points:
        training, room = point.training, point.training.room
        memory = nothing("not known")
        if room is not None:
            fits = ", little left" if room.close else ", fits" if room.fits else ", too much"
            memory = text_cell(gigabytes(room.whole) + ("" if room.fits is None else fits))
        row = [
            count(training.job.batch),
            text_cell(duration(training.step, is_short=True)),
            text_cell(digits(training.samples_per_second.value * (tokens or 1))),
            memory,
        ]
        if training.billed is not None:
            row.append(text_cell(duration(training.billed, is_short=True)))
            costs = [rental.on_demand for rental in _single(training) if rental.on_demand]
            if has_offers:
                has_cost = costs and not is_too_large(training)
                cheapest = text_cell(money(costs[0].value)) if has_cost else NOT_OFFERED
                row.append(cheapest)
        rows.append(row)
    return dense_table("Prediction by batch size", columns, rows, list(_below_batches(answer)))


def _single(training: Training) -> list[Rental]:
    """Return the offers that have all GPUs in one instance."""
    return [rental for rental in training.rentals if rental.instances == 1]


def _below_batches(answer: Answer) -> Iterator[str]:
    waits = [point.step for point in answer.points if point.step.host_limits]
    if waits:
        which = ", ".join(f"{step.case.batch:,}" for step in waits)
        yield f"batch {which}: {host_limit(waits[-1], f'a step at batch {waits[-1].case.batch:,}')}"
    first = answer.points[0].training
    if first.room is not None and first.room.largest is not None:
        reserve, on_top = first.room.reserve, ON_TOP[answer.device.machine.kind]
        on_top = f"memory includes {gigabytes(reserve)} {on_top}" if reserve else on_top
        yield f"the largest batch that fits is {first.room.largest:,}; {on_top}"
    prices = [rental.price for rental in _single(first) if rental.on_demand]
    if first.billed is not None and prices:
        yield "cheapest: on-demand price; the cost range is proportional to the time range"
        yield from _notes_on_prices(answer, prices)


def _explained(point: AnswerPoint) -> Table | None:
    """Return the layers that take the most time; None if the layers' times are not known."""
    step, shares = point.step, point.step.shares
    if not shares:
        return None
    rows = [
        (
            share.layer or "(between layers)",
            share.kind,
            text_cell(_exactly(share.seconds)),
            text_cell(f"{share.part:.1%}"),
            DRIVERS[share.limit],
        )
        for share in shares[:LAYERS]
    ]
    notes = []
    if rest := shares[LAYERS:]:
        notes.append(f"and {len(rest)} more: {sum(share.part for share in rest):.1%}; see --json")
    if step.host_limits and step.gpu is not None:
        notes.append(
            f"the GPU works for {_exactly(step.gpu)} of it and waits for the host otherwise; "
            "shares are of the complete step"
        )
    by_limit = dict.fromkeys((share.limit for share in shares), 0.0)
    for share in shares:
        by_limit[share.limit] += share.part
    limits = sorted(by_limit.items(), key=lambda limit: -limit[1])
    parts = ", ".join(f"{part:.0%} {DRIVERS[name]}" for name, part in limits)
    notes.append(f"by limit of the layers: {parts}")
    if step.phases:
        notes.append(", ".join(f"{name} {_exactly(value)}" for name, value in step.phases.items()))
    if step.drivers:
        factors = ", ".join(f"{name} x {factor:.2f}" for name, factor in step.drivers[:5])
        notes.append(f"factors relative to the middle of the measured data: {factors}")
    columns = [
        *text_columns("layer", "kind"),
        Column("time"),
        Column("part"),
        *text_columns("driven by"),
    ]
    title = f"Where the {_exactly(step.seconds)} of a step at batch {step.case.batch:,} go"
    return dense_table(title, columns, rows, notes)


def _frontier_table(answer: Answer, best: Frontier) -> Table:
    """Return the choices that no other beats in both time and cost, and what they rest on."""
    rows = [
        (
            text_cell(duration(choice.seconds, is_short=True)),
            text_cell(dollars(choice.dollars, is_short=True)),
            text_cell(money(choice.spot.value)) if choice.spot else NOT_OFFERED,
            f"{choice.price.provider} {choice.price.instance}".strip()
            + f", {choice.price.count} x {choice.board}, "
            + prices_text.when(choice.price, answer.prices.today),
            choice.batch,
        )
        for choice in best.choices
    ]
    left_out = {
        "do not fit in memory": best.too_large,
        "have no price or no peak": best.unknown,
        "do not state PCIe or SXM": best.unsure,
    }
    notes = [f"omitted because they {why}: {number}" for why, number in left_out.items() if number]
    if not answer.question.undated:
        notes.append("omitted because they have no known date (use --undated)")
    if best.choices:
        ways = "; ".join(dict.fromkeys(WAYS[choice.way] for choice in best.choices))
        notes.append(f"times and costs: {ways}; the spot range is proportional to on-demand")
        beyond = dict.fromkeys(choice.board for choice in best.choices if choice.beyond)
        if beyond:
            notes.append(f"extrapolated, with wider ranges: {', '.join(beyond)}")
        notes.append("batch sizes are per GPU")
        notes += _notes_on_prices(answer, [choice.price for choice in best.choices])
    columns = [
        Column("time", style="word"),
        Column("on demand"),
        Column("spot"),
        *text_columns("offer"),
        Column("batch"),
    ]
    caption = f"Time and cost: the best of {best.compared} offers and batch sizes"
    return dense_table(caption, columns, rows, notes)


def _exactly(value: float) -> str:
    return duration(Span(value, value, value))


def prediction_view(answer: Answer, best: Frontier | None, *, explain: bool) -> View:
    """Return the figures with their ranges, what they rest on, and the costs."""
    question, subject, device = answer.question, answer.subject, answer.device
    first = answer.points[0]
    how = f"training with {subject.optimizer}" if subject.training else "inference"
    on = f"{question.gpus} x {device.machine.name}" if question.gpus > 1 else device.machine.name
    batch = ", ".join(map(str, question.batches))
    is_single = len(answer.points) == 1
    figures = _figures(answer, first) if is_single else []
    at = "" if is_single else f" at batch {first.step.case.batch:,}"
    roofline = f"roofline {_exactly(first.step.floor)} per step{at}"
    facts = [*figures, *_grounds(answer), *device_facts(device, answer.notes, roofline)]
    tables = [*([] if is_single else [_batches(answer)]), facts_table(facts)]
    if is_single and first.training.rentals and not is_too_large(first.training):
        tables.append(_costs(answer, first.training))
    if explain and (layers := _explained(first)) is not None:
        tables.append(layers)
    if best is not None:
        tables.append(_frontier_table(answer, best))
    title = f"{subject.model}, {how}, batch {batch}, {question.number_type}, on {on}"
    return View(title, tables=tuple(tables))


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Return (name, sentence) as a table without heads; an empty name goes on with the one
    before."""
    columns = [Column("", style="word"), *text_columns("")]
    return whole_table("", columns, [list(map(text_cell, fact)) for fact in facts])


def named(name: str, sentences: Iterable[str]) -> list[tuple[str, str]]:
    """Return the sentences below one name, with bullets if they are several."""
    texts = list(sentences)
    bullet = "- " if len(texts) > 1 else ""
    return [("" if number else name, f"{bullet}{text}") for number, text in enumerate(texts)]


def device_facts(
    device: Device, notes: Sequence[str], more: str | None = None
) -> list[tuple[str, str]]:
    """Return where the figures of the device are from, which one was assumed if several have its
    name, and the other notes."""
    source = f"{device.source}; {more}" if more else device.source
    others = [note for note in notes if note != device.note]
    assumed = named("assumed", [device.note] if device.note else [])
    return [("device", source), *assumed, *named("notes", others)]


def _figures(answer: Answer, point: AnswerPoint) -> list[tuple[str, str]]:
    job, training, trains = answer.question, point.training, answer.subject.training
    too_large = is_too_large(training)
    memory = ("memory", _memory(training.room, answer.device.machine.kind))
    speed, tokens = training.samples_per_second, answer.subject.tokens
    rate = f"{digits(speed.value)} samples/s"
    if tokens is not None:
        rate += f", {digits(speed.value * tokens)} tokens/s ({tokens:,} per sample)"
    fitted = ", if it fitted" if too_large else ""
    rows = [("step", f"{duration(training.step)}{fitted}; {rate}")]
    rows = [memory, *rows] if too_large else rows
    if training.epoch is not None and training.steps is not None:
        name = "epoch" if trains else "all samples"
        rows.append((name, f"{duration(training.epoch)}: {training.steps:,} steps"))
    if training.whole is not None:
        name = "training" if trains else "all"
        rows.append((name, f"{duration(training.whole)}: {job.epochs} epochs"))
    limit = host_limit(point.step)
    rows += [("host", limit)] if limit is not None else []
    rows += [] if too_large else [memory]
    return rows + _parallel(training)


def host_limit(step: StepTime, name: str = "this step") -> str | None:
    """Return what to know and do if the GPU waits for the host; None if it does not, or it is not
    known."""
    if not step.host_limits or step.host is None or step.gpu is None:
        return None
    also = " with their backward and the update" if step.case.training else ""
    return (
        f"the host limits {name}: launching {step.operations:,} operations{also} takes "
        f"{_exactly(step.host)}, the GPU {_exactly(step.gpu)}; a larger batch costs little extra "
        "time; CUDA graphs or torch.compile launch fewer operations"
    )


def _memory(room: Room | None, kind: str) -> str:
    if room is None:
        return "not known"
    on_top = f"{gigabytes(room.reserve)} of it {ON_TOP[kind]}" if room.reserve else ON_TOP[kind]
    if room.limit is None:
        return f"{gigabytes(room.whole)}; the memory of the device is unknown; {on_top}"
    needed = f"{gigabytes(room.whole)} of {gigabytes(room.limit)}"
    if not room.fits:
        why = (
            f"{gigabytes(room.lacking)} are missing"
            if room.lacking
            else "the allocator's free blocks are too small"
        )
        most = f"largest batch {room.largest:,}" if room.largest else "not even one sample fits"
        return f"{needed}, does not fit: {why}; {most}; {on_top}"
    close = ", but little is left" if room.close else ""
    largest = f"; largest batch {room.largest:,}" if room.largest is not None else ""
    return f"{needed}, fits{close}{largest}; {on_top}"


def _parallel(training: Training) -> list[tuple[str, str]]:
    parallel = training.parallel
    if parallel is None:
        return []
    text = f"efficiency {parallel.efficiency:.1%} of {parallel.gpus} GPUs"
    moved = f"{gigabytes(parallel.moved_bytes)} of gradients per step and GPU"
    if parallel.communication is None:
        return [("in parallel", f"{text}, as given; {moved}")]
    link = f"over {digits(parallel.link_gbs or 0)} GB/s ({parallel.link})"
    hidden = (
        f"{_exactly(parallel.communication)}, of which {_exactly(parallel.exposed or 0)} is not "
        f"hidden (--overlap {parallel.overlap:g})"
    )
    return [("in parallel", f"{text}: {moved} {link}, {hidden}")]


def _grounds(answer: Answer) -> list[tuple[str, str]]:
    """Return what each batch size rests on, once for those that share it."""
    same: dict[tuple[str, ...], list[AnswerPoint]] = {}
    for point in answer.points:
        # Reasons for a missing measurement name the batch size, so they are no part of the key.
        same.setdefault((point.step.way, point.step.source, *point.step.outside), []).append(point)
    rows = []
    for points in same.values():
        step = points[0].step
        batches = ", ".join(f"{point.training.job.batch:,}" for point in points)
        basis = f"{WAYS[step.way]}: {step.source}"
        if step.coverage is not None:
            beyond = " (this step is an extrapolation)" if step.outside else ""
            basis += (
                f"; the range covers {step.coverage:.0%} of held-out steps similar to the "
                f"measured ones{beyond}"
            )
        rows += [("basis", f"batch {batches}: {basis}" if len(same) > 1 else basis)]
        rows += named("closest", [step.nearest] if step.nearest else [])
        rows += named("not used", filter(None, step.why_not))
        rows += named("extrapolation", step.outside)
    return rows


def predict_output(answer: Answer, best: Frontier | None) -> PredictOutput:
    """Return everything, every offer and every layer."""
    question, subject, prices = answer.question, answer.subject, answer.prices
    return PredictOutput(
        model=subject.model,
        mode="train" if subject.training else "infer",
        optimizer=subject.optimizer or None,
        precision=question.number_type,
        parameters=subject.parameters,
        dataset_size=question.dataset_size,
        epochs=question.epochs,
        gpus=question.gpus,
        device=answer.device,
        prices=prices.where,
        notes=answer.notes,
        tokens_per_sample=subject.tokens,
        batches=[_point(point, prices.today, subject.tokens) for point in answer.points],
        frontier=None if best is None else _frontier(best, prices.today),
    )


def _frontier(best: Frontier, today: date) -> FrontierOutput:
    choices = [
        ChoiceOutput(prices_text.price_row(choice.price, today), choice) for choice in best.choices
    ]
    return FrontierOutput(best.compared, best.too_large, best.unknown, best.unsure, choices)


def _point(point: AnswerPoint, today: date, tokens: int | None) -> PredictedBatch:
    step, training = point.step, point.training
    speed = training.samples_per_second
    return PredictedBatch(
        batch=step.case.batch,
        training=training,
        step=step,
        tokens_per_s=speed.times(tokens) if tokens is not None else None,
        nearest=step.nearest or None,
        why_not_better=[why for why in step.why_not if why],
        offers=[
            OfferOutput(prices_text.price_row(rental.price, today), rental)
            for rental in training.rentals
        ],
        drivers=dict(step.drivers),
        gaps=_gaps(point, tokens),
    )


def _gaps(point: AnswerPoint, tokens: int | None) -> dict[str, str]:
    """Name of a field that is null or empty -> why."""
    step, training = point.step, point.training
    job, room, energy = training.job, training.room, training.energy
    no_samples = "no --dataset-size"
    unbilled = no_samples if training.billed is None else None
    gaps = (
        ("steps_per_epoch", job.samples is None, no_samples),
        ("epoch_s", job.samples is None, no_samples),
        ("training_s", job.epochs is None, "no --epochs"),
        ("tokens_per_s", tokens is None, "a sample is not a sequence of tokens"),
        (
            "coverage",
            step.coverage is None,
            "no fit for such steps on this device: the range is that of the source",
        ),
        ("nearest", not step.nearest, "the prediction does not use published measurements"),
        *(
            (name, step.host_limits is None, _NOT_APART)
            for name in ("host_s", "gpu_s", "host_limits")
        ),
        ("phases_s", not step.phases, "the roofline has no phases"),
        ("drivers", not step.drivers, "only fits to own runs have phases"),
        ("memory", room is None, "no lines of memory for this model: see notes"),
        ("parallel", training.parallel is None, "one GPU"),
        (
            "memory.limit_bytes",
            room is not None and room.limit is None,
            "the memory of the device is unknown",
        ),
        ("offers", not training.rentals, unbilled or "no offer of this device in the price table"),
        ("energy", energy is None, unbilled or "unknown power: set --power"),
        ("energy.cost", energy is not None and energy.cost is None, "no --tariff"),
    )
    return {name: why for name, is_missing, why in gaps if is_missing}
