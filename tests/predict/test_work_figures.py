"""All figures of one traced operation of each kind, for one sample, worked out from its shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.operations import (
    Operation,
    StepSpec,
    list_forward_operations_per_sample,
)
from perfctl.orchestrator.predict.published import UNIT
from perfctl.orchestrator.predict.step_parts import (
    MICROSECOND,
    compute_step_floor_seconds,
    sum_step_part_seconds,
)
from perfctl.records.paper import OpShape
from tests.make.works import by_part, moving, product


def shape(op, inputs, outputs, **more):
    fields = {
        "layer": "l",
        "kind": "",
        "direction": "forward",
        "parameters": 0,
        "calls": 1,
        "position": 0,
    } | more
    return OpShape(op=op, inputs=inputs, outputs=outputs, **fields)


def only(op, batch):
    (work,) = list_forward_operations_per_sample([op], batch)
    return work


CASES: list[tuple[str, tuple[Any, ...], tuple[Any, ...], dict[str, Any], Operation]] = [
    (
        "aten.convolution",
        ((2, 6, 9, 7), (4, 3, 3, 2), (4,)),
        ((2, 4, 5, 6),),
        {"groups": 2, "bias": True, "stride": [2, 1]},
        product(
            "grouped_conv",
            5 * 6,
            2,
            18,
            6 * 9 * 7,
            4 * 5 * 6,
            4 * 18 + 4,
            groups=2,
            kernel=6,
            stride=2,
        ),
    ),
    (  # a map without a batch dimension
        "aten.convolution",
        ((6, 9), (4, 6, 3), None),
        ((4, 7),),
        {},
        product("conv", 7, 4, 18, 6 * 9, 4 * 7, 4 * 18, kernel=3),
    ),
    (
        "aten.convolution",
        ((2, 6, 5), (6, 2, 3), None),
        ((2, 4, 11),),
        {"groups": 2, "transposed": True, "stride": [2]},
        product("transposed_conv", 5, 6, 3, 6 * 5, 4 * 11, 6 * 6, groups=2, kernel=3, stride=2),
    ),
    (
        "aten._convolution",
        ((2, 6, 9), (4, 6, 3), None),
        ((2, 4, 7),),
        {"groups": 1, "stride": [3]},
        product("conv", 7, 4, 18, 6 * 9, 4 * 7, 4 * 18, kernel=3, stride=3),
    ),
    ("aten.mm", ((8, 5), (5, 3)), ((8, 3),), {}, product("matmul", 4, 3, 5, 20 + 15 / 2, 12)),
    *(
        (op, inputs, outputs, {"parameters": held}, product("linear", 4, 3, 5, 20, 12, held))
        for op, inputs, outputs, held in (
            ("aten.mm", ((8, 5), (5, 3)), ((8, 3),), 5 * 3),
            ("aten.addmm", ((3,), (8, 5), (5, 3)), ((8, 3),), 5 * 3 + 3),
            ("aten.linear", ((2, 4, 5), (3, 5), (3,)), ((2, 4, 3),), 5 * 3 + 3),
            ("aten.linear", ((2, 4, 5), (3, 5), None), ((2, 4, 3),), 5 * 3),
            ("aten.linear", ((2, 4, 5), (3, 5)), ((2, 4, 3),), 5 * 3),
        )
    ),
    ("aten.mv", ((8, 5), (5,)), ((8,),), {}, product("matmul", 4, 1, 5, 45 / 2, 4)),
    *(
        (
            op,
            ((6, 4, 3), (6, 4, 5), (6, 5, 3)),
            ((6, 4, 3),),
            {},
            product("matmul", 4, 3, 5, (120 + 90) / 2, 36, groups=3),
        )
        for op in ("aten.baddbmm", "aten.baddbmm_")
    ),
    ("aten.bmm", ((1, 8, 5), (1, 5, 3)), ((1, 8, 3),), {}, product("matmul", 4, 3, 5, 55 / 2, 12)),
    ("aten.bmm", ((2, 4, 5), (2, 5, 3)), ((2, 4, 3),), {}, product("matmul", 4, 3, 5, 70 / 2, 12)),
    (
        "perfctl.scaled_dot_product_attention",
        ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)),
        ((2, 3, 4, 7),),
        {},
        product("attention", 4, 5, 6 + 7, (144 + 180 + 210) / 2, 84, groups=3),
    ),
    *(
        (
            f"perfctl.{op}",
            ((4, 2, 5),),
            ((4, 2, 7),),
            {"rows": rows, "hidden_size": 7, "input_size": 5, "parameters": held},
            product("rnn", rows / 2, gates * 7, 5 + 7 if rows else 0, 20, 28, held),
        )
        for op, gates, rows, held in (
            ("rnn", 1, 8, 0),
            ("gru", 3, 8, 99),
            ("lstm", 4, 8, 99),
            ("lstm", 4, 0, 0),
        )
    ),
    (
        "aten.native_batch_norm",
        ((2, 3, 5), (3,), (3,)),
        ((2, 3, 5), (3,), (3,)),
        {"parameters": 6},
        moving("norm", 15, 15, 6),
    ),
    ("aten.embedding", ((1000, 8), (2, 4)), ((2, 4, 8),), {}, moving("memory", 32, 32)),
    (
        "aten.max_pool2d_with_indices",
        ((2, 3, 6, 6),),
        ((2, 3, 2, 3), (2, 3, 2, 3)),
        {"kernel_size": [3, 2], "stride": [3, 2]},
        moving("pool", 108, 36, kernel=6, stride=3),
    ),
    (
        "aten.avg_pool2d",
        ((2, 3, 6, 6),),
        ((2, 3, 5, 5),),
        {"kernel_size": [2, 2]},
        moving("pool", 108, 75, kernel=4),
    ),
    *(
        (
            "aten._adaptive_avg_pool2d",
            ((2, 3, side, side),),
            ((2, 3, 2, 2),),
            {},
            moving("pool", 3 * side**2, 12, kernel=window**2, stride=window),
        )
        for side, window in ((8, 4), (1, 1))
    ),
    ("aten.add", ((2, 4), None, (2, 4)), ((2, 4), None), {}, moving("elementwise", 8, 4)),
    ("aten.nll_loss_forward", ((2, 4), (2,)), ((), ()), {}, moving("loss", 5, 1)),
    ("aten.cat", ((2, 4), (2, 2)), ((2, 6),), {}, moving("memory", 6, 6)),
    ("aten.upsample_bilinear2d", ((2, 1, 2, 2),), ((2, 1, 4, 4),), {}, moving("memory", 4, 16)),
    *(
        (op, ((2, 4),), ((2, 4),), {}, moving(kind, 4, 4))
        for op, kind in (
            ("aten.relu_", "activation"),
            ("aten._log_softmax", "softmax"),
            ("aten.copy_", "memory"),
            ("own.thing", "other"),
        )
    ),
]


@pytest.mark.parametrize(("op", "inputs", "outputs", "attributes", "work"), CASES)
def test_figures_of_one_sample_of_two(op, inputs, outputs, attributes, work):
    parameters = attributes.get("parameters", 0)
    batch = 1 if op == "aten.convolution" and len(inputs[0]) == 2 else 2
    found = only(shape(op, inputs, outputs, attributes=attributes, parameters=parameters), batch)
    first = parameters > 0 and work.kind in ("linear", "rnn", "conv")
    assert found == work._replace(first=first)


def test_operations_stand_in_the_order_of_their_positions_with_their_calls():
    works = list_forward_operations_per_sample([relu(position=5, calls=3), mm(position=1)], 2)
    assert [(work.kind, work.calls) for work in works] == [("matmul", 1), ("activation", 3)]


def step_of(*works, batch=4, training=True):
    return StepSpec("m", "f", works, batch, training, "fp32", "sgd" if training else "", 0)


def test_a_case_counts_the_calls_of_all_its_operations_at_its_batch():
    conv, linear = product("conv", 5, 1, 1, 0, 0, calls=3), product("linear", 7, 1, 1, 0, 0)
    assert step_of(conv, linear).forward_macs_of_batch == 4 * (3 * 5 + 7)


def relu(**more):
    return shape("aten.relu", ((2, 4),), ((2, 4),), **more)


def mm(**more):
    return shape("aten.mm", ((8, 5), (5, 3)), ((8, 3),), **more)


def mm_backward(layer, role):
    return mm(direction="backward", layer=layer, attributes={"role": role})


def gru(needs_input):
    sizes = {"rows": 8, "hidden_size": 7, "input_size": 5, "needs_input": needs_input}
    return shape("perfctl.gru", ((4, 2, 5),), ((4, 2, 7),), parameters=9, attributes=sizes)


def conv(batch=2, **more):
    attributes = {"bias": True, "stride": [2, 2], "padding": [1, 1], "groups": 1}
    inputs, outputs = ((batch, 8, 10, 10), (16, 8, 3, 3), (16,)), ((batch, 16, 5, 5),)
    return shape("aten.convolution", inputs, outputs, parameters=9, attributes=attributes, **more)


def conv_backward(*mask, side=10, **more):
    return shape(
        "aten.convolution_backward",
        ((2, 16, 5, 5), (2, 8, side, side), (16, 8, 3, 3)),
        (None,),
        direction="backward",
        attributes={"output_mask": list(mask), "role": "grad_input"},
        **more,
    )


@pytest.mark.parametrize(
    ("ops", "first"),
    [
        pytest.param(
            [
                mm(layer="a", parameters=15),
                mm(layer="b", parameters=15, position=1),
                mm_backward("a", "grad_weight"),
                mm_backward("b", "grad_weight"),
                mm_backward("b", "grad_input"),
            ],
            [True, False],
            id="a product of the layer makes the gradient",
        ),
        pytest.param(
            [gru(True), gru(False), mm_backward("z", "grad_input")],
            [False, True],
            id="a recurrent layer states it",
        ),
        pytest.param(
            [
                conv(),
                conv(layer="m", position=1),
                conv_backward(False, True, True),
                conv_backward(True, True, True, layer="m"),
            ],
            [True, False],
            id="the mask of the layer's own convolution",
        ),
        pytest.param(
            [conv(), conv_backward(False, True, False), conv_backward(True, True, False, side=9)],
            [True],
            id="another call of the layer had another input",
        ),
        pytest.param([conv(), conv_backward()], [True], id="an empty mask"),
        pytest.param(
            [relu(), conv(position=1), conv(position=2)],
            [False, True, False],
            id="without a backward pass the first with weights",
        ),
        pytest.param(
            [
                shape("aten.native_batch_norm", ((2, 3, 5), (3,)), ((2, 3, 5),), parameters=6),
                mm(position=1),
                mm(parameters=15, position=1, attributes={"recompute": True}),
                mm(parameters=15, position=2),
            ],
            [False, False, True],
            id="neither a norm nor a product of activations nor what is computed again",
        ),
        pytest.param([relu(attributes={"recompute": True})], [], id="computed again"),
    ],
)
def test_the_input_of_the_first_layer_needs_no_gradient(ops, first):
    assert [work.first for work in list_forward_operations_per_sample(ops, 2)] == first


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_what_is_per_sample_does_not_depend_on_the_traced_batch(batch):
    assert list_forward_operations_per_sample(
        [conv(batch)], batch
    ) == list_forward_operations_per_sample([conv(2)], 2)


def test_what_is_done_to_weights_is_done_once_whatever_the_batch():
    """Weights of 4 channels and 27 elements each, standardised as batch norm does it; scales and
    statistics have no batch either."""
    standardised = shape(
        "aten.native_batch_norm",
        ((1, 4, 27), (4,), None),
        ((1, 4, 27), (4,), (4,)),
        parameters=4 * 27 + 4,
    )
    for batch in (2, 3):
        work = only(standardised, batch)
        assert (work.inputs, work.outputs, work.weights) == (0, 0, 2 * 4 * 27)
        assert work.works_on_weights_only and not work.is_counter_update
    assert only(standardised, 1).inputs == 4 * 27  # one sample cannot be told from none
    assert not only(
        shape("aten.native_batch_norm", ((2, 4, 27),), ((2, 4, 27), (4,)), parameters=8), 2
    ).works_on_weights_only


@pytest.mark.parametrize(("training", "times"), [(True, 2), (False, 1)])
def test_the_bytes_of_work_on_weights_do_not_grow_with_batch_and_no_optimizer_sees_them(
    training, times
):
    work = moving("norm", 0, 0, 2 * 4 * 27, calls=3)
    for batch in (1, 64):
        case = step_of(work, batch=batch, training=training)
        found = by_part(sum_step_part_seconds(case, UNIT))
        assert found["norm bytes forward"] == 3 * (2 * 4 * 27) * 4
        assert found["norm bytes backward"] == (times - 1) * 3 * (2 * 4 * 27) * 4
        assert found["tensors optimizer"] == 0
    assert (
        compute_step_floor_seconds(replace(case, batch=1), UNIT)
        == compute_step_floor_seconds(case, UNIT)
        == times * 3 * (2 * 4 * 27) * 4
    )


def test_a_counter_of_batches_has_no_elements_and_no_backward_pass():
    counter = only(shape("aten.add_", ((), None), ((),), dtypes=("int64", "int64")), 2)
    assert counter.is_counter_update and counter.kind == "elementwise"
    assert not only(
        shape("aten.mul", ((), ()), ((),), dtypes=("float32",) * 3), 2
    ).is_counter_update
    found = by_part(sum_step_part_seconds(step_of(counter), UNIT))
    assert (found["operations forward"], found["operations backward"]) == (MICROSECOND, 0)


def test_the_host_starts_a_counter_once_and_what_has_a_gradient_three_times():
    works = (
        moving("elementwise", 0, 0, calls=20),
        moving("activation", 4, 4, calls=7),
    )
    assert published.count_weighted_host_starts(works, training=True) * 3 == pytest.approx(
        20 + 3 * 7
    )
    assert published.count_weighted_host_starts(works, training=False) == 27
