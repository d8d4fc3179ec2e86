"""Backward operations by autograd's sequence numbers: threads, processes, the engine's wrappers,
modules run again."""

from __future__ import annotations

from pathlib import Path

from tests.make.kineto import Event, annotation, module, operation, read

WRAPPER = "autograd::engine::evaluate_function: "


def places(folder: Path, *events: Event) -> dict[str, tuple[str | None, str | None]]:
    """Name -> (layer, direction) of operations of which each has one place."""
    found = [(op.name, (op.layer, op.direction)) for op in read(folder, *events).operations]
    assert len(dict(found)) == len(found)
    return dict(found)


def forward(layer: str, at: int, number: int) -> list[Event]:
    return [
        annotation(f"{layer}:forward", at, 10),
        operation(f"forward of {layer}", at + 1, 8, number=number),
    ]


def backward(
    name: str, at: int, number: int, dur: int = 5, *, thread: int = 2, process: int = 1
) -> Event:
    return operation(name, at, dur, thread=thread, number=number, forward=1, process=process)


def test_the_operation_that_began_last_made_the_node_wherever_it_stands_in_the_trace(
    tmp_path: Path,
) -> None:
    events = [*forward("fc", 20, 5), *forward("look", 0, 5), backward("AddmmBackward0", 40, 5)]
    assert places(tmp_path, *events)["AddmmBackward0"] == ("fc", "backward")


def test_of_two_that_began_together_the_inner_one_made_the_node(tmp_path: Path) -> None:
    events = [
        operation("outer", 0, 20, 1, number=5),
        annotation("fc:forward", 0, 10, 2),
        operation("inner", 0, 5, 3, number=5),
        backward("AddmmBackward0", 40, 5),
    ]
    assert places(tmp_path, *events)["AddmmBackward0"] == ("fc", "backward")


def test_threads_that_agree_on_the_layer_of_a_number_settle_it_and_one_without_a_layer_does_not(
    tmp_path: Path,
) -> None:
    events = [
        *forward("fc", 0, 5),
        annotation("fc:forward", 0, 10, thread=3),
        operation("again", 1, 8, thread=3, number=5),
        *forward("conv", 20, 6),
        operation("elsewhere", 20, 8, thread=3, number=6),
        backward("agreed", 40, 5),
        backward("doubtful", 50, 6),
    ]
    found = places(tmp_path, *events)
    assert (found["agreed"], found["doubtful"]) == (("fc", "backward"), (None, None))


def test_processes_count_their_numbers_each_for_itself(tmp_path: Path) -> None:
    other = [{**entry, "pid": 2} for entry in forward("b", 0, 5)]
    events = [
        *forward("a", 0, 5),
        *other,
        backward("in one", 40, 5),
        backward("in two", 40, 5, process=2),
    ]
    found = places(tmp_path, *events, backward("in three", 40, 5, process=3))
    assert [found[f"in {name}"][0] for name in ("one", "two", "three")] == ["a", "b", None]


def test_the_wrapper_of_a_node_and_all_in_it_belong_to_the_node_s_layer_and_other_parents_do_not(
    tmp_path: Path,
) -> None:
    events = [
        operation(WRAPPER + "A", 40, 10, thread=2),
        backward("A", 41, 5, dur=4),
        operation("hook", 46, 3, thread=2),
        *forward("fc", 0, 5),
        operation("caller", 60, 10, thread=2),
        backward("B", 61, 5, dur=4),
        operation("beside", 66, 3, thread=2),
    ]
    found = places(tmp_path, *events)
    of_fc = ("fc", "backward")
    assert [found[name] for name in (WRAPPER + "A", "A", "hook", "B")] == [of_fc] * 4
    assert [found[name] for name in ("caller", "beside")] == [(None, None)] * 2


def test_a_wrapper_belongs_to_the_layer_of_the_outermost_ranges_in_it_if_that_is_one(
    tmp_path: Path,
) -> None:
    events = [
        operation(WRAPPER + "deep", 0, 10),
        operation("call", 1, 8),
        annotation("fc:grad_bias", 2, 2),
        annotation("fc:grad_bias", 5, 2),
        operation(WRAPPER + "nested", 20, 10),
        annotation("a:backward", 21, 8),
        annotation("b:backward", 22, 4),
        annotation("z:backward", 40, 20),
        operation(WRAPPER + "inside", 41, 10),
        annotation("y:backward", 42, 4),
        operation(WRAPPER + "two ways", 70, 10),
        annotation("c:grad_bias", 71, 2),
        annotation("c:grad_weight", 75, 2),
        operation(WRAPPER + "plain", 90, 10),
        annotation("plain", 91, 5),
        operation("no wrapper", 110, 10),
        annotation("d:backward", 111, 5),
    ]
    assert places(tmp_path, *events) == {
        WRAPPER + "deep": ("fc", "grad_bias"),
        "call": ("fc", "grad_bias"),
        WRAPPER + "nested": ("a", "backward"),
        WRAPPER + "inside": ("z", "backward"),
        WRAPPER + "two ways": (None, None),
        WRAPPER + "plain": (None, None),
        "no wrapper": (None, None),
    }


def test_a_module_called_within_backward_is_recomputed_however_deep_and_a_range_means_what_it_says(
    tmp_path: Path,
) -> None:
    """The backward operation that stands last in the trace ran first."""
    modules = [
        module("Net_0", 100, 50),
        operation("first", 101, 5),
        operation("CheckpointBackward", 200, 50, number=9, forward=1),
        operation("run", 201, 45),
        module("Net_0", 202, 40),
        operation("again", 203, 5),
        backward("far", 0, 77, thread=1),
    ]
    found = places(tmp_path, *modules)
    assert (found["first"], found["again"]) == (("Net_0", "forward"), ("Net_0", "recompute"))
    at_once = [
        operation("Backward", 0, 50, number=9, forward=1),
        module("Net_0", 1, 40),
        operation("mm", 2, 5),
    ]
    assert places(tmp_path, *at_once)["mm"] == ("Net_0", "recompute")
    ranges = [
        operation("Backward", 0, 50, number=9, forward=1),
        annotation("fc:forward", 1, 40),
        operation("mm", 2, 5),
    ]
    assert places(tmp_path, *ranges)["mm"] == ("fc", "forward")


def test_a_range_says_more_than_a_number_and_numbers_of_no_layer_settle_nothing(
    tmp_path: Path,
) -> None:
    events = [
        *forward("a", 0, 5),
        annotation("b:grad_input", 39, 10),
        backward("inside", 40, 5, thread=1),
        operation("aten::nll_loss", 20, 8, number=6),
        backward("loss", 60, 6),
        backward("unknown", 70, 77),
    ]
    found = places(tmp_path, *events)
    assert [found[name] for name in ("inside", "loss", "unknown")] == [
        ("b", "grad_input"),
        (None, None),
        (None, None),
    ]
