"""The time that is at stake in a finding, and the order of findings: by their share of the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from perfctl.orchestrator.compare.sides import explain_busy_cpu
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.timing import TimeSpread
from perfctl.orchestrator.report.page.records import Finding
from perfctl.records.run import Point

UNEXPLAINED = 0.25
"""Share of the time of a kernel or a layer that counts as at stake while no cause is known.

It is chosen and not measured, and only places such a finding among the others. ncu's own estimates
are upper bounds: the largest of each launch is 12% to 85%, with a median of 50%, over the 26
launches of eight public reports that have one. Half of that median is taken."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The median step of a batch size, of which impacts are a part: the capture of a report without
    steps."""

    median_ns: float
    noise_ns: float = 0.0
    """Median deviation of the steps from their median; 0 for a single step."""


Steps = Mapping[Point, StepTime]
"""Batch size -> its median step."""


def find_median_steps(analysis: Analysis) -> Steps:
    """Return the median step of each batch size; none where no step was timed, or where other
    programs kept the CPU busy."""
    spreads: dict[Point, TimeSpread | None] = {point.batch: point.step for point in analysis.points}
    steps: dict[Point, StepTime] = {}
    for prepared in analysis.study.prepared_runs:
        batch, capture_ns = prepared.run.point, prepared.usage.window.length
        spread = spreads.get(batch) or (prepared.step_time or (None,))[0]
        if batch in steps or explain_busy_cpu([prepared.run]) is not None:
            continue
        if spread is not None and spread.median:
            steps[batch] = StepTime(spread.median, spread.noise)
        elif capture_ns:
            steps[batch] = StepTime(capture_ns / (prepared.steps or 1))
    return steps


def add_impact(
    finding: Finding, share: float | None, step: StepTime | None, *, fix: str | None = None
) -> Finding:
    """Return the finding with the share (0..1) of the step that is at stake. It stays without one
    if the share is unknown, or if the steps scatter by more."""
    finding = replace(finding, fix=fix)
    if share is None or step is None or share * step.median_ns <= step.noise_ns:
        return finding
    return replace(finding, impact_ns=share * step.median_ns, step_ns=step.median_ns)


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by the share of the step that is at stake, then those that state no such
    time, then warnings."""
    return tuple(
        sorted(
            findings,
            key=lambda finding: (finding.warning, finding.share is None, -(finding.share or 0)),
        )
    )
