"""The answer to a question about training or inference, from what was looked up before: no file,
no clock and no model is read here.

:func:`predict_training_time_and_cost` predicts every batch size of the question on its device, and
:func:`compute_time_cost_frontier` the same training on every offer of the price table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfctl.orchestrator.counts.hardware.machines import (
    Board,
    Device,
    Machine,
    build_board_machine,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.memory import (
    get_default_reserve_bytes,
    parse_capability_or_gpu_name,
)
from perfctl.orchestrator.predict import cost, published
from perfctl.orchestrator.predict.answer import (
    LIKE,
    Answer,
    AnswerPoint,
    DeviceAndPrices,
    Question,
    Subject,
)
from perfctl.orchestrator.predict.operations import StepSpec
from perfctl.orchestrator.predict.predict import Evidence, StepTime, predict_from_best_source
from perfctl.orchestrator.predict.prices import Price, select_ambiguous_offers

NODE_GPUS_MAX = 8
"""More GPUs than this are in several machines, whatever the link between two of them is."""
NO_PEAK = "Choose another `precision`, or set the peaks with `device_spec`"


def predict_training_time_and_cost(
    question: Question, device_and_prices: DeviceAndPrices, subject: Subject, evidence: Evidence
) -> Answer:
    """Return the prediction for each batch size.

    Raises UsageError where the device has no peak for the precision.
    """
    device = device_and_prices.device
    machine, board = device.machine, device.board
    power = choose_gpu_watts_and_source(evidence, device, subject.model, question.power)
    notes = (
        device.note,
        *subject.notes,
        *evidence.notes,
        *_list_training_notes(question, device_and_prices, subject),
    )
    points = []
    for batch in question.batches:
        step = predict_step_on_machine(machine, question, subject, evidence, batch)
        training = _compute_training_cost(
            step, board, question, subject, prices=device_and_prices.offers, power=power
        )
        points.append(AnswerPoint(step, training))
    return Answer(
        question,
        subject,
        device,
        tuple(points),
        device_and_prices.prices,
        tuple(filter(None, notes)),
        evidence,
    )


def predict_step_on_machine(
    machine: Machine, question: Question, subject: Subject, evidence: Evidence, batch: int
) -> StepTime:
    """Return one step on a machine. Raises UsageError without a peak for the precision."""
    case = build_step_spec(question, subject, batch)
    try:
        return predict_from_best_source(
            case,
            machine,
            evidence.measured,
            evidence.fits,
            published.load_shipped_fit(machine.kind),
        )
    except ValueError as error:
        raise UsageError(str(error), NO_PEAK) from error


def build_step_spec(question: Question, subject: Subject, batch: int) -> StepSpec:
    """Return the step to predict at one batch size."""
    optimizer = subject.optimizer or ""
    return StepSpec(
        model=subject.model,
        family=subject.family,
        works=subject.works,
        batch=batch,
        training=subject.training,
        precision=question.precision_or_default,
        optimizer=LIKE.get(optimizer, optimizer),
        parameters=subject.parameters,
        channels_last=question.channels_last,
        compiled=question.compiled,
    )


def choose_gpu_watts_and_source(
    evidence: Evidence, device: Device, model: str, stated_watts: float | None
) -> tuple[float, str] | None:
    """Return (W of one GPU, its source): as stated, measured with this model, measured with others,
    or the data sheet's."""
    if stated_watts is not None:
        return stated_watts, "as said"
    runs = [run for run in evidence.power if run.machine == device.machine.name]
    same = [run for run in runs if run.model == model]
    if chosen := same or runs:
        watts = sum(run.watts * run.readings for run in chosen) / sum(
            run.readings for run in chosen
        )
        scope = "of this model" if same else "of other models"
        return watts, f"measured in {len(chosen)} runs {scope}"
    if device.board is None or device.board.gpu.power_w is None:
        return None
    return device.board.gpu.power_w, "board power of the data sheet, an upper bound"


def find_gpu_link_rate_and_source(
    board: Board | None, question: Question
) -> tuple[float | None, str]:
    """Return (GB/s one way between two GPUs, where that is from)."""
    if question.interconnect is None and board is not None:
        return board.gpu.link_gbs, f"{board.gpu.link}, data sheet"
    return question.interconnect, "as said"


def _compute_training_cost(
    step: StepTime,
    board: Board | None,
    question: Question,
    subject: Subject,
    *,
    prices: tuple[Price, ...],
    power: tuple[float, str] | None = None,
    includes_memory: bool = True,
) -> cost.TrainingCost:
    """Return the training that a step is part of. ``includes_memory``: with the memory that it
    needs."""
    link_gbs, link = find_gpu_link_rate_and_source(board, question)
    job = cost.TrainingJob(
        step.case.batch,
        question.dataset_size,
        question.epochs,
        question.gpus,
        subject.parameters,
        link_gbs,
        link,
        question.overlap,
        question.efficiency,
    )
    return cost.compute_training_cost(
        cost.Span(step.seconds, step.low, step.high),
        job,
        # Phases of a published step are computed, not learned: communication may hide behind all.
        backward_seconds=step.phases.get("backward") if step.way != "published" else None,
        prices=prices,
        gpu_watts_and_source=power,
        price_per_kwh=question.tariff,
        memory=_compute_step_memory_need(subject, step.machine, board, job.batch)
        if includes_memory
        else None,
    )


