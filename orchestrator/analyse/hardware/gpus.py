"""GPUs from Pascal to Blackwell: peaks, worked out from units x clock, and data sheets.

FLOP/s = SMs x FLOPs per SM and cycle x clock, so a locked or capped clock gives its own peak. docs/devices.md states sources
and the published figures; figures without a reliable source are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

TENSOR = ("fp16", "bf16", "tf32", "int8", "fp8", "fp64")
"""Input types of the tensor cores; the paths are "tensor fp16" and so on."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """FLOPs of one SM in one cycle (1 multiply-add = 2). Tensor rates are dense, with fp32 accumulation."""

    name: str
    capability: str
    fp32: int
    fp64: int
    fp16: int
    """Without tensor cores (HFMA2)."""
    tensor: Mapping[str, int] = field(default_factory=dict)
    """Of server and workstation chips; GeForce chips of the same capability may have half."""


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

PCIE_3, PCIE_4, PCIE_5 = 15.75, 31.5, 63.0
"""GB/s one way of 16 lanes."""


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Memory, power, link and cache of one product."""

    memory_gb: tuple[int, ...]
    """One for each variant of the product."""
    power_w: int | None
    """Highest board power; None if the data sheet states it for more than the GPU."""
    link_gbs: float
    """GB/s of NVLink if it reaches all GPUs of the board, else of PCIe."""
    link: str
    l2_mb: float | None
    """MiB of the last-level cache; None without a reliable source."""


def _pcie(memory_gb: int, power_w: int, rate: float, l2_mb: float | None) -> DataSheet:
    return DataSheet((memory_gb,), power_w, rate, f"PCIe {({PCIE_3: 3, PCIE_4: 4, PCIE_5: 5})[rate]} x16", l2_mb)


_GEFORCE_TURING = {"fp16": 512, "int8": 2048}
_GEFORCE_AMPERE = {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048}
_HALF_ADA = {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 1024, "fp8": 1024}
_GEFORCE_ADA = {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048, "fp8": 1024}
_GEFORCE_BLACKWELL = {"fp16": 512, "bf16": 512, "tf32": 256, "int8": 2048, "fp8": 1024}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One product. Clocks in MHz, bandwidth in GB/s."""

    name: str
    sheet: DataSheet
    pattern: str
    """Regular expression for the lower-case name that nvidia-smi, nsys, ncu and torch report."""
    capability: str
    sms: int
    boost_mhz: int
    bandwidth_gbs: float
    tensor_mhz: int | None = None
    """Clock of the published tensor figures, if not the boost clock."""
    tensor: Mapping[str, int] | None = None
    """FLOPs per SM and cycle, if not the architecture's."""


