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
    """Of the kernels, copies and memsets that were launched inside, added up. None: the report does not say."""
    span_ns: int | None
    """From the first start to the last end of these in each range, added up: the projection of nsys' nvtx_gpu_proj_sum."""
    host_ns: int
    longest_ns: int


def range_totals(run: Run) -> tuple[RangeTotal, ...]:
    """Every name once, in order of first appearance. Ranges without an end are left out; nested ones overlap."""
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
