"""Figures of a step that its time is set against, worked out by hand for a network of
two layers."""

from __future__ import annotations

from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import Session
from perfctl.orchestrator.predict.step_parts import features_of
from perfctl.records.paper import LayerCall

BATCH = 3


def test_features_of_a_small_network_are_those_worked_out_by_hand() -> None:
    calls = Session(Request("mlp:depth=2,width=5,image=2,classes=4")).at(BATCH).calls
    found = {one.name: (one.value, one.unit) for one in features_of(calls)}

    macs = BATCH * (4 * 5 + 5 * 4)
    assert found["flops:forward"] == found["flops:Linear"] == (2 * macs, "FLOP")
    # Both weights' gradients, and the second layer's input's: the network's input needs none.
    assert found["flops:backward"] == (2 * (macs + BATCH * 5 * 4), "FLOP")
    assert found["layers"] == (2, None)
    assert found["parameters"] == (4 * 5 + 5 + 5 * 4 + 4, "element")
    assert found["bytes:optimizer"][1] == "byte"


def test_an_operation_without_a_formula_is_counted_as_unknown_and_in_no_sum() -> None:
    known = LayerCall("fc", "Linear", "forward", 10, 20, 5, 8, 8, 2, "10")
    other = LayerCall("odd", "Odd", "forward", None, None, 0, 800, 800, 2, "no formula", calls=4)
    found = {one.name: one.value for one in features_of([known, other])}

    assert (found["unknown"], found["flops:forward"], found["bytes:forward"]) == (4, 20, 16)


def test_every_figure_is_the_sum_over_its_directions_with_its_unit() -> None:
    def call(direction: str, macs: int | None, **more: int) -> LayerCall:
        figures = {
            "parameters": 0,
            "read_bytes": 100,
            "write_bytes": 10,
            "output_elements": 3,
        } | more
        return LayerCall(
            "a",
            "Conv2d",
            direction,
            macs,
            None if macs is None else 2 * macs,
            formula="",
            **figures,
        )

    calls = [
        call("forward", 7, parameters=20, elementwise_flops=5, calls=2),
        call("forward", 0, output_elements=4, calls=3),  # an activation
        call("grad_input", 7),
        call("grad_weight", 6),
        call("grad_bias", 0),
        call("backward", 0, read_bytes=1, write_bytes=1),
        call("recompute", 1000),
        call("optimizer", 0),
        call("optimizer", None, read_bytes=4),
        call("forward", None, calls=2),
    ]
    found = {one.name: (one.value, one.unit) for one in features_of(calls)}
    assert found == {
        "activations": (7, "element"),
        "bytes:backward": (332, "byte"),
        "bytes:forward": (220, "byte"),
        "bytes:optimizer": (124, "byte"),
        "calls:forward": (5, None),
        "elementwise:forward": (5, "FLOP"),
        "flops:Conv2d": (14, "FLOP"),
        "flops:backward": (26, "FLOP"),
        "flops:forward": (14, "FLOP"),
        "layers": (1, None),
        "parameters": (20, "element"),
        "unknown": (2, None),
    }
    assert [one.name for one in features_of(calls)] == sorted(found)


def test_bytes_that_are_not_known_add_nothing() -> None:
    def call(direction: str, read: int | None, written: int | None) -> LayerCall:
        return LayerCall("a", "A", direction, 1, 2, 0, read, written, 0, "")  # type: ignore[arg-type]

    calls = [
        call("forward", None, 3),
        call("forward", 5, None),
        call("optimizer", None, 7),
        call("optimizer", 11, None),
    ]
    found = {one.name: one.value for one in features_of(calls)}
    assert (found["bytes:forward"], found["bytes:optimizer"]) == (8, 18)