GPUS: tuple[Gpu, ...] = (
    Gpu("P100 PCIe 16 GB", _pcie(16, 250, PCIE_3, 4), r"p100-pcie-16gb", "6.0", 56, 1303, 732),
    Gpu("P100 PCIe 12 GB", _pcie(12, 250, PCIE_3, 4), r"p100-pcie-12gb", "6.0", 56, 1303, 549),
    Gpu("P100 SXM2", DataSheet((16,), 300, 80, "NVLink", 4), r"p100-sxm2", "6.0", 56, 1480, 732),
    Gpu("P40", _pcie(24, 250, PCIE_3, 3), r"tesla p40\b", "6.1", 30, 1531, 346),
    Gpu("P4", _pcie(8, 75, PCIE_3, 2), r"tesla p4\b", "6.1", 20, 1113, 192),
    Gpu("GTX 1080 Ti", _pcie(11, 250, PCIE_3, 2.75), r"gtx 1080 ti\b", "6.1", 28, 1582, 484),
    Gpu("V100 SXM2", DataSheet((16, 32), 300, 150, "NVLink", 6), r"v100-sxm2-(16|32)gb", "7.0", 80, 1530, 900),
    Gpu("V100 PCIe", DataSheet((16, 32), 250, PCIE_3, "PCIe 3 x16", 6), r"v100-pcie-(16|32)gb", "7.0", 80, 1370, 900),
    Gpu("V100S", _pcie(32, 250, PCIE_3, 6), r"v100s-pcie", "7.0", 80, 1597, 1134),
    Gpu("Titan V", _pcie(12, 250, PCIE_3, 4.5), r"titan v\b", "7.0", 80, 1455, 652.8),
    Gpu("T4", _pcie(16, 70, PCIE_3, 4), r"\bt4\b", "7.5", 40, 1590, 320),
    Gpu("RTX 2070 Super", _pcie(8, 215, PCIE_3, 4), r"rtx 2070 super", "7.5", 40, 1770, 448, tensor=_GEFORCE_TURING),
    Gpu("RTX 2070", _pcie(8, 175, PCIE_3, 4), r"rtx 2070$", "7.5", 36, 1620, 448, tensor=_GEFORCE_TURING),
    Gpu("RTX 2080 Ti", _pcie(11, 250, PCIE_3, 5.5), r"rtx 2080 ti", "7.5", 68, 1545, 616, tensor=_GEFORCE_TURING),
    Gpu("Titan RTX", _pcie(24, 280, PCIE_3, 6), r"titan rtx", "7.5", 72, 1770, 672),
    Gpu("A100 PCIe 40 GB", _pcie(40, 250, PCIE_4, 40), r"a100-pcie-40gb", "8.0", 108, 1410, 1555),
    Gpu("A100 SXM4 40 GB", DataSheet((40,), 400, 300, "NVLink", 40), r"a100-sxm4?-40gb", "8.0", 108, 1410, 1555),
    Gpu("A100 SXM4 80 GB", DataSheet((80,), 400, 300, "NVLink", 40), r"a100-sxm4?-80gb", "8.0", 108, 1410, 2039),
    Gpu("A100 PCIe 80 GB", _pcie(80, 300, PCIE_4, 40), r"a100[ -]80gb[ -]pcie|a100-pcie-80gb", "8.0", 108, 1410, 1935),
    Gpu("A30", _pcie(24, 165, PCIE_4, 24), r"\ba30\b", "8.0", 56, 1440, 933),
    Gpu("A10", _pcie(24, 150, PCIE_4, 6), r"\ba10\b", "8.6", 72, 1695, 600),
    Gpu("A40", _pcie(48, 300, PCIE_4, 6), r"\ba40\b", "8.6", 84, 1740, 696),
    Gpu("RTX A6000", _pcie(48, 300, PCIE_4, 6), r"rtx a6000", "8.6", 84, 1800, 768),
    Gpu("RTX A5000", _pcie(24, 230, PCIE_4, None), r"rtx a5000$", "8.6", 64, 1695, 768),
    Gpu("RTX 3080 10 GB", _pcie(10, 320, PCIE_4, 5), r"rtx 3080$", "8.6", 68, 1710, 760, tensor=_GEFORCE_AMPERE),
    Gpu("RTX 3090", _pcie(24, 350, PCIE_4, 6), r"rtx 3090$", "8.6", 82, 1695, 936, tensor=_GEFORCE_AMPERE),
    Gpu("L4", _pcie(24, 72, PCIE_4, 48), r"\bl4\b", "8.9", 58, 2040, 300),
    Gpu("L40", _pcie(48, 300, PCIE_4, 96), r"\bl40\b", "8.9", 142, 2490, 864, tensor=_HALF_ADA),
    Gpu("L40S", _pcie(48, 350, PCIE_4, 96), r"\bl40s\b", "8.9", 142, 2520, 864),
    Gpu("RTX 6000 Ada", _pcie(48, 300, PCIE_4, 96), r"rtx 6000 ada", "8.9", 142, 2505, 960),
    Gpu("RTX 4090", _pcie(24, 450, PCIE_4, 72), r"rtx 4090$", "8.9", 128, 2520, 1008, tensor=_GEFORCE_ADA),
    Gpu("H100 PCIe", _pcie(80, 350, PCIE_5, 50), r"h100 pcie", "9.0", 114, 1755, 2039, 1620),
    Gpu("H100 NVL", _pcie(94, 400, PCIE_5, 50), r"h100 nvl", "9.0", 132, 1785, 3938, 1545),
    Gpu(
        "H100 SXM5", DataSheet((80,), 700, 450, "NVLink", 50), r"h100 80gb hbm3|h100.sxm", "9.0", 132, 1980, 3352, 1830
    ),
    Gpu("H200 NVL", _pcie(141, 600, PCIE_5, 50), r"h200 nvl", "9.0", 132, 1785, 4800, 1545),
    Gpu("H200 SXM", DataSheet((141,), 700, 450, "NVLink", 50), r"\bh200\b", "9.0", 132, 1980, 4800, 1830),
    Gpu(
        "GH200 480 GB", DataSheet((96,), None, PCIE_5, "PCIe 5 x16", None), r"gh200 480gb", "9.0", 132, 1980, 4000, 1830
    ),
    Gpu("B200", DataSheet((180,), 1000, 900, "NVLink", None), r"\bb200\b", "10.0", 148, 1965, 8000, 1860),
    Gpu("RTX 5070", _pcie(12, 250, PCIE_5, None), r"rtx 5070$", "12.0", 48, 2512, 672, tensor=_GEFORCE_BLACKWELL),
    Gpu("RTX 5090", _pcie(32, 575, PCIE_5, None), r"rtx 5090$", "12.0", 170, 2407, 1792, tensor=_GEFORCE_BLACKWELL),
)


