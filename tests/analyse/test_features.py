"""Figures of a step that its time is set against, worked out by hand for a network of two layers."""

from __future__ import annotations

from perfctl.estimation import Request, Session
from perfctl.orchestrator.analyse.features import features_of
from perfctl.parsers.paper import LayerCall

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
