"""The causes of the time that belongs to no layer, each with its share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from perfctl.orchestrator.counts.kernels.names import recognise_family
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun, Study
from perfctl.orchestrator.ledger.timing import (
    compute_range_self_times_ns,
    find_perfctl_step_spans,
    has_kernel_times,
    is_step_range_of_perfctl,
    walk_enclosing_ranges,
)
from perfctl.orchestrator.ledger.usage.intervals import sum_durations_ns
from perfctl.orchestrator.ledger.usage.run_usage import (
    COLLECTIVE,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    DATA,
)
from perfctl.records.report import Kernel, Range
from perfctl.records.run import Point, Run

COMPILED = (
    "Torch-Compiled Region",
    "## Call CompiledFxGraph",
    "CompiledFunction",
    "TorchDynamo Cache Lookup",
)
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
_KINDS = {
    "norm": "normalisation",
    "pool": "pooling",
    "collective": "NCCL",
    "gemm": "product",
    "conv": "convolution",
}
NO_RANGES = "a report without layer ranges, which 'perfctl nsys' and 'perfctl torch' record"
NO_FORMULA = "kernels that match no formula"
NO_BACKWARD = "backward kernels, because the report has no ranges on the thread of autograd"
NO_CALL = "launches outside every range, from another thread or process or a CUDA graph"
COMPILED_CODE = "compiled code, whose layers share one range"
BETWEEN = "script code between modules, such as the loss or clipping"
AROUND_MODEL = (
    "script code between modules, which the estimate omits after a step's last model call"
)
BETWEEN_THREADS = "time between the calls of the model in several threads"
UNRECOGNISED = "unrecognized kernels"


@dataclass(frozen=True, slots=True)
class UnattributedCause:
    """One part of the time that belongs to no layer."""

    text: str
    share: float
    launches: int | None
    """Its kernel launches; None where host ranges were timed."""


def explain_unattributed_time(run: PreparedRun) -> tuple[UnattributedCause, ...]:
    """Return the causes of the unattributed time of a run, the largest first; their shares add up
    to 1. Empty when there is none."""
    return (
        _explain_unattributed_kernel_time(run)
        if has_kernel_times(run.run)
        else _explain_unattributed_range_time(run.run)
    )


def list_reasons_for_untimed_kernels(run: Run) -> tuple[str, ...]:
    """Return what the run's time does not hold at all: kernels of CUDA graphs, launches outside of
    all measured steps."""
    reasons = [
        gap.reason for gap in run.report.gaps if gap.quantity == "kernel" and "graph" in gap.reason
    ]
    kernels = list(run.report.kernels)
    outside = sum(kernel.step is None for kernel in kernels)
    if 0 < outside < len(kernels):
        reasons.append(
            f"{outside} of {len(kernels)} launches are outside of all measured steps and not "
            "included"
        )
    return tuple(reasons)


def _explain_unattributed_kernel_time(run: PreparedRun) -> tuple[UnattributedCause, ...]:
    report = run.run.report
    ranges = {item.number: item for item in report.ranges}
    # ncu and DLProf give launches their layers without listing ranges
    directions = {item.direction for item in ranges.values()}
    directions |= {kernel.direction for kernel in report.kernels}
    directions -= {None, "optimizer"}
    between = _describe_code_between(ranges)
    is_trained = any(item.phase in ("backward", "optimizer") for item in ranges.values())
    by_operator = bool(report.ops) and not any(item.layer for item in ranges.values())
    times: defaultdict[str, float] = defaultdict(float)
    launches: Counter[str] = Counter()
    for kernel, key in run.measured_launches:
        if key is None and kernel.duration_ns is not None:
            if by_operator:  # rows are the operators that multiply
                kind = recognise_family(kernel.name)
                cause = f"{_KINDS.get(kind, kind)} kernels" if kind else UNRECOGNISED
            elif not directions:
                cause = NO_FORMULA if run.run.expectations else NO_RANGES
            else:
                lacks_backward = is_trained and not directions - {"forward", "recompute"}
                cause = _explain_unattributed_kernel(kernel, ranges, between, lacks_backward)
            times[cause] += kernel.duration_ns
            launches[cause] += 1
    return _rank_unattributed_causes(times, launches)


def _explain_unattributed_kernel(
    kernel: Kernel, ranges: Mapping[int, Range], between: str, lacks_backward: bool
) -> str:
    """Return why a kernel has no layer; ``between``, if script code launched it between modules.
    ``lacks_backward``: the run trains, and no kernel is of a backward pass."""
    enclosing = list(walk_enclosing_ranges(kernel.range_number, ranges))
    if kernel.name.startswith("triton_") or any(
        item.name.startswith(COMPILED) for item in enclosing
    ):
        return COMPILED_CODE
    phase = next((item.phase for item in enclosing if item.phase), None)
    if lacks_backward and phase in (None, "backward"):
        return NO_BACKWARD
    if phase is not None:
        return _PHASES.get(phase, f"the phase {phase}")
    return between if any(item.step is not None for item in enclosing) else NO_CALL


def _describe_code_between(ranges: Mapping[int, Range]) -> str:
    """Return what runs between modules. Without training, a step ends with a call of the model."""
    phases = {item.phase for item in ranges.values()}
    is_trained = phases & {"backward", "optimizer"} or not phases & {"forward", "inference"}
    return BETWEEN if is_trained else AROUND_MODEL


def _explain_unattributed_range_time(run: Run) -> tuple[UnattributedCause, ...]:
    ranges = {item.number: item for item in run.report.ranges}
    if not any(item.layer for item in ranges.values()):
        return ()
    attributed = {
        number
        for number, item in ranges.items()
        if item.layer or item.name == "perfctl:phase:optimizer"
    }
    opened = {
        number
        for number, item in ranges.items()
        if item.name.startswith(("perfctl:step:", "perfctl:phase:"))
    }
    between = _describe_code_between(ranges)
    times: defaultdict[str, float] = defaultdict(float)
    for number, own_ns in compute_range_self_times_ns(ranges, opened | attributed).items():
        item = ranges[number]
        if number not in attributed and item.step is not None:
            phase = item.phase if item.name.startswith("perfctl:phase:") else None
            cause = _PHASES.get(phase, f"the phase {phase}") if phase else between
            times[cause] += max(own_ns, 0)
    in_threads = sum(
        item.duration_ns or 0 for item in ranges.values() if is_step_range_of_perfctl(item)
    )
    spans = find_perfctl_step_spans(ranges.values()).values()
    times[BETWEEN_THREADS] = max(sum(last - first for first, last in spans) - in_threads, 0)
    return _rank_unattributed_causes(times, None)


def _rank_unattributed_causes(
    times: Mapping[str, float], launches: Mapping[str, int] | None
) -> tuple[UnattributedCause, ...]:
    """Return the causes with a share, the largest first."""
    total = sum(times.values())
    ranked = sorted(times.items(), key=lambda item: -item[1])
    return tuple(
        UnattributedCause(text, time / total, launches[text] if launches else None)
        for text, time in ranked
        if time
    )


def find_largest_other_share(study: Study, ledger: Ledger, batch: Point) -> float:
    """Return the share of communication, also where computation hides it, of copies, data loading
    or time of no layer, whichever is most, next to the time that the ledger divides among layers:
    1.5 is half as much again."""
    shares = [item.share for item in ledger.unattributed if item.batch == batch]
    run = study.get_batch(batch).timing_run
    breakdown = run.usage.time_breakdown if run else None
    if run and breakdown:
        kernels = breakdown.shares[COMPUTE] + breakdown.shares[COMMUNICATION]
        loading = max(idle.by_cause.get(DATA, 0) / idle.window_ns for idle in run.usage.idle_times)
        shares += [share / kernels for share in (breakdown.shares[COPIES], loading)]
        exchanging = run.usage.kernels_by_family.get(COLLECTIVE, ())
        shares.append(sum_durations_ns(exchanging) / sum_durations_ns(run.run.report.kernels))
    return max(shares, default=0.0)
