"""How a study changes with the batch size: time per step and per sample, memory, failures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.compare_stats import interval
from perfctl.orchestrator.analyse.prepared import PreparedRun, PreparedStudy
from perfctl.orchestrator.analyse.timing import Spread, preference
from perfctl.parsers.stored import Run

MEMORY_LINES = (
    ("peak", "allocated"), ("peak", "reserved"), ("peak", "host_resident"),
    ("after", "allocated"), ("after", "reserved"), ("after", "host_resident"),
)  # fmt: skip
"""Memory figures worth a line in a chart, the ones that matter first."""


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One batch size of a study."""

    batch: int
    step: Spread | None
    """Nanoseconds; None when no run timed whole steps."""
    basis: str | None
    memory: Mapping[str, int]
    """"peak allocated" -> bytes; only what was collected. "device in use" is the highest sample."""
    problems: tuple[str, ...]
    """Runs that failed or are partial, in words."""
    repeats: tuple[float, ...] = ()
    """Median step of each repeat, the newest last; empty where the sweep was not repeated. Repeats are never averaged."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the step over repeats, in nanoseconds; None without any."""
        return interval(self.repeats)

    @property
    def per_sample(self) -> float | None:
        """Nanoseconds per sample."""
        return self.step.median / self.batch if self.step else None


def points(study: PreparedStudy) -> tuple[BatchPoint, ...]:
    """One point per batch size, ascending; a failed one too, without figures."""
    return tuple(_point(batch, study.recorded(batch), study.step_clock) for batch in study.study.batches)


def _point(batch: int, runs: Sequence[PreparedRun], first: str | None) -> BatchPoint:
    ranked = sorted(
        runs, key=lambda item: (item.run.status != "ok", preference(item.run.profiler, first), -item.run.id)
    )
    run, timed = next(((item.run, found) for item in ranked if (found := item.step_time) is not None), (None, None))
    memory: dict[str, int] = next((figures for item in ranked if (figures := memory_figures(item.run))), {})
    bad = [item.run for item in runs if item.run.status != "ok"]
    problems = tuple(f"{run.profiler}: {run.status}, {run.reason or 'no reason given'}" for run in bad)
    return BatchPoint(batch, timed[0] if timed else None, timed[1] if timed else None, memory, problems,
                      _repeats(run, timed[0]) if run and timed else ())  # fmt: skip


def _repeats(run: Run, newest: Spread) -> tuple[float, ...]:
    """Median steps of the run's repeats, then its own; empty where it has none that timed steps."""
    found = [
        [step.duration_ns for step in steps if step.phase == "step" and step.duration_ns is not None]
        for steps in run.repeats
    ]
    medians = [statistics.median(durations) for durations in found if durations]
    return (*medians, newest.median) if medians else ()


def memory_figures(run: Run) -> dict[str, int]:
    """ "peak allocated" -> bytes, of what the run recorded; "device in use" is the highest sample."""
    figures = {(figure.moment, figure.quantity): figure.bytes for figure in run.report.memory}
    found = {f"{moment} {quantity.replace('_', ' ')}": figures[moment, quantity]
             for moment, quantity in MEMORY_LINES if (moment, quantity) in figures}  # fmt: skip
    for quantity in ("allocated", "reserved", "host resident"):
        if f"peak {quantity}" in found:
            found.pop(f"after {quantity}", None)
    used = [sample.memory_used_bytes for sample in run.report.samples if sample.memory_used_bytes is not None]
    if used:
        found["device in use"] = max(used)
    return found
