"""Tables of a study: sweep, operators, ranges, copies, summaries, steps, counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from perfctl.orchestrator.analyse.ledger.sweep import BatchPoint
from perfctl.orchestrator.report.cells import (
    Cell,
    amount,
    count,
    decimal_cell,
    nothing,
    rate,
    share_cell,
    size_cell,
    text_cell,
    time_cell,
)
from perfctl.orchestrator.report.numbers import full, rounded, time
from perfctl.orchestrator.report.page.kernels import name_cell, run_label
from perfctl.orchestrator.report.tables import Column, Grid, Table, first_rows, packed, table, without_empty
from perfctl.records.report import Copy, Summary
from perfctl.records.run import Run

COUNTER_ROWS = 50_000
"""Kernel names x counters that the page carries; the rest stays in the store."""


def sweep_table(points: Sequence[BatchPoint]) -> Table | None:
    """One row a batch size: time, samples per second, memory. None where none of these is known."""
    quantities = list(dict.fromkeys(name for point in points for name in point.memory))
    columns = [
        Column("batch"), Column("time per step", base="ns"),
        Column("over repeats", style="text", note="95 % interval of the step over the repeats of the sweep"),
        Column("time per sample", base="ns"), Column("samples per second"),
        *(Column(name, base="B") for name in quantities), Column("problems", style="text"),
    ]  # fmt: skip
    rows = []
    for point in points:
        problems = "; ".join(point.problems)
        why, each, note = problems or "no run timed whole steps", point.per_sample, None
        if point.step is not None:
            newest = f" of the newest of {len(point.repeats)} runs" if point.repeats else ""
            note = f"median of {point.step.count} steps{newest}; {point.basis}"
        rows.append([
            text_cell(point.batch), time_cell(point.step.median if point.step else None, why, note),
            _over_repeats(point), time_cell(each, why), rate(1e9 / each if each else None, "samples/s", why),
            *(size_cell(point.memory.get(name), "this run did not record it") for name in quantities),
            text_cell(problems) if problems else nothing("none"),
        ])  # fmt: skip
    columns, rows = without_empty(columns, rows)
    return table("Batch sweep", columns, rows, tools=False) if len(columns) > 1 else None


def _over_repeats(point: BatchPoint) -> Cell:
    """ "1.02 ms to 1.05 ms"."""
    if not point.repeats:
        return nothing("the sweep was not repeated (--repeat)")
    ends = point.interval or (min(point.repeats), max(point.repeats))
    seen = f"{len(point.repeats)} runs, from {time(min(point.repeats))} to {time(max(point.repeats))}"
    return text_cell(f"{time(ends[0])} to {time(ends[1])}", seen)


def operators(runs: Sequence[Run]) -> Table | None:
    """Framework operations, the largest self time (or device time) first, every run on its own rows."""
    found = [(run, item) for run in runs for item in run.report.operations]
    found.sort(key=lambda pair: (-(pair[1].self_cpu_ns or pair[1].cpu_ns or pair[1].device_ns or 0), pair[1].name))
    columns = [
        Column("run", style="text"), Column("operation", style="code"), Column("category", style="text"),
        Column("layer", style="code"), Column("direction", style="text"), Column("calls"),
        Column("self time", base="ns", note="on the host, children excluded"),
        Column("host time", base="ns", note="on the host, children included: rows overlap, do not add them up"),
        Column("device time", base="ns", note="of the kernels it launched"),
        Column("memory", base="B", note="net bytes allocated inside"),
        Column("FLOPs", "FLOP", note="as the report states them; its own convention, which may not be ours"),
    ]  # fmt: skip
    rows = [
        [
            text_cell(run_label(run)), name_cell(item.name), word(item.category), word(item.layer), word(item.direction),
            count(item.calls), time_cell(item.self_cpu_ns), time_cell(item.cpu_ns), time_cell(item.device_ns),
            size_cell(item.memory_bytes), amount(item.flops, "FLOP", "the report does not say"),
        ]
        for run, item in found
    ]  # fmt: skip
    return listing("Framework operations, summed over each run", columns, rows)


def ranges(runs: Sequence[Run]) -> Table | None:
    """Ranges by name: how often, how long. Nested ranges overlap, so there is no share."""
    sums: dict[tuple[str, str, str | None], list[int]] = defaultdict(list)
    for run in runs:
        for item in run.report.ranges:
            if item.duration_ns is not None:
                sums[run_label(run), item.name, item.domain].append(item.duration_ns)
    ranked = sorted(sums.items(), key=lambda pair: (-sum(pair[1]), pair[0][1]))
    columns = [
        Column("run", style="text"), Column("range", style="code"), Column("domain", style="text"), Column("times"),
        Column("time", base="ns", note="sum, ranges inside included: rows overlap"), Column("mean", base="ns"),
        Column("longest", base="ns"),
    ]  # fmt: skip
    rows = [
        [
            text_cell(label), name_cell(name), word(domain), count(len(times)),
            time_cell(sum(times)), time_cell(sum(times) / len(times)), time_cell(max(times)),
        ]
        for (label, name, domain), times in ranked
    ]  # fmt: skip
    return listing("Ranges by name", columns, rows)


def copies(runs: Sequence[Run]) -> Table | None:
    """Memory copies by kind."""
    kinds: dict[tuple[str, str], list[Copy]] = defaultdict(list)
    for run in runs:
        for item in run.report.copies:
            kinds[run_label(run), item.kind].append(item)
    columns = [
        Column("run", style="text"), Column("copy", style="text"), Column("times"), Column("bytes", base="B"),
        Column("time", base="ns"),
    ]  # fmt: skip
    rows = []
    for (label, kind), items in kinds.items():
        sizes = [item.bytes for item in items if item.bytes is not None]
        times = [item.duration_ns for item in items if item.duration_ns is not None]
        took = time_cell(sum(times) if times else None)
        rows.append(
            [text_cell(label), text_cell(kind), count(len(items)), size_cell(sum(sizes) if sizes else None), took]
        )
    return listing("Copies and memsets", columns, rows)


def summaries(runs: Sequence[Run]) -> Table | None:
    """Ready-made figures of a report, unchanged."""
    columns = [
        Column("run", style="text"),
        Column("figure", style="text"),
        Column("value"),
        Column("unit", style="text"),
    ]
    rows = [
        [
            text_cell(run_label(run)), text_cell(item.name),
            _ready_made(item, run) if item.value is not None else word(item.text), word(item.unit),
        ]
        for run in runs
        for item in run.report.summaries
    ]  # fmt: skip
    return listing("Ready-made figures, as the report states them", columns, rows)


def _ready_made(item: Summary, run: Run) -> Cell:
    """The value in the report's own unit, without a prefix; a percentage that DLProf's CSV rounded to nothing says so."""
    value = item.value or 0.0
    if not value and item.unit == "%" and run.report.form.startswith("DLProf CSV"):
        return Cell("< 0.05", "DLProf's CSV rounds: 0.0 % is anything below 0.05 %", value="< 0.05")
    return Cell(full(value), full(value, item.unit or ""), value=rounded(value))


def steps(runs: Sequence[Run]) -> Table | None:
    """Every step and phase that was recorded."""
    columns = [
        Column("run", style="text"), Column("phase", style="text"), Column("number"), Column("time", base="ns"),
        Column("loss"), Column("accuracy"),
    ]  # fmt: skip
    rows = [
        [
            text_cell(run_label(run)), text_cell(item.phase), count(item.number), time_cell(item.duration_ns),
            decimal_cell(item.loss, "not recorded"), share_cell(item.accuracy, "not recorded"),
        ]
        for run in runs
        for item in run.report.steps
    ]  # fmt: skip
    return listing("Steps and phases", columns, rows)


def counters(runs: Sequence[Run]) -> Grid | None:
    """Counters by kernel name and metric: smallest and largest over the launches."""
    sums: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for run in runs:
        names = {kernel.launch: kernel.name for kernel in run.report.kernels}
        for item in run.report.counters:
            if item.value is not None:
                name = names.get(item.launch, f"launch {item.launch}")
                sums[run_label(run), name, item.name, item.unit or ""].append(item.value)
    if not sums:
        return None
    rows = list(sums.items())[:COUNTER_ROWS]
    columns: list[tuple[tuple[str, str, str], list[object]]] = [
        (("run", "", "text"), [key[0] for key, _ in rows]),
        (("kernel", "", "code"), [key[1] for key, _ in rows]),
        (("counter", "", "code"), [key[2] for key, _ in rows]),
        (("unit", "", "text"), [key[3] for key, _ in rows]),
        (("values", "", "int"), [len(values) for _, values in rows]),
        (("smallest", "", "si"), [min(values) for _, values in rows]),
        (("largest", "", "si"), [max(values) for _, values in rows]),
    ]
    caption, shown = "Counters by kernel name", tuple(packed(*head, values) for head, values in columns)
    return Grid(
        "counters", caption, len(rows), shown, len(sums) - len(rows), first=first_rows(caption, columns, len(rows))
    )


def listing(caption: str, columns: list[Column], rows: list[list[Cell]], *, drop_run: bool = True) -> Table | None:
    """A table without empty columns, and without the run's column when there is only one run."""
    if not rows:
        return None
    if drop_run and len({row[0].text for row in rows}) == 1:
        columns, rows = columns[1:], [row[1:] for row in rows]
    return table(caption, *without_empty(columns, rows))


def word(text: str | None) -> Cell:
    return text_cell(text) if text else nothing("the report does not say")
