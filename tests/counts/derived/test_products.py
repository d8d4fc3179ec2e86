"""What library kernels of products execute follows from name, grid and shape: values worked out
from the dimensions."""

from dataclasses import replace
from math import ceil

import pytest

from perfctl.orchestrator.counts.derived.records import Launch, LaunchWork
from perfctl.orchestrator.counts.derived.rules import derive_instructions
from perfctl.orchestrator.counts.kernels.grids import GemmShape
from tests.make.tables import table


def counts(launch, m, n, k, *, onto=False, batch=1):
    """FFMA, FMUL and FADD."""
    derived = derive_instructions(launch, LaunchWork(GemmShape(m, n, k, batch), onto=onto))
    return derived and (derived.ffma, derived.fmul, derived.fadd)


SGEMM = Launch("ampere_sgemm_128x64_tn")
SPLIT = Launch("ampere_sgemm_32x128_tn", (2, 8, 15), reduced=False)
"""983 x 49, a sum of 1,024 in 15 parts, of which the shorter last one is padded by itself: 2 x 8
tiles of 32 x 128."""
DEEP = 14 * 72 + 64
SLICED = Launch("ampere_sgemm_32x32_sliced1x4_tn", (32, 1, 5))
CUTLASS = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nn_align1>(P)"
XMMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
    "_execute_kernel__5x_cublas"
)
EPILOGUE = "void {}globalKernel<8, 32, float, float, float, true, true, 1>(int, int)"
GEMM_SN = "void gemmSN_TN_kernel_64addr<float, 128, 16, 2, 4, 6, 7, false, X>(Y)"
GEMV = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, X>(Y)"
DOT = "void dot_kernel<float, 128, 0, X>(Y)"


