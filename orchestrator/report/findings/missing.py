"""Warnings about what is missing: FLOPs, durations, kernels, steps and runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from perfctl.orchestrator.counts.counters.amd import TOOLS, is_amd_run
from perfctl.orchestrator.counts.counters.work import KernelFlops, is_flop_counter
from perfctl.orchestrator.counts.figure import sum_figures
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun, Study
from perfctl.orchestrator.ledger.usage.sums import KERNELS, group_summed_operations
from perfctl.orchestrator.report.findings.step import format_launch_count
from perfctl.orchestrator.report.page.kernels import NO_FLOPS
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import count_cell, join_first_names, run_label
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Run

NAMES_CHARACTERS_MAX = 80
"""Characters of a list of names, so that the sentence's verb is in a finding's first line."""
PARTLY_DERIVED = "perfctl has no rule, or only a partial rule, for some kernels"


def _warn(text: str) -> Finding:
    return Finding(text, "gaps", warning=True)


def warn_of_missing_flops(
    study: Study, ledger: Ledger, *, is_reported: bool = False
) -> Iterator[Finding]:
    """Yield which FLOPs are unknown or lower bounds. ``is_reported``: another warning states that
    nothing was measured."""
    if not ledger.rows:
        return
    yield from _warn_of_missing_estimates(ledger)
    bounds = [row for row in ledger.rows if row.executed.lower_bound and row.estimated.value]
    if not ledger.has_counted_rows and is_reported:
        return
    if not ledger.has_counted_rows:
        reasons = sorted({row.executed.reason for row in ledger.rows if row.executed.reason})
        reason = "; ".join(reasons[:2])
        counting = [batch.counting_run for batch in study.prepared_batches if batch.counting_run]
        text = (
            f"{reason}. perfctl therefore cannot compute FLOPs per step or a ratio."
            if any(prepared.steps is None for prepared in counting)
            else f"There are no executed FLOPs: {reason}."
        )
        yield _warn(text)
    elif any(row.executed.state == "derived" for row in ledger.rows):
        if bounds:
            names = _join_names(sorted(row.name for row in bounds))
            text = f"The derived FLOPs of {names} are lower bounds: {PARTLY_DERIVED}."
            yield _warn(text)
    else:
        pairs = (
            (reason, row.name)
            for row in bounds
            for reason in row.executed.lacking or ("some launches have no counters",)
        )
        for reason, same in group_by(pairs, lambda pair: pair[0]).items():
            names = _join_names(sorted(name for _, name in same))
            text = f"The executed FLOPs of {names} are lower bounds: {reason}."
            yield _warn(text)


def _warn_of_missing_estimates(ledger: Ledger) -> Iterator[Finding]:
    """Yield the rows that run an operation without a formula, with the operations' names."""
    rows = [row for row in ledger.rows if any(call.flops is None for call in row.calls)]
    if rows:
        calls = (call for row in rows for call in row.calls if call.flops is None)
        kinds = _join_names(call.kind or "an operation" for call in calls)
        names = _join_names(row.name for row in rows)
        states = {"lower bounds" if row.estimated.lower_bound else "unknown" for row in rows}
        text = (
            f"The estimated FLOPs of {names} are {' or '.join(sorted(states))}: they do not "
            f"include {kinds}."
        )
        yield _warn(text)


def _join_names(names: Iterable[str]) -> str:
    names = list(dict.fromkeys(names))
    listed = names[:3]
    while len(listed) > 1 and len(", ".join(listed)) > NAMES_CHARACTERS_MAX:
        listed.pop()
    return join_first_names(names, len(listed))


def warn_of_missing_steps(study: Study) -> Iterator[Finding]:
    """Yield the runs that recorded fewer steps than they measured."""
    for run in study.runs:
        for gap in run.report.gaps if run.status == "ok" else ():
            if gap.quantity == "step" and gap.state == "not_collected":
                yield _warn(f"{run_label(run)}: {gap.reason.rstrip('.')}.")


