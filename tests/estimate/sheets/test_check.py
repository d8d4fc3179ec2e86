"""Hand values, and the mistakes that make them: conv2 of the MNIST CNN at batch 64, worked out from
its dimensions."""

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.sheets.layers import ManualCheckFacts, WorkedWay
from perfctl.orchestrator.estimate.sheets.sheet import build_layer_sheet
from perfctl.orchestrator.estimate.sheets.slips import (
    diagnose_stated_value,
    explain_check_finding,
    parse_stated_value,
)
from perfctl.records.paper import OpShape
from tests.make.shapes import op

BATCH, INPUTS, OUTPUTS, KERNEL, GIVEN, SIDE, POOLED_SIDE = 64, 32, 64, 3, 26, 24, 11
WEIGHTS, VALUES = OUTPUTS * INPUTS * KERNEL**2, BATCH * OUTPUTS * SIDE**2
MAC = VALUES * INPUTS * KERNEL**2
POOLED = BATCH * OUTPUTS * POOLED_SIDE**2
"""Output values if the input is taken as 13 x 13, after the pooling."""
TOTAL, POOLED_TOTAL = WEIGHTS + OUTPUTS + VALUES, WEIGHTS + OUTPUTS + POOLED
BATCHES = (16, 32, 64, 128, 256)


def conv2():
    shapes = ((BATCH, INPUTS, GIVEN, GIVEN), (OUTPUTS, INPUTS, KERNEL, KERNEL), (OUTPUTS,))
    result = (BATCH, OUTPUTS, SIDE, SIDE)
    given = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "bias": True}
    forward = op("aten.convolution", shapes, (result,), layer="conv2", **given)
    backward = op(
        "aten.convolution_backward",
        (result, *shapes[:2]),
        shapes,
        layer="conv2",
        direction="backward",
        output_mask=[True, True, True],
        **given,
    )
    sheet = build_layer_sheet((forward, backward), "conv2")
    assert sheet is not None
    return sheet


CONV2 = conv2()


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        (f"{MAC}", "forward, in multiply-adds"),
        (f"{MAC:,}", "forward, in multiply-adds"),
        (f"{2 * MAC}", "forward, in FLOPs"),
        (f"{MAC} MAC", "forward, in multiply-adds"),
        ("1.36e9", "forward, in FLOPs"),
        ("1.36 GFLOP", "forward, in FLOPs"),
        ("679.5 M", "forward, in multiply-adds"),
        (f"{4 * MAC} backward FLOP", "backward, in FLOPs"),
        (f"{3 * MAC} step MAC", "forward and backward together, in multiply-adds"),
        (f"{4 * VALUES // 1024} KiB", "output map, in bytes"),
        ("9288 KiB", "total, in bytes"),
        (f"{4 * TOTAL} bytes", "total, in bytes"),
        (f"{WEIGHTS + OUTPUTS} parameters", "parameters, in values"),
        (f"{WEIGHTS} weights", "weights, in values"),
        (f"{VALUES} output", "output map, in values"),
        (f"{2 * MAC} operations", "forward, in FLOPs"),
        ("9 MB output map", "output map, in bytes"),
    ],
)
def test_a_value_is_right_if_it_is_the_figure_that_it_names(text, figure):
    finding = diagnose_stated_value(
        parse_stated_value(text), CONV2.facts, CONV2.quantities, sweep_batches=BATCHES
    )
    assert (finding.is_explained, finding.mistakes) == (True, ())
    assert f" is correct: {figure}. " in explain_check_finding(finding, "conv2")


@pytest.mark.parametrize("text", ["", "many", "-5", "12 parsecs", "1.2.3", "5 MAC KiB x"])
def test_what_is_no_value_is_refused(text):
    with pytest.raises(UsageError, match="invalid value"):
        parse_stated_value(text)


@pytest.mark.parametrize(
    ("text", "slips"),
    [
        # the study's value: the input after the pooling, and 11 x 11 taken as 120
        (f"{1_179_648 * 120}", ("input 13x13 instead of 26x26", "11x11 taken as 120")),
        (f"{MAC // BATCH}", ("batch of 64 left out",)),
        (f"{MAC // 64 * 16} MAC", ("batch of 16 instead of 64",)),
        (f"{4 * MAC}", ("FLOP mistaken for MAC and doubled again",)),
        (f"{MAC} FLOP", ("multiply-adds instead of FLOPs",)),
        (f"{2 * MAC + VALUES}", ("bias additions counted",)),
        (
            f"{2 * MAC - VALUES}",
            ("one addition less than multiplications counted for each output value (2K - 1)",),
        ),
        (f"{MAC // KERNEL}", ("one side of the 3x3 kernel left out",)),
        (f"{MAC // INPUTS} MAC", ("the 32 input channels left out",)),
        (f"{10 * MAC}", ("a factor of 10 too much",)),
        ("1359854496", ("two digits swapped",)),
        ("135895449", ("a digit left out",)),
        (f"{3 * MAC}", ("forward and backward together",)),
        (f"{TOTAL}", ("weights, biases and output values, not operations",)),
        (f"{4 * VALUES}", ("output map, in bytes",)),
        (f"{4 * POOLED // 1024} KiB", ("input 13x13 instead of 26x26",)),
        (f"{POOLED_TOTAL} total", ("input 13x13 instead of 26x26",)),
        (f"{4 * POOLED_TOTAL} B", ("input 13x13 instead of 26x26",)),
        (f"{4 * VALUES // 1024} B", ("KiB, not bytes",)),
        (
            f"{POOLED_TOTAL}",
            ("input 13x13 instead of 26x26", "weights, biases and output values, not operations"),
        ),
    ],
)
def test_the_most_plausible_mistake_is_named_first(text, slips):
    finding = diagnose_stated_value(
        parse_stated_value(text), CONV2.facts, CONV2.quantities, sweep_batches=BATCHES
    )
    assert (finding.is_explained, finding.mistakes) == (True, slips)
    assert len(finding.other_mistakes) < 3
    assert "is right" not in explain_check_finding(finding)


