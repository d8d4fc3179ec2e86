"""How long a training takes on a device and what it costs: :func:`predict`.

The model's operations, the device, the runs of a store, the fits to them and the prices meet here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from perfctl.orchestrator.actions.estimate import (
    TRACED_AT,
    InputShape,
    Session,
    memory_pair,
    need_torch,
    open_session,
    step_memory,
    without_driver_warning,
)
from perfctl.orchestrator.actions.estimate_request import Request
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.predict.measurements import Known, known_of, power_of
from perfctl.orchestrator.actions.predict.peaks import as_peaks, for_cpu
from perfctl.orchestrator.actions.predict.prices import left_out, load
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import (
    Board,
    Device,
    DeviceError,
    Machine,
    of_board,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.estimate.memory import Gpu, LinesError, StepMemory, capability, reserve_on
from perfctl.orchestrator.estimate.plan_memory import inference_lines, lines_of_plan
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.orchestrator.predict import answer as answers
from perfctl.orchestrator.predict import cost, published
from perfctl.orchestrator.predict.answer import (
    Answer,
    AnswerPoint,
    Question,
    Setting,
    Subject,
)
from perfctl.orchestrator.predict.operations import (
    Operation,
    operations_of,
    operations_of_plan,
)
from perfctl.orchestrator.predict.predict import StepTime
from perfctl.orchestrator.predict.predict import predict as predict_step
from perfctl.orchestrator.predict.prices import Price, unsure_for
from perfctl.orchestrator.predict.step_parts import peak_of
from perfctl.workloads.models.find import workload_of
from perfctl.workloads.models.plan import OPTIMIZERS as IN_SPEC
from perfctl.workloads.models.plan import canonical, family_of, plan
from perfctl.workloads.spec import SpecError

NETWORK_FROM = 8
"""More GPUs than this are in several machines, whatever the link between two of them is."""

_NO_PEAK = "Choose another `precision`, or give the peaks with `device_spec`"
_NO_LINK = "Give `interconnect` in GB/s, or `efficiency`"


def predict(
    model: str,
    *,
    batch: int | Sequence[int],
    device: str | None = None,
    device_spec: str | None = None,
    dataset_size: int | None = None,
    epochs: int | None = None,
    precision: str = "fp32",
    optimizer: str | None = None,
    gpus: int = 1,
    infer: bool = False,
    store: Path | str = DEFAULT,
    tariff: float | None = None,
    power: float | None = None,
    interconnect: float | None = None,
    overlap: float = 0.0,
    efficiency: float | None = None,
    inputs: Sequence[str] = (),
    threads: int | None = None,
    seq: int | None = None,
    prices: Path | str | None = None,
    channels_last: bool = False,
    undated: bool = False,
    compiled: bool = False,
    messages: Messages = SILENT,
) -> Answer:
    """Predict the steps and the training of ``model``, which is named as in ``perfctl estimate``,
    on ``device``.

    batch: samples a step and GPU; several give ``Answer.points``.
    device: "A100", "V100 SXM2 32 GB", ...; "cpu" is this machine's (``threads`` of it, measured
    once, about 20 s).
    device_spec: peaks given by hand instead:
    "name=X,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24".
    dataset_size: samples of an epoch. precision: "fp32" (TF32 off), "tf32", "bf16" or "fp16".
    optimizer: None for the model's own, else momentum. infer: forward alone.
    store: its runs are used when it exists. power: W of one GPU. tariff: price of a kWh, for the
    energy's cost.
    interconnect: GB/s between GPUs, one way; overlap: share of the communication that is hidden
    behind backward, 0 to 1; efficiency: data-parallel efficiency, 0 to 1, instead of working
    it out.
    inputs: shape of one sample, "3x224x224", for a model that does not state it. seq: sequence
    length of a library's model.
    prices: a price table (CSV) in place of the one in use.
    channels_last: the tensors of images lie channels-last in memory (NHWC). compiled: under
    torch.compile (inference on GPUs).
    undated: use offers, too, whose price has no known date or is promotional.

    ``answer.step.seconds`` (``low``, ``high``) is one step on one GPU, ``answer.training.whole``
    the training (None without ``dataset_size`` and ``epochs``), ``answer.training.rentals`` its
    cost in US dollars by offer.

    Raises UsageError for what makes no sense, ToolMissing without torch where the model needs it,
    PerfctlError when the model's own code fails, StoreError for a damaged store.
    """
    batches = (batch,) if isinstance(batch, int) else tuple(batch)
    question = Question(
        model=model,
        batches=batches,
        device=device,
        device_spec=device_spec,
        samples=dataset_size,
        epochs=epochs,
        precision=precision,
        optimizer=optimizer,
        gpus=gpus,
        infer=infer,
        store=Path(store),
        tariff=tariff,
        power=power,
        link_gbs=interconnect,
        overlap=overlap,
        efficiency=efficiency,
        inputs=tuple(inputs),
        threads=threads,
        seq=seq,
        prices=Path(prices) if prices is not None else None,
        channels_last=channels_last,
        undated=undated,
        compiled=compiled,
    )
    return answer(question, messages)[0]


def answer(question: Question, messages: Messages = SILENT) -> tuple[Answer, Known]:
    """Return the answer, and what the store knows. Raises UsageError before anything slow
    begins."""
    setting = resolve(question, messages)
    device = setting.device
    is_link_needed = question.gpus > 1 and question.efficiency is None
    if is_link_needed and device.machine.kind == "gpu" and _link(device.board, question)[0] is None:
        raise UsageError(
            f"`gpus` {question.gpus}: the bandwidth between the GPUs is not known", _NO_LINK
        )
    known = known_of(question.store, [device], messages)
    subject = find_subject(question, device.machine.kind == "gpu", messages)
    points = tuple(_point(question, subject, setting, known, batch) for batch in question.batches)
    notes = (
        device.note,
        *subject.notes,
        *known.notes,
        *_notes(question, points),
        *_price_notes(setting, points[0]),
    )
    return (
        Answer(question, subject, device, points, setting.prices, tuple(filter(None, notes))),
        known,
    )


def resolve(question: Question, messages: Messages = SILENT) -> Setting:
    """Return the device and the prices of a question about training or generation.

    Raises UsageError for a question that makes no sense, and where the device has no fast path for
    the precision.
    """
    question.check()
    prices = load(question.prices)
    device = find_device(
        question.device, question.device_spec, question.store, question.threads, messages
    )
    if device.machine.kind == "gpu" or question.prompt is not None:
        try:
            peak_of(device.machine, question.precision)
        except ValueError as error:
            raise UsageError(str(error), _NO_PEAK) from error
    return Setting(device, prices, prices if question.undated else prices.sure)


def _point(
    question: Question,
    subject: Subject,
    setting: Setting,
    known: Known,
    batch: int,
) -> AnswerPoint:
    device = setting.device
    step = step_on(device.machine, question, subject, known, batch)
    try:
        found = cost.training(
            cost.Span(step.seconds, step.low, step.high),
            job_on(device.board, question, subject, batch),
            backward=_backward(step),
            prices=setting.offers,
            power=power_of(known, device, subject.model, question.power),
            tariff=question.tariff,
            room=_room(subject, device.machine, batch, _capability(device.board)),
        )
    except ValueError as error:
        raise UsageError(f"`gpus` {question.gpus}: {error}", _NO_LINK) from error
    return AnswerPoint(step, found)


def _room(subject: Subject, machine: Machine, batch: int, gpu: Gpu) -> cost.Room | None:
    """None where the model's memory is not known."""
    if subject.lines is None:
        return None
    reserve = reserve_on(machine.kind)
    if subject.memory is None or machine.kind != "gpu":
        return cost.room_of(subject.lines, batch, machine.memory_bytes, reserve)
    return cost.room_on_gpu(subject.memory, batch, machine.memory_bytes, reserve, gpu)


