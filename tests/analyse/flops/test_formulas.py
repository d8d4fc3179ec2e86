"""Each formula against a value worked out from the dimensions."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.flops.engine import TABLE, formula_for
from perfctl.records.paper import OpShape
from tests.analyse.shapes import op


def parts(shape: OpShape) -> dict[str, int]:
    formula = formula_for(shape)
    assert formula is not None
    return {part.direction: part.macs for part in formula(shape)}


N, C, K = 2, 8, 12


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_is_positions_times_weights(rank: int, groups: int) -> None:
    weight = (K, C // groups, *(3,) * rank)
    shape = op("aten.convolution", ((N, C, *(9,) * rank), weight, None), ((N, K, *(7,) * rank),), groups=groups)
    assert parts(shape) == {"forward": N * 7**rank * K * (C // groups) * 3**rank}


def test_a_depthwise_weight_gradient_keeps_its_division_by_groups() -> None:
    grad, data, weight = (N, C, 7, 7), (N, C, 9, 9), (C, 1, 3, 3)
    shape = op("aten.convolution_backward", (grad, data, weight), (data, weight, None),
               direction="backward", groups=C, output_mask=[True, True, False])  # fmt: skip
    one = N * 7 * 7 * C * 9
    assert parts(shape) == {"grad_input": one, "grad_weight": one}


def test_a_first_layer_has_no_input_gradient() -> None:
    grad, data, weight = (N, K, 7, 7), (N, C, 9, 9), (K, C, 3, 3)
    shape = op("aten.convolution_backward", (grad, data, weight), (None, weight, (K,)),
               direction="backward", output_mask=[False, True, True])  # fmt: skip
    assert parts(shape) == {"grad_weight": N * 49 * K * C * 9, "grad_bias": 0}


def test_a_transposed_convolution_counts_the_input_positions() -> None:
    data, weight, result = (N, C, 5, 6), (C, K, 2, 2), (N, K, 10, 12)
    assert parts(op("aten.convolution", (data, weight, None), (result,), transposed=True)) == {
        "forward": N * 5 * 6 * C * K * 4
    }
    back = op("aten.convolution_backward", (result, data, weight), (data, weight),
              direction="backward", transposed=True, output_mask=[True, True, False])  # fmt: skip
    assert set(parts(back).values()) == {N * 5 * 6 * C * K * 4}


def test_bias_additions_are_elementwise_and_not_multiply_adds() -> None:
    formula = formula_for(op("aten.convolution", ((N, C, 9), (K, C, 3), (K,)), ((N, K, 7),), bias=True))
    assert formula is not None
    part = formula(op("aten.convolution", ((N, C, 9), (K, C, 3), (K,)), ((N, K, 7),), bias=True))[0]
    assert (part.macs, part.elementwise) == (N * 7 * K * C * 3, N * K * 7)
    assert part.read_bytes == 4 * (N * C * 9 + K * C * 3 + K)
    assert part.write_bytes == 4 * N * K * 7


@pytest.mark.parametrize(
    ("name", "inputs", "macs"),
    [
        ("aten.mm", ((3, 4), (4, 5)), 3 * 4 * 5),
        ("aten.bmm", ((2, 3, 4), (2, 4, 5)), 2 * 3 * 4 * 5),
        ("aten.addmm", ((5,), (3, 4), (4, 5)), 3 * 4 * 5),
        ("aten.baddbmm", ((2, 3, 5), (2, 3, 4), (2, 4, 5)), 2 * 3 * 4 * 5),
        ("aten.mv", ((3, 4), (4,)), 3 * 4),
        ("aten.dot", ((4,), (4,)), 4),
        ("aten.linear", ((2, 7, 4), (5, 4), (5,)), 2 * 7 * 4 * 5),
    ],
)
def test_a_product_is_rows_times_columns_times_depth(name: str, inputs: tuple[tuple[int, ...], ...], macs: int) -> None:
    assert parts(op(name, inputs, ((3, 5),))) == {"forward": macs}


RNN = {"input_size": 5, "hidden_size": 7, "num_layers": 2, "directions": 2, "bias": True, "rows": 12, "first_rows": 3,
       "proj_size": 0}  # fmt: skip


@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_a_recurrent_layer_is_rows_times_gates_times_what_comes_in(name: str, gates: int) -> None:
    shape = op(f"perfctl.{name}", ((4, 3, 5),), ((4, 3, 14),), **RNN)
    assert parts(shape) == {"forward": 12 * gates * 7 * 2 * ((5 + 7) + (14 + 7))}


def test_a_recurrent_backward_leaves_out_input_and_initial_state() -> None:
    needs = {"needs_input": False, "needs_hidden": False, "needs_weight": True}
    shape = op("perfctl.lstm_backward", ((4, 3, 5),), ((4, 3, 14),), direction="backward", **RNN, **needs)
    forward = 12 * 28 * 2 * ((5 + 7) + (14 + 7))
    assert parts(shape) == {"grad_input": forward - 12 * 28 * 5 * 2 - 4 * (3 * 28 * 7), "grad_weight": forward}


def test_a_projection_adds_its_own_product() -> None:
    shape = op("perfctl.lstm", ((4, 3, 5),), ((4, 3, 2),), **{**RNN, "num_layers": 1, "directions": 1, "proj_size": 2})
    assert parts(shape) == {"forward": 12 * 28 * (5 + 2) + 12 * 7 * 2}


def test_attention_backward_is_twice_forward_and_flash_once_more_its_scores() -> None:
    query = (2, 4, 10, 8)
    scores = 2 * 4 * 10 * 10
    forward = op("perfctl.scaled_dot_product_attention", (query,) * 3, (query,))
    assert parts(forward) == {"forward": 2 * scores * 8}
    for backend, again in (("math", {}), ("flash", {"recompute": scores * 8})):
        shape = op("perfctl.scaled_dot_product_attention_backward", (query,) * 3, (query,), direction="backward",
                   needs=[True, True, True], backend=backend)  # fmt: skip
        assert parts(shape) == {"grad_input": 4 * scores * 8, **again}


def test_a_causal_mask_is_marked_and_halves_nothing() -> None:
    query = (1, 1, 10, 8)
    shape = op("perfctl.scaled_dot_product_attention", (query,) * 3, (query,), is_causal=True)
    formula = formula_for(shape)
    assert formula is not None
    assert formula(shape)[0].macs == 2 * 10 * 10 * 8
    assert "causal" in formula(shape)[0].text


@pytest.mark.parametrize(
    ("name", "inputs", "output", "extra", "work"),
    [
        ("aten.relu", ((3, 4),), (3, 4), {}, 12),
        ("aten.max_pool2d_with_indices", ((1, 2, 8, 8),), (1, 2, 4, 4), {"kernel_size": [2, 2]}, 4 * 32),
        ("aten.native_batch_norm", ((3, 4, 5),), (3, 4, 5), {"training": True}, 8 * 60),
        ("aten.native_batch_norm", ((3, 4, 5),), (3, 4, 5), {"training": False}, 4 * 60),
        ("aten._softmax", ((3, 4),), (3, 4), {}, 5 * 12),
        ("aten.sum", ((3, 4),), (), {}, 12),
        ("aten.upsample_bilinear2d", ((1, 1, 2, 2),), (1, 1, 4, 4), {}, 8 * 16),
        ("aten.embedding", ((10, 4), (3,)), (3, 4), {}, 0),
        ("optim.SGD", ((3, 4),), (3, 4), {}, 2 * 12),
    ],
)
def test_elementwise_work_has_its_own_heading(
    name: str, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...], extra: dict[str, object], work: int
) -> None:
    shape = op(name, inputs, (output,), **extra)
    formula = formula_for(shape)
    assert formula is not None
    part = formula(shape)[0]
    assert (part.macs, part.elementwise) == (0, work)


@pytest.mark.parametrize(
    ("name", "settings", "tensors"), [("SGD", {}, 0), ("SGD", {"momentum": 0.9}, 1), ("Adam", {}, 2)]
)
def test_an_optimizer_reads_parameter_gradient_and_state(name: str, settings: dict[str, float], tensors: int) -> None:
    shape = op(f"optim.{name}", ((10,),), ((10,),), direction="optimizer", **settings)
    part = TABLE[f"optim.{name}"](shape)[0]
    assert (part.read_bytes, part.write_bytes) == (40 * (2 + tensors), 40 * (1 + tensors))


def test_what_torch_tags_pointwise_counts_and_what_nobody_knows_has_no_formula() -> None:
    assert formula_for(op("aten.erfinv", ((3,),), ((3,),), pointwise=True)) is not None
    assert formula_for(op("mylib.fused", ((3,),), ((3,),))) is None
