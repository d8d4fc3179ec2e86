"""Kernels for the page: a table by name, every launch with its counters, and switches along a
sweep; and what only ncu's reports hold: the advice of its rules, instruction mixes, and counters by
source line.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from perfctl.orchestrator.counts.counters.work import KernelFlops, is_flop_counter
from perfctl.orchestrator.counts.figure import make_missing_figure, sum_figures
from perfctl.orchestrator.counts.kernels.names import recognise_family
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_names_uniquely
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.sweep import (
    KernelSwitch,
    LayerKernelSet,
    LayerKernelSweep,
    describe_algorithm,
    list_layer_kernels_along_sweep,
)
from perfctl.orchestrator.report.ledger.page import LOCKED_CLOCKS
from perfctl.orchestrator.report.numbers import format_percent, format_ratio
from perfctl.orchestrator.report.page.records import split_at_first_sentence_or_clause
from perfctl.orchestrator.report.page.timeline import find_time_origin, format_sides
from perfctl.orchestrator.report.tables import (
    RUN,
    Cell,
    Column,
    JsonObject,
    PackedTable,
    ShortNames,
    Table,
    amount_cell,
    build_table,
    build_table_hiding_empty_columns,
    choose_figure_style,
    encode_column_in_smallest_form,
    explain_figure_state,
    figure_cell,
    format_state_sign,
    missing_cell,
    name_cell,
    name_column,
    optional_text_cell,
    pack_long_table,
    run_label,
    share_cell,
    text_cell,
    text_column,
    time_cell,
    time_column,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Advice, Kernel, SourceLine, join_first_names
from perfctl.records.run import Run

LONGEST = 160
"""Characters of an advice that are not folded."""
_TITLE = 1500
MIX = "sass__inst_executed_per_opcode["
"""Counters of the instruction mix: warp-level instructions by opcode."""
OPCODES = 6
"""Opcodes that a mix names; the rest is one share."""
_DIGITS = re.compile(r"[0-9][0-9.,]*")
LAUNCHES_SHOWN = 150_000
"""Launches of one run group in the HTML report."""
COUNTER_COLUMNS = 60
"""Counters in the table of launches, at most; of more (a complete section set has thousands), only
those that FLOPs are made from and that counted something."""
COUNTER_CELLS = 1_200_000
"""Launches x counters; beyond it the report has only the FLOPs made from them."""
PATHS = ("fp32", "fp64", "fp16", "tensor")
_NONE = make_missing_figure("not_collected", "no counters for this launch")
NO_FLOPS = KernelFlops(_NONE, _NONE, _NONE, _NONE, _NONE)
NAMES = 4
"""Kernel names in a cell; the rest is counted."""


def merge_ncu_advice_by_rule_and_kernel(
    run: Run,
) -> Iterator[tuple[float, str | None, Advice, int]]:
    """Yield (ns that it saves by its estimates, kernel, the result with the largest estimate,
    launches) of each rule and kernel: results that differ in figures only are one."""
    kernels: dict[int | None, Kernel] = {kernel.launch: kernel for kernel in run.report.kernels}
    groups: dict[tuple[str | None, ...], list[Advice]] = defaultdict(list)
    for advice in run.report.advice:
        kernel = kernels.get(advice.launch)
        name = kernel.name if kernel is not None else None
        groups[name, advice.rule, advice.kind, _DIGITS.sub("#", advice.text or "")].append(advice)
    for (name, *_), results in groups.items():
        saved_ns = sum(
            (advice.estimated_speedup or 0) * (kernels[advice.launch].duration_ns or 0)
            for advice in results
            if advice.launch in kernels
        )
        best = max(results, key=lambda advice: advice.estimated_speedup or 0)
        # an estimate for one unit of the GPU is no saving of the launch
        saved_ns = 0 if best.speedup_scope == "local" else saved_ns
        yield saved_ns, name, best, len({advice.launch for advice in results})


def build_ncu_advice_table(runs: Sequence[Run], names: ShortNames) -> Table | None:
    """One row a kernel and rule, the one that saves the most time first; results that differ in
    figures only are one. ``names``: short kernel names of the report."""
    names_of_all = {kernel.name for run in runs for kernel in run.report.kernels}
    kernel_column = [name_column("kernel")] if len(names_of_all) > 1 else []
    columns = [
        RUN,
        text_column("rule"),
        text_column("kind", is_optional=True),
        *kernel_column,
        Column("launches", is_optional=True, note="of this kernel with this result of the rule"),
        time_column("saves up to", "estimate x time, summed over these launches"),
        Column(
            "est. speedup",
            note="estimate of ncu, largest over the launches: share of what 'of' names",
            is_optional=True,
        ),
        text_column("of", "global: of the launch; local: of one unit of the GPU", is_optional=True),
        text_column("advice", "of the launch with the largest estimate"),
    ]
    none = missing_cell("ncu has no estimate for this")
    rows = []
    for run in runs:
        for saved_ns, name, best, launches in merge_ncu_advice_by_rule_and_kernel(run):
            estimate = best.estimated_speedup
            visible, folded = split_at_first_sentence_or_clause(best.text or "", LONGEST)
            kernel_cell = (
                name_cell(name, names.get(name)) if name else missing_cell("the complete report")
            )
            row = [
                run,
                best.rule,
                best.kind,
                *(kernel_cell for _ in kernel_column),
                launches,
                time_cell(
                    saved_ns or None, "no estimate for complete launches, or no time of them"
                ),
                none if estimate is None else share_cell(estimate),
                none if estimate is None else best.speedup_scope,
                replace(optional_text_cell(visible), folded=folded),
            ]
            rows.append((saved_ns, estimate or 0, row))
    rows.sort(key=lambda item: item[:2], reverse=True)
    return build_table_hiding_empty_columns("Advice of ncu", columns, [row for *_, row in rows])


def build_instruction_mix_table(runs: Sequence[Run], names: ShortNames) -> Table | None:
    """One row a kernel: which instructions its warps executed, over all its launches; the most
    instructions first."""
    columns = [
        RUN,
        name_column("kernel"),
        Column("launches"),
        Column("instructions", "inst", note="executed by warps, all launches"),
        text_column("mix"),
    ]
    rows: list[list[Any]] = []
    for run in runs:
        mixes: dict[int, Tally[str]] = defaultdict(Tally)
        for item in run.report.counters:
            if item.value is not None and item.name.startswith(MIX):
                mixes[item.launch][item.name[len(MIX) : -1]] += int(item.value)
        counted = (kernel for kernel in run.report.kernels if kernel.launch in mixes)
        for name, kernels in group_by(counted, lambda kernel: kernel.name).items():
            mix = sum((mixes[kernel.launch] for kernel in kernels), Tally[str]())
            short = name_cell(name, names.get(name))
            total, often = mix.total(), mix.most_common()
            cell = missing_cell("no instruction was executed")
            if total:
                shares = [f"{name} {format_percent(n / total)}" for name, n in often[:OPCODES]]
                if other_count := sum(value for _, value in often[OPCODES:]):
                    shares.append(f"others {format_percent(other_count / total)}")
                counts = ", ".join(f"{opcode} {value:,.0f}" for opcode, value in often)
                cell = text_cell(", ".join(shares), counts[:_TITLE])
            rows.append([run, short, len(kernels), amount_cell(total, "inst"), cell])
    rows.sort(key=lambda row: -row[3].value)
    return build_table_hiding_empty_columns("Instruction mix, by opcode", columns, rows)


def build_source_line_table(lines: Sequence[SourceLine]) -> Table | None:
    """One row a source line of a kernel, or an instruction where the report has no line, as
    ``read.read_source_lines`` returns them."""
    columns = [
        name_column("kernel"),
        text_column("line", "or bytes from the kernel's first instruction"),
        Column("instructions", is_optional=True, note="machine instructions of the line"),
        text_column("opcode", "of the hottest instruction", is_optional=True),
        Column("by warps", "inst", note="executed, all launches"),
        Column("by threads", "inst", is_optional=True, note="executed, all launches"),
        Column("samples", note="of warps at this line"),
        Column("share", note="of the samples of the run"),
        text_column("stall", "the most frequent reason at the hottest instruction"),
    ]
    total = sum(line.samples or 0 for line in lines)
    names = shorten_kernel_names_uniquely(line.kernel for line in lines)
    rows = [
        [
            name_cell(line.kernel, names[line.kernel]),
            _location_cell(line),
            line.instructions,
            line.opcode,
            amount_cell(line.inst_executed, "inst"),
            amount_cell(line.thread_inst_executed, "inst"),
            line.samples,
            share_cell(line.samples / total if line.samples is not None and total else None),
            line.stall,
        ]
        for line in lines
    ]
    return build_table_hiding_empty_columns(
        "Source lines by samples, then by instructions", columns, rows
    )


def _location_cell(line: SourceLine) -> Cell:
    if line.file is None:
        return text_cell(f"+{line.address:#x}")
    return text_cell(
        f"{line.file.replace(chr(92), '/').rpartition('/')[2]}:{line.line}",
        f"{line.file}:{line.line}",
    )


def build_kernel_summary(runs: Sequence[PreparedRun], names: ShortNames) -> Table | None:
    """One row a run and kernel name, by its share of the run's kernel time. ``names``: short names
    of the whole page."""
    columns = [
        RUN,
        name_column("kernel"),
        Column("layer", style="code", note="of its launches", is_optional=True),
        text_column("family", "algorithm family, from the kernel name"),
        Column("launches"),
        time_column("time", "sum over all launches"),
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
    rows = []
    for prepared in runs:
        run = prepared.run
        by_name = group_by(run.report.kernels, lambda kernel: kernel.name)
        times = {name: sum(k.duration_ns or 0 for k in same) for name, same in by_name.items()}
        total = sum(times.values())
        clock = LOCKED_CLOCKS if run.profiler == "ncu" else None
        for name, kernels in by_name.items():
            is_timed = any(kernel.duration_ns is not None for kernel in kernels)
            time = time_cell(times[name] if is_timed else None, "no durations", clock)
            if run.time_derivation and is_timed:  # in the look of derived figures
                time = replace(
                    time,
                    text=f"ƒ {time.text}",
                    title=f"{time.title}; {run.time_derivation}",
                    style="der",
                )
            layers = dict.fromkeys(kernel.layer for kernel in kernels if kernel.layer)
            flops = [prepared.flops_by_launch.get(kernel.launch, NO_FLOPS) for kernel in kernels]
            row = [
                run,
                name_cell(name, names.get(name)),
                name_cell(", ".join(layers), join_first_names(layers, 1))
                if layers
                else missing_cell("of no layer"),
                recognise_family(name) or missing_cell("no pattern matches this name"),
                len(kernels),
                time,
                share_cell(times[name] / total if is_timed and total else None),
                *(
                    figure_cell(sum_figures(getattr(figures, path) for figures in flops), "FLOP")
                    for path in ("total", *PATHS)
                ),
            ]
            rows.append((times[name] / (total or 1), row))
    rows.sort(key=lambda item: -item[0])
    return build_table_hiding_empty_columns("Kernels by name", columns, [row for _, row in rows])


def pack_launches_table(runs: Sequence[PreparedRun], names: ShortNames) -> PackedTable | None:
    """Every launch of the runs, its start from the time origin of its run; None when there is none.
    ``state`` of a column: style, mark and reason of each value."""
    rows = [(run, kernel) for run in runs for kernel in run.run.report.kernels]
    if not rows:
        return None
    total, rows = len(rows), rows[:LAUNCHES_SHOWN]
    counters, notes = _pack_counter_columns(runs, rows)
    origins = {run.run.id: find_time_origin(run.run) for run in runs}
    launches = [
        kernel
        if kernel.start_ns is None
        else kernel._replace(start_ns=kernel.start_ns - origins[run.run.id])
        for run, kernel in rows
    ]
    columns = [(head, list(map(read, launches))) for head, read in LAUNCH_COLUMNS]
    if len(runs) > 1:
        columns.insert(0, (("run", "", "text"), [run_label(run.run) for run, _ in rows]))
    return pack_long_table(
        "launches", columns, len(rows), total - len(rows), counters, notes, short_kernel_names=names
    )


def _sum_shared_bytes(kernel: Kernel) -> int | None:
    parts = (kernel.static_shared_bytes, kernel.dynamic_shared_bytes)
    return None if parts == (None, None) else sum(part or 0 for part in parts)


LAUNCH_COLUMNS: tuple[tuple[tuple[str, str, str], Callable[[Kernel], Any]], ...] = (
    (("launch", "", "int"), attrgetter("launch")),
    (("kernel", "", "code"), attrgetter("name")),
    (("family", "", "text"), lambda kernel: recognise_family(kernel.name)),
    (("layer", "", "code"), attrgetter("layer")),
    (("direction", "", "text"), attrgetter("direction")),
    (("step", "", "int"), attrgetter("step")),
    (("time", "ns", "time"), attrgetter("duration_ns")),
    (("start", "ns", "time"), attrgetter("start_ns")),
    (
        ("grid", "", "text"),
        lambda kernel: format_sides(kernel.grid_x, kernel.grid_y, kernel.grid_z),
    ),
    (
        ("block", "", "text"),
        lambda kernel: format_sides(kernel.block_x, kernel.block_y, kernel.block_z),
    ),
    (("registers", "", "int"), attrgetter("registers")),
    (("shared", "B", "int"), _sum_shared_bytes),
    (("stream", "", "int"), attrgetter("stream")),
    (("device", "", "int"), attrgetter("device_index")),
)
"""((label, unit, kind), what reads it of a kernel) of the table of launches."""


def _pack_counter_columns(
    runs: Sequence[PreparedRun], rows: Sequence[tuple[PreparedRun, Kernel]]
) -> tuple[list[JsonObject], list[str]]:
    """FLOPs made from counters, then the counters themselves as far as they fit."""
    units = {
        counter.name: counter.unit or "" for run in runs for counter in run.run.report.counters
    }
    columns = []
    for path in ("total", *PATHS) if units else ():
        figures = [
            getattr(run.flops_by_launch.get(kernel.launch, NO_FLOPS), path) for run, kernel in rows
        ]
        states = [
            (choose_figure_style(figure), format_state_sign(figure), explain_figure_state(figure))
            for figure in figures
        ]
        if path != "total" and all(
            figure.value is None and figure.state != "refused" for figure in figures
        ):
            continue
        column = encode_column_in_smallest_form(
            "executed" if path == "total" else path, "FLOP", "si", [f.value for f in figures]
        )
        if any(map(any, states)):  # not all are measured in full
            column["state"] = encode_column_in_smallest_form("", "", "", states)
        columns.append(column)
    counters_shown = list(units)
    if len(units) > COUNTER_COLUMNS:
        counted = {
            name
            for run in runs
            for values in run.values.values()
            for name, value in values.items()
            if value and is_flop_counter(name)
        }
        counters_shown = [name for name in units if name in counted][:COUNTER_COLUMNS]
    if len(counters_shown) * len(rows) > COUNTER_CELLS:
        counters_shown = []
    for name in counters_shown:
        of_launches = [run.values.get(kernel.launch, {}).get(name) for run, kernel in rows]
        columns.append(encode_column_in_smallest_form(name, units[name], "si", of_launches))
    is_complete = len(units) == len(counters_shown)
    return columns, [] if is_complete else ["the next table has all counters"]


def build_kernels_by_batch_range_table(analysis: Analysis) -> Table | None:
    """One row a layer, direction and stretch of batch sizes with the same kernels; None for a
    single batch size."""
    if analysis.study.is_foreign or len(analysis.study.batches) < 2:
        return None
    columns = [
        name_column("layer, pass"),
        text_column("batch"),
        text_column("algorithm", "from the name of the main kernel"),
        name_column("kernels"),
        Column("FLOPs per sample", "FLOP", note="measured at the first of these batch sizes"),
        Column("bytes per sample", "B", note="DRAM, measured at the first of these batch sizes"),
        text_column("changes", "compared with the previous batch size"),
    ]
    served = sorted(
        list_layer_kernels_along_sweep(analysis.study, analysis.ledger),
        key=lambda item: not item.switches,
    )
    rows = [
        row for item in served for row in _list_kernels_by_batch_range_rows(item, analysis.names)
    ]
    return build_table("Kernels over batch sizes, layers with changes first", columns, rows)


def _list_kernels_by_batch_range_rows(
    item: LayerKernelSweep, names: ShortNames
) -> Iterator[list[Any]]:
    starts = {switch.after.batch: switch for switch in item.switches}
    stretches: list[list[LayerKernelSet]] = []
    for kernels in item.sets:
        if not stretches or kernels.batch in starts:
            stretches.append([])
        stretches[-1].append(kernels)
    for stretch in stretches:
        first, switch = stretch[0], starts.get(stretch[0].batch)
        short = join_first_names((names.get(name, name) for name in first.kernels), NAMES)
        yield [
            item.name,
            ", ".join(str(kernels.batch) for kernels in stretch),
            describe_algorithm(first.algorithm),
            name_cell(", ".join(first.kernels), short),
            figure_cell(first.flops_per_sample, "FLOP"),
            figure_cell(first.bytes_per_sample, "B"),
            _describe_kernel_change(switch)
            if switch
            else missing_cell("the first batch size with these kernels"),
        ]


def _describe_kernel_change(switch: KernelSwitch) -> str:
    text = "another algorithm"
    if not switch.changes_algorithm:
        text = "different kernels of the same algorithm"
    factors = [
        (switch.flops_per_sample_factor, "FLOPs"),
        (switch.dram_bytes_per_sample_factor, "bytes"),
    ]
    changes = [
        f"{format_ratio(factor)} × the {unit}" for factor, unit in factors if factor is not None
    ]
    return f"{text}: {', '.join(changes)} per sample" if changes else text
