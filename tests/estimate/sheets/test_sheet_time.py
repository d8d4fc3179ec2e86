"""What every sheet says beside its kind's own lines: each direction's operations, their sum, and
what it leaves open."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.estimate.sheets.layers import SheetLine
from perfctl.orchestrator.estimate.sheets.sheet import (
    build_layer_sheet,
    list_layers_with_operations,
)
from tests.make.shapes import op
from tests.make.sheets import lines_of, written

FORWARD = op("aten.addmm", ((5,), (14, 3), (3, 5)), ((14, 5),))
BACKWARD = (
    op("aten.mm", ((14, 5), (5, 3)), ((14, 3),), direction="backward", role="grad_input"),
    op("aten.mm", ((5, 14), (14, 3)), ((5, 3),), direction="backward", role="grad_weight"),
    op("aten.sum", ((14, 5),), ((1, 5),), direction="backward", role="grad_bias"),
)
"""A linear layer of 3 inputs and 5 outputs on 14 rows."""
SDPA = "perfctl.scaled_dot_product_attention"


def sheet(*ops, output=None):
    found = build_layer_sheet(ops, "layer", output)
    assert found is not None
    return found


def time_lines(made):
    return next(section.lines for section in made.sections if section.title == "Time: operations")


def test_every_direction_has_its_line_and_the_multiply_adds_their_sum():
    made = sheet(FORWARD, *BACKWARD)
    assert written(time_lines(made)) == lines_of("""
        forward | M x K x N | 14 x 3 x 5 | 420 FLOP
        gradient of the input | M x K x N | 14 x 5 x 3 | 420 FLOP
        gradient of the weights | M x K x N | 5 x 14 x 3 | 420 FLOP
        gradient of the bias | 1 x 70 input values, elementwise |  | 70 elementwise FLOP
        total | sum of the multiply-adds above |  | 1,260 FLOP
    """)
    assert [section.title for section in made.sections] == [
        "Shapes",
        "Forward, step by step",
        "Time: operations",
        "Space: values and bytes",
    ]
    assert (made.layer, made.kind) == ("layer", "Layer")
    assert made.facts is not None
    assert (made.facts.forward_macs_of_batch, made.facts.step) == (210, 630)


def test_a_first_layer_is_said_to_need_no_gradient_of_its_input():
    made = sheet(FORWARD, *BACKWARD[1:])
    assert [(line.quantity, line.result) for line in time_lines(made)] == [
        ("forward", "420 FLOP"),
        ("gradient of the weights", "420 FLOP"),
        ("gradient of the bias", "70 elementwise FLOP"),
        ("gradient of the input", "0 FLOP"),
        ("total", "840 FLOP"),
    ]
    assert time_lines(made)[3].formula == "not needed for the input of this layer"
    assert made.facts is not None and made.facts.step == 420


def test_forward_alone_has_no_sum_and_no_step():
    made = sheet(FORWARD)
    assert [line.quantity for line in time_lines(made)] == ["forward"]
    assert made.facts is not None and made.facts.step == 0


def test_a_layer_called_several_times_says_so_and_has_no_step_of_its_own():
    """The sheet works one call of 210 multiply-adds: 3 calls with their backward are not the
    layer's step."""
    made = sheet(replace(FORWARD, calls=3), *(replace(part, calls=3) for part in BACKWARD))
    assert made.sections[1].title == "Forward, step by step (one of 3 calls)"
    assert time_lines(made)[0] == SheetLine(
        "forward", "3 times: M x K x N", "14 x 3 x 5", "1,260 FLOP"
    )
    assert made.facts is not None
    assert (made.facts.forward_macs_of_batch, made.facts.step) == (210, 0)
    # The heaviest operation says how often; without products it is the first.
    many, once = (
        replace(op("aten.mm", ((2, 2), (2, 2)), ((2, 2),)), calls=9),
        replace(FORWARD, calls=4),
    )
    assert sheet(many, once).sections[1].title.endswith("(one of 4 calls)")
    assert (
        sheet(replace(op("aten.relu", ((2,),), ((2,),)), calls=7))
        .sections[1]
        .title.endswith("(one of 7 calls)")
    )


def test_directions_that_are_computed_again_or_belong_to_the_optimizer_are_named():
    again = op("aten.addmm", ((5,), (14, 3), (3, 5)), ((14, 5),), recompute=True)
    step = op("optim.SGD", ((5, 3),), (), direction="optimizer")
    made = sheet(FORWARD, again, step)
    assert [line.quantity for line in time_lines(made)] == [
        "forward",
        "computed again in backward",
        "optimizer step",
        "total",
    ]
    assert made.facts is not None
    assert (made.facts.forward_macs_of_batch, made.facts.step) == (210, 0), (
        "computed again is no backward"
    )


