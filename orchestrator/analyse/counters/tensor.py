"""Operations of the tensor cores in one launch, by the type of the numbers they multiply.

``sm__ops_path_tensor_[op_<instruction>_]src_<type>[_dst_<type>][_sparsity_<on|off>].sum`` counts operations, 2 per
multiply-add. A form that says less is the sum of those that say more, so of each input type only the coarsest level
counts. Without these metrics (ncu before 2023) there are only instructions, whose size depends on their shape: FLOPs per
instruction of a warp were measured from compiled PTX, and the kernel's name has the shape.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from perfctl.orchestrator.analyse.counters.sums import (
    HFMA2_ON_TENSOR_PIPE,
    PIPE_TENSOR,
    Values,
    asked,
    major,
    metric,
    op,
)
from perfctl.orchestrator.analyse.figure import Figure, missing
from perfctl.orchestrator.analyse.kernels.names import Algorithm

PREFIX = "sm__ops_path_tensor_"
VOLTA_FLOPS_PER_INSTRUCTION = 512
"""HMMA.884 with fp32 accumulation: one step of a warp is 256 multiply-adds. fp16 accumulation does twice that."""
FLOPS_PER_INSTRUCTION = {
    ("fp16", "s884"): 512, ("fp16", "h884"): 1024, ("fp16", "s1688"): 2048, ("fp16", "h1688"): 2048,
    ("tf32", "s1684"): 1024, ("tf32", "s1688"): 2048, ("fp16", "s16816"): 4096, ("fp16", "h16816"): 4096,
    ("bf16", "s1688"): 2048, ("bf16", "s16816"): 4096, ("fp64", "d884"): 512, ("fp8", "s16832"): 8192,
}  # fmt: skip
"""(type, accumulator and shape) -> FLOPs of one instruction of a warp."""
INTEGER_PER_INSTRUCTION = {"i8816": 2048, "i16816": 4096, "i16832": 8192}
INTEGER = ("int8", "int4", "int1")
EXPECTED = {7: ("fp16",), 8: ("fp16", "bf16", "tf32"), 9: ("fp16", "bf16", "tf32")}
"""Types that must be there before a sum of them is whole; 10 and later as 9. fp64, fp8 and fp4 are rare enough to be
asked for only where the kernel's name says so."""
_PATH = re.compile(
    r"sm__ops_path_tensor_(?:op_(?P<op>[a-z0-9]+)_)?src_(?P<src>[a-z0-9]+(?:_fp\d)*?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum"
)


class Tensor(NamedTuple):
    """What the tensor cores of one launch did."""

    flops: Figure
    types: tuple[tuple[str, Figure], ...]
    integer: Figure


def tensor(values: Values, capability: str | None, phantom: bool, algorithm: Algorithm) -> Tensor:
    """From the counters of operations where there are any, else from instructions."""
    paths = {name: value for name, value in values.items() if name.startswith(PREFIX) and name.endswith(".sum")}
    if any(value is not None for value in paths.values()):
        return _from_paths(paths, capability, algorithm)
    return _from_instructions(values, capability, phantom, algorithm, bool(paths))


def ops_path(values: Values) -> float | None:
    """Operations of the tensor cores, integer ones too, no form of a counter added to its own parts; None without."""
    known = [figure.value for figure in _types(values).values() if figure.value is not None]
    return sum(known) if known else None


def _types(paths: Values) -> dict[str, Figure]:
    levels: dict[str, dict[int, list[tuple[str | None, float]]]] = defaultdict(lambda: defaultdict(list))
    for name, value in paths.items():
        found = _PATH.fullmatch(name)
        if found is None or value is None:
            continue
        level = 4 * (found["op"] is not None) + 2 * (found["sparsity"] is not None) + (found["dst"] is not None)
        part = found["sparsity"] or (f"op {found['op']}" if found["op"] else None)
        levels[found["src"]][level].append((part, value))
    return {kind: _type(kind, found) for kind, found in levels.items()}


def _from_paths(paths: Values, capability: str | None, algorithm: Algorithm) -> Tensor:
    types = _types(paths)
    floats = {kind: figure for kind, figure in types.items() if kind not in INTEGER}
    integers = [figure.value for kind, figure in types.items() if kind in INTEGER and figure.value is not None]
    integer = missing("not_collected", "integer tensor operations were not collected")
    if integers:
        integer = Figure(sum(integers), "counted", "integer operations, no FLOPs")
    return Tensor(_sum_of_types(floats, capability, algorithm), tuple(sorted(types.items())), integer)


def _type(kind: str, levels: dict[int, list[tuple[str | None, float]]]) -> Figure:
    level = min(levels)
    value = sum(count for _, count in levels[level])
    parts = {part for part, _ in levels[level] if part}
    without: tuple[str, ...] = ()
    if level & 4:
        without = (f"tensor {kind} of other instructions",)
    elif level & 2 and parts != {"on", "off"}:
        without = (f"tensor {kind} with sparsity {'off' if parts == {'on'} else 'on'}",)
    if without and not value:
        return missing("not_collected", f"{without[0]} was not collected, and the rest is 0")
    return Figure(value, "counted", missing=without, rule=f"{PREFIX}src_{kind}")


