"""How long a training takes on a device and what it costs: :func:`predict`.

This is where the model's operations, the device, the store's runs, fits and prices meet (``perfctl predict``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perfctl.orchestrator.analyse.boards import Board
from perfctl.orchestrator.analyse.cost import Span
from perfctl.orchestrator.analyse.cost_parallel import GRADIENT_BYTES
from perfctl.orchestrator.analyse.machines import Device
from perfctl.orchestrator.analyse.predict import predict as predict_step
from perfctl.orchestrator.analyse.predict_records import StepTime
from perfctl.orchestrator.analyse.prices import PriceTable, for_board
from perfctl.orchestrator.analyse.question import Answer, AnswerPoint, Question, Subject
from perfctl.orchestrator.analyse.training import Job, Room, room_of, training
from perfctl.orchestrator.analyse.work_records import Machine
from perfctl.orchestrator.cli.predict_sources import Known, find_device, known_of, power_of
from perfctl.orchestrator.cli.predict_subject import find_subject
from perfctl.orchestrator.cli.price_files import load
from perfctl.orchestrator.errors import UsageError

NETWORK_FROM = 8
"""GPUs beyond which they sit in several machines, whatever the link between two of them is."""


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
    store: Path | str = "perfctl.db",
    tariff: float | None = None,
) -> Answer:
    """Predict steps and training of ``model`` (as ``perfctl estimate`` names models) on ``device``.

    batch: samples a step and GPU; several give ``Answer.points``. device_spec: peaks by hand instead of a device.
    store: its runs are used where it is there. tariff: price of a kWh, for the energy's cost.

    ``answer.step.seconds`` (low, high) is one step on one GPU, ``answer.training.whole`` the training,
    ``answer.training.rentals`` its cost by offer. Raises UsageError for what makes no sense, in one line.
    """
    batches = (batch,) if isinstance(batch, int) else tuple(batch)
    found, _ = answer(
        Question(
            model, batches, device, device_spec, dataset_size, epochs, precision, optimizer, gpus, infer, Path(store),
            tariff,
        )
    )  # fmt: skip
    return found


def answer(question: Question) -> tuple[Answer, Known]:
    """Everything asked, with what the store knows; UsageError before anything slow begins."""
    question.check()
    prices = load()
    device = find_device(question.device, question.device_spec, question.store, question.threads)
    known = known_of(question.store, device)
    subject = find_subject(
        question.model, training=not question.infer, optimizer=question.optimizer, inputs=question.inputs
    )
    points = tuple(_point(question, subject, device, known, prices, batch) for batch in question.batches)
    notes = tuple(filter(None, (device.note, *subject.notes, *known.notes, *_notes(question, points))))
    return Answer(question, subject, device, points, prices, notes), known


def _point(
    question: Question, subject: Subject, device: Device, known: Known, prices: PriceTable, batch: int
) -> AnswerPoint:
    step = step_on(device.machine, question, subject, known, batch)
    job = job_on(device.board, question, subject, batch)
    try:
        found = training(
            Span(step.seconds, step.low, step.high),
            job,
            backward=step.phases.get("backward"),
            prices=for_board(prices.prices, device.board) if device.board is not None else (),
            power=power_of(known, device, subject.model, question.power),
            tariff=question.tariff,
            room=_room(subject, device, batch),
        )
    except ValueError as error:
        raise UsageError(f"--gpus {question.gpus}: {error}", "Say --interconnect GB/s, or --efficiency") from error
    return AnswerPoint(step, found)


def step_on(machine: Machine, question: Question, subject: Subject, known: Known, batch: int) -> StepTime:
    """One step on any machine. Raises UsageError for one without a peak for the precision."""
    try:
        return predict_step(subject.case(batch, question.precision), machine, known.measured, known.fits)
    except ValueError as error:
        raise UsageError(str(error), "Choose another --precision, or give peaks with --device-spec") from error


def _room(subject: Subject, device: Device, batch: int) -> Room | None:
    return room_of(subject.lines, batch, device.machine.memory_bytes) if subject.lines is not None else None


def job_on(board: Board | None, question: Question, subject: Subject, batch: int) -> Job:
    """What is done with a step on a board, or on a device that is none of the table."""
    link_gbs, link = question.link_gbs, "as said"
    if link_gbs is None and board is not None:
        link_gbs, link = board.sheet.link_gbs, f"{board.sheet.link}, data sheet"
    return Job(
        batch, question.samples, question.epochs, question.gpus, subject.parameters, link_gbs, link, question.overlap,
        question.efficiency,
    )  # fmt: skip


def _notes(question: Question, points: Sequence[AnswerPoint]) -> Iterator[str]:
    yield "loading and preparing data, validation and checkpoints are not in the times"
    if question.precision in ("bf16", "fp16"):
        yield "memory is worked out in fp32: under autocast activations take less, so a step needs less than this"
    if question.gpus > NETWORK_FROM and question.link_gbs is None and question.efficiency is None:
        yield f"more than {NETWORK_FROM} GPUs sit in several machines: say what the network between them reaches, --interconnect"
    if question.gpus > 1:
        job = points[0].training.job
        yield f"--batch is of each GPU: a step sees {job.batch * question.gpus:,} samples"
        more = job.parameters * GRADIENT_BYTES / 1e6
        yield f"DistributedDataParallel keeps gradients in buckets too: up to {more:,.0f} MB more on each GPU"
