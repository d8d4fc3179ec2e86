"""What stands out, in sentences: only what simple rules prove, each with the place of its evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from perfctl.orchestrator.analyse.grouping import Study
from perfctl.orchestrator.analyse.ledger import Ledger, LedgerRow
from perfctl.orchestrator.analyse.sweep import BatchPoint
from perfctl.orchestrator.report import numbers
from perfctl.orchestrator.report.numbers import count, percent, time

SHOWN = 5
"""More than this go under "more"."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence. ``evidence`` is the part of the page that proves it."""

    text: str
    evidence: str
    """ledger, charts, kernels, runs or gaps."""
    warning: bool = False
    """True for what is missing or failed."""


def findings(study: Study, ledger: Ledger, points: Sequence[BatchPoint]) -> tuple[Finding, ...]:
    """Findings, then warnings; empty when nothing stands out."""
    if study.foreign:
        return (*_top_kernel(study), *_failures(study))
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
    if overlap or 0.95 < factor < 1.05:
        return [Finding(f"Time per sample hardly changes with the batch size: {between}.", "charts")]
    way, by = ("falls", factor) if factor > 1 else ("grows", 1 / factor)
    best = min(timed, key=lambda point: point.per_sample or 0)
    text = f"Time per sample {way} with the batch size by a factor of {by:.1f}: {between}"
    if best.batch not in (first.batch, last.batch):
        text += f"; it is lowest at batch {best.batch} with {time(best.per_sample or 0)}"
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
    found = []
    for run in study.runs:
        if run.status != "ok":
            where = f" at batch {run.batch_size}" if run.batch_size is not None else ""
            reason = (run.reason or "no reason was recorded").rstrip(".")
            found.append(Finding(f"The {run.profiler} run{where} is {run.status}: {reason}.", "runs", warning=True))
    return found


def _top_kernel(study: Study) -> list[Finding]:
    """In a report without layers: the kernel name with the largest share of the kernel time."""
    times: dict[str, list[float]] = defaultdict(list)
    for run in study.runs:
        for kernel in run.report.kernels:
            if kernel.duration_ns is not None:
                times[kernel.short_name or kernel.name].append(kernel.duration_ns)
    total = sum(sum(values) for values in times.values())
    if not total or len(times) < 2:
        return []
    name, values = max(times.items(), key=lambda item: sum(item[1]))
    shown = name if len(name) <= 90 else f"{name[:87]}..."
    often = "1 launch" if len(values) == 1 else f"{count(len(values)).text} launches"
    text = f"{shown} takes {percent(sum(values) / total)} of the kernel time ({time(sum(values))}, {often})."
    return [Finding(text, "kernels")]
