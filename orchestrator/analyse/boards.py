"""Which board a device name means, and what its data sheet says beside the peaks: memory, power, link.

Sources: docs/devices.md. Memory in GB of 10^9 bytes, board power in W, links in GB/s one way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from perfctl.orchestrator.analyse.devices import GPUS, Gpu, find, sliced

PCIE_3, PCIE_4, PCIE_5 = 15.75, 31.5, 63.0
"""GB/s one way of 16 lanes."""


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Of one product of ``devices.GPUS``."""

    memory_gb: tuple[int, ...]
    """Several where the product is sold with several."""
    power_w: int | None
    """Highest board power of the data sheet; None where it states a range for more than the GPU."""
    link_gbs: float
    """NVLink where the board has it to all its neighbours, else PCIe."""
    link: str
    l2_mb: float | None
    """MiB of the last-level cache; None where no sure source states it."""


def _pcie(memory_gb: int, power_w: int, rate: float, l2_mb: float | None) -> DataSheet:
    return DataSheet((memory_gb,), power_w, rate, f"PCIe {({PCIE_3: 3, PCIE_4: 4, PCIE_5: 5})[rate]} x16", l2_mb)


SHEETS: dict[str, DataSheet] = {
    "P100 PCIe 16 GB": _pcie(16, 250, PCIE_3, 4),
    "P100 PCIe 12 GB": _pcie(12, 250, PCIE_3, 4),
    "P100 SXM2": DataSheet((16,), 300, 80, "NVLink", 4),
    "P40": _pcie(24, 250, PCIE_3, 3),
    "P4": _pcie(8, 75, PCIE_3, 2),
    "GTX 1080 Ti": _pcie(11, 250, PCIE_3, 2.75),
    "V100 SXM2": DataSheet((16, 32), 300, 150, "NVLink", 6),
    "V100 PCIe": DataSheet((16, 32), 250, PCIE_3, "PCIe 3 x16", 6),
    "V100S": _pcie(32, 250, PCIE_3, 6),
    "Titan V": _pcie(12, 250, PCIE_3, 4.5),
    "T4": _pcie(16, 70, PCIE_3, 4),
    "RTX 2070 Super": _pcie(8, 215, PCIE_3, 4),
    "RTX 2070": _pcie(8, 175, PCIE_3, 4),
    "RTX 2080 Ti": _pcie(11, 250, PCIE_3, 5.5),
    "Titan RTX": _pcie(24, 280, PCIE_3, 6),
    "A100 PCIe 40 GB": _pcie(40, 250, PCIE_4, 40),
    "A100 SXM4 40 GB": DataSheet((40,), 400, 300, "NVLink", 40),
    "A100 SXM4 80 GB": DataSheet((80,), 400, 300, "NVLink", 40),
    "A100 PCIe 80 GB": _pcie(80, 300, PCIE_4, 40),
    "A30": _pcie(24, 165, PCIE_4, 24),
    "A10": _pcie(24, 150, PCIE_4, 6),
    "A40": _pcie(48, 300, PCIE_4, 6),
    "RTX A6000": _pcie(48, 300, PCIE_4, 6),
    "RTX A5000": _pcie(24, 230, PCIE_4, None),
    "RTX 3080 10 GB": _pcie(10, 320, PCIE_4, 5),
    "RTX 3090": _pcie(24, 350, PCIE_4, 6),
    "L4": _pcie(24, 72, PCIE_4, 48),
    "L40": _pcie(48, 300, PCIE_4, 96),
    "L40S": _pcie(48, 350, PCIE_4, 96),
    "RTX 6000 Ada": _pcie(48, 300, PCIE_4, 96),
    "RTX 4090": _pcie(24, 450, PCIE_4, 72),
    "H100 PCIe": _pcie(80, 350, PCIE_5, 50),
    "H100 NVL": _pcie(94, 400, PCIE_5, 50),
    "H100 SXM5": DataSheet((80,), 700, 450, "NVLink", 50),
    "H200 NVL": _pcie(141, 600, PCIE_5, 50),
    "H200 SXM": DataSheet((141,), 700, 450, "NVLink", 50),
    "GH200 480 GB": DataSheet((96,), None, PCIE_5, "PCIe 5 x16", None),
    "B200": DataSheet((180,), 1000, 900, "NVLink", None),
    "RTX 5070": _pcie(12, 250, PCIE_5, None),
    "RTX 5090": _pcie(32, 575, PCIE_5, None),
}
"""Keyed by ``Gpu.name``; every product of the table of devices is here."""


