"""Which machine instructions are counted, for whom they count, and how many FLOPs one of them is.

1 multiply-add = 2 FLOPs. Shapes of tensor core instructions stand in their names: m x n x k multiply-adds. FLOPs were checked
with PTX compiled for each of them. HMMA.884 is one of the steps of Volta, which share 8 x 8 x 4 multiply-adds of 4 groups.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

from perfctl.orchestrator.analyse.derived.code.records import BLOCK, THREAD, WARP, WARPGROUP, Kind
from perfctl.records.sass import Instruction

_SCALAR = {
    "FADD": (1, "fp32"), "FMUL": (1, "fp32"), "FFMA": (2, "fp32"), "FSWZADD": (1, "fp32"), "FHADD": (1, "fp32"), "FHFMA": (2, "fp32"),
    "FADD2": (2, "fp32"), "FMUL2": (2, "fp32"), "FFMA2": (4, "fp32"), "DADD": (1, "fp64"), "DMUL": (1, "fp64"), "DFMA": (2, "fp64"),
    "HADD2": (2, "half"), "HMUL2": (2, "half"), "HFMA2": (4, "half"),
}  # fmt: skip
"""Opcode -> (FLOPs of one, path). What ends in 2 works on two values, packed in one or two registers."""
_SHAPES = {
    "884": (8, 8, 4), "1684": (16, 8, 4), "1688": (16, 8, 8), "16816": (16, 8, 16), "16832": (16, 8, 32), "16864": (16, 8, 64),
    "168128": (16, 8, 128), "168256": (16, 8, 256), "8816": (8, 8, 16), "8832": (8, 8, 32), "88128": (8, 8, 128),
}  # fmt: skip
_WARP = re.compile(r"(?P<base>[HIQDBO]MMA)\.(?:[A-Z]\w*\.)*?(?P<shape>\d+)(?P<rest>.*)")
_GROUP = re.compile(r"(?P<base>[HIQBO]GMMA)\.(?:[A-Z]\w*\.)*?(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)(?P<rest>.*)")
_TCGEN = re.compile(r"UTC[HQIO]MMA\b")
_DEPTH = {"UTCHMMA": 16, "UTCQMMA": 32, "UTCIMMA": 32}
_TF32 = 2
MOVES = "constant moves"
"""End of the name of what only puts a constant into a register."""
_ZERO = ("RZ", "-RZ")


def kind_of(instruction: Instruction, descriptor: int | None = None) -> Kind | None:
    """The kind of an instruction; None for those that are not counted: moves, loads, integers, comparisons, conversions.

    descriptor: value of the instruction descriptor of a tcgen05 product (``idesc[UR..]``), which holds its m and n.
    """
    base = instruction.base.removesuffix("_32I").removesuffix("32I")
    if base in _SCALAR:
        return _scalar(base, instruction)
    if base == "MUFU":
        return _mufu(instruction.opcode)
    if "MMA" in base:
        return _tensor(instruction.opcode, descriptor)
    return None


@lru_cache(maxsize=256)
def _mufu(opcode: str) -> Kind:
    return Kind(".".join(opcode.split(".")[:2]), THREAD, 0)


def _scalar(base: str, instruction: Instruction) -> Kind:
    flops, path = _SCALAR[base]
    sources = [word.removesuffix(".reuse") for word in instruction.operands[1:]]
    if base == "HFMA2" and any(word in _ZERO for word in sources[:2]):
        return Kind(f"HFMA2, {MOVES}", THREAD, 0)  # x * 0 + constant: counters count it, and it is no arithmetic
    if base == "HADD2" and ".F32" in instruction.opcode:
        return Kind("HADD2, conversions", THREAD, 0)  # half to float, as 0 + x
    return Kind(base, THREAD, flops, path)


@lru_cache(maxsize=1024)
def _tensor(opcode: str, descriptor: int | None) -> Kind | None:
    if found := _GROUP.fullmatch(opcode):
        size = prod(int(found[side]) for side in "mnk")
        return Kind(f"{found['base']}.{found['m']}x{found['n']}x{found['k']}", WARPGROUP, 2 * size, "tensor")
    if found := _WARP.fullmatch(opcode):
        return _warp(found)
    if found := _TCGEN.match(opcode):
        return _tcgen(found[0], opcode, descriptor)
    return None


def _warp(found: re.Match[str]) -> Kind:
    base, shape = found["base"], found["shape"]
    name = f"{base}.{shape}"
    if base == "HMMA" and shape == "884":
        half = ".F16.F16" in found["rest"] or found["rest"].startswith(".F16")
        return Kind(f"{name}.{'F16' if half else 'F32'}", WARP, 1024 if half else 512, "tensor")
    sides = _SHAPES.get(shape)
    return Kind(name, WARP, None if sides is None else 2 * prod(sides), "tensor")


def _tcgen(base: str, opcode: str, descriptor: int | None) -> Kind:
    """Of tcgen05.mma: M / 16 in bits 24 to 28 of the descriptor, N / 8 in bits 17 to 22, the type of A in bits 7 to 9."""
    depth = _DEPTH.get(base)
    if descriptor is None or depth is None:
        return Kind(base, BLOCK, None, "tensor")
    m, n = (descriptor >> 24 & 0x1F) * 16, (descriptor >> 17 & 0x3F) * 8
    if base == "UTCHMMA" and descriptor >> 7 & 7 == _TF32:
        depth = 8
    pair = ".2CTA" in opcode  # one of two blocks starts it for both
    return Kind(f"{base}.{m}x{n}x{depth}", BLOCK, 2 * m * n * depth // (2 if pair else 1), "tensor")
