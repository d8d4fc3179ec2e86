"""FLOPs and bytes of AMD GPUs: from counters made up here, and from real ones whose matrix shapes
are known."""

from __future__ import annotations

import csv
from contextlib import suppress
from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.counters.amd import is_amd_run
from perfctl.orchestrator.counts.counters.work import compute_amd_flops, compute_flops_by_launch
from perfctl.orchestrator.counts.counters.work import compute_dram_bytes as bytes_of
from perfctl.records.report import Device
from tests.make import synthetic
from tests.make.tables import table

VALU = "SQ_INSTS_VALU_{}_{}"
MOPS = "SQ_INSTS_VALU_MFMA_MOPS_{}"
MI300X = Device("AMD Instinct MI300X", "gpu", 0, "gfx942", 304)


def counts(**valu):
    """All vector counters: F32=(ADD, MUL, TRANS, FMA), those not given 0; and all matrix
    counters, 0."""
    found: dict[str, float | None] = {}
    for kind in ("F16", "F32", "F64"):
        found |= dict(
            zip(
                (VALU.format(op, kind) for op in ("ADD", "MUL", "TRANS", "FMA")),
                valu.get(kind, (0,) * 4),
                strict=True,
            )
        )
    return found | {MOPS.format(kind): 0 for kind in ("F16", "BF16", "F32", "F64", "I8")}


@table("kind path", [("F16", "fp16"), ("F32", "fp32"), ("F64", "fp64")])
def test_a_wave_instruction_is_64_lanes_and_a_multiply_add_two_flops(kind, path):
    found = compute_amd_flops(counts(**{kind: (1000, 200, 30, 4)}), "gfx942")
    figure = getattr(found, path)
    assert figure.value == 64 * (1000 + 200 + 30 + 2 * 4) == found.total.value
    assert figure.state == "estimated"
    assert "too many if lanes are masked" in figure.reason
    assert found.tensor.value == 0


def test_no_instruction_at_all_is_a_counted_zero():
    found = compute_amd_flops(counts(), "gfx90a")
    assert (found.total.value, found.total.state) == (0, "counted")


def test_one_count_of_the_matrix_cores_is_512_operations_by_type_and_integers_are_no_flops():
    values = counts() | {
        MOPS.format("F16"): 7,
        MOPS.format("BF16"): 5,
        MOPS.format("F64"): 3,
        MOPS.format("XF32"): 2,
        MOPS.format("F8"): 11,
        MOPS.format("I8"): 13,
    }
    found = compute_amd_flops(values, "gfx942")
    assert (found.tensor.value, found.tensor.state) == (512 * (7 + 5 + 3 + 2 + 11), "counted")
    types = {kind: figure.value for kind, figure in found.tensor_types}
    assert types == {
        "fp16": 512 * 7,
        "bf16": 512 * 5,
        "fp32": 0,
        "fp64": 512 * 3,
        "fp8": 512 * 11,
        "tf32": 512 * 2,
    }
    assert found.total.value == found.tensor.value


def test_without_multiply_adds_a_vector_type_has_no_count_and_the_total_is_a_lower_bound():
    values = counts(F32=(9, 9, 9, 9)) | {MOPS.format("BF16"): 4}
    del values[VALU.format("FMA", "F32")]
    found = compute_amd_flops(values, "gfx942")
    assert found.fp32.value is None
    assert "SQ_INSTS_VALU_FMA_F32" in (found.fp32.reason or "")
    assert (found.total.value, found.total.missing) == (512 * 4, ("fp32",))


def test_matrix_counters_of_some_types_alone_are_a_lower_bound_and_zeros_of_them_say_nothing():
    some = compute_amd_flops({MOPS.format("BF16"): 4, MOPS.format("F16"): 0}, None).tensor
    assert (some.value, some.missing) == (512 * 4, ("matrix fp32", "matrix fp64"))
    assert compute_amd_flops({MOPS.format("F16"): 0}, None).tensor.value is None


@table("chip state", [("gfx1151", "refused"), ("gfx1201", "refused"), ("gfx942", "estimated")])
def test_waves_of_rdna_have_no_known_number_of_lanes(chip, state):
    assert compute_amd_flops(counts(F32=(1, 1, 1, 1)), chip).fp32.state == state


def test_a_chip_whose_counters_tell_no_types_apart_says_so():
    found = compute_amd_flops({"SQ_INSTS_VALU": 5}, "gfx908")
    assert (found.fp32.state, found.total.value) == ("not_available", None)
    assert compute_amd_flops({"SQ_INSTS_VALU": 5}, "gfx906").tensor.value == 0, (
        "Vega 20 has no matrix cores"
    )


