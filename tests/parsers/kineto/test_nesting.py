"""Which span encloses which, to the nanosecond, and what the ranges around a moment say."""

import pytest

from perfctl.parsers.kineto.events import SortedEvents, Span, ThreadTime
from perfctl.parsers.kineto.nesting import NOWHERE, SpanContext, SpanNesting


def step_and_phase(nesting, context, place):
    step, phase = (nesting.find_step_or_phase(mark, context, place) for mark in ("step", "phase"))
    return step, phase


def span(start, end, name="op", *, thread=0, external=-1):
    """An operation, or a range where it has another name."""
    return Span(thread, start, end, external, name, name != "op")


def nest(*spans, threads=((1, 1),), memory=(), whole=False):
    events = SortedEvents(
        threads=list(threads), spans=list(spans), memory=list(memory), whole_microseconds=whole
    )
    return SpanNesting(events)


def test_a_span_without_an_end_or_without_length_encloses_nothing():
    found = nest(
        span(0, 50),
        span(10, None),
        span(10, 12),
        span(20, 20),
        span(20, 21),
    )
    assert found.parents == [-1, 2, 0, 4, 0]
    assert [found.find_innermost_span(0, at) for at in (9, 10, 20)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("whole", "over", "inside"),
    [(True, 2000, True), (True, 2001, False), (False, 1, True), (False, 2, False)],
)
def test_a_child_may_end_later_by_what_was_cut_off_the_times_of_both(whole, over, inside):
    """Two cut microseconds in traces of whole ones, one rounded nanosecond in others."""
    nested = nest(span(0, 10_000, "a:forward"), span(5_000, 10_000 + over), whole=whole)
    assert nested.parents == [-1, 0 if inside else -1]
    assert nested.contexts[1].layer == ("a" if inside else None)
    crossed = nest(
        span(0, 10_000, "a:forward"),
        span(5_000, 50_000, "plain"),
        span(6_000, 10_000 + over),
        whole=whole,
    )
    assert crossed.parents == [-1, -1, 1]
    assert (crossed.contexts[2].layer, crossed.contexts[2].depth) == (
        ("a", 2) if inside else (None, 1)
    )


def test_of_two_ranges_that_cross_each_says_something_only_while_it_runs():
    found = nest(
        span(0, 100, "a:forward"),
        span(50, 150, "plain"),
        span(60, 70),
        span(100, 101),
        span(150, 160),
        span(20, 30),
        span(62, 65),
    )
    assert found.parents == [-1, -1, 1, 1, -1, 0, 2]
    assert found.contexts[6] == found.contexts[2]
    assert found.contexts[2] == SpanContext("a", "forward", None, None, 1, 2, "range")
    assert found.contexts[3] == SpanContext(None, None, None, None, 1, 1, None)
    assert found.contexts[4] == NOWHERE
    assert found.outside == {0: NOWHERE, 1: NOWHERE}


def test_spans_of_equal_begin_nest_by_their_length_and_then_by_their_ids():
    found = nest(
        span(0, 5, external=9),
        span(0, 9, external=8),
        span(0, 5, external=3),
        span(0, 5, external=4),
    )
    assert found.parents == [3, -1, 1, 2]
    assert found.order == [1, 2, 3, 0]


@pytest.mark.parametrize(
    ("at", "step", "phase"),
    [
        (99, None, None),
        (100, 3, None),
        (149, 3, None),
        (150, 3, "backward"),
        (199, 3, "backward"),
        (200, 4, None),
        (299, 4, None),
        (300, None, None),
        (310, None, None),
    ],
)
def test_step_and_phase_of_another_thread_go_by_time_within_the_process(at, step, phase):
    found = nest(
        span(200, 300, "perfctl:step:4"),
        span(100, 200, "perfctl:step:3"),
        span(150, 200, "perfctl:phase:backward"),
        span(305, None, "perfctl:step:5"),
        span(0, 400, "perfctl:phase:data", thread=2),
        threads=((1, 10), (1, 20), (2, 30), (3, 40)),
    )
    assert step_and_phase(found, NOWHERE, ThreadTime(1, at)) == (step, phase)
    assert step_and_phase(found, NOWHERE, ThreadTime(2, at)) == (None, "data")
    assert step_and_phase(found, NOWHERE, ThreadTime(3, at)) == (None, None)
    assert step_and_phase(found, SpanContext(step=0, phase="copy"), ThreadTime(1, at)) == (
        0,
        "copy",
    )
    assert step_and_phase(found, SpanContext(step=0), ThreadTime(1, at)) == (0, phase)
    assert step_and_phase(found, SpanContext(phase="copy"), ThreadTime(1, at)) == (step, "copy")
