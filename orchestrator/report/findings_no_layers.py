"""What a report without layers has to say: its largest kernel, what it executed, how busy the GPU was, what is missing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.counters.flops import KernelFlops
from perfctl.orchestrator.analyse.counters.sums import PIPE_TENSOR, metric, op
from perfctl.orchestrator.analyse.figure import Figure, total_of
from perfctl.orchestrator.analyse.ledger.prepared import PreparedRun
from perfctl.orchestrator.analyse.ledger.timing import kernel_time_by_device
from perfctl.orchestrator.report.numbers import count, percent, si, size, time
from perfctl.orchestrator.report.page.kernels import NO_FLOPS, PATHS, run_label
from perfctl.records.report import Kernel
from perfctl.records.run import Run

NAMED = 70
"""Characters of a kernel's name in a sentence."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence. ``evidence`` is the part of the page that proves it."""

    text: str
    evidence: str
    """ledger, charts, kernels, ranges, runs or gaps."""
    warning: bool = False
    """True for what is missing or failed."""


def of(runs: Sequence[PreparedRun]) -> tuple[Finding, ...]:
    """Findings, then warnings, of runs without layers; nothing for a run without kernels."""
    found: list[Finding] = []
    for prepared in runs:
        run = prepared.run
        if not run.report.kernels:
            found += _no_kernels(run)
            continue
        found += [*_largest(run), *_executed(run, prepared.flops), *_moved(prepared)]
        found += [*_busy(run), *_copies(run), *_missing(prepared)]
    return tuple(sorted(found, key=lambda item: item.warning))


def _spoken(kernel: Kernel) -> str:
    """A name short enough for a sentence."""
    name = re.sub(r"\((?:unsigned )?(?:int|bool|long)\)(?=\d)", "", kernel.short_name or kernel.name)
    name = name.removeprefix("void ")
    return name if len(name) <= NAMED else f"{name[: NAMED - 1]}…"


def _launches(number: int) -> str:
    return "1 launch" if number == 1 else f"{count(number).text} launches"


def _largest(run: Run) -> list[Finding]:
    """The kernel with the largest share of the kernel time; under ncu the clock is named."""
    times: dict[str, list[float]] = defaultdict(list)
    first: dict[str, Kernel] = {}
    for kernel in run.report.kernels:
        if kernel.duration_ns is not None:
            times[kernel.name].append(kernel.duration_ns)
            first.setdefault(kernel.name, kernel)
    total = sum(sum(values) for values in times.values())
    if not total:
        return []
    name, values = max(times.items(), key=lambda item: sum(item[1]))
    took, often = time(sum(values)), _launches(len(values))
    clock = " under ncu, at locked clocks" if run.profiler == "ncu" else ""
    if len(times) == 1:
        return [Finding(f"{_spoken(first[name])} is the only kernel: {often}, {took}{clock}.", "kernels")]
    text = f"{_spoken(first[name])} takes {percent(sum(values) / total)} of the kernel time{clock} ({took}, {often})."
    return [Finding(text, "kernels")]


def _executed(run: Run, flops: dict[int, KernelFlops]) -> list[Finding]:
    """What the kernel with the most FLOPs executed, and on which path most of it."""
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in run.report.kernels:
        groups[kernel.name].append(kernel)
    sums = {
        name: total_of(flops.get(kernel.launch, NO_FLOPS).total for kernel in same) for name, same in groups.items()
    }
    known = {name: figure for name, figure in sums.items() if figure.value}
    if not known:
        whole = all(figure.value == 0 and not figure.lower_bound for figure in sums.values())
        return [Finding("No kernel executed a FLOP that the counters see.", "kernels")] if whole else []
    name, figure = max(known.items(), key=lambda item: item[1].value or 0)
    paths = {
        path: total_of(getattr(flops.get(kernel.launch, NO_FLOPS), path) for kernel in groups[name]) for path in PATHS
    }
    path, part = max(paths.items(), key=lambda item: item[1].value or 0)
    share = (part.value or 0) / (figure.value or 1)
    most = "" if len(groups) == 1 else ", the most of all kernels"
    where = f"all of it {path}" if share == 1 else f"{percent(share)} of it {path}"
    amount, often = f"{_about(figure)}{si(figure.value or 0)}FLOP", _launches(len(groups[name]))
    text = f"{_spoken(groups[name][0])} executed {amount} in {often}{most}; {where}"
    rule = f", estimated as {part.reason}" if part.state == "estimated" and part.reason else ""
    return [Finding(f"{text}{rule}.", "kernels")]


def _moved(run: PreparedRun) -> list[Finding]:
    """Instructions that look like half-precision and tensor work, move constants, and are in no count."""
    launches = [launch for launch, item in run.flops.items() if item.fp16.value is not None
                and "moved constants" in (item.fp16.reason or "")]  # fmt: skip
    if not launches:
        return []
    values = run.values
    halves = sum(int(metric(values[launch], op("hfma")) or 0) for launch in launches)
    pipe = sum(int(metric(values[launch], PIPE_TENSOR) or 0) for launch in launches)
    text = (
        f"{count(halves).text} HFMA and {count(pipe).text} tensor instructions in {_launches(len(launches))} only moved "
        "constants: no arithmetic, and not counted."
    )
    return [Finding(text, "kernels")]


