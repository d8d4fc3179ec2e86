"""GPUs from Pascal to Blackwell: what each can do at most, dense, worked out from units x clock.

FLOP/s = SMs x FLOPs an SM does in a cycle x clock, so that a locked or capped clock gives its own peak. Sources and
the published figures that these come out at stand in docs/devices.md; a figure without a sure source is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

TENSOR = ("fp16", "bf16", "tf32", "int8", "fp8", "fp64")
"""Input types of the tensor cores; their paths are called "tensor fp16" and so on."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one SM does in one cycle. FLOPs: 1 multiply-add = 2. Tensor rates are dense, with fp32 accumulation."""

    name: str
    capability: str
    fp32: int
    fp64: int
    fp16: int
    """On the ordinary pipes (HFMA2), not the tensor cores."""
    tensor: Mapping[str, int] = field(default_factory=dict)
    """Of the chips sold for servers and workstations; GeForce ones of the same capability may do half."""


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("Pascal", "6.0", 128, 64, 256),
    Architecture("Pascal", "6.1", 256, 8, 4),
    Architecture("Volta", "7.0", 128, 64, 256, {"fp16": 1024}),
    Architecture("Turing", "7.5", 128, 4, 256, {"fp16": 1024, "int8": 2048}),
    Architecture("Ampere", "8.0", 128, 64, 512, {"fp16": 2048, "bf16": 2048, "tf32": 1024, "int8": 4096, "fp64": 128}),
    Architecture("Ampere", "8.6", 256, 4, 256, {"fp16": 1024, "bf16": 1024, "tf32": 512, "int8": 2048}),
    Architecture("Ada", "8.9", 256, 4, 256, {"fp16": 1024, "bf16": 1024, "tf32": 512, "int8": 2048, "fp8": 2048}),
    Architecture(
        "Hopper", "9.0", 256, 128, 512,
        {"fp16": 4096, "bf16": 4096, "tf32": 2048, "int8": 8192, "fp8": 8192, "fp64": 256},
    ),
    Architecture(
        "Blackwell", "10.0", 256, 128, 512, {"fp16": 8192, "bf16": 8192, "tf32": 4096, "int8": 16384, "fp8": 16384}
    ),
    Architecture("Blackwell", "12.0", 256, 4, 256, {}),
)  # fmt: skip

_GEFORCE_TURING = {"fp16": 512, "int8": 2048}
_GEFORCE_AMPERE = {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048}
_HALF_ADA = {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 1024, "fp8": 1024}
_GEFORCE_ADA = {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048, "fp8": 1024}
_GEFORCE_BLACKWELL = {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048, "fp8": 1024}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One product. Clocks in MHz, bandwidth in GB/s."""

    name: str
    pattern: str
    """Regular expression, found anywhere in the lower-case name that nvidia-smi, nsys, ncu and torch give."""
    capability: str
    sms: int
    boost_mhz: int
    bandwidth_gbs: float
    tensor_mhz: int | None = None
    """Clock at which the published tensor figures come out, where it is not the boost clock."""
    tensor: Mapping[str, int] | None = None
    """FLOPs an SM does in a cycle, where they differ from the architecture's."""


