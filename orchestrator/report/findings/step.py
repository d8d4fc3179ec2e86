"""Findings about the time of a step: idle gaps, copies, what the timeline shows, the layer with the
most time, time of no layer, and how the step changes with the batch size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean

from perfctl.orchestrator.compare.sides import explain_cpu_contention
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_name
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.timeline.judge import (
    RunVerdicts,
    pick_largest_verdict_per_rule,
)
from perfctl.orchestrator.ledger.ledger import (
    Ledger,
    LedgerRow,
    format_at_batch,
)
from perfctl.orchestrator.ledger.prepared import PreparedRun, Study
from perfctl.orchestrator.ledger.sweep import BatchPoint
from perfctl.orchestrator.ledger.unattributed import (
    explain_unattributed_time,
    find_largest_other_share,
    list_reasons_for_untimed_kernels,
)
from perfctl.orchestrator.ledger.usage.intervals import Intervals, sum_durations_ns
from perfctl.orchestrator.ledger.usage.readings import (
    BUSY,
    compute_time_weighted_mean,
    extrapolate_largest_fitting_batch,
    find_smallest_busy_batch_across_runs,
    is_host_sample,
    list_ns_and_value_of_field,
)
from perfctl.orchestrator.ledger.usage.run_usage import (
    ALLOCATE,
    CAPTURE,
    COMMUNICATION,
    COPIES,
    COPY,
    DATA,
    EXCHANGE,
    HOST,
    LAUNCH,
    START,
    SYNCHRONISE,
    BusyTime,
    DeviceIdleTime,
    RunUsage,
)
from perfctl.orchestrator.report.numbers import (
    format_bytes,
    format_percent,
    format_step_times,
    format_time,
)
from perfctl.orchestrator.report.page.records import (
    UNEXPLAINED,
    Finding,
    Steps,
    add_time_impact_and_fix,
)
from perfctl.orchestrator.report.page.study import is_unified_memory_migration
from perfctl.orchestrator.report.tables import ShortNames, count_cell, run_label
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Copy, pluralize_count
from perfctl.records.run import Point, Run

NAME_CHARACTERS_MAX = 70
"""Characters of a range's name in a sentence."""
LAYER_CHARACTERS_MAX = 40
"""Characters of a layer's name in a sentence; the end tells most."""
DEVICE_CHARACTERS_MAX = 34
"""Characters of a device's name in a sentence; a longer name is left out."""
COPY_SHARE_MIN = 0.001
"""Share of copies in the time of copies and kernels from which on they are a finding."""
COMMUNICATION_SHARE_MIN = 0.05
"""Share of the time with collectives only from which on the first finding states it."""
IDLE_SHARE_MIN = 0.2
"""Share of the time without a kernel from which on its cause is named."""
ONE_GAP_SHARE_MIN = 0.5
"""Share of the idle time that one gap must take to be named."""
UNATTRIBUTED_SHARE_MIN = 0.05
"""Share of the time of no layer from which on it is a finding."""
UNATTRIBUTED_CAUSE_SHARE_MIN = 0.1
"""Share of the time of no layer from which on one of its causes is named."""
SAMPLES_MIN = 8
"""Samples of a GPU from which on their course is a finding."""
IDLE_UTILIZATION_MAX = 0.05
"""Sampled utilization up to which a GPU counts as idle."""
GROWTH_MIN = 1.2
"""Factor from which on memory grows or falls."""
THROTTLED_SHARE_MIN = 0.05
"""Share of samples with reduced clocks from which on it is a finding."""
SLOWDOWNS = {"sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"}
"""Reasons of the driver for clocks below those that the work asks for."""
_GROWING = {"memory_used_bytes": "Memory used", "allocated_bytes": "Memory in tensors"}
_DURING = {
    COPY: "copies mostly run",
    DATA: "the host mostly loads data",
    START: "the program starts",
    EXCHANGE: "the host mostly communicates",
    ALLOCATE: "the host mostly allocates or frees memory",
    SYNCHRONISE: "the host mostly waits in synchronizing calls",
    LAUNCH: "short kernels follow each other",
    HOST: "the host launches late or waits",
}
"""Cause that fills the idle time -> what happens then."""
LOAD_FIX = (
    "Load data in other processes while the GPU computes (DataLoader's num_workers, "
    "persistent_workers and prefetch_factor)"
)
WARM_UP_FIX = "Record again after warm-up steps"
BUSY_CPU_FIX = "Repeat the runs on an idle machine"
ALLOCATION_FIX = (
    "Allocate and pin memory once and use it again (memory pools, PyTorch's caching allocator)"
)
MIGRATION_FIX = (
    "Move the data before the launch (cudaMemPrefetchAsync), or allocate it on the GPU (cudaMalloc)"
)


