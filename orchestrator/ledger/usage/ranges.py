"""Time of the ranges of a run, by name: on the GPU and on the host, which are not the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from perfctl.records.report import Range
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
    """Every name once, in order of first appearance. Ranges without an end are left out; nested
    ones overlap."""
    groups: dict[tuple[str, str | None], list[Range]] = defaultdict(list)
    for item in run.report.ranges:
        if item.duration_ns is not None:
            groups[item.name, item.domain].append(item)
    found = []
    for (name, domain), same in groups.items():
        host = [item.duration_ns or 0 for item in same]
        gpu, span = _known(item.gpu_ns for item in same), _known(item.gpu_span_ns for item in same)
        found.append(RangeTotal(run, name, domain, len(same), gpu, span, sum(host), max(host)))
    return tuple(found)


def _known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


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
    """The ranges of a run on the GPU's time line, in their order, once for each GPU. Empty where no
    kernel names its range."""
    ranges = {item.number: item for item in run.report.ranges}
    own: dict[tuple[int, int], tuple[int, int]] = {}
    for kernel in run.report.kernels:
        if (
            kernel.range_number in ranges
            and kernel.start_ns is not None
            and kernel.duration_ns is not None
        ):
            place = kernel.range_number, kernel.device_index or 0
            own[place] = _around(
                own.get(place), kernel.start_ns, kernel.start_ns + round(kernel.duration_ns)
            )
    whole: dict[tuple[int, int], tuple[int, int]] = {}
    for (number, device), (start, end) in own.items():
        at: int | None = number
        seen: set[int] = set()
        while at is not None and at in ranges and at not in seen:
            seen.add(at)
            whole[at, device] = _around(whole.get((at, device)), start, end)
            at = ranges[at].parent
    return tuple(
        Projection(ranges[number], device, *span)
        for (number, device), span in sorted(whole.items())
    )


def _around(known: tuple[int, int] | None, start: int, end: int) -> tuple[int, int]:
    return (start, end) if known is None else (min(known[0], start), max(known[1], end))
