"""Other FLOP counters beside the estimate: what each counts of a layer, and why it differs."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate import peers
from perfctl.orchestrator.estimate.peers import (
    FLOP,
    MAC,
    UNEXPLAINED,
    WITHOUT_POSITIONS,
    Counter,
    LayerFacts,
    count_against,
    executed_count,
    read_counters,
)
from perfctl.orchestrator.estimate.request import Request

pytest.importorskip("torch")
BATCH, TOKENS, INS, OUTS = 4, 10, 32, 64
MACS = BATCH * TOKENS * INS * OUTS
LINEAR = LayerFacts(MACS, 0, BATCH * TOKENS * OUTS, INS * OUTS + OUTS)
ATTENTION = LayerFacts(MACS, MACS // 4)


@pytest.mark.parametrize(
    ("count", "facts", "unit", "reason"),
    [
        (0, LINEAR, MAC, "not seen: a function, or a module that the counter does not know"),
        (MACS + BATCH * TOKENS * OUTS, LINEAR, MAC, "bias additions counted"),
        (2 * MACS + BATCH * TOKENS * OUTS, LINEAR, FLOP, "bias additions counted"),
        (2 * MACS, LINEAR, MAC, "multiply-add counted as 2"),
        (MACS, LINEAR, FLOP, "multiply-add counted as 1"),
        (4 * MACS, LINEAR, FLOP, "counted twice"),
        (BATCH * (INS * OUTS + OUTS), LINEAR, MAC, WITHOUT_POSITIONS),
        (MACS - MACS // 4, ATTENTION, MAC, "attention products left out"),
        (2 * (2 * MACS - MACS // 4), ATTENTION, FLOP, "counted twice"),
        (500, LayerFacts(elementwise=100), MAC, "elementwise operations counted"),
        (MACS + 1, LINEAR, MAC, UNEXPLAINED),
    ],
)
def test_a_layer_of_a_counter_is_explained_by_the_numbers_of_that_layer(
    count: int, facts: LayerFacts, unit: str, reason: str
) -> None:
    (difference,) = peers._explain({"fc": count}, {"fc": facts}, unit, BATCH)
    expected = count - (2 if unit == FLOP else 1) * facts.macs
    assert difference == (reason, expected, ("fc",))


CONV2 = 24 * 24 * 64 * 32 * 9
MNIST = 26 * 26 * 32 * 9 + CONV2 + 9216 * 128 + 128 * 10
"""Multiply-adds of the forward pass of mnist_cnn, one sample."""


def counted(name: str) -> peers.PeerCount:
    session = peers.Session(Request("mnist_cnn"))
    return count_against(session, 1, [name]).counts[0]


def test_the_counter_of_torch_agrees_on_a_convolutional_network() -> None:
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
def test_a_figure_that_is_typed_is_found_among_the_totals(
    figure: str, total: float, reason: str
) -> None:
    count = counted(figure)
    assert (count.total, [one.reason for one in count.differences]) == (total, [reason])


def test_a_counter_that_fails_or_is_absent_says_so_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(model: object, inputs: object) -> peers.Counts:
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setitem(peers.COUNTERS, "fvcore", Counter("torch", MAC, fail))
    monkeypatch.setitem(peers.COUNTERS, "thop", Counter("no_such_package", MAC, fail))
    assert counted("fvcore").problem == "fvcore failed: RuntimeError: no such operator"
    assert counted("thop").problem == "no_such_package is not installed"
    with pytest.raises(UsageError, match="unknown counter 'other'"):
        read_counters(["torch", "other"])


def test_executed_flops_stand_beside_the_counters_with_the_causes_of_the_ledger() -> None:
    count = executed_count(
        {"conv": 250.0, "fc": 200.0}, {"conv": "tile padding"}, {"conv": 100, "fc": 100}
    )
    assert (count.total, count.estimate) == (450, 400)
    assert count.differences == (("tile padding", 50, ("conv",)),)
