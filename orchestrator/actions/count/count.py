"""Count the instructions of a kernel from its machine code, for a launch of a given grid and block.

``perfctl.count(code, kernel, ...)`` is this module's :func:`count`. Results are kept in the user's cache folder under the
content of the code, so that a second call starts no tool. 1 multiply-add = 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from perfctl.orchestrator.actions.count import kept, licences
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.analyse.derived.code import counts
from perfctl.orchestrator.analyse.derived.code.records import CodeCounts, CodeLoop, KernelCount, LoopTurns, Size
from perfctl.orchestrator.errors import UsageError
from perfctl.records.sass import Listed

_MOST_TURNS = 1 << 48
_GRID, _BLOCK = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
_THREADS = 1024


def kernels(
    code: Path, *, arch: str | None = None, closed_libraries: bool = False, messages: Messages = SILENT
) -> tuple[Listed, ...]:
    """The kernels in a file of machine code, by name.

    Raises ReportError for a file without GPU code, UsageError where an architecture must be chosen, ToolMissing.
    """
    from perfctl.orchestrator.actions.count.find import Code

    found = Code(code, arch, closed_libraries=closed_libraries)
    if found.closed:
        messages.note(f"{code.name} {licences.NOTE}")
    return tuple(sorted(found.listed(whole=True), key=lambda one: (one.name, one.kernel.arch, one.place)))


def count(
    code: Path | str,
    kernel: str,
    *,
    grid: Size | None = None,
    block: Size | None = None,
    trips: Mapping[str, int] | None = None,
    arguments: Mapping[str, int] | None = None,
    shape: Size | None = None,
    arch: str | None = None,
    closed_libraries: bool = False,
    messages: Messages = SILENT,
) -> KernelCount:
    """Instructions that one launch of ``kernel`` executes, by kind, with bounds.

    code: a .cubin, a program or library, PTX (with ``arch``), or a folder of Triton's cache. kernel: its name or a part of
    it, * for anything. grid: thread blocks; block: threads (not needed where the code requires a size). trips: loop ->
    turns each time it is entered. arguments: name or place (from "0") of a whole-number argument -> its value. shape: m, n,
    k for arguments that are called M, N and K. closed_libraries: read libraries whose licence may forbid it, too.

    Raises UsageError (a name that fits no kernel or several, a loop that is not there, sizes out of range), ReportError (a
    file that cannot be read) or ToolMissing (no nvdisasm).
    """
    code = Path(code)
    _check_size("grid", grid, _GRID)
    _check_size("block", block, _BLOCK)
    if block is not None and prod(block) > _THREADS:
        raise UsageError(f"`block` must have at most {_THREADS:,} threads, got {prod(block):,}")
    request = kept.Request(kernel, arch, closed_libraries, grid, block, tuple(sorted((arguments or {}).items())), shape)
    found = kept.analysed(code, request)
    if found.closed:
        messages.note(f"{code.name} {licences.NOTE}")
    required = found.kernel.block
    if block is not None and required is not None and prod(block) != prod(required):
        raise UsageError(
            f"`block`: the code requires {_by(required)} threads a block, got {_by(block)}", "Leave `block` out"
        )
    return _result(code, found, grid, block or required, trips or {})


def _result(
    file: Path, found: kept.Analysed, grid: Size | None, block: Size | None, trips: Mapping[str, int]
) -> KernelCount:
    _check_trips(found.code, trips)
    each, of_block, per_turn = counts.count(found.code, trips, None if block is None else prod(block))
    counted = counts.launch(found.code, each, grid, block)
    loops = tuple(
        LoopTurns(loop.name, loop.header, loop.line, *_turns(loop, trips, found.basis), per_turn[loop.name])
        for function in found.code.functions for loop in function.loops
    )  # fmt: skip
    flops, lacking = counts.flops(of_block, counted, None if grid is None else prod(grid))
    return KernelCount(
        file, found.kernel, found.name, grid, block, counted, loops, flops, lacking,
        tuple(_unknown(found, loops, lacking, grid, block)), found.code.local_loads, found.dynamic_shared_bytes, found.tool,
    )  # fmt: skip


def _turns(loop: CodeLoop, trips: Mapping[str, int], basis: Mapping[str, str]) -> tuple[int | None, str]:
    if loop.name in trips:
        return trips[loop.name], "given"
    return loop.turns, basis.get(loop.name, "") if loop.turns is not None else "not known"


def _unknown(
    found: kept.Analysed, loops: tuple[LoopTurns, ...], lacking: tuple[str, ...], grid: Size | None, block: Size | None
) -> Iterator[str]:
    no_flops = {kind.name for kind in found.code.kinds if kind.flops == 0}
    for loop in loops:
        if loop.turns is None and any(name not in no_flops for name, _ in loop.each_turn):
            hint = found.hints.get(loop.name)
            yield f"turns of {loop.name}: give `trips` {loop.name}=N{f', or {hint}' if hint else ''}"
    if lacking:
        yield f"FLOPs of {', '.join(lacking)}, whose size is in a register"
    yield from found.code.doubts
    if grid is None or block is None:
        missing = " and ".join(name for name, size in (("`grid`", grid), ("`block`", block)) if size is None)
        yield f"the whole launch: give {missing}"


def _check_trips(code: CodeCounts, trips: Mapping[str, int]) -> None:
    names = [loop.name for function in code.functions for loop in function.loops]
    for name, turns in trips.items():
        if name not in names:
            raise UsageError(
                f"`trips`: there is no loop {name}",
                f"Loops: {', '.join(names)}" if names else "This kernel has no loop",
            )
        if not 1 <= turns <= _MOST_TURNS:
            raise UsageError(f"`trips`: {name} must turn 1 to {_MOST_TURNS:,} times, got {turns:,}")


def _check_size(field: str, size: Size | None, most: Size) -> None:
    for given, limit in zip(size or (), most, strict=False):
        if not 1 <= given <= limit:
            raise UsageError(f"`{field}`: {_by(size or ())} is out of range", f"Each side is 1 to {_by(most)}")


def _by(size: tuple[int, ...]) -> str:
    return " x ".join(f"{side:,}" for side in size)
