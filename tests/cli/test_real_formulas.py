"""Formulas of the user's for the kernels of real ncu reports whose sizes are known."""

import json

import pytest

from tests.make.tables import table

SIDE, DEPTH = 20_480, 81_920
GARDENIA = {"M": SIDE, "N": SIDE, "K": DEPTH}


@table(
    "file sizes formula estimate ratio causes",
    {
        "a product of fp32": (
            "csv_long/gardenia_gemm_smsp_sass.csv",
            GARDENIA,
            "gemm*: flops=2*M*N*K",
            2 * SIDE * SIDE * DEPTH,
            1.0,
            ["constant moves"],
        ),
        "the same by tiles in shared memory": (
            "csv_long/gardenia_share_tile_smsp_sass.csv",
            GARDENIA,
            "*gemm*: flops=2*M*N*K",
            2 * SIDE * SIDE * DEPTH,
            1.0,
            ["constant moves"],
        ),
        "multiply-adds in place of FLOPs": (
            "csv_long/gardenia_gemm_smsp_sass.csv",
            GARDENIA,
            "gemm*: flops=M*N*K",
            SIDE * SIDE * DEPTH,
            2.0,
            ["wrong formula", "constant moves"],
        ),
        # seven launches; alpha scales each output
        "tensor cores": (
            "csv_long/wangzy_roofline_output.csv",
            {"N": SIDE},
            "*cutlass*: flops=2*N**3",
            7 * 2 * SIDE**3,
            1.0001,
            ["tensor cores"],
        ),
        "a stencil of which ncu counted fp32 only": (
            "console/heateq_ncu_fma_memory.txt",
            {"N": 1000},
            "heat_kernel_2d*: flops=29*(N-2)**2",
            100 * 29 * 998**2,
            1.0015,
            ["counter not collected"],
        ),
    },
)
def test_a_formula_meets_the_counters_of_a_real_report(
    file, sizes, formula, estimate, ratio, causes, perfctl, reports
):
    params = [word for name, size in sizes.items() for word in ("--param", f"{name}={size}")]
    perfctl("ingest", reports / "ncu" / file, *params, "--expect", formula).ok()
    rows = json.loads(perfctl("ledger", "--json").ok().out)["rows"]
    (row,) = (row for row in rows if row["kind"] == "formula")
    assert row["estimated_flops"] == estimate
    assert row["ratio"] == pytest.approx(ratio, abs=5e-5)
    assert [cause["rule"] for cause in row["causes"]] == causes