def _capability(board: Board | None) -> Gpu:
    return capability(board.gpu.capability) if board is not None else None


def _backward(step: StepTime) -> float | None:
    """Of a published step the phases are worked out, not learned: None, so that communication may
    hide behind all of it."""
    return step.phases.get("backward") if step.way != "published" else None


def step_on(
    machine: Machine, question: Question, subject: Subject, known: Known, batch: int
) -> StepTime:
    """One step on a machine. Raises UsageError when it has no peak for the precision."""
    try:
        case = subject.case(batch, question.precision, question.channels_last, question.compiled)
        return predict_step(case, machine, known.measured, known.fits, published.load(machine.kind))
    except ValueError as error:
        raise UsageError(str(error), _NO_PEAK) from error


def job_on(board: Board | None, question: Question, subject: Subject, batch: int) -> cost.Job:
    """The training that a step is part of; ``board`` is None for a device that is not in the table
    of devices."""
    link_gbs, link = _link(board, question)
    return cost.Job(
        batch,
        question.samples,
        question.epochs,
        question.gpus,
        subject.parameters,
        link_gbs,
        link,
        question.overlap,
        question.efficiency,
    )


def _link(board: Board | None, question: Question) -> tuple[float | None, str]:
    """(GB/s one way between two GPUs, where that is from)."""
    if question.link_gbs is None and board is not None:
        return board.gpu.link_gbs, f"{board.gpu.link}, data sheet"
    return question.link_gbs, "as said"