def describe_busy_and_fitting_batches(runs: Sequence[RunUsage]) -> Iterator[Finding]:
    """Yield from which batch size on the GPU is busy, and which batch size fits."""
    if (
        busy := find_smallest_busy_batch_across_runs([run.utilization_by_source for run in runs])
    ) is not None:
        batch, is_busy, share = busy
        over = f", mean of {share.gpus} GPUs" if share.gpus > 1 else ""
        threshold = f"({format_percent(BUSY)} of the time or more)"
        place_text = (
            f"{threshold} from batch {batch} on"
            if is_busy
            else f"at no measured batch size {threshold}, up to batch {batch}"
        )
        gpu, verb = name_gpu_and_verb([run.run for run in runs])
        text = f"{gpu} {verb} busy {place_text}: {format_percent(share.value or 0)} there{over}."
        yield Finding(text, "utilization")
    if fit := extrapolate_largest_fitting_batch([run.memory_use for run in runs]):
        yield Finding(
            f"Batch {fit.batch:,} is the largest that fits into {format_bytes(fit.limit)} (linear "
            f"fit to the reserved peaks of batches {', '.join(map(str, fit.batches))}: "
            f"{format_bytes(fit.fixed)} fixed plus {format_bytes(fit.per_sample)} per sample).",
            "memory",
        )


