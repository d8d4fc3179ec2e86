"""The tables of boards and chips, entered a second time from the data sheets: a slip of one digit
in either is seen."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.counts.hardware.machines import (
    BOARDS,
    GPUS,
    architecture,
    find,
    flops_per_second,
    meant,
    nearest,
)

GEN3, GEN4, GEN5 = ("PCIe 3 x16", 15.75), ("PCIe 4 x16", 31.5), ("PCIe 5 x16", 63.0)
GEN4X8, GEN5X8 = ("PCIe 4 x8", 15.75), ("PCIe 5 x8", 31.5)
"""16 or 8 lanes, 8, 16, 32 GT/s each, 128 of 130 bits, rounded: GB/s one way."""


def nvlink(links: int, each: float) -> tuple[str, float]:
    """Links times GB/s one way of each."""
    return "NVLink", links * each


CARDS = {
    # name: CUDA cores, boost MHz, GB/s of the memory, W, link, MiB of L2
    "P100 PCIe 16 GB": (3584, 1303, 732, 250, GEN3, 4),
    "P100 PCIe 12 GB": (3584, 1303, 549, 250, GEN3, 3),
    "P100 SXM2": (3584, 1480, 732, 300, nvlink(4, 20), 4),
    "P40": (3840, 1531, 346, 250, GEN3, 3),
    "P4": (2560, 1113, 192, 75, GEN3, 2),
    "GTX 1080 Ti": (3584, 1582, 484, 250, GEN3, 2.75),
    "V100 SXM2": (5120, 1530, 900, 300, nvlink(6, 25), 6),
    "V100 PCIe": (5120, 1370, 900, 250, GEN3, 6),
    "V100S": (5120, 1597, 1134, 250, GEN3, 6),
    "Titan V": (5120, 1455, 652.8, 250, GEN3, 4.5),
    "T4": (2560, 1590, 320, 70, GEN3, 4),
    "RTX 2070 Super": (2560, 1770, 448, 215, GEN3, 4),
    "RTX 2070": (2304, 1620, 448, 175, GEN3, 4),
    "RTX 2080 Ti": (4352, 1545, 616, 250, GEN3, 5.5),
    "Titan RTX": (4608, 1770, 672, 280, GEN3, 6),
    "A100 PCIe 40 GB": (6912, 1410, 1555, 250, GEN4, 40),
    "A100 SXM4 40 GB": (6912, 1410, 1555, 400, nvlink(12, 25), 40),
    "A100 SXM4 80 GB": (6912, 1410, 2039, 400, nvlink(12, 25), 40),
    "A100 PCIe 80 GB": (6912, 1410, 1935, 300, GEN4, 40),
    "A30": (3584, 1440, 933, 165, GEN4, 24),
    "A10": (9216, 1695, 600, 150, GEN4, 6),
    "A40": (10752, 1740, 696, 300, GEN4, 6),
    "RTX A6000": (10752, 1800, 768, 300, GEN4, 6),
    "RTX A5000": (8192, 1695, 768, 230, GEN4, 6),
    "RTX 3080 10 GB": (8704, 1710, 760, 320, GEN4, 5),
    "RTX 3090": (10496, 1695, 936, 350, GEN4, 6),
    "L4": (7424, 2040, 300, 72, GEN4, 48),
    "L40": (18176, 2490, 864, 300, GEN4, 96),
    "L40S": (18176, 2520, 864, 350, GEN4, 96),
    "RTX 6000 Ada": (18176, 2505, 960, 300, GEN4, 96),
    "RTX 4090": (16384, 2520, 1008, 450, GEN4, 72),
    "H100 PCIe": (14592, 1755, 2039, 350, GEN5, 50),
    "H100 NVL": (16896, 1785, 3938, 400, GEN5, 50),
    "H100 SXM5": (16896, 1980, 3352, 700, nvlink(18, 25), 50),
    "H800 PCIe": (14592, 1755, 2039, 350, GEN5, 50),
    "H800 SXM5": (16896, 1980, 3352, 700, nvlink(8, 25), 50),
    "H200 NVL": (16896, 1785, 4800, 600, GEN5, 50),
    "H200 SXM": (16896, 1980, 4800, 700, nvlink(18, 25), 50),
    "GH200 480 GB": (16896, 1980, 4000, None, GEN5, None),
    "B200": (18944, 1965, 8000, 1000, nvlink(18, 50), 126),
    "RTX 5070": (6144, 2512, 672, 250, GEN5, 48),
    "RTX 5090": (21760, 2407, 1792, 575, GEN5, 96),
    "GTX 1070": (1920, 1683, 256, 150, GEN3, 2),
    "GTX 1080": (2560, 1733, 320, 180, GEN3, 2),
    "Titan Xp": (3840, 1582, 547.7, 250, GEN3, 3),
    "T1200 Laptop": (1024, 1785, 192, 95, GEN3, 1),
    "RTX 2060": (1920, 1680, 336, 160, GEN3, 3),
    "RTX 2060 Super": (2176, 1650, 448, 175, GEN3, 4),
    "RTX 2080": (2944, 1710, 448, 215, GEN3, 4),
    "RTX 2080 Super": (3072, 1815, 496, 250, GEN3, 4),
    "Quadro RTX 4000": (2304, 1545, 416, 160, GEN3, 4),
    "Quadro RTX 5000": (3072, 1815, 448, 265, GEN3, 4),
    "Quadro RTX 6000": (4608, 1770, 672, 295, GEN3, 6),
    "Quadro RTX 8000": (4608, 1770, 672, 295, GEN3, 6),
    "A10G": (10240, 1710, 600, 300, GEN4, 6),
    "A2": (1280, 1770, 200, 60, GEN4X8, 2),
    "A16 (one of four)": (1280, 1755, 200, None, GEN4X8, 2),
    "RTX A4000": (6144, 1560, 448, 140, GEN4, 4),
    "RTX A4500": (7168, 1650, 640, 200, GEN4, 6),
    "RTX A5500": (10240, 1665, 768, 230, GEN4, 6),
    "RTX 3060 12 GB": (3584, 1777, 360, 170, GEN4, 3),
    "RTX 3060 Ti": (4864, 1665, 448, 200, GEN4, 4),
    "RTX 3070": (5888, 1725, 448, 220, GEN4, 4),
    "RTX 3070 Ti": (6144, 1770, 608, 290, GEN4, 4),
    "RTX 3080 Ti": (10240, 1665, 912, 350, GEN4, 6),
    "RTX 3090 Ti": (10752, 1860, 1008, 450, GEN4, 6),
    "RTX 4000 Ada": (6144, 2175, 360, 130, GEN4, 48),
    "RTX 4500 Ada": (7680, 2580, 432, 210, GEN4, 48),
    "RTX 5000 Ada": (12800, 2550, 576, 250, GEN4, 72),
    "RTX 4060": (3072, 2460, 272, 115, GEN4X8, 24),
    "RTX 4060 Ti": (4352, 2535, 288, 165, GEN4X8, 32),
    "RTX 4070": (5888, 2475, 504, 200, GEN4, 36),
    "RTX 4070 Super": (7168, 2475, 504, 220, GEN4, 48),
    "RTX 4070 Ti": (7680, 2610, 504, 285, GEN4, 48),
    "RTX 4070 Ti Super": (8448, 2610, 672, 285, GEN4, 48),
    "RTX 4080": (9728, 2505, 716.8, 320, GEN4, 64),
    "RTX 4080 Super": (10240, 2550, 736, 320, GEN4, 64),
    "GH200 144 GB": (16896, 1980, 4900, None, GEN5, None),
    "B300": (18944, 2032, 8000, 1400, nvlink(18, 50), 126),
    "RTX 5060": (3840, 2497, 448, 145, GEN5X8, 32),
    "RTX 5060 Ti": (4608, 2572, 448, 180, GEN5X8, 32),
    "RTX 5070 Ti": (8960, 2452, 896, 300, GEN5, 48),
    "RTX 5080": (10752, 2617, 960, 360, GEN5, 64),
    "RTX PRO 6000 Blackwell Workstation": (24064, 2617, 1792, 600, GEN5, 128),
    "RTX PRO 6000 Blackwell Max-Q Workstation": (24064, 2280, 1792, 300, GEN5, 128),
}
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
MEMORIES = {
    4: {"T1200 Laptop"},
    6: {"RTX 2060"},
    8: {
        "P4",
        "GTX 1070",
        "GTX 1080",
        "RTX 2060 Super",
        "RTX 2070 Super",
        "RTX 2070",
        "RTX 2080",
        "RTX 2080 Super",
        "Quadro RTX 4000",
        "RTX 3060 Ti",
        "RTX 3070",
        "RTX 3070 Ti",
        "RTX 4060",
        "RTX 4060 Ti 8 GB",
        "RTX 5060",
        "RTX 5060 Ti 8 GB",
    },
    10: {"RTX 3080 10 GB"},
    11: {"GTX 1080 Ti", "RTX 2080 Ti"},
    12: {
        "P100 PCIe 12 GB",
        "Titan V",
        "Titan Xp",
        "RTX 3060 12 GB",
        "RTX 3080 Ti",
        "RTX 4070",
        "RTX 4070 Super",
        "RTX 4070 Ti",
        "RTX 5070",
    },
    16: {
        "P100 PCIe 16 GB",
        "P100 SXM2",
        "T4",
        "V100 SXM2 16 GB",
        "V100 PCIe 16 GB",
        "Quadro RTX 5000",
        "A2",
        "A16 (one of four)",
        "RTX A4000",
        "RTX 4060 Ti 16 GB",
        "RTX 4070 Ti Super",
        "RTX 4080",
        "RTX 4080 Super",
        "RTX 5060 Ti 16 GB",
        "RTX 5070 Ti",
        "RTX 5080",
    },
    20: {"RTX A4500", "RTX 4000 Ada"},
    24: {
        "P40",
        "Titan RTX",
        "Quadro RTX 6000",
        "A30",
        "A10",
        "A10G",
        "RTX A5000",
        "RTX A5500",
        "RTX 3090",
        "RTX 3090 Ti",
        "L4",
        "RTX 4090",
        "RTX 4500 Ada",
    },
    32: {"V100 SXM2 32 GB", "V100 PCIe 32 GB", "V100S", "RTX 5090", "RTX 5000 Ada"},
    40: {"A100 PCIe 40 GB", "A100 SXM4 40 GB"},
    48: {"A40", "RTX A6000", "L40", "L40S", "RTX 6000 Ada", "Quadro RTX 8000"},
    80: {"A100 SXM4 80 GB", "A100 PCIe 80 GB", "H100 PCIe", "H100 SXM5", "H800 PCIe", "H800 SXM5"},
    94: {"H100 NVL"},
    96: {
        "GH200 480 GB",
        "RTX PRO 6000 Blackwell Workstation",
        "RTX PRO 6000 Blackwell Max-Q Workstation",
    },
    141: {"H200 NVL", "H200 SXM"},
    144: {"GH200 144 GB"},
    180: {"B200"},
    288: {"B300"},
}


def test_every_product_has_the_cores_clock_bandwidth_power_link_and_cache_of_its_data_sheet() -> (
    None
):
    worked = {}
    for gpu in GPUS:
        # 2 FLOPs a core and cycle
        cores = flops_per_second(gpu)["fp32"] / (2 * gpu.boost_mhz * 1e6)
        assert gpu.sms * CORES[gpu.capability] == round(cores)
        worked[gpu.name] = (
            round(cores),
            gpu.boost_mhz,
            gpu.bandwidth_gbs,
            gpu.power_w,
            (gpu.link, gpu.link_gbs),
            gpu.l2_mb,
        )
    assert worked == CARDS
    assert {gpu.name: gpu.tensor_mhz for gpu in GPUS if gpu.tensor_mhz is not None} == TENSOR_MHZ


def test_every_board_has_its_memory() -> None:
    worked: dict[int, set[str]] = {}
    for board in BOARDS:
        if board.gpu in GPUS:
            worked.setdefault(board.memory_gb, set()).add(board.name)
    assert worked == MEMORIES
    assert [board.gpu.link_gbs for board in meant("P100")] == [15.75, 15.75, 80]


@pytest.mark.parametrize("capability", CORES)
def test_an_sm_does_two_flops_a_unit_and_cycle(capability: str) -> None:
    chip = architecture(capability)
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
def test_a_board_with_tensor_cores_of_another_rate_takes_its_own(name: str) -> None:
    gpu = next(gpu for gpu in GPUS if gpu.name == name)
    peaks = flops_per_second(gpu)
    cycles = gpu.sms * gpu.boost_mhz * 1e6
    assert {path: peak for path, peak in peaks.items() if path.startswith("tensor")} == {
        f"tensor {kind}": rate * cycles for kind, rate in CONSUMER[name].items()
    }


def test_tensor_peaks_are_at_their_own_published_clock_but_fp64_and_a_locked_clock_are_not() -> (
    None
):
    gpu = find("NVIDIA H100 80GB HBM3")
    assert gpu is not None
    published = flops_per_second(gpu)
    assert published["tensor fp16"] == 132 * 4096 * 1830e6
    assert published["tensor fp64"] == 132 * 256 * 1980e6
    assert published["fp32"] == 132 * 256 * 1980e6
    locked = flops_per_second(gpu, clock_hz=1e9)
    assert (locked["tensor fp16"], locked["tensor fp64"]) == (132 * 4096 * 1e9, 132 * 256 * 1e9)


def test_the_nearest_names_are_four_at_most_unless_more_are_asked_for() -> None:
    assert len(nearest("A100")) == 4
    assert len(nearest("A100", 1)) == 1
    assert nearest("geforce 2070 rtx suuper")[0] == "RTX 2070 Super"
