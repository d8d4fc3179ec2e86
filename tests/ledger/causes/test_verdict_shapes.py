"""Rules whose factor follows from a layer's shape or a kernel's name, with kernels made by hand."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from perfctl.orchestrator.counts.kernels.grids import ConvShape
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise
from perfctl.orchestrator.ledger.causes.evidence import RowEvidence, facts_by_layer
from perfctl.orchestrator.ledger.causes.judge import ROW_RULES, confirm, unexplained_share
from perfctl.orchestrator.ledger.causes.missing_rules import direction_missing
from perfctl.orchestrator.ledger.causes.rule import Cause, RuleInput, amount, ratio_of
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from tests.make.rows import by_place, call, case, work
from tests.make.shapes import op

PAPER = 64_000
GRADIENTS = (call(32, "grad_input"), call(32, "grad_weight"))
DGRAD, WGRAD = (
    Algorithm("conv", "c", direction="grad_input"),
    Algorithm("conv", "c", direction="grad_weight"),
)
FPROP = Algorithm("conv", "c", direction="forward")


def rules(one: RowEvidence, *others: RowEvidence, loose: Any = ()) -> dict[str, Cause]:
    given = RuleInput(one, by_place(one, *others), tuple(loose))
    said = [found for rule in ROW_RULES if (found := rule(given)) is not None]
    return {found.rule: found for found in confirm(given, said)}


def backward(*works: Any, calls: Any = GRADIENTS, **more: Any) -> RowEvidence:
    counted = sum(kernel.executed for kernel in works)
    return case(
        32, *works, direction="backward", calls=calls, counted=counted, kind="Conv2d", **more
    )


def product(algorithm: Algorithm, name: str = "", share: float = 1.0, launches: float = 1) -> Any:
    return work(
        name or f"k_{algorithm.direction}",
        algorithm,
        (3, 3, 1),
        ffma=32_000 * share,
        launches=launches,
    )


def test_one_product_for_two_gradients_says_which_is_missing() -> None:
    said = rules(backward(product(WGRAD)))["gradient missing"]
    assert (said.factor, said.confidence) == (0.5, "predicted and matched")
    assert "the gradient of its input has no kernel" in describe_cause(said)
    unnamed = rules(backward(product(Algorithm("gemm", "gemm"))), loose=[product(DGRAD)])[
        "gradient missing"
    ]
    assert (
        unnamed.confidence == "plausible"
        and "1 of the kernels outside of layers may compute it" in describe_cause(unnamed)
    )
    assert "gradient missing" not in rules(backward(product(WGRAD, share=2))), "it may compute both"
    assert "gradient missing" not in rules(backward(product(WGRAD), product(DGRAD)))


def test_a_factor_that_forward_has_too_is_no_missing_gradient() -> None:
    one = backward(product(WGRAD, share=0.889))
    assert "gradient missing" in rules(one, case(32, product(FPROP), counted=PAPER))
    other = case(32, product(FPROP, share=0.889), counted=0.889 * PAPER)
    assert "gradient missing" not in rules(one, other), "the kernels of another layer"


def test_a_gradient_of_the_input_that_paper_does_not_need_is_named() -> None:
    only = (call(32, "grad_weight"),)
    assert (
        rules(backward(product(WGRAD), product(DGRAD), calls=only))["needless gradient"].factor == 2
    )
    assert "needless gradient" not in rules(
        backward(product(WGRAD), product(Algorithm("conv")), calls=only)
    )


@pytest.mark.parametrize(("benchmark", "told"), [("on", True), (None, True), ("off", False)])
def test_trials_of_a_gradient_are_told_by_names_unless_the_flag_is_off(
    benchmark: str | None, told: bool
) -> None:
    works = [
        product(WGRAD, "w1"),
        product(WGRAD, "w2"),
        product(DGRAD, "d1"),
        product(DGRAD, "d2"),
        product(DGRAD, "d3"),
    ]
    environment = {"cudnn_benchmark": benchmark} if benchmark else {}
    found = rules(backward(*works, environment=environment))
    assert ("several algorithms" in found) is told
    if told:
        assert found["several algorithms"].factor == 2.5  # 2 + 3 of 1 + 1


def test_forward_that_ran_again_by_another_kernel_is_checkpointing_unless_trials_are_on() -> None:
    forward = case(32, work("first", FPROP, (9, 9, 1), ffma=32_000), counted=PAPER, kind="Conv2d")
    again = backward(product(FPROP, "second"), product(WGRAD), product(DGRAD))
    assert rules(again, forward)["recomputation"].factor == 1.5
    assert "recomputation" not in rules(
        replace(again, environment={"cudnn_benchmark": "on"}), forward
    )


def test_groups_run_as_one_dense_convolution() -> None:
    shape = ConvShape(4, 64, 64, 8, 8, 3, 3, groups=4)
    tile = Algorithm("conv", "implicit gemm", tile=(128, 64, None))
    kernel = work("k", tile, (2, 1, 1), ffma=4 * shape.macs)
    calls = (call(4, macs=shape.macs // 4, kind="Conv2d"),)
    one = case(4, kernel, kind="Conv2d", calls=calls, forward=shape, counted=8 * shape.macs)
    said = rules(one)["groups run as dense"]
    assert (said.factor, said.confidence) == (4, "predicted and matched")
    exact = replace(kernel, counts={"ffma": shape.macs})
    assert "groups run as dense" not in rules(replace(one, kernels=(exact,)))


@pytest.mark.parametrize(("size", "taps"), [(8, 3), (14, 5)])
def test_a_depthwise_kernel_skips_the_taps_on_the_padding(size: int, taps: int) -> None:
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
    share = (
        sum(min(pad, at) + min(pad, size - 1 - at) + 1 for at in range(size)) / (size * taps)
    ) ** 2
    facts = facts_by_layer([shape])["l"]
    assert facts.inside == pytest.approx(share)
    macs = 2 * 6 * size**2 * taps**2
    calls = (call(2, macs=macs // 2, kind="Conv2d"),)
    kernel = work("conv_depthwise2d_forward_kernel", Algorithm("depthwise"), ffma=macs * share)
    one = case(2, kernel, kind="Conv2d", calls=calls, counted=2 * macs * share, inside=facts.inside)
    assert rules(one)["skipped border"].factor == pytest.approx(share)
    whole = replace(kernel, counts={"ffma": macs})
    assert "skipped border" not in rules(replace(one, kernels=(whole,)))


FLASH = Algorithm(
    "attention", "flash attention", tile=(64, 64, None), tensor_core=True, math="fp16"
)


@pytest.mark.parametrize("blocks", [1, 4, 8])
def test_a_causal_mask_skips_tiles_above_the_diagonal(blocks: int) -> None:
    share = (blocks + 1) / (2 * blocks)
    kernel = work("flash_fwd", FLASH, tensor=PAPER * share, ffma=0)
    one = case(32, kernel, counted=PAPER * share, causal=(64 * blocks, 64 * blocks))
    found = rules(one)
    assert ("causal mask" in found) is (blocks > 1)
    if blocks > 1:
        assert found["causal mask"].factor == pytest.approx(share)
    assert "causal mask" not in rules(replace(one, causal=None))


@pytest.mark.parametrize(
    ("name", "rule", "factor"),
    [
        ("cutlass_80_tensorop_s1688gemm_3xtf32_128x64", "3xTF32", 3.0),
        (
            "cutlass::gemm::kernel::Gemm<MmaMultistage<cutlass::arch::OpMultiplyAddFastF32>>",
            "3xTF32",
            3.0,
        ),
        ("cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4", None, 3.0),
        ("cutlass_tensorop_s16832spgemm_bf16_64x128_64x6_tn_align8", "2:4 sparsity", 0.5),
        ("cutlass3x_sm100_sptensorop_gemm_e4m3_e4m3_f32", "2:4 sparsity", 0.5),
        ("sm80_xmma_sparse_gemm_f16f16_f16f32", "2:4 sparsity", 0.5),
        ("cutlass_80_tensorop_h16816gemm", None, 3.0),
    ],
)
def test_names_say_how_many_products_tensor_cores_do(
    name: str, rule: str | None, factor: float
) -> None:
    half = Algorithm("gemm", "gemm", tensor_core=True, math="fp16")
    kernel = work(name, half, tensor=factor * PAPER, ffma=0)
    found = {
        key: said.factor
        for key, said in rules(case(32, kernel, counted=factor * PAPER)).items()
        if said.factor != 1
    }
    assert found == ({rule: factor} if rule else {})
    full = work(name, half, tensor=PAPER, ffma=0)
    assert rule not in rules(case(32, full, counted=PAPER)), "the count speaks against it"


def test_a_layer_launched_twice_where_paper_has_one_call() -> None:
    kernel = work(
        "void gemm_v0<float>(float*)", Algorithm("gemm", "gemm"), (1, 1, 1), ffma=64_000, launches=2
    )
    said = rules(case(32, kernel, counted=2 * PAPER))["extra calls"]
    assert (said.factor, said.confidence) == (2, "plausible")
    split = replace(kernel, counts={"ffma": 32_000})
    assert "extra calls" not in rules(case(32, split, counted=PAPER)), (
        "a batch split over two launches"
    )


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("void at::native::fused_dropout_kernel_vec<float>", "dropout"),
        ("void at::native::batch_norm_transform_input_kernel<float>", "batch norm"),
        ("void at::native::fake_quantize_tensor_cachemask<float>", "fake quantisation"),
    ],
)
def test_work_beside_the_products_is_called_by_its_kernels_name(name: str, word: str) -> None:
    works = (
        work("k", Algorithm("gemm", "gemm"), ffma=32_000),
        work(name, Algorithm("elementwise"), fadd=6400),
    )
    said = rules(case(32, *works, counted=PAPER + 6400))["layout and epilogue"]
    assert f"({word})" in describe_cause(said) and said.factor == pytest.approx(1.1)


def test_advice_does_not_name_the_command_that_made_the_run() -> None:
    loose = (work("loose", ffma=32_000),)
    for ours in (False, True):
        one = case(32, direction="backward", ours=ours)
        said = direction_missing(RuleInput(one, by_place(one), loose))
        assert said is not None
        assert ("perfctl ncu" in describe_fix(said)) is not ours


@pytest.mark.parametrize("stride", [2, 3])
def test_zeros_inserted_for_a_stride_are_multiplied(stride: int) -> None:
    shape = op(
        "aten.convolution",
        ((2, 8, 12, 12), (16, 8, 3, 3), None),
        ((2, 16, 12 // stride, 12 // stride),),
        layer="l",
        stride=[stride, stride],
    )
    full = facts_by_layer([shape])["l"].upsampled
    assert full == 2 * 2 * 144 * 16 * 8 * 9
    own = full // stride**2
    calls = tuple(call(1, direction, macs=own // 2) for direction in ("grad_input", "grad_weight"))
    works = (work("d", DGRAD, ffma=full // 2), work("w", WGRAD, ffma=own // 2))
    said = rules(backward(*works, calls=calls, upsampled=full))["zeros inserted"]
    assert said.factor == pytest.approx((stride**2 + 1) / 2)
    exact = (work("d", DGRAD, ffma=own // 2), works[1])
    assert "zeros inserted" not in rules(backward(*exact, calls=calls, upsampled=full))
    assert facts_by_layer([replace(shape, attributes={"stride": [1, 1]})])["l"].upsampled is None


def test_two_layers_with_each_others_counts_are_swapped() -> None:
    def row(layer: str, macs: int, counted: int) -> RowEvidence:
        made = work("k", Algorithm("gemm", "gemm"), ffma=32 * counted)
        return case(
            32, made, layer=layer, calls=(call(32, macs=macs, layer=layer),), counted=64 * counted
        )

    a, b, c = row("a", 1000, 3000), row("b", 3000, 1000), row("c", 500, 500)
    assert rules(a, b, c)["swapped layers"].factor == 3
    assert rules(b, a, c)["swapped layers"].factor == pytest.approx(1 / 3)
    assert "swapped layers" not in rules(c, a, b)
    assert "swapped layers" not in rules(a, b, row("d", 3000, 1000)), "it may be either"


def test_groups_with_tiles_of_their_own_are_padding_and_not_one_dense_product() -> None:
    """Four groups of 16 channels in tiles of 64: four times the multiplies, by the grid's z."""
    shape = ConvShape(4, 64, 64, 8, 8, 3, 3, groups=4)
    paper = 2 * shape.macs
    kernel = work(
        "k", Algorithm("conv", "implicit gemm", (64, 64, 16)), (4, 1, 4), ffma=4 * shape.macs
    )
    one = case(
        4,
        kernel,
        counted=4 * paper,
        calls=(call(4, macs=shape.macs // 4, kind="Conv2d"),),
        kind="Conv2d",
        forward=shape,
    )
    assert rules(one).keys() & {"tile padding", "groups run as dense"} == {"tile padding"}
    assert rules(one)["tile padding"].factor == 4


@pytest.mark.parametrize(
    ("fourier", "grids"),
    [("both", True), ("both", False), ("grad_input", True), ("grad_weight", True)],
)
def test_gradients_by_fourier_transforms_have_forwards_tiles_with_the_roles_exchanged(
    fourier: str, grids: bool
) -> None:
    """5x5 filters over 40 images of 20 x 20, without padding: tiles of 16 x 16 points give 12 x 12
    outputs each."""
    n, c, k, side, taps, t = 40, 24, 48, 20, 5, 16
    out, points = side - taps + 1, t * (t // 2 + 1)
    shape = op(
        "aten.convolution",
        ((n, c, side, side), (k, c, taps, taps), None),
        ((n, k, out, out),),
        layer="l",
        stride=[1, 1],
    )
    facts = facts_by_layer([shape])["l"]
    assert facts.image == (side, side)
    own = n * out * out * k * c * taps * taps  # multiply-adds of each gradient
    # tiles of the input: its gradient is a convolution over them
    of_input = n * ceil(side / (t - taps + 1)) ** 2
    # the filter's gradient is a sum over those of the output
    of_output = n * ceil(out / (t - taps + 1)) ** 2

    def blocks(rows: int, columns: int, deep: int) -> tuple[tuple[int, int, int], int]:
        grid = (ceil(rows / 32), ceil(columns / 32), points)
        area = grid[0] * grid[1] * 32 * 32 if grids else rows * columns
        return grid, 4 * area * deep * points

    said = {"grad_input": blocks(of_input, c, k), "grad_weight": blocks(k, c, of_output)}
    works = [
        work("void fft2d_r2c_16x16<float>(float2*)", recognise("fft2d_r2c_16x16"), fadd=own // 50)
    ]
    expected = 0
    for way, (grid, multiplies) in said.items():
        if fourier in (way, "both"):
            works.append(
                work(
                    "ampere_gcgemm_32x32_nt",
                    recognise("ampere_gcgemm_32x32_nt"),
                    grid if grids else None,
                    ffma=multiplies,
                )
            )
            expected += multiplies
        else:
            works.append(
                work(f"k_{way}", Algorithm("conv", "c", direction=way), (7, 7, 1), ffma=own)
            )
            expected += own
    calls = tuple(call(1, way, macs=own, kind="Conv2d") for way in said)
    verdict = rules(backward(*works, calls=calls, forward=facts.forward, image=facts.image))["FFT"]
    assert verdict.factor == pytest.approx((expected + own // 50 / 2) / (2 * own))
    assert ("in complete blocks" in describe_cause(verdict)) is grids


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("void RNN_blockPersist_fp_LSTM<float, float, float, 128>(int)", True),
        ("void RNN_persist_fp<__half, __half, float, 3>(int)", True),
        ("void LSTM_elementWise_fp<float>(int)", False),
    ],
)
def test_a_persistent_recurrent_kernel_is_named_without_a_factor(name: str, told: bool) -> None:
    """All 25 steps of 5 samples in one launch, worked on as 8: how many it rounds up to is in no
    name, so nothing is predicted."""
    width, hidden, steps = 32, 128, 25
    inputs, recurrent = steps * 5 * 4 * hidden * width, steps * 4 * hidden * hidden
    calls = (call(1, macs=inputs + 5 * recurrent, kind="LSTM"),)
    works = (
        work("gemm", Algorithm("gemm", "gemm"), ffma=inputs),
        work(name, recognise(name), (16, 1, 1), ffma=8 * recurrent),
    )
    one = case(1, *works, calls=calls, kind="LSTM", counted=2 * (inputs + 8 * recurrent))
    found = rules(one)
    assert ("persistent RNN" in found) is told
    if told:
        said = found["persistent RNN"]
        assert (said.factor, said.explained, said.confidence) == (None, None, "plausible")
        assert amount(2 * 8 * recurrent) in describe_cause(said)
        assert unexplained_share(ratio_of(one), found.values()) == 1
    exact = replace(one, row=replace(one.row, counted=one.row.paper, ratio=1.0))
    assert "persistent RNN" not in rules(exact), "no gap"
    assert "persistent RNN" not in rules(replace(one, row=replace(one.row, kind="Conv2d"))), (
        "another layer's kernel"
    )


@pytest.mark.parametrize("again", [2, 3])
def test_one_layer_whose_gradients_ran_again_is_double_backward_and_the_others_are_not(
    again: int,
) -> None:
    def layer(name: str, times: int) -> list[RowEvidence]:
        forward = case(
            32,
            work(f"f{name}", FPROP, (9, 9, 1), ffma=32_000),
            layer=name,
            counted=PAPER,
            kind="Conv2d",
        )
        works = [
            work(
                f"gemm_{way}{name}",
                Algorithm("gemm", "gemm"),
                (3, 3, 1),
                ffma=32_000 * times,
                launches=times,
            )
            for way in "dw"
        ]
        calls = tuple(call(32, way, layer=name) for way in ("grad_input", "grad_weight"))
        return [
            forward,
            case(
                32,
                *works,
                layer=name,
                direction="backward",
                calls=calls,
                counted=2 * PAPER * times,
                kind="Conv2d",
            ),
        ]

    (f1, b1), (f2, b2), (f3, b3) = layer("a", again), layer("b", 1), layer("c", 1)
    said = rules(b1, f1, f2, b2, f3, b3)["extra calls"]
    assert said.factor == again
    assert (
        f"its gradients ran {again} times as often as its forward pass (double backward, or "
        "several losses)" in describe_cause(said)
    )
    assert not rules(b2, f1, b1, f2, f3, b3)
