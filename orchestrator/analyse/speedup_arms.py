"""One arm of a speed-up study by itself: its epochs, memory, rates, and where its time went."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from perfctl.orchestrator.analyse import categories
from perfctl.orchestrator.analyse.estimate import BACKWARD, totals
from perfctl.orchestrator.analyse.grouping import device_kind, device_label
from perfctl.orchestrator.analyse.peaks import Peaks, peaks_of
from perfctl.orchestrator.analyse.prepared import PreparedRun
from perfctl.orchestrator.analyse.speedup_records import Arm, ArmFacts, Epoch, Rate, Top
from perfctl.orchestrator.analyse.sweep import memory_figures
from perfctl.orchestrator.analyse.utilisation import Busy
from perfctl.parsers.stored import Run

TEN = 10
DICE = "dice:epoch:"
PATHS = {"fp32": "fp32", "tf32": "tensor tf32", "bf16": "tensor bf16", "fp16": "tensor fp16"}
"""Precision of a run -> the path whose peak it is held against."""


def facts_of(arm: Arm, peaks: Sequence[Peaks] = ()) -> ArmFacts:
    """Of the arm's newest run, except ``runs``. Arms have at least one whole run."""
    run = arm.runs[-1]
    prepared = PreparedRun(run)
    timed = prepared.step_time
    step = timed[0].median if timed else None
    course = epochs(run)
    wanted = ("layer ranges",) if device_kind(run) == "cpu" else ("layer ranges", "kernel")
    gaps = [(gap.quantity, gap.reason) for gap in run.report.gaps if gap.quantity in wanted]
    return ArmFacts(
        label=arm.label,
        device=device_label(run),
        precision=run.precision,
        runs=len(arm.runs),
        total_ns=sum(one.ns for one in course) if course else None,
        step_ns=step,
        step_range=(timed[0].low, timed[0].high) if timed else None,
        steps_per_second=1e9 / step if step else None,
        samples_per_second=run.batch_size * 1e9 / step if step and run.batch_size else None,
        warmup=_whole(run.report.environment.get("option:warmup")),
        epochs=course,
        memory=memory_figures(run),
        top=top(run),
        categories=shares(run),
        rate=rate(run, step, peaks),
        idle=_idle(prepared.usage.busy),
        overlap=overlap(run),
        launch_bound=launch_bound(run),
        overhead=overhead(run),
        gaps=tuple(dict.fromkeys(gaps)),
    )


def epochs(run: Run) -> tuple[Epoch, ...]:
    """The epochs in their order, with the training time that had gone by at the end of each; () without epochs."""
    tests = {row.number: row for row in run.report.steps if row.phase == "test"}
    scored = {one.name: one.value for one in run.report.summaries if one.name.startswith(DICE)}
    found: list[Epoch] = []
    gone = 0.0
    rows = (row for row in run.report.steps if row.phase == "epoch" and row.duration_ns is not None)
    for row in sorted(rows, key=lambda row: row.number):
        gone += row.duration_ns or 0
        test = tests.get(row.number)
        found.append(
            Epoch(
                row.number,
                float(row.duration_ns or 0),
                gone,
                row.loss,
                test.loss if test else None,
                row.accuracy,
                scored.get(f"{DICE}{row.number}"),
            )
        )
    return tuple(found)


def top(run: Run, most: int = TEN) -> tuple[Top, ...]:
    """The most expensive: kernels by time where there are any, else operations of the CPU by self time.

    As in torch's own tables, an operation is one line whatever layer called it.
    """
    if run.report.kernels:
        return _ranked(_kernel_sums(run), most)
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for item in run.report.operations:
        found = sums[item.name]
        found[0] += item.calls
        found[1] += item.self_cpu_ns or 0
        found[2] += item.cpu_ns or 0
    rows = {name: (int(calls), own, total, categories.operation(name)) for name, (calls, own, total) in sums.items()}
    return _ranked(rows, most)


