"""Rates of chips, links and clocks of boards, entered a second time from the data sheets: a slip of
one digit in either is seen. test_devices compares the other figures with the page of devices."""

import pytest

from perfctl.orchestrator.counts.hardware.machines import (
    GPUS,
    compute_peak_flops,
    find_architecture_by_capability,
    find_gpu_product,
)

NVLINK = {
    "P100 SXM2": 4 * 20,
    "V100 SXM2": 6 * 25,
    "A100 SXM4 40 GB": 12 * 25,
    "A100 SXM4 80 GB": 12 * 25,
    "H100 SXM5": 18 * 25,
    "H800 SXM5": 8 * 25,
    "H200 SXM": 18 * 25,
    "B200": 18 * 50,
    "B300": 18 * 50,
}
"""Links times GB/s one way of each."""
EIGHT_LANES = {"A2", "A16 (one of four)", "RTX 4060", "RTX 4060 Ti", "RTX 5060", "RTX 5060 Ti"}
PCIE = {6: 3, 7: 3, 8: 4, 9: 5, 10: 5, 12: 5}
"""Major number of the compute capability -> generation of PCIe."""
CORES = {
    "6.0": 64,
    "6.1": 128,
    "7.0": 64,
    "7.5": 64,
    "8.0": 64,
    "8.6": 128,
    "8.9": 128,
    "9.0": 128,
    "10.0": 128,
    "10.3": 128,
    "12.0": 128,
}
"""fp32 cores of one SM."""
DOUBLES = {
    "6.0": 32,
    "6.1": 4,
    "7.0": 32,
    "7.5": 2,
    "8.0": 32,
    "8.6": 2,
    "8.9": 2,
    "9.0": 64,
    "10.0": 64,
    "10.3": 2,
    "12.0": 2,
}
"""fp64 units of one SM."""
HALVES = {
    "6.0": 2,
    "6.1": 1 / 64,
    "7.0": 2,
    "7.5": 2,
    "8.0": 4,
    "8.6": 1,
    "8.9": 1,
    "9.0": 2,
    "10.0": 2,
    "10.3": None,
    "12.0": 1,
}
"""fp16 rate of the ordinary pipes, in fp32 rates."""
TENSOR = {
    # capability: tensor cores of an SM x fp16 multiply-adds of each in a cycle, and the rates of
    # the others beside fp16
    "7.0": (8 * 64, {}),
    "7.5": (8 * 64, {"int8": 2}),
    "8.0": (4 * 256, {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp64": 1 / 16}),
    "8.6": (4 * 128, {"bf16": 1, "tf32": 1 / 2, "int8": 2}),
    "8.9": (4 * 128, {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp8": 2}),
    "9.0": (4 * 512, {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp8": 2, "fp64": 1 / 16}),
    "10.0": (4 * 1024, {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp8": 2}),
    "10.3": (4 * 1024, {"bf16": 1, "tf32": 1 / 2, "fp8": 2}),
}
CONSUMER = {
    # GeForce: fp32 accumulation at half the rate of the server chip, integers and fp8 with fp16
    # sums at the full one
    "RTX 2070": {"fp16": 512, "int8": 2048},
    "RTX 3090": {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048},
    "L40": {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 1024, "fp8": 1024},
    "RTX 4090": {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048, "fp8": 1024},
    "RTX 5090": {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048, "fp8": 1024},
    "RTX PRO 6000 Blackwell Workstation": {
        "fp16": 1024,
        "bf16": 1024,
        "tf32": 512,
        "int8": 2048,
        "fp8": 2048,
    },
    "A10G": {"fp16": 512, "bf16": 512, "tf32": 256},
    "T1200 Laptop": {},
}
TENSOR_MHZ = {
    "H100 PCIe": 1620,
    "H100 NVL": 1545,
    "H100 SXM5": 1830,
    "H800 PCIe": 1620,
    "H800 SXM5": 1830,
    "H200 NVL": 1545,
    "H200 SXM": 1830,
    "GH200 480 GB": 1830,
    "GH200 144 GB": 1830,
    "B200": 1860,
    "B300": 1860,
}


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_link_is_nvlink_or_its_lanes_of_pcie(gpu):
    """8, 16, 32 GT/s for each lane, 128 of 130 bits: GB/s one way."""
    if gpu.name in NVLINK:
        assert (gpu.link, gpu.link_gbs) == ("NVLink", NVLINK[gpu.name])
        return
    generation = PCIE[int(gpu.capability.partition(".")[0])]
    lanes = 8 if gpu.name in EIGHT_LANES else 16
    assert gpu.link == f"PCIe {generation} x{lanes}"
    assert gpu.link_gbs == pytest.approx(lanes * 2**generation * 128 / 130 / 8, rel=0.001)


def test_tensor_cores_have_a_clock_of_their_own_on_hopper_and_blackwell():
    assert {gpu.name: gpu.tensor_mhz for gpu in GPUS if gpu.tensor_mhz is not None} == TENSOR_MHZ


@pytest.mark.parametrize("capability", CORES)
def test_an_sm_does_two_flops_a_unit_and_cycle(capability):
    chip = find_architecture_by_capability(capability)
    assert chip is not None
    single = 2 * CORES[capability]
    halves = HALVES[capability]
    assert (chip.fp32, chip.fp64) == (single, 2 * DOUBLES[capability])
    assert chip.fp16 == (None if halves is None else single * halves)
    adds, beside = TENSOR.get(capability, (0, {}))
    assert dict(chip.tensor) == (
        {"fp16": 2 * adds} | {kind: 2 * adds * share for kind, share in beside.items()}
        if adds
        else {}
    )


@pytest.mark.parametrize("name", CONSUMER)
def test_a_board_with_tensor_cores_of_another_rate_takes_its_own(name):
    gpu = next(gpu for gpu in GPUS if gpu.name == name)
    peaks = compute_peak_flops(gpu)
    cycles = gpu.sms * gpu.boost_mhz * 1e6
    assert {path: peak for path, peak in peaks.items() if path.startswith("tensor")} == {
        f"tensor {kind}": rate * cycles for kind, rate in CONSUMER[name].items()
    }


def test_tensor_peaks_are_at_their_own_published_clock_but_fp64_is_not():
    gpu = find_gpu_product("NVIDIA H100 80GB HBM3")
    assert gpu is not None
    published = compute_peak_flops(gpu)
    assert published["tensor fp16"] == 132 * 4096 * 1830e6
    assert published["tensor fp64"] == 132 * 256 * 1980e6
    assert published["fp32"] == 132 * 256 * 1980e6
