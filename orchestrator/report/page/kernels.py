"""Kernels for the page: a table by name, every launch with its counters, and switches along a sweep."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from perfctl.orchestrator.analyse.analysis import Analysis
from perfctl.orchestrator.analyse.counters.flops import KernelFlops, makes_flops
from perfctl.orchestrator.analyse.figure import Figure, missing, total_of
from perfctl.orchestrator.analyse.kernels.names import family
from perfctl.orchestrator.analyse.ledger.prepared import PreparedRun
from perfctl.orchestrator.analyse.ledger.sweep import KernelSet, LayerKernels, Switch, algorithm_changes, describe
from perfctl.orchestrator.report.cells import (
    Cell,
    count,
    figure_cell,
    mark,
    nothing,
    share_cell,
    style_of,
    text_cell,
    time_cell,
    why,
)
from perfctl.orchestrator.report.numbers import ratio
from perfctl.orchestrator.report.tables import Column, Grid, Table, first_rows, packed, table, without_empty
from perfctl.records.report import Kernel
from perfctl.records.run import Run

LAUNCHES_SHOWN, COUNTER_COLUMNS, COUNTER_CELLS = 150_000, 60, 1_200_000
"""Limits of one study on the page: launches, counters in the table of launches (a full section set has hundreds), and
launches x counters; beyond the last one the page has only the FLOPs made from them."""


PATHS = ("fp32", "fp64", "fp16", "tensor")
_NONE = missing("not_collected", "no counters for this launch")
NO_FLOPS = KernelFlops(_NONE, _NONE, _NONE, _NONE, _NONE)


def run_label(run: Run) -> str:
    """ "ncu b64" or, without a batch size, "nsys run 3"."""
    return f"{run.profiler} b{run.batch_size}" if run.batch_size is not None else f"{run.profiler} run {run.id}"


def summary(runs: Sequence[PreparedRun], *, paths: bool = True) -> Table | None:
    """One row a run and kernel name, by total time. ``paths`` adds the executed FLOPs of fp32, fp64, fp16 and tensor."""
    rows = [row for run in runs for row in _summary_rows(run, label=len(runs) > 1)]
    if not rows:
        return None
    columns = [
        *([Column("run", style="text")] if len(runs) > 1 else []), Column("kernel", style="code"),
        Column("family", style="text", note="algorithm family, read off the name"), Column("launches"),
        Column("time", base="ns", note="sum over all launches"), Column("share", note="of the kernel time of its run"),
        Column("executed", "FLOP", note="from SASS counters, all launches; 1 multiply-add = 2 FLOPs"),
        *(Column(path, "FLOP", note=f"the {path} part of what was executed") for path in PATHS),
    ]  # fmt: skip
    if not paths:
        columns, rows = columns[: -len(PATHS)], [row[: -len(PATHS)] for row in rows]
    return table("Kernels by name", *without_empty(columns, rows))


def _summary_rows(prepared: PreparedRun, *, label: bool) -> list[list[Cell]]:
    run = prepared.run
    uses: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in run.report.kernels:
        uses[kernel.name].append(kernel)
    shorts = Tally(kernels[0].short_name for kernels in uses.values())
    took = {name: sum(kernel.duration_ns or 0 for kernel in kernels) for name, kernels in uses.items()}
    total = sum(took.values())
    clock = "under ncu, locked clocks: not a time to trust" if run.profiler == "ncu" else None
    rows = []
    for name in sorted(uses, key=lambda name: -took[name]):
        kernels, short = uses[name], uses[name][0].short_name
        timed = any(kernel.duration_ns is not None for kernel in kernels)
        flops = [prepared.flops.get(kernel.launch, NO_FLOPS) for kernel in kernels]
        rows.append([
            *([text_cell(run_label(run))] if label else []),
            name_cell(name, short if shorts[short] == 1 else None),
            text_cell(kind) if (kind := family(name)) else nothing("no pattern fits this name"),
            count(len(kernels)),
            time_cell(took[name] if timed else None, "this report has no durations", clock),
            share_cell(took[name] / total if timed and total else None),
            *(figure_cell(total_of(getattr(found, path) for found in flops), "FLOP") for path in ("total", *PATHS)),
        ])  # fmt: skip
    return rows


def name_cell(name: str, short: str | None = None) -> Cell:
    """A name from a report: shortened in the cell, whole in the title."""
    shown = short or name
    shown = shown if len(shown) <= 90 else f"{shown[:60]} … {shown[-25:]}"
    return Cell(shown, name[:1000] if name != shown else None, value=name)


def launches(runs: Sequence[PreparedRun]) -> Grid | None:
    """Every launch of the runs; None when there is none. ``state`` of a column: style, mark and reason of each value."""
    rows = [(run, kernel) for run in runs for kernel in run.run.report.kernels]
    if not rows:
        return None
    total, rows = len(rows), rows[:LAUNCHES_SHOWN]
    kernel_columns = _kernel_columns(rows)[0 if len(runs) > 1 else 1 :]
    counters, notes = _counter_columns(runs, rows)
    columns = [*(packed(*head, values) for head, values in kernel_columns), *counters]
    if empty := [column["label"] for column in columns if _is_empty(column)]:
        notes.insert(0, f"not in these reports: {', '.join(empty)}")
    kept = tuple(column for column in columns if not _is_empty(column))
    first = first_rows("Every launch", [column for column in kernel_columns if column[0][0] not in empty], len(rows))
    return Grid("launches", "Every launch", len(rows), kept, total - len(rows), tuple(notes), first)


def _kernel_columns(rows: Sequence[tuple[PreparedRun, Kernel]]) -> list[tuple[tuple[str, str, str], list[Any]]]:
    def size(x: int | None, y: int | None, z: int | None) -> str | None:
        """Without trailing sizes of 1."""
        kept = (x, y, z) if z not in (None, 1) else (x, y) if y not in (None, 1) else (x,)
        return None if x is None else "×".join(map(str, kept))

    shared = [
        None if kernel.static_shared_bytes is None and kernel.dynamic_shared_bytes is None
        else (kernel.static_shared_bytes or 0) + (kernel.dynamic_shared_bytes or 0)
        for _, kernel in rows
    ]  # fmt: skip
    labels = {run: run_label(run.run) for run, _ in rows}
    return [
        (("run", "", "text"), [labels[run] for run, _ in rows]),
        (("launch", "", "int"), [kernel.launch for _, kernel in rows]),
        (("kernel", "", "code"), [kernel.name for _, kernel in rows]),
        (("family", "", "text"), [family(kernel.name) for _, kernel in rows]),
        (("layer", "", "code"), [kernel.layer for _, kernel in rows]),
        (("direction", "", "text"), [kernel.direction for _, kernel in rows]),
        (("step", "", "int"), [kernel.step for _, kernel in rows]),
        (("time", "ns", "time"), [kernel.duration_ns for _, kernel in rows]),
        (("start", "ns", "start"), [kernel.start_ns for _, kernel in rows]),
        (("grid", "", "text"), [size(kernel.grid_x, kernel.grid_y, kernel.grid_z) for _, kernel in rows]),
        (("block", "", "text"), [size(kernel.block_x, kernel.block_y, kernel.block_z) for _, kernel in rows]),
        (("registers", "", "int"), [kernel.registers for _, kernel in rows]),
        (("shared", "B", "int"), shared),
        (("stream", "", "int"), [kernel.stream for _, kernel in rows]),
        (("device", "", "int"), [kernel.device_index for _, kernel in rows]),
    ]


def _counter_columns(
    runs: Sequence[PreparedRun], rows: Sequence[tuple[PreparedRun, Kernel]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """FLOPs made from counters, then the counters themselves as far as they fit."""
    if not any(run.run.report.counters for run in runs):
        return [], []
    columns = []
    for path in ("total", *PATHS):
        figures: list[Figure] = [getattr(run.flops.get(kernel.launch, NO_FLOPS), path) for run, kernel in rows]
        if path == "total" or any(figure.value is not None or figure.state == "refused" for figure in figures):
            label = "executed" if path == "total" else path
            columns.append(packed(label, "FLOP", "si", [figure.value for figure in figures]) | _states(figures))
    units = {counter.name: counter.unit or "" for run in runs for counter in run.run.report.counters}
    if len(units) * len(rows) > COUNTER_CELLS:
        return columns, [f"{len(units)} counters of each launch are in the store and not in this page, for its size"]
    empty: dict[str, float | None] = {}
    notes = []
    if len(units) > COUNTER_COLUMNS:
        notes = [f"{len(units) - COUNTER_COLUMNS} more counters are in the table of counters"]
        units = dict(sorted(units.items(), key=lambda item: not makes_flops(item[0]))[:COUNTER_COLUMNS])
    for name, unit in units.items():
        found = [run.values.get(kernel.launch, empty).get(name) for run, kernel in rows]
        columns.append(packed(name, unit, "si", found))
    return columns, notes


def _is_empty(column: dict[str, Any]) -> bool:
    """No value in any row, and none that was refused."""
    return column.get("c", 0) is None and "refused" not in str(column.get("state", ""))


def _states(figures: Sequence[Figure]) -> dict[str, Any]:
    """Style, mark and reason of each value as a packed column; empty where all are counted in full."""
    states = [(style_of(figure), mark(figure), why(figure)) for figure in figures]
    return {"state": packed("", "", "", states)} if any(map(any, states)) else {}


NAMES = 4
"""Kernel names in a cell; the rest is counted."""


def switch_table(found: Analysis) -> Table | None:
    """One row a layer, direction and stretch of batch sizes with the same kernels; None for a single batch size."""
    if found.study.foreign or len(found.study.batches) < 2:
        return None
    columns = [
        Column("layer, direction", style="code"), Column("batch", style="text"),
        Column("algorithm", style="text", note="read off the kernel names; of the main kernel"),
        Column("kernels", style="code"),
        Column("FLOPs a sample", "FLOP", note="counted, at the first of these batch sizes"),
        Column("bytes a sample", "B", note="DRAM, counted, at the first of these batch sizes"),
        Column("changes", style="text", note="against the batch size before"),
    ]  # fmt: skip
    served = sorted(algorithm_changes(found.prepared, found.ledger), key=lambda item: not item.switches)
    rows = [row for item in served for row in _rows(item)]
    return table("Kernels along the sweep, layers whose kernels change first", columns, rows)


def _rows(item: LayerKernels) -> list[list[Cell]]:
    starts = {switch.after.batch: switch for switch in item.switches}
    stretches: list[list[KernelSet]] = []
    for kernels in item.sets:
        if stretches and kernels.batch not in starts:
            stretches[-1].append(kernels)
        else:
            stretches.append([kernels])
    return [_row(item.name, stretch, starts.get(stretch[0].batch)) for stretch in stretches]


def _row(name: str, stretch: Sequence[KernelSet], switch: Switch | None) -> list[Cell]:
    first = stretch[0]
    shown = ", ".join(first.kernels[:NAMES])
    more = f" and {len(first.kernels) - NAMES} more" if len(first.kernels) > NAMES else ""
    return [
        name_cell(name),
        text_cell(", ".join(str(kernels.batch) for kernels in stretch)),
        text_cell(describe(first.algorithm)),
        name_cell(shown + more),
        figure_cell(first.flops_per_sample, "FLOP"),
        figure_cell(first.bytes_per_sample, "B"),
        text_cell(_change(switch)) if switch else nothing("the first batch size with these kernels"),
    ]


def _change(switch: Switch) -> str:
    """ "another algorithm: 0.44 x the FLOPs, 1.80 x the bytes a sample"."""
    what = "another algorithm" if switch.algorithm_changed else "other kernels of the same algorithm"
    factors = [(switch.flops_factor, "FLOPs"), (switch.bytes_factor, "bytes")]
    said = ", ".join(f"{ratio(factor)} × the {of}" for factor, of in factors if factor is not None)
    return f"{what}: {said} a sample" if said else what