def warn_of_failed_runs(study: Study) -> Iterator[Finding]:
    """Yield the runs that failed, those with the same reason together."""
    failed = (run for run in study.runs if run.status != "ok")
    groups = group_by(failed, lambda run: (run.profiler, run.status, run.reason))
    for (profiler, status, reason), same in groups.items():
        sizes = [str(run.batch_size) for run in same if run.batch_size is not None]
        at_batches = f" at batch {', '.join(sizes)}" if sizes else ""
        runs, verb = ("runs", f"are {status}") if len(same) > 1 else ("run", f"is {status}")
        verb = "failed" if status == "failed" else verb
        subject = f"{runs} without a profiler" if profiler == "none" else f"{profiler} {runs}"
        reason = (reason or "no reason was recorded").rstrip(".")
        yield Finding(f"The {subject}{at_batches} {verb}: {reason}.", "runs", warning=True)


def warn_of_missing_kernels(run: Run) -> Iterator[Finding]:
    """Yield why a report has no kernels, if it states a reason."""
    gap = next((gap for gap in run.report.gaps if gap.quantity in ("kernel", "kernels")), None)
    if gap:
        kernels = "single kernels" if KERNELS in group_summed_operations([run]) else "kernels"
        text = f"{run_label(run)} has no {kernels}: {gap.reason.rstrip('.')}."
        yield _warn(text)


def warn_of_missing_counts(prepared: PreparedRun, *, is_derived: bool) -> Iterator[Finding]:
    """Yield which durations and FLOPs the kernels of a report lack. ``is_derived``: the FLOPs are
    known without counters."""
    report, kernels = prepared.run.report, list(prepared.run.report.kernels)
    timed = sum(kernel.duration_ns is not None for kernel in kernels)
    if timed < len(kernels):
        gap = next((gap for gap in report.gaps if gap.quantity == "kernel.duration_ns"), None)
        which = (
            "No launch has"
            if timed == 0
            else f"Only {count_cell(timed).text} of {format_launch_count(len(kernels))} have"
        )
        reason = f": {gap.reason.rstrip('.')}" if gap else ""
        yield _warn(f"{which} a duration{reason}.")
    lacking = None if is_derived else explain_incomplete_flops(prepared)
    if lacking is not None:
        state, reason = lacking
        text = f"Executed FLOPs are {'lower bounds' if state == 'lower bound' else state}"
        text = "No FLOP counts" if state == "not collected" else text
        yield _warn(f"{text}: {reason}.")


def explain_incomplete_flops(prepared: PreparedRun) -> tuple[str, str] | None:
    """Return state in words and reason of incomplete FLOP counts; None if they are complete, or if
    there is no kernel."""
    run = prepared.run
    if not run.report.kernels:
        return None
    has_counts = any(is_flop_counter(counter.name) for counter in run.report.counters)
    if is_amd_run(run) and not has_counts:
        problem = (
            "the run collected no counter for FLOPs"
            if run.profiler in TOOLS
            else f"{run.profiler} does not record them"
        )
        return (
            "not collected",
            f"{problem}. Run rocprofv3 --pmc with the SQ_INSTS_VALU counters",
        )
    if run.profiler != "ncu" and not is_amd_run(run):
        return "not collected", f"{run.profiler} does not record them. Run perfctl ncu"
    flops = [prepared.flops.get(kernel.launch, NO_FLOPS) for kernel in run.report.kernels]
    total = sum_figures(item.total for item in flops)
    if total.value is None:
        return total.state.replace("_", " "), total.reason or "no reason was recorded"
    parts = []
    if total.launches < total.of_launches:
        without = total.of_launches - total.launches
        verb = "has" if without == 1 else "have"
        parts.append(f"{without} of {format_launch_count(total.of_launches)} {verb} no count")
    if total.missing:
        parts.append(_describe_missing_paths(flops))
    return ("lower bound", "; ".join(parts)) if parts else None


def _describe_missing_paths(flops: Sequence[KernelFlops]) -> str:
    """Return "without tensor FLOPs, because tensor counters were not collected; ...": the first
    reason of each path that some total lacks."""
    reasons: dict[str, str] = {}
    for item in flops:
        for path in item.total.missing if item.total.value is not None else ():
            reason = getattr(getattr(item, path, None), "reason", None)
            reasons.setdefault(path, reason or "it was not collected")
    return "; ".join(f"without {path} FLOPs, because {reasons[path]}" for path in reasons)
