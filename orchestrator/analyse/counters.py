"""FLOPs that one kernel executed, from its SASS counters. 1 multiply-add = 2 FLOPs.

``_thread_inst_`` metrics count threads, so nothing is multiplied by 32 for them; ``sm__`` and
``smsp__`` sums agree, and either is taken. Additions alone (FADD, the set of counters that many
studies use) say nothing about multiply-adds, which are FFMA: without all three there is no figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from perfctl.orchestrator.analyse import rates
from perfctl.orchestrator.analyse.figure import Figure, absent
from perfctl.parsers.records import Counter
from perfctl.parsers.stored import Run

Values = Mapping[str, float | None]

PIPE_TENSOR = "inst_executed_pipe_tensor.sum"
HFMA2_ON_TENSOR_PIPE = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
VOLTA_FLOPS_PER_INSTRUCTION = 512
"""HMMA.884 with fp32 accumulation: one step of a warp is 256 multiply-adds. fp16 accumulation does twice that."""
PHANTOM_SLACK = 0.05
"""How far pipe_tensor may lie above hfma/32 (threads predicated off) and still be all constant moves."""
OPS_PATH = "sm__ops_path_tensor_src_"


class KernelFlops(NamedTuple):
    """FLOPs of one launch by path; ``total`` is their sum, a lower bound when a path is missing."""

    fp32: Figure
    fp64: Figure
    fp16: Figure
    tensor: Figure
    total: Figure


def values_by_launch(counters: Iterable[Counter]) -> dict[int, dict[str, float | None]]:
    """launch -> metric -> value; a metric that several sections print keeps its first number."""
    found: dict[int, dict[str, float | None]] = {}
    for launch, name, value, *_ in counters:
        values = found.setdefault(launch, {})
        if values.get(name) is None:
            values[name] = value
    return found


def flops_by_launch(run: Run) -> dict[int, KernelFlops]:
    """launch -> FLOPs, for every launch of the run that has any counter."""
    capability = compute_capability(run)
    by_launch = values_by_launch(run.report.counters)
    return {launch: kernel_flops(values, capability) for launch, values in by_launch.items()}


def compute_capability(run: Run) -> str | None:
    """Of the GPU the run used; None when no record says so."""
    devices = ([run.device] if run.device else []) + list(run.report.devices)
    return next((device.compute_capability for device in devices if device.compute_capability), None)


def kernel_flops(values: Values, capability: str | None) -> KernelFlops:
    """FLOPs of one launch from its metrics. ``capability`` is "7.0", "8.6", ... or None when not known."""
    used = tuple(item for item in values.items() if makes_flops(item[0]))
    if any(name.endswith(rates.SUFFIX) for name, _ in used):
        counts, derived = rates.with_counts(values)
        if derived:
            counted = _kernel_flops(tuple(item for item in counts.items() if makes_flops(item[0])), capability)
            return KernelFlops(*(_from_rates(figure) for figure in counted))
    return _kernel_flops(used, capability)


def _from_rates(figure: Figure) -> Figure:
    """The same figure as an estimate with the rule named; what has no value keeps its reason."""
    if figure.value is None or not figure.launches:
        return figure
    return replace(figure, state="estimated", reason="; ".join(filter(None, (rates.RULE, figure.reason))))


@lru_cache(maxsize=4096)
def makes_flops(name: str) -> bool:
    """True for the metrics that FLOPs are made from (what turns a rate into a count not included)."""
    return "_thread_inst_executed_op_" in name or "_inst_executed_pipe_tensor" in name or name.startswith(OPS_PATH)


@lru_cache(maxsize=65536)
def _kernel_flops(items: tuple[tuple[str, float | None], ...], capability: str | None) -> KernelFlops:
    """Launches of one kernel mostly have the same counts, so equal ones are worked out once."""
    values = dict(items)
    phantom = _is_phantom(values, capability)
    fp32 = _fp32(values, capability)
    fp64 = _weighted(values, "fp64", {"dadd": 1, "dmul": 1, "dfma": 2})
    fp16 = _fp16(values, capability, phantom)
    tensor = _tensor(values, capability, phantom)
    return KernelFlops(fp32, fp64, fp16, tensor, _total({"fp32": fp32, "fp64": fp64, "fp16": fp16, "tensor": tensor}))


def _metric(values: Values, tail: str) -> float | None:
    value = values.get(f"sm__{tail}")
    return values.get(f"smsp__{tail}") if value is None else value


def _asked(values: Values, tail: str) -> bool:
    return f"sm__{tail}" in values or f"smsp__{tail}" in values


def _op(name: str) -> str:
    return f"sass_thread_inst_executed_op_{name}_pred_on.sum"


def _weighted(values: Values, path: str, weights: Mapping[str, int]) -> Figure:
    """Sum of weight x threads over the instructions of one path; all of them are needed."""
    found = {op: _metric(values, _op(op)) for op in weights}
    lacking = [op.upper() for op, value in found.items() if value is None]
    if not lacking:
        return Figure(sum(weights[op] * value for op, value in found.items() if value is not None), "counted")
    if any(_asked(values, _op(op.lower())) for op in lacking):
        return absent("not_available", f"ncu printed no value for {', '.join(lacking)}")
    if len(lacking) == len(weights):
        return absent("not_collected", f"{path} counters were not collected")
    had = ", ".join(op.upper() for op in weights if op.upper() not in lacking)
    return absent("not_collected", f"only {had} was collected; without {', '.join(lacking)} it is no count of FLOPs")


def _fp32(values: Values, capability: str | None) -> Figure:
    figure = _weighted(values, "fp32", {"fadd": 1, "fmul": 1, "ffma": 2})
    if figure.value is None or _major(capability) < 10:
        return figure
    # Blackwell has two-lane fp32 instructions beside the plain ones.
    packed = _weighted(values, "packed fp32", {"fadd2": 2, "fmul2": 2, "ffma2": 4})
    if packed.value is None:
        return Figure(figure.value, "counted", "packed fp32 (FFMA2) was not collected", missing=("packed fp32",))
    state = "estimated" if packed.value else "counted"
    return Figure(figure.value + packed.value, state, "packed fp32 weighted 2, 2, 4" if packed.value else None)


def _fp16(values: Values, capability: str | None, phantom: bool) -> Figure:
    """hadd + hmul + 2 hfma, ncu 2022.3's rule. Newer tools use 2, 2, 4 because HFMA2 works on two lanes."""
    if phantom and capability is not None:
        others = _weighted(values, "fp16", {"hadd": 1, "hmul": 1})
        if others.value is None:
            return others
        state = "estimated" if others.value else "counted"
        return Figure(others.value, state, "HFMA2 moved constants here and is left out")
    figure = _weighted(values, "fp16", {"hadd": 1, "hmul": 1, "hfma": 2})
    if not figure.value:
        return figure
    if _may_move_constants(values, capability, phantom):
        chip = "" if capability else " (the chip is not known; it is so from CC 8.0 on)"
        return absent("refused", f"HFMA2 may only have moved constants{chip}: not added")
    return Figure(figure.value, "estimated", "HADD + HMUL + 2 HFMA; up to twice that where instructions are packed")


