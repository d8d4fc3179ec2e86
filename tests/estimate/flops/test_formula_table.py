"""Every line of the formula table has a case here, with its value worked out from
the dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.estimate.flops import engine
from perfctl.orchestrator.estimate.flops.engine import TABLE, find_formula
from tests.make.shapes import op

DATA, WEIGHT, MAP = (2, 8, 9, 9), (12, 8, 3, 3), (2, 12, 7, 7)
CONV = 2 * 7 * 7 * 12 * 8 * 9
BACK: dict[str, Any] = {"direction": "backward", "output_mask": [True, True, False]}
NET: dict[str, Any] = {
    "input_size": 5,
    "hidden_size": 7,
    "num_layers": 1,
    "directions": 1,
    "bias": True,
    "rows": 12,
    "first_rows": 3,
    "proj_size": 0,
}
NEEDS = {"direction": "backward", "needs_input": True, "needs_hidden": True, "needs_weight": True}
QUERY = (2, 4, 10, 8)
SCORES = 2 * 4 * 10 * 10
IMAGE, HALF = (1, 2, 8, 8), (1, 2, 4, 4)
VOLUME, EIGHTH = (1, 2, 4, 4, 4), (1, 2, 2, 2, 2)
NORM = (3, 4, 5)
SQUARE, TALL = (3, 6, 6), (3, 8, 5)

Case = tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any], dict[str, int], int]
"""Inputs, outputs, attributes, multiply-adds by direction, elementwise FLOPs of the first part."""


def product(*inputs, result, macs, adds=0):
    return inputs, (result,), {}, {"forward": macs}, adds


def recurrent(gates, cell):
    macs = 12 * gates * 7 * (5 + 7)
    return ((4, 3, 5),), ((4, 3, 7),), NET, {"forward": macs}, 12 * (cell * 7 + 2 * gates * 7)


def recurrent_backward(gates):
    macs = 12 * gates * 7 * (5 + 7)
    both = {"grad_input": macs, "grad_weight": macs}
    return ((4, 3, 5),), ((4, 3, 7),), NET | NEEDS, both, 0


def work(shape, result, flops, where="forward", **extra):
    return (shape,), (result,), extra, {where: 0}, flops


def back(shape, result, flops):
    return work(shape, result, flops, "grad_input", direction="backward")


def linalg(flops, *inputs, result=SQUARE, **attributes):
    """``flops`` for each of three matrices; the table holds multiply-adds."""
    return inputs, (result,), attributes, {"forward": round(3 * flops / 2)}, 0


def solve(flops, columns=6, rows=6, **attributes):
    """Two right-hand sides."""
    return linalg(flops, (3, rows, columns), (3, rows, 2), result=(3, columns, 2), **attributes)


def fourier(values, results, share):
    """Four transforms of 64 values: 5 n log2(n) FLOPs, and half of them for real values."""
    macs = 4 * 5 * 64 * 6 // share
    return ((4, values),), ((4, results),), {"dim": [1]}, {"forward": macs}, 0


FLASH: Case = (QUERY,) * 3, (QUERY,), {}, {"forward": 2 * SCORES * 8}, 6 * SCORES
BOTH_CONV = {"grad_input": CONV, "grad_weight": CONV}
BACK_OF = {"direction": "backward"}
SVD, QR = 14 * 8 * 25 + 8 * 125, 2 * 8 * 25 - 2 * 125 / 3
"""FLOPs for a matrix of 8 x 5."""
ROWS: dict[str, Case] = {
    "convolution _convolution convolution_overrideable": (
        (DATA, WEIGHT, None),
        (MAP,),
        {},
        {"forward": CONV},
        0,
    ),
    "convolution_backward convolution_backward_overrideable": (
        (MAP, DATA, WEIGHT),
        (DATA, WEIGHT, None),
        BACK,
        BOTH_CONV,
        0,
    ),
    "torchvision.deform_conv2d": (
        (DATA, WEIGHT),
        (MAP,),
        {},
        {"forward": CONV},
        8 * 2 * 8 * 9 * 49,
    ),
    "torchvision._deform_conv2d_backward": (
        (MAP, DATA, WEIGHT),
        (DATA, WEIGHT, (2, 18, 7, 7)),
        BACK_OF,
        BOTH_CONV,
        2 * 8 * 2 * 8 * 9 * 49,
    ),
    "mm matmul _int_mm _scaled_mm": product((3, 4), (4, 5), result=(3, 5), macs=60),
    "_grouped_mm": product((16, 32), (4, 32, 64), (4,), result=(16, 64), macs=16 * 32 * 64),
    "_scaled_grouped_mm": product((16, 32), (16, 64), (4,), result=(4, 32, 64), macs=16 * 32 * 64),
    "_trilinear": (
        ((3, 5), (7, 5, 6), (3, 6)),
        ((3, 7),),
        {"expand1": [1, 3], "expand2": [0], "expand3": [1, 2], "sumdim": [2, 3]},
        {"forward": 3 * 7 * 5 * 6 + 3 * 7 * 5},
        0,
    ),
    "addbmm addbmm_": product((3, 5), (2, 3, 4), (2, 4, 5), result=(3, 5), macs=120, adds=15),
    "_sparse_addmm": product((3, 5), (3, 4), (4, 5), result=(3, 5), macs=60, adds=15),
    "linear_backward": (
        ((2, 7, 4), (2, 7, 5), (5, 4)),
        ((2, 7, 4), (5, 4), (5,)),
        BACK_OF,
        {"grad_input": 280, "grad_weight": 280},
        70,
    ),
    "matmul_backward": (
        ((3, 5), (3, 4), (4, 5)),
        ((3, 4), (4, 5)),
        BACK_OF,
        {"grad_input": 2 * 60},
        0,
    ),
    "quantized.linear quantized.linear_dynamic": product((6, 4), result=(6, 5), macs=120),
    "bmm": product((2, 3, 4), (2, 4, 5), result=(2, 3, 5), macs=120),
    "mv": product((3, 4), (4,), result=(3,), macs=12),
    "dot vdot": product((4,), (4,), result=(), macs=4),
    "addmm addmm_ _addmm_activation": product(
        (5,), (3, 4), (4, 5), result=(3, 5), macs=60, adds=15
    ),
    "baddbmm baddbmm_": product(
        (2, 3, 5), (2, 3, 4), (2, 4, 5), result=(2, 3, 5), macs=120, adds=30
    ),
    "addmv": product((3,), (3, 4), (4,), result=(3,), macs=12, adds=3),
    "linear": product((2, 7, 4), (5, 4), (5,), result=(2, 7, 5), macs=280, adds=70),
    "perfctl.lstm": recurrent(4, 9),
    "perfctl.gru": recurrent(3, 8),
    "perfctl.rnn": recurrent(1, 1),
    "perfctl.lstm_backward": recurrent_backward(4),
    "perfctl.gru_backward": recurrent_backward(3),
    "perfctl.rnn_backward": recurrent_backward(1),
    "perfctl.vecdot": (
        ((2, 5, 1, 7), (5, 3, 7)),
        ((2, 5, 3),),
        {"depth": 7},
        {"forward": 2 * 5 * 3 * 7},
        0,
    ),
    "perfctl.vecdot_backward": (
        ((2, 5, 1, 7), (5, 3, 7)),
        ((2, 5, 3),),
        {"direction": "backward", "depth": 7, "needs": (True, True)},
        {"grad_input": 2 * 2 * 5 * 3 * 7},
        0,
    ),
    "perfctl.scaled_dot_product_attention _scaled_dot_product_flash_attention"
    " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_cudnn_attention _flash_attention_forward _efficient_attention_forward"
    " flash_attn._flash_attn_forward flash_attn._flash_attn_varlen_forward torch_attn._varlen_attn"
    "": FLASH,
    "perfctl.scaled_dot_product_attention_backward": (
        (QUERY,) * 3,
        (QUERY,),
        {"direction": "backward", "backend": "math"},
        {"grad_input": 4 * SCORES * 8},
        5 * SCORES,
    ),
    "_scaled_dot_product_flash_attention_backward"
    " _scaled_dot_product_flash_attention_for_cpu_backward"
    " _scaled_dot_product_efficient_attention_backward"
    " _scaled_dot_product_cudnn_attention_backward _flash_attention_backward"
    " _efficient_attention_backward flash_attn._flash_attn_backward"
    " flash_attn._flash_attn_varlen_backward torch_attn._varlen_attn_backward": (
        (QUERY,) * 4,
        (QUERY,) * 3,
        BACK_OF,
        {"grad_input": 4 * SCORES * 8, "recompute": SCORES * 8},
        5 * SCORES,
    ),
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit": work(
        NORM, NORM, 8 * 60, training=True
    ),
    "_native_batch_norm_legit_no_training": work(NORM, NORM, 4 * 60),
    "_batch_norm_with_update native_layer_norm native_group_norm": work(NORM, NORM, 8 * 60),
    "_fused_rms_norm _softmax _safe_softmax _log_softmax": work(NORM, NORM, 5 * 60),
    "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward"
    " batch_norm_backward native_layer_norm_backward native_group_norm_backward"
    " _fused_rms_norm_backward _weight_norm_interface_backward": (
        (NORM, NORM),
        (NORM,),
        BACK_OF,
        {"backward": 0},
        11 * 60,
    ),
    "_softmax_backward_data _log_softmax_backward_data": back(NORM, NORM, 4 * 60),
    "linalg_vector_norm": work(NORM, (), 2 * 60),
    "_weight_norm_interface": work(NORM, NORM, 4 * 60),
    "max_pool2d_with_indices": work(IMAGE, HALF, 4 * 32, kernel_size=[2, 2]),
    "max_pool3d_with_indices": work(VOLUME, EIGHTH, 8 * 16, kernel_size=[2]),
    "avg_pool2d": work(IMAGE, HALF, 9 * 32, kernel_size=[3, 3]),
    "avg_pool3d": work(VOLUME, EIGHTH, 8 * 16, kernel_size=[2, 2, 2]),
    "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward"
    " _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward"
    " adaptive_max_pool3d_backward": back(HALF, IMAGE, 128),
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward": back(HALF, IMAGE, 32),
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d": work(
        IMAGE, (1, 2, 1, 1), 128
    ),
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d"
    " _upsample_nearest_exact2d _upsample_nearest_exact3d": work(HALF, IMAGE, 0),
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"
    " _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward"
    " _upsample_nearest_exact3d_backward": back(IMAGE, HALF, 128),
    # a value is a sum of its 2, 4, 8 or 16 neighbours, each with its weight
    "upsample_linear1d": work(HALF, IMAGE, 2 * 2 * 128),
    "upsample_bilinear2d _upsample_bilinear2d_aa grid_sampler_2d": work(HALF, IMAGE, 2 * 4 * 128),
    "upsample_trilinear3d grid_sampler_3d": work(HALF, IMAGE, 2 * 8 * 128),
    "upsample_bicubic2d _upsample_bicubic2d_aa": work(HALF, IMAGE, 2 * 16 * 128),
    "upsample_linear1d_backward": back(IMAGE, HALF, 2 * 2 * 128),
    "upsample_bilinear2d_backward _upsample_bilinear2d_aa_backward grid_sampler_2d_backward": back(
        IMAGE, HALF, 2 * 4 * 128
    ),
    "upsample_trilinear3d_backward grid_sampler_3d_backward": back(IMAGE, HALF, 2 * 8 * 128),
    "upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward": back(IMAGE, HALF, 2 * 16 * 128),
    "var std": work(NORM, (), 3 * 60),
    "var_mean": work(NORM, (), 4 * 60),
    "_cdist_forward": product((3, 4), (5, 4), result=(3, 5), macs=3 * 5 * 4, adds=3 * 5 * 4),
    "_cdist_backward": (
        ((3, 5), (3, 4), (5, 4)),
        ((3, 4),),
        BACK_OF,
        {"grad_input": 3 * 5 * 4},
        3 * 5 * 4,
    ),
    "_euclidean_dist": product(
        (3, 4), (5, 4), result=(3, 5), macs=3 * 5 * 6, adds=2 * (12 + 20) + 2 * 15
    ),
    "_fft_c2c": fourier(64, 64, 2),
    "_fft_r2c": fourier(64, 33, 4),
    "_fft_c2r": fourier(33, 64, 4),
    "_ctc_loss": (
        ((10, 2, 7), (2, 5)),
        ((2,), (2, 10, 11)),
        {},
        {"forward": 0},
        13 * 2 * 10 * 11,
    ),
    "_ctc_loss_backward": (
        ((2,), (10, 2, 7), (2, 5), None, None, (2,), (2, 10, 11)),
        ((10, 2, 7),),
        BACK_OF,
        {"grad_input": 0},
        15 * 2 * 10 * 11 + 3 * 10 * 2 * 7,
    ),
    "hann_window hamming_window blackman_window bartlett_window kaiser_window prims.add prims.sub"
    " prims.mul prims.div prims.neg prims.where prims.exp prims.log prims.sqrt"
    " prims.rsqrt": work(NORM, NORM, 60),
    "linalg_cholesky_ex cholesky": linalg(6**3 / 3, SQUARE),
    "cholesky_inverse linalg_lu linalg_lu_factor_ex _linalg_det _linalg_slogdet": linalg(
        2 * 6**3 / 3, SQUARE
    ),
    "linalg_inv_ex": linalg(2 * 6**3, SQUARE),
    "_linalg_solve_ex": solve(2 * 6**3 / 3 + 2 * 6**2 * 2),
    "linalg_solve_triangular": solve(6**2 * 2),
    "linalg_lu_solve cholesky_solve": solve(2 * 6**2 * 2),
    "linalg_qr": linalg(2 * QR, TALL, mode="reduced"),
    "_linalg_svd": linalg(SVD, TALL, full_matrices=False, compute_uv=True),
    "_linalg_eigh": linalg(9 * 6**3, SQUARE, compute_v=True),
    "linalg_eig": linalg(25 * 6**3, SQUARE),
    "_linalg_eigvals": linalg(10 * 6**3, SQUARE),
    "linalg_pinv": linalg(SVD + 2 * 8 * 25, TALL, hermitian=False),
    "linalg_lstsq": solve(QR + (4 * 8 * 5 - 25) * 2, 5, 8),
    "linalg_matrix_exp": linalg(5 * 2 * 6**3, SQUARE, products=3 * 5),
}
CASES = {
    name if "." in name else f"aten.{name}": row
    for names, row in ROWS.items()
    for name in names.split()
}
RULES = {
    "SGD": 2,
    "Adam": 12,
    "AdamW": 12,
    "Adadelta": 13,
    "RMSprop": 7,
    "Adagrad": 6,
    "NAdam": 15,
    "RAdam": 15,
    "Adamax": 10,
}
"""FLOPs of a value; their settings and state are in test_formula_parts."""
FLOPS_OF_LISTED = {"pointwise": 6, "reductions": 12, "moves": 0}
LISTED = [name for group in FLOPS_OF_LISTED for name in engine.OPERATIONS[group]]


def test_an_operation_has_one_formula_and_a_case_here():
    steps = {f"optim.{name}" for name in RULES}
    assert set(CASES) | set(LISTED) | steps == set(TABLE)
    assert not set(LISTED) & set(CASES)
    assert sum(map(len, engine.OPERATIONS.values())) + len(RULES) == len(TABLE)
    lines = Path(engine.__file__).with_name("operations.csv").read_text().splitlines()[1:]
    names = [name for line in lines for name in line.rpartition(",")[2].split()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_line_of_the_table_gives_the_value_worked_out_by_hand(name):
    inputs, outputs, attributes, macs, elementwise = CASES[name]
    shape = op(name, inputs, outputs, **attributes)
    formula = find_formula(shape)
    assert formula is TABLE[name]
    parts = formula(shape)
    assert {part.direction: part.macs for part in parts} == macs
    assert parts[0].elementwise == elementwise


def test_other_ways_to_a_pseudo_inverse_and_to_least_squares():
    (hermitian,) = TABLE["aten.linalg_pinv"](
        op("aten.linalg_pinv", (SQUARE,), (SQUARE,), hermitian=True)
    )
    assert hermitian.macs == 3 * (9 + 2) * 6**3 / 2
    shapes = (TALL, (3, 8, 2)), ((3, 5, 2),)
    (by_svd,) = TABLE["aten.linalg_lstsq"](op("aten.linalg_lstsq", *shapes, driver="gelsd"))
    assert by_svd.macs == 3 * (4 * 8 * 25 + 8 * 125 + 2 * (8 * 5 + 25) * 2) / 2


@pytest.mark.parametrize("group", FLOPS_OF_LISTED)
def test_a_listed_operation_counts_outputs_or_inputs_or_nothing(group):
    for name, formula in engine.OPERATIONS[group].items():
        (part,) = formula(op(name, ((3, 4),), ((6,),)))
        assert (part.macs, part.elementwise, part.read_bytes, part.write_bytes) == (
            0,
            FLOPS_OF_LISTED[group],
            48,
            24,
        ), name


def test_every_formula_function_is_said_in_the_document():
    text = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "formulas.md").read_text()
    names = (
        "convolution; transposed convolution; Linear; einsum; LSTM; GRU; attention; embedding; "
        "interpolation; batch norm; layer, group, instance norm; softmax; pooling; optimizer"
    )
    for name in names.split("; "):
        assert name in text, name
    for name, flops in RULES.items():
        assert f"{name} {flops}" in text, name
