"""A prediction of generated text: its view and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfctl.orchestrator.predict.cost import Span
from perfctl.orchestrator.predict.generation import (
    GenerationAnswer,
    GenerationPoint,
    MemoryNeeded,
    StepSeconds,
)
from perfctl.orchestrator.report import prices as prices_text
from perfctl.orchestrator.report.numbers import (
    digits,
    dollars,
    duration,
    gigabytes,
    money,
    with_range,
)
from perfctl.orchestrator.report.predict import device_facts, facts_table, named
from perfctl.orchestrator.report.prices import PriceRow
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
class GeneratedMemory:
    """Bytes on the device."""

    JSON_INLINED = ("needed",)

    needed: MemoryNeeded
    largest_batch: int | None


@dataclass(frozen=True, slots=True)
class TokenCostOutput:
    """Price of an offer, and US dollars for a million generated tokens at it."""

    JSON_INLINED = ("price",)

    price: PriceRow
    usd_per_million_tokens: Span


@dataclass(frozen=True, slots=True)
class GeneratedBatch:
    """The prediction for one batch size. ``gaps`` has the reason of what is null."""

    JSON_INLINED = ("point",)

    point: GenerationPoint
    memory: GeneratedMemory
    cost: TokenCostOutput | None
    nearest: str | None
    gaps: Mapping[str, str]
    """Key that is null or empty -> why."""


@dataclass(frozen=True, slots=True)
class PredictGenerationOutput:
    """Times in seconds, memory in bytes, money in US dollars."""

    JSON_INLINED = ("answer",)

    answer: GenerationAnswer
    prices: str
    """Where the prices are from."""
    batches: list[GeneratedBatch]
    mode: Literal["generate"] = "generate"


def generation_view(answer: GenerationAnswer) -> View:
    """Return the figures with their ranges, and what they rest on."""
    first, is_single = answer.points[0], len(answer.points) == 1
    batch = ", ".join(f"{point.batch:,}" for point in answer.points)
    used = [point.cost.price for point in answer.points if point.cost is not None]
    covered = (
        f"; the range covers {first.coverage:.0%} of held-out times"
        if first.coverage is not None
        else ""
    )
    facts = [
        *(_figures(first) if is_single else []),
        ("basis", f"{BASES[answer.engine]}: {first.source}{covered}"),
        *named("closest", [first.nearest] if first.nearest else []),
        *named("extrapolation", first.outside),
        *device_facts(answer.device, (*answer.notes, *prices_text.old(answer.prices, used))),
    ]
    return View(
        f"{answer.model}, generating, batch {batch}, {answer.precision}, on "
        f"{answer.device.machine.name}, {ENGINES[answer.engine]}",
        (
            f"prompt {answer.prompt:,} tokens, {answer.generate:,} generated; "
            f"{answer.parameters:,} parameters",
        ),
        (*([] if is_single else [_table(answer)]), facts_table(facts)),
    )


def _figures(point: GenerationPoint) -> list[tuple[str, str]]:
    too_large = point.memory.fits is False
    memory = ("memory", _memory(point))
    rows = [memory] if too_large else []
    rows.append(("first token", _step(point.prefill) + (", if it fitted" if too_large else "")))
    if point.first is not None and point.last is not None:
        rows += [
            (name, f"{_step(step)}; at context {step.context:,}")
            for name, step in (("next token", point.first), ("last token", point.last))
        ]
    speed = with_range(point.tokens_per_second, "tokens/s")
    rows.append(("whole", f"{duration(point.whole)}; {speed}"))
    rows += [] if too_large else [memory]
    if point.cost is not None:
        price = point.cost.price
        several = f", one of {price.count} busy GPUs" if price.count > 1 else ""
        offer = f"{price.provider} {price.instance or price.gpu}".strip()
        source = price.source or prices_text.NO_SOURCE
        rows.append(
            (
                "cost",
                f"{dollars(point.cost.dollars)} per million generated tokens: {offer}{several}, "
                f"price of {price.date} ({source})",
            )
        )
    return rows


def _step(step: StepSeconds) -> str:
    return f"{duration(step.time)}, mostly {LIMITS[step.limit]}"


def _memory(point: GenerationPoint) -> str:
    memory = point.memory
    parts = (
        f"weights {gigabytes(memory.weights)}, cache {gigabytes(memory.cache)}, "
        f"{gigabytes(memory.reserve)} reserved"
    )
    if memory.limit is None:
        return f"{gigabytes(memory.whole)}: {parts}; the memory of the device is unknown"
    largest = memory.largest(point.batch)
    most = f"; largest batch {largest:,}" if largest is not None else ""
    fits = "fits" if memory.fits else "does not fit"
    needed = f"{gigabytes(memory.whole)} of {gigabytes(memory.limit)}"
    return f"{needed}, {fits} ({parts}){most}"


def _table(answer: GenerationAnswer) -> Table:
    """Return a row for each batch size."""
    rows = []
    for point in answer.points:
        fits, cost = point.memory.fits, point.cost
        rows.append(
            (
                point.batch,
                text_cell(duration(point.prefill.time, is_short=True)),
                text_cell(duration(point.first.time, is_short=True))
                if point.first
                else nothing("one token"),
                text_cell(digits(point.tokens_per_second.value)),
                text_cell(gigabytes(point.memory.whole)),
                nothing("not known") if fits is None else "yes" if fits else "no",
                text_cell(money(cost.dollars.value)) if cost else nothing(_no_cost(point)),
            )
        )
    columns = [
        Column("batch"),
        Column("first token"),
        Column("next token"),
        Column("tokens/s"),
        Column("memory"),
        Column("fits", style="word"),
        Column("$/M"),
    ]
    used = [point.cost.price for point in answer.points if point.cost is not None]
    notes = []
    if used:
        publishers = "; ".join(prices_text.sources(used))
        notes.append(
            f"$/M: cost per million generated tokens; prices of {prices_text.days(used)} "
            f"({publishers})"
        )
    return dense_table("Prediction by batch size", columns, rows, notes)


def predict_generation_output(answer: GenerationAnswer) -> PredictGenerationOutput:
    """Return everything, every batch size."""
    return PredictGenerationOutput(
        answer, answer.prices.where, [_point(answer, point) for point in answer.points]
    )


def _point(answer: GenerationAnswer, point: GenerationPoint) -> GeneratedBatch:
    memory, cost = point.memory, None
    if point.cost is not None:
        price = prices_text.price_row(point.cost.price, answer.prices.today)
        cost = TokenCostOutput(price, point.cost.dollars)
    gaps = {
        "decode_first_step": "only one token is generated, and it comes from prefill"
        if point.first is None
        else None,
        "coverage": "extrapolates: see beyond_the_data" if point.coverage is None else None,
        "cost": _no_cost(point) if cost is None else None,
        "memory.limit_bytes": "the memory of the device is unknown"
        if memory.limit is None
        else None,
    }
    return GeneratedBatch(
        point=point,
        memory=GeneratedMemory(memory, memory.largest(point.batch)),
        cost=cost,
        nearest=point.nearest or None,
        gaps={name: why for name, why in gaps.items() if why},
    )


def _no_cost(point: GenerationPoint) -> str:
    if point.memory.fits is False:
        return "it does not fit in memory"
    return "no offer of this device in the price table"