def _about(figure: Figure) -> str:
    return ("at least " if figure.lower_bound else "") + ("about " if figure.state == "estimated" else "")


def _busy(run: Run) -> list[Finding]:
    """How much of the capture the GPU ran kernels; ncu serialises launches, so there it means nothing."""
    length = run.report.duration_ns or run.duration_ns
    if run.profiler == "ncu" or not length:
        return []
    found = kernel_time_by_device(run.report.kernels)
    if not found or max(found.values()) > length:
        return []
    if len(found) == 1:
        (taken,) = found.values()
        return [
            Finding(
                f"The GPU ran kernels for {percent(taken / length)} of the capture: {time(taken)} of {time(length)}.",
                "kernels",
            )
        ]
    low, high = min(found, key=lambda device: found[device]), max(found, key=lambda device: found[device])
    return [
        Finding(
            f"{len(found)} GPUs ran kernels for {percent(found[low] / length)} (GPU {low}) to "
            f"{percent(found[high] / length)} (GPU {high}) of the capture of {time(length)}.",
            "kernels",
        )
    ]


def _copies(run: Run) -> list[Finding]:
    """Copies and memsets beside kernels: both are sums, so what overlaps is in both."""
    timed = [item for item in run.report.copies if item.duration_ns is not None]
    kernels = sum(kernel.duration_ns or 0 for kernel in run.report.kernels)
    if not timed or not kernels:
        return []
    took = sum(item.duration_ns or 0 for item in timed)
    moved = [item.bytes for item in timed if item.bytes is not None]
    bytes_ = f" for {size(sum(moved))}" if len(moved) == len(timed) else ""
    often = "1 copy or memset" if len(timed) == 1 else f"{count(len(timed)).text} copies and memsets"
    text = f"{often} took {time(took)}{bytes_}: {percent(took / (took + kernels))} of the work on the GPU, kernels and copies summed."
    return [Finding(text, "ranges")]


def _missing(prepared: PreparedRun) -> list[Finding]:
    """Times and FLOPs that the report has not, or not of every launch."""
    run, kernels = prepared.run, list(prepared.run.report.kernels)
    found = []
    timed = sum(kernel.duration_ns is not None for kernel in kernels)
    if timed < len(kernels):
        gap = next((gap for gap in run.report.gaps if gap.quantity == "kernel.duration_ns"), None)
        which = "No launch has" if timed == 0 else f"Only {count(timed).text} of {_launches(len(kernels))} have"
        why = f": {gap.reason.rstrip('.')}" if gap else ""
        found.append(Finding(f"{which} a duration{why}.", "gaps", warning=True))
    said = lacking_flops(prepared)
    if said is not None:
        state, why = said
        what = "Executed FLOPs are lower bounds" if state == "lower bound" else f"Executed FLOPs are {state}"
        found.append(Finding(f"{what}: {why}.", "gaps", warning=True))
    return found


def lacking_flops(prepared: PreparedRun) -> tuple[str, str] | None:
    """(state in words, why) of what its counts of FLOPs are without; None when they are whole or there is no kernel."""
    run = prepared.run
    if not run.report.kernels:
        return None
    if run.profiler != "ncu":
        return "not collected", f"{run.profiler} records no FLOP counters; ncu does"
    each = [prepared.flops.get(kernel.launch, NO_FLOPS) for kernel in run.report.kernels]
    whole = total_of(item.total for item in each)
    if whole.value is None:
        return whole.state.replace("_", " "), whole.reason or "no reason was recorded"
    parts = [f"{whole.of_launches - whole.launches} of {_launches(whole.of_launches)} have no count"]
    parts = parts if whole.launches < whole.of_launches else []
    parts += [_lacking(each)] if whole.missing else []
    return ("lower bound", "; ".join(parts)) if parts else None


def _lacking(flops: Sequence[KernelFlops]) -> str:
    """ "tensor counters were not collected; ...": the first reason of each path that some total is without."""
    reasons: dict[str, str] = {}
    for item in flops:
        for path in item.total.missing if item.total.value is not None else ():
            reason = getattr(getattr(item, path, None), "reason", None) or f"{path} was not collected"
            reasons.setdefault(path, reason if reason.startswith(path) else f"{path}: {reason}")
    return "; ".join(reasons.values())


def _no_kernels(run: Run) -> list[Finding]:
    """A report that says why it has no kernels."""
    gap = next((gap for gap in run.report.gaps if gap.quantity in ("kernel", "kernels")), None)
    return [Finding(f"{run_label(run)} has no kernels: {gap.reason.rstrip('.')}.", "gaps", warning=True)] if gap else []