def test_what_only_a_fused_kernel_does_is_said_apart_and_not_summed():
    given = ((3, 2, 4, 6), (3, 2, 5, 6), (3, 2, 5, 8))
    backward = op(f"{SDPA}_backward", given, given, direction="backward", backend="any")
    made = sheet(op(SDPA, given, ((3, 2, 4, 8),)), backward)
    scores = 3 * 2 * 4 * 5
    # dP and dV are 8 deep, dQ and dK 6.
    assert [(line.quantity, line.result) for line in time_lines(made)] == [
        ("forward", f"{2 * scores * 14:,} FLOP"),
        ("gradient of the input", f"{2 * scores * 28:,} FLOP"),
        ("with a fused kernel", f"{2 * scores * 6:,} FLOP"),
        ("total", f"{2 * scores * 42:,} FLOP"),
    ]
    assert made.facts is not None
    assert made.facts.step == scores * 42


def test_functional_operations_are_told_apart_by_name_and_one_without_formula_is_said():
    made = sheet(
        replace(FORWARD, attributes={"functional": "aten.addmm"}),
        op("aten.relu", ((14, 5),), ((14, 5),), functional="aten.relu"),
        op("aten.copy_", ((14, 5),), ((14, 5),), functional="aten.copy_"),
        op("aten.unheard_of", ((14, 5),), ((14, 5),), functional="aten.unheard_of"),
    )
    assert written(time_lines(made)) == lines_of("""
        forward (linear) | M x K x N | 14 x 3 x 5 | 420 FLOP
        forward (relu) | 1 x 70 output values, elementwise |  | 70 elementwise FLOP
        forward (copy) | 70 values moved, no arithmetic |  | no arithmetic
        forward (unheard_of) | no formula for aten.unheard_of (1 call) |  | not counted
    """)


def test_a_row_of_several_products_keeps_its_text_whole():
    made = sheet(FORWARD, op("aten.mm", ((2, 3), (3, 4)), ((2, 4),)))
    text = "M x K x N = 14 x 3 x 5 = 210 MAC = 420 FLOP; M x K x N = 2 x 3 x 4 = 24 MAC = 48 FLOP"
    assert time_lines(made) == (SheetLine("forward", text, "", "468 FLOP"),)


CONV = {"stride": [1], "padding": [0], "dilation": [1]}


@pytest.mark.parametrize(
    ("ops", "output", "first", "batch"),
    [
        *(
            (
                (op(name, ((2, 3, 4, 4), (5, 3, 1, 1), None), ((2, 5, 4, 4),), **CONV),),
                None,
                "for one output value",
                2,
            )
            for name in ("aten._convolution", "aten.convolution_overrideable")
        ),
        (
            (replace(FORWARD, kind="NonDynamicallyQuantizableLinear"),),
            None,
            "for one output value",
            14,
        ),
        ((op("aten.bmm", ((2, 5, 4), (2, 4, 3)), ((2, 5, 3),)),), (2, 5, 3), "product 1", 1),
        ((FORWARD, op("aten.mm", ((14, 5), (5, 2)), ((14, 2),))), (2, 7, 2), "product 1", 2),
        ((FORWARD, op("aten.mm", ((14, 5), (5, 2)), ((14, 2),))), None, "product 1", 14),
        (
            (
                op("aten.relu", ((2, 3),), ((2, 3),)),
                op("aten.embedding", ((9, 4), (2, 3)), ((2, 3, 4),)),
            ),
            None,
            "rows looked up",
            None,
        ),
        (
            (op("aten.native_layer_norm", ((2, 3), None, None, None), ((2, 3), (2, 1), (2, 1))),),
            None,
            "mean",
            None,
        ),
        (
            (op("aten.avg_pool2d", ((1, 1, 4, 4),), ((1, 1, 2, 2),), kernel_size=[2]),),
            None,
            "for one output value",
            None,
        ),
        ((op("aten.relu", ((2, 3),), ((2, 3),)),), None, "relu", None),
    ],
)
def test_each_kind_of_layer_has_its_own_steps_and_batch(ops, output, first, batch):
    made = sheet(*ops, output=output)
    assert made.sections[1].lines[0].quantity == first
    assert (None if made.facts is None else made.facts.batch) == batch


def test_only_a_module_or_a_named_layer_has_a_sheet():
    outside = op("aten.relu", ((2,),), ((2,),), layer="", kind="")
    root = op("aten.relu", ((3,),), ((3,),), layer="", kind="Net")
    assert list_layers_with_operations((FORWARD, outside, FORWARD)) == ("layer",)
    assert list_layers_with_operations((outside, root, FORWARD)) == ("", "layer")
    assert build_layer_sheet((outside,), "") is None
    made = build_layer_sheet((outside, root, FORWARD), "")
    assert made is not None
    assert (made.kind, [line.result for line in made.sections[0].lines]) == ("Net", ["3", "3"])


def test_a_layer_that_ran_only_backward_is_worked_from_that_and_its_forward_is_not_counted():
    made = sheet(*BACKWARD[:1])
    assert made.sections[1].title == "Forward, step by step"
    gradient, forward = time_lines(made)
    assert gradient.quantity == "gradient of the input"
    assert (forward.quantity, forward.result) == ("forward", "not counted")
    assert forward.formula.startswith("perfctl did not see the forward pass, but backward has")
