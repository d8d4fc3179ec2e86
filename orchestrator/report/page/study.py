"""Tables of a run group: sweep, operators, ranges, API calls, copies, values, steps, counters."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any

from perfctl.orchestrator.ledger.sweep import BatchPoint
from perfctl.orchestrator.ledger.usage.run_usage import sum_ranges_by_name
from perfctl.orchestrator.ledger.usage.sums import (
    get_host_else_device_ns,
    group_summed_operations,
    sum_operation_ns_by_run_id,
)
from perfctl.orchestrator.report.numbers import (
    format_integer_or_six_digits,
    format_percent,
    format_si,
    format_time,
    round_to_six_significant_digits,
)
from perfctl.orchestrator.report.tables import (
    RUN,
    Cell,
    Column,
    PackedTable,
    ShortNames,
    Table,
    amount_cell,
    amount_with_unit_cell,
    build_table_hiding_empty_columns,
    four_decimals_cell,
    missing_cell,
    name_column,
    optional_text_cell,
    pack_long_table,
    rate_cell,
    run_label,
    share_cell,
    size_cell,
    size_column,
    text_cell,
    text_column,
    time_cell,
    time_column,
)
from perfctl.orchestrator.statistics import explain_wide_run_interval, group_by
from perfctl.records.report import Copy, Summary
from perfctl.records.run import Run

COUNTER_ROWS = 50_000
"""Kernel names x counters that the page carries; the rest stays in the store."""

PCIE = {
    **dict.fromkeys(("7.0", "7.5"), (3, 15.75e9)),
    **dict.fromkeys(("8.0", "8.6", "8.9"), (4, 31.5e9)),
    **dict.fromkeys(("9.0", "10.0", "12.0"), (5, 63.0e9)),
}
"""Compute capability -> (PCIe generation, bytes/s one way of 16 lanes: PCI-SIG)."""
LARGE_COPY_BYTES = 1_000_000
"""Size from which on a copy takes longer than its latency."""
LINK_SHARE_MIN = 0.3
"""Share of the link below which large copies have a note."""
CALLS = "Calls of the CUDA or HIP runtime, the operating system and libraries"


def build_sweep_table(
    points: Sequence[BatchPoint], axis_name: str = "batch", *, show_rates: bool = True
) -> Table | None:
    """One row a batch size, or value of ``axis_name``: time, samples per second, memory. None where
    none of these is known.

    ``show_rates`` False leaves out time per sample and samples per second, which follow from the
    median step: inference has images/s from the mean step in a table of its own, and one quantity
    has one figure.
    """
    quantities = list(dict.fromkeys(name for point in points for name in point.memory))
    columns = [
        Column(axis_name, order="ascending"),
        Column("samples per step", note="of all batches of a step"),
        time_column("time per step"),
        time_column("fastest step", is_optional=True),
        time_column("slowest step", is_optional=True),
        text_column("over repeats", "95% interval of the step over the repeats of the sweep"),
        *((time_column("time per sample"), Column("samples per second")) if show_rates else ()),
        *(size_column(name) for name in quantities),
        text_column("problems", is_optional=True),
    ]
    rows = []
    for point in points:
        problems = "; ".join(point.problems)
        reason, each, note = (
            problems or "no run timed complete steps",
            point.step_ns_per_sample,
            None,
        )
        step = point.step
        if step is not None:
            runs = f" in {len(point.repeats)} runs" if point.repeats else ""
            note = f"median of {step.count} steps{runs}; {point.basis}"
        samples = missing_cell("a step has one batch")
        if step is not None and point.samples is None:
            samples = missing_cell("unknown")
            reason = f"a step has {point.batches:g} batches, which do not fit the batch size"
        elif step is not None and point.samples is not None and point.batches > 1:
            batch = point.samples / point.batches
            samples = text_cell(f"{point.batches:g} x {batch:g} = {point.samples:g}")
        per_sample = (
            time_cell(each, reason),
            rate_cell(1e9 / each if each else None, "samples/s", reason),
        )
        rows.append(
            [
                text_cell(str(point.batch).removeprefix(f"{axis_name}=")),
                samples,
                time_cell(step.median if step else None, reason, note),
                *(
                    time_cell(value, note=f"{step.count} steps")
                    if step and step.count > 1
                    else missing_cell("there is no second step")
                    for value in ((step.low, step.high) if step else (None, None))
                ),
                _repeat_interval_cell(point),
                *(per_sample if show_rates else ()),
                *(
                    size_cell(point.memory.get(name), "this run did not record it")
                    for name in quantities
                ),
                problems or missing_cell("none"),
            ]
        )
    swept = build_table_hiding_empty_columns(
        f"{axis_name[:1].upper()}{axis_name[1:]} sweep", columns, rows, has_filter_and_csv=False
    )
    return swept if swept and len(swept.columns) > 1 else None


def _repeat_interval_cell(point: BatchPoint) -> Cell:
    if not point.repeats:
        return missing_cell("the sweep was not repeated (--repeat)")
    low, high = min(point.repeats), max(point.repeats)
    runs = f"{len(point.repeats)} runs, from {format_time(low)} to {format_time(high)}"
    wide = explain_wide_run_interval(point.repeats) if point.step_confidence_interval_ns else None
    if wide is not None:
        text = f"unknown: needs {wide.additional_values_text}"
        return Cell(text, f"{wide.reason}; {runs}", "no", value="unknown")
    low, high = point.step_confidence_interval_ns or (low, high)
    return text_cell(f"{format_time(low)} to {format_time(high)}", runs)


def build_operator_tables(runs: Sequence[Run]) -> Iterator[Table | None]:
    """Yield a table of each kind of operation, the largest self time (or device time) first, every
    run on its own rows."""
    columns = [
        RUN,
        name_column("operation"),
        text_column("category", is_optional=True),
        name_column("layer"),
        text_column("pass", is_optional=True),
        Column("calls"),
        time_column("self time", "on the host, excluding children", order="descending"),
        time_column(
            "host time",
            "on the host, including children: rows overlap, so do not add them up",
            is_optional=True,
        ),
        time_column("device time", "of the launched kernels", order="descending"),
        Column("share", note="of the time of the run's rows", is_optional=True),
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
    for group, operations in group_summed_operations(runs).items():
        operations.sort(
            key=lambda pair: (
                -(pair[1].self_cpu_ns or pair[1].cpu_ns or pair[1].device_ns or 0),
                pair[1].name,
            )
        )
        totals = sum_operation_ns_by_run_id(operations) if group.quantity else {}
        rows = [
            [
                run,
                item.name,
                item.category,
                item.layer and text_cell(item.layer),
                item.direction,
                item.calls,
                item.self_cpu_ns,
                item.cpu_ns,
                item.device_ns,
                share_cell(
                    (get_host_else_device_ns(item) or 0) / totals[run.id]
                    if totals.get(run.id)
                    else None
                ),
                item.memory_bytes,
                amount_cell(item.flops, "FLOP", "the report does not state it"),
            ]
            for run, item in operations
        ]
        yield build_table_hiding_empty_columns(
            f"{group.title}, summed over each run", columns, rows
        )


def build_ranges_table(runs: Sequence[Run]) -> Table | None:
    """Ranges by name, the most GPU time first: GPU time of what they launched, and time on the
    host, each labelled. Nested ranges overlap, so there is no share."""
    columns = [
        RUN,
        name_column("range"),
        text_column("domain", is_optional=True),
        Column("times"),
        time_column(
            "GPU time",
            "sum of the kernels, copies and memsets that the range launched on its thread",
            order="descending",
        ),
        time_column(
            "GPU span", "sum over ranges, from the first start to the last end of their GPU work"
        ),
        time_column(
            "host time",
            "sum on the CPU timer, including nested ranges: rows overlap",
            order="descending",
        ),
        time_column("host mean", is_optional=True),
        time_column("host longest", is_optional=True),
    ]
    totals = [item for run in runs for item in sum_ranges_by_name(run)]
    totals.sort(key=lambda item: (-(item.gpu_ns or 0), -item.host_ns, item.name))
    rows = [
        [
            item.run,
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
    return build_table_hiding_empty_columns("Ranges by name", columns, rows)


def build_api_calls_table(runs: Sequence[Run]) -> Table | None:
    """Calls of the CUDA or HIP runtime, then of the operating system and libraries, summed over
    each run, the longest of each first.

    A thread that waits (``poll``) is no answer to a question about the GPU. NVTX ranges have a
    table of their own.
    """
    calls = [(run, item) for run in runs for item in run.report.api_calls if item.domain != "nvtx"]
    calls.sort(
        key=lambda pair: (
            pair[1].domain not in ("cuda", "hip"),
            pair[1].domain,
            -(pair[1].total_ns or 0),
        )
    )
    totals: Tally[tuple[int, str]] = Tally()
    for run, item in calls:
        totals[run.id, item.domain] += item.total_ns or 0
    columns = [
        RUN,
        text_column("domain"),
        name_column("name"),
        Column("calls"),
        time_column("total", "time on the host, sum over all threads"),
        Column("share", note="of its domain's total"),
        time_column("mean"),
        time_column("shortest", is_optional=True),
        time_column("longest"),
    ]
    rows = []
    for run, item in calls:
        share = mean = None
        if item.total_ns is not None:
            domain_ns = totals[run.id, item.domain]
            share = item.total_ns / domain_ns if domain_ns else None
            mean = item.total_ns / item.calls if item.calls else None
        rows.append(
            [
                run,
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
    return build_table_hiding_empty_columns(CALLS, columns, rows)


def build_copy_tables(runs: Sequence[Run]) -> tuple[Table | None, ...]:
    """Return the memory copies by kind, kinds of memory and pair of GPUs, as far as the report
    states them, and what unified memory moved."""
    notes = dict.fromkeys(_describe_copies_far_below_pcie(runs))
    return (
        _build_copies_table("Copies and memsets", runs, notes, is_migrated=False),
        _build_copies_table("Migrations of unified memory", runs, is_migrated=True),
    )


def is_unified_memory_migration(item: Copy) -> bool:
    """Return whether the driver moved pages of unified memory: no copy of the program."""
    return item.kind.startswith("unified ")


def _build_copies_table(
    caption: str, runs: Sequence[Run], notes: Iterable[str] = (), *, is_migrated: bool
) -> Table | None:
    moved = (
        (run_label(run), item)
        for run in runs
        for item in run.report.copies
        if is_unified_memory_migration(item) == is_migrated
    )
    kinds = group_by(moved, lambda pair: (pair[0], describe_copy_route(pair[1])))
    columns = [
        RUN,
        text_column("copy"),
        Column("times"),
        size_column("bytes"),
        time_column("time", order="descending"),
        Column("rate", note="bytes over time, of the copies that have both", base="B/s"),
    ]
    rows: list[list[Any]] = []
    for key, pairs in kinds.items():
        sizes = [item.bytes for _, item in pairs if item.bytes is not None]
        times = [item.duration_ns for _, item in pairs if item.duration_ns is not None]
        speed = compute_copy_bytes_per_second([item for _, item in pairs])
        rate = amount_with_unit_cell(speed, "B/s", "no copy has both a size and a time")
        sums = (sum(sizes) if sizes else None, sum(times) if times else None)
        rows.append([*key, len(pairs), *sums, rate])
    rows.sort(key=lambda row: -(row[4] or 0))
    return build_table_hiding_empty_columns(caption, columns, rows, notes)


def compute_copy_bytes_per_second(copies: Iterable[Copy]) -> float | None:
    """Return the bytes per second of copies with a size and a time; None if there are none."""
    both = [(item.bytes, item.duration_ns) for item in copies if item.bytes and item.duration_ns]
    return sum(pair[0] for pair in both) / sum(pair[1] for pair in both) * 1e9 if both else None


def _describe_copies_far_below_pcie(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the routes between host and GPU whose large copies are far below the PCIe link."""
    for run in runs:
        capability = run.device.compute_capability if run.device else None
        generation, link = PCIE.get(capability or "", (0, 0.0))
        between = [item for item in run.report.copies if item.kind in ("HtoD", "DtoH")]
        for route, copies in group_by(between, describe_copy_route).items():
            speed = compute_copy_bytes_per_second(
                item for item in copies if (item.bytes or 0) >= LARGE_COPY_BYTES
            )
            if speed is not None and speed < LINK_SHARE_MIN * link:
                fix = " Pinned memory is faster." if "pageable" in route else ""
                yield (
                    f"{route}: large copies move {format_si(speed, 'B/s')}, "
                    f"{format_percent(speed / link)} of the {format_si(link, 'B/s')} that 16 "
                    f"lanes of PCIe {generation}.0 carry one way.{fix}"
                )


