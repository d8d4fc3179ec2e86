"""An estimate of generated text: its view and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfctl.orchestrator.estimate.generation import (
    MEASURES,
    GenerationEstimate,
    GenerationPhase,
    KvCache,
    KvCachePart,
    LayerWork,
)
from perfctl.orchestrator.report.estimate import append_active_parameters, build_flops_cell
from perfctl.orchestrator.report.numbers import format_three_significant_digits
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_complete_table,
    size_cell,
    text_cell,
    text_column,
    text_columns,
)
from perfctl.orchestrator.report.view import View

CONVENTION = (
    "1 multiply-add (MAC) is 2 FLOPs; FLOP/B: FLOPs per byte of weights and cache. Tokens are per "
    "sequence."
)
WORK = tuple(map(Column, ("FLOP", "weights", "cache read", "cache written", "FLOP/B")))
"""Columns of the work of a phase or a layer."""


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """--prompt."""

    model: str
    """As it was named."""
    batches: Mapping[int, GenerationEstimate]
    """Batch size -> its figures."""
    mode: Literal["generate"] = "generate"


def build_generation_view(output: GenerationOutput, *, has_layers: bool) -> View:
    """Return both phases, parameters and cache of each batch size whose trace is complete; with
    ``has_layers`` a table of layers for each phase."""
    batches = output.batches.values()
    generations = [generation for generation in batches if generation.problem is None]
    if not generations:
        return View()
    columns = [
        *text_columns("phase"),
        Column("steps"),
        Column("tokens", is_optional=True),
        Column("context"),
        *WORK,
    ]
    tables = []
    for generation in generations:
        batch = f", batch {generation.batch:,}" if len(generations) > 1 else ""
        rows = list(map(_build_phase_row, generation.phases))
        tables.append(
            build_complete_table(
                f"Phases{batch}", columns, rows, list(_list_generation_facts(generation))
            )
        )
        if has_layers:
            phases = generation.phases[:2]
            tables += [
                _build_phase_layers_table(f"{phase.name.capitalize()}, by layer{batch}", phase)
                for phase in phases
            ]
    first = generations[0]
    sizes = ", ".join(f"{generation.batch:,}" for generation in generations)
    return View(
        f"{first.name}, batch {sizes}: prompt {first.prompt:,}, then {first.generate:,} steps of "
        "one token",
        tables=tuple(tables),
        notes=(CONVENTION, *first.notes),
    )


def _build_phase_row(phase: GenerationPhase) -> list[object]:
    first, last = phase.first_step_context, phase.last_step_context
    context = f"{first:,}–{last:,}" if first != last else f"{first:,}"
    tokens = context if phase.tokens > 1 and phase.steps > 1 else f"{phase.tokens:,}"
    counts = [text_cell("" if phase.name == "total" else text) for text in (tokens, context)]
    return [
        phase.name.removeprefix("decode, "),
        phase.steps,
        *counts,
        *_build_work_cells(_sum_phase_work(phase)),
    ]


def _sum_phase_work(phase: GenerationPhase) -> LayerWork:
    sums = {name: phase.sum_layer_field(name) for name in MEASURES}
    return LayerWork("total", "", missing=phase.totals.missing, **sums)


def _build_work_cells(work: LayerWork) -> list[Cell]:
    """Return FLOPs, bytes of weights and cache, and FLOPs for each of these bytes."""
    sizes = (work.weight_bytes, work.cache_read_bytes, work.cache_written_bytes)
    flops_per_byte = (
        format_three_significant_digits(work.flops / work.bytes) if work.bytes and work.macs else ""
    )
    flops = build_flops_cell(work.flops, is_lower_bound=bool(work.missing))
    return [flops, *map(size_cell, sizes), text_cell(flops_per_byte)]


def _build_phase_layers_table(title: str, phase: GenerationPhase) -> Table:
    """Return the layers of a phase and their sum."""
    rows = [
        [
            work.layer or "(model)",
            text_cell(work.kind),
            *_build_work_cells(work),
            build_flops_cell(work.elementwise_flops, is_lower_bound=bool(work.missing)),
            size_cell(work.unfused_bytes),
        ]
        for work in (*phase.layers, _sum_phase_work(phase))
    ]
    columns = [
        *text_columns("layer"),
        text_column("kind", is_optional=True),
        *WORK,
        Column("elementwise", is_optional=True),
        Column("op by op", is_optional=True),
    ]
    return build_complete_table(title, columns, rows)


def _list_generation_facts(generation: GenerationEstimate) -> Iterator[str]:
    parameters = f"parameters: {generation.parameters:,}"
    yield append_active_parameters(parameters, generation.active_parameters)
    if generation.cache is not None:
        yield from _list_cache_facts(generation.cache)
    elif not generation.cached:
        yield "KV cache: none; each step runs all tokens again"
    for phase in generation.phases[:2]:
        for name, calls in phase.totals.missing:
            times = f"{calls:,} {'call' if calls == 1 else 'calls'}"
            yield f"not included: {name} ({times}), in {phase.name}"


def _list_cache_facts(cache: KvCache) -> Iterator[str]:
    """Yield the bytes for a token with how they come about, and the size at the end."""
    growing = [part for part in cache.parts if part.is_growing]
    fixed = [part for part in cache.parts if not part.is_growing]
    yield (
        f"KV cache: {cache.bytes_per_token:,} B per token and sequence, "
        f"{' and '.join(cache.dtypes)}: {_describe_cache_parts(growing)}"
    )
    if fixed:
        yield f"of fixed size: {cache.fixed_bytes:,} B per sequence: {_describe_cache_parts(fixed)}"
    tokens = f"{cache.tokens_at_end:,} tokens"
    yield f"at the end: {cache.bytes_at_end:,} B: {tokens}, batch {cache.batch:,}"
    if cache.latent is None or not growing:
        return
    compressed, expanded = cache.latent
    item_bytes = sum(part.layers for part in growing) * growing[0].item_bytes
    values = sorted({part.values_per_layer for part in growing})
    form = (
        "compressed"
        if cache.has_compressed_latent_cache
        else "expanded"
        if values == [expanded]
        else "neither"
    )
    if values not in ([compressed], [expanded]):
        form += f", {' or '.join(map(str, values))} values in all"
    yield (
        f"latent attention: compressed {compressed:,} values per token and layer = "
        f"{compressed * item_bytes:,} B per token; as keys and values of all heads {expanded:,} = "
        f"{expanded * item_bytes:,} B. This model caches: {form}"
    )


def _describe_cache_parts(parts: Sequence[KvCachePart]) -> str:
    """ "32 layers x (keys 32 x 128 + values 32 x 128) x 2 B"."""
    texts = []
    for part in parts:
        tensors = " + ".join(
            f"{name} {' x '.join(map(str, shape))}" for name, shape in part.tensors
        )
        window = f", keeps the last {part.window:,} tokens" if part.window is not None else ""
        layers = f"{part.layers:,} {'layer' if part.layers == 1 else 'layers'}"
        texts.append(f"{layers} x ({tensors}) x {part.item_bytes} B{window}")
    return "; ".join(texts) or "no layer caches tokens"
