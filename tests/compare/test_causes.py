"""Both sides aligned by layer, direction and algorithm, and what stands behind the change of each
place. Synthetic."""

import random
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from perfctl.orchestrator.compare.causes import (
    ALGORITHM,
    ARITHMETIC,
    GRIDS,
    KINDS,
    LAUNCHES,
    LEVELS,
    ONLY_A,
    ONLY_B,
    OTHER_KERNELS,
    SAME,
    _classify_change,
    align_layers_and_kernels,
    summarize_executed_kernels,
)
from perfctl.orchestrator.compare.compare import compare_two_sides
from perfctl.orchestrator.compare.quantities import SideFigure
from perfctl.orchestrator.counts.kernels.names import (
    choose_main_layer_algorithm,
    list_layer_algorithms,
)
from tests.make.synthetic import with_report
from tests.make.tables import table
from tests.make.two_sides import ENVIRONMENT, make_side, map_kernels, map_runs

WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
IMPLICIT = "volta_scudnn_128x64_relu_xregs_large_nn_v1"
WIDER = "volta_scudnn_128x128_relu_xregs_large_nn_v1"
TF32 = (
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4"
    "_tensor16x8x8_cudnn"
)
FP32 = (
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_ffma"
    "_cudnn"
)
SGEMM = "volta_sgemm_128x64_tn"


def net(label, names=MappingProxyType({}), *, took=80_000.0, seed=1, **changes):
    """3 repeats of conv1, conv2 and fc, whose kernels are given by their names."""
    kernels = {"conv1": IMPLICIT, "conv2": IMPLICIT, "fc": SGEMM, **names}
    times = {
        (layer, kernel): took if layer == "conv2" else 30_000.0 for layer, kernel in kernels.items()
    }
    made = make_side(label, 3, random.Random(seed), times=times, noise=0.001, **changes)
    return map_kernels(
        made, lambda kernel: kernel._replace(name=kernel.short_name or "", short_name=None), label
    )


def ran(**launches):
    return summarize_executed_kernels(
        [
            (name, SideFigure(1.0, None, 1.0, 1.0, 1, 1, 1, launches=count))
            for name, count in launches.items()
        ]
    )


def why(a, b):
    (pair,) = compare_two_sides(a, b).pairs
    return align_layers_and_kernels(pair)


def kinds(found):
    return {part.name: part.kind for part in found.parts}


@table(
    "before after kind instead",
    [
        (WINOGRAD, IMPLICIT, ALGORITHM, (("winograd F(2x2,3x3)",), ("implicit gemm",))),
        (FP32, TF32, ARITHMETIC, (("fp32",), ("tf32 tensor cores",))),
        (IMPLICIT, WIDER, OTHER_KERNELS, ((), ())),
        (IMPLICIT, IMPLICIT, SAME, ((), ())),
    ],
)
def test_the_kernels_of_a_layer_say_what_is_behind_its_change(before, after, kind, instead):
    found = why(net("A", {"conv2": before}), net("B", {"conv2": after}, took=100_000.0, seed=2))
    assert kinds(found) == {"conv1 forward": SAME, "conv2 forward": kind, "fc forward": SAME}
    assert found.by_layer and found.has_times_not_from_ncu and found.per_step
    (cause,) = (cause for cause in found.causes if cause.kind == kind)
    assert (cause.before, cause.after) == instead
    assert cause.change_ns == pytest.approx(100_000 - 80_000, rel=0.02)
    assert found.total_change_ns == pytest.approx(100_000 - 80_000, rel=0.02)
    assert found.launches_of_both == (3, 3)


def test_grids_launches_and_layers_of_one_side_are_told_apart():
    a = net("A")
    assert set(kinds(why(a, net("B", grid=8))).values()) == {GRIDS}

    def with_fc_twice(run):
        kernels = run.report.kernels
        return with_report(run, kernels=[*kernels, *(one for one in kernels if one.layer == "fc")])

    found = why(a, map_runs(a, with_fc_twice))
    assert kinds(found)["fc forward"] == LAUNCHES
    assert found.launches_of_both == (3, 4)
    found = why(
        a, map_kernels(a, lambda one: one._replace(layer="head") if one.layer == "fc" else one)
    )
    assert (kinds(found)["fc forward"], kinds(found)["head forward"]) == (ONLY_A, ONLY_B)
    assert sum(part.change or 0 for part in found.parts) == pytest.approx(0, abs=1)


def test_without_layers_all_ways_to_convolve_are_one_family():
    def bare(side):
        return map_kernels(side, lambda one: one._replace(layer=None, direction=None), side.label)

    found = why(bare(net("A", {"conv1": WINOGRAD, "conv2": WINOGRAD})), bare(net("B")))
    assert not found.by_layer
    assert {part.direction: part.kind for part in found.parts} == {
        "convolution": ALGORITHM,
        "GEMM": SAME,
    }