READS = {"TCC_EA0_RDREQ_sum": 100, "TCC_EA0_RDREQ_32B_sum": 10}
WRITES = {"TCC_EA0_WRREQ_sum": 50, "TCC_EA0_WRREQ_64B_sum": 40}
WRITTEN = 40 * 64 + (50 - 40) * 32
BYTES = 30 * 128 + (100 - 30 - 10) * 64 + 10 * 32 + WRITTEN
OLDER = {name.replace("EA0", "EA"): value for name, value in (READS | WRITES).items()}
SIZES = {"FETCH_SIZE": 2048, "WRITE_SIZE": 1024}


@table(
    "chip values expected state is_lower_bound",
    {
        "no reads of 128": ("gfx90a", OLDER, 90 * 64 + 10 * 32 + WRITTEN, "counted", False),
        "TCC_BUBBLE": ("gfx942", {"TCC_BUBBLE_sum": 30}, BYTES, "counted", False),
        "no sum": (None, {"TCC_BUBBLE[0]": 12, "TCC_BUBBLE[1]": 18}, BYTES, "counted", False),
        "an absent counter is not 0": ("gfx942", {}, None, "not_collected", False),
        "it is no TCC_BUBBLE": ("gfx950", {"TCC_BUBBLE_sum": 0}, None, "not_collected", False),
        "reads of 128 before FETCH_SIZE": (
            "gfx950",
            {"TCC_BUBBLE_sum": 0, "TCC_EA0_RDREQ_128B_sum": 30} | SIZES,
            BYTES,
            "counted",
            False,
        ),
        "FETCH_SIZE of gfx950": ("gfx950", SIZES, 2048 + 1024, "counted", True),
        "FETCH_SIZE": ("gfx942", SIZES, 2048 + 1024, "counted", False),
        "no writes": ("gfx942", {"FETCH_SIZE": 2}, None, "not_collected", False),
    },
)
def test_bytes_are_requests_times_their_sizes_by_chip(
    chip, values, expected, state, is_lower_bound
):
    figure = bytes_of(values if values is OLDER else READS | WRITES | values, chip)
    assert (figure.value, figure.state, figure.lower_bound) == (expected, state, is_lower_bound)
    assert bytes_of({}, chip).value is None


def test_a_run_is_of_amd_by_its_tool_or_its_device():
    run = synthetic.make_run(1)
    assert not is_amd_run(run)
    assert is_amd_run(replace(run, profiler="rocprofv3"))
    assert is_amd_run(replace(run, device=Device(None, "gpu", 0, "gfx942")))
    assert is_amd_run(replace(run, device=Device("AMD Instinct MI210", "gpu")))
    assert not is_amd_run(replace(run, device=Device("AMD EPYC 7V13", "cpu")))


def launches_of(path):
    """Names and counters of each launch; counters of channels ("TCC_EA_RDREQ[0]") are added up, as
    rocprofv3 does."""
    names, values = list[str](), list[dict[str, float | None]]()
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found: dict[str, float | None] = {}
            for name, cell in row.items():
                key = f"{name.partition('[')[0]}_sum" if "[" in name else name
                if key == name or key not in row:
                    with suppress(ValueError):
                        found[key] = float(cell) + (found.get(key) or 0)
            names.append(row["Kernel_Name"])
            values.append(found)
    return names, values


def test_real_matrix_counters_are_the_multiply_adds_of_the_products(shared):
    """150 calls of 128 products of 128 x 512 x 128 in bf16, by the command line of the same
    repository's other recording."""
    names, values = launches_of(shared / "reports/rocm/omniperf/hgliu_mi300x_pmc_perf.csv")
    found = [compute_amd_flops(mine, "gfx942") for mine in values]
    products = [
        flops for name, flops in zip(names, found, strict=True) if "matrix_multiplication" in name
    ]
    assert len(products) == 150
    assert {flops.tensor.value for flops in products} == {2 * 128 * 128 * 512 * 128}
    assert {dict(flops.tensor_types)["bf16"].value for flops in products} == {
        2 * 128 * 128 * 512 * 128
    }
    assert {
        flops.total.value for name, flops in zip(names, found, strict=True) if "matrix" not in name
    } == {0}


@table("chip", ["MI200", "MI300X_A1"])
def test_a_real_copy_of_a_million_doubles_moves_16_mib_and_multiplies_nothing(chip, shared):
    _, (first, *others) = launches_of(
        shared / f"reports/rocm/omniperf/rocprofiler_compute_kernel/{chip}/pmc_perf.csv"
    )
    whole = bytes_of(first).value
    assert whole == pytest.approx(2 * 8 * 1048576, rel=0.02)
    for values in others:  # caches may still hold a part of what the launch before wrote
        assert 0.5 * whole < (bytes_of(values).value or 0) < 1.02 * whole
        assert compute_amd_flops(values, "gfx90a").total.value == 0


def test_flops_of_a_run_follow_its_tool_and_chip():
    run = synthetic.make_run(1, profiler="rocprofv3", device=MI300X)
    values = counts(F64=(1, 0, 0, 0))
    assert compute_flops_by_launch(run, {0: values})[0].fp64.value == 64