def describe_idle_gpu(
    runs: Sequence[PreparedRun], names: ShortNames, steps: Steps
) -> Iterator[Finding]:
    """Yield how much of the time the GPU ran kernels, with the cause of the idle time: of one
    report, or of the run of a sweep that is idle most, if that is much. At stake is the time of the
    main cause."""
    shares = []
    for run in runs:
        uses = [
            use
            for use in run.usage.device_and_stream_busy_times
            if use.stream is None and use.busy_share is not None
        ]
        if uses:
            shares.append((fmean(use.busy_share or 0 for use in uses), run, uses))
    share, prepared, devices = min(shares, key=lambda item: item[0], default=(1.0, None, []))
    is_idle = 1 - share >= IDLE_SHARE_MIN
    if prepared is None or (len(runs) > 1 and not is_idle):
        return
    low, high = (pick(devices, key=lambda busy: busy.running_ns) for pick in (min, max))
    # how much of little idle time can be saved is not known
    usage, fix, at_stake = prepared.usage, None, UNEXPLAINED * (1 - share)
    span = low.window + (format_at_batch(prepared.run.batch_size) if len(runs) > 1 else "")
    if len(devices) == 1:
        text = (
            f"{name_gpu_and_verb([prepared.run], low.device)[0]} ran kernels for "
            f"{format_percent(share)} "
            f"of the time {span}: {format_time(low.running_ns)} of {format_time(low.window_ns)}."
        )
    else:
        least, most = format_percent(low.busy_share or 0), format_percent(high.busy_share or 0)
        part = f"{least} (GPU {low.device}) to {most} (GPU {high.device})"
        part = f"{most} each" if least == most else part
        text = (
            f"{len(devices)} GPUs ran kernels for {part} of the {format_time(low.window_ns)} "
            f"{span}."
        )
    exposed = usage.time_breakdown.shares[COMMUNICATION] if usage.time_breakdown else 0.0
    if exposed >= COMMUNICATION_SHARE_MIN:
        text += f" For {format_percent(exposed)} of the time, only collectives ran."
    elif 1 - share < IDLE_SHARE_MIN / 4:
        text = f"Kernels run {format_percent(share)} of the time: only faster kernels help. {text}"
    idle = next((idle for idle in usage.idle_times if idle.device == low.device), None)
    if idle is not None and idle.by_cause and is_idle:
        cause = max(idle.by_cause, key=lambda cause: idle.by_cause[cause])
        at_stake = idle.by_cause[cause] / idle.window_ns
        gap = _describe_main_gap(low, idle, names) if len(devices) == 1 else ""
        if cause in (LAUNCH, HOST) and gap:
            text = f"{gap} {text}"
        else:
            steady_ns = low.window_ns - idle.by_cause.get(START, low.window_ns)
            after = (
                f" ({format_percent(low.running_ns / steady_ns)} busy without start-up)"
                if steady_ns
                else ""
            )
            ranges = (gap.around for gap in idle.largest if gap.cause == cause == DATA)
            longest = next(filter(None, ranges), None)
            details = f" The longest gap is in {shorten_name_middle(longest)}." if longest else ""
            if cause == START:
                details = " It loads code, compiles, tunes or warms up."
            gpu = "The GPU" if len(devices) == 1 else f"GPU {low.device}"
            all_idle = format_percent(1 - (low.busy_share or 0))
            part = "" if len(idle.by_cause) == 1 else f", {format_percent(at_stake)}"
            text = (
                f"{gpu} runs no kernel for {all_idle} of the time{part} while {_DURING[cause]}: "
                f"{format_time(idle.by_cause[cause])} of {format_time(idle.window_ns)}{after}."
                f"{details} {text} {gap}"
            ).rstrip()
        if fix := {DATA: LOAD_FIX, START: WARM_UP_FIX}.get(cause):
            text += f" {fix}."
    finding = Finding(text, "utilization", fix=fix)
    yield add_time_impact_and_fix(finding, at_stake, steps.get(prepared.run.batch_size))


def _describe_main_gap(busy: BusyTime, idle: DeviceIdleTime, names: ShortNames) -> str:
    """Return one gap that is most of the idle time; "" without one."""
    longest = idle.largest[0]
    remaining_ns = busy.window_ns - longest.length_ns
    if longest.length_ns < ONE_GAP_SHARE_MIN * sum(idle.by_cause.values()):
        return ""
    after, before = (
        (names.get(kernel.name) or shorten_kernel_name(kernel.name)) if kernel else None
        for kernel in (longest.after, longest.before)
    )
    ends = f" It lasts from {after} to {before}." if after and before else ""
    if longest.around:
        ends += f" The host was then in {shorten_name_middle(longest.around)}."
    return (
        f"One idle gap takes {format_time(longest.length_ns)} of {format_time(busy.window_ns)}; "
        f"without it, kernels ran for {format_percent(busy.running_ns / remaining_ns)} of "
        f"{format_time(remaining_ns)}.{ends}"
    )


def name_gpu_and_verb(runs: Iterable[Run], device_index: int | None = None) -> tuple[str, str]:
    """Return the GPU of these runs as a sentence begins, and its verb: "The NVIDIA A100", "is".

    It is "The GPU" if no run names it, "The GPUs" if there are several. ``device_index``: only this
    GPU.
    """
    gpus = [device for run in runs for device in run.devices if device.kind == "gpu"]
    meant = [device for device in gpus if device_index is not None and device.index == device_index]
    names = {device.name or "" for device in meant or gpus}
    if len(names) > 1:
        return "The GPUs", "are"
    name = next(iter(names), "")
    return (f"The {name}" if 0 < len(name) <= DEVICE_CHARACTERS_MAX else "The GPU"), "is"


