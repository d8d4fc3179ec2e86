"""Findings about the kernels, ranges and calls of a report whose layers are unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfctl.orchestrator.counts.counters.amd import is_amd_run
from perfctl.orchestrator.counts.counters.work import KernelFlops
from perfctl.orchestrator.counts.figure import sum_figures
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_name
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.roofline import SATURATED, Roofline
from perfctl.orchestrator.ledger.usage.intervals import sum_durations_ns
from perfctl.orchestrator.ledger.usage.run_usage import COLLECTIVE, sum_ranges_by_name
from perfctl.orchestrator.ledger.usage.sums import (
    COPIES,
    KERNELS,
    SYSTEM_CALLS,
    SumGroup,
    get_host_else_device_ns,
    group_summed_operations,
)
from perfctl.orchestrator.report.findings.step import shorten_name_middle
from perfctl.orchestrator.report.ledger.roofline import describe_roofline_bound
from perfctl.orchestrator.report.numbers import format_percent, format_si, format_time
from perfctl.orchestrator.report.page.kernels import (
    NO_FLOPS,
    PATHS,
    merge_ncu_advice_by_rule_and_kernel,
)
from perfctl.orchestrator.report.page.records import (
    UNEXPLAINED,
    Finding,
    Steps,
    add_time_impact_and_fix,
)
from perfctl.orchestrator.report.tables import ShortNames, count_cell
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import pluralize_count
from perfctl.records.run import Run

MAIN_SHARE_MIN = 0.9
"""Share of a family's time from which on its largest kernel is named and not the family."""
SMALL_SHARE_MIN = 0.5
"""Share of the kernel time in small grids from which on they are a finding."""
GRID_FIX = "Give each launch more blocks: larger batches, fused layers, or a split of long sums"


def describe_kernel_with_most_time(
    prepared: PreparedRun, names: ShortNames, steps: Steps
) -> Iterator[Finding]:
    """Yield the family of kernels with the most time, and the kernel with the most of it. Time of
    collectives that computation hides does not count."""
    run, usage = prepared.run, prepared.usage
    families, total = usage.kernels_by_family, sum_durations_ns(run.report.kernels)
    if not total:
        return
    family, kernels = next(iter(families.items()))
    by_name = group_by(kernels, lambda kernel: kernel.name)
    name = max(by_name, key=lambda name: sum_durations_ns(by_name[name]))
    largest_ns, family_ns = sum_durations_ns(by_name[name]), sum_durations_ns(kernels)
    short, share = names.get(name) or shorten_kernel_name(name), format_percent(largest_ns / total)
    length, launches = format_time(largest_ns), pluralize_count(len(by_name[name]), "launch")
    is_only = len(families) == len(by_name) == 1
    text = f"{short} takes {share} of the kernel time ({length}, {launches})."
    if is_only:
        text = f"{short} is the only kernel: {launches}, {length}."
    elif len(families) > 1 and largest_ns < MAIN_SHARE_MIN * family_ns:
        text = (
            f"Kernels of the family {family} take {format_percent(family_ns / total)} of the "
            f"kernel time ({format_time(family_ns)}, {pluralize_count(len(kernels), 'launch')}), "
            f"{short} {share}."
        )
    hidden_ns = sum_durations_ns(families.get(COLLECTIVE, ()))
    if hidden_ns > family_ns:
        text += (
            f" Collectives take {format_percent(hidden_ns / total)} ({format_time(hidden_ns)}), "
            "but most of it overlaps with computation."
        )
    if run.profiler == "ncu":
        derived = ", derived from cycles and clock rate" if run.time_derivation else ""
        text += f" This time is under ncu, at locked clocks{derived}."
    # ncu's advice states what can be saved
    is_advised = is_only and run.report.advice
    exposed_share = usage.measure_exposed_ns(family, kernels) / usage.recorded_ns
    at_stake = None if is_advised else UNEXPLAINED * exposed_share
    yield add_time_impact_and_fix(Finding(text, "kernels"), at_stake, steps.get(run.batch_size))


def describe_small_grids(prepared: PreparedRun, steps: Steps) -> Iterator[Finding]:
    """Yield in how much of the kernel time launches leave SMs without a block, if that is most of
    it. Without the number of SMs, launches below one wave."""
    run, small = prepared.run, prepared.small_grids
    if small is None or small.share < SMALL_SHARE_MIN:
        return
    idle = format_percent(small.idle_share)
    units = "compute units" if is_amd_run(run) else "SMs"
    which = "have too few blocks to fill the GPU once"
    empty = f"{idle} of a wave (the blocks that run at the same time) is empty"
    if small.sms:
        which = f"have fewer blocks than the {small.sms} {units} of the GPU"
        empty = f"at least {idle} of the {units} have no block"
    text = (
        f"For {format_percent(small.share)} of the kernel time, launches {which}. On average, "
        f"{empty}. {GRID_FIX}."
    )
    at_stake = small.idle_share * small.kernels_ns / prepared.usage.recorded_ns
    yield add_time_impact_and_fix(
        Finding(text, "kernels", fix=GRID_FIX), at_stake, steps.get(run.batch_size)
    )


