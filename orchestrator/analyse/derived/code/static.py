"""What stands in the machine code of a kernel, without a launch: how many instructions of each kind. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from perfctl.orchestrator.analyse.derived.code import blocks, counts, turns
from perfctl.orchestrator.analyse.derived.code.instructions import MOVES, kind_of
from perfctl.records.sass import Instruction, KernelCode

LOCAL = ("LDL", "STL")
"""Read and write local memory: spilled registers, and arrays of a thread."""
_MEMORY = re.compile(r"LD|ST[GSL]?$|STAS|STSM|ATOM|RED|UBLK|UTMA|UTCCP|SU|TEX|TLD|CCTL")
_CONVERSION = re.compile(r"([FI]2[FI]P?|F2FP|I2FP?|I2IP|FRND)$")
_WAIT = ("BAR", "MEMBAR", "SYNCS", "WARPSYNC")
_CONSTANTS = re.compile(r"U?LDC|LDGDEPBAR|LDTRAM|REDUX")
"""Arguments and constants, and what reads no memory in spite of its name."""


def static_counts(instructions: Sequence[Instruction]) -> dict[str, int]:
    """Kind -> instructions in the code: floating-point arithmetic, tensor cores, memory, conversions, barriers.

    Integer arithmetic, comparisons, moves and branches are left out: they move with every edit and release of the compiler.
    """
    found: Counter[str] = Counter()
    for one in instructions:
        kind = kind_of(one)
        if kind is not None and not kind.name.endswith(MOVES):
            found[kind.name] += 1
        elif kind is None and _is_held(one.base):
            found[one.base] += 1
    return dict(sorted(found.items()))


def _is_held(base: str) -> bool:
    if _CONSTANTS.match(base):
        return False
    return bool(_MEMORY.match(base) or _CONVERSION.match(base) or base in _WAIT)


def flops_of_block(kernel: KernelCode, instructions: Sequence[Instruction]) -> int | str | None:
    """FLOPs of one thread block, on the path with the most; why they are not known; None where the code states no block."""
    if kernel.block is None:
        return None
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    code = blocks.summarise(instructions, turns.constant_bank(kernel.arch, kernel.block, (), {}))
    each, of_block, _ = counts.count(code, {}, threads)
    counted = counts.launch(code, each, (1, 1, 1), kernel.block)
    flops, lacking = counts.flops(of_block, counted, 1)
    if lacking:
        return f"the size of {', '.join(lacking)} is in a register"
    if code.doubts:
        return code.doubts[0]
    if flops is None or flops.high is None:
        return "they depend on turns of a loop that the code does not state"
    return int(flops.whole)
