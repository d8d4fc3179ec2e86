"""Findings in sentences: only what simple rules prove, each with the section of its evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfctl.orchestrator.analyse.analysis import Analysis
from perfctl.orchestrator.analyse.ledger.ledger import Ledger
from perfctl.orchestrator.analyse.ledger.prepared import PreparedStudy
from perfctl.orchestrator.analyse.ledger.studies import Study
from perfctl.orchestrator.analyse.ledger.sweep import BatchPoint
from perfctl.orchestrator.analyse.ledger.unattributed import beyond_time, causes
from perfctl.orchestrator.analyse.usage.busy import BUSY, busy_from
from perfctl.orchestrator.analyse.usage.memory import fits
from perfctl.orchestrator.analyse.usage.run_usage import RunUsage
from perfctl.orchestrator.analyse.verdicts.judge import headlines
from perfctl.orchestrator.report import findings_no_layers
from perfctl.orchestrator.report.numbers import percent, size, time
from perfctl.orchestrator.report.page.inference import inference_findings
from perfctl.orchestrator.report.page.records import Finding

MUCH_IDLE = 0.2
"""Larger shares are explained by their causes: of time without a kernel, and of time that no layer explains."""


def busy_findings(runs: Sequence[RunUsage]) -> Iterator[Finding]:
    """From which batch size on the GPU is busy, why it waits, and which batch fits."""
    since = busy_from([run.ways for run in runs])
    if since is not None:
        batch, is_busy = since
        shares = [run.ways.kernels.value if run.ways.kernels.value is not None else run.ways.nvml.value
                  for run in runs if run.run.batch_size == batch]  # fmt: skip
        known = next((f": {percent(share)} there" for share in shares if share is not None), "")
        if is_busy:
            text = f"The GPU is busy ({percent(BUSY)} of the time or more) from batch {batch} on{known}."
        else:
            text = f"The GPU is busy at no measured batch size ({percent(BUSY)} of the time or more), up to batch {batch}{known}."
        yield Finding(text, "utilisation")
    yield from _idle_finding(runs)
    held = fits([run.memory for run in runs])
    if held:
        yield Finding(
            f"Batch {held.batch:,} is the largest that fits into {size(held.limit)}, on a straight line through the reserved "
            f"peaks of batches {', '.join(map(str, held.batches))}: {size(held.fixed)} and {size(held.per_sample)} a sample.",
            "memory",
        )


def _idle_finding(runs: Sequence[RunUsage]) -> Iterator[Finding]:
    """The largest cause of waiting, at the batch size with the largest share of waiting."""
    idle = [(sum(item.by_cause.values()) / item.window_ns, item) for run in runs for item in run.idle if item.window_ns]
    share, worst = max(idle, key=lambda pair: pair[0], default=(0.0, None))
    if worst is None or share < MUCH_IDLE:
        return
    cause, length = max(worst.by_cause.items(), key=lambda pair: pair[1])
    yield Finding(
        f"At batch {worst.run.batch_size} no kernel runs in {percent(share)} of the time; {time(length)} of "
        f"{time(sum(worst.by_cause.values()))} of it is {_CAUSES[cause]}.", "utilisation",
    )  # fmt: skip


_CAUSES = {
    "loading data": "spent loading data", "copy": "spent copying", "synchronising": "spent in synchronising calls",
    "launches one by one": "the time from one short kernel to the next",
    "host": "waiting for the host, whose launches came late or which waited itself",
}  # fmt: skip


MUCH = 0.05
"""A larger share of time that belongs to no layer gets a sentence."""
WORTH = 0.1
"""A smaller share of that time is not named in it."""
SHOWN = 5
"""More than this go under "more"."""


def findings(found: Analysis) -> tuple[Finding, ...]:
    """Findings, the largest gaps and their reasons first, then warnings; empty when nothing stands out."""
    study, ledger = found.study, found.ledger
    if study.foreign:
        return (*findings_no_layers.of(found.prepared.runs), *_failures(study))
    return (
        *_gaps(found),
        *_largest_shares(ledger),
        *(inference_findings(study.runs) or _per_sample(found.points)),
        *_waits(found),
        *busy_findings([item.usage for item in found.prepared.runs]),
        *_outside(found.prepared, ledger),
        *_refused(found),
        *_not_counted(ledger),
        *_failures(study),
    )


def _largest_shares(ledger: Ledger) -> Iterator[Finding]:
    """The largest layer and direction at the smallest and at the largest timed batch size."""
    timed = [row for row in ledger.rows if row.share is not None and row.trusted]
    if not timed:
        return
    first, last = min(row.batch for row in timed), max(row.batch for row in timed)
    at_first, at_last = (
        max((row for row in timed if row.batch == batch), key=lambda row: row.share or 0) for batch in (first, last)
    )
    share, whole, at_end = percent(at_first.share or 0), at_first.whole, percent(at_last.share or 0)
    who = "The optimizer" if at_first.name == "optimizer" else at_first.name
    if at_first.name == at_last.name and first != last:
        text = f"{who} takes the most time: {share} of the {whole} at batch {first}, {at_end} at batch {last}."
    else:
        text = f"{who} takes the most time at batch {first}: {share} of the {whole}"
        text += "." if first == last else f"; at batch {last} it is {at_last.name} with {at_end}."
    yield Finding(text, "ledger")


def _per_sample(points: Sequence[BatchPoint]) -> Iterator[Finding]:
    """How time per sample changes from the smallest to the largest batch, where spreads do not overlap."""
    timed = [point for point in points if point.per_sample]
    if len(timed) < 2:
        return
    first, last = timed[0], timed[-1]
    assert first.step is not None and last.step is not None and first.per_sample and last.per_sample
    overlap = (
        first.step.low / first.batch <= last.step.high / last.batch
        and last.step.low / last.batch <= first.step.high / first.batch
    )
    factor = first.per_sample / last.per_sample
    between = f"{time(first.per_sample)} at batch {first.batch}, {time(last.per_sample)} at batch {last.batch}"
    best = min(timed, key=lambda point: point.per_sample or 0)
    if 0.95 < factor < 1.05 and (best.per_sample or 0) > 0.9 * first.per_sample:
        yield Finding(f"Time per sample hardly changes with the batch size: {between}.", "charts")
        return
    if best.batch not in (first.batch, last.batch):
        between += f"; it is lowest at batch {best.batch} with {time(best.per_sample or 0)}"
    way, by = ("falls", factor) if factor > 1 else ("grows", 1 / factor)
    text = f"{way} with the batch size by a factor of {by:.1f}"
    if overlap:
        text = "scatters too much to rank the smallest and the largest batch"
    yield Finding(f"Time per sample {text}: {between}.", "charts")


def _gaps(found: Analysis) -> list[Finding]:
    """The largest gaps with their explanations; a gap within 10 % is not reported."""
    said = [Finding(item.sentence, "ledger") for item in headlines(found.judgement, found.ledger)]
    if not said and any(row.ratio for row in found.ledger.rows):
        text = "Counted FLOPs lie within 10 % of paper in every layer and direction where both are known."
        return [Finding(text, "ledger")]
    return said


def _waits(found: Analysis) -> Iterator[Finding]:
    """Batch sizes at which the GPU mostly waits for the host."""
    waiting = [point.traffic for point in found.roofline.at("run") if point.bound == "launch" and point.traffic.busy]
    if waiting:
        worst = min(waiting, key=lambda work: work.busy or 0)
        text = f"The GPU computes in only {percent(worst.busy or 0)} of a step at batch {worst.batch}: it waits for launches"
        if len(waiting) > 1:
            text += f" (below half of the step at {len(waiting)} batch sizes)"
        yield Finding(f"{text}.", "roofline")


def _refused(found: Analysis) -> Iterator[Finding]:
    """Rates over 100 %, which no table shows."""
    over = [point for point in found.roofline.points if point.over == "peak" and point.traffic.level != "kernel"]
    if over:
        more = f" The same in {len(over) - 1} more rows." if len(over) > 1 else ""
        yield Finding(f"{over[0].traffic.name} is refused: {over[0].refused}.{more}", "roofline", warning=True)


def _outside(study: PreparedStudy, ledger: Ledger) -> list[Finding]:
    """Time that belongs to no layer, where it is more than a twentieth, and what took most of it."""
    worst = max(ledger.unattributed, key=lambda item: item.share, default=None)
    if worst is None or worst.share <= MUCH:
        return []
    run = study.at(worst.batch).timing
    parts = [cause for cause in (causes(run) if run else ()) if cause.share >= WORTH]
    said = [
        f"{cause.text} ({percent(cause.share * worst.share)}"
        + (f", {cause.launches:,} {'launch' if cause.launches == 1 else 'launches'})" if cause.launches else ")")
        for cause in parts
    ]
    mostly = f", mostly {' and '.join(filter(None, (', '.join(said[:-1]), said[-1])))}" if said else ""
    beyond = "".join(f" Not in this time: {reason}." for reason in (beyond_time(run.run) if run else ()))
    text = f"{percent(worst.share)} of the {worst.whole} at batch {worst.batch} belongs to no layer{mostly}.{beyond}"
    return [Finding(text, "ledger")]


def _not_counted(ledger: Ledger) -> Iterator[Finding]:
    if not ledger.rows:
        return
    bounds = sorted({row.name for row in ledger.rows if row.counted.lower_bound and row.paper.value})
    if not ledger.any_counted:
        reasons = sorted({row.counted.reason for row in ledger.rows if row.counted.reason})
        yield Finding(f"Executed FLOPs were not counted: {'; '.join(reasons[:2])}.", "gaps", warning=True)
    elif bounds:
        what = ", ".join(bounds[:3]) + (f" and {len(bounds) - 3} more" if len(bounds) > 3 else "")
        text = f"Counted FLOPs of {what} are lower bounds: some counters were not collected."
        yield Finding(text, "gaps", warning=True)


def _failures(study: Study) -> Iterator[Finding]:
    """One sentence for runs of one profiler that ended for the same reason."""
    same: dict[tuple[str, str, str], list[int | None]] = defaultdict(list)
    for run in study.runs:
        if run.status != "ok":
            reason = (run.reason or "no reason was recorded").rstrip(".")
            same[run.profiler, run.status, reason].append(run.batch_size)
    for (profiler, status, reason), batches in same.items():
        known = [str(batch) for batch in batches if batch is not None]
        at = f" at batch {', '.join(known)}" if known else ""
        verb = "failed" if status == "failed" else f"{'are' if len(batches) > 1 else 'is'} {status}"
        runs = "runs" if len(batches) > 1 else "run"
        who = f"{runs} without a profiler" if profiler == "none" else f"{profiler} {runs}"
        yield Finding(f"The {who}{at} {verb}: {reason}.", "runs", warning=True)
