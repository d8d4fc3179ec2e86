"""Tables of a study: sweep, operators, ranges, copies, summaries, steps, counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from perfctl.orchestrator.ledger.sweep import BatchPoint
from perfctl.orchestrator.ledger.usage.run_usage import range_totals
from perfctl.orchestrator.report import tables
from perfctl.orchestrator.report.numbers import full, rounded, time
from perfctl.orchestrator.report.page.kernels import run_label
from perfctl.orchestrator.report.tables import (
    RUN,
    Cell,
    Column,
    Grid,
    Table,
    amount,
    listing,
    long_table,
    nothing,
    share_cell,
    size_cell,
    text_cell,
    time_cell,
    word,
)
from perfctl.orchestrator.statistics import interval_too_wide
from perfctl.records.report import Copy, Summary
from perfctl.records.run import Run

COUNTER_ROWS = 50_000
"""Kernel names x counters that the page carries; the rest stays in the store."""

CALLS = "Calls of the CUDA or HIP runtime, the operating system and libraries"


def sweep_table(points: Sequence[BatchPoint], *, rates: bool = True) -> Table | None:
    """One row a batch size: time, samples per second, memory. None where none of these is known.

    ``rates`` False leaves out time per sample and samples per second, which follow from the median
    step: inference has images/s from the mean step in a table of its own, and one quantity has
    one figure.
    """
    quantities = list(dict.fromkeys(name for point in points for name in point.memory))
    columns = [
        Column("batch", order="ascending"),
        Column("samples per step", note="of all batches of a step"),
        Column("time per step", base="ns"),
        Column(
            "over repeats",
            style="text",
            note="95% interval of the step over the repeats of the sweep",
        ),
        *((Column("time per sample", base="ns"), Column("samples per second")) if rates else ()),
        *(Column(name, base="B") for name in quantities),
        Column("problems", is_optional=True, style="text"),
    ]
    rows = []
    for point in points:
        problems = "; ".join(point.problems)
        why, each, note = problems or "no run timed complete steps", point.per_sample, None
        if point.step is not None:
            newest = f" of the newest of {len(point.repeats)} runs" if point.repeats else ""
            note = f"median of {point.step.count} steps{newest}; {point.basis}"
        if point.step is not None and point.samples is None:
            why = (
                f"a step has {point.batches:g} batches, and their number of samples does not fit "
                "the batch size"
            )
        rows.append(
            [
                text_cell(point.batch),
                _samples(point),
                time_cell(point.step.median if point.step else None, why, note),
                _over_repeats(point),
                *(
                    (
                        time_cell(each, why),
                        tables.rate(1e9 / each if each else None, "samples/s", why),
                    )
                    if rates
                    else ()
                ),
                *(
                    size_cell(point.memory.get(name), "this run did not record it")
                    for name in quantities
                ),
                problems or nothing("none"),
            ]
        )
    found = listing("Batch sweep", columns, rows, tools=False)
    return found if found and len(found.columns) > 1 else None


def _samples(point: BatchPoint) -> Cell:
    if point.step is None or point.batches <= 1:
        return nothing("a step has one batch")
    if point.samples is None:
        return nothing("unknown")
    return text_cell(f"{point.batches:g} x {point.samples / point.batches:g} = {point.samples:g}")


def _over_repeats(point: BatchPoint) -> Cell:
    if not point.repeats:
        return nothing("the sweep was not repeated (--repeat)")
    wide = interval_too_wide(point.repeats) if point.interval else None
    ends = point.interval or (min(point.repeats), max(point.repeats))
    seen = (
        f"{len(point.repeats)} runs, from {time(min(point.repeats))} to {time(max(point.repeats))}"
    )
    if wide is not None:
        return Cell(
            f"unknown: needs {wide.further}", f"{wide.reason}; {seen}", "no", value="unknown"
        )
    return text_cell(f"{time(ends[0])} to {time(ends[1])}", seen)


def operators(runs: Sequence[Run]) -> Table | None:
    """Framework operations, the largest self time (or device time) first, every run on its
    own rows."""
    found = [(run, item) for run in runs for item in run.report.operations]
    found.sort(
        key=lambda pair: (
            -(pair[1].self_cpu_ns or pair[1].cpu_ns or pair[1].device_ns or 0),
            pair[1].name,
        )
    )
    columns = [
        RUN,
        Column("operation", style="code"),
        Column("category", is_optional=True, style="text"),
        Column("layer", style="code"),
        Column("direction", is_optional=True, style="text"),
        Column("calls"),
        Column("self time", base="ns", note="on the host, excluding children", order="descending"),
        Column(
            "host time",
            is_optional=True,
            base="ns",
            note="on the host, including children: rows overlap, so do not add them up",
        ),
        Column("device time", base="ns", note="of the launched kernels", order="descending"),
        Column(
            "allocated, all calls",
            is_optional=True,
            base="B",
            note="sum of the net bytes of all calls, not memory in use",
        ),
        Column(
            "FLOPs",
            "FLOP",
            note="from the report, whose convention may differ from perfctl's",
        ),
    ]
    rows = [
        [
            run_label(run),
            item.name,
            item.category,
            item.layer and text_cell(item.layer),
            item.direction,
            item.calls,
            item.self_cpu_ns,
            item.cpu_ns,
            item.device_ns,
            item.memory_bytes,
            amount(item.flops, "FLOP", "the report does not state it"),
        ]
        for run, item in found
    ]
    return listing("Framework operations, summed over each run", columns, rows)


def ranges(runs: Sequence[Run]) -> Table | None:
    """Ranges by name, the most GPU time first: GPU time of what they launched, and time on the
    host, each labelled. Nested ranges overlap, so there is no share."""
    columns = [
        RUN,
        Column("range", style="code"),
        Column("domain", is_optional=True, style="text"),
        Column("times"),
        Column(
            "GPU time",
            base="ns",
            order="descending",
            note="sum of the kernels, copies and memsets that the range launched on its thread",
        ),
        Column(
            "GPU span",
            base="ns",
            note="sum over ranges, from the first start to the last end of their GPU work",
        ),
        Column(
            "host time",
            base="ns",
            note="sum on the CPU timer, including nested ranges: rows overlap",
            order="descending",
        ),
        Column("host mean", is_optional=True, base="ns"),
        Column("host longest", is_optional=True, base="ns"),
    ]
    totals = [item for run in runs for item in range_totals(run)]
    totals.sort(key=lambda item: (-(item.gpu_ns or 0), -item.host_ns, item.name))
    rows = [
        [
            run_label(item.run),
            item.name,
            item.domain,
            item.times,
            item.gpu_ns,
            item.span_ns,
            item.host_ns,
            item.host_ns / item.times,
            item.longest_ns,
        ]
        for item in totals
    ]
    return listing("Ranges by name", columns, rows)


def api_calls(runs: Sequence[Run]) -> Table | None:
    """Calls of the CUDA or HIP runtime, then of the operating system and libraries, summed over
    each run, the longest of each first.

    A thread that waits (``poll``) is no answer to a question about the GPU. NVTX ranges have a
    table of their own.
    """
    found = [(run, item) for run in runs for item in run.report.api_calls if item.domain != "nvtx"]
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for run, item in found:
        totals[run_label(run), item.domain] += item.total_ns or 0
    columns = [
        RUN,
        Column("domain", style="text"),
        Column("name", style="code"),
        Column("calls"),
        Column("total", base="ns", note="time on the host, sum over all threads"),
        Column("share", note="of its domain's total"),
        Column("mean", base="ns"),
        Column("shortest", is_optional=True, base="ns"),
        Column("longest", base="ns"),
    ]
    rows = []
    for run, item in sorted(
        found,
        key=lambda pair: (
            pair[1].domain not in ("cuda", "hip"),
            pair[1].domain,
            -(pair[1].total_ns or 0),
        ),
    ):
        whole = totals[run_label(run), item.domain]
        share = item.total_ns / whole if item.total_ns is not None and whole else None
        mean = item.total_ns / item.calls if item.total_ns is not None and item.calls else None
        rows.append(
            [
                run_label(run),
                item.domain,
                item.name,
                item.calls,
                item.total_ns,
                share_cell(share),
                mean,
                item.min_ns,
                item.max_ns,
            ]
        )
    return listing(CALLS, columns, rows)


def copies(runs: Sequence[Run]) -> Table | None:
    """Memory copies by kind, kinds of memory and pair of GPUs, as far as the report states them."""
    kinds: dict[tuple[str, str], list[Copy]] = defaultdict(list)
    for run in runs:
        for item in run.report.copies:
            kinds[run_label(run), copy_route(item)].append(item)
    columns = [
        RUN,
        Column("copy", style="text"),
        Column("times"),
        Column("bytes", base="B"),
        Column("time", base="ns", order="descending"),
    ]
    rows: list[list[Any]] = []
    for key, items in kinds.items():
        sizes = [item.bytes for item in items if item.bytes is not None]
        times = [item.duration_ns for item in items if item.duration_ns is not None]
        rows.append(
            [*key, len(items), sum(sizes) if sizes else None, sum(times) if times else None]
        )
    rows.sort(key=lambda row: -(row[-1] or 0))
    return listing("Copies and memsets", columns, rows)


def copy_route(item: Copy) -> str:
    """Return "HtoD, pageable to device" or "PtoP, GPU 0 and GPU 1"; the kind alone where the report
    states no more."""
    if item.peer_device is not None:
        return f"{item.kind}, GPU {item.device_index} and GPU {item.peer_device}"
    if item.source_memory is not None and item.destination_memory is not None:
        return f"{item.kind}, {item.source_memory} to {item.destination_memory}"
    return item.kind


def summaries(runs: Sequence[Run]) -> Table | None:
    """Ready-made figures of a report, unchanged."""
    columns = [RUN, Column("figure", style="text"), Column("value"), Column("unit", style="text")]
    rows = [
        [run_label(run), text_cell(item.name), _ready_made(item, run), item.unit]
        for run in runs
        for item in run.report.summaries
    ]
    return listing("Summary values from the report", columns, rows)


def _ready_made(item: Summary, run: Run) -> Cell:
    """The value in the report's own unit, without a prefix; a percentage that DLProf's CSV rounded
    to nothing says so."""
    if item.value is None:
        return word(item.text)
    if not item.value and item.unit == "%" and run.report.form.startswith("DLProf CSV"):
        return Cell("< 0.05", "DLProf's CSV rounds: 0.0% is anything below 0.05%", value="< 0.05")
    return Cell(full(item.value), full(item.value, item.unit or ""), value=rounded(item.value))


def steps(runs: Sequence[Run]) -> Table | None:
    """Every step and phase that was recorded."""
    columns = [
        RUN,
        Column("phase", style="text"),
        Column("number"),
        Column("time", base="ns", note="on the CPU timer"),
        Column("loss"),
        Column("accuracy"),
    ]
    rows = [
        [
            run_label(run),
            item.phase,
            item.number,
            item.duration_ns,
            tables.decimal_cell(item.loss, "not recorded"),
            share_cell(item.accuracy, "not recorded"),
        ]
        for run in runs
        for item in run.report.steps
    ]
    return listing("Steps and phases", columns, rows)


def counters(runs: Sequence[Run], short: Mapping[str, str]) -> Grid | None:
    """Counters by kernel name and metric: smallest and largest over the launches. ``short``:
    kernel names."""
    sums: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for run in runs:
        names = {kernel.launch: kernel.name for kernel in run.report.kernels}
        for item in run.report.counters:
            if item.value is not None:
                name = names.get(item.launch, f"launch {item.launch}")
                sums[run_label(run), name, item.name, item.unit or ""].append(item.value)
    if not sums:
        return None
    rows = [
        (*key, len(values), min(values), max(values))
        for key, values in list(sums.items())[:COUNTER_ROWS]
    ]
    heads = (
        ("run", "text"),
        ("kernel", "code"),
        ("counter", "code"),
        ("unit", "text"),
        ("values", "int"),
        ("smallest", "si"),
        ("largest", "si"),
    )
    columns = [
        ((label, "", kind), values)
        for (label, kind), values in zip(heads, zip(*rows, strict=True), strict=True)
    ]
    return long_table("counters", columns, len(rows), len(sums) - len(rows), names=short)