@table(
    "launch sizes onto expected",
    {
        # ceil(200 / 128) tiles of 128 outputs, ceil(100 / 64) of 64 rows
        "tiles and steps of eight": (
            SGEMM,
            (100, 200, 36),
            False,
            (256 * 128 * 40, 256 * 128, 0),
        ),
        "another grid": (replace(SGEMM, grid=(7, 7, 1)), (100, 200, 36), False, None),
        "another name": (Launch("my_own_gemm"), (100, 200, 36), False, None),
        "a bias is a multiply-add for each value": (
            Launch("ampere_sgemm_64x64_tn"),
            (64, 64, 64),
            True,
            (64 * 64 * (64 + 1), 64 * 64, 0),
        ),
        # 14 further parts are added to what is there
        "a sum in parts": (
            SPLIT,
            (983, 49, 1024),
            False,
            (64 * 1024 * (DEEP + 14), 64 * 1024 * 15, 0),
        ),
        "a sum in parts with a bias": (
            SPLIT,
            (983, 49, 1024),
            True,
            (64 * 1024 * (DEEP + 14 + 1), 64 * 1024 * 15, 0),
        ),
        # it adds up the parts, and the bias
        "a splitKreduce follows": (
            replace(SPLIT, reduced=True),
            (983, 49, 1024),
            True,
            (64 * 1024 * DEEP, 64 * 1024 * 15, 0),
        ),
        "15 x 983 x 49 values fit into 4 MiB": (
            replace(SPLIT, reduced=None),
            (983, 49, 1024),
            True,
            (64 * 1024 * DEEP, 64 * 1024 * 15, 0),
        ),
        "15 x 2,008 x 49 values do not": (
            replace(SPLIT, reduced=None, grid=(2, 16, 15)),
            (2008, 49, 1024),
            True,
            (64 * 2048 * (DEEP + 14 + 1), 64 * 2048 * 15, 0),
        ),
        "FMUL says the parts where a report has no grid": (
            replace(SPLIT, grid=None, reduced=None, scale=64 * 1024 * 15.0),
            (983, 49, 1024),
            False,
            (64 * 1024 * DEEP, 64 * 1024 * 15, 0),
        ),
        "slices share a tile and are added up at the end": (
            SLICED,
            (26, 1024, 512),
            False,
            (
                32 * 1024 * 5 * ceil(ceil(512 / 5) / 32) * 32,
                32 * 1024 * 4 * 5,
                32 * 1024 * 3 * 5,
            ),
        ),
        # 4 x 2 tiles; two and four rows of them beside each other
        **{
            f"CUTLASS in {columns} columns": (
                Launch(CUTLASS, (columns, 8 // columns or 1, 1)),
                (300, 500, 100),
                False,
                (512 * 512 * 104, 512 * 512, 0),
            )
            for columns in (4, 8, 16)
        },
        "CUTLASS, another grid": (Launch(CUTLASS, (7, 1, 1)), (300, 500, 100), False, None),
        **{
            f"a bias epilogue {spelled}": (
                Launch(EPILOGUE.format(spelled), (2, 2, 1)),
                (64, 10, 128),
                True,
                (0, 0, 2 * 2 * 8 * 32),
            )
            for spelled in ("epilogue::", "cublasLt::epilogue::impl::")
        },
        "an epilogue of another grid": (
            Launch(EPILOGUE.format("epilogue::"), (2, 3, 1)),
            (64, 10, 128),
            True,
            None,
        ),
        "an epilogue without a bias": (
            Launch(EPILOGUE.format("epilogue::"), (2, 2, 1)),
            (64, 10, 128),
            False,
            None,
        ),
        # outputs in steps of 8
        "gemmSN fills few rows up to its columns": (
            Launch(GEMM_SN),
            (11, 98, 1024),
            True,
            (12 * 98 * 1024 + 11 * 98, 11 * 104 * 1024 / 8, 12 * 98 * (16 + 64) - 98),
        ),
        "a vector": (
            Launch(GEMV),
            (1, 101, 4096),
            False,
            (101 * 4096, 104 * 4096 / 8, 101 * (31 + 16 * (4096 // 512 - 1))),
        ),
        "a vector in four parts": (
            Launch(GEMV, (512, 1, 4)),
            (1, 512, 8192),
            False,
            (512 * 8192, 512 * 8192 / 8, 512 * 4 * (31 + 16 * (2048 // 512 - 1))),
        ),
        "a dot product": (Launch(DOT), (1, 60, 512), False, (60 * 512, 0, None)),
        "additions of a dot product follow from its blocks": (
            Launch(DOT, (7, 1, 60)),
            (1, 60, 512),
            False,
            (60 * 512, 0, 7 * 60 * 127),
        ),
    },
)
def test_a_product_counts_by_name_grid_and_shape_or_has_no_rule(launch, sizes, onto, expected):
    assert counts(launch, *sizes, onto=onto) == expected


@table(
    "launch sizes",
    {
        "parts of xmma that wait for splitKreduce": (
            Launch(XMMA, (2, 4, 3), reduced=True),
            (100, 200, 96),
        ),
        "a dot product without its blocks": (Launch(DOT), (1, 60, 512)),
    },
)
def test_what_is_known_in_part_has_no_sum(launch, sizes):
    derived = derive_instructions(launch, LaunchWork(GemmShape(*sizes)))
    assert derived is not None and derived.ffma and derived.fp32_flops is None


REDUCTION = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float{}>(P)"
TRAITS = {
    "words": ", true, {}, false",
    "casts": ", (bool)1, (bool){}, (bool)0",
    "words of CUDA 13": ", false, float, float, float, true, {}, false, false",
    "numbers of CUDA 13": ", 0, float, float, float, 1, {}, 0, 0",
}


@table("bias", [False, True])
@pytest.mark.parametrize("traits", TRAITS)
def test_the_parts_of_a_sum_are_added_up_with_the_bias_in_every_spelling(traits, bias):
    """16 rows of 128 outputs in 32 parts, counted on an H100."""
    text = TRAITS[traits].format(str(bias).lower() if "words" in traits else int(bias))
    product = "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(T1::Params)"
    launch = Launch(REDUCTION.format(text), (4, 1, 1), before=Launch(product, (2, 1, 32)))
    assert counts(launch, 16, 128, 9216) == (0, 16 * 128, 16 * 128 * (32 + bias))


@table(
    "before rows",
    {
        "the parts are not known": (None, 40),
        "of another product": (replace(SLICED, grid=(8, 2, 4)), 80),
    },
)
def test_a_reduction_without_its_product_has_no_rule(before, rows):
    name = REDUCTION.format(TRAITS["words"].format("false"))
    assert counts(Launch(name, (64, 1, 1), before=before), rows, 256, 256) is None
