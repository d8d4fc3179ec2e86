"""How long a language model takes to generate text on a device, and what a million tokens cost:
:func:`predict_generation`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.actions.estimate_request import Request
from perfctl.orchestrator.actions.generation import estimate_generation
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.predict.predict import find_device
from perfctl.orchestrator.actions.predict.prices import left_out, load
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.counts.hardware.machines import Device
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.estimate.generation import Generation
from perfctl.orchestrator.estimate.memory import reserve_on
from perfctl.orchestrator.predict import generation as times
from perfctl.orchestrator.predict.generation import (
    GenerationAnswer,
    GenerationPoint,
    MemoryNeeded,
)
from perfctl.orchestrator.predict.prices import Price, for_board
from perfctl.orchestrator.predict.step_parts import peak_of


@dataclass(frozen=True, slots=True)
class GenerationQuestion:
    """The options of ``perfctl predict --prompt``."""

    model: str
    batches: tuple[int, ...]
    """Sequences that are generated at once; one prediction each."""
    prompt: int
    generate: int = 1
    engine: str = "eager"
    precision: str = "fp16"
    kv_cache: str | None = None
    device: str | None = None
    device_spec: str | None = None
    prices: Path | None = None
    undated: bool = False
    """Use prices, too, whose date nobody knows, and promotional ones."""

    def check(self) -> None:
        """Raises UsageError for values that make no sense, with the field in backquotes."""
        if not self.batches or any(batch < 1 for batch in self.batches):
            raise UsageError("`batch` must be at least 1", "For example `batch` 8")
        for name, value in (("prompt", self.prompt), ("generate", self.generate)):
            if value < 1:
                raise UsageError(
                    f"`{name}` must be at least 1, got {value}", f"For example `{name}` 128"
                )
        if self.engine not in times.ENGINES:
            raise UsageError(
                f"`engine`: '{self.engine}' is not known", f"Use {' or '.join(times.ENGINES)}"
            )
        known = times.PRECISIONS[self.engine]
        if self.precision not in known:
            raise UsageError(
                f"`precision`: '{self.precision}' is not predicted for {self.engine}",
                f"Use {', '.join(known)}",
            )
        caches = times.CACHES[self.engine]
        if self.kv_cache is not None and self.kv_cache not in caches:
            if not caches:
                text = "PyTorch in eager mode keeps the cache in the type of the weights"
                raise UsageError(
                    f"`kv_cache` {self.kv_cache}: {text}", "Omit it, or use `engine` tensorrt-llm"
                )
            raise UsageError(
                f"`kv_cache`: '{self.kv_cache}' is not predicted", f"Use {', '.join(caches)}"
            )
        if (self.device or "").lower() == "cpu":
            remedy = "Name a GPU, for instance `device` A100"
            raise UsageError(
                "`prompt` with `device` cpu: generation is predicted on GPUs only", remedy
            )


def predict_generation(
    model: str,
    *,
    prompt: int,
    generate: int = 1,
    batch: int | Sequence[int] = 1,
    engine: str = "eager",
    precision: str = "fp16",
    kv_cache: str | None = None,
    device: str | None = None,
    device_spec: str | None = None,
    prices: Path | str | None = None,
    undated: bool = False,
    messages: Messages = SILENT,
) -> GenerationAnswer:
    """Predict time to the first token, time for each token, memory and cost of ``model`` that
    generates text on ``device``.

    prompt: tokens that go in at once; generate: tokens that come out, the first of them
    from prefill.
    batch: sequences at once; several give ``points``.
    engine: "eager" (PyTorch, as generate() of transformers) or "tensorrt-llm" (fused kernels,
    CUDA graphs).
    precision: of weights and arithmetic: fp16, bf16, fp32 or tf32 (eager), fp8 (tensorrt-llm, on
    GPUs that have it).
    kv_cache: type of the cache: fp16, bf16, fp8 or int8 (tensorrt-llm); None: as the weights.
    undated: use offers, too, whose price has no known date or is promotional.

    ``points[0].prefill.time`` (``value``, ``low``, ``high``) is the time to the first token
    in seconds.

    Raises UsageError for what makes no sense, ToolMissing without torch, PerfctlError when the
    model's own code fails.
    """
    batches = (batch,) if isinstance(batch, int) else tuple(batch)
    table = Path(prices) if prices is not None else None
    question = GenerationQuestion(
        model,
        batches,
        prompt,
        generate,
        engine,
        precision,
        kv_cache,
        device,
        device_spec,
        table,
        undated,
    )
    return answer(question, messages)


def answer(question: GenerationQuestion, messages: Messages = SILENT) -> GenerationAnswer:
    """Raises UsageError before anything slow begins."""
    question.check()
    every = load(question.prices)
    prices = every if question.undated else every.sure
    device = find_device(question.device, question.device_spec, DEFAULT, None, messages)
    _check_device(question, device)
    messages.note(f"tracing {question.model} without data")
    found = estimate_generation(_request(question), question.batches)
    for batch, one in found.items():
        if one.problem is not None:
            remedy = (
                f"'perfctl estimate {question.model} --prompt {question.prompt}' shows how far it "
                "gets"
            )
            raise PerfctlError(
                f"{question.model}, batch {batch}, cannot be traced: {one.problem}", remedy
            )
    offers = for_board(prices.prices, device.board) if device.board is not None else ()
    points = tuple(_point(question, one, device, offers) for one in found.values())
    first = found[question.batches[0]]
    unused = left_out(every, prices, device.board, bool(offers))
    notes = tuple(filter(None, (device.note, *_notes(question, first), *unused)))
    return GenerationAnswer(
        first.name,
        device,
        question.engine,
        question.precision,
        times.cache_words(first),
        question.prompt,
        question.generate,
        first.parameters,
        points,
        prices,
        notes,
    )


def _check_device(question: GenerationQuestion, device: Device) -> None:
    """Raises UsageError where the device has no fast path for the precision, or the engine does not
    run on it."""
    if (
        question.engine == "tensorrt-llm"
        and device.board is not None
        and device.board.gpu.capability.startswith("gfx")
    ):
        raise UsageError(
            f"`engine` tensorrt-llm does not run on {device.machine.name}", "Use `engine` eager"
        )
    try:
        peak_of(device.machine, question.precision)
    except ValueError as error:
        raise UsageError(
            str(error), "Choose another `precision`, or give the peaks with `device_spec`"
        ) from error


def _request(question: GenerationQuestion) -> Request:
    """The first token comes from prefill, so one step less than there are tokens. fp8 keeps its
    cache in fp8."""
    cache = question.kv_cache or ("fp8" if question.precision == "fp8" else None)
    return Request(
        question.model,
        prompt=question.prompt,
        generate=question.generate - 1,
        kv_cache=cache,
        precision=times.TRACED_IN[question.precision],
    )


def _point(
    question: GenerationQuestion, found: Generation, device: Device, offers: Sequence[Price]
) -> GenerationPoint:
    engine, precision, machine = question.engine, question.precision, device.machine
    if precision in ("fp32", "tf32") and found.prefill.modules:
        held = sum(one.parameter_bytes for one in found.prefill.modules)
        if held < 4 * sum(one.parameters for one in found.prefill.modules):
            raise UsageError(
                f"{question.model} has weights of less than 32 bits", "Use `precision` bf16 or fp16"
            )
    steps = times.steps_of(found, engine, precision, machine)
    whole = times.whole_of(steps, question.generate)
    rate = times.rate_of(whole, found.batch * question.generate)
    memory = MemoryNeeded(
        times.weights_of(found, precision),
        times.cache_bytes(found),
        reserve_on(machine.kind),
        machine.memory_bytes,
    )
    first, last = (steps[1], steps[2]) if len(steps) > 2 else (None, None)
    cost = times.token_cost(offers, rate) if memory.fits is not False else None
    return GenerationPoint(
        found.batch,
        steps[0],
        first,
        last,
        whole,
        rate,
        memory,
        *times.grounds(found, engine, precision, machine),
        cost,
    )


def _notes(question: GenerationQuestion, found: Generation) -> Iterator[str]:
    yield from (
        note
        for note in found.notes
        if note.startswith(("model: ", "config", "the model was made for", "experts"))
    )
    if question.engine == "eager":
        yield (
            "predicted is the model's forward; generate() of transformers does more on the host "
            "between two steps"
        )
    else:
        yield (
            "all sequences begin together; queues, scheduling and the network are not in the times"
        )
    if question.precision == "fp8":
        yield (
            "fp8: weights of the layers and the cache; the head, embeddings and the scores of "
            "attention stay in 16 bits"
        )
    yield "memory: weights and cache; activations of prefill come on top"