@dataclass(frozen=True, slots=True)
class Board:
    """One product at one size of memory."""

    gpu: Gpu
    memory_gb: int

    @property
    def sheet(self) -> DataSheet:
        return SHEETS[self.gpu.name]

    @property
    def name(self) -> str:
        """With its memory where the product's name does not say it and there are several."""
        return self.gpu.name if len(self.sheet.memory_gb) == 1 else f"{self.gpu.name} {self.memory_gb} GB"


BOARDS: tuple[Board, ...] = tuple(Board(gpu, size) for gpu in GPUS for size in SHEETS[gpu.name].memory_gb)

_MAKERS = {"nvidia", "tesla", "geforce", "quadro", "rtx", "gtx", "generation", "gpu"}
_FORM = re.compile(r"sxm\d?|pcie|nvl|hgx|hbm\d\w?|\d+gb")


def _words(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """(what names the chip, what names form and memory), lower case and without makers' and series' names."""
    said = re.sub(r"(?<![a-z0-9])(\d+) ?g(?:i?b)?\b", r"\1gb", text.lower())
    said = re.sub(r"\b(rtx|gtx|titan)(?=[a-z0-9])", r"\1 ", said)
    said = re.sub(r"(\d{4})(ti|super)\b", r"\1 \2", said)
    words = set(re.findall(r"[a-z0-9]+", said)) - (_MAKERS - ({"rtx"} if "titan" in said else set()))
    form = {word for word in words if _FORM.fullmatch(word)}
    return frozenset(words - form), frozenset("sxm" if word == "hgx" else word for word in form)


def meant(name: str) -> tuple[Board, ...]:
    """The boards that a name may mean, in the order of the table: "A100" is four, "T4" one, "A10G" none.

    A slice of a GPU and a laptop part mean none: their figures differ.
    """
    if sliced(name):
        return ()
    chip, form = _words(name)
    sizes = {int(word[:-2]) for word in form if word.endswith("gb")}
    exact = find(name)
    if exact is not None:
        return _of_size((board for board in BOARDS if board.gpu == exact), sizes)
    forms = {word for word in form if not word.startswith("hbm")}
    found = []
    for board in BOARDS:
        its_chip, its_form = _words(board.name)
        its_form |= {f"{board.memory_gb}gb"}
        if chip == its_chip and all(any(its.startswith(word) for its in its_form) for word in forms):
            found.append(board)
    return tuple(found)


def _of_size(boards: Iterable[Board], sizes: set[int]) -> tuple[Board, ...]:
    """Those of a memory that the name says; all where none of them has it (a GH200 names its host's)."""
    every = tuple(boards)
    return tuple(board for board in every if board.memory_gb in sizes) or every


CHOICE_RULE = "the server form (SXM) where there is one, of these the one with the least memory"


def choose(boards: Iterable[Board]) -> Board:
    """One of several boards that a name may mean: ``CHOICE_RULE``. Raises ValueError for none."""
    return min(boards, key=lambda board: ("SXM" not in board.gpu.name, board.memory_gb))


def nearest(name: str, count: int = 4) -> tuple[str, ...]:
    """Names of boards that look like ``name``, the likest first."""
    spelled: dict[str, str] = {}
    for board in BOARDS:
        spelled.setdefault(board.gpu.name.lower(), board.name)
        spelled.setdefault(" ".join(sorted(_words(board.gpu.name)[0])), board.name)
    close = get_close_matches(" ".join(name.lower().split()), spelled, count * 2, 0.5)
    return tuple(dict.fromkeys(spelled[word] for word in close))[:count]
