"""The three reports of DLProf (kernel, iteration, summary), made from the runs of any profiler.

A GPU run gives kernels; a run on a CPU has none, and gives its operators with their self
time instead.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.ledger.usage.busy import UsageShare, end_of, spans, union
from perfctl.orchestrator.ledger.usage.inference import (
    COMPUTE,
    COPY,
    LOAD,
    tensor_share,
    uses_tensor_cores,
)
from perfctl.records.report import Kernel
from perfctl.records.run import Run


@dataclass(frozen=True, slots=True)
class NameRow:
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
    def mean(self) -> float:
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
class SummaryRow:
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


def name_rows(run: Run) -> tuple[NameRow, ...]:
    """Kernels by name, else operators by self time; the longest first. Empty where the run
    has neither."""
    kernels = [kernel for kernel in run.report.kernels if kernel.duration_ns is not None]
    return _of_kernels(kernels) if kernels else _of_operators(run)


def _of_kernels(kernels: Sequence[Kernel]) -> tuple[NameRow, ...]:
    times: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        times[kernel.name].append(kernel.duration_ns or 0)
    whole = sum(map(sum, times.values())) or 1
    rows = [
        NameRow(
            name,
            uses_tensor_cores(name),
            len(found),
            sum(found),
            min(found),
            max(found),
            sum(found) / whole,
        )
        for name, found in times.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total, row.name)))


def _of_operators(run: Run) -> tuple[NameRow, ...]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for item in run.report.operations:
        took = item.self_cpu_ns if item.self_cpu_ns is not None else item.device_ns
        if took is not None and item.category != "user_annotation":
            sums[item.name][0] += item.calls
            sums[item.name][1] += took
    whole = sum(took for _, took in sums.values()) or 1
    rows = [
        NameRow(name, None, int(calls), took, None, None, took / whole)
        for name, (calls, took) in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total, row.name)))


def iteration_rows(run: Run) -> tuple[IterationRow, ...]:
    """The measured steps of a run, by number; those that only kernels name, too (DLProf's
    iteration report)."""
    phases = _phases(run)
    launched: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in run.report.kernels:
        if kernel.step is not None:
            launched[kernel.step].append(kernel)
    whole, numbers = phases.get("step", {}), {*phases.get("step", {}), *launched}
    why = UsageShare(None, "no launch says its step" if run.report.kernels else "no kernels")
    rows = []
    for number in sorted(numbers):
        mine = launched.get(number)
        load, copy, compute = (phases.get(name, {}).get(number) for name in (LOAD, COPY, COMPUTE))
        count, took = (len(mine), _running(mine)) if mine else (None, None)
        tensor = tensor_share(mine) if mine else why
        rows.append(
            IterationRow(number, whole.get(number), load, copy, compute, count, took, tensor)
        )
    return tuple(rows)


def _running(kernels: Iterable[Kernel]) -> int | None:
    found = list(kernels)
    if any(kernel.start_ns is None or kernel.duration_ns is None for kernel in found):
        return None
    return union(
        *spans(found), (min(kernel.start_ns or 0 for kernel in found), max(map(end_of, found)))
    )[0]


def _phases(run: Run) -> Mapping[str, Mapping[int, int]]:
    """Phase -> number of the step -> nanoseconds."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for row in run.report.steps:
        if row.duration_ns is not None:
            found[row.phase][row.number] = found[row.phase].get(row.number, 0) + row.duration_ns
    return found


def summary_row(run: Run) -> SummaryRow:
    """The run as a whole, from its steps and kernels; what a report states itself (DLProf) is not
    in it."""
    phases = _phases(run)
    steps = list(phases.get("step", {}).values())
    wall = sum(steps)
    load, copy, compute = (
        sum(phases[name].values()) / wall if wall and name in phases else None
        for name in (LOAD, COPY, COMPUTE)
    )
    kernels = [kernel for kernel in run.report.kernels if kernel.duration_ns is not None]
    tensor = sum(kernel.duration_ns or 0 for kernel in kernels if uses_tensor_cores(kernel.name))
    return SummaryRow(
        len(steps) or None,
        wall or None,
        wall / len(steps) if steps else None,
        statistics.stdev(steps) if len(steps) > 1 else None,
        load,
        copy,
        compute,
        len(kernels) or None,
        sum(kernel.duration_ns or 0 for kernel in kernels) if kernels else None,
        tensor if kernels else None,
    )
