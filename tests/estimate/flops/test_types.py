"""FLOPs and bytes by type, from the sizes of the layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import perfctl
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.flops.engine import sum_work_by_data_type
from perfctl.records.paper import OpShape
from perfctl.records.precision import PRECISIONS

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

N, GIVEN, H, K = 32, 16, 48, 10


def mlp():
    return nn.Sequential(nn.Linear(GIVEN, H), nn.ReLU(), nn.LayerNorm(H), nn.Linear(H, K))


def of(found):
    assert found.problem is None
    return {row.type: row for row in found.types}


def estimated(model, shape, precision, mode="train"):
    return perfctl.estimate(model, shape, precision=precision, mode=mode)


FIRST, SECOND = N * GIVEN * H, N * H * K


NORM, OTHERS = 8 * N * H, N * H + N * H + N * K
"""Elementwise FLOPs: of the norm; bias and ReLU, bias."""


@pytest.mark.parametrize(
    ("precision", "elementwise"),
    [
        ("fp32", {"fp32": NORM + OTHERS}),
        ("tf32", {"fp32": NORM + OTHERS}),
        ("bf16", {"bf16": OTHERS, "fp32": NORM}),
        ("fp16", {"fp16": OTHERS, "fp32": NORM}),
        # the norm also writes mean and deviation, in float32
        ("bf16-true", {"bf16": OTHERS, "fp32": NORM}),
    ],
)
def test_products_count_under_the_type_that_the_cores_take_and_norms_under_their_own(
    precision, elementwise
):
    rows = of(estimated(mlp(), (N, GIVEN), precision))
    product = rows[precision.removesuffix("-true")]
    assert (product.forward_macs, product.backward_macs) == (FIRST + SECOND, FIRST + 2 * SECOND)
    assert sum(row.forward_macs for row in rows.values()) == FIRST + SECOND
    assert {
        row.type: row.elementwise_flops for row in rows.values() if row.elementwise_flops
    } == elementwise


def test_totals_by_type_are_the_totals():
    for precision in PRECISIONS:
        found = estimated(mlp(), (N, GIVEN), precision)
        assert sum(row.forward_macs for row in found.types) == found.forward.macs
        assert sum(row.backward_macs for row in found.types) == found.backward.macs
        assert sum(row.elementwise_flops for row in found.types) == found.forward.elementwise_flops
        moved = sum(
            (call.read_bytes or 0) + (call.write_bytes or 0)
            for call in found.calls
            if call.direction == "forward"
        )
        assert sum(row.forward_bytes for row in found.types) == moved


def test_autocast_reads_each_weight_once_in_float32_and_the_product_in_its_own_type():
    found = estimated(
        nn.Sequential(nn.Linear(GIVEN, H, bias=False)), (N, GIVEN), "bf16", mode="infer"
    )
    values, product = N * GIVEN + GIVEN * H, N * GIVEN + GIVEN * H + N * H
    assert (found.casts.calls, found.casts.read_bytes, found.casts.write_bytes) == (
        2,
        4 * values,
        2 * values,
    )
    rows = of(found)
    assert rows["bf16"].forward_bytes == 2 * product
    assert rows["fp32"].forward_bytes == (4 + 2) * values  # the casts, whose widest type is fp32


def test_tf32_changes_no_byte_and_takes_only_products_of_matrices_and_convolutions():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.depthwise = (
                nn.Conv2d(4, 8, 3, padding=1),
                nn.Conv2d(8, 8, 3, padding=1, groups=8),
            )

        def forward(self, x):
            y = self.depthwise(self.conv(x))
            return F.scaled_dot_product_attention(y, y, y) @ y.flatten()[:6]

    plain, fast = (
        estimated(Model(), (2, 4, 6, 6), precision, "infer") for precision in ("fp32", "tf32")
    )
    assert [call[7:9] for call in plain.calls] == [call[7:9] for call in fast.calls]
    conv, depthwise = 2 * 36 * 8 * 4 * 9, 2 * 36 * 8 * 9
    attention, vector = 2 * (2 * 8 * 6 * 6 * 6), 2 * 8 * 6 * 6
    rows = of(fast)
    assert (rows["tf32"].forward_macs, rows["fp32"].forward_macs) == (
        conv,
        depthwise + attention + vector,
    )


def test_fp8_takes_linear_layers_whose_sizes_are_multiples_of_16():
    found = estimated(mlp(), (N, GIVEN), "fp8")
    rows = of(found)
    assert (rows["fp8"].forward_macs, rows["fp8"].backward_macs) == (FIRST, FIRST)
    assert (rows["bf16"].forward_macs, rows["bf16"].backward_macs) == (SECOND, 2 * SECOND)
    deeper = of(
        estimated(nn.Sequential(nn.Linear(GIVEN, H), nn.Linear(H, GIVEN)), (N, GIVEN), "fp8")
    )
    assert deeper["fp8"].backward_macs == 3 * FIRST
    assert "fp8" not in of(estimated(mlp(), (N - 1, GIVEN), "fp8"))
    assert {
        (call.layer, call.direction): call.macs
        for call in found.calls
        if call.layer == "0" and call.macs
    } == {
        ("0", "forward"): FIRST,
        ("0", "grad_weight"): FIRST,
    }


def test_what_activation_checkpointing_repeats_and_what_has_no_formula_are_kept_apart():
    product = OpShape(
        "a",
        "Linear",
        "aten.mm",
        "forward",
        ((2, 3), (3, 4)),
        ((2, 4),),
        ("bfloat16",) * 3,
        {"recompute": True},
    )
    odd = OpShape("b", "Odd", "own.op", "forward", ((2, 3),), ((2, 3),), ("float16",) * 2)
    rows = {row.type: row for row in sum_work_by_data_type((product, odd))}
    assert (rows["bf16"].forward_macs, rows["bf16"].recompute_macs, rows["bf16"].missing) == (
        0,
        2 * 3 * 4,
        0,
    )
    assert rows["bf16"].backward_bytes == 2 * (2 * 3 + 3 * 4 + 2 * 4)
    assert (rows["fp16"].missing, rows["fp16"].forward_macs) == (1, 0)


def test_a_model_that_is_cast_whole_halves_its_parameters_and_leaves_the_users_alone():
    model = mlp()
    values = sum(parameter.numel() for parameter in model.parameters())
    sizes = {
        precision: sum(
            module.parameter_bytes for module in estimated(model, (N, GIVEN), precision).modules
        )
        for precision in ("bf16", "bf16-true", "fp16-true")
    }
    assert sizes == {"bf16": 4 * values, "bf16-true": 2 * values, "fp16-true": 2 * values}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_an_unknown_precision_is_refused_by_name():
    with pytest.raises(UsageError, match="invalid value 'int4' for `precision`"):
        estimated(mlp(), (N, GIVEN), "int4")