GPUS: tuple[Gpu, ...] = (
    Gpu("P100 PCIe 16 GB", r"p100-pcie-16gb", "6.0", 56, 1303, 732),
    Gpu("P100 PCIe 12 GB", r"p100-pcie-12gb", "6.0", 56, 1303, 549),
    Gpu("P100 SXM2", r"p100-sxm2", "6.0", 56, 1480, 732),
    Gpu("P40", r"tesla p40\b", "6.1", 30, 1531, 346),
    Gpu("P4", r"tesla p4\b", "6.1", 20, 1113, 192),
    Gpu("GTX 1080 Ti", r"gtx 1080 ti\b", "6.1", 28, 1582, 484),
    Gpu("V100 SXM2", r"v100-sxm2-(16|32)gb", "7.0", 80, 1530, 900),
    Gpu("V100 PCIe", r"v100-pcie-(16|32)gb", "7.0", 80, 1370, 900),
    Gpu("V100S", r"v100s-pcie", "7.0", 80, 1597, 1134),
    Gpu("Titan V", r"titan v\b", "7.0", 80, 1455, 652.8),
    Gpu("T4", r"\bt4\b", "7.5", 40, 1590, 320),
    Gpu("RTX 2070 Super", r"rtx 2070 super", "7.5", 40, 1770, 448, tensor=_GEFORCE_TURING),
    Gpu("RTX 2070", r"rtx 2070$", "7.5", 36, 1620, 448, tensor=_GEFORCE_TURING),
    Gpu("RTX 2080 Ti", r"rtx 2080 ti", "7.5", 68, 1545, 616, tensor=_GEFORCE_TURING),
    Gpu("Titan RTX", r"titan rtx", "7.5", 72, 1770, 672),
    Gpu("A100 PCIe 40 GB", r"a100-pcie-40gb", "8.0", 108, 1410, 1555),
    Gpu("A100 SXM4 40 GB", r"a100-sxm4?-40gb", "8.0", 108, 1410, 1555),
    Gpu("A100 SXM4 80 GB", r"a100-sxm4?-80gb", "8.0", 108, 1410, 2039),
    Gpu("A100 PCIe 80 GB", r"a100[ -]80gb[ -]pcie|a100-pcie-80gb", "8.0", 108, 1410, 1935),
    Gpu("A30", r"\ba30\b", "8.0", 56, 1440, 933),
    Gpu("A10", r"\ba10\b", "8.6", 72, 1695, 600),
    Gpu("A40", r"\ba40\b", "8.6", 84, 1740, 696),
    Gpu("RTX A6000", r"rtx a6000", "8.6", 84, 1800, 768),
    Gpu("RTX A5000", r"rtx a5000$", "8.6", 64, 1695, 768),
    Gpu("RTX 3080 10 GB", r"rtx 3080$", "8.6", 68, 1710, 760, tensor=_GEFORCE_AMPERE),
    Gpu("RTX 3090", r"rtx 3090$", "8.6", 82, 1695, 936, tensor=_GEFORCE_AMPERE),
    Gpu("L4", r"\bl4\b", "8.9", 58, 2040, 300),
    Gpu("L40", r"\bl40\b", "8.9", 142, 2490, 864, tensor=_HALF_ADA),
    Gpu("L40S", r"\bl40s\b", "8.9", 142, 2520, 864),
    Gpu("RTX 6000 Ada", r"rtx 6000 ada", "8.9", 142, 2505, 960),
    Gpu("RTX 4090", r"rtx 4090$", "8.9", 128, 2520, 1008, tensor=_GEFORCE_ADA),
    Gpu("H100 PCIe", r"h100 pcie", "9.0", 114, 1755, 2039, 1620),
    Gpu("H100 NVL", r"h100 nvl", "9.0", 132, 1785, 3938, 1545),
    Gpu("H100 SXM5", r"h100 80gb hbm3|h100.sxm", "9.0", 132, 1980, 3352, 1830),
    Gpu("H200 NVL", r"h200 nvl", "9.0", 132, 1785, 4800, 1545),
    Gpu("H200 SXM", r"\bh200\b", "9.0", 132, 1980, 4800, 1830),
    Gpu("GH200 480 GB", r"gh200 480gb", "9.0", 132, 1980, 4000, 1830),
    Gpu("B200", r"\bb200\b", "10.0", 148, 1965, 8000, 1860),
    Gpu("RTX 5070", r"rtx 5070$", "12.0", 48, 2512, 672, tensor=_GEFORCE_BLACKWELL),
    Gpu("RTX 5090", r"rtx 5090$", "12.0", 170, 2407, 1792, tensor=_GEFORCE_BLACKWELL),
)


def find(name: str | None) -> Gpu | None:
    """The product behind a device name; None when the name is not in the table, or is a slice (MIG) of one."""
    if not name or sliced(name):
        return None
    lowered = " ".join(name.lower().split())
    return next((gpu for gpu in GPUS if re.search(gpu.pattern, lowered)), None)


_MAKER = re.compile(r"\b(nvidia|tesla|geforce|quadro)\b")


def candidates(name: str | None) -> tuple[Gpu, ...]:
    """Products that a name without form factor or memory may mean: "Tesla V100" is three. Empty when it is found."""
    if find(name) is not None or sliced(name):
        return ()
    said = " ".join(re.findall(r"[a-z0-9]+", _MAKER.sub(" ", (name or "").lower())))
    start = re.compile(rf"{said}(?![a-z0-9])")
    return tuple(gpu for gpu in GPUS if re.search(r"\d", said) and start.match(gpu.name.lower()))


def sliced(name: str | None) -> bool:
    """True for a slice of a GPU (MIG, vGPU) and for laptop parts, whose clocks the table does not know."""
    return bool(re.search(r"\bmig\b|laptop|mobile|max-q|\bgrid\b", (name or "").lower()))


def architecture(capability: str | None) -> Architecture | None:
    """Of a compute capability such as "8.6"; None when it is not in the table."""
    return next((item for item in ARCHITECTURES if item.capability == capability), None)


def flops_per_second(gpu: Gpu, *, clock_hz: float | None = None) -> dict[str, float]:
    """path ("fp32", "tensor tf32", ...) -> FLOP/s, dense; at ``clock_hz`` where given, else at the published clocks."""
    chip = architecture(gpu.capability)
    assert chip is not None
    plain = gpu.sms * (clock_hz or gpu.boost_mhz * 1e6)
    tensor = gpu.sms * (clock_hz or (gpu.tensor_mhz or gpu.boost_mhz) * 1e6)
    found: dict[str, float] = {"fp32": chip.fp32 * plain, "fp64": chip.fp64 * plain, "fp16": chip.fp16 * plain}
    rates = chip.tensor if gpu.tensor is None else gpu.tensor
    for kind in TENSOR:
        if kind in rates:  # fp64 on tensor cores runs at the boost clock, the others may not
            found[f"tensor {kind}"] = rates[kind] * (plain if kind == "fp64" else tensor)
    return found
