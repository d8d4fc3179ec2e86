"""The GPUs that nvidia-smi lists, and which of them an entry of CUDA_VISIBLE_DEVICES names."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from perfctl.orchestrator.launch.machine import tools

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpu(NamedTuple):
    """One GPU in the output of nvidia-smi; ``bus`` as sysfs writes it: 0000:65:00.0."""

    number: str
    uuid: str
    bus: str


def listed() -> tuple[Gpu, ...]:
    """The GPUs of this machine, in the order of nvidia-smi; none without a driver."""
    rows = [row for row in _rows("index,uuid,pci.bus_id") if len(row) == 3 and row[0].isdecimal()]
    return tuple(Gpu(row[0], row[1], row[2][-12:].lower()) for row in rows)


def visible(value: str | None) -> tuple[str, ...] | None:
    """Entries of a value of CUDA_VISIBLE_DEVICES; None where it is not set."""
    return None if value is None else tuple(entry.strip() for entry in value.split(",") if entry.strip())


def find(entry: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """The GPU that an entry names: an index, a UUID or its beginning, or a MIG instance of the GPU; None for none."""
    if entry.startswith("MIG-"):
        parent = re.match(r"MIG-(GPU-[^/]+)/", entry)  # the older form: MIG-GPU-UUID/gi/ci
        entry = parent[1] if parent else _parents().get(entry, entry)
    return next((gpu for gpu in gpus if entry == gpu.number or gpu.uuid.startswith(entry)), None)


def capability(entry: str | None) -> tuple[str | None, str]:
    """(compute capability, the GPU in words) of the GPU that a program sees as its first.

    ``entry``: the first entry of its CUDA_VISIBLE_DEVICES; None where that is not set. The capability is None where
    nvidia-smi does not say it, or where CUDA may number the GPUs in another order than nvidia-smi and they differ.
    """
    gpus = listed()
    found = {row[0]: row[1] for row in _rows("index,compute_cap") if len(row) == 2}
    gpu = find(entry if entry is not None else "0", gpus)
    if gpu is None or gpu.number not in found:
        return None, f"GPU {entry or '0'}"
    by_number = entry is None or entry.isdecimal()
    if by_number and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len(set(found.values())) > 1:
        return None, f"GPU {gpu.number} (CUDA numbers unlike GPUs by speed, not as nvidia-smi does)"
    return found[gpu.number], f"GPU {entry if entry is not None else gpu.number}"


def _rows(fields: str) -> list[list[str]]:
    said = tools.ask("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")
    return [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]


def _parents() -> dict[str, str]:
    """UUID of each MIG instance -> UUID of its GPU, from ``nvidia-smi --list-gpus``."""
    found: dict[str, str] = {}
    parent = ""
    for line in tools.ask("nvidia-smi", "--list-gpus").splitlines():
        named = re.search(r"\(UUID: ([^)]+)\)", line)
        if named and line.startswith("GPU "):
            parent = named[1]
        elif named:
            found[named[1]] = parent
    return found
