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
from perfctl.orchestrator.report.numbers import digits
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount,
    count,
    size_cell,
    text_cell,
    whole_table,
)
from perfctl.orchestrator.report.view import View

CONVENTION = (
    "1 multiply-add (MAC) is 2 FLOPs; FLOP/B: FLOPs for each byte of weights and cache. Tokens are "
    "those of one sequence."
)
SHEET_WIDTH = 150
"""Columns of a sheet, whose numbers have all their digits."""
MOVED = {
    "weight_bytes": "weights",
    "cache_read_bytes": "cache read",
    "cache_written_bytes": "cache written",
}


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """--prompt."""

    model: str
    """As it was named."""
    batches: Mapping[int, Generation]
    """Batch size -> its figures."""
    mode: Literal["generate"] = "generate"


def generation_view(output: GenerationOutput, *, has_layers: bool, is_exact: bool) -> View:
    """Return both phases, parameters and cache of each batch size that was traced whole; with
    ``has_layers`` a table of layers for each phase, with ``is_exact`` all digits."""
    generations = [one for one in output.batches.values() if one.problem is None]
    if not generations:
        return View("")
    tables: list[Table] = []
    for generation in generations:
        at = f", batch {generation.batch:,}" if len(generations) > 1 else ""
        tables.append(_phases(f"Phases{at}", generation, is_exact))
        if has_layers:
            for phase in generation.phases[:2]:
                name = f"{phase.name[:1].upper()}{phase.name[1:]}"
                tables.append(_layers(f"{name}, by layer{at}", phase, is_exact))
    first = generations[0]
    sizes = ", ".join(f"{generation.batch:,}" for generation in generations)
    return View(
        f"{first.name}, batch {sizes}: prompt {first.prompt:,}, then {first.generate:,} steps of "
        "one token",
        tables=tuple(tables),
        notes=(CONVENTION, *first.notes),
        least_width=SHEET_WIDTH if is_exact else 0,
    )


def _number(value: int, is_exact: bool, is_at_least: bool = False, unit: str = "") -> Cell:
    if is_at_least:
        return Cell(f"≥ {value:,}", value=value)
    if is_exact:
        return count(value)
    return size_cell(value) if unit == "B" else amount(value, "FLOP")


def _phases(title: str, generation: Generation, is_exact: bool) -> Table:
    rows = []
    for phase in generation.phases:
        totals = phase.totals
        context = (
            f"{phase.first:,}" if phase.first == phase.last else (f"{phase.first:,}-{phase.last:,}")
        )
        tokens = context if phase.tokens > 1 and phase.steps > 1 else f"{phase.tokens:,}"
        is_total = phase.name == "total"
        rows.append(
            [
                phase.name.removeprefix("decode, "),
                phase.steps,
                text_cell("" if is_total else tokens),
                text_cell("" if is_total else context),
                *([_number(totals.macs, True, totals.at_least)] * is_exact),
                _number(totals.flops, is_exact, totals.at_least),
                *(_number(phase.total(name), is_exact, unit="B") for name in MOVED),
                text_cell(digits(phase.intensity) if phase.intensity is not None else ""),
            ]
        )
    return whole_table(
        title,
        [
            Column("phase", style="text"),
            Column("steps"),
            Column("tokens", is_optional=True),
            Column("context"),
            *_columns(is_exact),
            Column("FLOP/B"),
        ],
        rows,
        list(_facts(generation)),
    )


def _columns(is_exact: bool) -> Iterator[Column]:
    yield from (Column(name) for name in (("MAC", "FLOP") if is_exact else ("FLOP",)))
    yield from (Column(f"{name} B" if is_exact else name) for name in MOVED.values())


def _layers(title: str, phase: Phase, is_exact: bool) -> Table:
    """Return the layers of a phase and their sum."""
    sums = [phase.total(name) for name in MEASURES]
    total = layer_work("total", "", sums, phase.totals.unknown)

    def row(work: LayerWork) -> list[object]:
        is_at_least = bool(work.unknown)
        has_intensity = work.bytes and work.macs
        return [
            work.layer or "(model)",
            text_cell(work.kind),
            *([_number(work.macs, True, is_at_least)] * is_exact),
            _number(work.flops, is_exact, is_at_least),
            *(_number(getattr(work, name), is_exact, unit="B") for name in MOVED),
            text_cell(digits(work.flops / work.bytes) if has_intensity else ""),
            _number(work.elementwise_flops, is_exact, is_at_least),
            _number(work.other_bytes, is_exact, unit="B"),
        ]

    columns = [
        Column("layer", style="text"),
        Column("kind", style="text", is_optional=True),
        *_columns(is_exact),
        Column("FLOP/B"),
        Column("elementwise", is_optional=True),
        Column("op by op B" if is_exact else "op by op", is_optional=True),
    ]
    return whole_table(title, columns, [*map(row, phase.layers), row(total)])


def _facts(generation: Generation) -> Iterator[str]:
    parameters = f"parameters: {generation.parameters:,}"
    active = generation.active_parameters
    if active is not None:
        parameters += f"; active for a token: {active:,}, because of experts only its own"
    yield parameters
    if generation.cache is not None:
        yield from _facts_of_cache(generation.cache)
    elif not generation.cached:
        yield "KV cache: none, each step runs all tokens again"
    for phase in generation.phases[:2]:
        for name, calls in phase.totals.unknown:
            times = f"{calls:,} {'call' if calls == 1 else 'calls'}"
            yield f"not counted: {name} ({times}), in {phase.name}"


def _facts_of_cache(cache: Cache) -> Iterator[str]:
    """Yield the bytes for a token with how they come about, and the size at the end."""
    growing = [part for part in cache.parts if part.grows]
    fixed = [part for part in cache.parts if not part.grows]
    yield (
        f"KV cache: {cache.bytes_per_token:,} B a token and sequence, "
        f"{' and '.join(cache.dtypes)}: {_product(growing)}"
    )
    if fixed:
        yield f"of fixed size: {cache.fixed_bytes:,} B a sequence: {_product(fixed)}"
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
        f"latent attention: compressed {compressed:,} values a token and layer = "
        f"{compressed * item_bytes:,} B a token; as keys and values of all heads {expanded:,} = "
        f"{expanded * item_bytes:,} B. This model keeps: {kept}"
    )


def _product(parts: Sequence[CachePart]) -> str:
    """ "32 layers x (keys 32 x 128 + values 32 x 128) x 2 B"."""
    texts = []
    for part in parts:
        tensors = " + ".join(
            f"{name} {' x '.join(map(str, shape))}" for name, shape in part.tensors
        )
        window = f", the last {part.keeps:,} tokens kept" if part.keeps is not None else ""
        layers = f"{part.layers:,} {'layer' if part.layers == 1 else 'layers'}"
        texts.append(f"{layers} x ({tensors}) x {part.item_bytes} B{window}")
    return "; ".join(texts) or "no layer keeps a token"
