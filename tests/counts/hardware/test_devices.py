"""The table of devices against figures that others publish."""

from __future__ import annotations

import re
from math import inf

import pytest

from perfctl.orchestrator.counts.hardware.machines import (
    AMD,
    ARCHITECTURES,
    GPUS,
    compute_peak_flops,
    find_gpu_product,
    list_ambiguous_gpu_candidates,
)
from perfctl.orchestrator.counts.hardware.peaks import find_peaks
from perfctl.orchestrator.estimate.memory import CAPABILITIES
from perfctl.records.report import Device
from tests.make.tables import table

T = 1e12
PUBLISHED: dict[str, dict[str, float]] = {
    "Tesla P100-SXM2-16GB": {"fp32": 10.6, "fp64": 5.3, "fp16": 21.2},
    "Tesla P100-PCIE-16GB": {"fp32": 9.3, "fp64": 4.7, "fp16": 18.7},
    "Tesla P40": {"fp32": 11.76},
    "NVIDIA GeForce GTX 1080 Ti": {"fp32": 11.34},
    "Tesla V100-SXM2-32GB": {"fp32": 15.7, "fp64": 7.8, "tensor fp16": 125},
    "Tesla V100-PCIE-16GB": {"fp32": 14, "fp64": 7, "tensor fp16": 112},
    "Tesla V100S-PCIE-32GB": {"fp32": 16.4, "fp64": 8.2, "tensor fp16": 130},
    "NVIDIA TITAN V": {"fp32": 14.9},
    "Tesla T4": {"fp32": 8.1, "tensor fp16": 65, "tensor int8": 130},
    "NVIDIA GeForce RTX 2080 Ti": {"fp32": 13.4, "tensor fp16": 53.8},
    "NVIDIA TITAN RTX": {"fp32": 16.3, "tensor fp16": 130.5},
    "NVIDIA A100-SXM4-80GB": {
        "fp32": 19.5,
        "fp64": 9.7,
        "fp16": 78,
        "tensor fp16": 312,
        "tensor bf16": 312,
        "tensor tf32": 156,
        "tensor int8": 624,
        "tensor fp64": 19.5,
    },
    "NVIDIA A30": {
        "fp32": 10.3,
        "fp64": 5.2,
        "tensor fp16": 165,
        "tensor tf32": 82,
        "tensor int8": 330,
    },
    "NVIDIA A10": {"fp32": 31.2, "tensor fp16": 125, "tensor tf32": 62.5, "tensor int8": 250},
    "NVIDIA A40": {"fp32": 37.4, "tensor fp16": 149.7, "tensor tf32": 74.8, "tensor int8": 299.3},
    "NVIDIA RTX A6000": {"fp32": 38.7, "tensor fp16": 154.8, "tensor tf32": 77.4},
    "NVIDIA GeForce RTX 3090": {
        "fp32": 35.6,
        "tensor fp16": 71,
        "tensor tf32": 35.6,
        "tensor int8": 284,
    },
    "NVIDIA L4": {"fp32": 30.3, "tensor fp16": 121, "tensor tf32": 60, "tensor fp8": 242.5},
    "NVIDIA L40": {
        "fp32": 90.5,
        "tensor fp16": 181.05,
        "tensor tf32": 90.5,
        "tensor fp8": 362,
        "tensor int8": 362,
    },
    "NVIDIA L40S": {"fp32": 91.6, "tensor fp16": 362.05, "tensor tf32": 183, "tensor fp8": 733},
    "NVIDIA RTX 6000 Ada Generation": {"fp32": 91.1, "tensor fp8": 728.5},
    "NVIDIA GeForce RTX 4090": {
        "fp32": 82.6,
        "tensor fp16": 165.2,
        "tensor tf32": 82.6,
        "tensor int8": 660.6,
    },
    "NVIDIA H100 PCIe": {"fp32": 51.2, "tensor fp16": 756, "tensor tf32": 378, "tensor fp8": 1513},
    "NVIDIA H100 NVL": {"fp32": 60, "tensor fp16": 835.5, "tensor tf32": 417.5, "tensor fp8": 1671},
    "NVIDIA H100 80GB HBM3": {
        "fp32": 66.9,
        "fp64": 33.5,
        "tensor fp16": 989.4,
        "tensor tf32": 494.7,
        "tensor fp8": 1978.9,
        "tensor fp64": 66.9,
    },
    "NVIDIA H800": {
        "fp32": 67,
        "fp64": 1.05,
        "tensor tf32": 494.5,
        "tensor bf16": 989.5,
        "tensor fp8": 1979,
        "tensor fp64": 1.05,
    },
    "NVIDIA H800 PCIe": {
        "fp32": 51,
        "fp64": 0.8,
        "tensor tf32": 378,
        "tensor bf16": 756.5,
        "tensor fp8": 1513,
    },
    "NVIDIA H200": {"fp32": 67, "fp64": 34, "tensor bf16": 989.5, "tensor fp8": 1979},
    "NVIDIA GH200 480GB": {"fp32": 67, "fp64": 34, "tensor fp16": 990},
    "NVIDIA B200": {"fp32": 75, "tensor bf16": 2250, "tensor fp8": 4500},
    "NVIDIA B300 SXM6 AC": {"tensor tf32": 1125, "tensor bf16": 2250, "tensor fp8": 4500},
    "NVIDIA A10G": {"fp32": 35, "tensor tf32": 35, "tensor fp16": 70},
    "NVIDIA A16": {"fp32": 4.5, "tensor tf32": 9, "tensor fp16": 17.9, "tensor int8": 35.9},
    "NVIDIA RTX A4000": {"fp32": 19.2, "tensor fp16": 153.4 / 2},
    "NVIDIA T1200 Laptop GPU": {"fp32": 3.66},
    "Quadro RTX 6000": {"fp32": 16.3, "tensor fp16": 130.5},
    "NVIDIA GeForce RTX 3070": {
        "fp32": 20.3,
        "tensor fp16": 40.6,
        "tensor tf32": 20.3,
        "tensor int8": 162.6,
    },
    "NVIDIA GeForce RTX 4080": {"fp32": 48.7, "tensor fp16": 97.5, "tensor int8": 389.9},
    "NVIDIA GeForce RTX 5080": {"fp32": 56.3, "tensor fp16": 112.6},
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": {
        "fp32": 126.0,
        "tensor tf32": 251.9,
        "tensor fp16": 503.8,
        "tensor fp8": 1007.6,
        "tensor int8": 1007.6,
    },
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": {"fp32": 110},
    "NVIDIA GeForce RTX 5090": {
        "fp32": 104.8,
        "tensor fp16": 209.5,
        "tensor fp8": 419,
        "tensor int8": 838,
    },
    "AMD Instinct MI50": {"fp32": 13.3, "fp64": 6.6, "fp16": 26.5},
    "AMD Instinct MI60": {"fp32": 14.7, "fp64": 7.4, "fp16": 29.5},
    "AMD Instinct MI100": {
        "fp32": 23.1,
        "fp64": 11.5,
        "tensor fp32": 46.1,
        "tensor fp16": 184.6,
        "tensor bf16": 92.3,
        "tensor int8": 184.6,
    },
    "AMD Instinct MI210": {
        "fp32": 22.6,
        "fp64": 22.6,
        "tensor fp64": 45.3,
        "tensor fp32": 45.3,
        "tensor fp16": 181,
        "tensor bf16": 181,
        "tensor int8": 181,
    },
    "AMD Instinct MI250": {
        "fp32": 45.3 / 2,
        "fp64": 45.3 / 2,
        "tensor fp64": 90.5 / 2,
        "tensor fp16": 362.1 / 2,
    },
    "AMD Instinct MI250X": {
        "fp32": 47.9 / 2,
        "fp64": 47.9 / 2,
        "tensor fp32": 95.7 / 2,
        "tensor bf16": 383 / 2,
    },
    "AMD Instinct MI300A": {
        "fp32": 122.6,
        "fp64": 61.3,
        "tensor fp64": 122.6,
        "tensor tf32": 490.3,
        "tensor fp16": 980.6,
    },
    "AMD Instinct MI300X": {
        "fp32": 163.4,
        "fp64": 81.7,
        "tensor fp64": 163.4,
        "tensor fp32": 163.4,
        "tensor tf32": 653.7,
        "tensor bf16": 1307.4,
        "tensor fp8": 2614.9,
        "tensor int8": 2614.9,
    },
    "AMD Instinct MI325X": {"fp32": 163.4, "tensor fp16": 1307.4, "tensor fp8": 2614.9},
    "AMD Instinct MI350X": {
        "fp32": 144.2,
        "fp64": 72.1,
        "tensor fp64": 72.1,
        "tensor fp16": 2306.9,
        "tensor fp8": 4613.7,
        "tensor fp4": 9227.5,
    },
    "AMD Instinct MI355X": {
        "fp32": 157.3,
        "fp64": 78.6,
        "tensor fp64": 78.6,
        "tensor fp16": 2516.6,
        "tensor fp8": 5033.2,
        "tensor fp6": 10066.3,
        "tensor fp4": 10066.3,
    },
}
"""Device name as the driver gives it -> TFLOP/s of the vendor's data sheets and white papers, dense
(docs/reference/devices.md)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_units_times_clock_comes_out_at_the_published_figures(name):
    gpu = find_gpu_product(name)
    assert gpu is not None
    worked = compute_peak_flops(gpu)
    for path, published in PUBLISHED[name].items():
        assert worked[path] == pytest.approx(published * T, rel=0.02), path


@table(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "",
        None,
        "NVIDIA GeForce RTX 4090 D",
        "AMD Instinct MI200",
        "AMD Radeon VII",
        "Tesla K80",
        "Tesla",
        "NVIDIA Graphics Device",
        "GPU 0",
    ],
)
def test_a_slice_a_laptop_part_or_an_unknown_name_is_not_guessed(name):
    assert find_gpu_product(name) is None
    assert list_ambiguous_gpu_candidates(name) == ()


def test_every_product_is_of_a_known_architecture_and_named_once():
    every = (*GPUS, *AMD)
    assert {gpu.capability for gpu in every} <= {chip.capability for chip in ARCHITECTURES}
    assert len({gpu.name for gpu in every}) == len(every)
    assert all(len(gpu.source) > 8 for gpu in every), "every row names its data sheet"
    assert {chip.name for chip in ARCHITECTURES} == {
        "Pascal",
        "Volta",
        "Turing",
        "Ampere",
        "Ada",
        "Hopper",
        "Blackwell",
        "Blackwell Ultra",
        "Vega 20",
        "CDNA",
        "CDNA 2",
        "CDNA 3",
        "CDNA 4",
    }


def test_a_name_without_form_factor_gets_no_roof_but_the_products_it_may_be():
    assert [gpu.name for gpu in list_ambiguous_gpu_candidates("Tesla V100")] == [
        "V100 SXM2",
        "V100 PCIe",
    ]
    assert [gpu.name for gpu in list_ambiguous_gpu_candidates("NVIDIA A100-SXM4")] == [
        "A100 SXM4 40 GB",
        "A100 SXM4 80 GB",
    ]
    assert list_ambiguous_gpu_candidates("Tesla V100-SXM2-16GB") == (), "that is one product"
    found = find_peaks(Device("Tesla V100", "gpu"))
    assert not found.has_flop_peaks and found.reason is not None
    assert '"Tesla V100" may be V100 SXM2 or V100 PCIe, whose peaks differ' in found.reason


def test_a_laptop_gpu_and_a_slice_have_no_peaks_and_each_says_why():
    laptop, slice_ = (
        find_peaks(Device(name, "gpu", 0, "8.9", 58, clock_hz=2_000_000_000))
        for name in ("NVIDIA GeForce RTX 4080 Laptop GPU", "NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    )
    assert not laptop.has_flop_peaks and "is a laptop GPU, whose vendor sets its clock" in (
        laptop.reason or ""
    )
    assert not slice_.has_flop_peaks and "is a slice of a GPU" in (slice_.reason or "")


@pytest.mark.parametrize("name", CAPABILITIES)
def test_the_names_that_memory_knows_have_the_capability_of_the_boards_they_name(name):
    major, minor = CAPABILITIES[name]
    named = [gpu for gpu in GPUS if re.match(rf"{name}(?!\d)", gpu.name.lower().replace(" ", ""))]
    assert {gpu.capability for gpu in named} == {f"{major}.{minor}"}


def test_an_amd_gpu_that_names_no_product_gets_the_peaks_of_its_compute_units():
    """What Omniperf calls an MI200: 104 CUs at 1700 MHz, 128 FLOPs a CU and cycle in fp32 and
    in fp64."""
    found = find_peaks(
        Device("AMD Instinct MI200", "gpu", 0, "gfx90a", 104, clock_hz=1_700_000_000)
    )
    assert found.flops == {"fp32": 128 * 104 * 1.7e9, "fp64": 128 * 104 * 1.7e9}, (
        "no data sheet states fp16 on vectors"
    )
    assert "104 CUs x 1700 MHz" in found.source
    assert "gfx90a" in found.source


@pytest.mark.parametrize("gpu", (*GPUS, *AMD), ids=lambda gpu: gpu.name)
def test_tf32_is_there_from_ampere_on_alone_and_never_slower_than_fp32(gpu):
    peaks = compute_peak_flops(gpu)
    has = gpu.capability == "gfx942" or (
        not gpu.capability.startswith("gfx") and float(gpu.capability) >= 8.0
    )
    assert ("tensor tf32" in peaks) == has
    assert peaks.get("tensor tf32", peaks["fp32"]) >= peaks["fp32"]
    assert peaks.get("tensor fp16", inf) >= peaks.get("tensor tf32", 0.0)
