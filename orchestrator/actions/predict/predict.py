"""How long a training takes on a device and what it costs: :func:`predict`.

The model's operations, the device, the runs of a store, the fits to them and the prices meet here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.predict.measurements import find_evidence
from perfctl.orchestrator.actions.predict.peaks import find_device
from perfctl.orchestrator.actions.predict.prices import load
from perfctl.orchestrator.actions.predict.subjects import find_subject
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.predict.answer import Answer, Question, Setting
from perfctl.orchestrator.predict.prices import for_board
from perfctl.orchestrator.predict.step_parts import peak_of
from perfctl.orchestrator.predict.training import NO_PEAK, answer_training, link_between


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
    return answer(question, messages)


def answer(question: Question, messages: Messages = SILENT) -> Answer:
    """Return the answer. Raises UsageError before anything slow begins."""
    setting = resolve(question, messages)
    link_gbs, _ = link_between(setting.device.board, question)
    if question.gpus > 1 and question.efficiency is None and link_gbs is None:
        raise UsageError(
            f"`gpus` {question.gpus}: the bandwidth between the GPUs is not known",
            "Give `interconnect` in GB/s, or `efficiency`",
        )
    evidence = find_evidence(question.store, [setting.device], messages)
    subject = find_subject(question, setting.device.machine.kind == "gpu", messages)
    return answer_training(question, setting, subject, evidence)


def resolve(question: Question, messages: Messages = SILENT) -> Setting:
    """Return the device and the prices of a question about training or generation.

    Raises UsageError for a question that makes no sense, and where the device has no fast path for
    the precision.
    """
    question.check()
    device = find_device(
        question.device, question.device_spec, question.store, question.threads, messages
    )
    if device.machine.kind == "gpu" or question.prompt is not None:
        try:
            peak_of(device.machine, question.precision)
        except ValueError as error:
            raise UsageError(str(error), NO_PEAK) from error
    table = load(question.prices)
    usable = table if question.undated else table.sure
    every, offers = (for_board(prices.prices, device.board) for prices in (table, usable))
    return Setting(device, usable, offers, len(every) - len(offers))
