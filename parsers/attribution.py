"""Which range encloses a launch call: kernel -> launch call -> innermost push/pop range of
its thread.

Everything is arrays, one element a range or a call. Intervals of one thread are sorted by start,
the longer first. Among those before it in that order, the nearest one that ends no earlier is the
innermost one around it. That holds for ranges that nest and for ranges that cross (two NVTX
domains), that never end, or that start before the report's time 0. No Python loop runs over ranges
or calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEVER = 2**63 - 1
"""The end of a range that never ended."""
NOBODY = -1
"""Stands for an unknown thread or process, and for "no range" in an index."""
SLICE = 1 << 18
"""Calls per batch: memory of arrays of this size is reused; larger ones are allocated anew
each time."""

_SPARSE = 8
"""Ids are looked up in a table while it has at most this many places for each of them."""


class SpanArrays(NamedTuple):
    """Ranges or launch calls, one per element; arrays of int64 of equal length."""

    process: Integers
    """A number per process; NOBODY when unknown."""
    thread: Integers
    """A number per thread, unique across processes; NOBODY when unknown."""
    start: Integers
    """ns; may be negative."""
    end: Integers
    """ns; NEVER for a range that never ended."""

    def select_spans(self, index: npt.NDArray[Any]) -> SpanArrays:
        """Return the spans at ``index``, in its order; a negative index gives a span of
        no thread."""
        if not len(self.start):
            nobody, zero = np.full(len(index), NOBODY), np.zeros(len(index), np.int64)
            return SpanArrays(nobody, nobody, zero, zero)
        process, thread = (
            np.where(index >= 0, ids[index], NOBODY) for ids in (self.process, self.thread)
        )
        return SpanArrays(process, thread, self.start[index], self.end[index])


class EnclosingRanges(NamedTuple):
    """For every call: the number of the range, NOBODY where there is none."""

    innermost: npt.NDArray[Any]
    layer: npt.NDArray[Any]
    """Innermost range that names a layer; other ranges may lie between it and the call."""
    step: npt.NDArray[Any]
    """By time (see ``_find_marked_by_time_in_process``) where the call's own thread has none."""


class IntervalNest:
    """Sorted intervals of several groups (threads or processes), to look up which one
    encloses another."""

    def __init__(self, group: Integers, start: Integers, end: Integers) -> None:
        """Equally long int64 arrays; ``end`` is never before ``start``."""
        self._order = np.lexsort((np.negative(end), start, group))
        self._group, self._start, self._end = (
            values[self._order] for values in (group, start, end)
        )
        self._rungs = _build_binary_lifting_ancestors(self._group, self._end)
        self._numbers = np.append(self._order, NOBODY)
        values, firsts = np.unique(self._group, return_index=True)
        self._bounds = list(zip(values, firsts, np.append(firsts[1:], len(group)), strict=False))
        """(group, first, behind the last) of each group, among the sorted intervals."""

    def find_parents(self) -> Integers:
        """Return the index of the interval directly around each one, NOBODY at the top."""
        parents = np.full(len(self._order), NOBODY)
        parents[self._order] = _lookup_or_nobody(self._order, self._rungs[0])
        return parents

    def compute_depths(self) -> Integers:
        """Return how many parents are above each one."""
        above = self._rungs[0].copy()
        depths = (above >= 0).astype(np.int64)
        while (live := np.flatnonzero(above >= 0)).size:
            depths[live] += depths[above[live]]
            above[live] = above[above[live]]
        unsorted = np.empty_like(depths)
        unsorted[self._order] = depths
        return unsorted

    def find_last_started_positions(self, group: Integers, start: Integers) -> Integers:
        """Return where ``start`` falls among the intervals of its group: the input of
        ``find_innermost_around``."""
        places = np.full(len(start), NOBODY)
        for value, first, last in self._bounds:
            if value == NOBODY:
                continue
            members = np.flatnonzero(group == value)
            before = np.searchsorted(self._start[first:last], start[members], side="right")
            places[members] = np.where(before > 0, first + before - 1, NOBODY)
        return places

    def find_innermost_around(self, positions: Integers, end: Integers) -> Integers:
        """Return the index of the innermost interval around each (place, end), NOBODY where there
        is none."""
        return np.asarray(
            self._numbers[_climb_to_enclosing_interval(self._rungs, self._end, positions, end)]
        )

    def iterate_outwards(self, positions: Integers, end: Integers) -> Iterator[Integers]:
        """Yield, for all (place, end), the innermost interval around each, then the next one
        outwards, until none is left.

        Crossing intervals count too, though none of them is a parent of the other.
        """
        index = _climb_to_enclosing_interval(self._rungs, self._end, positions, end)
        while (index >= 0).any():
            yield self._numbers[index]
            before = np.maximum(index - 1, NOBODY)
            before[(index < 0) | (before < 0)] = NOBODY
            before[self._group[before] != self._group[index]] = NOBODY
            index = _climb_to_enclosing_interval(self._rungs, self._end, before, end)