def describe_timeline_causes(runs: RunVerdicts, steps: Steps) -> Iterator[Finding]:
    """Yield what could be faster by the timeline of the run where it costs most, and what to do."""
    for cause, run in pick_largest_verdict_per_rule(runs):
        suffix = f" ({run_label(run)})" if len(runs) > 1 else ""
        text = f"{cause.text}{suffix}. {cause.todo}"
        finding = Finding(text, "utilization", cause=cause.rule, fix=cause.todo)
        yield add_time_impact_and_fix(finding, cause.step_share, steps.get(run.batch_size))


def describe_copies(prepared: PreparedRun, steps: Steps) -> Iterator[Finding]:
    """Yield the time of copies and memsets next to that of kernels; both are sums, so overlapping
    time is in both. The time at stake is the time without a kernel."""
    run = prepared.run
    timed = [copy for copy in run.report.copies if copy.duration_ns is not None]
    kernels_ns = sum_durations_ns(run.report.kernels)
    if not timed or not kernels_ns:
        return
    migrations = [copy for copy in timed if is_unified_memory_migration(copy)]
    if migrations:
        yield _describe_unified_memory_migrations(migrations, prepared, steps)
    timed = [copy for copy in timed if not is_unified_memory_migration(copy)]
    copies_ns = sum_durations_ns(timed)
    if copies_ns < COPY_SHARE_MIN * (copies_ns + kernels_ns):
        return
    text = _describe_copy_sums(run, timed, kernels_ns)
    breakdown, window = prepared.usage.time_breakdown, prepared.usage.window
    # the share of the step has both copies and migrations
    at_stake = breakdown.shares[COPIES] if breakdown and not migrations else None
    copying = Intervals.make_from_items(timed)
    outside_ns = copying.total_ns - copying.measure_covered_ns(window.start, window.end)
    if not prepared.step_count and outside_ns > window.length_ns > 0:
        at_stake = copying.total_ns / window.length_ns
    yield add_time_impact_and_fix(Finding(text, "ranges"), at_stake, steps.get(run.batch_size))


def describe_allocations(prepared: PreparedRun, steps: Steps) -> Iterator[Finding]:
    """Yield how long calls that allocate or free memory block the host, if that is much."""
    window, calls = prepared.usage.window, prepared.usage.allocations
    if not window.length_ns or calls.blocked_ns < IDLE_SHARE_MIN * calls.captured_ns:
        return
    times = sorted(calls.by_name.items(), key=lambda item: -item[1])
    names = " and ".join(f"{name} ({format_time(length)})" for name, length in times[:2])
    text = (
        f"Memory calls, mostly {names}, block the host for "
        f"{format_percent(calls.blocked_ns / calls.captured_ns)} of "
        f"{format_time(calls.captured_ns)}. {ALLOCATION_FIX}."
    )
    if window.words == CAPTURE:
        text += (
            " The total is from the first to the last kernel, copy or memory call. The first such "
            "call may create the context and does not count."
        )
    at_stake, step = calls.blocked_ns / window.length_ns, steps.get(prepared.run.batch_size)
    yield add_time_impact_and_fix(Finding(text, "api", fix=ALLOCATION_FIX), at_stake, step)


def _describe_unified_memory_migrations(
    migrations: Sequence[Copy], prepared: PreparedRun, steps: Steps
) -> Finding:
    """Return what unified memory moved, and how long kernels waited for it."""
    window, moved = prepared.usage.window, Intervals.make_from_items(migrations)
    inside_ns = max(
        (
            running.measure_overlap_ns(moved)
            for running in window.kernel_intervals_by_device.values()
        ),
        default=0,
    )
    text = (
        f"{pluralize_count(len(migrations), 'migration')} of unified memory moved "
        f"{format_bytes(sum(copy.bytes or 0 for copy in migrations))} in "
        f"{format_time(moved.total_ns)}, {format_time(inside_ns)} of it while a kernel ran and "
        f"waited for the pages. {MIGRATION_FIX}."
    )
    share_inside = inside_ns / window.length_ns if window.length_ns else None
    finding = Finding(text, "ranges", fix=MIGRATION_FIX)
    return add_time_impact_and_fix(finding, share_inside, steps.get(prepared.run.batch_size))


