"""Kernels for the page: a table by name, every launch with its counters, and switches along a
sweep; and what only ncu's reports hold: the advice of its rules, instruction mixes, and counters by
source line.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfctl.orchestrator.counts.counters.work import KernelFlops, makes_flops
from perfctl.orchestrator.counts.figure import Figure, missing, total_of
from perfctl.orchestrator.counts.kernels.names import family
from perfctl.orchestrator.counts.kernels.short_names import shorten
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.sweep import (
    KernelSet,
    LayerKernels,
    Switch,
    algorithm_changes,
    describe,
)
from perfctl.orchestrator.report import tables
from perfctl.orchestrator.report.numbers import percent, ratio
from perfctl.orchestrator.report.tables import (
    RUN,
    Cell,
    Column,
    Grid,
    LongColumn,
    Table,
    amount,
    figure_cell,
    listing,
    long_table,
    name_cell,
    nothing,
    packed,
    share_cell,
    table,
    text_cell,
    time_cell,
    word,
)
from perfctl.records.report import WORKED_OUT, Advice, Kernel, SourceLine
from perfctl.records.run import Run

LONGEST = 160
"""Characters of an advice in its cell; the title has more of it."""
_TITLE = 1500
MIX = "sass__inst_executed_per_opcode["
"""Counters of the instruction mix: warp-level instructions by opcode."""
OPCODES = 6
"""Opcodes that a mix names; the rest is one share."""
_DIGITS = re.compile(r"[0-9][0-9.,]*")
LAUNCHES_SHOWN, COUNTER_COLUMNS, COUNTER_CELLS = 150_000, 60, 1_200_000
"""Limits of one study on the page: launches, counters in the table of launches (a full section set
has hundreds), and launches x counters; beyond the last one the page has only the FLOPs made
from them."""


PATHS = ("fp32", "fp64", "fp16", "tensor")
_NONE = missing("not_collected", "no counters for this launch")
NO_FLOPS = KernelFlops(_NONE, _NONE, _NONE, _NONE, _NONE)
NAMES = 4
"""Kernel names in a cell; the rest is counted."""

_LAUNCH = (
    ("run", "", "text"),
    ("launch", "", "int"),
    ("kernel", "", "code"),
    ("family", "", "text"),
    ("layer", "", "code"),
    ("direction", "", "text"),
    ("step", "", "int"),
    ("time", "ns", "time"),
    ("start", "ns", "start"),
    ("grid", "", "text"),
    ("block", "", "text"),
    ("registers", "", "int"),
    ("shared", "B", "int"),
    ("stream", "", "int"),
    ("device", "", "int"),
)


def advice_table(runs: Sequence[Run], names: Mapping[str, str]) -> Table | None:
    """One row a kernel and rule, the largest estimated speed-up first; results that differ in
    figures alone are one. ``names``: short kernel names of the page."""
    columns = [
        RUN,
        Column("rule", style="text"),
        Column("kind", is_optional=True, style="text"),
        Column("kernel", style="code"),
        Column("launches", is_optional=True, note="of this kernel with this result of the rule"),
        Column(
            "est. speed-up",
            note=("estimate of ncu, largest over the launches: share of the time saved"),
        ),
        Column(
            "of",
            is_optional=True,
            style="text",
            note="global: of the launch; local: of one unit of the GPU",
        ),
        Column("advice", style="text", note="of the launch with the largest estimate"),
    ]
    found: list[tuple[Advice, Cell, str, int]] = []
    for run in runs:
        of_launch = {kernel.launch: kernel.name for kernel in run.report.kernels}
        same: dict[tuple[str, str | None, str | None, str], list[Advice]] = defaultdict(list)
        for one in run.report.advice:
            kernel = of_launch.get(one.launch) if one.launch is not None else None
            same[one.rule, one.kind, kernel, _DIGITS.sub("#", one.text or "")].append(one)
        for (_, _, kernel, _), results in same.items():
            best = max(results, key=lambda one: one.estimated_speedup or 0)
            named = (
                name_cell(kernel, names.get(kernel))
                if kernel is not None
                else nothing("the complete report")
            )
            found.append((best, named, run_label(run), len({one.launch for one in results})))
    found.sort(key=lambda item: -(item[0].estimated_speedup or 0))
    rows = [
        [label, one.rule, one.kind, kernel, launches, *_estimate(one), _short(one.text)]
        for one, kernel, label, launches in found
    ]
    return listing("Advice of ncu", columns, rows)


def _estimate(one: Advice) -> tuple[Cell, Cell]:
    none = nothing("ncu has no estimate for this")
    return share_cell(
        one.estimated_speedup, none.title or ""
    ), none if one.estimated_speedup is None else word(one.speedup_scope)


def _short(text: str | None) -> Cell:
    if text is None or len(text) <= LONGEST:
        return word(text)
    return text_cell(f"{text[: LONGEST - 3].rsplit(' ', 1)[0]} ...", text[:_TITLE])


def mix_table(runs: Sequence[Run], names: Mapping[str, str]) -> Table | None:
    """One row a kernel: which instructions its warps executed, over all its launches; the most
    instructions first."""
    columns = [
        RUN,
        Column("kernel", style="code"),
        Column("launches"),
        Column("instructions", "inst", note="executed by warps, all launches"),
        Column("mix", style="text"),
    ]
    rows: list[list[Any]] = []
    for run in runs:
        mixes: dict[int, Tally[str]] = defaultdict(Tally)
        for item in run.report.counters:
            if item.value is not None and item.name.startswith(MIX):
                mixes[item.launch][item.name[len(MIX) : -1]] += int(item.value)
        by_name: dict[str, list[Tally[str]]] = defaultdict(list)
        for kernel in run.report.kernels if mixes else ():
            if kernel.launch in mixes:
                by_name[kernel.name].append(mixes[kernel.launch])
        for name, parts in by_name.items():
            whole = sum(parts, Tally[str]())
            rows.append(
                [
                    run_label(run),
                    name_cell(name, names.get(name)),
                    len(parts),
                    amount(whole.total(), "inst"),
                    _mix(whole),
                ]
            )
    rows.sort(key=lambda row: -row[3].value)
    return listing("Instruction mix, by opcode", columns, rows)


def _mix(whole: Tally[str]) -> Cell:
    total = whole.total()
    if not total:
        return nothing("no instruction was executed")
    first = [f"{opcode} {percent(value / total)}" for opcode, value in whole.most_common(OPCODES)]
    rest = total - sum(value for _, value in whole.most_common(OPCODES))
    every = ", ".join(f"{opcode} {value:,.0f}" for opcode, value in whole.most_common())
    return text_cell(
        ", ".join([*first, f"others {percent(rest / total)}"] if rest else first), every[:_TITLE]
    )


def source_table(lines: Sequence[SourceLine]) -> Table | None:
    """One row a source line of a kernel, or an instruction where the report has no line, as
    ``read.source_lines`` has them."""
    columns = [
        Column("kernel", style="code"),
        Column("line", style="text", note="or bytes from the kernel's first instruction"),
        Column("instructions", is_optional=True, note="machine instructions of the line"),
        Column("opcode", is_optional=True, style="text", note="of the hottest instruction"),
        Column("by warps", "inst", note="executed, all launches"),
        Column("by threads", "inst", is_optional=True, note="executed, all launches"),
        Column("samples", note="of warps at this line"),
        Column("share", note="of the samples of the run"),
        Column("stall", style="text", note="the most frequent reason at the hottest instruction"),
    ]
    total = sum(line.samples or 0 for line in lines)
    names = shorten(line.kernel for line in lines)
    rows = [
        [
            name_cell(line.kernel, names[line.kernel]),
            _place(line),
            line.instructions,
            line.opcode,
            amount(line.inst_executed, "inst"),
            amount(line.thread_inst_executed, "inst"),
            line.samples,
            share_cell(line.samples / total if line.samples is not None and total else None),
            line.stall,
        ]
        for line in lines
    ]
    return listing("Source lines by samples, then by instructions", columns, rows)


def _place(line: SourceLine) -> Cell:
    if line.file is None:
        return text_cell(f"+{line.address:#x}")
    return text_cell(
        f"{line.file.replace(chr(92), '/').rpartition('/')[2]}:{line.line}",
        f"{line.file}:{line.line}",
    )


def run_label(run: Run) -> str:
    """ "ncu b64" or, without a batch size, "nsys run 3"."""
    return (
        f"{run.profiler} b{run.batch_size}"
        if run.batch_size is not None
        else f"{run.profiler} run {run.id}"
    )


def summary(runs: Sequence[PreparedRun], names: Mapping[str, str]) -> Table | None:
    """One row a run and kernel name, by its share of the run's kernel time. ``names``: short names
    of the whole page."""
    columns = [
        RUN,
        Column("kernel", style="code"),
        Column("family", style="text", note="algorithm family, from the kernel name"),
        Column("launches"),
        Column("time", base="ns", note="sum over all launches"),
        Column("share", note="of the kernel time of its run", order="descending"),
        Column(
            "executed",
            "FLOP",
            note="from hardware counters, all launches; 1 multiply-add = 2 FLOPs",
        ),
        *(
            Column(path, "FLOP", note=f"the {path} part of the executed FLOPs", is_optional=True)
            for path in PATHS
        ),
    ]
    rows: list[tuple[float, list[Any]]] = []
    for prepared in runs:
        run = prepared.run
        uses: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in run.report.kernels:
            uses[kernel.name].append(kernel)
        took = {
            name: sum(kernel.duration_ns or 0 for kernel in kernels)
            for name, kernels in uses.items()
        }
        total = sum(took.values())
        clock = (
            "under ncu at locked clocks: not a realistic time" if run.profiler == "ncu" else None
        )
        reasons = (gap.reason for gap in run.report.gaps if gap.quantity == "kernel.duration_ns")
        worked = next(
            (reason.partition("; ")[2] for reason in reasons if WORKED_OUT in reason), None
        )
        for name, kernels in uses.items():
            timed = any(kernel.duration_ns is not None for kernel in kernels)
            time = time_cell(took[name] if timed else None, "this report has no durations", clock)
            flops = [prepared.flops.get(kernel.launch, NO_FLOPS) for kernel in kernels]
            row = [
                run_label(run),
                name_cell(name, names.get(name)),
                family(name) or nothing("no pattern matches this name"),
                len(kernels),
                _marked(time, worked),
                share_cell(took[name] / total if timed and total else None),
                *(
                    figure_cell(total_of(getattr(found, path) for found in flops), "FLOP")
                    for path in ("total", *PATHS)
                ),
            ]
            rows.append((took[name] / (total or 1), row))
    rows.sort(key=lambda item: -item[0])
    return listing("Kernels by name", columns, [row for _, row in rows])


def _marked(cell: tables.Cell, worked: str | None) -> tables.Cell:
    """A time that the tool does not state, in the look of derived figures."""
    if worked is None or cell.value is None:
        return cell
    return replace(cell, text=f"ƒ {cell.text}", title=f"{cell.title}; {worked}", style="der")


def launches(runs: Sequence[PreparedRun], names: Mapping[str, str]) -> Grid | None:
    """Every launch of the runs; None when there is none. ``state`` of a column: style, mark and
    reason of each value."""
    rows = [(run, kernel) for run in runs for kernel in run.run.report.kernels]
    if not rows:
        return None
    total, rows = len(rows), rows[:LAUNCHES_SHOWN]
    counters, notes = _counter_columns(runs, rows)
    columns = _kernel_columns(rows)[0 if len(runs) > 1 else 1 :]
    return long_table("launches", columns, len(rows), total - len(rows), counters, notes, names)


def _kernel_columns(rows: Sequence[tuple[PreparedRun, Kernel]]) -> list[LongColumn]:
    def size(x: int | None, y: int | None, z: int | None) -> str | None:
        kept = (x, y, z) if z not in (None, 1) else (x, y) if y not in (None, 1) else (x,)
        return None if x is None else "×".join(map(str, kept))

    def values(run: PreparedRun, k: Kernel) -> tuple[Any, ...]:
        shared = [
            part for part in (k.static_shared_bytes, k.dynamic_shared_bytes) if part is not None
        ]
        return (
            labels[run],
            k.launch,
            k.name,
            family(k.name),
            k.layer,
            k.direction,
            k.step,
            k.duration_ns,
            k.start_ns,
            size(k.grid_x, k.grid_y, k.grid_z),
            size(k.block_x, k.block_y, k.block_z),
            k.registers,
            sum(shared) if shared else None,
            k.stream,
            k.device_index,
        )

    labels = {run: run_label(run.run) for run, _ in rows}
    return list(
        zip(_LAUNCH, zip(*(values(run, kernel) for run, kernel in rows), strict=True), strict=True)
    )


def _counter_columns(
    runs: Sequence[PreparedRun], rows: Sequence[tuple[PreparedRun, Kernel]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """FLOPs made from counters, then the counters themselves as far as they fit."""
    units = {
        counter.name: counter.unit or "" for run in runs for counter in run.run.report.counters
    }
    if not units:
        return [], []
    columns = []
    for path in ("total", *PATHS):
        figures: list[Figure] = [
            getattr(run.flops.get(kernel.launch, NO_FLOPS), path) for run, kernel in rows
        ]
        if path == "total" or any(
            figure.value is not None or figure.state == "refused" for figure in figures
        ):
            label = "executed" if path == "total" else path
            states = [
                (tables.style_of(figure), tables.mark(figure), tables.why(figure))
                for figure in figures
            ]
            state = (
                {"state": packed("", "", "", states)} if any(map(any, states)) else {}
            )  # none where all are counted in full
            columns.append(
                packed(label, "FLOP", "si", [figure.value for figure in figures]) | state
            )
    if len(units) * len(rows) > COUNTER_CELLS:
        return columns, [
            (
                f"the database has {len(units)} counters per launch; this report omits them "
                "because of their size"
            )
        ]
    notes = []
    if len(units) > COUNTER_COLUMNS:
        notes = [f"the table of counters has {len(units) - COUNTER_COLUMNS} more counters"]
        units = dict(
            sorted(units.items(), key=lambda item: not makes_flops(item[0]))[:COUNTER_COLUMNS]
        )
    empty: dict[str, float | None] = {}
    for name, unit in units.items():
        columns.append(
            packed(name, unit, "si", [run.values.get(k.launch, empty).get(name) for run, k in rows])
        )
    return columns, notes


def switch_table(found: Analysis) -> Table | None:
    """One row a layer, direction and stretch of batch sizes with the same kernels; None for a
    single batch size."""
    if found.study.foreign or len(found.study.batches) < 2:
        return None
    columns = [
        Column("layer, pass", style="code"),
        Column("batch", style="text"),
        Column("algorithm", style="text", note="from the name of the main kernel"),
        Column("kernels", style="code"),
        Column("FLOPs per sample", "FLOP", note="measured at the first of these batch sizes"),
        Column("bytes per sample", "B", note="DRAM, measured at the first of these batch sizes"),
        Column("changes", style="text", note="compared with the previous batch size"),
    ]
    served = sorted(
        algorithm_changes(found.study, found.ledger), key=lambda item: not item.switches
    )
    rows = [row for item in served for row in _rows(item, found.names)]
    return table("Kernels over batch sizes, layers with changes first", columns, rows)


def _rows(item: LayerKernels, names: Mapping[str, str]) -> Iterator[list[Any]]:
    starts = {switch.after.batch: switch for switch in item.switches}
    stretches: list[list[KernelSet]] = []
    for kernels in item.sets:
        if stretches and kernels.batch not in starts:
            stretches[-1].append(kernels)
        else:
            stretches.append([kernels])
    for stretch in stretches:
        first, switch = stretch[0], starts.get(stretch[0].batch)
        more = f" and {len(first.kernels) - NAMES} more" if len(first.kernels) > NAMES else ""
        shown = ", ".join(names.get(name, name) for name in first.kernels[:NAMES])
        yield [
            name_cell(item.name),
            ", ".join(str(kernels.batch) for kernels in stretch),
            text_cell(describe(first.algorithm)),
            name_cell(", ".join(first.kernels), shown + more),
            figure_cell(first.flops_per_sample, "FLOP"),
            figure_cell(first.bytes_per_sample, "B"),
            _change(switch) if switch else nothing("the first batch size with these kernels"),
        ]


def _change(switch: Switch) -> str:
    what = (
        "another algorithm"
        if switch.algorithm_changed
        else "different kernels of the same algorithm"
    )
    factors = [(switch.flops_factor, "FLOPs"), (switch.bytes_factor, "bytes")]
    said = ", ".join(f"{ratio(factor)} × the {of}" for factor, of in factors if factor is not None)
    return f"{what}: {said} per sample" if said else what