class RangeAttribution:
    """The ranges of a report, to look up which of them enclose a launch call.

    Only ``push_pop`` ranges enclose anything: start/end ranges belong to no thread's stack.
    """

    def __init__(
        self, ranges: SpanArrays, push_pop: Flags, layer: Flags, step: Flags, phase: Flags
    ) -> None:
        """``layer``, ``step`` and ``phase`` mark the ranges that name one."""
        self._ranges = ranges
        marks = {"any": push_pop, "layer": layer, "step": step, "phase": phase}
        self._numbers: dict[str, Integers] = {}
        self._nests: dict[str, IntervalNest] = {}
        for name, mark in marks.items():
            numbers = np.flatnonzero(push_pop & mark)
            marked = ranges.select_spans(numbers)
            self._numbers[name] = np.append(numbers, NOBODY)
            self._nests[name] = IntervalNest(marked.thread, marked.start, marked.end)
        stack, nest = self._numbers["any"][:-1], self._nests["any"]
        parent = np.full(len(ranges.start), NOBODY)
        depth = parent.copy()
        parent[stack] = self._numbers["any"][nest.find_parents()]
        depth[stack] = nest.compute_depths()
        self.parents_and_depths = parent, depth
        """Of every range; NOBODY and NOBODY for those that are not push/pop."""

    def find_ranges_around_calls(self, calls: SpanArrays) -> EnclosingRanges:
        """Find what encloses each call."""
        innermost, layer = (
            self._find_innermost_marked_on_thread(mark, calls) for mark in ("any", "layer")
        )
        return EnclosingRanges(
            innermost, layer, self._find_marked_on_thread_or_by_time("step", calls)
        )

    def find_step_and_phase_ranges(self) -> tuple[Integers, Integers]:
        """Return (step range, phase range) around every range; a step range is its own step."""
        step, phase = (
            self._find_marked_on_thread_or_by_time(mark, self._ranges) for mark in ("step", "phase")
        )
        return step, phase

    def _find_innermost_marked_on_thread(self, mark: str, spans: SpanArrays) -> Integers:
        """Return the innermost range with the mark around each span, on its own thread."""
        nest = self._nests[mark]
        places = nest.find_last_started_positions(spans.thread, spans.start)
        return np.asarray(self._numbers[mark][nest.find_innermost_around(places, spans.end)])

    def _find_marked_on_thread_or_by_time(self, mark: str, spans: SpanArrays) -> Integers:
        innermost, marked = (
            self._find_innermost_marked_on_thread(mark, spans),
            self._numbers[mark][:-1],
        )
        missing = np.flatnonzero(innermost < 0)
        if marked.size and missing.size:
            innermost[missing] = self._find_marked_by_time_in_process(
                spans.select_spans(missing), marked
            )
        return innermost

    def _find_marked_by_time_in_process(self, spans: SpanArrays, marked: Integers) -> Integers:
        """Return the marked range of the same process, on any thread, that lies around each span in
        time.

        Autograd launches from a thread of its own, where the loop's ranges are not. The result is
        NOBODY for a process in which several threads have such ranges: the work could belong to any
        of them.
        """
        inside = self._ranges.select_spans(marked)
        is_only = np.zeros(len(marked), bool)
        for process in np.unique(inside.process):
            members = inside.process == process
            is_only[members] = np.unique(inside.thread[members]).size == 1
        inside = inside.select_spans(np.flatnonzero(is_only))
        nest = IntervalNest(inside.process, inside.start, inside.end)
        places = nest.find_last_started_positions(spans.process, spans.start)
        return _lookup_or_nobody(marked[is_only], nest.find_innermost_around(places, spans.end))


