"""The ledger of a language model's phases: a row per part of the model, repeated blocks as one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from perfctl.orchestrator.counts.kernels.layers import SHARED_OUT
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.usage.phase_layers import (
    ModelPartUse,
    PhaseParts,
    list_largest_parts,
    split_serving_phases_by_model_part,
)
from perfctl.orchestrator.report.numbers import (
    format_bytes,
    format_percent,
    format_significant,
    format_time,
)
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount_cell,
    build_table,
    count_cell,
    mark_cell_estimated,
    missing_cell,
    name_cell,
    name_column,
    optional_text_cell,
    share_cell,
    size_cell,
    size_column,
    text_cell,
    text_column,
    time_cell,
    time_column,
)
from perfctl.records.report import pluralize_count

PADDING_FACTOR_MIN, PADDING_SHARE_MIN = 1.1, 0.01
"""Padding is a finding from this factor of executed / estimated multiply-adds on, in parts with
this share of a phase's kernel time."""
NOT_TIMED = "one of its kernels has no time"
NOT_DIVIDED = "the trace does not state how the tokens divide between prefill and decode"
NO_TOKENS = "the steps do not state their number of tokens"
MIXED_COLUMNS = ("of prompts", "of decodes")
"""Columns that only mixed steps have."""

_CLASS_ENDING = re.compile(r"^.*?(Attention|MLP|[A-Z][a-z]+Layer|[A-Z][a-z]+Block)$")


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One part of a language model in one phase. FLOPs count 1 multiply-add as 2."""

    JSON_INLINED = ("phase", "part")

    phase: PhaseParts
    part: ModelPartUse


def list_prefill_decode_phases(analysis: Analysis, *, by_block: bool = False) -> list[PhaseParts]:
    """Return the phases of a run group. ``by_block``: every block in a separate row."""
    peaks = analysis.roofline.peaks
    measured = [peaks] if peaks.kind == "measured" else []
    return [
        phase
        for run in analysis.study.runs
        for phase in split_serving_phases_by_model_part(run, measured, separates_blocks=by_block)
    ]


def has_repeated_blocks(phases: Sequence[PhaseParts]) -> bool:
    """Return whether blocks repeat, so that a row stands for several."""
    return any((part.blocks or 0) > 1 for phase in phases for part in phase.parts)


def build_phase_tables(phases: Sequence[PhaseParts]) -> tuple[Table, ...]:
    """Return a table for each phase. FLOPs: 1 multiply-add = 2."""
    return tuple(filter(None, map(_build_phase_table, phases)))


def _build_phase_table(phase: PhaseParts) -> Table | None:
    columns = [
        column
        for column in _build_phase_columns(phase)
        if phase.phase == "mixed" or column.label not in MIXED_COLUMNS
    ]
    short = shorten_module_paths([part.part for part in phase.parts])
    rows = [_build_part_cells(part, short[part.part]) for part in phase.parts]
    if not rows:
        return None
    totals = _build_total_cells(phase)
    for label, cell in rows[0].items():  # a column without values has the reasons of the parts
        if all(row[label].style == "no" for row in rows):
            totals[label] = cell
        totals.setdefault(label, missing_cell("of the parts"))
    steps = pluralize_count(phase.steps, "step")
    if any(step.may_be_partial for step in phase.run.report.served_steps):
        steps = f"part of {steps}"
    tokens = (
        "number of tokens unknown"
        if phase.tokens is None
        else pluralize_count(phase.tokens, "token")
    )
    return build_table(
        f"{phase.phase.capitalize()} by part of the model: {steps}, {tokens}",
        columns,
        [[cells[column.label] for column in columns] for cells in (*rows, totals)],
        _list_phase_notes(phase),
        has_filter_and_csv=False,
    )


def _build_phase_columns(phase: PhaseParts) -> list[Column]:
    prompts, decodes = (
        f"kernel time of the {work} in mixed steps, divided by work (approximate)"
        for work in ("prompts", "decodes")
    )
    estimate = "1 multiply-add = 2 FLOPs; GEMMs and attention (complete square, no mask)"
    moved = "estimated: weights and activations once each; for attention, the cache that it reads"
    ridges = {part.path: part.ridge for part in phase.parts if part.path and part.ridge}
    each = ", ".join(f"{ridge:.0f} FLOP/B ({path})" for path, ridge in ridges.items())
    bound = f"unknown: {phase.peaks.reason or 'no peaks of the device'}"
    if ridges:
        bound = (
            "memory-bound below the ridge point of the device, compute-bound above: "
            f"{each}, {phase.peaks.source}"
        )
    padding = "executed / estimated multiply-adds: complete tiles (from the kernel name) / outputs"
    return [
        name_column("part", "of the model; repeated blocks are one row"),
        Column("blocks", note="repeated blocks that have the part"),
        Column("launches", is_optional=True),
        time_column("kernel time", "sum over its kernels, all steps of the phase"),
        Column("share", is_optional=True, note="of the phase's kernel time"),
        Column("estimate", "FLOP", note=estimate),
        size_column("bytes", moved),
        Column("FLOP/B", is_optional=True, note="estimated FLOPs per byte"),
        text_column("roof", bound),
        time_column("GPU time per token", "kernel time / tokens", is_optional=True),
        time_column("of prompts", prompts, is_optional=True),
        time_column("of decodes", decodes),
        Column("padding", note=padding),
    ]


def _list_phase_notes(phase: PhaseParts) -> Iterator[str]:
    """Yield the sentences about the cache, and where the steps come from."""
    if phase.cache_bytes is not None:
        yield (
            f"Key-value cache read by its steps: {format_bytes(phase.cache_bytes)} "
            f"({phase.cache_why})."
        )
    else:
        yield f"Bytes of the key-value cache: unknown; {phase.cache_why}."
    if any(part.split_by for part in phase.parts):
        yield (
            "Prompts and decodes: the same kernels compute both. perfctl divides attention by "
            "pairs of queries and keys, work that runs once per sequence by sequences, and "
            "everything else by tokens (~)."
        )
    if any(part.shared for part in phase.parts):
        yield f"~ before a part's time: {SHARED_OUT}."
    if phase.is_inferred:
        yield (
            "No annotation names a step, so perfctl infers phase and tokens from the operator "
            "shapes."
        )


def shorten_module_paths(names: Sequence[str]) -> dict[str, str]:
    """Return name -> its last component, with as many before it as tell it from the others:
    "Attention.RowParallelLinear".

    The components before it are cut to the last words of a class's name, unless two would then be
    the same.
    """
    paths = {name: name.split(".") for name in names}
    endings = Counter(
        tuple(path[-length:]) for path in paths.values() for length in range(1, len(path) + 1)
    )
    short = {}
    for name, path in paths.items():
        lengths = range(1, len(path) + 1)
        length = next((n for n in lengths if endings[tuple(path[-n:])] == 1), len(path))
        above = [_CLASS_ENDING.sub(r"\1", part) for part in path[-length:-1]]
        short[name] = ".".join((*above, path[-1]))
    numbers = Counter(short.values())
    return {name: text if numbers[text] == 1 else name for name, text in short.items()}


def _build_part_cells(part: ModelPartUse, short_name: str) -> dict[str, Cell]:
    """Return the cells of a part by the labels of their columns."""
    missing = part.flops_why or part.bytes_why or "unknown"
    intensity, spent = missing_cell(missing), time_cell(part.kernel_ns, NOT_TIMED)
    if part.intensity is not None:
        missing = "the peaks of the device are unknown"
        intensity = Cell(format_significant(part.intensity), value=round(part.intensity, 4))
    share, moved = share_cell(part.share, NOT_TIMED), size_cell(part.bytes, part.bytes_why or "")
    if part.estimated:
        moved = mark_cell_estimated(moved, "if the cache has the type of the projections")
    if part.shared:
        spent = mark_cell_estimated(spent, SHARED_OUT)
        share = mark_cell_estimated(share, SHARED_OUT)
    # of the prompts and of the decodes of mixed steps, both approximate
    mixed = [missing_cell(NOT_TIMED if part.kernel_ns is None else NOT_DIVIDED)] * 2
    if part.kernel_ns is not None and part.prompts_ns is not None:
        times = (part.prompts_ns, part.kernel_ns - part.prompts_ns)
        mixed = [mark_cell_estimated(time_cell(ns), f"by {part.split_by}") for ns in times]
    return {
        "part": name_cell(part.part, short_name),
        "blocks": count_cell(part.blocks, "it is outside of the blocks"),
        "launches": count_cell(part.launches),
        "kernel time": spent,
        "share": share,
        "estimate": amount_cell(part.flops, "FLOP", part.flops_why or ""),
        "bytes": moved,
        "FLOP/B": intensity,
        "roof": optional_text_cell(part.bound, missing),
        "GPU time per token": time_cell(part.token_ns, NO_TOKENS),
        **dict(zip(MIXED_COLUMNS, mixed, strict=True)),
        "padding": _build_tile_padding_cell(part),
    }


def _build_tile_padding_cell(part: ModelPartUse) -> Cell:
    if part.padded is None:
        tile = "the tile of the kernel, or its pass, is unknown"
        return missing_cell(tile if part.names else "it has no GEMM")
    tiles = (
        f"{gemm.rows:,} x {gemm.columns:,} in tiles of {gemm.tile[0]} x {gemm.tile[1]}: "
        f"{gemm.executed_over_estimated_macs:.2f}"
        for gemm in part.padding
    )
    return Cell(f"{part.padded:.2f}", "; ".join(tiles), value=round(part.padded, 4))


def _build_total_cells(phase: PhaseParts) -> dict[str, Cell]:
    """Return the cells of all parts together, of columns that have a total."""
    flops = [part.flops for part in phase.parts if part.flops is not None]
    estimate = amount_cell(sum(flops) if flops else None, "FLOP")
    if 0 < len(flops) < len(phase.parts):
        estimate = replace(estimate, text=f"≥ {estimate.text}", is_lower_bound=True)
    total, tokens = phase.kernel_ns, phase.tokens
    return {
        "part": text_cell("all"),
        "launches": count_cell(phase.launches),
        "kernel time": time_cell(total, NOT_TIMED),
        "share": share_cell(1.0 if total else None, NOT_TIMED),
        "estimate": estimate,
        "GPU time per token": time_cell(total / tokens if total and tokens else None, NO_TOKENS),
    }


def find_slowest_part_per_phase(
    phases: Sequence[PhaseParts], get_non_part_share: Callable[[int | None], float]
) -> Iterator[Finding]:
    """Yield the part of the model that takes the most time in each phase, all its blocks together;
    nothing if something that is no part takes more: ``get_non_part_share`` gives its share at a
    batch size."""
    for phase in phases:
        _, part = next(list_largest_parts([phase], 0.0), (None, None))
        if part is not None and (part.share or 0.0) >= get_non_part_share(phase.run.batch_size):
            blocks = f" ({part.blocks} blocks together)" if (part.blocks or 0) > 1 else ""
            bound = f" Its FLOPs and bytes make it {part.bound}-bound." if part.bound else ""
            most = (
                f"takes the most time, {format_percent(part.share or 0)} of the kernel "
                f"time{blocks}."
            )
            yield Finding(f"In {_format_phase_name(phase)} {part.part} {most}{bound}", "phases")


def _format_phase_name(phase: PhaseParts) -> str:
    return "mixed steps" if phase.phase == "mixed" else phase.phase


def find_worst_tile_padding(phases: Sequence[PhaseParts]) -> Iterator[Finding]:
    """Yield a finding about the part that executes most for its tiles."""
    padded = [
        (phase, part, gemm)
        for phase, part in list_largest_parts(phases, PADDING_SHARE_MIN)
        for gemm in part.padding
        if gemm.executed_over_estimated_macs >= PADDING_FACTOR_MIN
        and (part.padded or 0) >= PADDING_FACTOR_MIN
    ]
    if not padded:
        return
    phase, part, gemm = max(padded, key=lambda item: item[2].executed_over_estimated_macs)
    height, width = gemm.tile
    rows, columns = ceil(gemm.rows / height) * height, ceil(gemm.columns / width) * width
    other_count = len({(other.phase, other.part) for _, other, _ in padded}) - 1
    fix = " Larger batches (more sequences per step) would fill the tiles."
    have = "part of {} also has" if other_count == 1 else "parts of {} also have"
    addition = f" {other_count} more {have.format(phase.phase)} padding." if other_count else ""
    yield Finding(
        f"Tile padding in {_format_phase_name(phase)}: {part.part} executes "
        f"{gemm.executed_over_estimated_macs:.2f} "
        f"times the estimated multiply-adds. Its GEMM has {gemm.rows:,} x {gemm.columns:,} "
        f"outputs, and its tiles of {height} x {width} cover {rows:,} x {columns:,}. It takes "
        f"{format_percent(part.share or 0)} of the kernel time "
        f"({format_time(part.kernel_ns or 0)}).{addition}{fix if rows > gemm.rows else ''}",
        "phases",
    )