def describe_copy_route(item: Copy) -> str:
    """Return "HtoD, pageable to device" or "PtoP, GPU 0 and GPU 1"; the kind alone where the report
    states no more."""
    if item.peer_device is not None:
        return f"{item.kind}, GPU {item.device_index} and GPU {item.peer_device}"
    if item.source_memory is not None and item.destination_memory is not None:
        return f"{item.kind}, {item.source_memory} to {item.destination_memory}"
    return item.kind


def build_report_summary_values_table(runs: Sequence[Run]) -> Table | None:
    """Ready-made figures of a report, unchanged."""
    columns = [RUN, text_column("figure"), Column("value"), text_column("unit")]
    rows = [
        [run, item.name, build_summary_cell(item, run), item.unit]
        for run in runs
        for item in run.report.summaries
    ]
    return build_table_hiding_empty_columns("Summary values from the report", columns, rows)


def build_summary_cell(item: Summary, run: Run, *, is_rounded: bool = True) -> Cell:
    """The value in the report's own unit, without a prefix; a percentage that DLProf's CSV rounded
    to nothing says so."""
    if item.value is None:
        return optional_text_cell(
            item.text, "the report does not say" if is_rounded else "the report does not state it"
        )
    if not item.value and item.unit == "%" and run.report.form.startswith("DLProf CSV"):
        return Cell("< 0.05", "DLProf's CSV rounds: 0.0% is anything below 0.05%", value="< 0.05")
    if not is_rounded:
        return Cell(f"{item.value:,.10g}", value=item.value)
    is_large = (
        1e6 <= abs(item.value) < inf
    )  # six digits would print zeros instead of measured digits
    value = round(item.value) if is_large else item.value
    return Cell(
        format_integer_or_six_digits(value),
        format_integer_or_six_digits(value, item.unit or ""),
        value=round_to_six_significant_digits(value),
    )