def _describe_copy_sums(run: Run, timed: Sequence[Copy], kernels_ns: float) -> str:
    """Return the time and size of copies and memsets, next to the time of kernels."""
    copies_ns = sum_durations_ns(timed)
    sizes = [copy.bytes for copy in timed if copy.bytes is not None]
    amount = f" for {format_bytes(sum(sizes))}" if len(sizes) == len(timed) else ""
    number = (
        "1 copy or memset"
        if len(timed) == 1
        else f"{count_cell(len(timed)).text} copies and memsets"
    )
    share = format_percent(copies_ns / (copies_ns + kernels_ns))
    kernels = Intervals.make_from_items(run.report.kernels)
    copying = Intervals.make_from_items(timed)
    first, start = copying.first_start_and_last_end[0], kernels.first_start_and_last_end[0]
    most_ns, when = max(
        (copying.measure_covered_ns(first, start), "before the first kernel"),
        (copying.measure_overlap_ns(kernels), "while kernels run"),
    )
    split = f". Most of this time is {when}" if most_ns > copies_ns / 2 else ""
    return (
        f"{number} took {format_time(copies_ns)}{amount}: {share} of the summed time of copies and "
        f"kernels{split}."
    )


def shorten_name_middle(name: str) -> str:
    """Return a name with at most NAME_CHARACTERS_MAX characters, without its middle."""
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    half = NAME_CHARACTERS_MAX // 2
    return f"{name[:half]}…{name[1 - half :]}"


def describe_dlprof_utilization(prepared: PreparedRun) -> Iterator[Finding]:
    """Yield how busy DLProf's summary states that the GPU is, of a run without kernels."""
    share = prepared.usage.utilization_by_source.dlprof.value
    if share is not None:
        text = f"DLProf states that the GPU is busy for {format_percent(share)} of the time."
        yield Finding(text, "utilization")


def describe_gpu_samples(run: Run) -> Iterator[Finding]:
    """Yield what samples of the GPUs show over time: idle time or a low utilization, memory that
    grows, and what tensors took at most; else their power and memory, of a run without kernels."""
    findings = list(_describe_samples_over_time(run))
    yield from findings
    samples = [sample for sample in run.report.samples if not is_host_sample(sample)]
    powers = [sample.power_w for sample in samples if sample.power_w is not None]
    used = [sample.memory_used_bytes for sample in samples if sample.memory_used_bytes is not None]
    if findings or run.report.kernels or not (powers and used):
        return
    count = len({sample.device_index for sample in samples})
    readings = len({(sample.device_index, sample.at_ns) for sample in samples})
    yield Finding(
        f"{'The GPU' if count == 1 else f'{count} GPUs'} drew {min(powers):.3g} to "
        f"{max(powers):.3g} W{' each' if count > 1 else ''} and had at most "
        f"{format_bytes(max(used))} of memory in use ({readings:,} samples).",
        "utilization",
    )


def _describe_samples_over_time(run: Run) -> Iterator[Finding]:
    gpus = group_by(
        (sample for sample in run.report.samples if not is_host_sample(sample)),
        lambda sample: sample.device_index,
    )
    courses = [
        (device, samples, list_ns_and_value_of_field(samples, "gpu_utilisation"))
        for device, samples in gpus.items()
    ]
    courses.sort(key=lambda course: sum(share for _, share in course[2]))  # the idle GPU first
    for device, samples, points in courses:
        gpu = "The GPU" if len(gpus) == 1 or device is None else f"GPU {device}"
        if len(points) >= SAMPLES_MIN and (text := _describe_sampled_utilization(points)):
            yield Finding(f"{gpu} {text}", "utilization")
        for field, subject in _GROWING.items():
            points = list_ns_and_value_of_field(samples, field)
            if len(points) >= SAMPLES_MIN and (text := _describe_memory_growth_or_peak(points)):
                of_gpu = f" of {gpu}" if gpu != "The GPU" else ""
                yield Finding(f"{subject}{of_gpu} {text}", "memory")


