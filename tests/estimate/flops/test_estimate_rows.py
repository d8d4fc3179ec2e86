"""How operations become rows: kinds, directions, owners of parameters, texts and sums, from shapes
made by hand."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.estimate.flops.engine import (
    WorkTotals,
    build_layer_calls_with_flops,
    is_fused_kernel_recomputation,
    make_friendly_operator_name,
    select_countable_operations,
    sum_layer_call_work,
)
from perfctl.records.paper import LayerCall
from tests.make.shapes import op


def product(rows, position=0, calls=1, **more):
    """rows x 3 by 3 x 4."""
    return replace(
        op("aten.mm", ((rows, 3), (3, 4)), ((rows, 4),), **more), position=position, calls=calls
    )


def test_a_row_sums_its_operations_and_takes_values_and_calls_from_its_main_one():
    relu = replace(op("aten.relu", ((2, 4),), ((2, 4),)), position=5, calls=3, parameters=12)
    (row,) = build_layer_calls_with_flops([replace(product(2, 7, 2), parameters=12), relu])
    assert row == LayerCall(
        "layer",
        "Layer",
        "forward",
        macs=2 * 24,
        flops=2 * 2 * 24,
        parameters=12,
        read_bytes=4 * (2 * (6 + 12) + 3 * 8),
        write_bytes=4 * (2 * 8 + 3 * 8),
        output_elements=16,
        formula="2 times: M x K x N = 2 x 3 x 4 = 24 MAC = 48 FLOP",
        elementwise_flops=24,
        calls=2,
        position=5,
    )


def test_a_row_spells_out_four_shapes_and_counts_the_rest():
    four, five, six = (
        build_layer_calls_with_flops([product(rows, rows) for rows in range(1, count + 1)])[
            0
        ].formula
        or ""
        for count in (4, 5, 6)
    )
    assert four.count("MAC") == 4 and "more shapes" not in four
    assert five.count("MAC") == 4 and five.endswith("; and 1 more shapes")
    assert six.endswith("; and 2 more shapes")


def test_rows_stand_in_the_order_in_which_they_were_first_seen():
    rows = build_layer_calls_with_flops(
        [
            product(1, 9, layer="c"),
            product(1, 2, layer="a"),
            op("own.x", ((1,),), ((1,),), layer="b"),
            product(1, 1, layer="c"),
        ]
    )
    assert [row.layer for row in rows] == ["b", "c", "a"]


def test_parameters_stand_at_the_layers_own_row_and_else_at_the_heaviest_functional_one():
    heavy = replace(product(9, 1, functional="aten.mm"), parameters=7)
    light = replace(product(2, 0, functional="aten.bmm"), parameters=7)
    assert {row.kind: row.parameters for row in build_layer_calls_with_flops([light, heavy])} == {
        "matmul": 7
    }
    other = replace(light, op="aten.mm", attributes={"functional": "own.op"})
    assert {row.kind: row.parameters for row in build_layer_calls_with_flops([other, heavy])} == {
        "own.op": 0,
        "matmul": 7,
    }
    own = replace(product(1, 2), parameters=7)
    assert {row.kind: row.parameters for row in build_layer_calls_with_flops([own, heavy])} == {
        "Layer": 7,
        "matmul": 0,
    }


def test_what_is_computed_again_in_backward_is_recomputation():
    again = {"layer": "b", "recompute": True}
    own = [
        op("own.x", ((1,),), ((1,),), **more)
        for more in (again, {"layer": "b", "direction": "backward"}, {"layer": "b"})
    ]
    rows = build_layer_calls_with_flops([product(1), product(1, recompute=True), *own])
    assert [(row.layer, row.direction) for row in rows] == [
        ("layer", "forward"),
        ("layer", "recompute"),
        ("b", "recompute"),
        ("b", "backward"),
        ("b", "forward"),
    ]


def test_what_has_no_formula_has_bytes_and_calls_and_no_flops():
    once = op("own.x", ((2, 3), None), ((4,), (5,)))
    (row,) = build_layer_calls_with_flops([once])
    assert (row.macs, row.flops, row.elementwise_flops, row.calls) == (None, None, None, 1)
    assert (row.read_bytes, row.write_bytes, row.output_elements) == (24, 36, 4)
    assert row.formula == "no formula for own.x (1 call)"
    (row,) = build_layer_calls_with_flops([once, replace(once, calls=1233, position=3)])
    assert (row.calls, row.read_bytes, row.write_bytes, row.output_elements) == (
        1234,
        24 * 1234,
        36 * 1234,
        4 * 1234,
    )
    assert (row.formula, row.position) == ("no formula for own.x (1,234 calls)", 0)


def test_an_optimizers_steps_are_one_call():
    steps = [
        op("optim.SGD", ((3,),), ((3,),), direction="optimizer"),
        op("optim.SGD", ((5,),), ((5,),), direction="optimizer"),
    ]
    (row,) = build_layer_calls_with_flops(steps)
    assert (row.calls, row.elementwise_flops, row.macs) == (1, 16, 0)


def test_totals_are_of_the_directions_asked_for_and_name_what_is_unknown():
    def call(direction, macs, kind="A", calls=1):
        flops, work = (None, None) if macs is None else (2 * macs, 3)
        return LayerCall(
            "a", kind, direction, macs, flops, 0, 0, 0, 0, "", elementwise_flops=work, calls=calls
        )

    calls = [
        call("forward", 5),
        call("forward", 7),
        call("grad_input", 100),
        call("forward", None, "z", 4),
        call("forward", None, "b", 2),
        call("forward", None, "z", 1),
    ]
    assert sum_layer_call_work(calls, ("forward",)) == WorkTotals(12, 24, 6, (("b", 2), ("z", 5)))
    assert sum_layer_call_work(calls, ()) == WorkTotals(0, 0, 0, ())


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("aten.convolution", ((1, 2, 9), (4, 2, 3)), "conv1d"),
        ("aten.convolution", ((1, 2, 9, 9, 9), (4, 2, 3, 3, 3)), "conv3d"),
        ("aten.convolution", ((1,), (4, 2)), "convolution"),
        ("aten.convolution_backward", ((1, 4, 7, 7), (1, 2, 9, 9), (4, 2, 3, 3)), "conv2d"),
        ("aten.addmm", (), "linear"),
        ("aten.relu_", (), "relu"),
        ("aten.__and__", (), "__and__"),
        ("aten.upsample_nearest2d", (), "interpolate"),
        ("aten._upsample_bilinear2d_aa", (), "interpolate"),
        ("perfctl.lstm", (), "lstm"),
        ("own.addmm", (), "own.addmm"),
    ],
)
def test_operations_are_called_what_people_call_them(name, inputs, said):
    assert make_friendly_operator_name(name, op(name, inputs, ())) == said


def test_paper_leaves_open_which_kernel_attention_takes_and_its_own_work_is_a_row_apart():
    query = (1, 1, 4, 2)
    name = "perfctl.scaled_dot_product_attention_backward"
    shape = op(name, (query,) * 3, (query,), direction="backward", backend="math")
    ahead = op(name.removesuffix("_backward"), (query,) * 3, (query,))
    assert [
        is_fused_kernel_recomputation(row) for row in build_layer_calls_with_flops([ahead, shape])
    ] == [False, False]
    assert next(select_countable_operations([shape])).attributes["backend"] == "any"
    rows = build_layer_calls_with_flops([ahead, next(select_countable_operations([shape]))])[1:]
    assert [(row.kind, is_fused_kernel_recomputation(row)) for row in rows] == [
        ("Layer", False),
        ("Layer, fused kernel", True),
    ]
    plain = product(1)
    assert next(select_countable_operations([plain])) == plain
