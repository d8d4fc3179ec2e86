"""Findings of a report without layers: its largest kernel, its FLOPs, how busy the GPU was, what is missing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfctl.orchestrator.analyse.counters.flops import KernelFlops
from perfctl.orchestrator.analyse.counters.sums import PIPE_TENSOR, metric, op
from perfctl.orchestrator.analyse.figure import total_of
from perfctl.orchestrator.analyse.ledger.prepared import PreparedRun
from perfctl.orchestrator.analyse.ledger.timing import kernel_time_by_device
from perfctl.orchestrator.report.cells import count
from perfctl.orchestrator.report.numbers import percent, si, size, time
from perfctl.orchestrator.report.page.kernels import NO_FLOPS, PATHS, run_label
from perfctl.orchestrator.report.page.records import Finding
from perfctl.records.report import Kernel
from perfctl.records.run import Run

NAMED = 70
"""Characters of a kernel's name in a sentence."""


def of(runs: Sequence[PreparedRun]) -> tuple[Finding, ...]:
    """Findings, then warnings, of runs without layers."""
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


def _largest(run: Run) -> Iterator[Finding]:
    """The kernel with the largest share of the kernel time; under ncu the clock is named."""
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in run.report.kernels:
        if kernel.duration_ns is not None:
            groups[kernel.name].append(kernel)
    times = {name: sum(kernel.duration_ns or 0 for kernel in same) for name, same in groups.items()}
    total = sum(times.values())
    if not total:
        return
    name = max(times, key=lambda name: times[name])
    took, often, spoken = time(times[name]), _launches(len(groups[name])), _spoken(groups[name][0])
    clock = " under ncu, at locked clocks" if run.profiler == "ncu" else ""
    if len(times) == 1:
        yield Finding(f"{spoken} is the only kernel: {often}, {took}{clock}.", "kernels")
    else:
        share = percent(times[name] / total)
        yield Finding(f"{spoken} takes {share} of the kernel time{clock} ({took}, {often}).", "kernels")


def _executed(run: Run, flops: dict[int, KernelFlops]) -> Iterator[Finding]:
    """FLOPs of the kernel with the most, and on which path most of them ran."""
    groups: dict[str, list[KernelFlops]] = defaultdict(list)
    first: dict[str, Kernel] = {}
    for kernel in run.report.kernels:
        groups[kernel.name].append(flops.get(kernel.launch, NO_FLOPS))
        first.setdefault(kernel.name, kernel)
    sums = {name: total_of(item.total for item in same) for name, same in groups.items()}
    known = {name: figure for name, figure in sums.items() if figure.value}
    if not known:
        if all(figure.value == 0 and not figure.lower_bound for figure in sums.values()):
            yield Finding("No kernel executed a FLOP that the counters see.", "kernels")
        return
    name, figure = max(known.items(), key=lambda item: item[1].value or 0)
    paths = {path: total_of(getattr(item, path) for item in groups[name]) for path in PATHS}
    path, part = max(paths.items(), key=lambda item: item[1].value or 0)
    share = (part.value or 0) / (figure.value or 1)
    most = "" if len(groups) == 1 else ", the most of all kernels"
    which = f"all of it {path}" if share == 1 else f"{percent(share)} of it {path}"
    about = ("at least " if figure.lower_bound else "") + ("about " if figure.state == "estimated" else "")
    amount, often = f"{about}{si(figure.value or 0)}FLOP", _launches(len(groups[name]))
    rule = f", estimated as {part.reason}" if part.state == "estimated" and part.reason else ""
    yield Finding(f"{_spoken(first[name])} executed {amount} in {often}{most}; {which}{rule}.", "kernels")


def _moved(run: PreparedRun) -> Iterator[Finding]:
    """HFMA and tensor instructions that only move constants, and are in no count."""
    launches = [launch for launch, item in run.flops.items() if item.fp16.value is not None
                and "moved constants" in (item.fp16.reason or "")]  # fmt: skip
    if launches:
        halves = sum(int(metric(run.values[launch], op("hfma")) or 0) for launch in launches)
        pipe = sum(int(metric(run.values[launch], PIPE_TENSOR) or 0) for launch in launches)
        yield Finding(
            f"{count(halves).text} HFMA and {count(pipe).text} tensor instructions in {_launches(len(launches))} only moved "
            "constants: no arithmetic, and not counted.", "kernels",
        )  # fmt: skip