def _sum_of_types(floats: dict[str, Figure], capability: str | None, algorithm: Algorithm) -> Figure:
    known = {kind: figure for kind, figure in floats.items() if figure.value is not None}
    value = sum(figure.value or 0 for figure in known.values())
    wanted = dict.fromkeys(EXPECTED.get(min(major(capability), 9), ()))
    if algorithm.tensor_core and algorithm.math and algorithm.math not in INTEGER:
        wanted[algorithm.math] = None
    lacking = tuple(f"tensor {kind}" for kind in wanted if not any(kind in name.split("_") for name in known))
    without = (*lacking, *(part for figure in known.values() for part in figure.missing))
    what = ", ".join(without).replace("tensor ", "") or "floating-point types"
    reason = f"tensor operations of {what} were not collected"
    if not known or (without and not value):
        return missing("not_collected", reason + (f", and those of {', '.join(sorted(known))} are 0" if known else ""))
    rule = f"{PREFIX}src: " + " + ".join(sorted(known))
    return Figure(value, "counted", reason if without else None, missing=without, rule=rule)


def _from_instructions(
    values: Values, capability: str | None, phantom: bool, algorithm: Algorithm, paths_asked: bool
) -> Tensor:
    figure = _instructions(values, capability, phantom, algorithm, paths_asked)
    pipe = metric(values, PIPE_TENSOR)
    if pipe and algorithm.math in INTEGER:
        return _integers(pipe, algorithm)
    integer = Figure(0, "counted") if pipe == 0 else missing("not_available", "their shape is not known")
    return Tensor(figure, ((algorithm.math, figure),) if figure.value and algorithm.math else (), integer)


def _integers(pipe: float, algorithm: Algorithm) -> Tensor:
    flops = Figure(0, "estimated", "its tensor instructions multiply integers, by the kernel's name: no FLOPs")
    each = INTEGER_PER_INSTRUCTION.get(algorithm.instruction or "")
    if each is None:
        reason = "integer tensor instructions have no size without their shape"
        return Tensor(flops, (), missing("not_available", reason))
    rule = f"{each} x tensor instructions ({algorithm.instruction}, by the kernel's name)"
    return Tensor(flops, (), Figure(each * pipe, "estimated", rule, rule=rule))


def _instructions(
    values: Values, capability: str | None, phantom: bool, algorithm: Algorithm, paths_asked: bool
) -> Figure:
    if 0 < major(capability) < 7:
        return Figure(0, "counted", f"compute capability {capability} has no tensor cores", launches=0, of_launches=0)
    pipe = metric(values, PIPE_TENSOR)
    if pipe is None and (paths_asked or asked(values, PIPE_TENSOR)):
        return missing("not_available", "ncu printed no value for the tensor counters on this chip")
    if pipe is None:
        return missing("not_collected", "tensor counters were not collected")
    if pipe == 0:
        return Figure(0, "counted", rule="no tensor instruction was executed")
    if phantom and capability is None:
        reason = "its instructions are as many as HFMA2, which moves constants on CC 8.x and 9.x; the chip is not known"
        return missing("refused", reason)
    if phantom:
        reason = "the tensor pipe only moved constants (HFMA2 = 32 x its instructions)"
        return Figure(0, "counted", reason, rule="tensor instructions - HFMA2 / 32")
    return _sized(values, pipe, capability, algorithm)


def _sized(values: Values, pipe: float, capability: str | None, algorithm: Algorithm) -> Figure:
    """Instructions x the FLOPs of the shape that the kernel's name states, or of the only one that Volta has."""
    each = FLOPS_PER_INSTRUCTION.get((algorithm.math or "", algorithm.instruction or ""))
    shape = f"{algorithm.instruction} of {algorithm.math}, by the kernel's name"
    if capability == "7.0":
        each = each or VOLTA_FLOPS_PER_INSTRUCTION
        shape = f"HMMA.884, {'fp16' if each == 1024 else 'fp32'} accumulation"
    elif each is None or capability is None:
        reason = "tensor instructions were counted, but not their shape: no FLOPs follow from that"
        return missing("not_available", reason)
    moves = _moves(values, capability)
    less = f", without {moves:,.0f} that move constants" if moves else ""
    rule = f"{each} x tensor instructions ({shape}){less}"
    return Figure(each * (pipe - moves), "estimated", rule, rule=rule)


def _moves(values: Values, capability: str | None) -> float:
    """Instructions of the tensor pipe that move constants: as ncu counts them, else HFMA2 / 32 on CC 8.x and 9.x."""
    if major(capability) not in (8, 9):
        return 0
    said = metric(values, HFMA2_ON_TENSOR_PIPE)
    return said if said is not None else (metric(values, op("hfma")) or 0) // 32