def _notes(question: Question, points: Sequence[AnswerPoint]) -> Iterator[str]:
    yield "loading and preparing data, validation and checkpoints are not in the times"
    if question.gpus > NETWORK_FROM and question.link_gbs is None and question.efficiency is None:
        network = (
            "give the speed of the network between them with 'perfctl predict --interconnect GB/s'"
        )
        yield f"more than {NETWORK_FROM} GPUs are in several machines: {network}"
    if question.gpus > 1:
        job = points[0].training.job
        yield (
            f"the batch size is that of each GPU: a step has {job.batch * question.gpus:,} samples"
        )
        more = job.parameters * cost.GRADIENT_BYTES / 1e6
        yield (
            f"DistributedDataParallel keeps gradients in buckets too: up to {more:,.0f} MB more on "
            "each GPU"
        )


def _price_notes(setting: Setting, point: AnswerPoint) -> Iterator[str]:
    board = setting.device.board
    if point.training.billed is None or board is None:
        return
    unused = tuple(left_out(setting, bool(point.training.rentals)))
    yield from unused
    unsure = unsure_for(setting.prices.prices, board)
    if unsure:
        listed = f"'perfctl prices --gpu \"{board.name}\"' lists them"
        yield (
            f"offers that may have this GPU but do not state its form are not used ({len(unsure)} "
            f"of them; {listed})"
        )
    if not point.training.rentals and not unused:
        yield f"no cost: no offer of {setting.prices.where} states that it has a {board.name}"


def find_device(
    name: str | None,
    spec: str | None,
    store: Path,
    threads: int | None = None,
    messages: Messages = SILENT,
) -> Device:
    """The device with this name or these peaks; "cpu" is this machine's, measured once and kept
    beside the store.

    threads: of a CPU; None for as many as torch uses.

    Raises UsageError for a name that is not known, with the nearest ones.
    """
    if (name is None) == (spec is None):
        said = "no device" if name is None else "`device` and `device_spec` together"
        raise UsageError(
            said, "Use `device` A100, `device` cpu, or `device_spec` name=...,fp32_tflops=..."
        )
    if threads is not None and (name or "").lower() != "cpu":
        raise UsageError("`threads` is for `device` cpu", "Leave it out")
    try:
        if spec is not None:
            return machines.by_hand(spec)
        assert name is not None
        if name.lower() == "cpu":
            import psutil

            record = for_cpu(store, threads, messages)
            with as_peaks(store):
                return machines.of_measured(record, psutil.virtual_memory().total)
        if name.lower() in ("cuda", "gpu"):
            remedy = "Use for instance `device` A100; docs/devices.md lists them"
            raise UsageError(f"`device`: '{name}' does not say which product", remedy)
        return machines.named(name)
    except DeviceError as error:
        raise UsageError(str(error), error.remedy) from error