def describe_largest_ncu_saving(
    prepared: PreparedRun, names: ShortNames, steps: Steps
) -> Iterator[Finding]:
    """Yield the rule of ncu that would save the most time in a kernel, by ncu's own estimates for
    complete launches; without one, what ncu says of the kernel with the most time."""
    run = prepared.run
    times: dict[str | None, float] = defaultdict(float)
    for kernel in run.report.kernels:
        times[kernel.name] += kernel.duration_ns or 0
    results = (
        (saved_ns, times[name], name, best)
        for saved_ns, name, best, _ in merge_ncu_advice_by_rule_and_kernel(run)
        if name is not None and (saved_ns or best.rule == "SOLBottleneck")
    )
    saved_ns, _, name, best = max(results, key=lambda item: item[:2], default=(0, 0, None, None))
    if name is None or best is None:
        return
    kernel_name = names.get(name) or shorten_kernel_name(name)
    text = f"{best.text} (ncu's rule {best.rule}, {kernel_name})"
    if saved_ns:
        text = (
            f"Of ncu's estimates for complete launches, rule {best.rule} saves most: up to "
            f"{format_time(saved_ns)}, {format_percent(best.estimated_speedup or 0)} of a launch. "
            f"In {kernel_name}: "
            f"{best.text}"
        )
    at_stake_ns = saved_ns or UNEXPLAINED * times[name]  # what a bottleneck costs is not known
    at_stake = at_stake_ns / prepared.usage.recorded_ns if at_stake_ns else None
    yield add_time_impact_and_fix(Finding(text, "advice"), at_stake, steps.get(run.batch_size))


def describe_longest_kernel_bound(roofs: Roofline, names: ShortNames) -> Iterator[Finding]:
    """Yield what bounds the kernel with the most time, if FLOPs or bytes say so. Its share of the
    kernel time is at stake where it is near the roof."""
    points = [point for point in roofs.kernel_points if point.bound in ("compute", "memory")]
    point = max(points, key=lambda point: point.traffic.time_ns or 0, default=None)
    if point is not None and not point.refused:
        name = point.traffic.name
        text = (
            f"{names.get(name) or shorten_kernel_name(name)} is "
            f"{describe_roofline_bound(point, roofs)}."
        )
        total_ns = sum(item.traffic.time_ns or 0 for item in roofs.kernel_points)
        near_ns = point.traffic.time_ns if (point.reached or 0) >= SATURATED else None
        yield Finding(text, "roofline", impact_ns=near_ns, step_ns=total_ns)


def describe_largest_operation_sums(run: Run) -> Iterator[Finding]:
    """Yield what takes the most time among the kernels, copies and calls of a report that has only
    sums, what copies take next to kernels, and the kernel with the most FLOPs."""
    groups = group_summed_operations([run])
    times: dict[SumGroup, dict[tuple[str, int], tuple[int, int]]] = defaultdict(dict)
    for group, pairs in groups.items():
        for number, (_, operation) in enumerate(pairs if group.quantity else ()):
            if (length := get_host_else_device_ns(operation)) is not None:
                # several kernels may have one truncated name
                key = operation.name, number if operation.name.endswith("…") else 0
                earlier_ns, earlier_calls = times[group].get(key, (0, 0))
                times[group][key] = earlier_ns + length, earlier_calls + operation.calls
    totals = {group: sum(ns for ns, _ in sums.values()) for group, sums in times.items()}
    kernels_ns, copies_ns = totals.get(KERNELS, 0), totals.get(COPIES, 0)
    share = format_percent(copies_ns / (kernels_ns + copies_ns)) if kernels_ns and copies_ns else ""
    of_copies = Finding(
        f"Copies and memsets take {format_time(copies_ns)}, {share} of the summed time of copies "
        "and kernels.",
        "operators",
    )
    if share and copies_ns > kernels_ns:
        yield of_copies
    for group, total in totals.items():
        # most of them wait in threads beside the program's work
        if total and (group is not SYSTEM_CALLS or len(totals) == 1):
            (name, _), (length, calls) = max(times[group].items(), key=lambda item: item[1])
            yield Finding(
                f"{shorten_name_middle(name)} takes {format_percent(length / total)} of "
                f"{group.quantity}: {format_time(length)} of {format_time(total)}, {calls:,} "
                f"{group.singular if calls == 1 else group.plural}.",
                "operators",
            )
    if share and copies_ns <= kernels_ns:
        yield of_copies
    flops = [(item.flops, item) for _, item in groups.get(KERNELS, ()) if item.flops]
    if flops:
        most, kernel = max(flops, key=lambda pair: pair[0])
        share = format_percent(most / sum(value for value, _ in flops))
        yield Finding(
            f"{shorten_name_middle(kernel.name)} executed {format_si(most)}FLOP in "
            f"{pluralize_count(kernel.calls, 'launch')}, {share} of the FLOPs that the report "
            "states.",
            "operators",
        )