def _may_move_constants(values: Values, capability: str | None, phantom: bool) -> bool:
    """True when nothing tells HFMA2 arithmetic from HFMA2 that loads a constant.

    ptxas 12.9 moves constants with HFMA2.MMA (counted by the tensor pipe too) on sm_80 and sm_90, with plain HFMA2 on
    sm_100 and sm_120, and not at all on sm_75 and before.
    """
    hfma = _metric(values, _op("hfma"))
    if not hfma or 0 < _major(capability) < 8:
        return False
    pipe = _metric(values, PIPE_TENSOR)
    return phantom or _major(capability) >= 10 or pipe is None or 32 * pipe >= hfma


def _is_phantom(values: Values, capability: str | None) -> bool:
    """True when all tensor instructions are HFMA2 moving constants, which compilers for CC 8.x and 9.x emit.

    Where the chip is not known the equality makes it likely; then nothing is added, and nothing is called 0.
    """
    pipe = _metric(values, PIPE_TENSOR)
    hfma = _metric(values, _op("hfma"))
    if not pipe or _major(capability) not in (0, 8, 9):
        return False
    moves = values.get(HFMA2_ON_TENSOR_PIPE)
    if moves is not None:
        return moves == pipe
    return bool(hfma) and hfma is not None and hfma <= 32 * pipe <= hfma * (1 + PHANTOM_SLACK)


def _tensor(values: Values, capability: str | None, phantom: bool) -> Figure:
    paths = [
        value
        for name, value in values.items()
        if name.startswith(OPS_PATH) and name.endswith(".sum") and "_sparsity_" not in name and value is not None
    ]
    if paths:
        return Figure(sum(paths), "counted")
    if 0 < _major(capability) < 7:
        return Figure(0, "counted", f"compute capability {capability} has no tensor cores", launches=0, of_launches=0)
    pipe = _metric(values, PIPE_TENSOR)
    if pipe is None:
        asked = _asked(values, PIPE_TENSOR) or any(name.startswith(OPS_PATH) for name in values)
        if asked:
            return absent("not_available", "ncu printed no value for the tensor counters on this chip")
        return absent("not_collected", "tensor counters were not collected")
    if pipe == 0:
        return Figure(0, "counted")
    if phantom and capability is None:
        return absent(
            "refused",
            "its instructions are as many as HFMA2, which moves constants on CC 8.x and 9.x; the chip is not known",
        )
    if phantom:
        return Figure(0, "counted", "the tensor pipe only moved constants (HFMA2 = 32 x its instructions)")
    if capability == "7.0":
        rule = f"{VOLTA_FLOPS_PER_INSTRUCTION} x tensor instructions (HMMA.884, fp32 accumulation)"
        return Figure(VOLTA_FLOPS_PER_INSTRUCTION * pipe, "estimated", rule)
    return absent("not_available", "tensor instructions were counted, but not their shape: no FLOPs follow from that")


def _total(paths: Mapping[str, Figure]) -> Figure:
    """Sum of the paths. No value when nothing was measured, or when the known part is 0 and a path is missing."""
    lacking = {name: figure for name, figure in paths.items() if figure.value is None}
    known = [figure for figure in paths.values() if figure.value is not None]
    value = sum(figure.value for figure in known if figure.value is not None)
    missing = tuple(lacking) + tuple(part for figure in known for part in figure.missing)
    if not known or (missing and value == 0):
        first = next(iter(lacking.values()), None)
        if first is None:
            return absent("not_collected", "packed fp32 was not collected and the rest is 0")
        return absent(first.state, first.reason or "not collected")
    notes = [figure.reason for figure in known if figure.reason and figure.launches]
    notes += [f"{name}: {figure.reason}" for name, figure in lacking.items()]
    state = "estimated" if any(figure.state == "estimated" for figure in known) else "counted"
    return Figure(value, state, "; ".join(notes) or None, missing=missing)


def _major(capability: str | None) -> int:
    """8 for "8.6"; 0 when not known."""
    head = (capability or "").partition(".")[0]
    return int(head) if head.isdecimal() else 0
