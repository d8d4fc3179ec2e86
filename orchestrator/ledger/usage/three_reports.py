"""The three reports of DLProf (kernel, iteration, summary), made from the runs of any profiler.

A GPU run gives kernels; a run on a CPU has none, and gives its operators with their self
time instead.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from operator import attrgetter

from perfctl.orchestrator.ledger.usage.inference import (
    COMPUTE,
    COPY,
    LOAD,
    compute_tensor_core_time_share,
    sum_step_phase_times_ns,
    uses_tensor_cores,
)
from perfctl.orchestrator.ledger.usage.intervals import (
    measure_any_kernel_running_ns,
    sum_durations_ns,
)
from perfctl.orchestrator.ledger.usage.readings import UsageShare
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Run


@dataclass(frozen=True, slots=True)
class KernelNameRow:
    """All launches of one kernel name, or all calls of one operator; times in nanoseconds."""

    name: str
    tensor: bool | None
    """Uses tensor cores, by its name; None where the name does not say, and for operators."""
    calls: int
    total: float
    shortest: float | None
    """None for operators, of which a run keeps sums."""
    longest: float | None
    share: float
    """Of the time of all of them."""

    @property
    def mean_ns(self) -> float:
        return self.total / self.calls


@dataclass(frozen=True, slots=True)
class IterationRow:
    """One measured step; times in nanoseconds, None where nothing says."""

    number: int
    step: int | None
    load: int | None
    copy: int | None
    compute: int | None
    kernels: int | None
    """Launches; None on a CPU, and where launches do not say their step."""
    kernel_ns: int | None
    """Time with a kernel running; overlapping kernels count once."""
    tensor: UsageShare


@dataclass(frozen=True, slots=True)
class RunSummaryRow:
    """One run as a whole; times in nanoseconds, None where nothing says."""

    iterations: int | None
    wall: float | None
    """Of the iterations together."""
    mean: float | None
    deviation: float | None
    """Standard deviation of an iteration; None for a single one."""
    load_share: float | None
    copy_share: float | None
    compute_share: float | None
    kernels: int | None
    kernel_ns: float | None
    """Time of all kernels added up."""
    tensor_ns: float | None
    """Time of the kernels whose names say tensor cores, added up."""


def list_kernel_or_operator_rows(run: Run) -> tuple[KernelNameRow, ...]:
    """Return kernels by name, or operators by self time if there are no kernels; the longest first.
    Empty if the run has neither."""
    rows = []
    timed = (kernel for kernel in run.report.kernels if kernel.duration_ns is not None)
    for name, kernels in group_by(timed, attrgetter("name")).items():
        times = [kernel.duration_ns or 0 for kernel in kernels]
        tensor = uses_tensor_cores(name)
        rows.append(
            KernelNameRow(name, tensor, len(times), sum(times), min(times), max(times), 0.0)
        )
    operations = [] if rows else run.report.operations
    operators = (item for item in operations if item.category != "user_annotation")
    for name, items in group_by(operators, attrgetter("name")).items():
        timed_items = [
            (item.calls, item.device_ns if item.self_cpu_ns is None else item.self_cpu_ns)
            for item in items
        ]
        timed_calls = [(calls, took) for calls, took in timed_items if took is not None]
        if timed_calls:
            calls, took = map(sum, zip(*timed_calls, strict=True))
            rows.append(KernelNameRow(name, None, calls, took, None, None, 0.0))
    total = sum(row.total for row in rows) or 1
    rows.sort(key=lambda row: (-row.total, row.name))
    return tuple(replace(row, share=row.total / total) for row in rows)


def list_iteration_rows(run: Run) -> tuple[IterationRow, ...]:
    """Return the measured steps of a run, by number; those that only kernels name, too (DLProf's
    iteration report)."""
    phases = sum_step_phase_times_ns(run)
    launched = group_by(run.report.kernels, lambda kernel: kernel.step)
    no_kernels = "no launch states its step" if run.report.kernels else "no kernels"
    rows = []
    numbers = {*phases["step"], *(number for number in launched if number is not None)}
    for number in sorted(numbers):
        kernels = launched.get(number, [])
        step, load, copy, compute = (
            phases[name].get(number) for name in ("step", LOAD, COPY, COMPUTE)
        )
        rows.append(
            IterationRow(
                number=number,
                step=step,
                load=load,
                copy=copy,
                compute=compute,
                kernels=len(kernels) or None,
                kernel_ns=measure_any_kernel_running_ns(kernels),
                tensor=compute_tensor_core_time_share(kernels)
                if kernels
                else UsageShare(None, no_kernels),
            )
        )
    return tuple(rows)


def summarize_run(run: Run) -> RunSummaryRow:
    """Return the run as a whole, from its steps and kernels; what a report states itself (DLProf)
    is not in it."""
    phases = sum_step_phase_times_ns(run)
    steps = list(phases["step"].values())
    wall = sum(steps)
    kernels = [kernel for kernel in run.report.kernels if kernel.duration_ns is not None]
    tensor = [kernel for kernel in kernels if uses_tensor_cores(kernel.name)]
    load, copy, compute = (
        phases[name].total() / wall if wall and phases[name] else None
        for name in (LOAD, COPY, COMPUTE)
    )
    return RunSummaryRow(
        iterations=len(steps) or None,
        wall=wall or None,
        mean=wall / len(steps) if steps else None,
        deviation=statistics.stdev(steps) if len(steps) > 1 else None,
        load_share=load,
        copy_share=copy,
        compute_share=compute,
        kernels=len(kernels) or None,
        kernel_ns=sum_durations_ns(kernels) if kernels else None,
        tensor_ns=sum_durations_ns(tensor) if kernels else None,
    )