def find_subject(question: Question, on_gpu: bool = False, messages: Messages = SILENT) -> Subject:
    """Return the model's operations, parameters and memory at any batch size; the memory alone
    depends on the precision.

    Every model is traced without data at two batch sizes. Only a network of a family needs no
    trace: its plan has everything but the order of its allocations, which ``on_gpu`` asks for, and
    without torch goes without.
    Raises UsageError, or PerfctlError when the model's own code fails.
    """
    if question.optimizer is not None and question.optimizer not in answers.OPTIMIZERS:
        raise UsageError(
            f"`optimizer`: '{question.optimizer}' is not known",
            f"Use {', '.join(answers.OPTIMIZERS)}",
        )
    if family_of(question.model) is None or question.inputs or question.seq is not None:
        return _traced(question, messages)
    return _planned(question, on_gpu, messages)


def _planned(question: Question, on_gpu: bool, messages: Messages) -> Subject:
    try:
        planned = plan(question.model)
        if question.optimizer in IN_SPEC:
            # as if the specification said so: its runs are then found
            settings = {**planned.settings, "optimizer": question.optimizer}
            planned = plan(canonical(planned.family, settings))
    except SpecError as error:
        raise UsageError(
            f"`model`: {error}", "docs/commands/bench.md lists the parameters of each family"
        ) from error
    optimizer = "" if question.infer else question.optimizer or planned.optimizer
    precision = question.precision
    lines = (
        inference_lines(planned, precision)
        if question.infer
        else lines_of_plan(planned, optimizer, precision)
    )
    memory, notes = (
        _storages(planned.spec, optimizer, precision, messages) if on_gpu else (None, ())
    )
    return Subject(
        planned.spec,
        planned.family,
        operations_of_plan(planned),
        not question.infer,
        planned.parameters,
        optimizer,
        lines,
        notes,
        memory,
    )


def _storages(
    spec: str, optimizer: str, precision: str, messages: Messages
) -> tuple[StepMemory | None, tuple[str, ...]]:
    """(what the allocator's replay needs of a network of a family, why there is none).
    ``optimizer``: "" in inference."""
    if find_spec("torch") is None:
        return None, (
            (
                "memory is that of the tensors: without torch PyTorch's allocator is not replayed, "
                "and may need more"
            ),
        )
    request = Request(spec, (), "train" if optimizer else "infer", optimizer or None, memory=True)
    try:
        with without_driver_warning():
            return step_memory(_pair(open_session(request), precision, messages)), ()
    except LinesError as error:
        return None, (
            f"memory is that of the tensors: PyTorch's allocator is not replayed ({error})",
        )


def _traced(question: Question, messages: Messages) -> Subject:
    need_torch()
    model, training = question.model, not question.infer
    optimizer = question.optimizer
    if optimizer is None and workload_of(model) is None:
        optimizer = answers.DEFAULT_OPTIMIZER
    request = Request(
        model,
        question.inputs,
        "train" if training else "infer",
        optimizer if training else None,
        memory=True,
        seq=question.seq,
    )
    with without_driver_warning():
        session = open_session(request)
        pair = _pair(session, question.precision, messages)
        first = session.at(TRACED_AT[0])
    for estimate in (first, *pair):
        if estimate.problem is not None:
            remedy = (
                f"'perfctl estimate {model}' shows how far it gets; `inputs` gives another shape"
            )
            raise PerfctlError(f"{model} cannot be traced without data: {estimate.problem}", remedy)
    if optimizer is None:
        name, settings = session.facts.optimizer or ("SGD", {})
        optimizer = "momentum" if name == "SGD" and settings.get("momentum") else name.lower()
    works = operations_of(first.ops, TRACED_AT[0])
    memory, notes = None, [*session.notes, *_doubts(works, first)]
    try:
        memory = step_memory(pair)
    except LinesError as error:
        notes.append(f"memory unknown at batch sizes that were not traced: {error}")
    name = session.facts.name
    return Subject(
        name,
        name.partition(":")[0],
        works,
        training,
        first.parameters,
        optimizer if training else "",
        memory.lines if memory is not None else None,
        tuple(notes),
        memory,
        tokens_in(session.facts.inputs),
    )


