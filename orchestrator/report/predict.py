"""A prediction of training or inference: its view with figures, basis, ranges and costs, and its
JSON; and the facts that predictions of generated text share with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.counts.hardware.machines import Device
from perfctl.orchestrator.predict.answer import Answer, AnswerPoint, Subject
from perfctl.orchestrator.predict.cost import (
    TIGHT_SHARE_MIN,
    CostFrontier,
    MemoryNeed,
    Rental,
    Span,
    TrainingCost,
)
from perfctl.orchestrator.predict.generation import GenerationMemory, GenerationPoint
from perfctl.orchestrator.predict.predict import WAYS, StepTime
from perfctl.orchestrator.report.numbers import (
    format_bytes,
    format_bytes_binary_prefix,
    format_dollars,
    format_dollars_with_range,
    format_seconds_with_range,
    format_three_significant_digits,
    format_value_with_range,
)
from perfctl.orchestrator.report.prices import format_price_date, list_notes_on_prices
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_complete_table,
    missing_cell,
    text_cell,
    text_columns,
)
from perfctl.orchestrator.report.view import View

Fact = tuple[str, str]
"""(name, sentence); an empty name continues the fact before it."""
OFFERS_MAX, LAYERS_MAX, DRIVERS_MAX = 12, 10, 5
"""Rows and factors that are printed; --json has all."""
NO_LIMIT = "the memory of the device is unknown"
LIMITS = {"arithmetic": "FLOPs", "bytes": "bandwidth", "operations": "launches"}
RESERVED_FOR = {
    "gpu": "reserved for the CUDA context and cuDNN",
    "cpu": "excludes Python, libraries and the allocator's rounding",
}
"""Kind of device -> what needs memory besides the tensors."""


@dataclass(frozen=True, slots=True)
class PredictedBatch:
    """The prediction for one batch size."""

    JSON_INLINED = ("training", "step")

    batch: int
    training: TrainingCost
    step: StepTime
    tokens_per_s: Span | None
    missing_values: Mapping[str, str]
    """Key that is null or empty -> reason."""


@dataclass(frozen=True, slots=True)
class PredictOutput:
    """Times in seconds, memory in bytes, money in US dollars, energy in kWh."""

    JSON_INLINED = ("subject",)

    subject: Subject
    precision: str
    dataset_size: int | None
    epochs: int | None
    gpus: int
    device: Device
    price_source: str
    """Where the prices are from."""
    notes: tuple[str, ...]
    batches: list[PredictedBatch]
    frontier: CostFrontier | None
    """null: no --frontier."""


def build_prediction_view(
    answer: Answer, frontier: CostFrontier | None, *, show_slowest_layers: bool
) -> View:
    """Return the figures with their ranges, what they rest on, and the costs."""
    question, subject, device = answer.question, answer.subject, answer.device
    first, is_single = answer.points[0], len(answer.points) == 1
    at_batch = "" if is_single else f" at batch {first.step.case.batch:,}"
    roofline = f"roofline {_format_seconds_without_range(first.step.floor)} per step{at_batch}"
    facts = [
        *(_list_time_and_memory_facts(answer) if is_single else ()),
        *_list_basis_facts_by_batch(answer),
        *list_device_facts(device, answer.notes, roofline),
    ]
    tables = [build_facts_table(facts)]
    if not is_single:
        tables.insert(0, _build_prediction_by_batch_table(answer))
    elif first.training.rentals and not is_memory_insufficient(first.training.room):
        tables.append(_build_rental_offers_table(answer))
    if show_slowest_layers and first.step.shares:
        tables.append(_build_slowest_layers_table(first.step))
    if frontier is not None:
        tables.append(_build_frontier_table(answer, frontier))
    method = f"training with {subject.optimizer}" if subject.training else "inference"
    batches = ", ".join(map(str, question.batches))
    name = f"{question.gpus} x {device.machine.name}" if question.gpus > 1 else device.machine.name
    return View(
        f"{subject.model}, {method}, batch {batches}, {question.precision_or_default}, on {name}",
        tables=tuple(tables),
    )


def build_facts_table(facts: Sequence[Fact]) -> Table:
    """Return facts as a table without heads."""
    columns = [Column("", style="word"), *text_columns("")]
    return build_complete_table("", columns, [list(map(text_cell, fact)) for fact in facts])


def build_bulleted_facts(name: str, sentences: Iterable[str | None]) -> list[Fact]:
    """Return the sentences below one name, with bullets if they are several."""
    texts = list(filter(None, sentences))
    bullet = "- " if len(texts) > 1 else ""
    return [("" if number else name, f"{bullet}{text}") for number, text in enumerate(texts)]


def list_device_facts(device: Device, notes: Sequence[str], addition: str = "") -> list[Fact]:
    """Return where the figures of the device are from, which device was assumed if several have
    its name, and the other notes."""
    return [
        ("device", f"{device.source}; {addition}" if addition else device.source),
        *build_bulleted_facts("assumed", [device.note]),
        *build_bulleted_facts("notes", (note for note in notes if note != device.note)),
    ]


def list_prediction_basis_facts(
    basis: str, point: StepTime | GenerationPoint, unused_sources: Sequence[str] = ()
) -> list[Fact]:
    """Return what a time rests on, how far that can be trusted, and the ``unused_sources``."""
    if point.coverage is not None:
        basis += f"; the range covers {point.coverage:.0%} of held-out times"
        basis += " (this one is an extrapolation)" if point.outside else ""
    return [
        ("basis", basis),
        *build_bulleted_facts("closest", [point.nearest]),
        *build_bulleted_facts("not used", unused_sources),
        *build_bulleted_facts("extrapolation", point.outside),
    ]


def is_memory_insufficient(memory: MemoryNeed | GenerationMemory | None) -> bool:
    """Return whether the memory is known not to fit."""
    return memory is not None and memory.fits is False


def add_memory_fact(
    times: Sequence[Fact],
    memory: MemoryNeed | GenerationMemory | None,
    composition_text: str,
) -> list[Fact]:
    """Return the times, then the memory; a memory that is too small comes first.
    ``composition_text``: what the memory consists of."""
    if memory is None:
        return [*times, ("memory", "unknown")]
    text = format_bytes_binary_prefix(memory.total)
    if memory.limit is None:
        text += f"; {NO_LIMIT}"
    else:
        text += f" of {format_bytes_binary_prefix(memory.limit)}, {describe_memory_fit(memory)}"
    if memory.largest is not None:
        is_bound = not isinstance(memory, MemoryNeed) or memory.is_bound
        most = "at most " if is_bound else ""
        text += (
            f"; largest batch {most}{memory.largest:,}" if memory.largest else "; no sample fits"
        )
    fact = ("memory", f"{text}; {composition_text}")
    if not is_memory_insufficient(memory):
        return [*times, fact]
    (name, first), *other_times = times
    return [fact, (name, f"{first}, if it fitted"), *other_times]


def describe_memory_fit(memory: MemoryNeed | GenerationMemory) -> str:
    """Return whether the memory fits into its limit, and how closely."""
    limit = memory.limit or 0
    if memory.fits is None and isinstance(memory, MemoryNeed):
        return "may fit: PyTorch's allocator may need more"
    if memory.fits is None:
        return "may fit: the activations of the prompt need more"
    if memory.fits:
        return "fits, but little is left" if memory.total > TIGHT_SHARE_MIN * limit else "fits"
    if memory.total > limit:
        return f"does not fit: {format_bytes_binary_prefix(memory.total - limit)} are missing"
    return "does not fit: the allocator's free blocks are too small"


def _list_time_and_memory_facts(answer: Answer) -> list[Fact]:
    """Return the times of one batch size, its memory, and what several GPUs cost."""
    tokens, training, trains = answer.subject.tokens, answer.training, answer.subject.training
    speed, limit = training.samples_per_second.value, describe_host_launch_bound(answer.step)
    rate = f"{format_three_significant_digits(speed)} samples/s"
    if tokens is not None:
        rate += (
            f", {format_three_significant_digits(speed * tokens)} tokens/s ({tokens:,} per sample)"
        )
    facts = [("step", f"{format_seconds_with_range(training.step)}; {rate}")]
    if training.epoch is not None:
        name = "epoch" if trains else "all samples"
        facts.append(
            (name, f"{format_seconds_with_range(training.epoch)}: {training.steps:,} steps")
        )
    if training.total is not None:
        name = "training" if trains else "all"
        facts.append(
            (name, f"{format_seconds_with_range(training.total)}: {training.job.epochs} epochs")
        )
    facts += build_bulleted_facts("host", [limit])
    parts = _describe_reserved_memory(answer, training.room)
    return [
        *add_memory_fact(facts, training.room, parts),
        *_list_data_parallel_facts(training),
    ]


def _describe_reserved_memory(answer: Answer, need: MemoryNeed | None) -> str:
    purpose = RESERVED_FOR[answer.device.machine.kind]
    if need is None or not need.reserve:
        return purpose
    return f"the memory includes {format_bytes_binary_prefix(need.reserve)} {purpose}"


def describe_host_launch_bound(step: StepTime, step_name: str = "this step") -> str | None:
    """Return what to know and do if the GPU waits for the host; None if it does not, or this is
    unknown."""
    if not step.host_limits or step.host is None or step.gpu is None:
        return None
    also = " with their backward and the update" if step.case.training else ""
    return (
        f"the host limits {step_name}: launching {step.operations:,} operations{also} takes "
        f"{_format_seconds_without_range(step.host)}, the GPU "
        f"{_format_seconds_without_range(step.gpu)}; a "
        "larger batch costs little extra time; CUDA graphs or torch.compile launch fewer "
        "operations"
    )


def _list_data_parallel_facts(training: TrainingCost) -> list[Fact]:
    parallel = training.parallel
    if parallel is None:
        return []
    text = f"efficiency {parallel.efficiency:.1%} of {parallel.gpus} GPUs"
    moved = f"{format_bytes(parallel.moved_bytes)} of gradients per step and GPU"
    if parallel.communication is None:
        return [("in parallel", f"{text}, as stated; {moved}")]
    link = f"over {format_three_significant_digits(parallel.link_gbs or 0)} GB/s ({parallel.link})"
    hidden = (
        f"{_format_seconds_without_range(parallel.communication)}, of which "
        f"{_format_seconds_without_range(parallel.exposed or 0)} is not hidden (--overlap "
        f"{parallel.overlap:g})"
    )
    return [("in parallel", f"{text}: {moved} {link}, {hidden}")]


def _list_basis_facts_by_batch(answer: Answer) -> list[Fact]:
    """Return what each batch size rests on, once for those that share it."""
    steps_by_basis: dict[tuple[str, ...], list[StepTime]] = {}
    for step in (point.step for point in answer.points):
        # Reasons for a missing measurement name the batch size, so they are no part of the key.
        steps_by_basis.setdefault((step.way, step.source, *step.outside), []).append(step)
    facts = []
    for steps in steps_by_basis.values():
        first = steps[0]
        batches = ", ".join(f"{step.case.batch:,}" for step in steps)
        prefix = f"batch {batches}: " if len(steps_by_basis) > 1 else ""
        basis = f"{prefix}{WAYS[first.way]}: {first.source}"
        facts += list_prediction_basis_facts(basis, first, first.why_not)
    return facts


def _build_dollars_cell(span: Span | None, *, has_range: bool = False) -> Cell:
    if span is None:
        return missing_cell("not offered")
    return text_cell(
        format_dollars_with_range(span, is_short=True) if has_range else format_dollars(span.value)
    )


def build_duration_cell(span: Span) -> Cell:
    """Return a time with its range."""
    return text_cell(format_seconds_with_range(span, is_short=True))


def _select_single_instance_rentals(training: TrainingCost) -> list[Rental]:
    return [rental for rental in training.rentals if rental.instances == 1]


def _build_prediction_by_batch_table(answer: Answer) -> Table:
    """Return a row for each batch size, and what the columns rest on."""
    tokens, rows = answer.subject.tokens, []
    for training in (point.training for point in answer.points):
        room, memory = training.room, missing_cell("unknown")
        if room is not None:
            is_tight = room.limit is not None and room.total > TIGHT_SHARE_MIN * room.limit
            fit_by_state = {
                None: ", may fit" if room.is_bound else "",
                True: ", little left" if is_tight else ", fits",
                False: ", over",
            }
            memory = text_cell(format_bytes_binary_prefix(room.total) + fit_by_state[room.fits])
        cheapest = None
        if not is_memory_insufficient(room):
            costs = (rental.on_demand for rental in _select_single_instance_rentals(training))
            cheapest = next(filter(None, costs), None)
        rows.append(
            (
                training.job.batch,
                build_duration_cell(training.step),
                text_cell(
                    format_three_significant_digits(
                        training.samples_per_second.value * (tokens or 1)
                    )
                ),
                memory,
                build_duration_cell(training.billed_seconds)
                if training.billed_seconds
                else missing_cell("no samples"),
                _build_dollars_cell(cheapest),
            )
        )
    billed = "all epochs" if answer.training.total is not None else "epoch"
    speed = "tokens/s" if tokens is not None else "samples/s"
    columns = list(map(Column, ("batch", "step", speed, "memory", billed, "cheapest")))
    notes = list(_list_notes_on_batches(answer))
    return build_complete_table("Prediction by batch size", columns, rows, notes, is_dense=True)


def _list_notes_on_batches(answer: Answer) -> Iterator[str]:
    waits = [point.step for point in answer.points if point.step.host_limits]
    if waits:
        batches, last = ", ".join(f"{step.case.batch:,}" for step in waits), waits[-1]
        limit = describe_host_launch_bound(last, f"a step at batch {last.case.batch:,}")
        yield f"batch {batches}: {limit}"
    room = answer.training.room
    if room is not None and room.largest is not None:
        description = _describe_reserved_memory(answer, room)
        most = "at most " if room.is_bound else ""
        yield f"the largest batch that fits is {most}{room.largest:,}; {description}"
    rentals = _select_single_instance_rentals(answer.training)
    if prices := [rental.price for rental in rentals if rental.on_demand]:
        yield "cheapest: on-demand price; the cost range is proportional to the time range"
        yield from list_notes_on_prices(answer.prices, prices)


def _build_rental_offers_table(answer: Answer) -> Table:
    """Return the cost of the training by offer, the cheapest first."""
    training = answer.training
    single = _select_single_instance_rentals(training)
    rentals = single or training.rentals
    rows = []
    for rental in rentals[:OFFERS_MAX]:
        price = rental.price
        gpus = f"{rental.instances} x {price.count}" if rental.instances > 1 else str(price.count)
        rows.append(
            (
                price.provider,
                price.instance or price.gpu,
                f"{gpus}, {rental.idle_gpus} idle" if rental.idle_gpus else gpus,
                _build_dollars_cell(rental.on_demand, has_range=True),
                _build_dollars_cell(rental.spot),
                format_price_date(price),
            )
        )
    notes = list_notes_on_prices(answer.prices, [rental.price for rental in rentals[:OFFERS_MAX]])
    if len(rentals) > OFFERS_MAX:
        notes.append(f"and {len(rentals) - OFFERS_MAX} more expensive offers: see --json")
    network = "these times exclude the network between machines"
    if not single:
        notes.append(f"no offer has {training.job.gpus} GPUs in one instance; {network}")
    elif omitted := len(training.rentals) - len(single):
        notes.append(f"{omitted} offers with fewer GPUs per instance are omitted; {network}")
    if (energy := training.energy) is not None:
        cost = (
            f", cost {format_value_with_range(energy.cost)} at the electricity price"
            if energy.cost
            else ""
        )
        notes.append(
            f"energy {format_value_with_range(energy.kwh, 'kWh')}{cost}: "
            f"{format_three_significant_digits(energy.watts)} W per GPU, {energy.source}; "
            f"without host and "
            "cooling"
        )
    billed = f"{answer.question.epochs} epochs" if training.total is not None else "one epoch"
    columns = [
        *text_columns("provider", "instance", "GPUs"),
        *map(Column, ("on demand", "spot")),
        *text_columns("price of"),
    ]
    return build_complete_table(f"Cost of {billed}", columns, rows, notes, is_dense=True)


def _build_slowest_layers_table(step: StepTime) -> Table:
    """Return the layers that take the most time, and what limits them."""
    rows = [
        (
            share.layer or "(between layers)",
            share.kind,
            text_cell(_format_seconds_without_range(share.seconds)),
            text_cell(f"{share.share:.1%}"),
            LIMITS[share.limit],
        )
        for share in step.shares[:LAYERS_MAX]
    ]
    notes = []
    if other_shares := step.shares[LAYERS_MAX:]:
        omitted = sum(share.share for share in other_shares)
        notes.append(f"and {len(other_shares)} more: {omitted:.1%}; see --json")
    if step.host_limits and step.gpu is not None:
        notes.append(
            f"the GPU works for {_format_seconds_without_range(step.gpu)} of it and waits for "
            f"the host "
            "otherwise; shares are of the complete step"
        )
    by_limit = dict.fromkeys((share.limit for share in step.shares), 0.0)
    for share in step.shares:
        by_limit[share.limit] += share.share
    limits = sorted(by_limit.items(), key=lambda limit: -limit[1])
    parts = ", ".join(f"{share:.0%} {LIMITS[name]}" for name, share in limits)
    notes.append(f"by limit of the layers: {parts}")
    if step.phases:
        notes.append(
            ", ".join(
                f"{name} {_format_seconds_without_range(value)}"
                for name, value in step.phases.items()
            )
        )
    if step.drivers:
        drivers = list(step.drivers.items())[:DRIVERS_MAX]
        factors = ", ".join(f"{name} x {factor:.2f}" for name, factor in drivers)
        notes.append(f"factors relative to the middle of the measured data: {factors}")
    columns = [
        *text_columns("layer", "kind"),
        *map(Column, ("time", "share")),
        *text_columns("driven by"),
    ]
    title = (
        f"Where the {_format_seconds_without_range(step.seconds)} of a step at batch "
        f"{step.case.batch:,} "
        "go"
    )
    return build_complete_table(title, columns, rows, notes, is_dense=True)


def _build_frontier_table(answer: Answer, frontier: CostFrontier) -> Table:
    """Return the choices that no other beats in both time and cost, and what they rest on."""
    rows = [
        (
            build_duration_cell(choice.seconds),
            _build_dollars_cell(choice.dollars, has_range=True),
            _build_dollars_cell(choice.spot),
            f"{choice.price.provider} {choice.price.instance or ''}".strip()
            + f", {choice.price.count} x {choice.gpu_model}, {format_price_date(choice.price)}",
            choice.batch,
        )
        for choice in frontier.choices
    ]
    omitted = {
        "do not fit in memory": frontier.too_large,
        "have no price or no peak": frontier.missing,
        "do not state PCIe or SXM": frontier.uncertain,
    }
    notes = [
        f"omitted because they {reason}: {number}" for reason, number in omitted.items() if number
    ]
    if not answer.question.undated:
        notes.append("omitted because they have no known date (use --undated)")
    if frontier.choices:
        ways = "; ".join(dict.fromkeys(WAYS[choice.way] for choice in frontier.choices))
        notes.append(f"times and costs: {ways}; the spot range is proportional to on-demand")
        models = dict.fromkeys(
            choice.gpu_model for choice in frontier.choices if choice.is_extrapolated
        )
        if models:
            notes.append(f"extrapolated, with wider ranges: {', '.join(models)}")
        notes.append("batch sizes are per GPU")
        notes += list_notes_on_prices(answer.prices, [choice.price for choice in frontier.choices])
    columns = [
        Column("time", style="word"),
        *map(Column, ("on demand", "spot")),
        *text_columns("offer"),
        Column("batch"),
    ]
    caption = f"Time and cost: the best of {frontier.compared} offers and batch sizes"
    return build_complete_table(caption, columns, rows, notes, is_dense=True)


def _format_seconds_without_range(seconds: float) -> str:
    return format_seconds_with_range(Span(seconds, seconds, seconds))


def build_prediction_output(answer: Answer, frontier: CostFrontier | None) -> PredictOutput:
    """Return everything, every offer and every layer."""
    question, subject = answer.question, answer.subject
    return PredictOutput(
        subject,
        question.precision_or_default,
        question.dataset_size,
        question.epochs,
        question.gpus,
        answer.device,
        answer.prices.name,
        answer.notes,
        [_build_predicted_batch(point, subject.tokens) for point in answer.points],
        frontier,
    )


def _build_predicted_batch(point: AnswerPoint, tokens: int | None) -> PredictedBatch:
    step, training = point.step, point.training
    room, energy = training.room, training.energy
    speed = training.samples_per_second.scale(tokens) if tokens is not None else None
    no_samples = "no --dataset-size"
    unbilled = no_samples if training.billed_seconds is None else None
    mixed = "measured and fitted steps do not separate host time from GPU time"
    no_fit = "no fit for such steps on this device: the range is that of the source"
    values = {
        "steps_per_epoch": (training.steps, no_samples),
        "epoch_s": (training.epoch, no_samples),
        "training_s": (training.total, "no --epochs"),
        "tokens_per_s": (speed, "a sample is not a sequence of tokens"),
        "coverage": (step.coverage, no_fit),
        "nearest": (step.nearest, "the prediction does not use published measurements"),
        "host_s": (step.host, mixed),
        "gpu_s": (step.gpu, mixed),
        "host_limits": (step.host_limits, mixed),
        "phases_s": (step.phases, "the roofline has no phases"),
        "drivers": (step.drivers, "only fits to own runs have phases"),
        "memory": (room, "no lines of memory for this model: see notes"),
        "parallel": (training.parallel, "one GPU"),
        "memory.limit_bytes": (room is None or room.limit, NO_LIMIT),
        "offers": (training.rentals, unbilled or "no offer of this device in the price table"),
        "energy": (energy, unbilled or "unknown power: set --power"),
        "energy.cost": (energy is None or energy.cost, "no --tariff"),
    }
    return PredictedBatch(
        step.case.batch, training, step, speed, collect_missing_value_reasons(values)
    )


def collect_missing_value_reasons(values: Mapping[str, tuple[object, str]]) -> dict[str, str]:
    """Return key -> reason of each value that is null or empty. ``values``: key -> (value, reason
    if it is missing)."""
    return {
        key: reason for key, (value, reason) in values.items() if value is None or value in ((), {})
    }