def _kernel_sums(run: Run) -> dict[str, tuple[int, float, float | None, str]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for kernel in run.report.kernels:
        sums[kernel.name][0] += 1
        sums[kernel.name][1] += kernel.duration_ns or 0
    return {name: (int(count), spent, None, categories.kernel(name)) for name, (count, spent) in sums.items()}


def _ranked(rows: Mapping[str, tuple[int, float, float | None, str]], most: int) -> tuple[Top, ...]:
    whole = sum(own for _, own, _, _ in rows.values())
    if not whole:
        return ()
    ranked = sorted(rows.items(), key=lambda item: (-item[1][1], item[0]))[:most]
    return tuple(Top(name, kind, calls, own, total, own / whole) for name, (calls, own, total, kind) in ranked)


def shares(run: Run) -> Mapping[str, float] | None:
    """Kind of work -> share of all time in the trace; kinds without time are left out."""
    found = categories.times(run)
    if found is None:
        return None
    whole = sum(found.values())
    return {kind: spent / whole for kind, spent in found.items() if spent} if whole else None


def rate(run: Run, step_ns: float | None, peaks: Sequence[Peaks] = ()) -> Rate:
    """FLOPs of a step on paper over its measured time, and the device's peak in the run's precision."""
    if not run.layer_calls:
        return Rate(None, None, None, "the shapes of the layers were not recorded")
    directions = ("forward", *BACKWARD) if run.mode == "train" else ("forward",)
    flops = totals(run.layer_calls, directions).flops
    roofs = peaks_of(run.device, peaks)
    path = PATHS.get(run.precision or "", run.precision or "")
    if device_kind(run) == "cpu":
        path = run.precision or ""
    peak = roofs.flops.get(path)
    reason = None if peak else roofs.reason or f"no peak of {path} is known for {roofs.device}"
    return Rate(flops, flops * 1e9 / step_ns if step_ns else None, peak, reason)


def _idle(busy: Sequence[Busy]) -> float | None:
    found = [one.share for one in busy if one.stream is None and one.share is not None]
    return 1 - statistics.fmean(found) if found else None


def launch_bound(run: Run) -> float | None:
    """Share of kernels before which the device stood idle for longer than they then ran; None without kernel times."""
    spans = sorted(
        (one.device_index or 0, one.start_ns, one.start_ns + one.duration_ns)
        for one in run.report.kernels
        if one.start_ns is not None and one.duration_ns is not None
    )
    waited, counted = 0, 0
    reached: dict[int, float] = {}
    for device, start, end in spans:
        if device in reached:
            counted += 1
            waited += start - reached[device] > end - start
        reached[device] = max(end, reached.get(device, end))
    return waited / counted if counted else None


def overlap(run: Run) -> float | None:
    """Share of the time of copies between host and device in which a kernel of the device ran; None without copies."""
    running: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for one in run.report.kernels:
        if one.start_ns is None or one.duration_ns is None:
            return None
        running[one.device_index or 0].append((one.start_ns, one.start_ns + one.duration_ns))
    joined = {device: _joined(spans) for device, spans in running.items()}
    whole = both = 0.0
    for copy in run.report.copies:
        if copy.kind == "memset" or copy.start_ns is None or not copy.duration_ns:
            continue
        start, end = copy.start_ns, copy.start_ns + copy.duration_ns
        whole += copy.duration_ns
        both += sum(max(min(end, b) - max(start, a), 0) for a, b in joined.get(copy.device_index or 0, ()))
    return both / whole if whole else None


def _joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def overhead(run: Run) -> float | None:
    """Share of the measured steps' time that no operation took: Python, and the profiler itself. None on a GPU."""
    if device_kind(run) != "cpu" or not run.report.operations:
        return None
    steps = sum(row.duration_ns or 0 for row in run.report.steps if row.phase == "step")
    own = sum(item.self_cpu_ns or 0 for item in run.report.operations)
    return max(1 - own / steps, 0.0) if steps else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
