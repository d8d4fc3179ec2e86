"""Every figure and the worked text of a formula's parts: operations, bytes read and written,
values, by hand."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from perfctl.orchestrator.estimate.flops.engine import find_formula
from perfctl.orchestrator.estimate.flops.formulas import CallWork
from tests.make.shapes import op

LIST = "1 x {} values of a list of tensors, elementwise"


def parts(shape):
    formula = find_formula(shape)
    assert formula is not None
    return formula(shape)


def macs_of(shape):
    return {part.direction: part.macs for part in parts(shape)}


def test_a_convolution_reads_data_weight_and_bias_and_says_its_work_in_letters_and_numbers():
    macs = 2 * 5 * 4 * 6 * 3 * 2 * 3
    text = (
        f"N x P x Q x K x (C/g x R x S) = 2 x 5 x 4 x 6 x (3 x 2 x 3) = 4,320 MAC = {2 * macs:,} "
        "FLOP"
    )
    shape = op("aten.convolution", ((2, 3, 6, 6), (6, 3, 2, 3), (6,)), ((2, 6, 5, 4),), bias=True)
    assert parts(shape) == (
        CallWork("forward", macs, 4 * (2 * 3 * 36 + 108 + 6), 4 * 240, 240, text, 240),
    )
    assert macs == 4320


def test_a_map_without_a_batch_dimension_is_a_batch_of_one():
    (part,) = parts(op("aten.convolution", ((3, 6), (4, 3, 2), None), ((4, 5),)))
    assert (part.macs, part.output_elements, part.elementwise) == (1 * 5 * 4 * 3 * 2, 20, 0)
    assert part.text == "N x P x K x (C/g x R) = 1 x 5 x 4 x (3 x 2) = 120 MAC = 240 FLOP"


def test_letters_of_a_transposed_and_of_a_volume():
    (turned,) = parts(
        op("aten.convolution", ((2, 3, 5), (3, 4, 2), None), ((2, 4, 10),), transposed=True)
    )
    assert turned.text == "N x W x C x (K/g x R) = 2 x 5 x 3 x (4 x 2) = 240 MAC = 480 FLOP"
    (volume,) = parts(
        op("aten.convolution", ((1, 1, 3, 4, 5), (2, 1, 2, 2, 2), None), ((1, 2, 2, 3, 4),))
    )
    assert volume.text == (
        "N x O x P x Q x K x (C/g x T x R x S) = 1 x 2 x 3 x 4 x 2 x (1 x 2 x 2 x 2) = 384 MAC = "
        "768 FLOP"
    )


def test_the_gradients_of_a_convolution_read_what_each_needs():
    grad, data, weight = (2, 6, 5, 4), (2, 3, 6, 6), (6, 3, 2, 3)
    shape = op(
        "aten.convolution_backward",
        (grad, data, weight),
        (data, weight, (6,)),
        direction="backward",
        output_mask=[True, True, True],
    )
    text = (
        "as forward: N x P x Q x K x (C/g x R x S) = 2 x 5 x 4 x 6 x (3 x 2 x 3) = 4,320 MAC = "
        "8,640 FLOP"
    )
    assert parts(shape) == (
        CallWork("grad_input", 4320, 4 * (240 + 108), 4 * 216, 216, text),
        CallWork("grad_weight", 4320, 4 * (240 + 216), 4 * 108, 108, text),
        CallWork(
            "grad_bias",
            0,
            4 * 240,
            4 * 6,
            6,
            "sum of grad_output over batch and positions: 240 additions, no multiply-adds",
            240,
        ),
    )


def test_without_a_mask_the_gradients_that_came_out_are_those_that_were_asked_for():
    grad, data, weight = (2, 6, 5, 4), (2, 3, 6, 6), (6, 3, 2, 3)

    def directions(*outputs):
        return [
            part.direction
            for part in parts(op("aten.convolution_backward", (grad, data, weight), outputs))
        ]

    assert directions(data, weight) == ["grad_input", "grad_weight"]
    assert directions(None, weight, (6,)) == ["grad_weight", "grad_bias"]
    assert directions(data, None, None) == ["grad_input"]


@pytest.mark.parametrize(
    ("name", "inputs", "output", "macs", "text", "adds"),
    [
        ("aten.mm", ((2, 3), (3, 5)), (2, 5), 30, "M x K x N = 2 x 3 x 5", 0),
        ("aten.bmm", ((7, 2, 3), (7, 3, 5)), (7, 2, 5), 210, "B x M x K x N = 7 x 2 x 3 x 5", 0),
        ("aten.mv", ((2, 3), (3,)), (2,), 6, "M x K = 2 x 3", 0),
        ("aten.dot", ((3,), (3,)), (), 3, "K = 3", 0),
        ("aten.addmm", ((5,), (2, 3), (3, 5)), (2, 5), 30, "M x K x N = 2 x 3 x 5", 10),
        (
            "aten.linear",
            ((7, 2, 3), (5, 3), (5,)),
            (7, 2, 5),
            210,
            "rows x in x out = 14 x 3 x 5",
            70,
        ),
        (
            "aten.linear",
            ((7, 2, 3), (5, 3), None),
            (7, 2, 5),
            210,
            "rows x in x out = 14 x 3 x 5",
            0,
        ),
    ],
)
def test_a_product_reads_its_operands_writes_its_result_and_adds_a_bias_where_it_has_one(
    name, inputs, output, macs, text, adds
):
    read = 4 * sum(prod(shape) for shape in inputs if shape is not None)
    worked_text = f"{text} = {macs} MAC = {2 * macs} FLOP"
    (part,) = parts(op(name, inputs, (output,)))
    assert part == CallWork(
        "forward", macs, read, 4 * prod(output), prod(output), worked_text, adds
    )


def test_attention_of_other_widths_keys_and_heads():
    query, key, value = (2, 4, 10, 8), (2, 2, 12, 8), (2, 2, 12, 5)
    scores = 2 * 4 * 10 * 12
    (part,) = parts(
        op(
            "perfctl.scaled_dot_product_attention",
            (query, key, value),
            ((2, 4, 10, 5),),
            is_causal=True,
        )
    )
    text = (
        f"B*h x Sq x Sk x (E + V) = 8 x 10 x 12 x 13 = 12,480 MAC = {2 * 12480:,} FLOP; causal: "
        "the full square is counted"
    )
    read = 4 * (640 + 384 + 240)
    assert part == CallWork("forward", scores * (8 + 5), read, 4 * 400, 400, text, 6 * scores)


@pytest.mark.parametrize(
    ("needs", "depth", "names"),
    [
        ([True, True, True], 5 + 5 + 8 + 8, "dP + dQ + dK + dV"),
        ([True, False, False], 5 + 8, "dP + dQ"),
        ([False, True, False], 5 + 8, "dP + dK"),
        ([False, True, True], 5 + 5 + 8, "dP + dK + dV"),
        ([False, False, True], 5, "dV"),
    ],
)
def test_attention_backward_computes_what_the_gradients_asked_for_need(needs, depth, names):
    query, key, value = (2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 5)
    scores, kept = 960, 4 * (640 + 768 + 480)
    name = "perfctl.scaled_dot_product_attention_backward"
    shape = op(
        name,
        (query, key, value),
        ((2, 4, 10, 5),),
        direction="backward",
        needs=needs,
        backend="flash",
    )
    macs = scores * depth
    text = (
        f"{names}: B*h x Sq x Sk x depths = 8 x 10 x 12 x {depth} = {macs:,} MAC = {2 * macs:,} "
        "FLOP"
    )
    again = "Q K^T again, because its scores were not kept: 7,680 MAC = 15,360 FLOP"
    assert parts(shape) == (
        CallWork("grad_input", macs, kept, kept, 640, text, 5 * scores),
        CallWork("recompute", scores * 8, 0, 0, 400, again, 6 * scores, ", fused kernel"),
    )


def test_whose_needs_are_not_known_needs_all_and_paper_shows_the_fused_kernels_part():
    name, query = "perfctl.scaled_dot_product_attention_backward", (1, 1, 4, 2)
    for backend, count in (("any", 2), ("flash", 2), ("math", 1)):
        found = parts(op(name, (query,) * 3, (query,), direction="backward", backend=backend))
        assert [part.macs for part in found] == [4 * 16 * 2, 16 * 2][:count]


NET: dict[str, Any] = {
    "input_size": 5,
    "hidden_size": 7,
    "num_layers": 2,
    "directions": 2,
    "bias": True,
    "rows": 12,
    "first_rows": 3,
    "proj_size": 0,
}
LSTM_WEIGHTS = 2 * 28 * (5 + 7) + 2 * 28 * (14 + 7) + 4 * 2 * 28


def test_a_recurrent_layer_reads_its_weights_and_says_every_layer_and_direction():
    (part,) = parts(op("perfctl.lstm", ((4, 3, 5),), ((4, 3, 14),), **NET))
    macs = 12 * 28 * 2 * (12 + 21)
    text = (
        "rows x G*H x (I + R), per layer and direction: l0: 12 x 28 x (5 + 7); l0: 12 x 28 x (5 + "
        f"7); l1: 12 x 28 x (14 + 7); l1: 12 x 28 x (14 + 7) = {macs:,} MAC = {2 * macs:,} FLOP"
    )
    cells = 4 * 12 * (9 * 7 + 2 * 28)
    assert part == CallWork("forward", macs, 4 * (60 + LSTM_WEIGHTS), 4 * 168, 168, text, cells)


def test_a_projection_goes_round_instead_of_the_hidden_state():
    one = {**NET, "num_layers": 2, "directions": 1, "proj_size": 2, "bias": False}
    (part,) = parts(op("perfctl.lstm", ((4, 3, 5),), ((4, 3, 2),), dtype="float16", **one))
    macs = 12 * 28 * (5 + 2) + 12 * 28 * (2 + 2) + 2 * 12 * 14
    assert part.text == (
        "rows x G*H x (I + R) + rows x R x H, per layer and direction: l0: 12 x 28 x (5 + 2) + 12 "
        f"x 14; l1: 12 x 28 x (2 + 2) + 12 x 14 = {macs:,} MAC = {2 * macs:,} FLOP"
    )
    assert (part.macs, part.elementwise) == (macs, 2 * 12 * 9 * 7)
    assert part.read_bytes == 2 * (60 + 28 * 7 + 14 + 28 * 4 + 14)


@pytest.mark.parametrize(
    ("needs_input", "needs_hidden", "macs", "said"),
    [
        (True, True, 12 * 28 * 66, "as forward"),
        (
            False,
            True,
            12 * 28 * 66 - 2 * 12 * 28 * 5,
            "as forward, but the input needs no gradient",
        ),
        (
            True,
            False,
            12 * 28 * 66 - 4 * 3 * 28 * 7,
            "as forward, but the initial state needs none (- 3 x 28 x 7 per layer and direction)",
        ),
        (
            False,
            False,
            12 * 28 * 66 - 2 * 12 * 28 * 5 - 4 * 3 * 28 * 7,
            (
                "as forward, but the input needs no gradient and the initial state needs none (- 3 "
                "x 28 x 7 per layer and direction)"
            ),
        ),
    ],
)
def test_a_recurrent_backward_leaves_out_what_nobody_needs(needs_input, needs_hidden, macs, said):
    needs = {"needs_input": needs_input, "needs_hidden": needs_hidden, "needs_weight": True}
    shape = op(
        "perfctl.lstm_backward", ((4, 3, 5),), ((4, 3, 14),), direction="backward", **NET, **needs
    )
    data, weights = parts(shape)
    text = f"{said} = {macs:,} MAC = {2 * macs:,} FLOP"
    assert data == CallWork("grad_input", macs, 4 * (168 + LSTM_WEIGHTS), 4 * 60, 168, text)
    assert (weights.macs, weights.read_bytes, weights.write_bytes) == (
        12 * 28 * 66,
        4 * 228,
        4 * LSTM_WEIGHTS,
    )
    assert weights.output_elements == LSTM_WEIGHTS
    assert weights.text.startswith("as forward: rows x G*H x (I + R), per layer")
    frozen = op(
        shape.op,
        shape.inputs,
        shape.outputs,
        direction="backward",
        **NET,
        **{**needs, "needs_weight": False},
    )
    assert parts(frozen) == (data,)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "extra", "words", "flops", "written"),
    [
        ("relu", ((3, 4),), ((3, 4),), {}, "1 x 12 output values, elementwise", 12, 12),
        ("sum", ((30, 40),), ((),), {}, "1 x 1,200 input values, elementwise", 1200, 1),
        ("cat", ((2, 3), (4, 3)), ((6, 3),), {}, "18 values moved, no arithmetic", 0, 18),
        ("_foreach_add", ((2, 3), (4,)), ((2, 3), (4,)), {}, LIST.format(10), 10, 10),
        (
            "_amp_foreach_non_finite_check_and_unscale_",
            ((2, 3), None, (4,)),
            (),
            {},
            LIST.format(10),
            10,
            0,
        ),
        (
            "avg_pool2d",
            ((1, 2, 6, 6),),
            ((1, 2, 2, 2),),
            {"kernel_size": [3]},
            "window 9 x 8 output values, elementwise",
            72,
            8,
        ),
        (
            "avg_pool2d",
            ((1, 2, 6, 6),),
            ((1, 2, 2, 3),),
            {"kernel_size": [3, 2]},
            "window 6 x 12 output values, elementwise",
            72,
            12,
        ),
        *(
            (
                "native_batch_norm",
                ((2, 3, 5), (3,)),
                ((2, 3, 5), (3,), (3,)),
                {"training": training},
                f"{each} x 30 output values, elementwise",
                each * 30,
                written,
            )
            for training, each, written in ((True, 8, 30 + 2 * 3), (False, 4, 30))
        ),
        (
            "upsample_bilinear2d_backward",
            ((1, 1, 4, 4),),
            ((1, 1, 2, 2),),
            {},
            "8 x 16 gradient values, elementwise",
            128,
            4,
        ),
    ],
)
def test_work_without_multiply_adds_has_its_values_bytes_and_words(
    name, inputs, outputs, extra, words, flops, written
):
    read = 4 * sum(prod(shape) for shape in inputs if shape is not None)
    values = prod(outputs[0]) if outputs else 0
    (part,) = parts(op(f"aten.{name}", inputs, outputs, **extra))
    assert part == CallWork("forward", 0, read, 4 * written, values, words, flops)


def test_a_norms_backward_in_eval_does_not_read_batch_statistics():
    data, of_channel = (2, 3, 5), (3,)
    inputs = (data, data, of_channel, of_channel, of_channel, of_channel, of_channel)
    for train, tensors in ((True, 5), (None, 5), (False, 3)):
        extra = {} if train is None else {"train": train}
        shape = op(
            "aten.native_batch_norm_backward",
            inputs,
            (data, of_channel, of_channel),
            direction="backward",
            **extra,
        )
        text = "11 x 30 values, elementwise"
        assert parts(shape) == (
            CallWork("backward", 0, 4 * (60 + 3 * tensors), 4 * 36, 30, text, 330),
        )


@pytest.mark.parametrize(
    ("name", "settings", "flops", "state"),
    [
        ("SGD", {}, 2, 0),
        ("SGD", {"momentum": 0.9}, 4, 1),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}, 8, 1),
        ("Adam", {"weight_decay": 1e-4}, 14, 2),
        ("Adam", {"amsgrad": True}, 12, 3),
        ("AdamW", {}, 12, 2),
        ("RMSprop", {}, 7, 1),
        ("RMSprop", {"momentum": 0.9}, 9, 2),
        ("RMSprop", {"momentum": 0.9, "centered": True}, 9, 3),
        ("Adagrad", {}, 6, 1),
        ("Adadelta", {}, 13, 2),
        ("NAdam", {}, 15, 2),
        ("RAdam", {}, 15, 2),
        ("Adamax", {}, 10, 2),
    ],
)
def test_an_optimizer_step_by_its_rule_and_settings(name, settings, flops, state):
    (part,) = parts(op(f"optim.{name}", ((10,),), ((10,),), direction="optimizer", **settings))
    text = f"{flops} x 10 values, {state} of state each, elementwise"
    assert part == CallWork(
        "optimizer", 0, 40 * (2 + state), 40 * (1 + state), 10, text, 10 * flops
    )


N, C, K = 2, 8, 12


@pytest.mark.parametrize(
    ("grad", "data", "weight", "wanted", "more", "macs"),
    [
        pytest.param(
            (N, C, 7, 7),
            (N, C, 9, 9),
            (C, 1, 3, 3),
            [True, True, False],
            {"groups": C},
            {"grad_input": N * 49 * C * 9, "grad_weight": N * 49 * C * 9},
            id="depthwise: divided by the groups",
        ),
        pytest.param(
            (N, K, 7, 7),
            (N, C, 9, 9),
            (K, C, 3, 3),
            [False, True, True],
            {},
            {"grad_weight": N * 49 * K * C * 9, "grad_bias": 0},
            id="a first layer needs none of its input",
        ),
        pytest.param(
            (N, K, 10, 12),
            (N, C, 5, 6),
            (C, K, 2, 2),
            [True, True, False],
            {"transposed": True},
            dict.fromkeys(("grad_input", "grad_weight"), N * 30 * C * K * 4),
            id="transposed: the positions of the input",
        ),
    ],
)
def test_multiply_adds_of_the_gradients_of_a_convolution(grad, data, weight, wanted, more, macs):
    outputs = [
        one if asked else None for one, asked in zip((data, weight, (K,)), wanted, strict=True)
    ]
    name, more = "aten.convolution_backward", {**more, "direction": "backward"}
    shape = op(name, (grad, data, weight), outputs, output_mask=wanted, **more)
    assert macs_of(shape) == macs


def test_what_torch_tags_pointwise_counts_and_what_nobody_knows_has_no_formula():
    assert find_formula(op("aten.erfinv", ((3,),), ((3,),), pointwise=True)) is not None
    assert find_formula(op("mylib.fused", ((3,),), ((3,),))) is None
