"""What stands in the machine code of every kernel of a file, kept in the user's cache folder under the file's content."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from perfctl.orchestrator.actions.count import kept, triton
from perfctl.orchestrator.actions.count.count import kernels
from perfctl.orchestrator.actions.count.find import Code
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.traces import entries
from perfctl.orchestrator.analyse.derived.code.records import Static
from perfctl.orchestrator.analyse.derived.code.static import LOCAL, flops_of_block, static_counts
from perfctl.orchestrator.errors import PerfctlError, ToolMissing
from perfctl.orchestrator.launch.code import binaries
from perfctl.parsers.sass import nvdisasm
from perfctl.parsers.sass.elf import BrokenCode
from perfctl.records.errors import ReportError
from perfctl.records.sass import Listed

_MOST = 512
"""Kernels of a file whose instructions are read."""
_TOOLS = ("nvdisasm", "cuobjdump", "ptxas")


def static(
    code: Path, *, arch: str | None = None, keep: bool = True, messages: Messages = SILENT
) -> tuple[Static, ...]:
    """All kernels of a file of machine code: what its headers say, and the instructions where nvdisasm can read them.

    ``keep``: False for a file that is gone afterwards.

    Raises what :func:`.count.kernels` raises.
    """
    folder = None if os.environ.get(entries.OFF) or not keep else kept.cache_folder()
    key = ""
    if folder is not None and code.exists():
        shared = triton.shared_bytes(code) if code.is_file() else None
        key = entries.digest("static", kept.content_of(code, folder), str(code), arch, shared, kept.own_code(), tools())
        known: tuple[Static, ...] | None = entries.read(folder, key, tuple[Static, ...])
        if known is not None:
            return known
    found = tuple(_read(code, arch, kernels(code, arch=arch, messages=messages)))
    if folder is not None and key and all(one.instructions is not None for one in found):
        entries.write(folder, key, tuple[Static, ...], found)
    return found


def tools() -> list[tuple[str, int, int]]:
    """(path, bytes, time of change) of each tool that is there."""
    found = []
    for name in _TOOLS:
        with suppress(ToolMissing, OSError):
            found.append(binaries.find(name).identity)
    return found


def _read(path: Path, arch: str | None, listed: Sequence[Listed]) -> Iterator[Static]:
    if len(listed) > _MOST:
        yield from (Static(one, why=f"the file has more than {_MOST} kernels: name a smaller one") for one in listed)
        return
    code = Code(path, arch, closed_libraries=False)
    files: dict[tuple[int, str], list[Listed]] = defaultdict(list)
    for one in listed:
        files[one.number, one.place].append(one)
    for (number, place), inside in files.items():
        try:
            with code.cubin(number, place) as cubin:
                sections = nvdisasm.sections(binaries.disassemble(cubin))
        except (PerfctlError, ReportError) as error:
            yield from (Static(one, why=str(error)) for one in inside)
            continue
        yield from (_of_kernel(one, sections.get(one.kernel.name, "")) for one in inside)


def _of_kernel(listed: Listed, text: str) -> Static:
    try:
        instructions = nvdisasm.parse(text, listed.kernel.name)
    except BrokenCode as error:
        return Static(listed, why=str(error))
    flops = flops_of_block(listed.kernel, instructions)
    local = sum(one.base in LOCAL for one in instructions)
    known = (flops, "") if isinstance(flops, int) else (None, flops or "")
    return Static(listed, static_counts(instructions), local, *known)