def build_recorded_steps_table(runs: Sequence[Run]) -> Table | None:
    """Every step and phase that was recorded."""
    columns = [
        RUN,
        text_column("phase"),
        Column("number"),
        time_column("time", "on the CPU timer"),
        Column("loss"),
        Column("accuracy"),
    ]
    rows = [
        [
            run,
            item.phase,
            item.number,
            item.duration_ns,
            four_decimals_cell(item.loss, "not recorded"),
            share_cell(item.accuracy, "not recorded"),
        ]
        for run in runs
        for item in run.report.steps
    ]
    return build_table_hiding_empty_columns("Steps and phases", columns, rows)


def pack_counter_ranges_table(runs: Sequence[Run], short_names: ShortNames) -> PackedTable | None:
    """Counters by kernel name and metric: smallest and largest over the launches. ``short_names``:
    kernel names."""
    values = defaultdict(list)
    for run in runs:
        names = {kernel.launch: kernel.name for kernel in run.report.kernels}
        for item in run.report.counters:
            if item.value is not None:
                name = names.get(item.launch, f"launch {item.launch}")
                values[run_label(run), name, item.name, item.unit or ""].append(item.value)
    if not values:
        return None
    rows = [
        (*key, len(of_key), min(of_key), max(of_key))
        for key, of_key in list(values.items())[:COUNTER_ROWS]
    ]
    labels = ("run", "kernel", "counter", "unit", "values", "smallest", "largest")
    heads = zip(labels, ("text", "code", "code", "text", "int", "si", "si"), strict=True)
    columns = [
        ((label, "", kind), column)
        for (label, kind), column in zip(heads, zip(*rows, strict=True), strict=True)
    ]
    return pack_long_table(
        "counters", columns, len(rows), len(values) - len(rows), short_kernel_names=short_names
    )