def test_the_value_of_another_layer_is_named():
    forward = op("aten.mm", ((BATCH, 9216), (9216, 130)), ((BATCH, 130),), layer="fc1")
    fc1 = build_layer_sheet((forward,), "fc1")
    assert fc1 is not None
    value = BATCH * 9216 * 130
    finding = diagnose_stated_value(value, CONV2.facts, CONV2.quantities, other_sheets=(fc1,))
    assert finding.mistakes == ("the value of fc1",)


def test_a_value_that_no_mistake_makes_gets_no_invented_reason():
    finding = diagnose_stated_value(600_000_001, CONV2.facts, CONV2.quantities)
    assert (finding.is_explained, finding.mistakes) == (False, ())
    assert explain_check_finding(finding, "conv2") == (
        "Your 600,000,001 for conv2 is not correct, and no common mistake or pair of mistakes "
        f"gives it. Correct: {MAC:,} MAC = {2 * MAC:,} FLOP (forward)."
    )


def test_mistakes_are_said_as_possible_with_their_arithmetic():
    value = MAC // BATCH
    assert explain_check_finding(
        diagnose_stated_value(value, CONV2.facts, CONV2.quantities), "conv2"
    ) == (
        f"Your {value:,} for conv2 could come from batch of 64 left out ({value:,} MAC), or from the 64 "
        f"output channels left out ({value:,} MAC). Correct: {MAC:,} MAC = {2 * MAC:,} FLOP "
        "(forward)."
    )


NAMES = (("inputs", 4), ("outputs", 3))
SMALL = ManualCheckFacts(10, 12, 3, True, (WorkedWay((), ((4, 3),), 3, NAMES),), step=300)
"""4 inputs, 3 outputs, 10 samples: 120 multiply-adds forward, 300 with backward."""


@pytest.mark.parametrize(
    ("value", "slips"),
    [
        (24, ("batch of 10 left out",)),
        (48, ("batch of 10 left out", "FLOP mistaken for MAC and doubled again")),
        (60, ("halved, as if multiply-adds were FLOPs",)),
        (27, ("batch of 10 left out", "bias additions counted")),
        (600, ("forward and backward together",)),
        (360, ("forward and backward together, as 3 x forward",)),
        (30, ("output values, not operations",)),
        (15, ("weights and biases, not operations",)),
        (132, ("batch of 10 taken as 11",)),
        (180, ("inputs taken as 3",)),
    ],
)
def test_facts_alone_explain_operations(value, slips):
    finding = diagnose_stated_value(value, SMALL)
    assert (finding.is_explained, finding.mistakes, finding.correct_value) == (True, slips, 120)


def test_several_products_and_a_layer_without_bias_are_worked_out_alike():
    bare = ManualCheckFacts(10, 12, 0, False, (WorkedWay((), ((4, 3), (5, 3)), 3, NAMES),))
    assert diagnose_stated_value(270 + 30, bare).mistakes == (
        "a bias addition for each output value",
    )
    assert diagnose_stated_value(270, bare).derivation == "10 x (4 x 3 + 5 x 3) = 270 MAC"
    assert not diagnose_stated_value(297, bare).is_explained, (
        "a factor off by one is a mistake in one product alone"
    )


def test_a_layer_without_multiply_adds_has_figures_too():
    shape = (2, 3, 4)
    relu = OpShape(
        "act",
        "ReLU",
        "aten.relu",
        "forward",
        (shape,),
        (shape,),
        ("float32",) * 2,
        {"pointwise": True},
    )
    sheet = build_layer_sheet((relu,), "act")
    assert sheet is not None and sheet.facts is None
    assert diagnose_stated_value(parse_stated_value("96 B"), None, sheet.quantities).mistakes == ()
    assert (
        diagnose_stated_value(parse_stated_value("24 values"), None, sheet.quantities).quantity
        == "output map"
    )
    assert not diagnose_stated_value(
        parse_stated_value("95 B"), None, sheet.quantities
    ).is_explained
    assert diagnose_stated_value(0, None, sheet.quantities).is_correct
    assert "cannot check" in explain_check_finding(
        diagnose_stated_value(parse_stated_value("5 biases"), None, sheet.quantities)
    )


def test_a_value_keeps_the_digits_that_it_was_written_with():
    finding = diagnose_stated_value(
        parse_stated_value(f"{MAC / 1e9:.5f} GMAC"), CONV2.facts, CONV2.quantities
    )
    assert explain_check_finding(finding).startswith(f"{MAC / 1e9:.5f} GMAC is correct")
