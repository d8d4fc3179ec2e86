"""Causes whose factor follows from a layer's shape or a kernel's name, computed from dimensions."""

from dataclasses import replace
from math import ceil

import pytest

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.grids import GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise_kernel
from perfctl.orchestrator.ledger.causes.judge import compute_unexplained_gap_share
from perfctl.orchestrator.ledger.causes.layer_shapes import read_single_product_layer_shapes
from perfctl.orchestrator.ledger.causes.rule import (
    format_with_si_prefix,
    get_ratio_unless_lower_bound,
)
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from tests.make.rows import (
    DGRAD,
    FPROP,
    GEMM,
    HALF,
    PAPER,
    WGRAD,
    backward,
    call,
    causes_of,
    gemm,
    measured,
    product,
    work,
)
from tests.make.shapes import op
from tests.make.tables import table


@table("stride", [2, 3])
def test_zeros_inserted_for_a_stride_are_multiplied(stride):
    side = 12 // stride
    shapes = ((2, 8, 12, 12), (16, 8, 3, 3), None), ((2, 16, side, side),)
    shape = op("aten.convolution", *shapes, layer="l", stride=[stride, stride])
    full = read_single_product_layer_shapes([shape])["l"].upsampled
    assert full == 2 * 2 * 144 * 16 * 8 * 9
    own = full // stride**2
    calls = tuple(call(1, direction, macs=own // 2) for direction in ("grad_input", "grad_weight"))

    def factors(flops, forward=1.0):
        kernels = work("d", DGRAD, ffma=flops // 2), work("w", WGRAD, ffma=own // 2)
        before = measured(32, product(FPROP, share=forward), kind="Conv2d")
        causes = causes_of(backward(*kernels, calls=calls, upsampled=full), before)
        return {rule: cause.factor for rule, cause in causes.items()}

    assert factors(full) == {"zeros inserted": pytest.approx((stride**2 + 1) / 2)}
    assert factors(own) == {}
    assert factors(full, forward=stride**2) == {}, "forward is as far off"
    assert (
        read_single_product_layer_shapes([replace(shape, attributes={"stride": [1, 1]})])[
            "l"
        ].upsampled
        is None
    )


@table("size taps", [(8, 3), (14, 5)])
def test_a_depthwise_kernel_skips_the_taps_on_the_padding(size, taps):
    pad = taps // 2
    shape = op(
        "aten.convolution",
        ((2, 6, size, size), (6, 1, taps, taps), None),
        ((2, 6, size, size),),
        layer="l",
        groups=6,
        stride=[1, 1],
        padding=[pad, pad],
        dilation=[1, 1],
    )
    inside = sum(min(pad, at) + min(pad, size - 1 - at) + 1 for at in range(size))
    share = (inside / (size * taps)) ** 2
    facts = read_single_product_layer_shapes([shape])["l"]
    assert facts.inside == pytest.approx(share)
    macs = 2 * 6 * size**2 * taps**2
    calls = (call(2, macs=macs // 2, kind="Conv2d"),)

    def causes(ffma):
        kernel = work("conv_depthwise2d_forward_kernel", Algorithm("depthwise"), ffma=ffma)
        row = measured(2, kernel, kind="Conv2d", calls=calls, inside=facts.inside)
        return {rule: cause.factor for rule, cause in causes_of(row).items()}

    assert causes(macs * share) == {"skipped border": pytest.approx(share)}
    assert causes(macs) == {}


@table("blocks", [1, 4, 8])
def test_a_causal_mask_skips_tiles_above_the_diagonal(blocks):
    share = (blocks + 1) / (2 * blocks)
    flash = replace(HALF, family="attention", tile=(64, 64, None))
    row = measured(32, work("flash_fwd", flash, tensor=PAPER * share, ffma=0))
    causes = causes_of(replace(row, causal=(64 * blocks, 64 * blocks)))
    mask = {"causal mask": pytest.approx(share)} if blocks > 1 else {}
    assert {rule: cause.factor for rule, cause in causes.items()} == {"tensor cores": 1, **mask}
    assert "causal mask" not in causes_of(row)
    assert "causal mask" not in causes_of(replace(row, causal=(100, 100))), (
        "tiles beyond the square"
    )


@table(
    "name rule factor",
    [
        ("cutlass_80_tensorop_s1688gemm_3xtf32_128x64", "3xTF32", 3),
        ("cutlass::gemm::kernel::Gemm<Mma<cutlass::arch::OpMultiplyAddFastF32>>", "3xTF32", 3),
        ("cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4", None, 3),
        ("cutlass_tensorop_s16832spgemm_bf16_64x128_64x6_tn_align8", "2:4 sparsity", 0.5),
        ("cutlass3x_sm100_sptensorop_gemm_e4m3_e4m3_f32", "2:4 sparsity", 0.5),
        ("sm80_xmma_sparse_gemm_f16f16_f16f32", "2:4 sparsity", 0.5),
        ("sparse_gemm", "2:4 sparsity", 0.5),
        ("block_sparse_matmul", None, 0.5),
        ("cutlass_80_tensorop_h16816gemm", None, 3),
        *(("cutlass::Kernel2", None, ratio) for ratio in (0.5, 0.562, 1.5, 2.0, 3.56)),
    ],
)
def test_only_a_name_says_how_many_products_tensor_cores_do(name, rule, factor):
    row = measured(32, work(name, HALF, (3, 3, 1), tensor=factor * PAPER, ffma=0))
    causes = causes_of(replace(row, forward=GemmShape(32, 10, 100)))
    expected = {"tensor cores": 1.0} | ({rule: factor} if rule else {})
    assert {key: cause.factor for key, cause in causes.items()} == expected
    assert compute_unexplained_gap_share(get_ratio_unless_lower_bound(row), causes.values()) == (
        0 if rule else 1
    )
    assert "Nothing is missing" not in describe_fix(causes["tensor cores"])
    exact = causes_of(measured(32, work(name, HALF, tensor=PAPER, ffma=0)))
    assert [*exact] == ["tensor cores"], "the count contradicts the name"


@table(
    "fourier grids", [("both", True), ("both", False), ("grad_input", True), ("grad_weight", True)]
)
def test_gradients_by_fourier_transforms_have_forwards_tiles_with_the_roles_exchanged(
    fourier, grids
):
    """5x5 filters over 40 images of 20 x 20, without padding: tiles of 16 x 16 points give 12 x 12
    outputs each."""
    n, c, k, side, taps, t = 40, 24, 48, 20, 5, 16
    out, points = side - taps + 1, t * (t // 2 + 1)
    shapes = ((n, c, side, side), (k, c, taps, taps), None), ((n, k, out, out),)
    facts = read_single_product_layer_shapes(
        [op("aten.convolution", *shapes, layer="l", stride=[1, 1])]
    )["l"]
    assert facts.image == (side, side)
    macs = n * out * out * k * c * taps * taps  # of each gradient
    # tiles of the input, over which its gradient is a convolution; the filter's gradient is a sum
    # over those of the output
    of_input, of_output = (n * ceil(length / (t - taps + 1)) ** 2 for length in (side, out))
    products = {"grad_input": (of_input, c, k), "grad_weight": (k, c, of_output)}
    kernels = [
        work(
            "void fft2d_r2c_16x16<float>(float2*)",
            recognise_kernel("fft2d_r2c_16x16"),
            fadd=macs // 50,
        )
    ]
    for direction, (rows, columns, depth) in products.items():
        if fourier in (direction, "both"):
            grid = (ceil(rows / 32), ceil(columns / 32), points)
            area = grid[0] * grid[1] * 32 * 32 if grids else rows * columns
            name = "ampere_gcgemm_32x32_nt"
            ffma = 4 * area * depth * points
            kernels.append(work(name, recognise_kernel(name), grid if grids else None, ffma=ffma))
        else:
            plain = Algorithm("conv", "c", direction=direction)
            kernels.append(work(f"k_{direction}", plain, (7, 7, 1), ffma=macs))
    calls = tuple(call(1, direction, macs=macs, kind="Conv2d") for direction in products)
    row = backward(*kernels, calls=calls, forward=facts.forward, image=facts.image)
    cause = causes_of(row)["FFT"]
    multiplies = sum(kernel.counts.get("ffma", 0) for kernel in kernels)
    assert cause.factor == pytest.approx((multiplies + macs // 50 / 2) / (2 * macs))
    assert ("in complete blocks" in describe_cause(cause)) is grids


@table(
    "name kind padded is_persistent",
    [
        ("void RNN_blockPersist_fp_LSTM<float, float, float, 128>(int)", "LSTM", 8, True),
        ("void RNN_persist_fp<__half, __half, float, 3>(int)", "LSTM", 8, True),
        ("void RNN_persist_fp<__half, __half, float, 3>(int)", "LSTM", 5, False),
        ("void RNN_persist_fp<__half, __half, float, 3>(int)", "Conv2d", 8, False),
        ("void LSTM_elementWise_fp<float>(int)", "LSTM", 8, False),
    ],
)
def test_a_persistent_recurrent_kernel_is_named_without_a_factor(name, kind, padded, is_persistent):
    """All 25 steps of 5 samples in one launch, worked on as 8: how many it rounds up to is in no
    name, so nothing is predicted."""
    width, hidden, steps = 32, 128, 25
    inputs, recurrent = steps * 5 * 4 * hidden * width, steps * 4 * hidden * hidden
    calls = (call(1, macs=inputs + 5 * recurrent, kind="LSTM"),)
    kernels = (
        work("gemm", GEMM, ffma=inputs),
        work(name, recognise_kernel(name), (16, 1, 1), ffma=padded * recurrent),
    )
    row = measured(1, *kernels, calls=calls, kind=kind)
    causes = causes_of(row)
    assert ("persistent RNN" in causes) is is_persistent
    if is_persistent:
        cause = causes["persistent RNN"]
        assert (cause.factor, cause.explained, cause.confidence) == (None, None, "plausible")
        assert format_with_si_prefix(2 * 8 * recurrent) in describe_cause(cause)
        assert (
            compute_unexplained_gap_share(get_ratio_unless_lower_bound(row), causes.values()) == 1
        )


@table("again", [2, 3])
def test_one_layer_whose_gradients_ran_again_is_double_backward_and_the_others_are_not(again):
    def make_layer(name, times):
        calls = tuple(
            call(32, direction, layer=name) for direction in ("grad_input", "grad_weight")
        )
        kernels = [product(GEMM, f"gemm_{key}{name}", times, launches=times) for key in "dw"]
        forward = product(FPROP, f"f{name}", grid=(9, 9, 1))
        return [
            measured(32, forward, layer=name, kind="Conv2d"),
            backward(*kernels, calls=calls, layer=name),
        ]

    (f1, b1), (f2, b2), (f3, b3) = make_layer("a", again), make_layer("b", 1), make_layer("c", 1)
    causes = causes_of(b1, f1, f2, b2, f3, b3)
    assert {rule: cause.factor for rule, cause in causes.items()} == {"extra calls": again}
    assert "(double backward, or several losses)" in describe_cause(causes["extra calls"])
    assert not causes_of(b2, f1, b1, f2, f3, b3)


@table("largest factor", [(1, 1.5), (2, None)])
def test_which_of_attentions_products_ran_again_is_not_known_if_the_others_are_too_large(
    largest, factor
):
    """Two products forward and four in backward: the two that came again may be gradients, and the
    larger ones forward."""
    forward = measured(32, gemm("f"), gemm("g"))
    forward = replace(forward, row=replace(forward.row, estimated=Figure(2 * PAPER, "counted")))
    gradients = [gemm("h", largest), *(gemm(name) for name in "ijk")]
    calls = (call(32, "grad_input", macs=4000),)
    row = backward(*forward.kernels, *gradients, calls=calls)
    assert causes_of(row, forward)["recomputation"].factor == factor


@table(
    "name described",
    [
        ("void at::native::fused_dropout_kernel_vec<float>", "dropout"),
        ("void at::native::batch_norm_transform_input_kernel<float>", "batch norm"),
        ("void at::native::fake_quantize_tensor_cachemask<float>", "fake quantisation"),
    ],
)
def test_work_next_to_the_products_is_described_by_its_kernels_name(name, described):
    other = work(name, Algorithm("elementwise"), fadd=PAPER // 10)
    cause = causes_of(measured(32, work("k", ffma=PAPER // 2), other))["layout and epilogue"]
    assert f"({described})" in describe_cause(cause) and cause.factor == pytest.approx(1.1)
