"""A prediction of generated text for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.predict.generation import (
    GenerationAnswer,
    GenerationPoint,
    MemoryNeeded,
    StepSeconds,
)
from perfctl.orchestrator.report import numbers
from perfctl.orchestrator.report import prices as prices_text
from perfctl.orchestrator.report.numbers import DASH, compact, digits, duration, gigabytes
from perfctl.orchestrator.report.predict import facts, grid_of, named
from perfctl.orchestrator.report.text_tables import text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

ENGINES = {
    "eager": "PyTorch in eager mode",
    "tensorrt-llm": "TensorRT-LLM (fused kernels, CUDA graphs)",
}
RESTS = {
    "eager": "forward passes learned from measurements that others published",
    "tensorrt-llm": "learned from measurements that others published",
}
LIMITS = {
    "host": "the host",
    "overhead": "fixed costs of its operations",
    "arithmetic": "FLOPs",
    "bandwidth": "bandwidth",
}


def terminal(found: GenerationAnswer) -> Iterator[RenderableType]:
    """Everything, part by part."""
    batch = ", ".join(f"{point.batch:,}" for point in found.points)
    on = f"on {found.device.machine.name}, {ENGINES[found.engine]}"
    yield text(f"{found.model}, generating, batch {batch}, {found.precision}, {on}")
    yield text(
        f"prompt {found.prompt:,} tokens, {found.generate:,} generated; {found.parameters:,} "
        "parameters"
    )
    first = found.points[0]
    if len(found.points) == 1:
        yield facts([*_one(found, first), *_grounds(found, first)])
    else:
        yield facts(_grounds(found, first))
        yield _table(found)
    yield facts([("device", found.device.source), *named("note", found.notes)])
    used = [point.cost.price for point in found.points if point.cost is not None]
    if used and (late := prices_text.old(found.prices, used)) is not None:
        yield text(late, "dim")


def _one(found: GenerationAnswer, point: GenerationPoint) -> list[tuple[str, str]]:
    too_large = point.memory.fits is False
    memory = ("memory", _memory(point))
    rows = [memory] if too_large else []
    rows.append(("first token", _step(point.prefill) + (", if it fitted" if too_large else "")))
    if point.first is not None and point.last is not None:
        rows += [
            ("next token", f"{_step(point.first)}; at context {point.first.context:,}"),
            ("last token", f"{_step(point.last)}; at context {point.last.context:,}"),
        ]
    rows += [
        ("whole", duration(point.whole)),
        ("", numbers.with_range(point.tokens_per_second, "tokens/s")),
    ]
    rows += [] if too_large else [memory]
    return [*rows, *_cost(found, point)]


def _step(step: StepSeconds) -> str:
    return f"{duration(step.time)}, mostly {LIMITS[step.limit]}"


def _memory(point: GenerationPoint) -> str:
    memory = point.memory
    parts = (
        f"weights {gigabytes(memory.weights)}, cache {gigabytes(memory.cache)}, "
        f"{gigabytes(memory.reserve)} reserved"
    )
    if memory.limit is None:
        return f"{gigabytes(memory.whole)}: {parts}; the memory of the device is not known"
    largest = memory.largest(point.batch)
    most = f"; largest batch {largest:,}" if largest is not None else ""
    if not memory.fits:
        return (
            f"does not fit in {gigabytes(memory.limit)}: {gigabytes(memory.whole)} ({parts}){most}"
        )
    return f"fits: {gigabytes(memory.whole)} of {gigabytes(memory.limit)} ({parts}){most}"


def _cost(found: GenerationAnswer, point: GenerationPoint) -> list[tuple[str, str]]:
    cost = point.cost
    if cost is None:
        return []
    price = cost.price
    several = f", one of {price.count} GPUs, all at work" if price.count > 1 else ""
    offer = f"{price.provider} {price.instance or price.gpu}".strip()
    said = (
        f"{numbers.dollars(cost.dollars)} for a million generated tokens: {offer}{several}, price "
        f"of {price.date}"
    )
    return [("cost", f"{said} ({price.source or prices_text.NO_SOURCE})")]


def _grounds(found: GenerationAnswer, point: GenerationPoint) -> list[tuple[str, str]]:
    covered = (
        f"; the range is what covers {point.coverage:.0%} of held-out times"
        if point.coverage is not None
        else ""
    )
    rows = [("rests on", f"{RESTS[found.engine]}: {point.source}{covered}")]
    rows += [("nearest", f"measured: {point.nearest}")] if point.nearest else []
    return rows + list(named("beyond data", point.outside))


def _table(found: GenerationAnswer) -> Table:
    table = grid_of(
        "batch", ">first token", ">next token", ">tokens/s", ">memory", "fits", ">$/M", tight=True
    )
    for point in found.points:
        fits = {None: DASH, True: "yes", False: "no"}[point.memory.fits]
        steps = [
            compact(step.time) if step is not None else DASH
            for step in (point.prefill, point.first)
        ]
        cost = numbers.money(point.cost.dollars.value) if point.cost is not None else DASH
        row = (
            f"{point.batch:,}",
            *steps,
            digits(point.tokens_per_second.value),
            gigabytes(point.memory.whole),
            fits,
            cost,
        )
        table.add_row(*map(text, row))
    costs = [point.cost.price for point in found.points if point.cost is not None]
    if costs:
        sources = "; ".join(prices_text.sources(costs))
        table.caption = (
            f"$/M: for a million generated tokens; prices of {prices_text.days(costs)} ({sources})"
        )
    return table


def as_json(found: GenerationAnswer) -> dict[str, Any]:
    """Times in seconds as value, low and high; bytes; US dollars. Every null has its reason
    under ``gaps``."""
    machine = found.device.machine
    return {
        "model": found.model,
        "mode": "generate",
        "engine": found.engine,
        "precision": found.precision,
        "kv_cache": found.kv_cache,
        "prompt": found.prompt,
        "generate": found.generate,
        "parameters": found.parameters,
        "device": {
            **asdict(machine),
            "flops_per_second": dict(machine.flops_per_second),
            "source": found.device.source,
        },
        "prices": found.prices.where,
        "notes": list(found.notes),
        "batches": [_point(found, one) for one in found.points],
    }


def _point(found: GenerationAnswer, point: GenerationPoint) -> dict[str, Any]:
    gaps = {
        "decode_first_step": "one token is asked for: it comes from prefill"
        if point.first is None
        else None,
        "coverage": "goes beyond what was measured: see beyond_the_data"
        if point.coverage is None
        else None,
        "cost": _no_cost(found, point) if point.cost is None else None,
        "memory.limit_bytes": "how much the device has is not known"
        if point.memory.limit is None
        else None,
    }
    cost = point.cost
    return {
        "batch": point.batch,
        "prefill": _step_json(point.prefill),
        "decode_first_step": _step_json(point.first),
        "decode_last_step": _step_json(point.last),
        "whole_s": asdict(point.whole),
        "tokens_per_s": asdict(point.tokens_per_second),
        "memory": _memory_json(point.memory, point.batch),
        "cost": None
        if cost is None
        else {
            **prices_text.as_json(cost.price, found.prices.today),
            "usd_per_million_tokens": asdict(cost.dollars),
        },
        "source": point.source,
        "nearest": point.nearest or None,
        "coverage": point.coverage,
        "beyond_the_data": list(point.outside),
        "gaps": {name: why for name, why in gaps.items() if why},
    }


def _no_cost(found: GenerationAnswer, point: GenerationPoint) -> str:
    if point.memory.fits is False:
        return "it does not fit in memory"
    return "no offer of this device in the price table"


def _step_json(step: StepSeconds | None) -> dict[str, Any] | None:
    return (
        None
        if step is None
        else {
            "seconds": asdict(step.time),
            "roofline_s": step.floor,
            "limit": step.limit,
            "context": step.context,
        }
    )


def _memory_json(memory: MemoryNeeded, batch: int) -> dict[str, Any]:
    return {
        "weights_bytes": memory.weights,
        "kv_cache_bytes": memory.cache,
        "reserve_bytes": memory.reserve,
        "needed_bytes": memory.whole,
        "limit_bytes": memory.limit,
        "fits": memory.fits,
        "largest_batch": memory.largest(batch),
    }
