"""Counts read from machine code, as text for the terminal and as JSON. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.numbers import DASH

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.derived.code.records import Bound, KernelCount
    from perfctl.records.sass import KernelCode, Listed

_LEFT, _RIGHT = "<", ">"


def lines(found: KernelCount) -> Iterator[str]:
    """The kernel, its instructions, its loops, its FLOPs, and what is not known."""
    kernel = found.kernel
    yield found.name
    yield f"sm_{kernel.arch}, {_resources(kernel, found.dynamic_shared_bytes)}{_spills(found)}"
    yield _launch(found)
    yield ""
    if found.counted:
        heads = ("instruction", "per", "each", "whole launch", "FLOPs of one", "bounds of each")
        yield from _table(heads, "<<>>><", [
            (one.kind.name, one.kind.per, _number(one.each), _number(one.launch), _flops_of_one(one.kind.flops), _bounds(one.each))
            for one in found.counted
        ])  # fmt: skip
    else:
        yield "This kernel has no floating-point or tensor core instruction."
    yield ""
    if found.loops:
        heads = ("loop", "at", "source", "turns", "from", "in one turn, at most")
        yield from _table(heads, "<<<><<", [
            (loop.name, f"0x{loop.address:x}", loop.line or DASH, DASH if loop.turns is None else f"{loop.turns:,}", loop.source,
             ", ".join(f"{count:,.0f} {name}" for name, count in loop.each_turn) or "nothing that is counted")
            for loop in found.loops
        ])  # fmt: skip
        yield ""
    yield _flops(found)
    if found.unknown:
        yield f"Not known: {'; '.join(found.unknown)}"


def _resources(kernel: KernelCode, dynamic: int | None) -> str:
    shared = f"{kernel.shared_bytes:,} B of shared memory"
    if dynamic:
        shared = f"{dynamic:,} B of shared memory, by Triton's metadata"
    registers = "registers not stated" if kernel.registers is None else f"{kernel.registers} registers"
    stack = (
        ""
        if kernel.stack_bytes is None
        else f", {kernel.stack_bytes:,} B of stack"
        if kernel.stack_bytes
        else ", no stack"
    )
    return f"{registers}, {shared}{stack}"


def _spills(found: KernelCount) -> str:
    number = found.local_instructions
    return f", {number:,} instructions of local memory (spilled registers or arrays)" if number else ", no spills"


def _launch(found: KernelCount) -> str:
    if found.grid is None or found.block is None:
        block = "" if found.block is None else f"blocks of {prod(found.block):,} threads, "
        return f"{block}one thread, warp, warpgroup or block at a time"
    blocks, threads = prod(found.grid), prod(found.block)
    return (
        f"grid {_by(found.grid)}, block {_by(found.block)}: {blocks:,} blocks, {blocks * ceil(threads / 32):,} warps, "
        f"{blocks * threads:,} threads"
    )


def _by(size: Sequence[int]) -> str:
    return " x ".join(f"{side:,}" for side in size)


def _number(bound: Bound | None) -> str:
    if bound is None:
        return DASH
    return f"{'at least ' if bound.at_least else ''}{bound.stated:,.0f}"


def _flops_of_one(flops: int | None) -> str:
    return "not known" if flops is None else f"{flops:,}" if flops else "none"


def _bounds(bound: Bound) -> str:
    if bound.exact:
        return "exact"
    if bound.at_least:
        return f"{bound.low:,.0f}, open above: turns of a loop are not known"
    return f"{bound.low:,.0f} to {bound.whole:,.0f}, by what guards decide"


def _flops(found: KernelCount) -> str:
    said = "1 multiply-add = 2 FLOPs"
    total = found.flops
    if total is None:
        return f"FLOPs of the launch: {DASH} ({said})"
    if total.exact:
        return f"FLOPs of the launch: {total.whole:,.0f} ({said})"
    if total.at_least:
        return f"FLOPs of the launch: at least {total.least:,.0f} if every thread does the work ({said})"
    return f"FLOPs of the launch: {total.whole:,.0f} where guards hold, as in whole tiles; at least {total.low:,.0f} ({said})"


def listing(found: Sequence[Listed]) -> Iterator[str]:
    """One line a kernel."""
    heads = ("arch", "registers", "shared B", "stack B", "kernel")
    yield from _table(heads, "<>>><", [
        (f"sm_{one.kernel.arch}", _or_dash(one.kernel.registers),
         f"{one.kernel.shared_bytes if one.dynamic_shared_bytes is None else one.dynamic_shared_bytes:,}",
         _or_dash(one.kernel.stack_bytes), f"{one.name}  {one.place}".rstrip())
        for one in found
    ])  # fmt: skip


def _or_dash(number: int | None) -> str:
    return DASH if number is None else f"{number:,}"


def _table(heads: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Columns side by side, the last as long as it is. Without rich, whose import takes longer than the answer."""
    listed = [heads, *rows]
    widths = [max(len(row[at]) for row in listed) for at in range(len(heads))]
    for row in listed:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def as_json(found: KernelCount) -> dict[str, Any]:
    """The shape that docs/commands/count.md describes."""
    kernel = found.kernel
    return {
        "file": str(found.file), "kernel": found.name, "mangled": kernel.name, "arch": f"sm_{kernel.arch}",
        "registers": kernel.registers, "static_shared_bytes": kernel.shared_bytes, "dynamic_shared_bytes": found.dynamic_shared_bytes,
        "stack_bytes": kernel.stack_bytes, "local_memory_instructions": found.local_instructions,
        "grid": found.grid, "block": found.block, "tool": found.tool,
        "instructions": [
            {"instruction": one.kind.name, "per": one.kind.per, "flops_of_one": one.kind.flops, "path": one.kind.path or None,
             "each": _bound(one.each), "launch": _bound(one.launch)}
            for one in found.counted
        ],
        "loops": [
            {"name": loop.name, "address": loop.address, "source": loop.line or None, "turns": loop.turns, "from": loop.source,
             "each_turn": dict(loop.each_turn)}
            for loop in found.loops
        ],
        "flops": _bound(found.flops), "flops_unknown": found.flops_unknown, "unknown": found.unknown,
    }  # fmt: skip


def _bound(bound: Bound | None) -> dict[str, Any] | None:
    if bound is None:
        return None
    low, least, whole, high = (
        None if value is None else int(value) for value in (bound.low, bound.least, bound.whole, bound.high)
    )
    return {"low": low, "least": least, "whole": whole, "high": high, "at_least": bound.at_least}


def listing_as_json(found: Sequence[Listed]) -> list[dict[str, Any]]:
    """One object a kernel."""
    return [
        {"kernel": one.name, "mangled": one.kernel.name, "arch": f"sm_{one.kernel.arch}", "registers": one.kernel.registers,
         "static_shared_bytes": one.kernel.shared_bytes, "dynamic_shared_bytes": one.dynamic_shared_bytes,
         "stack_bytes": one.kernel.stack_bytes, "block": one.kernel.block, "cubin": one.place or None}
        for one in found
    ]  # fmt: skip
