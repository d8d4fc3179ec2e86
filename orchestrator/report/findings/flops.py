"""Findings about executed and estimated FLOPs: causes of differences, derived counts, and rates
above the peak."""

from __future__ import annotations

from collections.abc import Iterator

from perfctl.orchestrator.counts.derived.run import measure_rule_coverage
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.orchestrator.report.findings.rank import Steps, add_impact
from perfctl.orchestrator.report.ledger import build_row_trail_key, build_sweep_trail_key
from perfctl.orchestrator.report.ledger.causes import SWITCH, LedgerHeadline, build_ledger_headlines
from perfctl.orchestrator.report.numbers import format_percent
from perfctl.orchestrator.report.page.records import Finding

EVIDENCE = {
    "wrong window": "charts",
    "time does not follow": "times",
    "FADD alone": "derived",
    "other GPU": "parts",
    "more work in less time": "parts",
}
"""Section that proves a cause of the complete sweep, if the page has it; the ledger proves the
others."""
EXACT_ERROR_MAX = 5e-4
"""Error of a rule from which on it is stated."""


def describe_flop_differences(analysis: Analysis, steps: Steps) -> list[Finding]:
    """Return the differences and what is wrong with the sweep, with causes.

    Without any, return that all rows agree whose FLOPs are known completely.
    """
    ledger = analysis.ledger
    rows = {row.key: row for row in ledger.rows}
    stated = []
    for headline in build_ledger_headlines(analysis.judgement, ledger):
        row = rows[headline.place] if headline.place is not None else None
        stated.append(_make_difference_finding(headline, row, steps))
    complete = [row for row in ledger.rows if row.ratio and not row.executed.lower_bound]
    if not stated and complete:
        derived = any(row.executed.state == "derived" for row in complete)
        which = "Derived FLOPs" if derived else "Executed FLOPs"
        text = (
            f"{which} are within 10% of the estimated FLOPs in every layer and pass where both are "
            "known."
        )
        return [Finding(text, "ledger")]
    return stated


def _make_difference_finding(
    headline: LedgerHeadline, row: LedgerRow | None, steps: Steps
) -> Finding:
    """Return a headline as a finding. At stake is the part of the row's time in which executed and
    estimated FLOPs differ; what is wrong with the sweep concerns each of its figures."""
    cause = ", ".join(headline.rules) or None
    if row is None:
        evidence = next((EVIDENCE[rule] for rule in headline.rules if rule in EVIDENCE), "ledger")
        trail = build_sweep_trail_key(headline.rules[0]) if headline.rules else None
        finding = Finding(headline.sentence, evidence, trail=trail, cause=cause)
        share = None if SWITCH in headline.rules else 1.0
        return add_impact(finding, share, next(iter(steps.values()), None))
    trail = build_row_trail_key(row.place, row.direction, row.batch)
    finding = Finding(headline.sentence, "ledger", trail=trail, cause=cause)
    step = steps.get(row.batch)
    if row.ratio is None or row.time is None or step is None or not row.trusted:
        return finding
    part = 1 - min(row.ratio, 1 / row.ratio) if row.ratio else 1.0
    return add_impact(finding, row.time.median * part / step.median_ns, step)


def describe_derived_flops(analysis: Analysis) -> Iterator[Finding]:
    """Yield for how much of the time FLOPs are derived, and how far the rules were verified."""
    batches = reversed(analysis.study.prepared_batches)
    run = next((batch.derived for batch in batches if batch.derived and not batch.counted), None)
    covered = (
        measure_rule_coverage((kernel for kernel, _ in run.launches), run.derived) if run else None
    )
    if covered is None:
        return
    text = (
        "perfctl derived the FLOPs from kernel names, grids and shapes, for "
        f"{format_percent(covered.share)} of the kernel time"
    )
    if covered.verified:
        part = "all" if covered.verified > 0.999 else format_percent(covered.verified)
        is_exact = covered.within <= EXACT_ERROR_MAX
        error = "exact" if is_exact else f"verified to {format_percent(covered.within)}"
        text += f"; for {part} of it, the rules are {error} on {' and '.join(covered.chips)}"
    else:
        text += "; no counter has verified the rules"
    yield Finding(f"{text}. Run 'perfctl ncu' to measure them.", "ledger")


def warn_of_refused_rates(analysis: Analysis) -> Iterator[Finding]:
    """Yield a warning about rates above the peak of the device."""
    above = [point for point in analysis.roofline.above_kernels if point.over == "peak"]
    if above:
        further = len(above) - 1
        rows = "1 more row" if further == 1 else f"{further} more rows"
        addition = f" The same applies to {rows}." if further else ""
        text = f"perfctl refuses {above[0].traffic.name}: {above[0].refused}.{addition}"
        yield Finding(text, "roofline", warning=True)
