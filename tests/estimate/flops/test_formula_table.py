"""Every line of the formula table has a case here, with its value worked out from
the dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.estimate.flops import engine
from perfctl.orchestrator.estimate.flops.engine import TABLE, formula_for
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

Case = tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any], dict[str, int], int]
"""Inputs, outputs, attributes, multiply-adds by direction, elementwise FLOPs of the first part."""


def product(*inputs: tuple[int, ...], result: tuple[int, ...], macs: int, adds: int = 0) -> Case:
    return inputs, (result,), {}, {"forward": macs}, adds


def recurrent(gates: int, cell: int) -> Case:
    macs = 12 * gates * 7 * (5 + 7)
    return ((4, 3, 5),), ((4, 3, 7),), NET, {"forward": macs}, 12 * (cell * 7 + 2 * gates * 7)


def recurrent_backward(gates: int) -> Case:
    macs = 12 * gates * 7 * (5 + 7)
    return (
        ((4, 3, 5),),
        ((4, 3, 7),),
        {**NET, **NEEDS},
        {"grad_input": macs, "grad_weight": macs},
        0,
    )


def work(
    shape: tuple[int, ...],
    result: tuple[int, ...],
    flops: int,
    where: str = "forward",
    **extra: Any,
) -> Case:
    return (shape,), (result,), extra, {where: 0}, flops


def of_norm_backward() -> Case:
    return (NORM, NORM), (NORM,), {"direction": "backward"}, {"backward": 0}, 11 * 60


FLASH: Case = (QUERY,) * 3, (QUERY,), {}, {"forward": 2 * SCORES * 8}, 6 * SCORES
FLASH_BACK: Case = (
    (QUERY,) * 4,
    (QUERY,) * 3,
    {"direction": "backward"},
    {"grad_input": 4 * SCORES * 8, "recompute": SCORES * 8},
    5 * SCORES,
)
FORWARD: Case = (DATA, WEIGHT, None), (MAP,), {}, {"forward": CONV}, 0
BACKWARD: Case = (
    (MAP, DATA, WEIGHT),
    (DATA, WEIGHT, None),
    BACK,
    {"grad_input": CONV, "grad_weight": CONV},
    0,
)

PRODUCTS: dict[str, Case] = {
    **{
        f"aten.{name}": FORWARD
        for name in ("convolution", "_convolution", "convolution_overrideable")
    },
    **{
        f"aten.{name}": BACKWARD
        for name in ("convolution_backward", "convolution_backward_overrideable")
    },
    **{
        f"aten.{name}": product((3, 4), (4, 5), result=(3, 5), macs=60)
        for name in ("mm", "matmul", "_int_mm", "_scaled_mm")
    },
    "aten._grouped_mm": product((16, 32), (4, 32, 64), (4,), result=(16, 64), macs=16 * 32 * 64),
    "aten._scaled_grouped_mm": product(
        (16, 32), (16, 64), (4,), result=(4, 32, 64), macs=16 * 32 * 64
    ),
    "aten._trilinear": (
        ((3, 5), (7, 5, 6), (3, 6)),
        ((3, 7),),
        {"expand1": [1, 3], "expand2": [0], "expand3": [1, 2], "sumdim": [2, 3]},
        {"forward": 3 * 7 * 5 * 6 + 3 * 7 * 5},
        0,
    ),
    **{
        f"aten.{name}": product((3, 5), (2, 3, 4), (2, 4, 5), result=(3, 5), macs=120, adds=15)
        for name in ("addbmm", "addbmm_")
    },
    "aten._sparse_addmm": product((3, 5), (3, 4), (4, 5), result=(3, 5), macs=60, adds=15),
    "aten.linear_backward": (
        ((2, 7, 4), (2, 7, 5), (5, 4)),
        ((2, 7, 4), (5, 4), (5,)),
        {"direction": "backward"},
        {"grad_input": 280, "grad_weight": 280},
        70,
    ),
    "aten.matmul_backward": (
        ((3, 5), (3, 4), (4, 5)),
        ((3, 4), (4, 5)),
        {"direction": "backward"},
        {"grad_input": 2 * 60},
        0,
    ),
    **{
        f"quantized.{name}": product((6, 4), result=(6, 5), macs=120)
        for name in ("linear", "linear_dynamic")
    },
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
        {"direction": "backward"},
        {"grad_input": CONV, "grad_weight": CONV},
        2 * 8 * 2 * 8 * 9 * 49,
    ),
    "aten.bmm": product((2, 3, 4), (2, 4, 5), result=(2, 3, 5), macs=120),
    "aten.mv": product((3, 4), (4,), result=(3,), macs=12),
    "aten.dot": product((4,), (4,), result=(), macs=4),
    "aten.vdot": product((4,), (4,), result=(), macs=4),
    **{
        f"aten.{name}": product((5,), (3, 4), (4, 5), result=(3, 5), macs=60, adds=15)
        for name in ("addmm", "addmm_", "_addmm_activation")
    },
    **{
        f"aten.{name}": product(
            (2, 3, 5), (2, 3, 4), (2, 4, 5), result=(2, 3, 5), macs=120, adds=30
        )
        for name in ("baddbmm", "baddbmm_")
    },
    "aten.addmv": product((3,), (3, 4), (4,), result=(3,), macs=12, adds=3),
    "aten.linear": product((2, 7, 4), (5, 4), (5,), result=(2, 7, 5), macs=280, adds=70),
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
    "perfctl.scaled_dot_product_attention": FLASH,
    "perfctl.scaled_dot_product_attention_backward": (
        (QUERY,) * 3,
        (QUERY,),
        {"direction": "backward", "backend": "math"},
        {"grad_input": 4 * SCORES * 8},
        5 * SCORES,
    ),
    **{
        f"aten._scaled_dot_product_{name}": FLASH
        for name in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
        )
    },
    **{
        f"aten._scaled_dot_product_{name}_backward": FLASH_BACK
        for name in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
        )
    },
}

NORMS: dict[str, Case] = {
    **{
        f"aten.{name}": work(NORM, NORM, 8 * 60, training=True)
        for name in (
            "native_batch_norm",
            "cudnn_batch_norm",
            "miopen_batch_norm",
            "_native_batch_norm_legit",
        )
    },
    "aten._native_batch_norm_legit_no_training": work(NORM, NORM, 4 * 60),
    "aten._batch_norm_with_update": work(NORM, NORM, 8 * 60),
    **{
        f"aten.{name}": work(NORM, NORM, 8 * 60)
        for name in ("native_layer_norm", "native_group_norm")
    },
    "aten._fused_rms_norm": work(NORM, NORM, 5 * 60),
    **{
        f"aten.{name}_backward": of_norm_backward()
        for name in (
            "native_batch_norm",
            "cudnn_batch_norm",
            "miopen_batch_norm",
            "batch_norm",
            "native_layer_norm",
            "native_group_norm",
            "_fused_rms_norm",
            "_weight_norm_interface",
        )
    },
    **{
        f"aten.{name}": work((3, 4), (3, 4), 5 * 12)
        for name in ("_softmax", "_safe_softmax", "_log_softmax")
    },
    **{
        f"aten.{name}": work((3, 4), (3, 4), 4 * 12, "grad_input", direction="backward")
        for name in ("_softmax_backward_data", "_log_softmax_backward_data")
    },
    "aten.linalg_vector_norm": work((3, 4), (), 2 * 12),
    "aten._weight_norm_interface": work((3, 4), (3, 4), 4 * 12),
}

BACK_OF = {"direction": "backward"}
POOLING: dict[str, Case] = {
    "aten.max_pool2d_with_indices": work(IMAGE, HALF, 4 * 32, kernel_size=[2, 2]),
    "aten.max_pool3d_with_indices": work(VOLUME, EIGHTH, 8 * 16, kernel_size=[2]),
    "aten.avg_pool2d": work(IMAGE, HALF, 9 * 32, kernel_size=[3, 3]),
    "aten.avg_pool3d": work(VOLUME, EIGHTH, 8 * 16, kernel_size=[2, 2, 2]),
    **{
        f"aten.{name}_backward": work(HALF, IMAGE, 128, "grad_input", **BACK_OF)
        for name in (
            "avg_pool2d",
            "avg_pool3d",
            "_adaptive_avg_pool2d",
            "_adaptive_avg_pool3d",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
        )
    },
    **{
        f"aten.{name}_backward": work(HALF, IMAGE, 32, "grad_input", **BACK_OF)
        for name in ("max_pool2d_with_indices", "max_pool3d_with_indices")
    },
    **{
        f"aten.{name}": work(IMAGE, (1, 2, 1, 1), 128)
        for name in (
            "_adaptive_avg_pool2d",
            "_adaptive_avg_pool3d",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
        )
    },
}

NEIGHBOURS = {"linear1d": 2, "bilinear2d": 4, "trilinear3d": 8, "bicubic2d": 16}
SAMPLING: dict[str, Case] = {
    **{
        f"aten.{name}": work(HALF, IMAGE, 0)
        for name in (
            "upsample_nearest1d",
            "upsample_nearest2d",
            "upsample_nearest3d",
            "_upsample_nearest_exact1d",
            "_upsample_nearest_exact2d",
            "_upsample_nearest_exact3d",
        )
    },
    **{
        f"aten.upsample_{name}": work(HALF, IMAGE, 2 * taps * 128)
        for name, taps in NEIGHBOURS.items()
    },
    "aten._upsample_bilinear2d_aa": work(HALF, IMAGE, 2 * 4 * 128),
    "aten._upsample_bicubic2d_aa": work(HALF, IMAGE, 2 * 16 * 128),
    "aten._upsample_bilinear2d_aa_backward": work(
        IMAGE, HALF, 2 * 4 * 128, "grad_input", **BACK_OF
    ),
    "aten._upsample_bicubic2d_aa_backward": work(
        IMAGE, HALF, 2 * 16 * 128, "grad_input", **BACK_OF
    ),
    "aten.grid_sampler_2d": work(HALF, IMAGE, 2 * 4 * 128),
    "aten.grid_sampler_3d": work(HALF, IMAGE, 2 * 8 * 128),
    **{
        f"aten.{name}{rank}d_backward": work(IMAGE, HALF, 128, "grad_input", **BACK_OF)
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (1, 2, 3)
    },
    **{
        f"aten.upsample_{name}_backward": work(IMAGE, HALF, 2 * taps * 128, "grad_input", **BACK_OF)
        for name, taps in NEIGHBOURS.items()
    },
    "aten.grid_sampler_2d_backward": work(IMAGE, HALF, 2 * 4 * 128, "grad_input", **BACK_OF),
    "aten.grid_sampler_3d_backward": work(IMAGE, HALF, 2 * 8 * 128, "grad_input", **BACK_OF),
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
OPTIMIZERS: dict[str, Case] = {
    f"optim.{name}": work((3, 4), (3, 4), flops * 12, "optimizer", direction="optimizer")
    for name, flops in RULES.items()
}
SINGLE: dict[str, Case] = {
    "aten.var": work((3, 4), (), 3 * 12),
    "aten.std": work((3, 4), (), 3 * 12),
    "aten.var_mean": work((3, 4), (), 4 * 12),
    "aten._cdist_forward": (((3, 4), (5, 4)), ((3, 5),), {}, {"forward": 3 * 5 * 4}, 3 * 5 * 4),
    "aten._cdist_backward": (
        ((3, 5), (3, 4), (5, 4)),
        ((3, 4),),
        BACK_OF,
        {"grad_input": 3 * 5 * 4},
        3 * 5 * 4,
    ),
    "aten._euclidean_dist": (
        ((3, 4), (5, 4)),
        ((3, 5),),
        {},
        {"forward": 3 * 5 * 6},
        2 * (12 + 20) + 2 * 15,
    ),
    "aten._fft_c2c": (((4, 64),), ((4, 64),), {"dim": [1]}, {"forward": 4 * 5 * 64 * 6 // 2}, 0),
    "aten._fft_r2c": (((4, 64),), ((4, 33),), {"dim": [1]}, {"forward": 4 * 5 * 64 * 6 // 4}, 0),
    "aten._fft_c2r": (((4, 33),), ((4, 64),), {"dim": [1]}, {"forward": 4 * 5 * 64 * 6 // 4}, 0),
    "aten._ctc_loss": (
        ((10, 2, 7), (2, 5)),
        ((2,), (2, 10, 11)),
        {},
        {"forward": 0},
        13 * 2 * 10 * 11,
    ),
    "aten._ctc_loss_backward": (
        ((2,), (10, 2, 7), (2, 5), None, None, (2,), (2, 10, 11)),
        ((10, 2, 7),),
        BACK_OF,
        {"grad_input": 0},
        15 * 2 * 10 * 11 + 3 * 10 * 2 * 7,
    ),
    **{
        f"aten.{name}_window": work((3, 4), (3, 4), 12)
        for name in ("hann", "hamming", "blackman", "bartlett", "kaiser")
    },
    **{
        f"prims.{name}": work((3, 4), (3, 4), 12)
        for name in ("add", "sub", "mul", "div", "neg", "where", "exp", "log", "sqrt", "rsqrt")
    },
}
SQUARE, TALL = (3, 6, 6), (3, 8, 5)


def linalg(
    flops: float, *inputs: tuple[int, ...], result: tuple[int, ...] = SQUARE, **attributes: Any
) -> Case:
    """``flops`` for each of three matrices; the table holds multiply-adds."""
    return inputs, (result,), attributes, {"forward": round(3 * flops / 2)}, 0


LINALG: dict[str, Case] = {
    **{f"aten.{name}": linalg(6**3 / 3, SQUARE) for name in ("linalg_cholesky_ex", "cholesky")},
    "aten.cholesky_inverse": linalg(2 * 6**3 / 3, SQUARE),
    "aten.linalg_inv_ex": linalg(2 * 6**3, SQUARE),
    **{
        f"aten.{name}": linalg(2 * 6**3 / 3, SQUARE)
        for name in ("linalg_lu", "linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet")
    },
    "aten._linalg_solve_ex": linalg(
        2 * 6**3 / 3 + 2 * 6**2 * 2, SQUARE, (3, 6, 2), result=(3, 6, 2)
    ),
    "aten.linalg_solve_triangular": linalg(6**2 * 2, SQUARE, (3, 6, 2), result=(3, 6, 2)),
    **{
        f"aten.{name}": linalg(2 * 6**2 * 2, SQUARE, (3, 6, 2), result=(3, 6, 2))
        for name in ("linalg_lu_solve", "cholesky_solve")
    },
    "aten.linalg_qr": linalg(2 * (2 * 8 * 25 - 2 * 125 / 3), TALL, mode="reduced"),
    "aten._linalg_svd": linalg(14 * 8 * 25 + 8 * 125, TALL, full_matrices=False, compute_uv=True),
    "aten._linalg_eigh": linalg(9 * 6**3, SQUARE, compute_v=True),
    "aten.linalg_eig": linalg(25 * 6**3, SQUARE),
    "aten._linalg_eigvals": linalg(10 * 6**3, SQUARE),
    "aten.linalg_pinv": linalg(14 * 8 * 25 + 8 * 125 + 2 * 8 * 25, TALL, hermitian=False),
    "aten.linalg_lstsq": linalg(
        2 * 8 * 25 - 2 * 125 / 3 + (4 * 8 * 5 - 25) * 2, TALL, (3, 8, 2), result=(3, 5, 2)
    ),
    "aten.linalg_matrix_exp": linalg(5 * 2 * 6**3, SQUARE, products=3 * 5),
}
CASES = {**PRODUCTS, **NORMS, **POOLING, **SAMPLING, **OPTIMIZERS, **SINGLE, **LINALG}
FLOPS_OF_LISTED = {"pointwise": 6, "reductions": 12, "moves": 0}
LISTED = [name for group in FLOPS_OF_LISTED for name in engine.OPERATIONS[group]]


def test_an_operation_has_one_formula_and_a_case_here() -> None:
    assert set(CASES) | set(LISTED) == set(TABLE)
    assert not set(LISTED) & set(CASES)
    assert sum(map(len, engine.OPERATIONS.values())) + len(OPTIMIZERS) == len(TABLE)
    lines = Path(engine.__file__).with_name("operations.csv").read_text().splitlines()[1:]
    names = [name for line in lines for name in line.rpartition(",")[2].split()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_line_of_the_table_gives_the_value_worked_out_by_hand(name: str) -> None:
    inputs, outputs, attributes, macs, elementwise = CASES[name]
    shape = op(name, inputs, outputs, **attributes)
    formula = formula_for(shape)
    assert formula is TABLE[name]
    parts = formula(shape)
    assert {part.direction: part.macs for part in parts} == macs
    assert parts[0].elementwise == elementwise


def test_other_ways_to_a_pseudo_inverse_and_to_least_squares() -> None:
    (hermitian,) = TABLE["aten.linalg_pinv"](
        op("aten.linalg_pinv", (SQUARE,), (SQUARE,), hermitian=True)
    )
    assert hermitian.macs == 3 * (9 + 2) * 6**3 / 2
    shapes = (TALL, (3, 8, 2)), ((3, 5, 2),)
    (by_svd,) = TABLE["aten.linalg_lstsq"](op("aten.linalg_lstsq", *shapes, driver="gelsd"))
    assert by_svd.macs == 3 * (4 * 8 * 25 + 8 * 125 + 2 * (8 * 5 + 25) * 2) / 2


@pytest.mark.parametrize("group", FLOPS_OF_LISTED)
def test_a_listed_operation_counts_outputs_or_inputs_or_nothing(group: str) -> None:
    for name, formula in engine.OPERATIONS[group].items():
        (part,) = formula(op(name, ((3, 4),), ((6,),)))
        assert (part.macs, part.elementwise, part.read_bytes, part.write_bytes) == (
            0,
            FLOPS_OF_LISTED[group],
            48,
            24,
        ), name


def test_every_formula_function_is_said_in_the_document() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "formulas.md").read_text()
    for name in (
        "convolution",
        "transposed convolution",
        "Linear",
        "einsum",
        "LSTM",
        "GRU",
        "attention",
        "embedding",
        "interpolation",
        "batch norm",
        "layer, group, instance norm",
        "softmax",
        "pooling",
        "optimizer",
    ):
        assert name in text, name
    for name, flops in RULES.items():
        assert f"{name} {flops}" in text, name
