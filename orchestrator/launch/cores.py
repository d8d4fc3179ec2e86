"""Sets of processor cores: parse and format the kernel's notation, split a set without sharing a physical core."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def read_cores(text: str) -> frozenset[int]:
    """The cores in text such as "0-3,8". Raises ValueError for anything else."""
    cores: set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def format_cores(cores: Iterable[int]) -> str:
    """Text such as "0-3,8", as short as possible."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def split_cores(cores: frozenset[int], parts: int, root: Path = Path("/")) -> list[frozenset[int]]:
    """``cores`` in ``parts`` with equally many physical cores; a remainder stays idle. Too few: every part gets all.

    Hardware threads of one physical core stay together, so that two runs do not slow each other down.
    """
    physical = sorted({_siblings(core, root) & cores for core in cores}, key=min)
    each = len(physical) // parts
    if each == 0:
        return [cores] * parts
    return [frozenset().union(*physical[part * each : (part + 1) * each]) for part in range(parts)]


def _siblings(core: int, root: Path) -> frozenset[int]:
    """The hardware threads of a core's physical core; only itself where the kernel does not list them."""
    path = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    try:
        return read_cores(path.read_text(encoding="ascii")) | {core}
    except (OSError, ValueError):
        return frozenset({core})
