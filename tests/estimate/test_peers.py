"""Other FLOP counters beside the estimate: what each counts of a layer, and why it differs."""

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate import peers
from perfctl.orchestrator.estimate.peers import (
    FLOP,
    MAC,
    FlopCounter,
    LayerNumbers,
    compare_estimate_with_flop_counters,
    make_executed_flops_result,
    validate_counter_names_and_figures,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.sheets.reasons import BIAS, ELEMENTWISE, UNEXPLAINED

pytest.importorskip("torch")
BATCH, TOKENS, INS, OUTS = 4, 10, 32, 64
MACS = BATCH * TOKENS * INS * OUTS
PARAMETERS = INS * OUTS + OUTS
LINEAR = LayerNumbers(MACS, 0, BATCH * TOKENS * OUTS, PARAMETERS, rows=BATCH)
ATTENTION = LayerNumbers(MACS, MACS // 4, softmax=BATCH * TOKENS**2)
NORM = LayerNumbers(elementwise=100, parameters=2 * OUTS)


@pytest.mark.parametrize(
    ("count", "facts", "unit", "reason"),
    [
        (0, LINEAR, MAC, "not seen: a function, or a module that the counter does not know"),
        (MACS + BATCH * TOKENS * OUTS, LINEAR, MAC, BIAS),
        (2 * MACS + BATCH * TOKENS * OUTS, LINEAR, FLOP, BIAS),
        (2 * MACS + OUTS, LINEAR, FLOP, "each bias counted once, without the positions"),
        (2 * MACS, LINEAR, MAC, "FLOPs instead of multiply-adds"),
        (MACS, LINEAR, FLOP, "multiply-adds instead of FLOPs"),
        (4 * MACS, LINEAR, FLOP, "counted twice"),
        (BATCH * PARAMETERS, LINEAR, MAC, "weights and biases, not operations"),
        (BATCH * PARAMETERS * OUTS, LINEAR, MAC, "output channels taken as positions"),
        (MACS - MACS // 4, ATTENTION, MAC, "attention itself left out"),
        (2 * (2 * MACS - MACS // 4), ATTENTION, FLOP, "counted twice"),
        (2 * MACS + BATCH * TOKENS**2, ATTENTION, FLOP, ELEMENTWISE),
        (500, NORM, MAC, ELEMENTWISE),
        (2 * OUTS, NORM, MAC, "weights and biases, not operations"),
        (MACS + 1, LINEAR, MAC, UNEXPLAINED),
    ],
)
def test_a_layer_of_a_counter_is_explained_by_the_numbers_of_that_layer(count, facts, unit, reason):
    (difference,) = peers._explain_differences({"fc": count}, {"fc": facts}, unit)
    expected = count - (2 if unit == FLOP else 1) * facts.macs
    assert difference == (reason, expected, ("fc",))


CONV2 = 24 * 24 * 64 * 32 * 9
MNIST = 26 * 26 * 32 * 9 + CONV2 + 9216 * 128 + 128 * 10
"""Multiply-adds of the forward pass of mnist_cnn, one sample."""


def counted(name):
    session = peers.Session(Request("mnist_cnn"))
    return compare_estimate_with_flop_counters(session, 1, [name]).counts[0]


def test_the_counter_of_torch_agrees_on_a_convolutional_network():
    count = counted("torch")
    assert (count.total, count.estimate, count.differences) == (2 * MNIST, 2 * MNIST, ())
    assert count.layers is not None and count.layers["conv2"] == 2 * CONV2


@pytest.mark.parametrize(
    ("figure", "total", "reason"),
    [
        (f"paper={MNIST}", MNIST, "forward in multiply-adds"),
        (f"paper={2 * MNIST}", 2 * MNIST, "forward in FLOPs"),
        (f"paper={MNIST / 1e6:.1f} M", 12.0e6, "forward in multiply-adds"),
        (f"paper={3 * MNIST}", 3 * MNIST, "3 x forward, in multiply-adds"),
        ("paper=77", 77, UNEXPLAINED),
    ],
)
def test_a_figure_that_is_typed_is_found_among_the_totals(figure, total, reason):
    count = counted(figure)
    assert (count.total, [one.reason for one in count.differences]) == (total, [reason])


def test_a_counter_that_fails_or_is_absent_says_so_and_others_go_on(monkeypatch):
    def fail(model, inputs):
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setitem(peers.COUNTERS, "fvcore", FlopCounter("torch", MAC, fail))
    monkeypatch.setitem(peers.COUNTERS, "thop", FlopCounter("no_such_package", MAC, fail))
    assert counted("fvcore").problem == "fvcore failed: RuntimeError: no such operator"
    assert (counted("thop").problem or "").startswith("no_such_package is not installed: pip ")
    with pytest.raises(UsageError, match="unknown counter 'other'"):
        validate_counter_names_and_figures(["torch", "other"])


def test_executed_flops_stand_beside_the_counters_with_the_causes_of_the_ledger():
    count = make_executed_flops_result(
        {"conv": 250.0, "fc": 200.0}, {"conv": "tile padding"}, {"conv": 100, "fc": 100}
    )
    assert (count.total, count.estimate) == (450, 400)
    assert count.differences == (("tile padding", 50, ("conv",)),)
