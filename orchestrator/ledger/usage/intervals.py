"""Sets of time intervals: when kernels, copies and ranges ran, and the idle gaps between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub

from perfctl.records.report import Collective, Copy, Kernel, OpCall, Range, Step

Timed = Kernel | Copy | Range | Collective | OpCall | Step


class Intervals:
    """Intervals in ns, ascending and without overlap."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Join those of ``pairs`` (start, end) that touch or overlap."""
        starts: list[int] = []
        ends: list[int] = []
        last = 0
        for start, end in sorted(pairs):
            if not ends or start > last:
                starts.append(start)
                ends.append(end)
                last = end
            elif end > last:
                ends[-1] = last = end
        self.pairs = list(zip(starts, ends, strict=True))
        self._starts = starts
        self._sums: list[int] = [0, *accumulate(map(sub, ends, starts))]

    @classmethod
    def make_from_items(cls, items: Iterable[Timed]) -> Intervals:
        """Return when any of ``items`` ran, without those that lack a start or a duration."""
        return cls(
            # without a call for each: there may be millions
            (item.start_ns, item.start_ns + round(item.duration_ns))
            for item in items
            if item.start_ns is not None and item.duration_ns is not None
        )

    @property
    def total_ns(self) -> int:
        """Sum of all intervals."""
        return self._sums[-1]

    @property
    def first_start_and_last_end(self) -> tuple[int, int]:
        """Start of the first interval and end of the last; (0, 0) without any."""
        return (self.pairs[0][0], self.pairs[-1][1]) if self.pairs else (0, 0)

    @property
    def span_ns(self) -> int:
        """Time from the start of the first interval to the end of the last."""
        start, end = self.first_start_and_last_end
        return end - start

    def measure_covered_ns(self, start: int, end: int) -> int:
        """Return how much of the time from ``start`` to ``end`` the intervals cover."""
        return self._measure_covered_ns_before(end) - self._measure_covered_ns_before(start)

    def _measure_covered_ns_before(self, moment: int) -> int:
        index = bisect_right(self._starts, moment) - 1
        if index < 0:
            return 0
        start, end = self.pairs[index]
        return self._sums[index] + min(moment, end) - start

    def measure_overlap_ns(self, other: Intervals) -> int:
        """Return how much of these intervals ``other`` covers."""
        return sum(other.measure_covered_ns(start, end) for start, end in self.pairs)

    def find_shortest_span_with_coverage(self, covered_ns: float) -> tuple[int, int]:
        """Return start and end of the shortest time that holds intervals of this length in all."""
        spans = []
        last = 0
        for first, (start, _) in enumerate(self.pairs):
            while last < len(self.pairs) and self._sums[last] - self._sums[first] < covered_ns:
                last += 1
            if self._sums[last] - self._sums[first] >= covered_ns:
                spans.append((start, self.pairs[max(last, 1) - 1][1]))
        return min(spans, key=lambda span: span[1] - span[0], default=(0, 0))

    def find_uncovered_gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return what the intervals leave uncovered of the time from ``start`` to ``end``."""
        gaps = []
        covered_until = start
        for begin, stop in self.pairs:
            if begin >= end:
                break
            if begin > covered_until:
                gaps.append((covered_until, begin))
            covered_until = max(covered_until, stop)
        if covered_until < end:
            gaps.append((covered_until, end))
        return gaps


def has_start_and_duration(item: Timed) -> bool:
    """Return True if an item states its start and its duration."""
    return item.start_ns is not None and item.duration_ns is not None


def get_start_ns(item: Timed) -> int:
    """Return when an item started, in ns on the report's clock."""
    return item.start_ns or 0


def get_end_ns(item: Timed) -> int:
    """Return when an item ended, in ns on the report's clock."""
    return (item.start_ns or 0) + round(item.duration_ns or 0)


def measure_any_kernel_running_ns(kernels: Sequence[Kernel]) -> int | None:
    """Return the time in which at least one of the kernels ran; None without kernels, and if one
    has no start or no duration."""
    return (
        Intervals.make_from_items(kernels).total_ns
        if kernels and all(map(has_start_and_duration, kernels))
        else None
    )


def sum_durations_ns(items: Iterable[Timed]) -> float:
    """Return the durations of the items added up; one that is not known counts as 0."""
    return sum(item.duration_ns or 0 for item in items)