def tokens_in(inputs: Sequence[InputShape]) -> int | None:
    """Length of the first input if it is a sequence of whole numbers; None for images
    and waveforms."""
    first = next(iter(inputs), None)
    known = (
        first is not None
        and first.dtype in ("int64", "int32")
        and len(first.sizes) == 1
        and first.sizes[0] > 1
    )
    return first.sizes[0] if first is not None and known else None


def _pair(session: Session, precision: str, messages: Messages) -> tuple[Estimate, Estimate]:
    if session.is_built:
        messages.note(f"tracing {session.request.model} without data")
    return memory_pair(session, precision)


def _doubts(works: tuple[Operation, ...], found: Estimate) -> Iterator[str]:
    if unknown := sorted({work.layer or "the model" for work in works if work.kind == "other"}):
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        yield (
            "operations without a formula count by their bytes only: in "
            f"{', '.join(unknown[:3])}{more}"
        )
    if found.data_dependent:
        yield (
            f"sizes depend on the data after {', '.join(found.data_dependent)}: other data takes "
            "another time"
        )


def check_frontier(question: Question) -> None:
    """Raises UsageError where a frontier lacks the size of the dataset."""
    if question.samples is None:
        raise UsageError(
            "`frontier` needs `dataset_size`", "Give the samples of an epoch, and `epochs`"
        )


def frontier_of(found: Answer, known: Known) -> cost.Frontier:
    """Time against cost over every offer of the price table and every batch size.

    Each offer is used with all its GPUs. One that does not say which board it has is not compared.
    Raises UsageError when the size of the dataset is not given.
    """
    check_frontier(found.question)
    steps: dict[tuple[Board, int], StepTime | None] = {}
    choices: list[cost.Choice] = []
    too_large = unknown = unsure = 0
    for price in found.prices.prices:
        board = price.board
        if board is None:
            unsure += 1
            continue
        for batch in found.question.batches:
            if not _fits(found, board, batch):
                too_large += 1
                continue
            whole = _training(found, known, price, board, batch, steps)
            if whole is None or price.on_demand is None:
                unknown += 1
                continue
            (rental,) = whole.rentals
            assert whole.billed is not None and rental.on_demand is not None
            step = steps[board, batch]
            assert step is not None
            choices.append(
                cost.Choice(
                    price,
                    board.name,
                    batch,
                    whole.billed,
                    rental.on_demand,
                    rental.spot,
                    step.way,
                    bool(step.outside),
                )
            )
    return cost.Frontier(cost.frontier(choices), len(choices), too_large, unknown, unsure)


def _fits(found: Answer, board: Board, batch: int) -> bool:
    memory, machine = found.subject.memory, of_board(board)
    if memory is not None and machine.memory_bytes is not None:
        return memory.fits(
            batch, machine.memory_bytes, reserve_on(machine.kind), _capability(board)
        )
    room = _room(found.subject, machine, batch, None)
    return room is None or room.fits is not False


def _training(
    found: Answer,
    known: Known,
    price: Price,
    board: Board,
    batch: int,
    steps: dict[tuple[Board, int], StepTime | None],
) -> cost.Training | None:
    question = replace(found.question, gpus=price.count)
    if (board, batch) not in steps:
        try:
            steps[board, batch] = step_on(of_board(board), question, found.subject, known, batch)
        except UsageError:  # no fast path for this precision on this board
            steps[board, batch] = None
    step = steps[board, batch]
    if step is None:
        return None
    job = job_on(board, question, found.subject, batch)
    alone = cost.Span(step.seconds, step.low, step.high)
    return cost.training(alone, job, backward=_backward(step), prices=(price,))