def _lookup_or_nobody(values: Integers, index: Integers) -> Integers:
    """Return ``values[index]``, NOBODY where the index is."""
    return np.append(values, NOBODY)[index]


def _build_binary_lifting_ancestors(group: Integers, end: Integers) -> list[Integers]:
    """Return a ladder over sorted intervals: rung k holds the 2**k-th interval above each one,
    NOBODY past the top.

    Rung 0, the parent, starts as the interval just before and moves up while that one ends too
    early. What it skips ends earlier still, so skipping loses nothing.
    """
    above = np.arange(-1, len(end) - 1)
    above[1:][group[1:] != group[:-1]] = NOBODY
    early = np.flatnonzero(above >= 0)
    while (early := early[end[above[early]] < end[early]]).size:
        above[early] = above[above[early]]
        early = early[above[early] >= 0]
    rungs = [above]
    while (rungs[-1] >= 0).any():
        rungs.append(_lookup_or_nobody(rungs[-1], rungs[-1]))
    return rungs


def _climb_to_enclosing_interval(
    rungs: list[Integers], end: Integers, positions: Integers, min_end: Integers
) -> Integers:
    """Return, from each place, the first interval upwards that does not end before ``min_end``."""
    index = positions.copy()
    low = np.flatnonzero(index >= 0)
    low = low[end[index[low]] < min_end[low]]
    for rung in reversed(rungs):
        higher = rung[index[low]]
        up = (higher >= 0) & (end[higher] < min_end[low])
        index[low[up]] = higher[up]
    index[low] = rungs[0][index[low]]
    return index


class LaunchCallIndex:
    """Launch calls, one per element, looked up by process and correlation id."""

    def __init__(self, process: Integers, correlation: Integers) -> None:
        """Both must match: every process counts its correlation ids from 1."""
        self._of = {
            value: (rows, FirstIdIndex(correlation[rows]))
            for value, rows in _group_rows_by_process(process)
        }

    def find_call_index(self, process: Integers, correlation: Integers) -> Integers:
        """Return the index of the call with the same process and correlation id, the first of
        several; NOBODY where there is none."""
        index = np.full(len(process), NOBODY)
        for value, rows in _group_rows_by_process(process):
            if value in self._of:
                calls, ids = self._of[value]
                first = ids.find_first_equal(correlation[rows])
                index[rows] = first if isinstance(calls, slice) else _lookup_or_nobody(calls, first)
        return index


def _group_rows_by_process(process: Integers) -> Iterator[tuple[int, Integers | slice]]:
    """Yield each process with its rows."""
    if len(process) and process.min() == process.max():
        yield int(process[0]), slice(None)
        return
    for value in np.unique(process).tolist():
        yield value, np.flatnonzero(process == value)


class FirstIdIndex:
    """Ids, to look up which of them is the first that equals another."""

    def __init__(self, ids: Integers) -> None:
        self._low = ids.min(initial=2**63 - 1)
        self._span = max(int(ids.max(initial=NOBODY)) - int(self._low) + 1, 0)
        self._table = self._order = None
        number = np.int32 if len(ids) < 1 << 31 else np.int64
        if self._span <= _SPARSE * len(ids):
            # Dense ids, as usual: one table, filled backwards so that the first of equal ids wins,
            # and in pieces since memory of large arrays is allocated anew each time.
            self._table = np.full(self._span + 1, NOBODY, number)
            for first in reversed(range(0, len(ids), SLICE)):
                piece = ids[first : first + SLICE]
                self._table[piece[::-1] - self._low] = np.arange(
                    first, first + len(piece), dtype=number
                )[::-1]
        else:
            self._order = np.argsort(ids, kind="stable")
            self._sorted = ids[self._order]

    def find_first_equal(self, ids: Integers) -> Integers:
        """Return the index of the first id that equals each of ``ids``; NOBODY where none does."""
        if self._table is not None:
            offset = ids - self._low
            in_table = (offset >= 0) & (offset < self._span)
            return np.asarray(self._table[np.where(in_table, offset, self._span)])
        assert self._order is not None
        positions = np.searchsorted(self._sorted, ids)
        positions[positions == len(self._sorted)] = 0
        return np.where(self._sorted[positions] == ids, self._order[positions], NOBODY)