def describe_throttling(runs: Iterable[Run]) -> Iterator[Finding]:
    """Yield in how many samples of a run the driver reduced the clocks: of the run with most."""
    shares = []
    for run in runs:
        texts = (sample.throttle_reasons for sample in run.report.samples)
        reasons = [SLOWDOWNS & set(text.split("+")) for text in texts if text is not None]
        slowed = list(filter(None, reasons))
        if slowed and len(reasons) >= SAMPLES_MIN:
            shares.append((len(slowed) / len(reasons), len(reasons), run, set().union(*slowed)))
    if not shares:
        return
    share, count_of_samples, run, names = max(shares, key=lambda item: item[0])
    if share >= THROTTLED_SHARE_MIN:
        text = (
            f"The driver reduced the GPU's clocks in {format_percent(share)} of "
            f"{count_of_samples:,} samples ({run_label(run)}): {', '.join(sorted(names))}."
        )
        yield Finding(text, "utilization")


def _describe_sampled_utilization(points: Sequence[tuple[int, float]]) -> str | None:
    """Return how long a GPU was idle by its samples, or how high its utilization is at most."""
    begin, length = points[0][0], points[-1][0] - points[0][0]
    idle = Intervals(
        (before, moment)
        for (before, _), (moment, share) in pairwise(points)
        if share <= IDLE_UTILIZATION_MAX
    )
    most = max(share for _, share in points)
    if idle.total_ns >= IDLE_SHARE_MIN * length > 0:
        part = "all" if idle.total_ns == length else format_percent(idle.total_ns / length)
        text = (
            f"was idle (sampled utilization of {IDLE_UTILIZATION_MAX:.0%} or less) for {part} of "
            f"the {format_time(length)} that the samples cover."
        )
        start, end = max(idle.pairs, key=lambda pair: pair[1] - pair[0])
        if end - start < length:
            text += (
                f" The longest stretch takes {format_time(end - start)}, from "
                f"{format_time(start - begin)} on."
            )
        return text
    mean = compute_time_weighted_mean(points)
    if mean is None:
        return None
    often = "is" if mean >= BUSY else "is at times" if most >= BUSY else "is never fully"
    return (
        f"{often} busy: its sampled utilization is {format_percent(mean)} on average and at most "
        f"{format_percent(most)} ({len(points):,} samples)."
    )


def _describe_memory_growth_or_peak(points: Sequence[tuple[int, float]]) -> str | None:
    """Return that memory grows through all of the samples, or its peak if it falls afterwards."""
    quarter = len(points) // 4
    first, second, _, last = (
        fmean(value for _, value in points[part * quarter : (part + 1) * quarter])
        for part in range(4)
    )
    begin = points[0][0]
    moment, most = max(points, key=lambda point: point[1])
    if (
        last > GROWTH_MIN * first
        and first + (last - first) / 10 < second < last - (last - first) / 10
    ):
        return (
            f"grows from {format_bytes(points[0][1])} to {format_bytes(most)} in "
            f"{format_time(points[-1][0] - begin)}."
        )
    if most > GROWTH_MIN * points[-1][1]:
        return (
            f"is at most {format_bytes(most)}, {format_time(moment - begin)} after the first "
            f"sample, and {format_bytes(points[-1][1])} at the last."
        )
    return None


