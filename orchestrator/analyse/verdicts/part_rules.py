"""Rules about the parts of one study: runs of one sweep that differ in GPU or in the workload's options."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import permutations

from perfctl.orchestrator.analyse.hardware.seen import SeenGpu, contradict, seen_gpu
from perfctl.orchestrator.analyse.ledger.host_times import HostTime, host_times
from perfctl.orchestrator.analyse.ledger.studies import Study
from perfctl.orchestrator.analyse.verdicts.rule import Verdict, amount
from perfctl.records.run import Run

MORE_WORK = 1.5
"""The larger layer has at least this many times the multiply-adds of the smaller."""


def other_gpu(parts: Sequence[Study]) -> list[Verdict]:
    """Runs with times that cannot have seen the same GPU."""
    groups: list[tuple[SeenGpu, list[Run]]] = []
    for run in (run for study in parts for run in study.runs if _timed(run)):
        if (seen := seen_gpu(run)) is None:
            continue
        home = next((at for at, (gpu, _) in enumerate(groups) if not contradict(gpu, seen)), None)
        if home is None:
            groups.append((seen, [run]))
        else:
            groups[home] = (groups[home][0].joined(seen), [*groups[home][1], run])
    if len(groups) < 2:
        return []
    named = ", ".join(str(gpu) for gpu, _ in groups)
    who = "; ".join(_who(runs) for _, runs in groups)
    text = f"Parts of this study ran on different GPUs ({named}): their times cannot be compared. In this order: {who}."
    todo = "Time every part on one GPU ('nvidia-smi -L' names it); until then compare times only within a part."
    return [Verdict("other GPU", text, None, None, todo, confidence="observed")]


def _timed(run: Run) -> bool:
    report = run.report
    steps, kernels = (any(item.duration_ns is not None for item in items) for items in (report.steps, report.kernels))
    return steps or kernels or bool(report.layer_times) or any(host_times((run,)))


def _who(runs: Sequence[Run]) -> str:
    """ "ncu at batch 16 to 256", "runs without a profiler at batch 64": which runs, by tool."""
    by_tool: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        by_tool[run.profiler if run.profiler != "none" else "runs without a profiler"].append(run.batch_size or 0)
    said = []
    for tool, found in by_tool.items():
        sizes = sorted(set(found))
        at = f" at batch {sizes[0]}" + (f" to {sizes[-1]}" if sizes[1:] else "") if sizes[0] else ""
        said.append(f"{tool}{at}")
    return ", ".join(said)


def less_time_for_more(parts: Sequence[Study]) -> list[Verdict]:
    """A layer that has more work in one variant and took less time there, by the host's clock."""
    found: dict[tuple[str, str, int | None], list[tuple[Study, HostTime]]] = defaultdict(list)
    for study in parts:
        for item in host_times(study.runs):
            if item.macs:
                found[item.layer, item.direction, item.run.batch_size].append((study, item))
    said = []
    for (layer, direction, batch), items in found.items():
        pairs = [
            (one, other) for one, other in permutations(items, 2)
            if one[0].variant != other[0].variant and one[0].precision == other[0].precision
            and (one[1].macs or 0) >= MORE_WORK * (other[1].macs or 1)
            and one[1].nanoseconds < other[1].nanoseconds
        ]  # fmt: skip
        if pairs:  # a pair of one tool says more than one of two
            more, less = min(pairs, key=lambda pair: pair[0][1].run.profiler != pair[1][1].run.profiler)
            said.append(_less_time(f"{layer} {direction}", batch, more, less))
    return said


def _less_time(
    what: str, batch: int | None, more: tuple[Study, HostTime], less: tuple[Study, HostTime]
) -> Verdict:  # fmt: skip
    times = [f"{item.nanoseconds / 1e6:.4g} ms for {amount(item.macs or 0).strip()}" for _, item in (more, less)]
    names = [f"with {study.variant}" if study.variant else "by default" for study, _ in (more, less)]
    gpus = [seen_gpu(item.run) for _, item in (more, less)]
    text = f"More work in less time: {what} took {times[0]} multiply-adds {names[0]}, but {times[1]} {names[1]}."
    text += " Such times cannot be compared: the host's clock saw launches, not kernels, or the GPUs were not the same"
    unknown = [name for name, gpu in zip(names, gpus, strict=True) if gpu is None]
    if unknown:
        text += f" (no record names the GPU of the one {' or '.join(unknown)})"
    elif gpus[0] is not None and gpus[1] is not None and contradict(gpus[0], gpus[1]):
        text += f" (the records name {gpus[0]} and {gpus[1]})"
    todo = (
        "Synchronise before each reading of the clock, or time with 'perfctl nsys' or 'perfctl torch', both on one GPU."
    )
    at = "" if batch is None else f" Multiply-adds are of batch {batch}."
    return Verdict("more work in less time", f"{text}.{at}", None, None, todo, confidence="plausible")