def _busy(run: Run) -> Iterator[Finding]:
    """How much of the capture the GPU ran kernels; ncu serialises launches, so there it means nothing."""
    length = run.report.duration_ns or run.duration_ns
    found = kernel_time_by_device(run.report.kernels)
    if run.profiler == "ncu" or not length or not found or max(found.values()) > length:
        return
    low, high = min(found, key=lambda device: found[device]), max(found, key=lambda device: found[device])
    if len(found) == 1:
        share = percent(found[low] / length)
        text = f"The GPU ran kernels for {share} of the capture: {time(found[low])} of {time(length)}."
    else:
        text = (
            f"{len(found)} GPUs ran kernels for {percent(found[low] / length)} (GPU {low}) to "
            f"{percent(found[high] / length)} (GPU {high}) of the capture of {time(length)}."
        )
    yield Finding(text, "kernels")


def _copies(run: Run) -> Iterator[Finding]:
    """Copies and memsets against kernels; both are sums, so overlapping time is in both."""
    timed = [item for item in run.report.copies if item.duration_ns is not None]
    kernels = sum(kernel.duration_ns or 0 for kernel in run.report.kernels)
    if timed and kernels:
        took = sum(item.duration_ns or 0 for item in timed)
        moved = [item.bytes for item in timed if item.bytes is not None]
        bytes_ = f" for {size(sum(moved))}" if len(moved) == len(timed) else ""
        often = "1 copy or memset" if len(timed) == 1 else f"{count(len(timed)).text} copies and memsets"
        share = percent(took / (took + kernels))
        text = f"{often} took {time(took)}{bytes_}: {share} of the work on the GPU, kernels and copies summed."
        yield Finding(text, "ranges")


def _missing(prepared: PreparedRun) -> Iterator[Finding]:
    """Times and FLOPs that the report has not, or not of every launch."""
    report, kernels = prepared.run.report, list(prepared.run.report.kernels)
    timed = sum(kernel.duration_ns is not None for kernel in kernels)
    if timed < len(kernels):
        gap = next((gap for gap in report.gaps if gap.quantity == "kernel.duration_ns"), None)
        which = "No launch has" if timed == 0 else f"Only {count(timed).text} of {_launches(len(kernels))} have"
        why = f": {gap.reason.rstrip('.')}" if gap else ""
        yield Finding(f"{which} a duration{why}.", "gaps", warning=True)
    lacking = lacking_flops(prepared)
    if lacking is not None:
        state, why = lacking
        what = {"lower bound": "Executed FLOPs are lower bounds", "not collected": "No FLOP counts"}.get(state)
        yield Finding(f"{what or f'Executed FLOPs are {state}'}: {why}.", "gaps", warning=True)


def lacking_flops(prepared: PreparedRun) -> tuple[str, str] | None:
    """(state in words, why) of FLOP counts that are not whole; None when they are, or when there is no kernel."""
    run = prepared.run
    if not run.report.kernels:
        return None
    if run.profiler != "ncu":
        return "not collected", f"{run.profiler} does not record them. Run perfctl ncu"
    each = [prepared.flops.get(kernel.launch, NO_FLOPS) for kernel in run.report.kernels]
    whole = total_of(item.total for item in each)
    if whole.value is None:
        return whole.state.replace("_", " "), whole.reason or "no reason was recorded"
    parts = []
    if whole.launches < whole.of_launches:
        parts.append(f"{whole.of_launches - whole.launches} of {_launches(whole.of_launches)} have no count")
    if whole.missing:
        parts.append(_lacking(each))
    return ("lower bound", "; ".join(parts)) if parts else None


def _lacking(flops: Sequence[KernelFlops]) -> str:
    """ "tensor counters were not collected; ...": the first reason of each path that some total is without."""
    reasons: dict[str, str] = {}
    for item in flops:
        for path in item.total.missing if item.total.value is not None else ():
            reason = getattr(getattr(item, path, None), "reason", None) or f"{path} was not collected"
            reasons.setdefault(path, reason if reason.startswith(path) else f"{path}: {reason}")
    return "; ".join(reasons.values())


def _no_kernels(run: Run) -> Iterator[Finding]:
    gap = next((gap for gap in run.report.gaps if gap.quantity in ("kernel", "kernels")), None)
    if gap:
        yield Finding(f"{run_label(run)} has no kernels: {gap.reason.rstrip('.')}.", "gaps", warning=True)