def describe_launch_waits(analysis: Analysis, steps: Steps) -> Iterator[Finding]:
    """Yield the batch size whose step is mostly waiting for launches, by its kernel time."""
    waiting = [
        point.traffic
        for point in analysis.roofline.select_points_by_work_level("run")
        if point.bound == "launch" and point.traffic.busy
    ]
    if not waiting:
        return
    least = min(waiting, key=lambda work: work.busy or 0)
    gpu, verb = name_gpu_and_verb([prepared.run for prepared in analysis.study.prepared_runs])
    waits = "It waits" if verb == "is" else "They wait"
    text = (
        f"{gpu} {verb} busy for only {format_percent(least.busy or 0)} of a step"
        f"{format_at_batch(least.batch)} (median). {waits} for kernel launches."
    )
    if len(waiting) > 1:
        text += f" The share is below half of the step at {len(waiting)} batch sizes."
    yield add_time_impact_and_fix(
        Finding(text, "roofline"), 1 - (least.busy or 0), steps.get(least.batch)
    )


def describe_layers_with_most_time(study: Study, ledger: Ledger, steps: Steps) -> Iterator[Finding]:
    """Yield the layer with the most time at both ends of the sweep, all its passes together; then
    which pass. Nothing about a batch size at which something else takes more time. ``steps``: none
    in a sweep, whose differences come first."""
    by_batch: dict[int, dict[str, list[LedgerRow]]] = defaultdict(lambda: defaultdict(list))
    judged = _find_batches_with_complete_timing(study)
    for row in ledger.rows:
        is_judged = row.batch in judged and not isinstance(row.batch, str)
        if row.share is not None and row.trusted and is_judged:
            by_batch[row.batch_size_or_one][row.layer_label].append(row)
    for batch in {row.batch for row in ledger.rows if not isinstance(row.batch, str)}:
        places = by_batch.get(batch or 1, {})
        most = max(map(_sum_pass_shares, places.values()), default=0.0)
        if places and find_largest_other_share(study, ledger, batch) > most:
            del by_batch[batch or 1]
    if not by_batch:
        return
    low, high = (
        max(by_batch[batch].values(), key=_sum_pass_shares)
        for batch in (min(by_batch), max(by_batch))
    )
    first, last = low[0], high[0]
    share = format_percent(_sum_pass_shares(low))
    share_at_end = format_percent(_sum_pass_shares(high))
    has_ends = first.batch_size_or_one != last.batch_size_or_one
    is_same = first.layer_label == last.layer_label
    if is_same:
        end = f", {share_at_end}{last.batch_phrase}" if has_ends else ""
        text = (
            f"{_describe_largest_row(first)}: {share} of the {first.whole}"
            f"{first.batch_phrase}{end}."
        )
    else:
        text = (
            f"{_describe_largest_row(first)}{first.batch_phrase}: {share} of the {first.whole}. "
            f"{_describe_largest_row(last)}{last.batch_phrase}: {share_at_end}."
        )
    largest = [
        max(rows, key=lambda row: row.share or 0)
        for rows in ((low, high) if has_ends else (low,))
        if len(rows) > 1
    ]
    if largest and is_same and len({row.direction for row in largest}) == 1:
        shares = " and ".join(format_percent(row.share or 0) for row in largest)
        at_batches = largest[0].batch_phrase if has_ends and len(largest) == 1 else ""
        text += f" Its {largest[0].direction} pass takes {shares}{at_batches}."
    elif largest:
        passes = (
            f"{row.direction if is_same else row.name} with "
            f"{format_percent(row.share or 0)}{row.batch_phrase}"
            for row in largest
        )
        text += f" {'Its' if is_same else 'The'} largest pass is {' and '.join(passes)}."
    step = steps.get(first.batch)
    took = UNEXPLAINED * sum(row.time.median for row in low if row.time)
    yield add_time_impact_and_fix(
        Finding(text, "ledger"), took / step.median_ns if step else None, step
    )


def _find_batches_with_complete_timing(study: Study) -> set[Point]:
    """Return the batch sizes whose timed run is complete; all of them if none is."""
    statuses = {
        batch.batch: batch.timing_run.run.status
        for batch in study.prepared_batches
        if batch.timing_run
    }
    return {batch for batch, status in statuses.items() if status == "ok"} or {*statuses}


def _sum_pass_shares(rows: Iterable[LedgerRow]) -> float:
    """Return the share of a layer, its passes added up: each is a mean over the same total."""
    return sum(row.share or 0 for row in rows)


