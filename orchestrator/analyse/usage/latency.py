"""Latency (copies and computation of one full batch), waits for images and accuracy of inference runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfctl.records.run import Run
from perfctl.records.stats import PERCENTILES, needed, percentile

PAYS = 0.1
"""A larger batch pays where it gives at least so many more images per second."""
LOAD, COPY, COMPUTE = "data", "copy", "inference"
LIGHTEST_FIRST = {"none": 0, "nsys": 1, "torch": 2, "dlprof": 3}
"""Which run of a batch size is shown: the one that its profiler slows least."""


@dataclass(frozen=True, slots=True)
class Latency:
    """One run of inference, per full batch; times in nanoseconds."""

    model: str
    batch: int
    profiler: str
    count: int
    percentiles: Mapping[int, float | None]
    """50, 95, 99 -> time of an answer; None where there are too few batches to know."""
    longest: float
    load: float
    """Mean wait for images in a step; copies and computation likewise. Means add up to the mean step."""
    copy: float
    compute: float
    step: float
    workers: int | None
    synthetic: bool
    """Images were generated, not read: the wait for them says nothing about real ones."""
    figures: Mapping[str, float | None]
    """images, images_skipped, top1, top5 (0..1), loss, as the run's summary rows state them."""
    why: Mapping[str, str]
    """Name of a figure that is None -> the reason."""
    steps: tuple[float, ...] = ()
    """Each whole step, in order; ``step`` is their mean."""

    @property
    def images_per_second(self) -> float:
        return self.batch * 1e9 / self.step

    @property
    def load_share(self) -> float:
        return self.load / self.step


def latency(run: Run) -> Latency | None:
    """None where steps were not divided into loading, copying and computing, or their time means nothing (ncu)."""
    report = run.report
    if run.profiler == "ncu" or run.mode != "infer" or not run.batch_size:
        return None
    phases: dict[str, Counter[int]] = defaultdict(Counter)
    for row in report.steps:
        if row.duration_ns is not None:
            phases[row.phase][row.number] += row.duration_ns
    whole = phases["step"]
    if not whole.total() or any(phases[name].keys() != whole.keys() for name in (LOAD, COPY, COMPUTE)):
        return None
    answers = [phases[COPY][number] + phases[COMPUTE][number] for number in whole]
    load, copy, compute, step = (phases[name].total() / len(whole) for name in (LOAD, COPY, COMPUTE, "step"))
    why = {gap.quantity: gap.reason for gap in report.gaps}
    why |= {f"p{percent}": f"too few batches: a p{percent} takes {needed(percent)}" for percent in PERCENTILES}
    workers = report.environment.get("option:dataloader_workers", "")
    return Latency(
        model=report.environment.get("model") or run.workload or "", batch=run.batch_size, profiler=run.profiler,
        count=len(whole), percentiles={percent: percentile(answers, percent) for percent in PERCENTILES},
        longest=max(answers), load=load, copy=copy, compute=compute, step=step,
        workers=int(workers) if workers.isdecimal() else None,
        synthetic=report.environment.get("option:data") == "synthetic",
        figures={item.name: item.value for item in report.summaries}, why=why,
        steps=tuple(float(whole[number]) for number in sorted(whole)),
    )  # fmt: skip


def latencies(runs: Iterable[Run]) -> tuple[Latency, ...]:
    """Those of the runs that are inference over images, by model (in order of appearance) and batch size."""
    found = [item for item in map(latency, runs) if item is not None]
    order = {model: place for place, model in enumerate(dict.fromkeys(item.model for item in found))}
    return tuple(sorted(found, key=lambda item: (order[item.model], item.batch, LIGHTEST_FIRST.get(item.profiler, 9))))


def least_watched(found: Iterable[Latency]) -> tuple[Latency, ...]:
    """One of each model and batch size, the first: the one that a profiler slowed least."""
    kept: dict[tuple[str, int], Latency] = {}
    for item in found:
        kept.setdefault((item.model, item.batch), item)
    return tuple(kept.values())


def pays_until(rates: Mapping[int, float]) -> int:
    """The smallest batch size that no larger one beats by ``PAYS``; rates: batch size -> images per second."""
    return min(
        batch for batch, rate in rates.items()
        if all(other < rate * (1 + PAYS) for larger, other in rates.items() if larger > batch)
    )  # fmt: skip
