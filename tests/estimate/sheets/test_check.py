"""Hand values and the slips that reproduce them, for conv2 of the MNIST CNN at batch 64."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.estimate.sheets.layers import Facts, Way, conv_ways
from perfctl.orchestrator.estimate.sheets.slips import Finding, check, explain

ONCE = [(1, 1), (0, 0), (1, 1)]
CONV2 = Facts(64, 18_432, 64, True, conv_ways((64, 32, 3, 3), (24, 24), (26, 26), ONCE))
MAC = 64 * 64 * 24 * 24 * 288


def test_the_studys_value_is_a_pooled_input_and_an_arithmetic_slip() -> None:
    found = check(141_557_760, CONV2)
    assert found.exact
    assert len(found.slips) == 2
    assert found.slips == ("input 13x13 instead of 26x26", "11x11 taken as 120")
    said = (
        "Your 141,557,760 for conv2 comes from two slips: input 13x13 instead of 26x26, and 11x11 "
        "taken as 120."
    )
    assert explain(found, "conv2").startswith(
        f"{said} 1,179,648 x 120 = 141,557,760 MAC. Right is 679,477,248 MAC"
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (64 * 64 * 11 * 11 * 288, ("input 13x13",)),
        (MAC // 64, ("batch of 64 left out",)),
        (4 * MAC, ("doubled again",)),
        (2 * MAC + 64 * 64 * 24 * 24, ("bias additions counted",)),
        (18_432 + 64 + 64 * 64 * 11 * 11, ("input 13x13", "values, not operations")),
        (18_432 + 64 * 64 * 24 * 24, ("values, not operations", "bias left out")),
        (64 * 64 * 24 * 24 * 31 * 9, ("32 input channels taken as 31",)),
    ],
)
def test_a_slip_is_named_when_it_reproduces_the_value(value: int, words: tuple[str, ...]) -> None:
    found = check(value, CONV2)
    assert found.exact
    for word in words:
        assert any(word in slip for slip in found.slips), found.slips


NAMES = (("inputs", 4), ("outputs", 3))
SMALL = Facts(
    batch=10,
    weights=12,
    biases=3,
    bias=True,
    step=300,
    ways=(
        Way((), ((4, 3),), 3, NAMES),
        Way(("inputs halved",), ((2, 3),), 3, (("inputs", 2), ("outputs", 3))),
    ),
)
"""4 inputs, 3 outputs, 10 samples: 120 multiply-adds forward, 300 with backward."""
LEFT_OUT = "batch of 10 left out"
BACKWARD = "forward and backward together"


@pytest.mark.parametrize(
    ("value", "slips", "worked"),
    [
        (120, (), "10 x 4 x 3 = 120 MAC"),
        (240, (), "2 x 10 x 4 x 3 = 240 FLOP"),
        (480, ("FLOP mistaken for MAC and doubled again",), "4 x 10 x 4 x 3 = 480 FLOP"),
        (24, (LEFT_OUT,), "2 x 4 x 3 = 24 FLOP"),
        (48, (LEFT_OUT, "FLOP mistaken for MAC and doubled again"), "4 x 4 x 3 = 48 FLOP"),
        (60, ("inputs halved",), "10 x 2 x 3 = 60 MAC"),
        (6, ("inputs halved", LEFT_OUT), "2 x 3 = 6 MAC"),
        (150, ("bias additions counted",), "10 x 4 x 3 + 30 bias additions = 150 MAC"),
        (270, ("bias additions counted",), "2 x 10 x 4 x 3 + 30 bias additions = 270 FLOP"),
        (27, (LEFT_OUT, "bias additions counted"), "2 x 4 x 3 + 3 bias additions = 27 FLOP"),
        (300, (BACKWARD,), "300 MAC"),
        (600, (BACKWARD,), "600 FLOP"),
        (360, (f"{BACKWARD}, as 3 x forward",), "360 MAC"),
        (72, (f"{BACKWARD}, as 3 x forward", LEFT_OUT), "72 FLOP"),
        (30, ("output values, not operations",), "30 output values"),
        (3, (LEFT_OUT, "output values, not operations"), "3 output values"),
        (15, ("weights and biases, not operations",), "12 weights + 3 biases = 15 values"),
        (45, ("values, not operations",), "12 weights + 3 biases + 30 outputs = 45 values"),
        (18, (LEFT_OUT, "values, not operations"), "12 weights + 3 biases + 3 outputs = 18 values"),
        (42, ("values, not operations", "bias left out"), "12 weights + 30 outputs = 42 values"),
        (132, ("batch of 10 taken as 11",), "12 x 11 = 132 MAC"),
        (180, ("inputs taken as 3",), "2 x 30 x 3 = 180 FLOP"),
        (160, ("outputs taken as 4",), "40 x 4 = 160 MAC"),
        (80, ("outputs taken as 2",), "40 x 2 = 80 MAC"),
        (
            9,
            (LEFT_OUT, "bias additions counted", "inputs halved"),
            "2 x 3 + 3 bias additions = 9 MAC",
        ),
        (66, ("inputs halved", "batch of 10 taken as 11"), "6 x 11 = 66 MAC"),
    ],
)
def test_every_slip_has_its_product(value: int, slips: tuple[str, ...], worked: str) -> None:
    found = check(value, SMALL)
    assert (found.value, found.right, found.exact) == (value, 120, True)
    assert sorted(found.slips) == sorted(slips)
    assert found.worked == worked


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (120, "120 is right: 10 x 4 x 3 = 120 MAC. These are multiply-adds; in FLOP: 240."),
        (240, "240 is right: 2 x 10 x 4 x 3 = 240 FLOP."),
        (
            12,
            (
                "12 comes from one slip: batch of 10 left out; or weights, not operations (12 "
                "weights). 4 x 3 = 12 MAC. Right is 120 MAC = 240 FLOP."
            ),
        ),
        (
            48,
            (
                "48 comes from two slips: batch of 10 left out, and FLOP mistaken for MAC and "
                "doubled again. 4 x 4 x 3 = 48 FLOP. Right is 120 MAC = 240 FLOP."
            ),
        ),
        (
            10_000,
            "10,000 matches no usual slip or combination of slips. The nearest is 720 FLOP "
            "(forward and backward together, as 3 x forward). Right is 120 MAC = 240 FLOP.",
        ),
        (
            0,
            (
                "0 matches no usual slip or combination of slips. The nearest is 3 output values "
                "(batch of 10 left out, and output values, not operations). Right is 120 MAC = 240 "
                "FLOP."
            ),
        ),
        (
            125,
            (
                "125 matches no usual slip or combination of slips. The nearest is 10 x 4 x 3 = "
                "120 MAC. Right is 120 MAC = 240 FLOP."
            ),
        ),
    ],
)
def test_a_finding_in_words(value: int, said: str) -> None:
    assert explain(check(value, SMALL)) == said


def test_no_more_than_three_other_ways_are_said() -> None:
    others = (("b",), ("c", "d"), ("e",), ("f",))
    found = Finding(5, 9, True, ("a",), "5", others, ("5",) * 4)
    assert (
        explain(found)
        == "5 comes from one slip: a; or b; or c, and d; or e. 5. Right is 9 MAC = 18 FLOP."
    )


def test_a_layer_without_a_bias_and_one_of_several_products() -> None:
    bare = Facts(10, 12, 0, False, (Way((), ((4, 3), (5, 3)), 3, NAMES),))
    found = check(270 + 30, bare)
    assert found.slips == ("a bias addition counted for every output value",)
    assert found.worked == "10 x (4 x 3 + 5 x 3) + 30 bias additions = 300 MAC"
    assert check(27, bare).worked == "4 x 3 + 5 x 3 = 27 MAC"
    assert check(540, bare).worked == "2 x 10 x (4 x 3 + 5 x 3) = 540 FLOP"
    assert not check(297, bare).exact, "270 / 10 x 11 is an arithmetic slip in one product alone"
    assert check(42, bare).slips == ("values, not operations",), "there is no bias to leave out"


def test_one_sample_of_a_layer_without_outputs_or_weights_has_few_ways_to_slip() -> None:
    lone = Facts(1, 0, 0, False, (Way((), ((2, 5),), 0, (("inputs", 2), ("outputs", 5))),), step=25)
    assert check(25, lone).slips == (BACKWARD,)
    assert (check(10, lone).worked, check(20, lone).worked) == (
        "2 x 5 = 10 MAC",
        "2 x 2 x 5 = 20 FLOP",
    )
    assert check(8, lone).slips == ("outputs taken as 4",)
    assert not check(15, lone).exact, "a factor of 2 is no slip of arithmetic"
    assert not check(0, lone).exact
    odd = Facts(10, 0, 0, False, (Way((), ((4, 3),), 0),), step=305)
    assert not check(305, odd).exact, "a step that the batch does not divide is not of this batch"
