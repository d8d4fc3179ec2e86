"""Sets of processor cores: as the system writes them, and shared out so that no physical core serves two."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def read_cores(text: str) -> frozenset[int]:
    """ "0-3,8" as numbers. Raises ValueError for anything else."""
    cores: set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def written(cores: Iterable[int]) -> str:
    """ "0-3,8": the shortest way to write them."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def deal(cores: frozenset[int], parts: int, root: Path = Path("/")) -> list[frozenset[int]]:
    """``cores`` in ``parts`` of the same number of physical cores each (rests stay idle); all for all where too few.

    Hardware threads of one physical core stay together, or two runs would slow each other down.
    """
    physical = sorted({_siblings(core, root) & cores for core in cores}, key=min)
    each = len(physical) // parts
    if each == 0:
        return [cores] * parts
    return [frozenset().union(*physical[part * each : (part + 1) * each]) for part in range(parts)]


def _siblings(core: int, root: Path) -> frozenset[int]:
    """The hardware threads of a core's physical core; itself alone where the system does not say."""
    path = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    try:
        return read_cores(path.read_text(encoding="ascii")) | {core}
    except (OSError, ValueError):
        return frozenset({core})
