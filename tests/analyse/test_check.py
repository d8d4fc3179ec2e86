"""Hand values and the slips that reproduce them, for conv2 of the MNIST CNN at batch 64."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.check import check, explain
from perfctl.orchestrator.analyse.sheet_conv import conv_ways
from perfctl.orchestrator.analyse.sheet_linear import linear_ways
from perfctl.orchestrator.analyse.sheet_records import Facts

ONCE = [(1, 1), (0, 0), (1, 1)]
CONV2 = Facts(64, 18_432, 64, True, conv_ways((64, 32, 3, 3), (24, 24), (26, 26), ONCE))
FC = Facts(16, 1280, 10, True, linear_ways((), 128, 10))
MAC = 64 * 64 * 24 * 24 * 288


def test_the_studys_value_is_a_pooled_input_and_an_arithmetic_slip() -> None:
    found = check(141_557_760, CONV2)
    assert found.exact
    assert len(found.slips) == 2
    assert "after a pooling by 2 (13x13, not 26x26)" in found.slips[0]
    assert "arithmetic: the map 11 x 11 is 121, worked with 120" in found.slips[1]


@pytest.mark.parametrize("value", [MAC, 2 * MAC])
def test_the_right_value_is_called_right(value: int) -> None:
    found = check(value, CONV2)
    assert found.exact
    assert found.slips == ()
    assert "is right" in explain(found)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (64 * 64 * 11 * 11 * 288, ("after a pooling by 2",)),
        (MAC // 64, ("batch of 64 left out",)),
        (4 * MAC, ("doubled again",)),
        (2 * MAC + 64 * 64 * 24 * 24, ("bias additions counted in",)),
        (18_432 + 64 + 64 * 64 * 11 * 11, ("after a pooling by 2", "values, not operations")),
        (18_432 + 64 * 64 * 24 * 24, ("values, not operations", "bias left out")),
        (64 * 64 * 24 * 24 * 31 * 9, ("arithmetic: the number of input channels is 32, worked with 31",)),
    ],
)
def test_a_slip_is_named_when_it_reproduces_the_value(value: int, words: tuple[str, ...]) -> None:
    found = check(value, CONV2)
    assert found.exact
    for word in words:
        assert any(word in slip for slip in found.slips), found.slips


def test_a_value_that_no_slip_gives_is_said_to_be_unexplained() -> None:
    found = check(123_456_789, CONV2)
    assert not found.exact
    assert "not explained" in explain(found)
    assert "1,358,954,496 FLOP" in explain(found)


def test_a_linear_layer_has_no_pooling_to_blame() -> None:
    assert check(16 * 128 * 10, FC).slips == ()
    assert check(128 * 10, FC).slips == ("batch of 16 left out",)
    assert not check(999, FC).exact
