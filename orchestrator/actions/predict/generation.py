"""How long a language model takes to generate text on a device, and what a million tokens cost:
:func:`predict_generation`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfctl.orchestrator.actions.estimate_request import Request
from perfctl.orchestrator.actions.generation import estimate_generation
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.predict.predict import resolve
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.predict.answer import Question
from perfctl.orchestrator.predict.generation import (
    TRACED_IN,
    GenerationAnswer,
    answer_generation,
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
    question = Question(
        model=model,
        batches=(batch,) if isinstance(batch, int) else tuple(batch),
        prompt=prompt,
        generate=generate,
        engine=engine,
        precision=precision,
        kv_cache=kv_cache,
        device=device,
        device_spec=device_spec,
        prices=Path(prices) if prices is not None else None,
        undated=undated,
    )
    return answer(question, messages)


def answer(question: Question, messages: Messages = SILENT) -> GenerationAnswer:
    """Return the answer to a question with ``prompt``. Raises UsageError before anything slow
    begins."""
    setting = resolve(question, messages)
    device, board = setting.device, setting.device.board
    if question.engine == "tensorrt-llm" and board and board.gpu.capability.startswith("gfx"):
        raise UsageError(
            f"`engine` tensorrt-llm does not run on {device.machine.name}", "Use `engine` eager"
        )
    messages.note(f"tracing {question.model} without data")
    traced = estimate_generation(_request(question), question.batches)
    for batch, generation in traced.items():
        if generation.problem is not None:
            remedy = (
                f"'perfctl estimate {question.model} --prompt {question.prompt}' shows how far it "
                "gets"
            )
            raise PerfctlError(
                f"{question.model}, batch {batch}, cannot be traced: {generation.problem}", remedy
            )
        modules = generation.prefill.modules
        weights = sum(module.parameters for module in modules)
        if question.precision in ("fp32", "tf32") and (
            sum(module.parameter_bytes for module in modules) < 4 * weights
        ):
            raise UsageError(
                f"{question.model} has weights of less than 32 bits", "Use `precision` bf16 or fp16"
            )
    return answer_generation(question, setting, [traced[batch] for batch in question.batches])


def _request(question: Question) -> Request:
    """The first token comes from prefill, so one step less than there are tokens. fp8 keeps its
    cache in fp8."""
    cache = question.kv_cache or ("fp8" if question.precision == "fp8" else None)
    return Request(
        question.model,
        prompt=question.prompt,
        generate=question.generate - 1,
        kv_cache=cache,
        precision=TRACED_IN[question.precision],
    )