def test_two_kernels_whose_names_are_cut_alike_stay_two_rows():
    long = "void kernel_" + "x" * 200 + "<float, {}>(float*)"
    (pair,) = compare_two_sides(
        net("A", {"conv2": long.format(3)}), net("B", {"conv2": long.format(5)})
    ).pairs
    rows = [row for row in pair.rows if row.key.kernel.startswith("void kernel_")]
    assert len({row.key.kernel for row in rows}) == len({row.name for row in rows}) == 2


@table(
    "fact value names level",
    [
        ("cudnn", "9.99", {"conv2": WINOGRAD}, "likely"),
        ("cudnn", "9.99", {}, "unlikely"),
        ("cuda", "13.9", {"conv2": WINOGRAD}, "unlikely"),
        ("cuda", "13.9", {"fc": "volta_sgemm_64x64_tn"}, "likely"),
        ("tf32_conv", "on", {"conv2": WINOGRAD}, "unlikely"),
        ("torch", "2.99", {}, "unlikely"),
        ("torch", "2.99", {"fc": "void at::native::my_new_gemm_kernel<float>()"}, "likely"),
    ],
)
def test_a_difference_is_likely_where_its_kernels_changed(fact, value, names, level):
    (pair,) = compare_two_sides(
        net("A"), net("B", names, environment=ENVIRONMENT | {fact: value}), is_forced=True
    ).pairs
    (found,) = align_layers_and_kernels(pair).suspects
    assert (found.difference.fact, found.level) == (fact, level)
    assert found.why


def test_the_likeliest_differences_come_first():
    other = ENVIRONMENT | {"python": "3.99", "cudnn": "9.99", "cuda": "13.9"}
    (pair,) = compare_two_sides(net("A"), net("B", {"conv2": WINOGRAD}, environment=other)).pairs
    found = align_layers_and_kernels(pair).suspects
    assert found[0].difference.fact == "cudnn"
    assert [LEVELS.index(one.level) for one in found] == sorted(
        LEVELS.index(one.level) for one in found
    )


def test_a_layer_s_algorithms_are_those_of_its_arithmetic_and_a_product_between_transforms_is_none_of_its_own():
    def algorithms(*names):
        executed = ran(**dict.fromkeys(names, 1))
        return executed and executed.algorithms

    parts = ("void winograd_nonfused::winogradForwardData4x4<float>()", SGEMM)
    assert algorithms(*parts) == (choose_main_layer_algorithm(parts).method,)
    assert algorithms(IMPLICIT, "void cudnn::ops::nchwToNhwcKernel<float>()") == ("implicit gemm",)
    assert [one.method for one in list_layer_algorithms([IMPLICIT, SGEMM])] == [
        "implicit gemm",
        "gemm",
    ]
    assert algorithms() is None


def test_the_documentation_has_every_kind_of_change():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "compare.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert [kind for kind in KINDS if kind not in text] == ["no kernels recorded"]


def test_a_fact_that_one_side_did_not_record_is_never_a_likely_cause():
    """Winograd ran in B, so another cuDNN is likely, and one that A did not record only possible:
    it may be the same."""
    without = {fact: value for fact, value in ENVIRONMENT.items() if fact != "cudnn"}
    (pair,) = compare_two_sides(net("A", environment=without), net("B", {"conv2": WINOGRAD})).pairs
    (found,) = align_layers_and_kernels(pair).suspects
    assert (found.difference.fact, found.level, found.why) == (
        "cudnn",
        "possible",
        "A did not record it, so it may be the same",
    )


def test_no_difference_is_ranked_where_nothing_was_compared():
    (pair,) = compare_two_sides(
        net("A"), net("B", environment=ENVIRONMENT | {"cudnn": "9.99", "python": "3.99"})
    ).pairs
    alone = replace(pair, rows=tuple(replace(row, before=None) for row in pair.rows))
    assert {(one.level, one.why) for one in align_layers_and_kernels(alone).suspects} == {
        ("not ranked", "nothing to compare")
    }


def test_a_layer_that_only_copied_did_not_change_its_algorithm():
    flash = ran(**{"flash_fwd_kernel<Flash_fwd_kernel_traits<128>>": 1})
    copy = ran(direct_copy_kernel_cuda=1)
    assert _classify_change(flash, copy) == ONLY_A and _classify_change(copy, flash) == ONLY_B


def test_launches_that_one_side_lacks_are_fewer_launches_and_not_other_kernels():
    whole, cut = ran(tile_a=6, tile_b=4), ran(tile_a=6)
    assert _classify_change(whole, cut) == _classify_change(cut, whole) == LAUNCHES
    assert _classify_change(whole, ran(tile_a=10)) == OTHER_KERNELS, (
        "tile_a took the place of tile_b"
    )
