"""Attribution against its definition, written out as plainly as possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers import attribution
from perfctl.parsers.attribution import (
    NEVER,
    NOBODY,
    IntervalNest,
    LaunchCallIndex,
    RangeAttribution,
    SpanArrays,
)


@dataclass(frozen=True)
class Item:
    """A range or a call."""

    process: int
    thread: int
    start: int
    end: int
    marks: tuple[bool, bool, bool, bool] = (True, False, False, False)
    """push/pop, layer, step, phase."""


def spans(items):
    columns = [[item.process, item.thread, item.start, item.end] for item in items]
    return SpanArrays(*np.array(columns, np.int64).reshape(len(items), 4).T)


def build(ranges):
    marks = np.array([item.marks for item in ranges], bool).reshape(len(ranges), 4).T
    return RangeAttribution(spans(ranges), *marks)


def innermost(ranges, what, which=0, same="thread"):
    """By definition: of the push/pop ranges around it, the one that began last; of those, the
    shortest, the last."""
    around = [
        (item.start, -item.end, number)
        for number, item in enumerate(ranges)
        if item.marks[0] and item.marks[which] and getattr(item, same) == getattr(what, same)
        if item.start <= what.start and item.end >= what.end
    ]
    return max(around, default=(0, 0, NOBODY))[2]


def sought(ranges, what, which):
    """On its own thread; else in time, where only one thread of the process has such ranges."""
    found = innermost(ranges, what, which)
    threads = {
        r.thread for r in ranges if r.process == what.process and r.marks[0] and r.marks[which]
    }
    return (
        innermost(ranges, what, which, "process")
        if found == NOBODY and len(threads) == 1
        else found
    )


def interval(longest):
    ends = st.one_of(st.integers(0, longest), st.just(NEVER))
    return st.tuples(st.integers(-20, 40), ends).map(
        lambda pair: (pair[0], min(NEVER, pair[0] + pair[1]))
    )


def items(longest, marks):
    def make(thread, span, flags):
        return Item(thread // 2, thread, *span, flags)

    return st.lists(st.builds(make, st.integers(0, 3), interval(longest), marks), max_size=25)


MARKS = st.tuples(
    st.sampled_from([True, True, True, False]), st.booleans(), st.booleans(), st.booleans()
)
CALLS = items(5, st.just((False, False, False, False)))


@settings(max_examples=150)
@given(items(30, MARKS), CALLS)
def test_calls_get_what_the_definition_says_whether_ranges_nest_cross_or_never_end(ranges, calls):
    found = build(ranges).find_ranges_around_calls(spans(calls))
    assert found.innermost.tolist() == [innermost(ranges, call) for call in calls]
    assert found.layer.tolist() == [innermost(ranges, call, 1) for call in calls]
    assert found.step.tolist() == [sought(ranges, call, 2) for call in calls]


@settings(max_examples=100)
@given(items(30, MARKS))
def test_ranges_get_step_and_phase_as_calls_do(ranges):
    steps, phases = build(ranges).find_step_and_phase_ranges()
    assert steps.tolist() == [sought(ranges, item, 2) for item in ranges]
    assert phases.tolist() == [sought(ranges, item, 3) for item in ranges]


def test_ranges_of_unknown_callers_do_not_hide_those_of_known_ones():
    every = (True, True, True, True)
    ranges = [
        Item(NOBODY, NOBODY, 0, 100, every),
        Item(0, 1, 0, 100, every),
        Item(1, 2, 0, 100, every),
    ]
    calls = [
        Item(1, 2, 20, 30),
        Item(NOBODY, NOBODY, 20, 30),
        Item(0, 1, 20, 30),
        Item(1, 3, 20, 30),
    ]
    found = build(ranges).find_ranges_around_calls(
        spans(calls).select_spans(np.array([0, 1, 2, 3, NOBODY]))
    )
    assert found.innermost.tolist() == found.layer.tolist() == [2, NOBODY, 1, NOBODY, NOBODY]
    assert found.step.tolist() == [2, NOBODY, 1, 2, NOBODY]


def test_no_ranges_and_no_calls_are_fine():
    nothing = build([])
    assert nothing.find_ranges_around_calls(spans([Item(0, 0, 1, 2)])).innermost.tolist() == [
        NOBODY
    ]
    assert nothing.find_ranges_around_calls(spans([])).step.tolist() == []
    assert [part.tolist() for part in nothing.parents_and_depths] == [[], []]


def test_deep_recursion_and_long_rows_of_siblings_take_no_time():
    depth = 20_000
    start = np.arange(depth)
    deep = IntervalNest(np.zeros(depth, np.int64), start, 10 * depth - start)
    assert deep.compute_depths()[-1] == depth - 1
    flat = IntervalNest(np.zeros(depth, np.int64), 2 * start, 2 * start + 1)
    assert (flat.find_parents() == NOBODY).all()
    # Past the end of the innermost 19,000 and inside of the rest: the 1,000th range from outside.
    at = deep.find_innermost_around(np.array([depth - 1]), np.array([10 * depth - 999]))
    assert at.tolist() == [999]


IDS = st.integers(-3, 9) | st.sampled_from([15, 16, 17, 10**6, -(2**63), 2**63 - 1])
"""Counted densely, around the largest table of two ids (16 places), and scattered."""
ROWS = st.lists(st.tuples(st.integers(NOBODY, 2), IDS), max_size=30)


@settings(max_examples=200)
@given(ROWS, ROWS, st.sampled_from([1, 2, 3, attribution.SLICE]))
def test_a_launch_matches_on_process_and_correlation_the_first_of_several(work, calls, piece):
    def columns(rows):
        return list(np.array(rows, np.int64).reshape(len(rows), 2).T)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribution, "SLICE", piece)
        found = LaunchCallIndex(*columns(calls)).find_call_index(*columns(work))
    assert found.tolist() == [calls.index(item) if item in calls else NOBODY for item in work]