def _compute_step_memory_need(
    subject: Subject, machine: Machine, board: Board | None, batch: int
) -> cost.MemoryNeed | None:
    """Return the memory of a step; None if the model's is not known."""
    limit, reserve, memory = (
        machine.memory_bytes,
        get_default_reserve_bytes(machine.kind),
        subject.memory,
    )
    if subject.lines is None:
        return None
    if memory is None or machine.kind != "gpu":
        need = cost.compute_tensor_memory_need(subject.lines, batch, limit, reserve)
        return replace(need, is_bound=machine.kind == "gpu")
    gpu = parse_capability_or_gpu_name(board.gpu.capability) if board is not None else None
    largest = (
        memory.find_largest_fitting_batch(limit, reserve, gpu).batch if limit is not None else None
    )
    return cost.MemoryNeed(
        batch, memory.compute_allocated_peak_bytes(batch, gpu), limit, largest, reserve
    )


def _list_training_notes(
    question: Question, setting: DeviceAndPrices, subject: Subject
) -> Iterator[str | None]:
    yield "times exclude data loading, preprocessing, validation and checkpoints"
    if (
        question.gpus > NODE_GPUS_MAX
        and question.interconnect is None
        and question.efficiency is None
    ):
        yield (
            f"more than {NODE_GPUS_MAX} GPUs need several machines. Set the bandwidth of the "
            "network between them with 'perfctl predict --interconnect GB/s'"
        )
    if question.gpus > 1:
        samples = question.batches[0] * question.gpus
        yield f"the batch size is per GPU: a step has {samples:,} samples"
        megabytes = subject.parameters * cost.GRADIENT_BYTES / 1e6
        yield (
            f"DistributedDataParallel keeps gradients in buckets too: up to {megabytes:,.0f} "
            "MB more on "
            "each GPU"
        )
    board = setting.device.board
    if question.dataset_size is None or board is None:
        return
    yield setting.describe_unused_offers()
    if uncertain := select_ambiguous_offers(setting.prices.prices, board):
        yield (
            f"perfctl ignores offers that do not state the form of this GPU ({len(uncertain)} of "
            f"them; 'perfctl predict --list-prices \"{board.name}\"' lists them)"
        )
    if not setting.offers and not setting.unused_offers:
        yield f"no cost: no offer of {setting.prices.name} states a {board.name}"


def raise_if_dataset_size_missing(question: Question) -> None:
    """Raise UsageError if a frontier lacks the size of the dataset."""
    if question.dataset_size is None:
        raise UsageError(
            "`frontier` needs `dataset_size`", "Set the samples per epoch, and `epochs`"
        )


def compute_time_cost_frontier(answer: Answer) -> cost.CostFrontier:
    """Return time against cost over every offer of the price table and every batch size.

    Each offer is used with all its GPUs. One that does not say which board it has is not compared.
    Raises UsageError when the size of the dataset is not given.
    """
    question, subject, evidence = answer.question, answer.subject, answer.evidence
    raise_if_dataset_size_missing(question)
    steps: dict[tuple[Board, int], StepTime | None] = {}
    choices: list[cost.OfferChoice] = []
    too_large = missing = uncertain = 0
    for price in answer.prices.prices:
        board = price.board
        if board is None:
            uncertain += 1
            continue
        for batch in question.batches:
            if not _can_batch_fit_on_board(subject, board, batch):
                too_large += 1
                continue
            if (board, batch) not in steps:
                try:
                    step = predict_step_on_machine(
                        build_board_machine(board), question, subject, evidence, batch
                    )
                except UsageError:  # no fast path for this precision on this board
                    step = None
                steps[board, batch] = step
            step = steps[board, batch]
            if step is None or price.on_demand is None:
                missing += 1
                continue
            on_all = replace(question, gpus=price.count)
            training = _compute_training_cost(
                step, board, on_all, subject, prices=(price,), includes_memory=False
            )
            (rental,) = training.rentals
            assert training.billed_seconds is not None and rental.on_demand is not None
            choices.append(
                cost.OfferChoice(
                    price,
                    board.name,
                    batch,
                    training.billed_seconds,
                    rental.on_demand,
                    rental.spot,
                    step.way,
                    bool(step.outside),
                )
            )
    return cost.CostFrontier(
        cost.select_time_cost_pareto(choices), len(choices), too_large, missing, uncertain
    )


def _can_batch_fit_on_board(subject: Subject, board: Board, batch: int) -> bool:
    memory, machine = subject.memory, build_board_machine(board)
    if memory is not None and machine.memory_bytes is not None:
        gpu = parse_capability_or_gpu_name(board.gpu.capability)
        return memory.can_fit_batch(
            batch, machine.memory_bytes, get_default_reserve_bytes(machine.kind), gpu
        )
    room = _compute_step_memory_need(subject, machine, None, batch)
    return room is None or room.fits is not False
