"""A prediction: its view with figures, grounds, ranges and costs, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from perfctl.orchestrator.counts.hardware.machines import Device
from perfctl.orchestrator.predict.answer import Answer, AnswerPoint
from perfctl.orchestrator.predict.cost import Choice, Frontier, Rental, Room, Span, Training
from perfctl.orchestrator.predict.predict import WAYS, StepTime
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
    Cell,
    Column,
    Table,
    dense_table,
    nothing,
    text_cell,
)
from perfctl.orchestrator.report.view import View

NOT_OFFERED = nothing("not offered")
OFFERS, LAYERS = 12, 10
"""Rows shown; --json has all."""
DRIVERS = {"arithmetic": "FLOPs", "bytes": "bandwidth", "operations": "launches"}
ON_TOP = {
    "gpu": "reserved for the CUDA context and cuDNN, docs/formulas.md",
    "cpu": "Python, libraries and the allocator's rounding come on top",
}
"""What stands beside the tensors: on a GPU :data:`RESERVE` of estimate.memory."""

_NOT_APART = "the host's time is not apart from the GPU's in measured and fitted steps"


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
    billed = f"{answer.question.epochs} epochs" if training.whole is not None else "one epoch"
    whole = [rental for rental in training.rentals if rental.instances == 1]
    rentals = whole or training.rentals
    shown = rentals[:OFFERS]
    prices = [rental.price for rental in shown]
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
    notes = [*prices_text.old(answer.prices, prices)]
    if len(rentals) > len(shown):
        notes.append(f"and {len(rentals) - len(shown)} dearer: --json has them")
    network = "the network between machines is not in these times"
    if not whole:
        notes.append(f"no offer has {training.job.gpus} GPUs in one instance: {network}")
    elif len(whole) < len(training.rentals):
        left_out = len(training.rentals) - len(whole)
        notes.append(f"{left_out} offers of fewer GPUs an instance are left out: {network}")
    if (energy := training.energy) is not None:
        cost = f", cost {with_range(energy.cost)} at the tariff" if energy.cost is not None else ""
        notes.append(
            f"energy {with_range(energy.kwh, 'kWh')}{cost}: {digits(energy.watts)} W per GPU, "
            f"{energy.source}; without host and cooling"
        )
    return dense_table(
        f"Cost of {billed}, prices of {days(prices)}, {answer.prices.where} "
        f"({'; '.join(sources(prices))})",
        [
            Column("provider", style="text"),
            Column("instance", style="text"),
            Column("GPUs", style="text"),
            Column("on demand"),
            Column("spot"),
            Column("price of", style="text"),
        ],
        rows,
        notes,
    )


def is_too_large(training: Training) -> bool:
    """Return whether it is known that the step does not fit."""
    return training.room is not None and training.room.fits is False


def _host_limits(answer: Answer) -> Iterator[str]:
    """A sentence for the batch sizes that wait for the host, and the smallest that does not."""
    waits = [point for point in answer.points if point.step.host_limits]
    if not waits:
        return
    step = waits[-1].step
    sentence = host_limit(step, f"a step at batch {step.case.batch:,}")
    if sentence is not None:
        which = ", ".join(f"{point.step.case.batch:,}" for point in waits)
        yield f"batch {which}: {sentence}"


def _batches(answer: Answer) -> Table:
    """Return a row for each batch size."""
    tokens, first = answer.subject.tokens, answer.points[0].training
    is_billed, has_offers = first.billed is not None, bool(first.rentals)
    columns = [
        Column("batch"),
        Column("step"),
        Column("tokens/s" if tokens is not None else "samples/s"),
        Column("memory"),
        Column("fits", style="word"),
    ]
    columns += [Column("all epochs" if first.whole is not None else "epoch")] * is_billed
    columns += [Column("cheapest")] * (is_billed and has_offers)
    rows = []
    for point in answer.points:
        training, room = point.training, point.training.room
        row: list[object] = [
            training.job.batch,
            text_cell(duration(training.step, is_short=True)),
            text_cell(digits(training.samples_per_second.value * (tokens or 1))),
            text_cell(gigabytes(room.whole)) if room is not None else nothing("not known"),
            _fits(room),
        ]
        if training.billed is not None:
            row += [
                text_cell(duration(training.billed, is_short=True)),
                *([_cheapest(training)] * has_offers),
            ]
        rows.append(row)
    return dense_table("Prediction by batch size", columns, rows, _below_batches(answer))


def _fits(room: Room | None) -> Cell:
    if room is None or room.fits is None:
        return nothing("not known")
    return text_cell("no" if not room.fits else "little left" if room.close else "yes")


def _cheapest(training: Training) -> Cell:
    costs = [
        rental.on_demand
        for rental in training.rentals
        if rental.on_demand and rental.instances == 1
    ]
    if not costs or is_too_large(training):
        return nothing("no offer, or it does not fit in memory")
    return text_cell(money(costs[0].value))


def _below_batches(answer: Answer) -> list[str]:
    """Return the sentences below the batch sizes."""
    first, sentences = answer.points[0].training, [*_host_limits(answer)]
    if first.room is not None and first.room.largest is not None:
        reserve, on_top = first.room.reserve, ON_TOP[answer.device.machine.kind]
        on_top = f"memory is with {gigabytes(reserve)} {on_top}" if reserve else on_top
        sentences.append(f"the largest batch that fits is {first.room.largest:,}; {on_top}")
    if first.billed is not None and first.rentals:
        prices = [
            rental.price for rental in first.rentals if rental.on_demand and rental.instances == 1
        ]
        if prices:
            offers = f"offers with prices of {days(prices)} ({'; '.join(sources(prices))})"
            dates = f"cheapest, with the range of the time in proportion: {offers}"
            sentences += [dates, *prices_text.old(answer.prices, prices)]
    return sentences


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
        notes.append(
            f"and {len(rest)} more: {sum(share.part for share in rest):.1%}; --json has them all"
        )
    if step.host_limits and step.gpu is not None:
        notes.append(
            f"the GPU works {_exactly(step.gpu)} of it and waits for the host in between: "
            "the layers have shares of the whole"
        )
    by_limit = dict.fromkeys((share.limit for share in shares), 0.0)
    for share in shares:
        by_limit[share.limit] += share.part
    limits = sorted(by_limit.items(), key=lambda limit: -limit[1])
    parts = ", ".join(f"{part:.0%} {DRIVERS[name]}" for name, part in limits)
    notes.append(f"by what limits the layers: {parts}")
    if step.phases:
        notes.append(", ".join(f"{name} {_exactly(value)}" for name, value in step.phases.items()))
    if step.drivers:
        factors = ", ".join(f"{name} x {factor:.2f}" for name, factor in step.drivers[:5])
        notes.append(f"what moves it from the middle of what was measured: {factors}")
    return dense_table(
        f"Where the {_exactly(step.seconds)} of a step at batch {step.case.batch:,} go",
        [
            Column("layer", style="text"),
            Column("kind", style="text"),
            Column("time"),
            Column("part"),
            Column("driven by", style="text"),
        ],
        rows,
        notes,
    )


def _frontier_table(answer: Answer, best: Frontier) -> Table:
    """Return the choices that no other beats in both time and cost."""
    left_out = [f"{best.too_large} do not fit in memory"] if best.too_large else []
    left_out += [f"{best.unknown} have no price or no peak"] if best.unknown else []
    if best.unsure:
        left_out.append(f"offers left out that do not state their form, PCIe or SXM: {best.unsure}")
    if not answer.question.undated:
        left_out.append("offers without a known date are left out: --undated takes them")
    also = f" ({', '.join(left_out)})" if left_out else ""
    rows = []
    for choice in best.choices:
        price = choice.price
        name = f"{price.provider} {price.instance}".strip()
        day = prices_text.when(price, answer.prices.today)
        rows.append(
            (
                text_cell(duration(choice.seconds, is_short=True)),
                text_cell(dollars(choice.dollars, is_short=True)),
                text_cell(money(choice.spot.value)) if choice.spot else NOT_OFFERED,
                f"{name}, {price.count} x {choice.board}, {day}",
                choice.batch,
            )
        )
    columns = [
        Column("time", style="word"),
        Column("on demand"),
        Column("spot"),
        Column("offer", style="text"),
        Column("batch"),
    ]
    caption = (
        f"Time against cost: what no other of {best.compared} offers and batch sizes beats in "
        f"both{also}"
    )
    return dense_table(caption, columns, rows, _below_frontier(answer, best))


def _below_frontier(answer: Answer, best: Frontier) -> list[str]:
    """Return what the times and costs of the choices rest on."""
    if not best.choices:
        return []
    ways = dict.fromkeys(WAYS[choice.way] for choice in best.choices)
    beyond = dict.fromkeys(choice.board for choice in best.choices if choice.beyond)
    also = f"; beyond what was measured, with wider ranges: {', '.join(beyond)}" if beyond else ""
    prices = [choice.price for choice in best.choices]
    return [
        f"times and costs: {'; '.join(ways)}{also}; spot has the range of on demand in proportion",
        f"prices of {days(prices)}, {answer.prices.where} ({'; '.join(sources(prices))}); batches "
        "are of each GPU",
        *prices_text.old(answer.prices, prices),
    ]


def _exactly(value: float) -> str:
    return duration(Span(value, value, value))


def prediction_view(answer: Answer, best: Frontier | None, *, explain: bool) -> View:
    """Return the figures with their ranges, what they rest on, and the costs."""
    question, subject, device, first = (
        answer.question,
        answer.subject,
        answer.device,
        answer.points[0],
    )
    how = f"training with {subject.optimizer}" if subject.training else "inference"
    on = f"{question.gpus} x {device.machine.name}" if question.gpus > 1 else device.machine.name
    batch = ", ".join(map(str, question.batches))
    is_single = len(answer.points) == 1
    at = "" if is_single else f" at batch {first.step.case.batch:,}"
    source = f"{device.source}; roofline {_exactly(first.step.floor)} per step{at}"
    grounds = [*_all_grounds(answer), ("device", source)]
    tables = [
        facts_table("Prediction", _figures(answer, first)) if is_single else _batches(answer),
        facts_table("What it rests on", grounds),
    ]
    if is_single and first.training.rentals and not is_too_large(first.training):
        tables.append(_costs(answer, first.training))
    if explain and (layers := _explained(first)) is not None:
        tables.append(layers)
    if best is not None:
        tables.append(_frontier_table(answer, best))
    title = f"{subject.model}, {how}, batch {batch}, {question.number_type}, on {on}"
    return View(title, tables=tuple(tables), notes=answer.notes)


def _figures(answer: Answer, point: AnswerPoint) -> list[tuple[str, str]]:
    job, training, trains = answer.question, point.training, answer.subject.training
    too_large = is_too_large(training)
    memory = ("memory", _memory(training.room, answer.device.machine.kind))
    rows = [memory] if too_large else []
    rows += [
        ("step", duration(training.step) + (", if it fitted" if too_large else "")),
        ("", with_range(training.samples_per_second, "samples/s")),
        *_tokens(answer, training),
    ]
    if training.epoch is not None and training.steps is not None:
        rows.append(
            (
                "epoch" if trains else "all samples",
                f"{duration(training.epoch)}: {training.steps:,} steps",
            )
        )
    if training.whole is not None:
        rows.append(
            ("training" if trains else "all", f"{duration(training.whole)}: {job.epochs} epochs")
        )
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
        f"the host limits {name}: starting {step.operations:,} operations{also} takes "
        f"{_exactly(step.host)}, the GPU {_exactly(step.gpu)}; a larger batch costs little more "
        "time, CUDA graphs or torch.compile start fewer operations"
    )


def _tokens(answer: Answer, training: Training) -> list[tuple[str, str]]:
    tokens = answer.subject.tokens
    if tokens is None:
        return []
    rate = with_range(training.samples_per_second.times(tokens), "tokens/s")
    return [("", f"{rate}: {tokens:,} in a sample")]


def _memory(room: Room | None, kind: str) -> str:
    if room is None:
        return "not known"
    on_top = _on_top(room, kind)
    if room.limit is None:
        return f"{gigabytes(room.whole)}, {on_top}; the memory of the device is not known"
    if not room.fits:
        largest = (
            f"the largest batch that fits is {room.largest:,}"
            if room.largest
            else "not even one sample fits"
        )
        missing = (
            f"{gigabytes(room.lacking)} are missing"
            if room.lacking
            else "the allocator's pieces are too small"
        )
        missing += f"; {largest}"
        return (
            f"does not fit in {gigabytes(room.limit)}: {gigabytes(room.whole)}, {on_top}; {missing}"
        )
    most = f"; largest batch {room.largest:,}" if room.largest is not None else ""
    close = ", but little is left" if room.close else ""
    return f"fits{close}: {gigabytes(room.whole)} of {gigabytes(room.limit)}, {on_top}{most}"


def _on_top(room: Room, kind: str) -> str:
    return f"{gigabytes(room.reserve)} of it {ON_TOP[kind]}" if room.reserve else ON_TOP[kind]


def _parallel(training: Training) -> list[tuple[str, str]]:
    parallel = training.parallel
    if parallel is None:
        return []
    efficiency = f"efficiency {parallel.efficiency:.1%} of {parallel.gpus} GPUs"
    moved = f"{gigabytes(parallel.moved_bytes)} of gradients per step and GPU"
    if parallel.communication is None:
        return [("in parallel", f"{efficiency}, as said; {moved}")]
    took = _exactly(parallel.communication)
    link = f"over {digits(parallel.link_gbs or 0)} GB/s ({parallel.link}), {took}"
    hidden = (
        f"of which {_exactly(parallel.exposed or 0)} not hidden (--overlap {parallel.overlap:g})"
    )
    return [("in parallel", f"{efficiency}: {moved} {link}, {hidden}")]


def _grounds(point: AnswerPoint) -> list[tuple[str, str]]:
    step = point.step
    covered = ""
    if step.coverage is not None:
        beyond = ", which this one goes beyond" if step.outside else ""
        covered = (
            f"; the range is what covers {step.coverage:.0%} of held-out steps like those learned "
            f"from{beyond}"
        )
    rests = ("rests on", f"{WAYS[step.way]}: {step.source}{covered}")
    near = [("nearest", f"measured: {step.nearest}")] if step.nearest else []
    return [
        rests,
        *near,
        *named("no better", filter(None, step.why_not)),
        *named("beyond data", step.outside),
    ]


def named(name: str, sentences: Iterable[str]) -> list[tuple[str, str]]:
    return [("" if number else name, sentence) for number, sentence in enumerate(sentences)]


def _all_grounds(answer: Answer) -> list[tuple[str, str]]:
    """The grounds of each batch size, once for those that share them."""
    same: dict[tuple[str, ...], list[AnswerPoint]] = {}
    for point in answer.points:
        # Reasons for a missing measurement name the batch size, so they are no part of the key.
        same.setdefault((point.step.way, point.step.source, *point.step.outside), []).append(point)
    rows = []
    for points in same.values():
        batches = ", ".join(f"{point.training.job.batch:,}" for point in points)
        (name, ground), *others = _grounds(points[0])
        rows += [(name, f"batch {batches}: {ground}" if len(same) > 1 else ground), *others]
    return rows


def facts_table(caption: str, facts: Sequence[tuple[str, str]]) -> Table:
    """Return (name, sentence) as a table; an empty name goes on with the one before."""
    columns = [Column("what", style="word"), Column("value", style="text")]
    return dense_table(caption, columns, [(text_cell(name), words) for name, words in facts])


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
            "no fit to steps like this on this device: the range is that of the source",
        ),
        ("nearest", not step.nearest, "the prediction does not rest on published measurements"),
        *(
            (name, step.host_limits is None, _NOT_APART)
            for name in ("host_s", "gpu_s", "host_limits")
        ),
        ("phases_s", not step.phases, "the roofline does not know phases"),
        ("drivers", not step.drivers, "only fits to own runs know them"),
        ("memory", room is None, "no lines of memory for this model: see notes"),
        ("parallel", training.parallel is None, "one GPU"),
        (
            "memory.limit_bytes",
            room is not None and room.limit is None,
            "how much the device has is not known",
        ),
        ("offers", not training.rentals, unbilled or "no offer of this device in the price table"),
        ("energy", energy is None, unbilled or "no power is known: --power"),
        ("energy.cost", energy is not None and energy.cost is None, "no --tariff"),
    )
    return {name: why for name, is_missing, why in gaps if is_missing}
