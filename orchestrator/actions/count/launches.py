"""Counts of a run's Triton kernels, read from what Triton left in its cache: for the table ``derived_count``.

A launch is matched by its kernel's name and its threads per block, and by registers and dynamic shared memory where the
report has them. Where several compiled kernels fit and do not count the same, the launch has no count.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

from perfctl.orchestrator.actions.count import triton
from perfctl.orchestrator.actions.count.count import count
from perfctl.orchestrator.analyse.derived.code.counts import rows
from perfctl.orchestrator.analyse.derived.code.records import KernelCount, Size
from perfctl.orchestrator.errors import PerfctlError
from perfctl.records.errors import ReportError
from perfctl.records.report import Kernel

Row = tuple[int, str, float, str, None]
"""(launch, instruction, value, rule, verified error)."""


def cache_folders() -> tuple[Path, ...]:
    """Where Triton and Inductor keep compiled kernels, as far as these folders exist."""
    folders = [triton.cache_folder()]
    asked = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with suppress(OSError, KeyError):  # a user without a name
        user = getpass.getuser().replace("/", "_")
        folders.append(Path(asked) if asked else Path(tempfile.gettempdir()) / f"torchinductor_{user}")
    places = (folders[0], *(folder / "triton" for folder in folders[1:]))
    return tuple(place for place in places if place.is_dir())


def code_rows(
    kernels: Iterable[Kernel], arch: str | None = None, folders: Sequence[Path] | None = None
) -> Iterator[Row]:
    """Rows of all launches whose kernel lies in a folder of Triton's cache. ``arch``: sm_80 of the GPU that ran them.

    Nothing is raised: without nvdisasm, or where a file cannot be read, its launches have no rows.
    """
    launches: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        launches[kernel.name].append(kernel)
    found: dict[str, list[triton.Entry]] = defaultdict(list)
    for folder in cache_folders() if folders is None else folders:
        for entry in triton.entries(folder):
            if entry.name in launches:
                found[entry.name].append(entry)
    known: dict[tuple[Path, Size, Size], KernelCount | None] = {}
    for name, entries in found.items():
        for kernel in launches[name]:
            yield from _of_launch(kernel, entries, arch, known)


def _of_launch(
    kernel: Kernel,
    entries: Sequence[triton.Entry],
    arch: str | None,
    known: dict[tuple[Path, Size, Size], KernelCount | None],
) -> Iterator[Row]:
    if kernel.grid_x is None or kernel.block_x is None:
        return
    grid = kernel.grid_x, kernel.grid_y or 1, kernel.grid_z or 1
    block = kernel.block_x, kernel.block_y or 1, kernel.block_z or 1
    said: dict[tuple[tuple[str, float], ...], KernelCount] = {}
    for entry in entries:
        if entry.warps is not None and entry.warps * 32 != prod(block):
            continue
        if kernel.dynamic_shared_bytes is not None and entry.shared not in (None, kernel.dynamic_shared_bytes):
            continue
        key = entry.cubin, grid, block
        if key not in known:
            known[key] = _counted(entry, grid, block, arch)
        one = known[key]
        if one is not None and kernel.registers in (None, one.kernel.registers):
            said[tuple((row[0], row[1]) for row in rows(one.counted, one.tool))] = one
    if len(said) == 1:
        for one in said.values():
            for instruction, value, rule, error in rows(one.counted, one.tool):
                yield kernel.launch, instruction, value, rule, error


def _counted(entry: triton.Entry, grid: Size, block: Size, arch: str | None) -> KernelCount | None:
    try:
        found = count(entry.cubin, entry.name, grid=grid, block=block)
    except (PerfctlError, ReportError, OSError):
        return None
    return found if arch in (None, f"sm_{found.kernel.arch}") else None
