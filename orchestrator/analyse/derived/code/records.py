"""Records of a kernel whose machine code was read: its blocks and loops, and what a launch executes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from perfctl.records.sass import KernelCode, Listed

Size = tuple[int, int, int]
THREAD, WARP, WARPGROUP, BLOCK = "thread", "warp", "warpgroup", "block"
_SIZES = {THREAD: 1, WARP: 32, WARPGROUP: 128}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of instruction."""

    name: str
    """As SASS counters call it: FADD, FFMA, HFMA2; of tensor cores with their shape: HMMA.16816."""
    per: str
    """Who executes it once: thread, warp, warpgroup, or block, of whose threads one starts it for all."""
    flops: int | None
    """FLOPs of one; 0 for what is no arithmetic; None where its size stands in a register."""
    path: str = ""
    """fp32, fp64, half or tensor; "" for what is no FLOP."""


def units(per: str, threads: int) -> int:
    """How many threads, warps, warpgroups, ... a block of so many threads has."""
    return 1 if per == BLOCK else ceil(threads / _SIZES[per])


@dataclass(frozen=True, slots=True)
class Block:
    """One basic block: what it executes, without its instructions."""

    address: int
    line: str
    counts: tuple[tuple[str, int, int], ...]
    """(kind, instructions that always run, with those under a predicate)."""
    calls: tuple[tuple[int, int], ...]
    """(function, 1, or 0 where a predicate decides)."""
    next: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodeLoop:
    """One natural loop; ``turns``: how often its first block runs each time that it is entered."""

    name: str
    header: int
    line: str
    members: tuple[int, ...]
    parent: str | None
    turns: int | None
    """None where the code and the known arguments do not say."""


@dataclass(frozen=True, slots=True)
class CodeFunction:
    entry: int
    blocks: tuple[Block, ...]
    """In reverse postorder: each after those that lead to it, but for the ways back of loops."""
    loops: tuple[CodeLoop, ...]


@dataclass(frozen=True, slots=True)
class CodeCounts:
    """A kernel's control flow with the number of its instructions in each block. No instruction is kept."""

    functions: tuple[CodeFunction, ...]
    """The kernel itself comes first."""
    kinds: tuple[Kind, ...]
    doubts: tuple[str, ...]
    """What the code does not say, in words."""
    local_loads: int
    """Instructions that read or write local memory: arrays and spilled registers."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Instructions or FLOPs of a launch, or of the busiest thread."""

    low: float
    """On the path with the fewest."""
    least: float
    """On the path with the fewest of those that have any: what a thread that does the work executes at least."""
    whole: float
    """On the path with the most, with one turn of loops whose turns are not known."""
    high: float | None
    """None where it is open."""

    @property
    def stated(self) -> float:
        """The figure to show: that of whole tiles, or what it is at least."""
        return self.least if self.at_least else self.whole

    @property
    def exact(self) -> bool:
        return self.low == self.whole == self.high

    @property
    def at_least(self) -> bool:
        """Whether it depends on loops whose turns are not known."""
        return self.high is None


@dataclass(frozen=True, slots=True)
class Counted:
    """One kind of instruction in one launch."""

    kind: Kind
    each: Bound
    """Of one thread, warp, warpgroup or block, as ``kind.per`` says."""
    launch: Bound | None
    """Of all; None without a grid and block."""


@dataclass(frozen=True, slots=True)
class LoopTurns:
    """A loop as the user sees it."""

    name: str
    address: int
    line: str
    turns: int | None
    source: str
    """Where the turns come from, or why they are not known."""
    each_turn: tuple[tuple[str, float], ...]
    """(kind, instructions of one turn at most): without any, the loop only waits, moves or compares."""


@dataclass(frozen=True, slots=True)
class KernelCount:
    """What one launch of a kernel executes. FLOPs: 1 multiply-add = 2."""

    file: Path
    kernel: KernelCode
    name: str
    """Demangled."""
    grid: Size | None
    block: Size | None
    """Threads of a block: as given, or as the code requires."""
    counted: tuple[Counted, ...]
    loops: tuple[LoopTurns, ...]
    flops: Bound | None
    """Of the launch; None without a grid and block."""
    flops_unknown: tuple[str, ...]
    """Kinds whose FLOPs the code does not say; they are not in ``flops``."""
    unknown: tuple[str, ...]
    """What is not known, and what would tell it, in words."""
    local_instructions: int
    """Instructions in the code that use local memory: spilled registers and arrays of a thread."""
    dynamic_shared_bytes: int | None
    """From Triton's metadata; None where nothing says."""
    tool: str
    """The disassembler, with its version."""


@dataclass(frozen=True, slots=True)
class Static:
    """What stands in the machine code of one kernel, without a launch."""

    listed: Listed
    instructions: dict[str, int] | None = None
    """Kind -> how many stand in the code; None where it could not be read."""
    local_instructions: int | None = None
    """Instructions in the code that read or write local memory."""
    flops: int | None = None
    """Of one thread block, on the path with the most; None where the code does not say."""
    why: str = ""
    """Why the instructions are None; else why the FLOPs are."""
