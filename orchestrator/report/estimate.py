"""An estimate of a step: its views and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.estimate.flops.engine import (
    Totals,
    fused_only,
    types_of_products,
)
from perfctl.orchestrator.estimate.memory import CONTEXT, Fit, Memory
from perfctl.orchestrator.estimate.sheets.network import NetworkLine, NetworkSheet, network_sheet
from perfctl.orchestrator.estimate.sheets.sheet import Section, Sheet
from perfctl.orchestrator.estimate.sheets.slips import Finding
from perfctl.orchestrator.estimate.sheets.slips import explain as explain_check
from perfctl.orchestrator.estimate.step import Estimate, experts_assumption
from perfctl.orchestrator.report.numbers import si
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount,
    count,
    share_cell,
    size_cell,
    text_cell,
    text_columns,
    whole_table,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.paper import CAPABILITY, LayerCall

MIB, GIB = 1 << 20, 1 << 30
NAMED = 8
"""Layers that one line lists."""
SHEET_WIDTH = 150
"""Columns of a sheet, whose numbers have all their digits."""
BLANK = text_cell("")
PASSES = {"grad_input": "input gradient", "grad_weight": "weight gradient"}


@dataclass(frozen=True, slots=True)
class EstimateOutput:
    """Figures of one step, on paper. Memory in bytes."""

    model: str
    """As it was named."""
    mode: str
    batches: Mapping[int, Estimate]
    """Batch size -> its figures."""
    largest_batch: Fit | None
    """null: no memory was stated."""
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Check:
    """What a value by hand is."""

    JSON_INLINED = ("finding",)

    finding: Finding
    said: str


@dataclass(frozen=True, slots=True)
class LayerSheet:
    """The calculation of one layer at one batch size."""

    layer: str
    kind: str
    sections: tuple[Section, ...]
    check: Check | None
    """null: no --check."""


@dataclass(frozen=True, slots=True)
class LayerSheets:
    """--sheet with --layer, or --check."""

    model: str
    """As it was named."""
    batches: Mapping[int, LayerSheet]
    """Batch size -> its figures."""
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class NetworkSheets:
    """--sheet of a whole network."""

    model: str
    """As it was named."""
    batches: Mapping[int, NetworkSheet]
    """Batch size -> its figures."""
    problems: Sequence[str]


def estimate_view(output: EstimateOutput, *, has_every_row: bool, limit: int | None = None) -> View:
    """Return the layers and the totals of the first batch size, then what was asked for besides.
    ``limit``: bytes that the largest batch was sought for."""
    (batch, first), *others = output.batches.items()
    tables = [_layers(first), *([_operations(first.calls)] if has_every_row else []), _types(first)]
    if first.memory is not None:
        tables.append(_memory(first.memory))
    if others:
        tables.append(_batches(output.batches))
    notes = list(_totals(first))
    if output.largest_batch is not None and limit is not None:
        notes.append(_largest_batch(output.largest_batch, limit))
    what = "training" if output.mode == "train" else "inference"
    more = (experts_assumption(first.experts),) if first.experts else ()
    return View(
        f"{output.model}, {what}, batch {batch:,}, {first.precision}",
        tables=tuple(table for table in tables if table is not None),
        notes=(*notes, *output.notes, *more),
        least_width=SHEET_WIDTH if has_every_row else 0,
    )


def shape_text(line: NetworkLine) -> str:
    """Return "64x32x26x26", "" for a function."""
    if not line.called:
        return "not called"
    return "x".join(map(str, line.output)) if line.output is not None else ""


def flops_cell(value: int | None, is_at_least: bool = False) -> Cell:
    """Return FLOPs in the unit that suits them, marked if they are a lower bound."""
    if value is None:
        return Cell("not counted", "it has no formula", "no")
    return Cell(f"≥ {value:,}", value=value) if is_at_least else amount(value, "FLOP")


def _layers(estimate: Estimate) -> Table:
    """Return a row for each layer, and for each function with multiply-adds in one."""
    sheet = network_sheet(estimate.modules, estimate.calls)
    passes = [*PASSES] if sheet.backward else []
    passes += ["recompute"] * bool(estimate.recompute.macs)
    works: Counter[tuple[str, str, str]] = Counter()
    for call in estimate.calls:
        if not fused_only(call):
            works[call.layer or "(model)", call.kind, call.direction] += call.flops or 0
            works["total", "", call.direction] += call.flops or 0

    def cells(line: NetworkLine) -> Iterator[Cell]:
        yield flops_cell(line.flops, line is sheet.total and estimate.forward.at_least)
        for name in passes:
            is_first = name == "grad_input" and line.flops and line.backward_flops
            work = works.get((line.layer, line.kind, name))
            yield text_cell("not needed") if is_first and work is None else flops_cell(work or 0)

    names = ["forward", *(PASSES.get(name, "computed again") for name in passes)]
    lines = [line for line in sheet.lines if line.output or line.flops != 0 or line.backward_flops]
    rows: list[list[object]] = [
        [
            line.layer,
            text_cell(line.kind),
            text_cell(shape_text(line)),
            line.parameters if line.output or line is sheet.total else BLANK,
            *(cells(line) if line.called else [BLANK] * len(names)),
        ]
        for line in (*lines, sheet.total)
    ]
    columns = [
        Column("layer", style="text"),
        Column("kind", style="text", is_optional=True),
        Column("output", style="text"),
        *map(Column, ("parameters", *names)),
    ]
    title = "FLOPs of multiply-adds (1 multiply-add, MAC, is 2 FLOPs)"
    return whole_table(title, columns, rows)


def _least(total: Totals) -> str:
    return "at least " if total.at_least else ""


def _totals(estimate: Estimate) -> Iterator[str]:
    """Yield the sums in sentences, and which operations have no formula."""
    forward, backward, again = estimate.forward, estimate.backward, estimate.recompute
    flops, macs = f"Forward {_least(forward)}{si(forward.flops, 'FLOP')}", f"{forward.macs:,}"
    if backward.macs or backward.at_least:
        flops += f", backward {_least(backward)}{si(backward.flops, 'FLOP')}"
        macs += f" and {backward.macs:,}"
    yield f"{flops} ({macs} MAC)."
    if again.macs or again.at_least:
        yield (
            f"Computed again in backward: {_least(again)}{si(again.flops, 'FLOP')} "
            f"({again.macs:,} MAC)."
        )
    if estimate.integer_macs:
        yield f"Integer products: {estimate.integer_macs:,} multiply-adds, not counted as FLOPs."
    if estimate.fused.macs:
        yield (
            "Fused attention kernels compute Q K^T again in backward: "
            f"{estimate.fused.macs:,} MAC, not included above."
        )
    elementwise = si(forward.elementwise_flops, "FLOP")
    yield f"Elementwise operations (forward): {elementwise}, not included above."
    weights = sum(module.parameter_bytes for module in estimate.modules)
    frozen = estimate.parameters - estimate.trainable
    parameters = f"Parameters {estimate.parameters:,} ({weights / MIB:,.2f} MiB)"
    parameters += f", of them {frozen:,} not trainable" if frozen else ""
    active = estimate.active_parameters
    if active is not None:
        parameters += f"; active per token: {active:,} (a token uses only some experts)"
    yield f"{parameters}." + (" Peak memory of a step: add `memory`." * (estimate.memory is None))
    if estimate.data_dependent:
        names = ", ".join(estimate.data_dependent)
        yield f"The sizes depend on the data after {names}: other inputs give other FLOPs."
    for call in estimate.calls:
        if call.macs is None:
            yield f"Not counted: {call.formula}, in {call.layer or 'the model'}, {call.direction}."


def _types(estimate: Estimate) -> Table | None:
    """Return FLOPs and bytes by type, and the casts; None if every product takes fp32 anyway."""
    multiplied = {row.type for row in estimate.types if row.forward_macs or row.backward_macs}
    if estimate.precision == "fp32" and multiplied <= {"fp32"}:
        return None
    macs_of = {
        row.type: row.forward_macs + row.backward_macs + row.recompute_macs
        for row in estimate.types
    }
    total = sum(macs_of.values())
    again = any(row.recompute_macs for row in estimate.types)
    rows = [
        [
            row.type,
            flops_cell(2 * row.forward_macs, bool(row.unknown)),
            flops_cell(2 * row.backward_macs, bool(row.unknown)),
            *([flops_cell(2 * row.recompute_macs)] * again),
            share_cell(macs_of[row.type] / total) if total else BLANK,
            flops_cell(row.elementwise_flops, bool(row.unknown)),
            size_cell(row.forward_bytes),
            size_cell(row.backward_bytes),
        ]
        for row in estimate.types
    ]
    columns = [
        *text_columns("type"),
        Column("forward"),
        Column("backward"),
        *([Column("computed again")] * again),
        Column("share"),
        Column("elementwise"),
        Column("read, written forward"),
        Column("backward"),
    ]
    return whole_table("FLOPs and bytes by type", columns, rows, list(_notes_on_types(estimate)))


def _notes_on_types(estimate: Estimate) -> Iterator[str]:
    casts = estimate.casts
    if casts.calls:
        yield (
            f"casts: {casts.calls:,}, which read {casts.read_bytes:,} B and write "
            f"{casts.write_bytes:,} B; included"
        )
    if estimate.precision != "fp8":
        return
    products = types_of_products(estimate.ops).items()
    left = [
        layer or "(model)"
        for (layer, kind), name in products
        if kind == "Linear" and "fp8" not in name
    ]
    if left:
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        yield (
            f"Linear, not in fp8: {', '.join(left[:NAMED])}{more}: rows, inputs or outputs are not "
            "a multiple of 16"
        )
    elif all(row.type != "fp8" for row in estimate.types):
        yield "no matrix multiplication in fp8: the model has no nn.Linear"


def _operations(calls: Sequence[LayerCall]) -> Table:
    """Return every layer, operation and direction with all digits."""
    rows = [
        (
            call.layer or "(model)",
            call.kind,
            call.direction,
            call.calls,
            count(call.macs, "it has no formula"),
            count(call.elementwise_flops, "it has no formula"),
            call.output_elements or 0,
            count(call.read_bytes or 0),
            count(call.write_bytes or 0),
        )
        for call in calls
    ]
    words = text_columns("layer", "kind", "direction")
    numbers = ("calls", "MAC", "elementwise FLOP", "output elements", "B read", "B written")
    return whole_table("Operations", [*words, *map(Column, numbers)], rows)


def _batches(batches: Mapping[int, Estimate]) -> Table:
    rows = [
        (
            size,
            flops_cell(estimate.forward.flops, estimate.forward.at_least),
            flops_cell(estimate.backward.flops, estimate.backward.at_least),
            size_cell(estimate.memory.peak.bytes if estimate.memory else None, "not requested"),
        )
        for size, estimate in batches.items()
    ]
    columns = [Column("batch"), Column("forward"), Column("backward"), Column("peak memory")]
    return whole_table("By batch size", columns, rows)


def _memory(memory: Memory) -> Table:
    """Return the sizes, then what was taken for the GPU, then what is not known."""
    peak = memory.peak
    sizes = (
        ("parameters", memory.parameters),
        ("buffers", memory.buffers),
        ("gradients", memory.gradients),
        ("optimizer state", memory.optimizer),
        ("inputs and targets", memory.inputs),
        ("kept for backward", memory.activations),
        ("peak", peak.bytes),
        ("peak, 512-byte blocks", memory.rounded_peak),
        ("cuBLAS workspaces", memory.cublas_workspace),
        ("allocated at the peak", memory.allocated),
        ("reserved by the allocator", memory.reserved),
    )
    where = f"{peak.phase}, {peak.layer or 'outside of layers'} ({peak.op})"
    where = where if peak.op else "no operation, before the step"
    shares = ", ".join(f"{name} {size:,} B" for name, size in peak.by_category.items())
    least, most = (memory.reserved + size for size in CONTEXT)
    major, minor = memory.gpu or CAPABILITY
    unnamed = "" if memory.gpu else ", the default (set `gpu`, for example h100)"
    assumed = [
        f"GPU: compute capability {major}.{minor}{unnamed}",
        *memory.assumed,
        *(f"workspace: {name}'s thread, {size:,} B" for name, size in memory.workspaces.items()),
    ]
    notes = [
        f"peak reached in {where}; made of {shares}",
        f"on the device: {least / GIB:.2f} to {most / GIB:.2f} GiB with the CUDA context, as "
        "nvidia-smi shows it",
        *(f"assumed: {text}" for text in assumed),
        *(f"unknown: {text}" for text in memory.not_known),
    ]
    rows = [(name, size) for name, size in sizes if size or name != "buffers"]
    columns = [*text_columns("what"), Column("bytes")]
    return whole_table("Memory of a step", columns, rows, notes)


def _largest_batch(fit: Fit, limit: int) -> str:
    """Return the largest batch, what it needs and what stays free; why the next does not fit."""
    free = f"{fit.reserve / GIB:.2f} GiB left free for the CUDA context and cuDNN (`reserve`)"
    if fit.batch is None:
        return (
            f"Every batch size fits: a step needs {fit.needed:,} B at any batch size; the device "
            f"has {limit:,} B, {free}."
        )
    following = f"{fit.next_needed:,} B"
    if fit.next_needed + fit.reserve <= limit:
        following += ", and the allocator has no large enough free block (fragmentation)"
    if not fit.batch:
        return f"Not even one sample fits: {following}; the device has {limit:,} B, {free}."
    return (
        f"The largest batch is {fit.batch:,}: it needs {fit.needed:,} B of {limit:,} B, with "
        f"{free} and {fit.margin:,} B more. {fit.batch + 1:,} would need {following}."
    )


def sheet_output(
    model: str,
    sheets: Mapping[int, Sheet],
    findings: Mapping[int, Finding],
    problems: Sequence[str],
) -> LayerSheets:
    """Return for each batch size the sheet, and what explains the hand value."""
    batches = {}
    for size, sheet in sheets.items():
        finding = findings.get(size)
        check = None
        if finding is not None:
            check = Check(finding, explain_check(finding, sheet.layer))
        batches[size] = LayerSheet(sheet.layer, sheet.kind, sheet.sections, check)
    return LayerSheets(model, batches, problems)


def layer_view(output: LayerSheets, *, has_sheet: bool) -> View:
    """Return the worked layer (with ``has_sheet``), and what explains the hand value."""
    several = len(output.batches) > 1
    columns = text_columns("", "formula", "numbers", "result")
    tables, answers = [], []
    for size, sheet in output.batches.items():
        at = f", batch {size:,}" if several else ""
        for section in sheet.sections if has_sheet else ():
            rows = [
                list(map(text_cell, (line.what, line.formula, line.numbers, line.result)))
                for line in section.lines
            ]
            tables.append(whole_table(f"{section.title}{at}", columns, rows))
        if sheet.check is not None:
            answers.append(f"batch {size:,}: {sheet.check.said}" if several else sheet.check.said)
    first = next(iter(output.batches.values()))
    name = f"{first.layer or 'the model'} ({first.kind})" if first.kind else first.layer
    return View(
        name if has_sheet else "",
        tables=tuple(tables),
        notes=tuple(answers),
        least_width=SHEET_WIDTH if has_sheet else 0,
    )


def network_view(output: NetworkSheets) -> View:
    """Return every line of the network with all digits, and the totals."""
    tables = [
        _network(f"{output.model}, batch {batch:,}", sheet)
        for batch, sheet in output.batches.items()
    ]
    notes: dict[str, None] = {}
    for sheet in output.batches.values():
        notes |= dict.fromkeys(sheet.conventions)
    return View("", tables=tuple(tables), notes=tuple(notes), least_width=SHEET_WIDTH)


def _network(title: str, sheet: NetworkSheet) -> Table:
    numbers = {
        "parameters": "parameters",
        "macs": "MAC",
        "flops": "forward FLOP",
        **({"backward_flops": "backward FLOP"} if sheet.backward else {}),
        "elementwise_flops": "elementwise FLOP",
        "parameter_bytes": "parameter B",
        "written_bytes": "written B",
    }
    is_partial = {name: any(_lacks(line, name) for line in sheet.lines) for name in numbers}

    def row(line: NetworkLine, *, is_total: bool = False) -> list[object]:
        cells: list[Cell] = []
        for name in numbers:
            value = getattr(line, name)
            if value is None:
                cells.append(text_cell("not known" if line.called else ""))
            elif is_total and is_partial[name]:
                cells.append(Cell(f"at least {value:,}", value=value))
            else:
                cells.append(count(value))
        output = text_cell(shape_text(line))
        types = [text_cell(line.type)] if sheet.types else []
        return [line.layer, text_cell(line.kind), *types, output, *cells]

    words = ("layer", "kind", *(["type"] if sheet.types else []), "output")
    return whole_table(
        title,
        [*text_columns(*words), *map(Column, numbers.values())],
        [*map(row, sheet.lines), row(sheet.total, is_total=True)],
        list(_notes_on_network(sheet)),
    )


def _lacks(line: NetworkLine, name: str) -> bool:
    return line.called and getattr(line, name) is None


def _notes_on_network(sheet: NetworkSheet) -> Iterator[str]:
    for row in sheet.types:
        yield (
            f"{row.type}: {'at least ' if row.unknown else ''}{2 * row.forward_macs:,} FLOP "
            f"forward, {2 * row.backward_macs:,} backward, {row.elementwise_flops:,} elementwise "
            f"forward; {row.forward_bytes:,} B read and written forward, {row.backward_bytes:,} "
            "backward."
        )
    if sheet.unknown:
        yield f"Unknown: {'; '.join(sheet.unknown)}."
    if sheet.recompute_flops:
        yield (
            "Computed again in backward (activation checkpointing), not in the lines above: "
            f"{sheet.recompute_flops:,} FLOP."
        )
