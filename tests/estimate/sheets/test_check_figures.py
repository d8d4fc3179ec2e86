"""Hand values that may be any figure of a layer: conv2 of the MNIST CNN at batch 64, worked out
from its shapes."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.estimate.sheets.sheet import Sheet, sheet_for
from perfctl.orchestrator.estimate.sheets.slips import check, explain
from perfctl.records.paper import OpShape
from tests.make.shapes import op

BATCH, CHANNELS, MADE, KERNEL, GIVEN, SIDE = 64, 32, 64, 3, 26, 24
WEIGHTS, OUTPUT, INPUT = (
    MADE * CHANNELS * KERNEL**2,
    BATCH * MADE * SIDE**2,
    BATCH * CHANNELS * GIVEN**2,
)
MAC = OUTPUT * CHANNELS * KERNEL**2
SHAPES = ((BATCH, CHANNELS, GIVEN, GIVEN), (MADE, CHANNELS, KERNEL, KERNEL), (MADE,))
SETTINGS = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "bias": True}


def conv2() -> Sheet:
    forward = op(
        "aten.convolution", SHAPES, ((BATCH, MADE, SIDE, SIDE),), layer="conv2", **SETTINGS
    )
    backward = op(
        "aten.convolution_backward",
        ((BATCH, MADE, SIDE, SIDE), *SHAPES[:2]),
        SHAPES,
        layer="conv2",
        direction="backward",
        output_mask=[True, True, True],
        **SETTINGS,
    )
    sheet = sheet_for((forward, backward), "conv2")
    assert sheet is not None
    return sheet


CONV2 = conv2()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (4 * OUTPUT, "output map, in bytes"),
        (4 * OUTPUT // 1024, "output map, in KiB"),
        (4 * INPUT, "input, in bytes"),
        (INPUT, "input, in values"),
        (OUTPUT, "output map, in values"),
        (4 * WEIGHTS, "weights, in bytes"),
        (WEIGHTS, "weights, in values"),
        (WEIGHTS + MADE, "parameters, in values"),
        (4 * (WEIGHTS + MADE), "parameters, in bytes"),
        (MAC, "forward, in multiply-adds"),
        (2 * MAC, "forward, in FLOPs"),
        (4 * MAC, "backward, in FLOPs"),
        (3 * MAC, "forward and backward together, in multiply-adds"),
        (WEIGHTS + MADE + OUTPUT, "total, in values"),
        (4 * (WEIGHTS + MADE + OUTPUT), "total, in bytes"),
        (round(4 * (WEIGHTS + MADE + OUTPUT) / 1024), "total, in KiB, rounded"),
    ],
)
def test_every_figure_is_right_and_named(value: int, named: str) -> None:
    found = check(value, CONV2.facts, CONV2.quantities)
    assert (found.exact, found.slips, found.quantity) == (True, (), named)
    assert explain(found, "conv2").startswith(f"{value:,} is right: {named}. ")


def test_figures_with_one_value_are_all_named() -> None:
    found = check(2 * MAC, CONV2.facts, CONV2.quantities)
    assert found.also == (
        "gradient of the input, in FLOPs",
        "gradient of the weights, in FLOPs",
        "backward, in multiply-adds",
    )


POOLED = BATCH * MADE * 11 * 11
"""Outputs with the input taken as 13 x 13, after the pooling."""
ONE = "comes from one slip: input 13x13 instead of 26x26."


@pytest.mark.parametrize(
    ("value", "worked", "right"),
    [
        (
            4 * POOLED,
            "495,616 output values x 4 B = 1,982,464 B.",
            f"{4 * OUTPUT:,} B = 9,216.0 KiB (output map).",
        ),
        (
            4 * POOLED // 1024,
            "= 1,982,464 B = 1,936 KiB.",
            f"{4 * OUTPUT // 1024:,} KiB = {4 * OUTPUT:,} B (output map).",
        ),
        (POOLED, "495,616 output values.", f"{OUTPUT:,} values (output map)."),
        (
            WEIGHTS + MADE + POOLED,
            "= 514,112 values.",
            f"{WEIGHTS + MADE + OUTPUT:,} values (total).",
        ),
        (
            4 * (WEIGHTS + MADE + POOLED),
            "(18,496 parameters + 495,616 output values) x 4 B = 2,056,448 B.",
            f"{4 * (WEIGHTS + MADE + OUTPUT):,} B = 9,288.2 KiB (total).",
        ),
    ],
)
def test_the_studys_slip_is_one_slip_in_every_unit(value: int, worked: str, right: str) -> None:
    said = explain(check(value, CONV2.facts, CONV2.quantities), "conv2")
    assert said.startswith(f"Your {value:,} for conv2 {ONE}")
    assert worked in said
    assert said.endswith(f"Right is {right}")


def test_what_is_nearest_is_a_figure_where_there_is_no_slip() -> None:
    said = explain(check(4 * OUTPUT + 1, CONV2.facts, CONV2.quantities), "conv2")
    assert said.endswith(
        f"The nearest is output map, in bytes: 64 x 64 x 24 x 24 = {OUTPUT:,} values x 4 B = "
        f"{4 * OUTPUT:,} B."
    )
    assert "is no figure of the layer" in said


def test_a_layer_without_multiply_adds_has_figures_too() -> None:
    shape = (2, 3, 4)
    (relu,) = (
        OpShape(
            "act",
            "ReLU",
            "aten.relu",
            "forward",
            (shape,),
            (shape,),
            ("float32", "float32"),
            {"pointwise": True},
        ),
    )
    sheet = sheet_for((relu,), "act")
    assert sheet is not None and sheet.facts is None
    assert check(96, None, sheet.quantities).quantity == "output map, in bytes"
    assert check(24, None, sheet.quantities).also == (
        "input, in values",
        "forward (ReLU), in elementwise FLOPs",
    )
    assert not check(95, None, sheet.quantities).exact