def find(name: str | None) -> Gpu | None:
    """The product of a device name; None for an unknown name or a slice (MIG)."""
    if not name or sliced(name):
        return None
    lowered = " ".join(name.lower().split())
    return next((gpu for gpu in GPUS if re.search(gpu.pattern, lowered)), None)


_MAKER = re.compile(r"\b(nvidia|tesla|geforce|quadro)\b")


def candidates(name: str | None) -> tuple[Gpu, ...]:
    """Products that a name without form factor or memory may mean ("Tesla V100": three); empty if :func:`find` has one."""
    if find(name) is not None or sliced(name):
        return ()
    said = " ".join(re.findall(r"[a-z0-9]+", _MAKER.sub(" ", (name or "").lower())))
    start = re.compile(rf"{said}(?![a-z0-9])")
    return tuple(gpu for gpu in GPUS if re.search(r"\d", said) and start.match(gpu.name.lower()))


def sliced(name: str | None) -> bool:
    """True for a slice of a GPU (MIG, vGPU) and for laptop GPUs."""
    return bool(re.search(r"\bmig\b|laptop|mobile|max-q|\bgrid\b", (name or "").lower()))


def architecture(capability: str | None) -> Architecture | None:
    """Of a compute capability such as "8.6"; None if unknown."""
    return next((item for item in ARCHITECTURES if item.capability == capability), None)


def flops_per_second(gpu: Gpu, *, clock_hz: float | None = None) -> dict[str, float]:
    """path ("fp32", "tensor tf32", ...) -> FLOP/s, dense; by default at the published clocks."""
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


@dataclass(frozen=True, slots=True)
class Board:
    """One product at one size of memory."""

    gpu: Gpu
    memory_gb: int

    @property
    def sheet(self) -> DataSheet:
        return self.gpu.sheet

    @property
    def name(self) -> str:
        """With the memory if the product has several sizes."""
        return self.gpu.name if len(self.sheet.memory_gb) == 1 else f"{self.gpu.name} {self.memory_gb} GB"


BOARDS: tuple[Board, ...] = tuple(Board(gpu, size) for gpu in GPUS for size in gpu.sheet.memory_gb)

_MAKERS = {"nvidia", "tesla", "geforce", "quadro", "rtx", "gtx", "generation", "gpu"}
_FORM = re.compile(r"sxm\d?|pcie|nvl|hgx|hbm\d\w?|\d+gb")


def _words(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """(words of the chip, words of form factor and memory), lower case, without makers' and series' names."""
    said = re.sub(r"(?<![a-z0-9])(\d+) ?g(?:i?b)?\b", r"\1gb", text.lower())
    said = re.sub(r"\b(rtx|gtx|titan)(?=[a-z0-9])", r"\1 ", said)
    said = re.sub(r"(\d{4})(ti|super)\b", r"\1 \2", said)
    words = set(re.findall(r"[a-z0-9]+", said)) - (_MAKERS - ({"rtx"} if "titan" in said else set()))
    form = {word for word in words if _FORM.fullmatch(word)}
    return frozenset(words - form), frozenset("sxm" if word == "hgx" else word for word in form)


def meant(name: str) -> tuple[Board, ...]:
    """The boards that a name may mean, in table order: "A100" four, "T4" one, "A10G" none; none for slices and laptop GPUs."""
    if sliced(name):
        return ()
    chip, form = _words(name)
    sizes = {int(word[:-2]) for word in form if word.endswith("gb")}
    exact = find(name)
    if exact is not None:
        every = tuple(board for board in BOARDS if board.gpu == exact)
        # All of them if none has the stated memory: a GH200's name states its host's.
        return tuple(board for board in every if board.memory_gb in sizes) or every
    forms = {word for word in form if not word.startswith("hbm")}
    found = []
    for board in BOARDS:
        its_chip, its_form = _words(board.name)
        its_form |= {f"{board.memory_gb}gb"}
        if chip == its_chip and all(any(its.startswith(word) for its in its_form) for word in forms):
            found.append(board)
    return tuple(found)


CHOICE_RULE = "the server form (SXM) where there is one, of these the one with the least memory"


def choose(boards: Iterable[Board]) -> Board:
    """One of several boards, by ``CHOICE_RULE``. Raises ValueError for none."""
    return min(boards, key=lambda board: ("SXM" not in board.gpu.name, board.memory_gb))


def nearest(name: str, count: int = 4) -> tuple[str, ...]:
    """Names of boards similar to ``name``, the closest first."""
    spelled: dict[str, str] = {}
    for board in BOARDS:
        spelled.setdefault(board.gpu.name.lower(), board.name)
        spelled.setdefault(" ".join(sorted(_words(board.gpu.name)[0])), board.name)
    close = get_close_matches(" ".join(name.lower().split()), spelled, count * 2, 0.5)
    return tuple(dict.fromkeys(spelled[word] for word in close))[:count]
