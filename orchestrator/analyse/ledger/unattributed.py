"""What took the time that belongs to no layer: each cause with its share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass

from perfctl.orchestrator.analyse.kernels.names import family
from perfctl.orchestrator.analyse.ledger.prepared import PreparedRun
from perfctl.orchestrator.analyse.ledger.timing import times_kernels, upwards
from perfctl.records.report import Kernel, Range
from perfctl.records.run import Run

COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction", "TorchDynamo Cache Lookup")
"""How the names of ranges around compiled code begin: no module hook runs inside."""
_PHASES = {
    "data": "data loading and copies to the device",
    "copy": "copies to the device",
    "zero_grad": "setting gradients to zero",
    "forward": "the loss and functional calls",
    "inference": "functional calls",
    "backward": "autograd",
    "optimizer": "the optimizer",
}
_KINDS = {"norm": "normalisation", "pool": "pooling", "collective": "NCCL", "gemm": "product", "conv": "convolution"}
NO_RANGES = "a report without layer ranges, which 'perfctl nsys' and 'perfctl torch' record"
NO_BACKWARD = "backward kernels, because ranges on autograd's own thread are missing"
NO_CALL = "launches outside every range, from another thread or process or a CUDA graph"
COMPILED_CODE = "compiled code, whose layers share one range"
BETWEEN = "the script's own code between modules, such as the loss or clipping"


@dataclass(frozen=True, slots=True)
class Cause:
    """One part of the time that belongs to no layer."""

    text: str
    share: float
    launches: int | None
    """Its kernel launches; None where host ranges were timed."""


def causes(run: PreparedRun) -> tuple[Cause, ...]:
    """Causes of the unattributed time of a run, the largest first; their shares add up to 1. Empty when there is none."""
    return _of_kernels(run) if times_kernels(run.run) else _of_ranges(run.run)


def beyond_time(run: Run) -> tuple[str, ...]:
    """What the run's time does not hold at all: kernels of CUDA graphs, launches outside of all measured steps."""
    found = [gap.reason for gap in run.report.gaps if gap.quantity == "kernel" and "graph" in gap.reason]
    kernels = list(run.report.kernels)
    outside = sum(kernel.step is None for kernel in kernels)
    if 0 < outside < len(kernels):
        found.append(f"{outside} of {len(kernels)} launches lie outside every measured step and count nowhere")
    return tuple(found)


def _of_kernels(run: PreparedRun) -> tuple[Cause, ...]:
    ranges = {item.number: item for item in run.run.report.ranges}
    # ncu and DLProf give launches their layers without listing ranges
    known = {item.direction for item in ranges.values()} | {kernel.direction for kernel in run.run.report.kernels}
    known -= {None, "optimizer"}
    times: defaultdict[str, float] = defaultdict(float)
    launches: Counter[str] = Counter()
    by_operator = bool(run.run.report.ops) and not any(item.layer for item in ranges.values())
    for kernel, key in run.launches:
        if key is None and kernel.duration_ns is not None:
            cause = _kind(kernel) if by_operator else _cause(kernel, ranges, known)
            times[cause] += kernel.duration_ns
            launches[cause] += 1
    return _ranked(times, launches)


def _kind(kernel: Kernel) -> str:
    """Of a report whose rows are the operators that multiply: what the kernels of all others do."""
    found = family(kernel.name)
    return f"{_KINDS.get(found, found)} kernels" if found else "kernels that are not recognised"


def _cause(kernel: Kernel, ranges: Mapping[int, Range], known: Set[str | None]) -> str:
    if not known:
        return NO_RANGES
    around = list(upwards(kernel.range_number, ranges))
    if kernel.name.startswith("triton_") or any(item.name.startswith(COMPILED) for item in around):
        return COMPILED_CODE
    phase = next((item.phase for item in around if item.phase), None)
    trained = phase == "backward" or any(item.phase in ("backward", "optimizer") for item in ranges.values())
    if trained and phase in (None, "backward") and not known - {"forward", "recompute"}:
        return NO_BACKWARD
    if phase is not None:
        return _PHASES.get(phase, f"the phase {phase}")
    return BETWEEN if any(item.step is not None for item in around) else NO_CALL


def _of_ranges(run: Run) -> tuple[Cause, ...]:
    ranges = {item.number: item for item in run.report.ranges}
    if not any(item.layer for item in ranges.values()):
        return ()
    opened = ("perfctl:step:", "perfctl:phase:")
    left = {n: float(item.duration_ns or 0) for n, item in ranges.items() if item.name.startswith(opened)}
    attributed = {n for n, item in ranges.items() if item.layer or item.name == "perfctl:phase:optimizer"}
    for number, item in ranges.items():
        if item.duration_ns is None or (number not in left and number not in attributed):
            continue
        above = (outer.number for outer in upwards(item.parent, ranges))
        holder = next((outer for outer in above if outer in attributed or outer in left), None)
        if holder is not None and holder not in attributed:
            left[holder] -= item.duration_ns
    times: defaultdict[str, float] = defaultdict(float)
    for number, nanoseconds in left.items():
        item = ranges[number]
        if number not in attributed and item.step is not None:
            phase = item.phase if item.name.startswith("perfctl:phase:") else None
            times[_PHASES.get(phase, f"the phase {phase}") if phase else BETWEEN] += max(nanoseconds, 0)
    return _ranked(times, None)


def _ranked(times: Mapping[str, float], launches: Mapping[str, int] | None) -> tuple[Cause, ...]:
    total = sum(times.values())
    ranked = sorted(times.items(), key=lambda item: -item[1])
    return tuple(Cause(text, time / total, launches[text] if launches else None) for text, time in ranked if time)
