"""What stands out, in sentences: only what simple rules prove, each with the place of its evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log2

from perfctl.orchestrator.analyse.grouping import Study
from perfctl.orchestrator.analyse.ledger import Ledger, LedgerRow
from perfctl.orchestrator.analyse.sweep import BatchPoint
from perfctl.orchestrator.report import foreign_findings, numbers
from perfctl.orchestrator.report.foreign_findings import Finding
from perfctl.orchestrator.report.numbers import percent, time

__all__ = ["SHOWN", "Finding", "findings"]

SHOWN = 5
"""More than this go under "more"."""


def findings(study: Study, ledger: Ledger, points: Sequence[BatchPoint]) -> tuple[Finding, ...]:
    """Findings, then warnings; empty when nothing stands out."""
    if study.foreign:
        return (*foreign_findings.of(study.runs), *_failures(study))
    return (
        *_where_time_goes(ledger),
        *_per_sample(points),
        *_ratios(ledger),
        *_outside(ledger),
        *_not_counted(study, ledger),
        *_failures(study),
    )


def _where_time_goes(ledger: Ledger) -> list[Finding]:
    """The largest layer and direction at the smallest and at the largest timed batch size."""
    timed = [row for row in ledger.rows if row.share is not None and row.trusted]
    if not timed:
        return []
    first, last = min(row.batch for row in timed), max(row.batch for row in timed)
    top = {
        batch: max((row for row in timed if row.batch == batch), key=lambda row: row.share or 0)
        for batch in (first, last)
    }
    at_first, at_last = top[first], top[last]
    share, whole = percent(at_first.share or 0), at_first.whole
    start = f"{at_first.name} takes the most time at batch {first}: {share} of the {whole}"
    if first == last:
        return [Finding(f"{start}.", "ledger")]
    if at_first.name == at_last.name:
        text = (
            f"{at_first.name} takes the most time: {share} of the {whole} at batch {first}, "
            f"{percent(at_last.share or 0)} at batch {last}."
        )
        return [Finding(text, "ledger")]
    return [Finding(f"{start}; at batch {last} it is {at_last.name} with {percent(at_last.share or 0)}.", "ledger")]


def _per_sample(points: Sequence[BatchPoint]) -> list[Finding]:
    """How time per sample changes from the smallest to the largest batch; said only where spreads do not overlap."""
    timed = [point for point in points if point.per_sample]
    if len(timed) < 2:
        return []
    first, last = timed[0], timed[-1]
    assert first.step is not None and last.step is not None and first.per_sample and last.per_sample
    overlap = (
        first.step.low / first.batch <= last.step.high / last.batch
        and last.step.low / last.batch <= first.step.high / first.batch
    )
    factor = first.per_sample / last.per_sample
    between = f"{time(first.per_sample)} at batch {first.batch}, {time(last.per_sample)} at batch {last.batch}"
    best = min(timed, key=lambda point: point.per_sample or 0)
    lowest = f"; it is lowest at batch {best.batch} with {time(best.per_sample or 0)}"
    lowest = lowest if best.batch not in (first.batch, last.batch) else ""
    if 0.95 < factor < 1.05 and (best.per_sample or 0) > 0.9 * first.per_sample:
        return [Finding(f"Time per sample hardly changes with the batch size: {between}.", "charts")]
    if overlap:
        text = f"Time per sample scatters too much to rank the smallest and the largest batch: {between}{lowest}"
        return [Finding(f"{text}.", "charts")]
    way, by = ("falls", factor) if factor > 1 else ("grows", 1 / factor)
    text = f"Time per sample {way} with the batch size by a factor of {by:.1f}: {between}{lowest}"
    return [Finding(f"{text}.", "charts")]


def _ratios(ledger: Ledger) -> list[Finding]:
    """The two layers whose counted FLOPs lie furthest from paper, at their furthest batch; within 10 % is no news."""
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger.rows:
        if row.ratio and (not row.counted.lower_bound or row.ratio > 1):
            groups[row.name].append(row)
    ranked = sorted(groups.items(), key=lambda item: -max(abs(log2(row.ratio or 1)) for row in item[1]))
    found = []
    for name, rows in ranked[:2]:
        row = max(rows, key=lambda row: abs(log2(row.ratio or 1)))
        ratio = row.ratio or 1
        if 0.9 < ratio < 1.1:
            break
        low, high = min(r.ratio or 0 for r in rows), max(r.ratio or 0 for r in rows)
        sure = ("about " if row.counted.state == "estimated" else "") + ("at least " if row.counted.lower_bound else "")
        text = f"{name} executed {sure}{_times(ratio)} the FLOPs on paper at batch {row.batch}"
        if len(rows) > 1 and numbers.ratio(low) == numbers.ratio(high):
            text = text.replace(f" at batch {row.batch}", f" at all {len(rows)} batch sizes")
        elif len(rows) > 1:
            text += f" ({numbers.ratio(low)} to {numbers.ratio(high)} over {len(rows)} batch sizes)"
        found.append(Finding(f"{text}.", "ledger"))
    if not found and groups:
        text = "Counted FLOPs lie within 10 % of paper in every layer and direction where both are known."
        return [Finding(text, "ledger")]
    return found


def _times(ratio: float) -> str:
    """0.44 -> "0.44 of", 3.6 -> "3.60 times"."""
    return f"{numbers.ratio(ratio)} of" if ratio < 1 else f"{numbers.ratio(ratio)} times"


def _outside(ledger: Ledger) -> list[Finding]:
    """Time that no layer explains, where it is more than a tenth."""
    big = [item for item in ledger.unattributed if item.share > 0.1]
    if not big:
        return []
    worst = max(big, key=lambda item: item.share)
    text = f"{percent(worst.share)} of the {worst.whole} at batch {worst.batch} is outside of every layer"
    return [Finding(f"{text} and the optimizer.", "ledger")]


def _not_counted(study: Study, ledger: Ledger) -> list[Finding]:
    if not ledger.rows:
        return []
    if not ledger.any_counted:
        reasons = sorted({row.counted.reason for row in ledger.rows if row.counted.reason})
        return [Finding(f"Executed FLOPs were not counted: {'; '.join(reasons[:2])}.", "gaps", warning=True)]
    bounds = sorted({row.name for row in ledger.rows if row.counted.lower_bound and row.paper.value})
    if bounds:
        what = ", ".join(bounds[:3]) + (f" and {len(bounds) - 3} more" if len(bounds) > 3 else "")
        return [
            Finding(
                f"Counted FLOPs of {what} are lower bounds: some counters were not collected.", "gaps", warning=True
            )
        ]
    return []


def _failures(study: Study) -> list[Finding]:
    """One sentence for runs of one profiler that ended for the same reason."""
    same: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for run in study.runs:
        if run.status != "ok":
            reason = (run.reason or "no reason was recorded").rstrip(".")
            same[run.profiler, run.status, reason].append(-1 if run.batch_size is None else run.batch_size)
    found = []
    for (profiler, status, reason), batches in same.items():
        known = [str(batch) for batch in batches if batch >= 0]
        where = f" at batch {', '.join(known)}" if known else ""
        verb = "failed" if status == "failed" else f"{'are' if len(batches) > 1 else 'is'} {status}"
        runs = "runs" if len(batches) > 1 else "run"
        found.append(Finding(f"The {profiler} {runs}{where} {verb}: {reason}.", "runs", warning=True))
    return found
