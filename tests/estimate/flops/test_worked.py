"""The small arithmetic that all formulas share."""

import pytest

from perfctl.orchestrator.estimate.flops.formulas import (
    ITEM_BYTES,
    count_first_output_elements,
    count_largest_input_elements,
    format_factors,
    format_mac_product,
    get_shape_or_empty,
    get_work_direction,
    pair_shapes_with_item_bytes,
    read_boolean_attribute,
    read_integer_of_attribute,
    read_integers_of_attribute,
)
from perfctl.records.paper import OpShape
from tests.make.shapes import op


def test_an_element_has_the_bytes_of_the_bits_in_its_name():
    bits = {
        "float64": 64,
        "float32": 32,
        "float16": 16,
        "bfloat16": 16,
        "int64": 64,
        "int32": 32,
        "int16": 16,
        "int8": 8,
        "uint8": 8,
        "bool": 8,
        "complex64": 64,
        "complex128": 128,
        "complex32": 32,
        "float8_e4m3fn": 8,
        "float8_e5m2": 8,
        "quint8": 8,
        "qint8": 8,
        "qint32": 32,
        "uint16": 16,
        "uint32": 32,
        "uint64": 64,
    }
    assert {
        name: 8
        * pair_shapes_with_item_bytes(op("aten.relu", ((1,),), (), dtype=name)).sum_input_bytes()
        for name in ITEM_BYTES
    } == bits


def mixed(inputs, outputs, dtypes):
    return OpShape("a", "A", "aten.mm", "forward", inputs, outputs, dtypes, {}, 0, 1, 0)


def test_each_tensor_has_its_own_dtype_and_what_is_no_tensor_takes_none():
    found = pair_shapes_with_item_bytes(
        mixed(((2, 3), None, (5,)), ((7,), None), ("float16", "int64", "float64"))
    )
    assert found.inputs == (((2, 3), 2), None, ((5,), 8))
    assert found.outputs == (((7,), 8), None)
    assert (
        found.sum_input_bytes(),
        found.sum_input_bytes(0),
        found.sum_input_bytes(1),
        found.sum_input_bytes(0, 2),
    ) == (52, 12, 0, 52)
    assert (found.sum_output_bytes(), found.sum_output_bytes(0), found.sum_output_bytes(1)) == (
        56,
        56,
        0,
    )


def test_a_dtype_that_is_not_known_or_not_said_counts_four_bytes():
    found = pair_shapes_with_item_bytes(mixed(((3,), (3,)), ((3,),), ("float4",)))
    assert (found.sum_input_bytes(0), found.sum_input_bytes(1), found.sum_output_bytes()) == (
        12,
        12,
        12,
    )


def test_shapes_that_are_not_there_are_empty_and_elements_are_of_the_first_output_and_the_largest_input():
    assert get_shape_or_empty(((2, 3), None), 0) == (2, 3)
    assert get_shape_or_empty(((2, 3), None), 1) == get_shape_or_empty(((2, 3), None), 2) == ()
    shape = op("aten.cat", ((2, 3), None, (4, 5)), ((7, 2), (100,)))
    assert (count_largest_input_elements(shape), count_first_output_elements(shape)) == (20, 14)
    nothing = op("aten.cat", (), ())
    assert (count_largest_input_elements(nothing), count_first_output_elements(nothing)) == (0, 0)
    assert count_largest_input_elements(op("aten.cat", (None,), ())) == 0


@pytest.mark.parametrize(
    ("direction", "role", "said"),
    [
        ("forward", "grad_weight", "forward"),
        ("backward", "grad_weight", "grad_weight"),
        ("backward", None, "grad_input"),
        ("optimizer", None, "optimizer"),
        ("optimizer", "backward", "backward"),
    ],
)
def test_a_backward_operation_is_what_the_recorder_said_or_the_inputs_gradient(
    direction, role, said
):
    assert get_work_direction(op("aten.mm", (), (), direction=direction, role=role)) == said


def test_attributes_are_read_as_what_they_are_meant_to_be():
    shape = op("aten.mm", (), (), yes=True, size=3.0, pair=[2, None], text="x", none=None)
    assert (
        read_boolean_attribute(shape, "yes"),
        read_boolean_attribute(shape, "no"),
        read_boolean_attribute(shape, "none"),
    ) == (
        True,
        False,
        False,
    )
    assert (
        read_integer_of_attribute(shape, "size"),
        read_integer_of_attribute(shape, "gone"),
        read_integer_of_attribute(shape, "gone", 7),
        read_integer_of_attribute(shape, "text", 5),
    ) == (
        3,
        0,
        7,
        5,
    )
    assert (
        read_integers_of_attribute(shape, "pair"),
        read_integers_of_attribute(shape, "size"),
        read_integers_of_attribute(shape, "text"),
        read_integers_of_attribute(shape, "gone"),
    ) == (
        (2, 0),
        (3,),
        (),
        (),
    )


def test_numbers_are_grouped_by_thousands_and_a_multiply_add_is_two_flops():
    assert format_factors(1000, 24) == "1,000 x 24"
    assert (
        format_mac_product("A x B", (1000, 24)) == "A x B = 1,000 x 24 = 24,000 MAC = 48,000 FLOP"
    )
