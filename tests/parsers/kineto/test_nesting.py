"""Which span encloses which, to the nanosecond, and what the ranges around a moment say."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from perfctl.parsers.kineto.events import Events, Place, Span
from perfctl.parsers.kineto.nesting import NOWHERE, Context, Nesting


def step_and_phase(
    nesting: Nesting, context: Context, place: Place
) -> tuple[int | None, str | None]:
    return nesting.step_at(context, place), nesting.phase_at(context, place)


def span(
    start: int, end: int | None, name: str = "op", *, thread: int = 0, external: int = -1
) -> Span:
    """An operation, or a range where it has another name."""
    return Span(thread, start, end, external, name, name != "op")


def nest(
    *spans: Span,
    threads: Iterable[tuple[int, int]] = ((1, 1),),
    memory: Iterable[tuple[int, int, int]] = (),
    whole: bool = False,
) -> Nesting:
    events = Events(
        threads=list(threads), spans=list(spans), memory=list(memory), whole_microseconds=whole
    )
    return Nesting(events)


def test_bytes_count_in_the_innermost_span_of_their_thread_and_in_all_around_it() -> None:
    found = nest(
        span(0, 100),
        span(10, 20),
        span(12, 18),
        span(200, 300),
        span(200, 300, thread=1),
        threads=((1, 1), (1, 2)),
        memory=[
            (0, 5, 1),
            (0, 12, 10),
            (0, 18, 100),
            (0, 20, 1000),
            (0, 100, 10**4),
            (0, 250, -5),
            (1, 15, 10**5),
        ],
    )
    assert found.memory == [1111, 110, 10, -5, 0]
    assert found.parents == [-1, 0, 1, -1, -1]


def test_a_span_without_an_end_or_without_length_encloses_nothing() -> None:
    found = nest(
        span(0, 50),
        span(10, None),
        span(10, 12),
        span(20, 20),
        span(20, 21),
    )
    assert found.parents == [-1, 2, 0, 4, 0]
    assert [found.find(0, at) for at in (9, 10, 20)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("whole", "over", "inside"),
    [(True, 2000, True), (True, 2001, False), (False, 1, True), (False, 2, False)],
)
def test_a_child_may_end_later_by_what_was_cut_off_the_times_of_both(
    whole: bool, over: int, inside: bool
) -> None:
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


def test_of_two_ranges_that_cross_each_says_something_only_while_it_runs() -> None:
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
    assert found.contexts[2] == Context("a", "forward", None, None, 1, 2, "range")
    assert found.contexts[3] == Context(None, None, None, None, 1, 1, None)
    assert found.contexts[4] == NOWHERE
    assert found.outside == {0: NOWHERE, 1: NOWHERE}


def test_spans_of_equal_begin_nest_by_their_length_and_then_by_their_ids() -> None:
    found = nest(
        span(0, 5, external=9),
        span(0, 9, external=8),
        span(0, 5, external=3),
        span(0, 5, external=4),
    )
    assert found.parents == [3, -1, 1, 2]
    assert found.order == [1, 2, 3, 0]


def test_a_context_takes_each_part_from_the_innermost_range_that_says_it() -> None:
    found = nest(
        span(0, 100, "perfctl:step:5"),
        span(10, 50, "perfctl:phase:forward"),
        span(12, 40, "net.conv:forward"),
        span(14, 30, "plain"),
        span(15, 16),
        span(45, 46),
        span(60, 61),
        span(70, 80, "perfctl:step:7"),
        span(72, 78, "perfctl:step:0"),
        span(73, 74),
    )
    in_phase, in_step = Context(None, None, 5, "forward", 1, 2), Context(None, None, 5, None, 0, 1)
    assert found.contexts[4] == Context("net.conv", "forward", 5, "forward", 3, 4, "range")
    assert found.contexts[5:7] == [in_phase, in_step]
    assert found.contexts[9] == Context(None, None, 0, None, 5, 3)
    assert found.outside == {
        0: NOWHERE,
        1: in_step,
        2: in_phase,
        3: Context("net.conv", "forward", 5, "forward", 2, 3, "range"),
        7: in_step,
        8: Context(None, None, 7, None, 4, 2),
    }


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
def test_step_and_phase_of_another_thread_go_by_time_within_the_process(
    at: int, step: int | None, phase: str | None
) -> None:
    found = nest(
        span(200, 300, "perfctl:step:4"),
        span(100, 200, "perfctl:step:3"),
        span(150, 200, "perfctl:phase:backward"),
        span(305, None, "perfctl:step:5"),
        span(0, 400, "perfctl:phase:data", thread=2),
        threads=((1, 10), (1, 20), (2, 30), (3, 40)),
    )
    assert step_and_phase(found, NOWHERE, Place(1, at)) == (step, phase)
    assert step_and_phase(found, NOWHERE, Place(2, at)) == (None, "data")
    assert step_and_phase(found, NOWHERE, Place(3, at)) == (None, None)
    assert step_and_phase(found, Context(step=0, phase="copy"), Place(1, at)) == (0, "copy")
    assert step_and_phase(found, Context(step=0), Place(1, at)) == (0, phase)
    assert step_and_phase(found, Context(phase="copy"), Place(1, at)) == (step, "copy")


MODULES = ("nn.Module: Net_0", "nn.Module: ReLU_2", "plain")


@pytest.mark.parametrize(
    ("names", "meanings"),
    [
        pytest.param(
            (
                "perfctl:step:4",
                "op",
                "ProfilerStep#9",
                "Optimizer.step#SGD.step",
                "fc:grad_bias",
                "perfctl:phase:data",
            ),
            {
                0: Context(None, None, 4, None, 0),
                2: Context(None, None, None, None, 1),
                3: Context(None, None, None, None, 2),
                4: Context("fc", "grad_bias", None, None, 3, 0, "range"),
                5: Context(None, None, None, "data", 4),
            },
            id="ranges are numbered without the operations between them",
        ),
        pytest.param(
            (
                "ProfilerStep#9",
                "ProfilerStep#9b",
                "Optimizer.step#SGD.step",
                "Optimizer.zero_grad#SGD",
                "Optimizer.x",
            ),
            {
                0: Context(step=9, range_number=0),
                1: Context(range_number=1),
                2: Context(phase="optimizer", range_number=2),
                3: Context(phase="optimizer", range_number=3),
                4: Context(range_number=4),
            },
            id="torch's own steps and optimizers count where perfctl names no step",
        ),
        pytest.param(
            MODULES,
            {
                0: Context("Net_0", "forward", None, None, 0, 0, "operation"),
                1: Context("ReLU_2", "forward", None, None, 1, 0, "operation"),
                2: Context(range_number=2),
            },
            id="modules are layers",
        ),
        pytest.param(
            (*MODULES, "fc:forward"),
            {
                **{index: Context(range_number=index) for index in range(3)},
                3: Context("fc", "forward", None, None, 3, 0, "range"),
            },
            id="modules are none where a range names a layer",
        ),
    ],
)
def test_the_meaning_of_a_range_follows_from_its_name_and_those_of_the_others(
    names: tuple[str, ...], meanings: dict[int, Context]
) -> None:
    spans = (span(10 * at, 10 * at + 9, name) for at, name in enumerate(names))
    assert nest(*spans).meanings == meanings


def test_the_path_of_a_module_is_where_it_was_first_called_below_the_outermost_one() -> None:
    def call(name: str, start: int, end: int, thread: int = 0) -> Span:
        return span(start, end, f"nn.Module: {name}", thread=thread)

    spans = [
        call("Linear_0", 10, 20),
        call("Seq_0", 10, 50),
        call("Net_0", 0, 100),
        call("Linear_1", 20, 30),
        call("Act_0", 22, 25),
        call("ns:Block_0", 60, 70),
        span(1, 90),
        call("Net_0", 100, 200),
        call("Linear_0", 110, 120),
        call("New_0", 112, 113),
        call("Other_0", 150, 180, 1),
        call("Leaf_0", 160, 170, 1),
    ]
    paths = {
        "Net_0": "Net_0",
        "Seq_0": "Seq_0",
        "Linear_0": "Seq_0.Linear_0",
        "Linear_1": "Seq_0.Linear_1",
        "Act_0": "Seq_0.Linear_1.Act_0",
        "ns:Block_0": "ns.Block_0",
        "New_0": "Seq_0.Linear_0.New_0",
        "Other_0": "Other_0",
        "Leaf_0": "Leaf_0",
    }
    meanings = nest(*spans, threads=((1, 1), (1, 2))).meanings
    layers = {spans[index].name: meaning.layer for index, meaning in meanings.items()}
    assert layers == {f"nn.Module: {name}": path for name, path in paths.items()}
