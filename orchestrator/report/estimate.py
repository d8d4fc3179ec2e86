"""An estimate of a step: its views and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from perfctl.orchestrator.estimate.flops.engine import (
    WorkTotals,
    is_fused_kernel_recomputation,
    list_forward_product_types,
)
from perfctl.orchestrator.estimate.memory import CONTEXT, LargestBatch, StepMemorySummary
from perfctl.orchestrator.estimate.parallel import ParallelMemory, RankMemory
from perfctl.orchestrator.estimate.peers import CountDifference, CounterComparison
from perfctl.orchestrator.estimate.sheets.network import (
    NetworkLine,
    NetworkSheet,
    build_network_sheet,
)
from perfctl.orchestrator.estimate.step import Estimate, describe_expert_count
from perfctl.orchestrator.report.numbers import NO_BREAK, format_si
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount_cell,
    build_complete_table,
    build_table,
    count_cell,
    missing_cell,
    number_cell,
    share_cell,
    size_cell,
    text_cell,
    text_column,
    text_columns,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.paper import CAPABILITY, LayerCall
from perfctl.records.report import join_first_names

MIB, GIB = 1 << 20, 1 << 30
LAYERS_NAMED_MAX = 8
"""Layers that a note lists."""
SHEET_WIDTH = 150
"""Characters per line of a sheet, whose numbers have all their digits."""
NO_FORMULA = "it has no formula"
BLANK = text_cell("")
RANK_ROWS: dict[str, Callable[[RankMemory], int | None]] = {
    "parameters": lambda rank: rank.parameters,
    "gathered by FSDP, two blocks": lambda rank: rank.gathered,
    "gradients": lambda rank: rank.gradients,
    "optimizer state": lambda rank: rank.optimizer,
    "buffers": lambda rank: rank.buffers,
    "loss: float32 logits, gradient": lambda rank: rank.logits,
    "activations": lambda rank: rank.activations,
    "activations, full recomputation": lambda rank: rank.recomputed_activations,
    "total": lambda rank: rank.total,
    "total, full recomputation": lambda rank: (
        None if rank.recomputed_activations is None else rank.recomputed_total
    ),
}
PASSES = {"grad_input": "input gradient", "grad_weight": "weight gradient"}


@dataclass(frozen=True, slots=True)
class EstimateOutput:
    """Estimated figures of one step. Memory in bytes."""

    model: str
    """As it was named."""
    mode: str
    batches: Mapping[int, Estimate]
    """Batch size -> its figures."""
    largest_batch: LargestBatch | None
    """null: no memory was stated."""
    notes: Sequence[str]
    parallel: ParallelMemory | None = None
    """null: no plan was stated, and one GPU has room."""


def build_estimated_step_view(
    output: EstimateOutput,
    *,
    includes_operations_table: bool,
    memory_limit_bytes: int | None = None,
) -> View:
    """Return the layers and the totals of the first batch size, then the other tables.
    ``memory_limit_bytes``: bytes of memory that the largest batch may take."""
    batch, first = next(iter(output.batches.items()))
    tables = [
        _build_layers_table(first),
        _build_operations_table(first.calls) if includes_operations_table else None,
        _build_data_types_table(first),
        _build_memory_table(first.memory) if first.memory is not None else None,
        _build_batches_table(output.batches) if len(output.batches) > 1 else None,
        _build_rank_memory_table(output.parallel)
        if output.parallel and output.parallel.ranks
        else None,
    ]
    notes = [*_describe_step_totals(first)]
    if output.largest_batch is not None and memory_limit_bytes is not None:
        notes.append(_describe_largest_batch(output.largest_batch, memory_limit_bytes))
    if output.parallel is not None:
        notes += _describe_parallel_plans(output.parallel)
    notes += output.notes
    if first.experts:
        notes.append(describe_expert_count(first.experts))
    mode = "training" if output.mode == "train" else "inference"
    return View(
        f"{output.model}, {mode}, batch {batch:,}, {first.precision}",
        tables=tuple(filter(None, tables)),
        notes=tuple(notes),
        least_width=SHEET_WIDTH if includes_operations_table else 0,
    )


def build_counter_comparison_view(output: CounterComparison) -> View:
    """Return the totals of each counter with the reasons, and the layers that differ."""
    rows = [("estimate", _build_unit_cell(sum(output.macs.values()), "MAC"), BLANK, "", "")]
    for peer in output.counts:
        if peer.total is None:
            rows.append((peer.counter, BLANK, BLANK, peer.problem or "", ""))
            continue
        for number, difference_ in enumerate(peer.differences or (CountDifference("same", 0, ()),)):
            layers = (
                f"{len(difference_.layers)}: {difference_.layers[0]}" if difference_.layers else ""
            )
            first = (
                (peer.counter, _build_unit_cell(peer.total, peer.unit))
                if not number
                else ("", BLANK)
            )
            difference = (
                _build_unit_cell(difference_.amount, peer.unit) if difference_.amount else BLANK
            )
            rows.append((*first, difference, difference_.reason, layers))
    columns = text_columns("counter", "forward", "difference", "reason", "layers")
    counters = [peer for peer in output.counts if peer.layers is not None]
    layer_rows = []
    for layer in dict.fromkeys(
        [*output.macs, *chain.from_iterable(peer.layers or () for peer in counters)]
    ):
        macs = output.macs.get(layer, 0)
        values = [(peer.layers or {}).get(layer, 0) for peer in counters]
        scales = [2 if peer.unit == "FLOP" else 1 for peer in counters]
        if any(value != macs * scale for value, scale in zip(values, scales, strict=True)):
            cells = (
                _build_unit_cell(count, peer.unit)
                for count, peer in zip(values, counters, strict=True)
            )
            layer_rows.append((layer or "(model)", _build_unit_cell(macs, "MAC"), *cells))
    names = text_columns("layer", "estimate", *(peer.counter for peer in counters))
    tables = (
        build_table("", columns, rows, max_rows=len(rows), keep_empty_columns=True),
        build_table("Layers that differ", names, layer_rows),
    )
    return View(
        f"{output.model}, forward, batch {output.batch:,}",
        tables=tuple(filter(None, tables)),
        notes=("1 multiply-add (MAC) = 2 FLOPs. Each counter keeps its own unit.",),
        rows_on_terminal=2 * LAYERS_NAMED_MAX,
    )


def _build_unit_cell(value: float, unit: str) -> Cell:
    """Return "4.09 GMAC"."""
    text = format_si(value)
    space = "" if text[-1:].isalpha() else NO_BREAK
    return number_cell(f"{text}{space}{unit}" if value else "0", f"{value:,.0f} {unit}", value)


def name_absence(sheet: NetworkSheet, problems: Sequence[str] | str | None) -> str:
    """Return why layers of a sheet have no output. ``problems``: where its trace stopped early."""
    is_forward = bool(problems) and not sheet.backward
    return "forward stopped before it" if is_forward else "not called"


def format_output_shape(line: NetworkLine, not_called: str) -> str:
    """Return "64x32x26x26", "" for a function."""
    return "x".join(map(str, line.output or ())) if line.called else not_called


def build_flops_cell(
    value: int | None, *, is_lower_bound: bool = False, is_upper_bound: bool = False
) -> Cell:
    """Return FLOPs in the unit that suits them, marked if they are a bound."""
    if value is None:
        return Cell("no formula", NO_FORMULA, "no")
    if is_lower_bound and not value:
        return missing_cell("a part without a formula, or that perfctl did not reach")
    cell = amount_cell(value, "FLOP")
    mark = "≥ " if is_lower_bound else "≤ " if is_upper_bound else ""
    return replace(cell, text=mark + cell.text, is_lower_bound=is_lower_bound)


def build_lower_bound_cell(value: int) -> Cell:
    return Cell(f"≥ {value:,}", value=value)


def _build_layers_table(estimate: Estimate) -> Table:
    """Return a row for each layer, and for each function with multiply-adds in one."""
    sheet = build_network_sheet(estimate.modules, estimate.calls)
    not_called = name_absence(sheet, estimate.problem)
    passes = [*PASSES] if sheet.backward else []
    passes += ["recompute"] * bool(estimate.recompute.macs)
    works: Counter[tuple[str, str, str]] = Counter()
    bounds: set[tuple[str, str, str]] = set()
    for call in estimate.calls:
        if not is_fused_kernel_recomputation(call):
            keys = (
                (call.layer or "(model)", call.kind, call.direction),
                ("total", "", call.direction),
            )
            works.update(dict.fromkeys(keys, call.flops or 0))
            bounds.update(keys if call.upper_bound_reason else ())

    def build_parameters_cell(line: NetworkLine) -> object:
        if line is sheet.total and estimate.uninitialized:
            return build_lower_bound_cell(line.parameters)
        return line.parameters if line.output or line is sheet.total else BLANK

    def build_pass_cells(line: NetworkLine) -> Iterator[Cell]:
        is_partial = line is sheet.total and estimate.forward.is_lower_bound
        is_bound = (line.layer, line.kind, "forward") in bounds
        yield build_flops_cell(line.flops, is_lower_bound=is_partial, is_upper_bound=is_bound)
        for name in passes:
            is_first = name == "grad_input" and line.flops and line.backward_flops
            key = line.layer, line.kind, name
            flops = works.get(key)
            is_needed = flops is not None or not is_first
            cell = build_flops_cell(flops or 0, is_upper_bound=key in bounds)
            yield cell if is_needed else text_cell("not needed")

    names = ["forward", *(PASSES.get(name, "computed again") for name in passes)]
    lines = [line for line in sheet.lines if line.output or line.flops != 0 or line.backward_flops]
    rows = [
        [
            line.layer,
            text_cell(line.kind),
            text_cell(format_output_shape(line, not_called)),
            build_parameters_cell(line),
            *(build_pass_cells(line) if line.called else [BLANK] * len(names)),
        ]
        for line in (*lines, sheet.total)
    ]
    columns = [
        text_column("layer"),
        text_column("kind", is_optional=True),
        text_column("output"),
        *map(Column, ("parameters", *names)),
    ]
    title = "FLOPs of multiply-adds (1 multiply-add, MAC, is 2 FLOPs)"
    return build_complete_table(title, columns, rows)


def _format_total_flops(total: WorkTotals) -> str:
    if total.is_lower_bound and not total.flops:
        return "unknown"
    return f"{'at least ' if total.is_lower_bound else ''}{format_si(total.flops, 'FLOP')}"


def append_active_parameters(parameters: str, active_count: int | None) -> str:
    """Return the parameters, and how many of them a token uses if these are fewer."""
    if active_count is None:
        return parameters
    return f"{parameters}; active per token: {active_count:,} (a token uses only some experts)"


def _describe_step_totals(estimate: Estimate) -> Iterator[str]:
    """Yield the sums in sentences, and which operations have no formula."""
    forward, backward, recompute = estimate.forward, estimate.backward, estimate.recompute
    is_bound = (
        any(call.upper_bound_reason for call in estimate.calls) and not forward.is_lower_bound
    )
    most = "at most " if is_bound else ""
    totals = {"Forward": forward}
    if backward.macs or backward.is_lower_bound:
        totals["backward"] = backward
    flops = ", ".join(
        f"{name} {most}{_format_total_flops(total)}" for name, total in totals.items()
    )
    macs = " and ".join(f"{total.macs:,}" for total in totals.values())
    is_known = all(total.macs or not total.is_lower_bound for total in totals.values())
    yield f"{flops} ({macs} MAC)." if is_known else f"{flops}."
    if recompute.macs or recompute.is_lower_bound:
        yield (
            f"Computed again in backward: {_format_total_flops(recompute)} ({recompute.macs:,} "
            "MAC)."
        )
    if estimate.integer_macs:
        yield f"Integer GEMMs: {estimate.integer_macs:,} multiply-adds, which are no FLOPs."
    if estimate.fused.macs:
        yield (
            "Fused attention kernels compute Q K^T again in backward: "
            f"{estimate.fused.macs:,} MAC, not included above."
        )
    elementwise = format_si(forward.elementwise_flops, "FLOP")
    yield f"Elementwise operations (forward): {elementwise}, not included above."
    weights = sum(module.parameter_bytes for module in estimate.modules)
    frozen = estimate.parameters - estimate.trainable
    least = "at least " if estimate.uninitialized else ""
    parameters = f"Parameters {least}{estimate.parameters:,} ({weights / MIB:,.2f} MiB)"
    parameters += f", of them {frozen:,} not trainable" if frozen else ""
    hint = " Peak memory of a step: add `memory`." if estimate.memory is None else ""
    yield f"{append_active_parameters(parameters, estimate.active_parameters)}.{hint}"
    if estimate.uninitialized:
        names = ", ".join(estimate.uninitialized)
        yield f"Not included: uninitialized parameters of lazy layers that did not run: {names}."
    if estimate.data_dependent:
        names = ", ".join(estimate.data_dependent)
        yield f"The sizes depend on the data after {names}: other inputs give other FLOPs."
    for call in estimate.calls:
        if call.macs is None:
            yield f"Not included: {call.formula}, in {call.layer or 'the model'}, {call.direction}."
    bounds = dict.fromkeys((call.upper_bound_reason, call.layer) for call in estimate.calls)
    for reason in dict.fromkeys(reason for reason, _ in bounds if reason):
        layers = (layer or "the model" for text, layer in bounds if text == reason)
        names = join_first_names(layers, LAYERS_NAMED_MAX)
        yield f"FLOPs of attention in {names} are an upper bound: {reason}."
    unknown = {call.kind for call in estimate.calls if call.macs is None and "." in call.kind}
    unknown -= {
        op.op for op in estimate.ops if "missed" in op.attributes and "autograd." not in op.op
    }
    for name in sorted(unknown):
        line = f'perfctl.register_flops("{name.replace(".", "::", 1)}", function)'
        yield f"To include {name}, add {line} to a file and set `formulas` to it."


def _build_data_types_table(estimate: Estimate) -> Table | None:
    """Return FLOPs and bytes by type, and the casts; None if every GEMM takes fp32 anyway."""
    multiplied = {row.type for row in estimate.types if row.forward_macs or row.backward_macs}
    if estimate.precision == "fp32" and multiplied <= {"fp32"}:
        return None
    macs = [row.forward_macs + row.backward_macs + row.recompute_macs for row in estimate.types]
    total, has_recompute = sum(macs), any(row.recompute_macs for row in estimate.types)
    rows = []
    for row, row_macs in zip(estimate.types, macs, strict=True):
        is_partial = bool(row.missing)
        rows.append(
            [
                row.type,
                build_flops_cell(2 * row.forward_macs, is_lower_bound=is_partial),
                build_flops_cell(2 * row.backward_macs, is_lower_bound=is_partial),
                *([build_flops_cell(2 * row.recompute_macs)] * has_recompute),
                share_cell(row_macs / total) if total else BLANK,
                build_flops_cell(row.elementwise_flops, is_lower_bound=is_partial),
                size_cell(row.forward_bytes),
                size_cell(row.backward_bytes),
            ]
        )
    names = ("forward", "backward", *(["computed again"] * has_recompute), "share", "elementwise")
    columns = [*text_columns("type"), *map(Column, (*names, "read, written forward", "backward"))]
    return build_complete_table(
        "FLOPs and bytes by type", columns, rows, list(_list_notes_on_data_types(estimate))
    )


def _list_notes_on_data_types(estimate: Estimate) -> Iterator[str]:
    casts = estimate.casts
    if casts.calls:
        yield (
            f"casts: {casts.calls:,}, which read {casts.read_bytes:,} B and write "
            f"{casts.write_bytes:,} B; included"
        )
    if estimate.precision != "fp8":
        return
    layers = [
        layer or "(model)"
        for (layer, kind), name in list_forward_product_types(estimate.ops).items()
        if kind == "Linear" and "fp8" not in name
    ]
    if layers:
        names = join_first_names(layers, LAYERS_NAMED_MAX)
        yield f"Linear, not in fp8: {names}: rows, inputs or outputs are not a multiple of 16"
    elif all(row.type != "fp8" for row in estimate.types):
        yield "no matrix multiplication in fp8: the model has no nn.Linear"


def _build_operations_table(calls: Sequence[LayerCall]) -> Table:
    """Return every layer, operation and direction with all digits."""
    rows = [
        (
            call.layer or "(model)",
            call.kind,
            call.direction,
            call.calls,
            count_cell(call.macs, NO_FORMULA),
            count_cell(call.elementwise_flops, NO_FORMULA),
            call.output_elements or 0,
            count_cell(call.read_bytes or 0),
            count_cell(call.write_bytes or 0),
        )
        for call in calls
    ]
    heads = text_columns("layer", "kind", "direction")
    numbers = ("calls", "MAC", "elementwise FLOP", "output elements", "B read", "B written")
    return build_complete_table("Operations", [*heads, *map(Column, numbers)], rows)


def _build_batches_table(batches: Mapping[int, Estimate]) -> Table:
    rows = [
        (
            size,
            *(
                build_flops_cell(total.flops, is_lower_bound=total.is_lower_bound)
                for total in (estimate.forward, estimate.backward)
            ),
            size_cell(estimate.memory.peak.bytes if estimate.memory else None, "not requested"),
        )
        for size, estimate in batches.items()
    ]
    columns = list(map(Column, ("batch", "forward", "backward", "peak memory")))
    return build_complete_table("By batch size", columns, rows)


def _build_memory_table(memory: StepMemorySummary) -> Table:
    """Return the sizes, then the assumptions about the GPU, then what the sizes exclude."""
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
    operation = "no operation, before the step"
    if peak.op:
        operation = f"{peak.phase}, {peak.layer or 'outside of layers'} ({peak.op})"
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
        f"peak reached in {operation}; made of {shares}",
        f"on the device: {least / GIB:.2f} to {most / GIB:.2f} GiB with the CUDA context, as "
        "nvidia-smi shows it",
        *(f"assumed: {text}" for text in assumed),
        *(f"unknown: {text}" for text in memory.missing),
    ]
    rows = [(name, size) for name, size in sizes if size or name != "buffers"]
    columns = [*text_columns("memory"), Column("bytes")]
    return build_complete_table("Memory of a step", columns, rows, notes)


def build_rank_memory_view(output: EstimateOutput) -> View:
    """Return the memory of each rank, whether it fits, and why there is no time."""
    parallel = output.parallel
    assert parallel is not None
    batch = next(iter(output.batches))
    return View(
        f"{output.model}, training, micro-batch {batch:,}, {parallel.plan}",
        tables=(_build_rank_memory_table(parallel),),
        notes=(*_describe_parallel_plans(parallel)[:-1], *output.notes),
    )


def _build_rank_memory_table(parallel: ParallelMemory) -> Table:
    """Return a column for each kind of rank."""
    rows = [
        (name, *(size_cell(read(rank), "not known") for rank in parallel.ranks))
        for name, read in RANK_ROWS.items()
        if any(read(rank) != 0 for rank in parallel.ranks)
    ]
    notes = [
        "not included: other temporary tensors, workspaces, buffers of "
        "communication, fragmentation",
        "activations: those that PyTorch keeps in the traced step; fused kernels keep less",
        "full recomputation: the input of each block and all of one block",
    ]
    if parallel.ranks[0].gathered is None:
        notes.append("gathered, recomputation: not known; perfctl found no single stack of blocks")
    if any(rank.logits for rank in parallel.ranks):
        notes.append("assumed: the loss is the cross-entropy of float32 logits")
    if len(parallel.ranks) > 1:
        notes.append("pipeline: 1F1B with at least as many micro-batches as stages")
    columns = [*text_columns("memory"), *(Column(rank.ranks) for rank in parallel.ranks)]
    return build_complete_table(f"Memory of a rank, {parallel.plan}", columns, rows, notes)


def _describe_parallel_plans(parallel: ParallelMemory) -> list[str]:
    """Return whether the plan fits, and the simplest that may fit."""
    lines = []
    if parallel.ranks and parallel.room is not None:
        most = max(rank.total for rank in parallel.ranks)
        least = max(rank.recomputed_total for rank in parallel.ranks)
        fits = "may fit" if most <= parallel.room else "may fit with full recomputation"
        fits = fits if least <= parallel.room else "does not fit"
        lines.append(f"{parallel.plan} {fits}.")
    if parallel.suggestions:
        lines.append(
            f"Simplest plans that may fit (`parallel`): {'; '.join(parallel.suggestions)}."
        )
    elif parallel.suggestions is not None:
        lines.append("Neither FSDP nor tensor nor pipeline parallelism alone fits this batch size.")
    if parallel.ranks:
        lines.append("Time across GPUs is not estimated.")
    return lines


def _describe_largest_batch(fit: LargestBatch, memory_limit_bytes: int) -> str:
    """Return the largest batch, what it needs and what stays free; why the next does not fit."""
    free = f"{fit.reserve / GIB:.2f} GiB left free for the CUDA context and cuDNN (`reserve`)"
    if fit.batch is None:
        return (
            f"Every batch size fits: a step needs {fit.needed:,} B at any batch size; the device "
            f"has {memory_limit_bytes:,} B, {free}."
        )
    following = f"{fit.next_needed:,} B"
    if fit.next_needed + fit.reserve <= memory_limit_bytes:
        following += ", and the allocator has no large enough free block (fragmentation)"
    if not fit.batch:
        return (
            f"Not even one sample fits: {following}; the device has {memory_limit_bytes:,} "
            f"B, {free}."
        )
    return (
        f"The largest batch is {fit.batch:,}: it needs {fit.needed:,} B of "
        f"{memory_limit_bytes:,} B, with "
        f"{free} and {fit.margin:,} B more. {fit.batch + 1:,} would need {following}."
    )
