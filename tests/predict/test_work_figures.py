"""All figures of one traced operation of each kind, for one sample, worked out from its shapes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.operations import Operation, StepSpec, operations_of
from perfctl.orchestrator.predict.published import UNIT
from perfctl.orchestrator.predict.step_parts import MICROSECOND, PARTS, parts, roofline
from perfctl.records.paper import OpShape


def shape(op: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...], **more: Any) -> OpShape:
    fields = {
        "layer": "l",
        "kind": "",
        "direction": "forward",
        "parameters": 0,
        "calls": 1,
        "position": 0,
    } | more
    return OpShape(op=op, inputs=inputs, outputs=outputs, **fields)


def only(op: OpShape, batch: int) -> Operation:
    (work,) = operations_of([op], batch)
    return work


CASES: list[tuple[str, tuple[Any, ...], tuple[Any, ...], dict[str, Any], Operation]] = [
    (
        "aten.convolution",
        ((2, 6, 9, 7), (4, 3, 3, 2), (4,)),
        ((2, 4, 5, 6),),
        {"groups": 2, "bias": True, "stride": [2, 1]},
        Operation("l", "grouped_conv", 1, 30 * 4 * 18, 378, 120, 72 + 4, 30, 2, 18, 2, 6, 2),
    ),
    # a map without a batch dimension
    (
        "aten.convolution",
        ((6, 9), (4, 6, 3), None),
        ((4, 7),),
        {},
        Operation("l", "conv", 1, 7 * 72, 54, 28, 72, 7, 4, 18, 1, 3, 1),
    ),
    (
        "aten.convolution",
        ((2, 6, 5), (6, 2, 3), None),
        ((2, 4, 11),),
        {"groups": 2, "transposed": True, "stride": [2]},
        Operation("l", "transposed_conv", 1, 5 * 36, 30, 44, 36, 5, 6, 3, 2, 3, 2),
    ),
    (
        "aten.mm",
        ((8, 5), (5, 3)),
        ((8, 3),),
        {},
        Operation("l", "matmul", 1, 60, (40 + 15) / 2, 12, 0, 4, 3, 5),
    ),
    (
        "aten.mm",
        ((8, 5), (5, 3)),
        ((8, 3),),
        {"parameters": 15},
        Operation("l", "linear", 1, 60, 20, 12, 15, 4, 3, 5),
    ),
    (
        "aten.addmm",
        ((3,), (8, 5), (5, 3)),
        ((8, 3),),
        {"parameters": 18},
        Operation("l", "linear", 1, 60, 20, 12, 18, 4, 3, 5),
    ),
    (
        "aten.linear",
        ((2, 4, 5), (3, 5), (3,)),
        ((2, 4, 3),),
        {"parameters": 18},
        Operation("l", "linear", 1, 60, 20, 12, 18, 4, 3, 5),
    ),
    (
        "aten.linear",
        ((2, 4, 5), (3, 5), None),
        ((2, 4, 3),),
        {"parameters": 15},
        Operation("l", "linear", 1, 60, 20, 12, 15, 4, 3, 5),
    ),
    (
        "aten.linear",
        ((2, 4, 5), (3, 5)),
        ((2, 4, 3),),
        {"parameters": 15},
        Operation("l", "linear", 1, 60, 20, 12, 15, 4, 3, 5),
    ),
    (
        "aten.mv",
        ((8, 5), (5,)),
        ((8,),),
        {},
        Operation("l", "matmul", 1, 20, 45 / 2, 4, 0, 4, 1, 5),
    ),
    (
        "aten.baddbmm",
        ((6, 4, 3), (6, 4, 5), (6, 5, 3)),
        ((6, 4, 3),),
        {},
        Operation("l", "matmul", 1, 3 * 60, (120 + 90) / 2, 36, 0, 4, 3, 5, 3),
    ),
    (
        "aten.bmm",
        ((1, 8, 5), (1, 5, 3)),
        ((1, 8, 3),),
        {},
        Operation("l", "matmul", 1, 60, 55 / 2, 12, 0, 4, 3, 5, 1),
    ),
    (
        "aten.bmm",
        ((2, 4, 5), (2, 5, 3)),
        ((2, 4, 3),),
        {},
        Operation("l", "matmul", 1, 60, 70 / 2, 12, 0, 4, 3, 5, 1),
    ),
    (
        "perfctl.scaled_dot_product_attention",
        ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)),
        ((2, 3, 4, 7),),
        {},
        Operation("l", "attention", 1, 3 * 4 * 5 * 13, (144 + 180 + 210) / 2, 84, 0, 4, 5, 13, 3),
    ),
    (
        "perfctl.gru",
        ((4, 2, 5),),
        ((4, 2, 7),),
        {"rows": 8, "hidden_size": 7, "input_size": 5, "parameters": 99},
        Operation("l", "rnn", 1, 4 * 21 * 12, 20, 28, 99, 4, 21, 12),
    ),
    (
        "perfctl.rnn",
        ((4, 2, 5),),
        ((4, 2, 7),),
        {"rows": 8, "hidden_size": 7, "input_size": 5},
        Operation("l", "rnn", 1, 4 * 7 * 12, 20, 28, 0, 4, 7, 12),
    ),
    (
        "perfctl.lstm",
        ((4, 2, 5),),
        ((4, 2, 7),),
        {"rows": 8, "hidden_size": 7, "input_size": 5, "parameters": 99},
        Operation("l", "rnn", 1, 4 * 28 * 12, 20, 28, 99, 4, 28, 12),
    ),
    (
        "perfctl.lstm",
        ((4, 2, 5),),
        ((4, 2, 7),),
        {"rows": 0, "hidden_size": 7, "input_size": 5},
        Operation("l", "rnn", 1, 0, 20, 28, 0, 0, 28, 0),
    ),
    (
        "aten.baddbmm_",
        ((6, 4, 3), (6, 4, 5), (6, 5, 3)),
        ((6, 4, 3),),
        {},
        Operation("l", "matmul", 1, 3 * 60, (120 + 90) / 2, 36, 0, 4, 3, 5, 3),
    ),
    (
        "aten._convolution",
        ((2, 6, 9), (4, 6, 3), None),
        ((2, 4, 7),),
        {"groups": 1, "stride": [3]},
        Operation("l", "conv", 1, 7 * 72, 54, 28, 72, 7, 4, 18, 1, 3, 3),
    ),
    (
        "aten.native_batch_norm",
        ((2, 3, 5), (3,), (3,)),
        ((2, 3, 5), (3,), (3,)),
        {"parameters": 6},
        Operation("l", "norm", 1, 0, 15, 15, 6, 0, 0, 0),
    ),
    (
        "aten.embedding",
        ((1000, 8), (2, 4)),
        ((2, 4, 8),),
        {},
        Operation("l", "memory", 1, 0, 32, 32, 0, 0, 0, 0),
    ),
    (
        "aten.max_pool2d_with_indices",
        ((2, 3, 6, 6),),
        ((2, 3, 2, 3), (2, 3, 2, 3)),
        {"kernel_size": [3, 2], "stride": [3, 2]},
        Operation("l", "pool", 1, 0, 108, 36, 0, 0, 0, 0, 1, 6, 3),
    ),
    (
        "aten.avg_pool2d",
        ((2, 3, 6, 6),),
        ((2, 3, 5, 5),),
        {"kernel_size": [2, 2]},
        Operation("l", "pool", 1, 0, 108, 75, 0, 0, 0, 0, 1, 4, 1),
    ),
    (
        "aten._adaptive_avg_pool2d",
        ((2, 3, 8, 8),),
        ((2, 3, 2, 2),),
        {},
        Operation("l", "pool", 1, 0, 192, 12, 0, 0, 0, 0, 1, 16, 4),
    ),
    (
        "aten._adaptive_avg_pool2d",
        ((2, 3, 1, 1),),
        ((2, 3, 2, 2),),
        {},
        Operation("l", "pool", 1, 0, 3, 12, 0, 0, 0, 0, 1, 1, 1),
    ),
    (
        "aten.add",
        ((2, 4), None, (2, 4)),
        ((2, 4), None),
        {},
        Operation("l", "elementwise", 1, 0, 8, 4, 0, 0, 0, 0),
    ),
    ("aten.relu_", ((2, 4),), ((2, 4),), {}, Operation("l", "activation", 1, 0, 4, 4, 0, 0, 0, 0)),
    (
        "aten._log_softmax",
        ((2, 4),),
        ((2, 4),),
        {},
        Operation("l", "softmax", 1, 0, 4, 4, 0, 0, 0, 0),
    ),
    (
        "aten.nll_loss_forward",
        ((2, 4), (2,)),
        ((), ()),
        {},
        Operation("l", "loss", 1, 0, 5, 1, 0, 0, 0, 0),
    ),
    ("aten.copy_", ((2, 4),), ((2, 4),), {}, Operation("l", "memory", 1, 0, 4, 4, 0, 0, 0, 0)),
    ("aten.cat", ((2, 4), (2, 2)), ((2, 6),), {}, Operation("l", "memory", 1, 0, 6, 6, 0, 0, 0, 0)),
    (
        "aten.upsample_bilinear2d",
        ((2, 1, 2, 2),),
        ((2, 1, 4, 4),),
        {},
        Operation("l", "memory", 1, 0, 4, 16, 0, 0, 0, 0),
    ),
    ("own.thing", ((2, 4),), ((2, 4),), {}, Operation("l", "other", 1, 0, 4, 4, 0, 0, 0, 0)),
]


@pytest.mark.parametrize(("op", "inputs", "outputs", "attributes", "work"), CASES)
def test_figures_of_one_sample_of_two(
    op: str, inputs: Any, outputs: Any, attributes: dict[str, Any], work: Operation
) -> None:
    parameters = attributes.get("parameters", 0)
    batch = 1 if op == "aten.convolution" and len(inputs[0]) == 2 else 2
    found = only(shape(op, inputs, outputs, attributes=attributes, parameters=parameters), batch)
    first = found.first
    assert found == Operation(
        **{name: getattr(work, name) for name in Operation.__slots__} | {"first": first}
    )
    assert first == (parameters > 0 and found.kind in ("linear", "rnn", "conv"))


def test_a_product_multiplies_groups_rows_columns_and_depth() -> None:
    for op, inputs, outputs, attributes, work in CASES:
        if work.macs:
            assert work.macs == pytest.approx(
                work.groups * work.rows * work.columns * work.depth
            ), (
                op,
                inputs,
                outputs,
                attributes,
            )


def test_operations_stand_in_the_order_of_their_positions_with_their_calls() -> None:
    late, early = (
        shape("aten.relu", ((2, 4),), ((2, 4),), position=5, calls=3),
        shape("aten.add", ((2, 4),), ((2, 4),), position=1),
    )
    assert [(work.kind, work.calls) for work in operations_of([late, early], 2)] == [
        ("elementwise", 1),
        ("activation", 3),
    ]


def test_a_linear_asks_for_its_inputs_gradient_where_a_product_of_its_layer_makes_it() -> None:
    def linear(layer: str, position: int) -> OpShape:
        return shape(
            "aten.addmm",
            ((3,), (8, 5), (5, 3)),
            ((8, 3),),
            parameters=18,
            layer=layer,
            position=position,
        )

    def back(layer: str, role: str) -> OpShape:
        return shape(
            "aten.mm",
            ((8, 3), (3, 5)),
            ((8, 5),),
            direction="backward",
            layer=layer,
            attributes={"role": role},
            position=9,
        )

    forward = [linear("a", 0), linear("b", 1)]
    works = operations_of(
        [*forward, back("a", "grad_weight"), back("b", "grad_weight"), back("b", "grad_input")], 2
    )
    assert [work.first for work in works] == [True, False]
    sizes = {"rows": 8, "hidden_size": 7, "input_size": 5}
    rnn = [
        shape(
            "perfctl.gru",
            ((4, 2, 5),),
            ((4, 2, 7),),
            parameters=9,
            attributes={**sizes, "needs_input": needs},
        )
        for needs in (True, False)
    ]
    assert [work.first for work in operations_of([*rnn, back("z", "grad_input")], 2)] == [
        False,
        True,
    ]


def test_a_case_counts_the_calls_of_all_its_operations_at_its_batch() -> None:
    works = (
        Operation("", "conv", 3, 5.0, 0, 0, 0, 0, 0, 0),
        Operation("", "linear", 1, 7.0, 0, 0, 0, 0, 0, 0),
    )
    case = StepSpec("m", "f", works, 4, True, "fp32", "sgd", 1)
    assert case.macs == 4 * (15 + 7)
    with pytest.raises(FrozenInstanceError):
        case.batch = 1  # type: ignore[misc]


def test_a_convolution_asks_for_its_inputs_gradient_where_one_of_its_own_weights_makes_it() -> None:
    def forward(outputs: int, position: int) -> OpShape:
        shapes = ((2, 6, 9), (outputs, 6, 3), None)
        return shape(
            "aten.convolution", shapes, ((2, outputs, 7),), parameters=9, position=position
        )

    def back(outputs: int, asked: bool) -> OpShape:
        shapes = ((2, outputs, 7), (2, 6, 9) if outputs == 4 else (2, 6, 8), (outputs, 6, 3))
        return shape(
            "aten.convolution_backward",
            shapes,
            (None,),
            direction="backward",
            position=9,
            attributes={"output_mask": [asked, True, False], "role": "grad_input"},
        )

    # Of one layer called twice: the backward operation whose input has another shape is not
    # this one's.
    assert [work.first for work in operations_of([forward(4, 0), back(4, True)], 2)] == [False]
    assert [
        work.first for work in operations_of([forward(4, 0), back(4, False), back(5, True)], 2)
    ] == [True]
    none = shape(
        "aten.convolution_backward",
        (),
        (),
        direction="backward",
        attributes={"output_mask": []},
        position=9,
    )
    assert [work.first for work in operations_of([forward(4, 0), none], 2)] == [True]


def test_without_a_backward_pass_a_norm_or_a_product_of_activations_is_not_the_first_layer() -> (
    None
):
    norm = shape("aten.native_batch_norm", ((2, 3, 5), (3,)), ((2, 3, 5),), parameters=6)
    matmul = shape("aten.mm", ((8, 5), (5, 3)), ((8, 3),), position=1)
    linear = shape("aten.mm", ((8, 5), (5, 3)), ((8, 3),), parameters=15, position=2)
    again = shape(
        "aten.mm",
        ((8, 5), (5, 3)),
        ((8, 3),),
        parameters=15,
        position=1,
        attributes={"recompute": True},
    )
    assert [work.first for work in operations_of([norm, matmul, again, linear], 2)] == [
        False,
        False,
        True,
    ]


def conv(batch: int, groups: int = 1, **more: Any) -> OpShape:
    attributes = {
        "bias": True,
        "stride": [2, 2],
        "padding": [1, 1],
        "groups": groups,
        "transposed": False,
    }
    inputs = ((batch, 8, 10, 10), (16, 8 // groups, 3, 3), (16,))
    return shape(
        "aten.convolution",
        inputs,
        ((batch, 16, 5, 5),),
        parameters=9,
        attributes=attributes,
        **more,
    )


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_what_is_per_sample_does_not_depend_on_the_traced_batch(batch: int) -> None:
    assert operations_of([conv(batch)], batch) == operations_of([conv(2)], 2)


def test_only_the_layer_whose_input_needs_no_gradient_is_first() -> None:
    mask = {"output_mask": [False, True, True], "role": "grad_input"}
    backward = shape(
        "aten.convolution_backward",
        ((2, 16, 5, 5), (2, 8, 10, 10), (16, 8, 3, 3)),
        (None,),
        direction="backward",
        attributes=mask,
        position=9,
    )
    asked = shape(
        "aten.convolution_backward",
        ((2, 16, 5, 5), (2, 8, 10, 10), (16, 8, 3, 3)),
        (None,),
        direction="backward",
        attributes=mask | {"output_mask": [True, True, True]},
        layer="m",
    )
    works = operations_of([conv(2), conv(2, layer="m", position=1), backward, asked], 2)
    assert [work.first for work in works] == [True, False]


def test_without_a_backward_pass_the_first_layer_with_weights_is_first() -> None:
    relu = shape("aten.relu", ((2, 4),), ((2, 4),))
    works = operations_of([relu, conv(2, position=1), conv(2, position=2)], 2)
    assert [work.first for work in works] == [False, True, False]


def test_what_is_computed_again_in_backward_is_no_forward_work() -> None:
    again = shape("aten.relu", ((2, 4),), ((2, 4),), attributes={"recompute": True})
    assert operations_of([again], 2) == ()


def test_what_is_done_to_weights_is_done_once_whatever_the_batch() -> None:
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
        assert work.of_weights and not work.counter
    assert only(standardised, 1).inputs == 4 * 27  # one sample cannot be told from none
    assert not only(
        shape("aten.native_batch_norm", ((2, 4, 27),), ((2, 4, 27), (4,)), parameters=8), 2
    ).of_weights


@pytest.mark.parametrize(("training", "times"), [(True, 2), (False, 1)])
def test_the_bytes_of_work_on_weights_do_not_grow_with_batch_and_no_optimizer_sees_them(
    training: bool, times: int
) -> None:
    work = Operation("l", "norm", 3, 0, 0, 0, 2 * 4 * 27, 0, 0, 0)
    for batch in (1, 64):
        case = StepSpec("m", "f", (work,), batch, training, "fp32", "sgd" if training else "", 0)
        found = dict(zip(PARTS, parts(case, UNIT), strict=True))
        assert found["norm bytes forward"] == 3 * (2 * 4 * 27) * 4
        assert (
            found["norm bytes forward"] + found["norm bytes backward"]
            == times * 3 * (2 * 4 * 27) * 4
        )
        assert found["tensors optimizer"] == 0
    assert (
        roofline(replace(case, batch=1), UNIT)
        == roofline(case, UNIT)
        == times * 3 * (2 * 4 * 27) * 4
    )


def test_a_counter_of_batches_has_no_elements_and_no_backward_pass() -> None:
    counter = only(shape("aten.add_", ((), None), ((),), dtypes=("int64", "int64")), 2)
    assert counter.counter and counter.kind == "elementwise"
    assert not only(shape("aten.mul", ((), ()), ((),), dtypes=("float32",) * 3), 2).counter
    found = dict(
        zip(
            PARTS,
            parts(StepSpec("m", "f", (counter,), 8, True, "fp32", "sgd", 0), UNIT),
            strict=True,
        )
    )
    assert (found["operations forward"], found["operations backward"]) == (MICROSECOND, 0)


def test_the_host_starts_a_counter_once_and_what_has_a_gradient_three_times() -> None:
    counter, relu = (
        Operation("l", "elementwise", 20, 0, 0, 0, 0, 0, 0, 0),
        Operation("l", "activation", 7, 0, 4, 4, 0, 0, 0, 0),
    )
    assert published.started((counter, relu), training=True) * 3 == pytest.approx(20 + 3 * 7)
    assert published.started((counter, relu), training=False) == 27
