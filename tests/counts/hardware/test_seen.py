"""Whether two runs can have seen the same GPU, and how fast the fastest GPU of a name is."""

import pytest

from perfctl.orchestrator.counts.hardware.peaks import (
    RecordedGpu,
    find_fastest_gpu_and_flop_rate,
    find_recorded_gpu,
    has_contradicting_records,
)
from perfctl.records.report import Device, MemoryFigure, Sample
from tests.make import synthetic
from tests.make.tables import table

MIB = 1 << 20


def gpu(name=None, mib=None, capability=None):
    return RecordedGpu(name, mib and mib * MIB, capability)


@table(
    "one other",
    [
        (gpu("Tesla V100", 16_384), gpu(None, 40_960)),
        (gpu("Tesla V100", 16_384), gpu("Tesla V100", 32_768)),
        (gpu(None, 10_240), gpu(None, 12_288)),  # the nearest sizes of one product
        (gpu(None, None, "7.0"), gpu(None, None, "8.0")),
        (gpu("Tesla V100-SXM2-16GB"), gpu("Tesla V100-PCIE-16GB")),
        (gpu("Tesla V100"), gpu("Tesla T4")),
        (gpu("NVIDIA Unheard 1"), gpu("NVIDIA Other 2")),
        (gpu("NVIDIA A100-SXM4-40GB"), gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb")),
    ],
)
def test_records_that_rule_out_one_gpu_contradict(one, other):
    assert has_contradicting_records(one, other) and has_contradicting_records(other, one)


@table(
    "one other",
    [
        (gpu("Tesla V100", 16_384), gpu("Tesla V100", 16_384)),
        (gpu(None, 40_536), gpu(None, 40_960)),  # with ECC's and the driver's share taken off
        (gpu("Tesla T4", 15_109), gpu("Tesla T4", 16_384)),
        (gpu("Tesla V100"), gpu("Tesla V100-SXM2-16GB", 16_160)),
        (gpu("NVIDIA A100-SXM4-40GB"), gpu("A100-SXM4-40GB")),
        (gpu("Tesla V100"), gpu(None, 40_960)),  # no record gives the first one's memory
        (gpu(None, 40_960), gpu(None, None, "7.0")),
        (gpu("NVIDIA Unheard 1"), gpu("Unheard 1 16GB")),
    ],
)
def test_equal_unknown_and_reserved_memory_contradict_nothing(one, other):
    assert not has_contradicting_records(one, other) and not has_contradicting_records(other, one)


def test_memory_comes_from_the_device_else_from_figures_else_from_samples():
    nameless = Device(None, "gpu")
    figure = (
        MemoryFigure("after", "device_total", 40_960 * MIB),
        MemoryFigure("after", "device_free", 7 * MIB),
    )
    sample = (Sample(0, None, None, 24_000 * MIB, None, None, None),)
    named = Device("Tesla V100", "gpu", memory_bytes=16_384 * MIB)
    make = synthetic.make_run
    assert find_recorded_gpu(make(device=named, memory=figure)) == gpu("Tesla V100", 16_384)
    assert find_recorded_gpu(make(device=nameless, memory=figure)) == gpu(None, 40_960)
    assert find_recorded_gpu(make(device=nameless, samples=sample)) == gpu(None, 24_000)
    assert find_recorded_gpu(make(device=nameless)) is None
    assert find_recorded_gpu(make(device=synthetic.CPU, memory=figure)) is None


def test_no_gpu_of_the_name_and_memory_is_faster():
    """FP32: 80 SMs x 64 multiply-adds x 2 FLOP at a boost clock of 1,530 MHz is the V100 SXM2;
    1,597 MHz the V100S with 32 GB."""
    found = find_fastest_gpu_and_flop_rate(gpu("Tesla V100", 16_384), "fp32")
    assert found is not None
    product, rate = found
    assert (product.name, rate) == ("V100 SXM2", 80 * 64 * 2 * 1_530e6)


def test_fp32_may_be_tf32_where_the_chip_has_it():
    tf32, fp16 = (
        find_fastest_gpu_and_flop_rate(gpu("NVIDIA A100-SXM4-40GB"), precision)
        for precision in ("fp32", "fp16")
    )
    assert tf32 is not None and fp16 is not None
    assert tf32[1] == pytest.approx(fp16[1] / 2) and tf32[1] == pytest.approx(156e12, rel=0.01)


def test_fp32_of_an_amd_gpu_may_run_on_its_matrix_cores():
    """MI210: 104 CUs x 256 FLOP a cycle at 1,700 MHz, twice what its vectors do."""
    found = find_fastest_gpu_and_flop_rate(gpu("AMD Instinct MI210"), "fp32")
    assert found is not None and found[1] == 104 * 256 * 1_700e6


@table(
    "seen precision",
    [
        (None, "fp32"),
        (gpu(None, 40_960), "fp32"),
        (gpu("Tesla V100"), None),
        (gpu("NVIDIA Unheard 1"), "fp32"),
    ],
)
def test_without_a_product_or_a_precision_no_peak_is_named(seen, precision):
    assert find_fastest_gpu_and_flop_rate(seen, precision) is None
