"""A prediction of generated text: its view and its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfctl.orchestrator.predict.generation import (
    GenerationAnswer,
    GenerationPoint,
    GenerationStepTime,
)
from perfctl.orchestrator.predict.prices import Price
from perfctl.orchestrator.report.numbers import (
    format_bytes_binary_prefix,
    format_dollars,
    format_dollars_with_range,
    format_seconds_with_range,
    format_three_significant_digits,
    format_value_with_range,
)
from perfctl.orchestrator.report.predict import (
    NO_LIMIT,
    Fact,
    add_memory_fact,
    build_duration_cell,
    build_facts_table,
    collect_missing_value_reasons,
    is_memory_insufficient,
    list_device_facts,
    list_prediction_basis_facts,
)
from perfctl.orchestrator.report.prices import NO_SOURCE, describe_price_origin, warn_of_old_prices
from perfctl.orchestrator.report.tables import (
    Column,
    Table,
    build_complete_table,
    missing_cell,
    text_cell,
)
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


def build_predicted_generation_view(answer: GenerationAnswer) -> View:
    """Return the figures with their ranges, and what they rest on."""
    first, is_single = answer.points[0], len(answer.points) == 1
    batches = ", ".join(f"{point.batch:,}" for point in answer.points)
    prices = [point.cost.price for point in answer.points if point.cost is not None]
    facts = [
        *(_list_time_memory_cost_facts(first) if is_single else ()),
        *list_prediction_basis_facts(f"{BASES[answer.engine]}: {first.source}", first),
        *list_device_facts(answer.device, (*answer.notes, *warn_of_old_prices(prices))),
    ]
    tables = [build_facts_table(facts)]
    if not is_single:
        tables.insert(0, _build_generation_by_batch_table(answer.points, prices))
    return View(
        f"{answer.model}, generating, batch {batches}, {answer.precision}, on "
        f"{answer.device.machine.name}, {ENGINES[answer.engine]}",
        (
            f"prompt {answer.prompt:,} tokens, {answer.generate:,} generated; "
            f"{answer.parameters:,} parameters",
        ),
        tuple(tables),
    )


def _list_time_memory_cost_facts(point: GenerationPoint) -> list[Fact]:
    """Return the times of one batch size, its memory and its cost."""
    times = [("first token", _describe_step_time(point.prefill))]
    for name, step in (("next token", point.first), ("last token", point.last)):
        if step is not None:
            times.append((name, f"{_describe_step_time(step)}; at context {step.context:,}"))
    speed = format_value_with_range(point.tokens_per_second, "tokens/s")
    times.append(("total", f"{format_seconds_with_range(point.total)}; {speed}"))
    memory = point.memory
    parts = (
        f"weights {format_bytes_binary_prefix(memory.weights)}, cache "
        f"{format_bytes_binary_prefix(memory.cache)}, "
        f"{format_bytes_binary_prefix(memory.reserve)} reserved"
    )
    facts = add_memory_fact(times, memory, parts)
    if point.cost is not None:
        price = point.cost.price
        several = f", one of {price.count} busy GPUs" if price.count > 1 else ""
        cost = (
            f"{format_dollars_with_range(point.cost.dollars)} per million generated tokens: "
            f"{price.provider} {price.instance or price.gpu}{several}, price of {price.date} "
            f"({price.source or NO_SOURCE})"
        )
        facts.append(("cost", cost))
    return facts


def _describe_step_time(step: GenerationStepTime) -> str:
    return f"{format_seconds_with_range(step.time)}, mostly {LIMITS[step.limit]}"


def _build_generation_by_batch_table(
    points: Sequence[GenerationPoint], prices: Sequence[Price]
) -> Table:
    """Return a row for each batch size."""
    rows = []
    for point in points:
        fits, cost = point.memory.fits, point.cost
        rows.append(
            (
                point.batch,
                build_duration_cell(point.prefill.time),
                build_duration_cell(point.first.time) if point.first else missing_cell("one token"),
                text_cell(format_three_significant_digits(point.tokens_per_second.value)),
                text_cell(format_bytes_binary_prefix(point.memory.total)),
                "maybe" if fits is None else "no",
                text_cell(format_dollars(cost.dollars.value))
                if cost
                else missing_cell(_explain_missing_cost(point)),
            )
        )
    columns = [
        *map(Column, ("batch", "first token", "next token", "tokens/s", "memory")),
        Column("fits", style="word"),
        Column("$/M"),
    ]
    meaning = f"$/M: cost per million generated tokens; {describe_price_origin(prices)}"
    notes = [meaning] if prices else []
    return build_complete_table("Prediction by batch size", columns, rows, notes, is_dense=True)


def _explain_missing_cost(point: GenerationPoint) -> str:
    if is_memory_insufficient(point.memory):
        return "it does not fit in memory"
    return "no offer of this device in the price table"


def build_predict_generation_output(answer: GenerationAnswer) -> PredictGenerationOutput:
    """Return everything, every batch size."""
    batches = []
    for point in answer.points:
        values = {
            "decode_first_step": (point.first, "the only generated token comes from prefill"),
            "coverage": (point.coverage, "extrapolates: see extrapolations"),
            "cost": (point.cost, _explain_missing_cost(point)),
            "memory.limit_bytes": (point.memory.limit, NO_LIMIT),
        }
        batches.append(GeneratedBatch(point, collect_missing_value_reasons(values)))
    return PredictGenerationOutput(answer, answer.prices.name, batches)