def _describe_largest_row(row: LedgerRow) -> str:
    """Return that a row takes the most time of the ledger. It is not the most of the step, which
    may be idle or of no layer."""
    if row.layer_label == "optimizer":
        return "The optimizer takes more time than any layer"
    name = row.layer_label
    if len(name) > LAYER_CHARACTERS_MAX:
        name = f"…{name[1 - LAYER_CHARACTERS_MAX :]}"
    return (
        f"{name} {'is the most expensive layer' if row.layer else 'takes more time than any layer'}"
    )


def describe_unattributed_time(study: Study, ledger: Ledger) -> Iterator[Finding]:
    """Yield the share of the time that belongs to no layer, with its causes."""
    judged = _find_batches_with_complete_timing(study)
    items = (item for item in ledger.unattributed if item.batch in judged)
    largest = max(items, key=lambda item: item.share, default=None)
    if largest is None or largest.share <= UNATTRIBUTED_SHARE_MIN:
        return
    run = study.get_batch(largest.batch).timing_run
    causes = []
    for cause in explain_unattributed_time(run) if run else ():
        if cause.share >= UNATTRIBUTED_CAUSE_SHARE_MIN:
            launches = f", {pluralize_count(cause.launches, 'launch')}" if cause.launches else ""
            causes.append(f"{cause.text} ({format_percent(cause.share * largest.share)}{launches})")
    text = (
        f"{format_percent(largest.share)} of the {largest.whole}{format_at_batch(largest.batch)} "
        "is not attributed to a layer"
    )
    if causes:
        text += f": mostly {' and '.join(filter(None, (', '.join(causes[:-1]), causes[-1])))}"
    for reason in list_reasons_for_untimed_kernels(run.run) if run else ():
        text += f". This time does not include all kernels: {reason}"
    yield Finding(f"{text}.", "ledger")


def describe_time_per_sample_by_batch(
    study: Study, points: Sequence[BatchPoint]
) -> Iterator[Finding]:
    """Yield how the time per sample changes with the batch size, unless the steps scatter by more
    or other programs kept the CPU busy."""
    timed = [point for point in points if point.step_ns_per_sample and point.is_complete]
    if timed and (reason := explain_cpu_contention(study.runs)) is not None:
        effect = "Times cannot be compared between batch sizes"
        effect = effect if timed[1:] else "Do not rely on the times"
        text = f"{effect}: {reason}. {BUSY_CPU_FIX}."
        yield Finding(text, "sweep", warning=True, fix=BUSY_CPU_FIX)
        return
    if len(timed) < 2:
        return
    first, last = timed[0], timed[-1]
    ranges = [
        (point.step.low / point.samples, point.step.high / point.samples)
        for point in (first, last)
        if point.step and point.samples
    ]
    is_overlapping = max(low for low, _ in ranges) <= min(high for _, high in ranges)
    assert first.step_ns_per_sample and last.step_ns_per_sample
    factor = first.step_ns_per_sample / last.step_ns_per_sample
    between = ", ".join(
        f"{format_step_times(point.step, point.samples or 1)} at batch {point.batch}"
        for point in (first, last)
        if point.step
    )
    best = min(timed, key=lambda point: point.step_ns_per_sample or 0)
    if 0.95 < factor < 1.05 and (best.step_ns_per_sample or 0) > 0.9 * first.step_ns_per_sample:
        yield Finding(f"Time per sample hardly changes with the batch size: {between}.", "sweep")
        return
    if best.batch not in (first.batch, last.batch):
        between += (
            f". It is lowest at batch {best.batch} with {format_time(best.step_ns_per_sample or 0)}"
        )
    text = (
        f"{'falls' if factor > 1 else 'grows'} with the batch size by a factor of "
        f"{max(factor, 1 / factor):.1f}"
    )
    if is_overlapping:
        text = "is too noisy to compare the smallest and the largest batch size"
    yield Finding(f"Time per sample {text}: {between}.", "sweep")
