"""What only ncu's reports hold: the advice of its rules, instruction mixes, and counters by source line."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from perfctl.orchestrator.analyse.analysis import short_names
from perfctl.orchestrator.analyse.kernels.short_names import shorten
from perfctl.orchestrator.report.numbers import percent
from perfctl.orchestrator.report.page.kernels import run_label
from perfctl.orchestrator.report.tables import (
    RUN,
    Cell,
    Column,
    Table,
    amount,
    listing,
    name_cell,
    nothing,
    share_cell,
    text_cell,
    word,
)
from perfctl.records.report import Advice, SourceLine
from perfctl.records.run import Run

LONGEST = 160
"""Characters of an advice in its cell; the title has more of it."""
_TITLE = 1500
MIX = "sass__inst_executed_per_opcode["
"""Counters of the instruction mix: warp-level instructions by opcode."""
OPCODES = 6
"""Opcodes that a mix names; the rest is one share."""
_DIGITS = re.compile(r"[0-9][0-9.,]*")


def advice_table(runs: Sequence[Run], *, brief: bool = False, names: Mapping[str, str] | None = None) -> Table | None:
    """One row a kernel and rule, the largest estimated speed-up first; results that differ in figures alone are one.
    ``brief``: two columns, for a terminal. ``names``: short kernel names of the page."""
    shown = short_names(runs) if names is None else names
    columns = [
        RUN, Column("rule", style="text"), Column("kind", style="text"), Column("kernel", style="code"),
        Column("launches", note="of this kernel for which the rule said so"),
        Column("est. speed-up", note="as ncu estimates it, the largest of the launches: the share of the time that it saves"),
        Column("of", style="text", note="global: of the launch; local: of the work of one unit of the GPU"),
        Column("advice", style="text", note="of the launch with the largest estimate"),
    ]  # fmt: skip
    found: list[tuple[Advice, Cell, str, int]] = []
    for run in runs:
        of_launch = {kernel.launch: kernel.name for kernel in run.report.kernels}
        same: dict[tuple[str, str | None, str | None, str], list[Advice]] = defaultdict(list)
        for one in run.report.advice:
            kernel = of_launch.get(one.launch) if one.launch is not None else None
            same[one.rule, one.kind, kernel, _DIGITS.sub("#", one.text or "")].append(one)
        for (_, _, kernel, _), results in same.items():
            best = max(results, key=lambda one: one.estimated_speedup or 0)
            named = name_cell(kernel, shown.get(kernel)) if kernel is not None else nothing("the whole report")
            found.append((best, named, run_label(run), len({one.launch for one in results})))
    found.sort(key=lambda item: -(item[0].estimated_speedup or 0))
    rows = [[label, one.rule, one.kind, kernel, launches, *_estimate(one), _short(one.text)]
            for one, kernel, label, launches in found]  # fmt: skip
    if brief:
        both = (columns[5], Column("of", style="text"), columns[7])
        said = ([*_estimate(one), f"{one.rule}, {kernel.text}: {_short(one.text).text}"] for one, kernel, _, _ in found)
        return listing("What ncu advises", both, said, drop_run=False)
    return listing("What ncu advises", columns, rows)


def _estimate(one: Advice) -> tuple[Cell, Cell]:
    none = nothing("ncu estimates none for this")
    return share_cell(one.estimated_speedup, none.title or ""), none if one.estimated_speedup is None else word(
        one.speedup_scope
    )


def _short(text: str | None) -> Cell:
    if text is None or len(text) <= LONGEST:
        return word(text)
    return text_cell(f"{text[: LONGEST - 3].rsplit(' ', 1)[0]} ...", text[:_TITLE])


def mix_table(runs: Sequence[Run], names: Mapping[str, str] | None = None) -> Table | None:
    """One row a kernel: which instructions its warps executed, over all its launches; the most instructions first."""
    shown = short_names(runs) if names is None else names
    columns = [
        RUN, Column("kernel", style="code"), Column("launches"),
        Column("instructions", "inst", note="executed by warps, all launches"), Column("mix", style="text"),
    ]  # fmt: skip
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
                    name_cell(name, shown.get(name)),
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
    return text_cell(", ".join([*first, f"others {percent(rest / total)}"] if rest else first), every[:_TITLE])


def source_table(lines: Sequence[SourceLine]) -> Table | None:
    """One row a source line of a kernel, or an instruction where the report has no line, as ``read.source_lines`` has them."""
    columns = [
        Column("kernel", style="code"), Column("line", style="text", note="or bytes from the kernel's first instruction"),
        Column("instructions", note="machine instructions of the line"), Column("opcode", style="text", note="of the hottest one"),
        Column("by warps", "inst", note="executed, all launches"), Column("by threads", "inst", note="executed, all launches"),
        Column("samples", note="of warps that were at it"), Column("share", note="of the samples of the run"),
        Column("stall", style="text", note="the most frequent reason at the hottest instruction"),
    ]  # fmt: skip
    total = sum(line.samples or 0 for line in lines)
    names = shorten(line.kernel for line in lines)
    rows = [
        [
            name_cell(line.kernel, names[line.kernel]), _place(line), line.instructions, line.opcode,
            amount(line.inst_executed, "inst"), amount(line.thread_inst_executed, "inst"), line.samples,
            share_cell(line.samples / total if line.samples is not None and total else None), line.stall,
        ]
        for line in lines
    ]  # fmt: skip
    return listing("Source lines by samples, then by instructions", columns, rows, drop_run=False)


def _place(line: SourceLine) -> Cell:
    if line.file is None:
        return text_cell(f"+{line.address:#x}")
    return text_cell(f"{line.file.replace(chr(92), '/').rpartition('/')[2]}:{line.line}", f"{line.file}:{line.line}")
