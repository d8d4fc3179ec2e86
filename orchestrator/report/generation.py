"""Generation of text on paper: its view and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfctl.orchestrator.estimate.generation import (
    MEASURES,
    Cache,
    CachePart,
    Generation,
    LayerWork,
    Phase,
    layer_work,
)
from perfctl.orchestrator.report.estimate import flops_cell
from perfctl.orchestrator.report.numbers import digits
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    size_cell,
    text_cell,
    whole_table,
)
from perfctl.orchestrator.report.view import View

CONVENTION = (
    "1 multiply-add (MAC) is 2 FLOPs; FLOP/B: FLOPs per byte of weights and cache. Tokens are per "
    "sequence."
)
WORK = ("FLOP", "weights", "cache read", "cache written", "FLOP/B")
"""Columns of what a phase or a layer does."""


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """--prompt."""

    model: str
    """As it was named."""
    batches: Mapping[int, Generation]
    """Batch size -> its figures."""
    mode: Literal["generate"] = "generate"


def generation_view(output: GenerationOutput, *, has_layers: bool) -> View:
    """Return both phases, parameters and cache of each batch size that was traced whole; with
    ``has_layers`` a table of layers for each phase."""
    generations = [one for one in output.batches.values() if one.problem is None]
    if not generations:
        return View("")
    tables: list[Table] = []
    for generation in generations:
        at = f", batch {generation.batch:,}" if len(generations) > 1 else ""
        columns = [
            Column("phase", style="text"),
            Column("steps"),
            Column("tokens", is_optional=True),
            Column("context"),
            *map(Column, WORK),
        ]
        rows = list(map(_phase_row, generation.phases))
        tables.append(whole_table(f"Phases{at}", columns, rows, list(_facts(generation))))
        for phase in generation.phases[:2] if has_layers else ():
            name = f"{phase.name[:1].upper()}{phase.name[1:]}"
            tables.append(_layers(f"{name}, by layer{at}", phase))
    first = generations[0]
    sizes = ", ".join(f"{generation.batch:,}" for generation in generations)
    return View(
        f"{first.name}, batch {sizes}: prompt {first.prompt:,}, then {first.generate:,} steps of "
        "one token",
        tables=tuple(tables),
        notes=(CONVENTION, *first.notes),
    )


def _phase_row(phase: Phase) -> list[object]:
    sums = [phase.total(name) for name in MEASURES]
    total = layer_work("", "", sums, phase.totals.unknown)
    context = f"{phase.first:,}"
    context += f"-{phase.last:,}" if phase.first != phase.last else ""
    tokens = context if phase.tokens > 1 and phase.steps > 1 else f"{phase.tokens:,}"
    counted = [text_cell("" if phase.name == "total" else text) for text in (tokens, context)]
    return [phase.name.removeprefix("decode, "), phase.steps, *counted, *_work(total)]


def _work(work: LayerWork) -> list[Cell]:
    """Return FLOPs, bytes of weights and cache, and FLOPs for each of these bytes."""
    intensity = digits(work.flops / work.bytes) if work.bytes and work.macs else ""
    return [
        flops_cell(work.flops, bool(work.unknown)),
        size_cell(work.weight_bytes),
        size_cell(work.cache_read_bytes),
        size_cell(work.cache_written_bytes),
        text_cell(intensity),
    ]


def _layers(title: str, phase: Phase) -> Table:
    """Return the layers of a phase and their sum."""
    sums = [phase.total(name) for name in MEASURES]
    works = [*phase.layers, layer_work("total", "", sums, phase.totals.unknown)]
    rows = [
        [
            work.layer or "(model)",
            text_cell(work.kind),
            *_work(work),
            flops_cell(work.elementwise_flops, bool(work.unknown)),
            size_cell(work.other_bytes),
        ]
        for work in works
    ]
    columns = [
        Column("layer", style="text"),
        Column("kind", style="text", is_optional=True),
        *map(Column, WORK),
        Column("elementwise", is_optional=True),
        Column("op by op", is_optional=True),
    ]
    return whole_table(title, columns, rows)


def _facts(generation: Generation) -> Iterator[str]:
    parameters = f"parameters: {generation.parameters:,}"
    active = generation.active_parameters
    if active is not None:
        parameters += f"; active per token: {active:,} (a token uses only some experts)"
    yield parameters
    if generation.cache is not None:
        yield from _facts_of_cache(generation.cache)
    elif not generation.cached:
        yield "KV cache: none; each step runs all tokens again"
    for phase in generation.phases[:2]:
        for name, calls in phase.totals.unknown:
            times = f"{calls:,} {'call' if calls == 1 else 'calls'}"
            yield f"not counted: {name} ({times}), in {phase.name}"


def _facts_of_cache(cache: Cache) -> Iterator[str]:
    """Yield the bytes for a token with how they come about, and the size at the end."""
    growing = [part for part in cache.parts if part.grows]
    fixed = [part for part in cache.parts if not part.grows]
    yield (
        f"KV cache: {cache.bytes_per_token:,} B per token and sequence, "
        f"{' and '.join(cache.dtypes)}: {_product(growing)}"
    )
    if fixed:
        yield f"of fixed size: {cache.fixed_bytes:,} B per sequence: {_product(fixed)}"
    yield f"at the end: {cache.bytes:,} B: {cache.tokens:,} tokens, batch {cache.batch:,}"
    if cache.latent is None or not growing:
        return
    compressed, expanded = cache.latent
    item_bytes = sum(part.layers for part in growing) * growing[0].item_bytes
    values = sorted({part.each for part in growing})
    kept = "compressed" if cache.keeps_latent else "expanded" if values == [expanded] else "neither"
    if values not in ([compressed], [expanded]):
        kept += f", {' or '.join(map(str, values))} values in all"
    yield (
        f"latent attention: compressed {compressed:,} values per token and layer = "
        f"{compressed * item_bytes:,} B per token; as keys and values of all heads {expanded:,} = "
        f"{expanded * item_bytes:,} B. This model caches: {kept}"
    )


def _product(parts: Sequence[CachePart]) -> str:
    """ "32 layers x (keys 32 x 128 + values 32 x 128) x 2 B"."""
    texts = []
    for part in parts:
        tensors = " + ".join(
            f"{name} {' x '.join(map(str, shape))}" for name, shape in part.tensors
        )
        window = f", keeps the last {part.keeps:,} tokens" if part.keeps is not None else ""
        layers = f"{part.layers:,} {'layer' if part.layers == 1 else 'layers'}"
        texts.append(f"{layers} x ({tensors}) x {part.item_bytes} B{window}")
    return "; ".join(texts) or "no layer caches tokens"
