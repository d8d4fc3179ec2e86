"""Operations as a predictor sees them: figures for one sample, worked out here from the dimensions."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.predict.operations import operations_of
from perfctl.records.paper import OpShape


def shape(op: str, inputs: tuple, outputs: tuple, **more: object) -> OpShape:
    fields = {"layer": "l", "kind": "", "direction": "forward", "parameters": 0, "calls": 1, "position": 0} | more
    return OpShape(op=op, inputs=inputs, outputs=outputs, **fields)  # type: ignore[arg-type]


def conv(batch: int, groups: int = 1, **more: object) -> OpShape:
    attributes = {"bias": True, "stride": [2, 2], "padding": [1, 1], "groups": groups, "transposed": False}
    inputs = ((batch, 8, 10, 10), (16, 8 // groups, 3, 3), (16,))
    return shape("aten.convolution", inputs, ((batch, 16, 5, 5),), parameters=9, attributes=attributes, **more)


def test_a_convolution_is_a_product_of_positions_channels_and_window() -> None:
    (work,) = operations_of([conv(4)], batch=4)
    assert (work.kind, work.rows, work.columns, work.depth) == ("conv", 5 * 5, 16, 8 * 9)
    assert work.macs == 25 * 16 * 72
    assert (work.inputs, work.outputs) == (8 * 100, 16 * 25)
    assert work.weights == 16 * 72 + 16
    assert (work.kernel, work.stride) == (9, 2)


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_what_is_per_sample_does_not_depend_on_the_traced_batch(batch: int) -> None:
    assert operations_of([conv(batch)], batch) == operations_of([conv(2)], 2)


def test_groups_are_products_of_their_own() -> None:
    (work,) = operations_of([conv(2, groups=4)], 2)
    assert (work.kind, work.groups, work.columns, work.depth) == ("grouped_conv", 4, 4, 2 * 9)
    assert work.macs == work.groups * work.rows * work.columns * work.depth == 25 * 16 * 18


def test_a_transposed_convolution_counts_the_positions_of_its_input() -> None:
    attributes = {"stride": [2, 2], "transposed": True, "groups": 1}
    op = shape("aten.convolution", ((2, 8, 5, 5), (8, 4, 3, 3)), ((2, 4, 11, 11),), attributes=attributes)
    (work,) = operations_of([op], 2)
    assert work.kind == "transposed_conv"
    assert work.macs == work.rows * work.columns * work.depth == 25 * 8 * 4 * 9


def test_a_linear_reads_its_weights_once_whatever_the_batch() -> None:
    op = shape("aten.addmm", ((10,), (6, 128), (128, 10)), ((6, 10),), parameters=1290)
    (work,) = operations_of([op], 6)
    assert (work.kind, work.weights, work.rows) == ("linear", 1290, 1)


def test_a_batched_product_has_one_product_a_head() -> None:
    op = shape("aten.bmm", ((24, 7, 16), (24, 16, 9)), ((24, 7, 9),))
    (work,) = operations_of([op], 2)
    assert (work.kind, work.groups, work.rows, work.columns, work.depth) == ("matmul", 12, 7, 9, 16)
    assert work.macs == 12 * 7 * 9 * 16
    assert work.weights == 0


def test_attention_counts_both_products() -> None:
    query, key, value = (2, 4, 10, 16), (2, 4, 12, 16), (2, 4, 12, 8)
    op = shape("perfctl.scaled_dot_product_attention", (query, key, value), ((2, 4, 10, 8),))
    (work,) = operations_of([op], 2)
    assert work.macs == 4 * 10 * 12 * (16 + 8) == work.groups * work.rows * work.columns * work.depth


def test_an_operation_without_a_formula_is_other_and_not_elementwise() -> None:
    (unknown, known) = operations_of(
        [shape("own.thing", ((2, 4),), ((2, 4),)), shape("aten.add", ((2, 4),), ((2, 4),))], 2
    )
    assert (unknown.kind, known.kind) == ("other", "elementwise")


def test_only_the_layer_whose_input_needs_no_gradient_is_first() -> None:
    mask = {"output_mask": [False, True, True], "role": "grad_input"}
    backward = shape("aten.convolution_backward", ((2, 16, 5, 5), (2, 8, 10, 10), (16, 8, 3, 3)), (None,),
                     direction="backward", attributes=mask, position=9)  # fmt: skip
    asked = shape("aten.convolution_backward", ((2, 16, 5, 5), (2, 8, 10, 10), (16, 8, 3, 3)), (None,),
                  direction="backward", attributes=mask | {"output_mask": [True, True, True]}, layer="m")  # fmt: skip
    works = operations_of([conv(2), conv(2, layer="m", position=1), backward, asked], 2)
    assert [work.first for work in works] == [True, False]


def test_without_a_backward_pass_the_first_layer_with_weights_is_first() -> None:
    relu = shape("aten.relu", ((2, 4),), ((2, 4),))
    works = operations_of([relu, conv(2, position=1), conv(2, position=2)], 2)
    assert [work.first for work in works] == [False, True, False]


def test_what_is_computed_again_in_backward_is_no_forward_work() -> None:
    again = shape("aten.relu", ((2, 4),), ((2, 4),), attributes={"recompute": True})
    assert operations_of([again], 2) == ()
