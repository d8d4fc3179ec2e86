"""Kernel names of public profiles, 2017 to 2026, are classified as what they are.

``tests/data/names-algorithms/public.csv`` has the names with their sources (repository and file, or
the number of an issue or pull request), and what each is, written down before the product was
asked. Names that a source cuts off, or that are longer than 1,500 characters, are shortened or
closed. "-" says nothing about a field, an empty field says that the name does not tell.
"""

import csv
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels.names import read_tensor_instruction, recognise_kernel
from tests.make.tables import table

FILE = Path(__file__).resolve().parents[2] / "data" / "names-algorithms" / "public.csv"
ROWS = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("row", ROWS, ids=[row["name"][:60] for row in ROWS])
def test_a_name_of_a_public_profile_is_classified_right(row):
    found = recognise_kernel(row["name"])
    told = {
        "family": found.family or "",
        "tensor_core": {True: "yes", False: "no", None: ""}[found.tensor_core],
        "math": found.math or "",
        "tile": "x".join(str(side) for side in found.tile or () if side),
        "role": found.role,
        "direction": found.direction or "",
    }
    assert told | {field: "-" for field, said in row.items() if said == "-"} == {
        field: row[field] for field in told
    }


@table(
    "name shape",
    [
        (
            "cutlass3x_sm90_tensorop_h64x128x16gemm_f16_f16_f16_void_f16_128x128x64_1x1x1_0_nnn",
            "h64x128x16",
        ),
        ("gemmuniversal<cute::mma_atom<cute::sm90_64x256x16_f16f16f16_ss<x>>>", "h64x256x16"),
        (
            (
                "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize256x128x32_stage4_gmmastage2"
                "_hgmma64x128x8"
            ),
            "s64x128x8",
        ),
        ("cutlass_tensorop_gz884gemm_64x64_8x3_nn_align1", "gz884"),
        ("fmha_cutlassf_f32_aligned_64x64_rf_sm75", None),
        ("fmha_cutlassf_f16_aligned_64x64_rf_sm70", "s884"),
        (
            (
                "gemm<mmatensoroppolicy<cutlass::arch::mma<cutlass::gemm::gemmshape<(int)16, "
                "(int)8, (int)8>, (int)32, cutlass::half_t, cutlass::layout::rowmajor, "
                "cutlass::half_t, cutlass::layout::columnmajor, float, cutlass::layout::rowmajor, "
                "x>>>"
            ),
            "s1688",
        ),
        (
            (
                "gemm<mmatensoroppolicy<mma<gemmshape<16, 16, 4>, 32, half_t, rowmajor, half_t, "
                "rowmajor, float, rowmajor, x>>>"
            ),
            "s884",
        ),
    ],
)
def test_a_name_states_the_instruction_of_the_tensor_cores(name, shape):
    assert read_tensor_instruction(name) == shape


def test_reduce_scatter_is_a_collective_whose_part_is_no_reduction_of_a_product():
    found = recognise_kernel(
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    )
    assert (found.family, found.role) == ("collective", "main")
