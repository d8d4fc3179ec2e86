"""Time of the ranges of a run, by name: on the GPU and on the host, which are not the same."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from perfctl.orchestrator.ledger.usage.intervals import end_of
from perfctl.records.report import Kernel, Range
from perfctl.records.run import Run


@dataclass(frozen=True, slots=True)
class RangeTotal:
    """All ranges of one name and domain in one run, in nanoseconds."""

    run: Run
    name: str
    domain: str | None
    times: int
    gpu_ns: int | None
    """Of the kernels, copies and memsets that were launched inside, added up. None: the report does
    not say."""
    span_ns: int | None
    """From the first start to the last end of these in each range, added up: the projection of
    nsys' nvtx_gpu_proj_sum."""
    host_ns: int
    longest_ns: int


def range_totals(run: Run) -> tuple[RangeTotal, ...]:
    """Return every name once, in order of first appearance. Ranges without an end are left out;
    nested ones overlap."""
    groups: dict[tuple[str, str | None], list[Range]] = defaultdict(list)
    for item in run.report.ranges:
        if item.duration_ns is not None:
            groups[item.name, item.domain].append(item)
    totals = []
    for (name, domain), ranges in groups.items():
        host = [item.duration_ns or 0 for item in ranges]
        gpu = [item.gpu_ns for item in ranges if item.gpu_ns is not None]
        span = [item.gpu_span_ns for item in ranges if item.gpu_span_ns is not None]
        totals.append(
            RangeTotal(
                run=run,
                name=name,
                domain=domain,
                times=len(ranges),
                gpu_ns=sum(gpu) if gpu else None,
                span_ns=sum(span) if span else None,
                host_ns=sum(host),
                longest_ns=max(host),
            )
        )
    return tuple(totals)


@dataclass(frozen=True, slots=True)
class Projection:
    """Where one range's kernels ran on one GPU, those of the ranges inside it included."""

    range: Range
    device: int
    start_ns: int
    """Of the first kernel that was launched inside; ``end_ns`` of the last one. Copies are not in
    it: a report joins them to ranges for ``Range.gpu_span_ns``, and does not say which."""
    end_ns: int


def projections(run: Run) -> tuple[Projection, ...]:
    """Return the ranges of a run on the GPU's time line, in their order, once for each GPU. Empty
    where no kernel names its range."""
    ranges = {item.number: item for item in run.report.ranges}
    own: dict[tuple[int, int], list[Kernel]] = defaultdict(list)
    for kernel in run.report.kernels:
        is_timed = kernel.start_ns is not None and kernel.duration_ns is not None
        if is_timed and kernel.range_number in ranges:
            own[kernel.range_number, kernel.device_index or 0].append(kernel)
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for (number, device), kernels in own.items():
        first, last = min(kernel.start_ns or 0 for kernel in kernels), max(map(end_of, kernels))
        around: set[int] = set()
        outer: int | None = number
        while outer is not None and outer in ranges and outer not in around:
            around.add(outer)
            start, end = spans.get((outer, device), (first, last))
            spans[outer, device] = min(start, first), max(end, last)
            outer = ranges[outer].parent
    return tuple(
        Projection(ranges[number], device, *span)
        for (number, device), span in sorted(spans.items())
    )