def describe_longest_api_call(run: Run) -> Iterator[Finding]:
    """Yield the call of the CUDA or HIP runtime with the most time, of a report without kernels."""
    calls = [
        call for call in run.report.api_calls if call.domain in ("cuda", "hip") and call.total_ns
    ]
    if calls:
        longest = max(calls, key=lambda call: call.total_ns or 0)
        share = format_percent((longest.total_ns or 0) / sum(call.total_ns or 0 for call in calls))
        yield Finding(
            f"{longest.name} takes {share} of the host time of {longest.domain.upper()} calls "
            f"({format_time(longest.total_ns or 0)}).",
            "api",
        )


def describe_kernel_with_most_flops(
    run: Run, flops: dict[int, KernelFlops], names: ShortNames
) -> Iterator[Finding]:
    """Yield the kernel that executed the most FLOPs, and on which path."""
    if not flops:
        return
    kernels = group_by(run.report.kernels, lambda kernel: kernel.name)
    groups = {
        name: [flops.get(kernel.launch, NO_FLOPS) for kernel in same]
        for name, same in kernels.items()
    }
    sums = {name: sum_figures(item.total for item in same) for name, same in groups.items()}
    positive = {name: figure for name, figure in sums.items() if figure.value}
    if not positive:
        if all(figure.value == 0 and not figure.lower_bound for figure in sums.values()):
            yield Finding("The counters recorded no floating-point operations.", "kernels")
        return
    name, figure = max(positive.items(), key=lambda item: item[1].value or 0)
    paths = {path: sum_figures(getattr(item, path) for item in groups[name]) for path in PATHS}
    path, part = max(paths.items(), key=lambda item: item[1].value or 0)
    share = (part.value or 0) / (figure.value or 1)
    most = "" if len(groups) == 1 else ", the most of all kernels"
    which = f"All of it is {path}" if share == 1 else f"{format_percent(share)} of it is {path}"
    about = {"estimated": "about ", "derived": "by its rule "}.get(figure.state, "")
    about = f"at least {about}" if figure.lower_bound else about
    amount = f"{about}{format_si(figure.value or 0)}FLOP"
    launches = pluralize_count(len(groups[name]), "launch")
    rule = f" (approximate: {part.reason})" if part.state == "estimated" and part.reason else ""
    yield Finding(
        f"{names.get(name) or shorten_kernel_name(name)} executed {amount} in "
        f"{launches}{most}. {which}{rule}.",
        "kernels",
    )


def describe_constant_move_instructions(prepared: PreparedRun) -> Iterator[Finding]:
    """Yield the HFMA and tensor instructions that only move constants, and are in no count."""
    launches = [
        launch
        for launch, flops in prepared.flops_by_launch.items()
        if flops.fp16.value is not None and flops.fp16.only_moves_constants
    ]
    if launches:
        yield Finding(
            f"HFMA and tensor instructions of {pluralize_count(len(launches), 'launch')} only "
            "moved constants. They are no arithmetic, and the executed FLOPs do not include them.",
            "kernels",
        )


def describe_range_with_most_gpu_time(run: Run) -> Iterator[Finding]:
    """Yield the range that launched the most GPU time, next to the time of the host in it."""
    timed = [item for item in sum_ranges_by_name(run) if item.gpu_ns]
    if timed:
        top = max(timed, key=lambda item: item.gpu_ns or 0)
        times = "" if top.times == 1 else f" in {count_cell(top.times).text} times"
        yield Finding(
            f"Range {shorten_name_middle(top.name)} launched the most GPU time: "
            f"{format_time(top.gpu_ns or 0)}{times}. The host spent "
            f"{format_time(top.host_ns)} in it.",
            "ranges",
        )
