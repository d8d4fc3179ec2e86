"""A prediction of generated text: its view and its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfctl.orchestrator.predict.generation import (
    GenerationAnswer,
    GenerationPoint,
    StepSeconds,
)
from perfctl.orchestrator.predict.prices import Price
from perfctl.orchestrator.report.numbers import (
    digits,
    dollars,
    duration,
    memory_size,
    money,
    with_range,
)
from perfctl.orchestrator.report.predict import (
    NO_LIMIT,
    Fact,
    add_memory,
    basis_facts,
    device_facts,
    duration_cell,
    facts_table,
    is_too_large,
    missing_values,
)
from perfctl.orchestrator.report.prices import NO_SOURCE, describe_prices, warn_of_old
from perfctl.orchestrator.report.tables import Column, Table, dense_table, nothing, text_cell
from perfctl.orchestrator.report.view import View

ENGINES = {
    "eager": "PyTorch in eager mode",
    "tensorrt-llm": "TensorRT-LLM (fused kernels, CUDA graphs)",
}
BASES = {
    "eager": "forward passes fitted to published measurements",
    "tensorrt-llm": "fitted to published measurements",
}
LIMITS = {
    "host": "the host",
    "overhead": "fixed costs of its operations",
    "arithmetic": "FLOPs",
    "bandwidth": "bandwidth",
}


@dataclass(frozen=True, slots=True)
class GeneratedBatch:
    """The prediction for one batch size."""

    JSON_INLINED = ("point",)

    point: GenerationPoint
    missing_values: Mapping[str, str]
    """Key that is null or empty -> reason."""


@dataclass(frozen=True, slots=True)
class PredictGenerationOutput:
    """Times in seconds, memory in bytes, money in US dollars."""

    JSON_INLINED = ("answer",)

    answer: GenerationAnswer
    price_source: str
    """Where the prices are from."""
    batches: list[GeneratedBatch]
    mode: Literal["generate"] = "generate"


def generation_view(answer: GenerationAnswer) -> View:
    """Return the figures with their ranges, and what they rest on."""
    first, is_single = answer.points[0], len(answer.points) == 1
    batches = ", ".join(f"{point.batch:,}" for point in answer.points)
    prices = [point.cost.price for point in answer.points if point.cost is not None]
    facts = [
        *(_figures(first) if is_single else ()),
        *basis_facts(f"{BASES[answer.engine]}: {first.source}", first),
        *device_facts(answer.device, (*answer.notes, *warn_of_old(prices))),
    ]
    tables = [facts_table(facts)]
    if not is_single:
        tables.insert(0, _batches_table(answer.points, prices))
    return View(
        f"{answer.model}, generating, batch {batches}, {answer.precision}, on "
        f"{answer.device.machine.name}, {ENGINES[answer.engine]}",
        (
            f"prompt {answer.prompt:,} tokens, {answer.generate:,} generated; "
            f"{answer.parameters:,} parameters",
        ),
        tuple(tables),
    )


def _figures(point: GenerationPoint) -> list[Fact]:
    """Return the times of one batch size, its memory and its cost."""
    times = [("first token", _step_words(point.prefill))]
    for name, step in (("next token", point.first), ("last token", point.last)):
        if step is not None:
            times.append((name, f"{_step_words(step)}; at context {step.context:,}"))
    speed = with_range(point.tokens_per_second, "tokens/s")
    times.append(("total", f"{duration(point.total)}; {speed}"))
    memory = point.memory
    parts = (
        f"weights {memory_size(memory.weights)}, cache {memory_size(memory.cache)}, "
        f"{memory_size(memory.reserve)} reserved"
    )
    facts = add_memory(times, memory, parts)
    if point.cost is not None:
        price = point.cost.price
        several = f", one of {price.count} busy GPUs" if price.count > 1 else ""
        cost = (
            f"{dollars(point.cost.dollars)} per million generated tokens: {price.provider} "
            f"{price.instance or price.gpu}{several}, price of {price.date} "
            f"({price.source or NO_SOURCE})"
        )
        facts.append(("cost", cost))
    return facts


def _step_words(step: StepSeconds) -> str:
    return f"{duration(step.time)}, mostly {LIMITS[step.limit]}"


def _batches_table(points: Sequence[GenerationPoint], prices: Sequence[Price]) -> Table:
    """Return a row for each batch size."""
    rows = []
    for point in points:
        fits, cost = point.memory.fits, point.cost
        rows.append(
            (
                point.batch,
                duration_cell(point.prefill.time),
                duration_cell(point.first.time) if point.first else nothing("one token"),
                text_cell(digits(point.tokens_per_second.value)),
                text_cell(memory_size(point.memory.total)),
                "maybe" if fits is None else "no",
                text_cell(money(cost.dollars.value)) if cost else nothing(_no_cost(point)),
            )
        )
    columns = [
        *map(Column, ("batch", "first token", "next token", "tokens/s", "memory")),
        Column("fits", style="word"),
        Column("$/M"),
    ]
    meaning = f"$/M: cost per million generated tokens; {describe_prices(prices)}"
    notes = [meaning] if prices else []
    return dense_table("Prediction by batch size", columns, rows, notes)


def _no_cost(point: GenerationPoint) -> str:
    if is_too_large(point.memory):
        return "it does not fit in memory"
    return "no offer of this device in the price table"


def predict_generation_output(answer: GenerationAnswer) -> PredictGenerationOutput:
    """Return everything, every batch size."""
    batches = [GeneratedBatch(point, _missing_values(point)) for point in answer.points]
    return PredictGenerationOutput(answer, answer.prices.name, batches)


def _missing_values(point: GenerationPoint) -> dict[str, str]:
    return missing_values(
        {
            "decode_first_step": (point.first, "the only generated token comes from prefill"),
            "coverage": (point.coverage, "extrapolates: see extrapolations"),
            "cost": (point.cost, _no_cost(point)),
            "memory.limit_bytes": (point.memory.limit, NO_LIMIT),
        }
    )
