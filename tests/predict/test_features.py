"""Figures of a step that its time is set against, worked out by hand for a network of
two layers."""

from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import Session
from perfctl.orchestrator.predict.step_parts import sum_layer_call_features
from perfctl.records.paper import LayerCall

BATCH = 3


def test_features_of_a_small_network_are_those_worked_out_by_hand():
    calls = Session(Request("mlp:depth=2,width=5,image=2,classes=4")).estimate_batch(BATCH).calls
    found = {one.name: (one.value, one.unit) for one in sum_layer_call_features(calls)}

    macs = BATCH * (4 * 5 + 5 * 4)
    assert found["flops:forward"] == found["flops:Linear"] == (2 * macs, "FLOP")
    # Both weights' gradients, and the second layer's input's: the network's input needs none.
    assert found["flops:backward"] == (2 * (macs + BATCH * 5 * 4), "FLOP")
    assert found["layers"] == (2, None)
    assert found["parameters"] == (4 * 5 + 5 + 5 * 4 + 4, "element")
    assert found["bytes:optimizer"][1] == "byte"


def test_every_figure_is_the_sum_over_its_directions_with_its_unit():
    def call(direction, macs, **changes):
        call = LayerCall("a", "Conv2d", direction, macs, None, 0, 100, 10, 3, formula="")
        return call._replace(**changes)  # type: ignore[arg-type]

    calls = [
        call("forward", 7, parameters=20, elementwise_flops=5, calls=2),
        call("forward", 0, output_elements=4, calls=3, read_bytes=None),  # an activation
        call("grad_input", 7),
        call("grad_weight", 6),
        call("grad_bias", 0),
        call("backward", 0, read_bytes=1, write_bytes=1),
        call("recompute", 1000),
        call("optimizer", 0),
        call("optimizer", None, read_bytes=4, write_bytes=None),
        call("forward", None, calls=2),
    ]
    found = sum_layer_call_features(calls)
    assert [tuple(feature) for feature in found] == [
        ("activations", 3 + 4, "element"),
        ("bytes:backward", 3 * 110 + 2, "byte"),
        ("bytes:forward", 110 + 10, "byte"),
        ("bytes:optimizer", 110 + 4, "byte"),
        ("calls:forward", 2 + 3, None),
        ("elementwise:forward", 5, "FLOP"),
        ("flops:Conv2d", 2 * 7, "FLOP"),
        ("flops:backward", 2 * (7 + 6), "FLOP"),
        ("flops:forward", 2 * 7, "FLOP"),
        ("layers", 1, None),
        ("parameters", 20, "element"),
        ("unknown", 2, None),
    ]
