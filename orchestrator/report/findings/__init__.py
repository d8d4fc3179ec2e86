"""Findings in sentences: only what simple rules prove, each with the section of its evidence; those
about FLOPs, and the warnings about what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from perfctl.orchestrator.counts.counters.amd import TOOLS, is_amd_run
from perfctl.orchestrator.counts.counters.work import is_flop_counter
from perfctl.orchestrator.counts.derived.run import compute_rule_kernel_time_coverage
from perfctl.orchestrator.counts.figure import sum_figures
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.timeline.judge import RunVerdicts
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun, Study
from perfctl.orchestrator.ledger.sweep import describe_ignored_batch_sizes
from perfctl.orchestrator.ledger.unattributed import find_largest_other_share
from perfctl.orchestrator.ledger.usage.sums import KERNELS, group_summed_operations
from perfctl.orchestrator.report.findings import kernels, step
from perfctl.orchestrator.report.ledger import (
    build_row_evidence_trail_key,
    build_sweep_evidence_trail_key,
)
from perfctl.orchestrator.report.ledger.causes import SWITCH, build_ledger_headlines
from perfctl.orchestrator.report.ledger.phases import (
    find_slowest_part_per_phase,
    find_worst_tile_padding,
    has_repeated_blocks,
    list_prefill_decode_phases,
)
from perfctl.orchestrator.report.numbers import format_percent
from perfctl.orchestrator.report.page.kernels import NO_FLOPS
from perfctl.orchestrator.report.page.records import (
    Finding,
    Steps,
    add_time_impact_and_fix,
    find_undisturbed_median_steps,
    sort_findings_by_impact,
)
from perfctl.orchestrator.report.studies.inference_fields import list_inference_findings
from perfctl.orchestrator.report.tables import ShortNames, count_cell, run_label
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import join_first_names, pluralize_count
from perfctl.records.run import Run

SHOWN = 6
"""Findings that are shown at once; the rest are listed under "more"."""
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
NAMES_CHARACTERS_MAX = 80
"""Characters of a list of names, so that the sentence's verb is in a finding's first line."""
PARTLY_DERIVED = "perfctl has no rule, or only a partial rule, for some kernels"


def list_findings(analysis: Analysis) -> tuple[Finding, ...]:
    """Return findings by the share of the step that is at stake, then warnings; empty if nothing
    stands out."""
    study, steps = analysis.study, find_undisturbed_median_steps(analysis)
    runs = study.prepared_runs
    if study.is_foreign:
        is_derived = any(batch.derived_run for batch in study.prepared_batches)
        return sort_findings_by_impact(
            (
                *_list_foreign_ledger_findings(analysis, steps),
                *list_findings_without_layers(
                    runs, analysis.names, steps, analysis.verdicts, has_derived_flops=is_derived
                ),
                *kernels.describe_longest_kernel_bound(analysis.roofline, analysis.names),
                *warn_of_failed_runs(study),
            )
        )
    label = (Finding(text, "sweep") for text in describe_ignored_batch_sizes(study))
    idle = tuple(step.describe_idle_gpu(runs, analysis.names, steps))
    return (
        *label,
        *sort_findings_by_impact(
            (
                *describe_flop_differences(analysis, steps),
                *step.describe_layers_with_most_time(study, analysis.ledger, {}),
                *(
                    list_inference_findings(study.runs)
                    or step.describe_time_per_sample_by_batch(study, analysis.points)
                ),
                *(idle or step.describe_launch_waits(analysis, steps)),
                *step.describe_busy_and_fitting_batches([prepared.usage for prepared in runs]),
                *step.describe_timeline_causes(analysis.verdicts, steps),
                *step.describe_throttling(study.runs),
                *step.describe_unattributed_time(study, analysis.ledger),
                *warn_about_rates_above_peak(analysis),
                *describe_derived_flops_coverage(analysis),
                *warn_of_missing_flops(study, analysis.ledger),
                *warn_of_missing_steps(study),
                *warn_of_failed_runs(study),
            )
        ),
    )


def _list_foreign_ledger_findings(analysis: Analysis, steps: Steps) -> Iterator[Finding]:
    """Yield findings of an existing report whose operators' shapes give estimated FLOPs."""
    study, ledger = analysis.study, analysis.ledger
    if not ledger.rows or not study.has_ledger:
        return
    phases = list_prefill_decode_phases(analysis)
    yield from describe_flop_differences(analysis, steps)
    if has_repeated_blocks(phases):
        yield from find_slowest_part_per_phase(
            phases, lambda batch: find_largest_other_share(study, ledger, batch)
        )
    else:
        yield from step.describe_layers_with_most_time(study, ledger, steps)
    lines = build_ledger_headlines(analysis.judgement, ledger)
    if not any("tile padding" in line.rules for line in lines):
        yield from find_worst_tile_padding(phases)
    yield from step.describe_unattributed_time(study, ledger)
    yield from warn_about_rates_above_peak(analysis)
    yield from describe_derived_flops_coverage(analysis)
    # if all counts of a run are missing, a separate warning states it and what to do
    is_reported = any(
        explain_incomplete_flops(prepared) is not None for prepared in study.prepared_runs
    )
    yield from warn_of_missing_flops(study, ledger, missing_counts_reported=is_reported)


def list_findings_without_layers(
    runs: Sequence[PreparedRun],
    names: ShortNames,
    steps: Steps,
    verdicts: RunVerdicts = (),
    *,
    has_derived_flops: bool = False,
) -> Iterator[Finding]:
    """Yield findings and warnings of runs without layers. ``has_derived_flops``: their FLOPs are
    known without counters; ``names``: short kernel names."""
    for prepared in runs:
        run = prepared.run
        if not run.report.kernels:
            lost = list(warn_of_missing_kernels(run))
            yield from kernels.describe_largest_operation_sums(run)
            if not lost:  # calls say little of a GPU that was not recorded
                yield from kernels.describe_longest_api_call(run)
            yield from step.describe_dlprof_utilization(prepared)
            yield from step.describe_gpu_samples(run)
            yield from lost
            continue
        of_run = [item for item in verdicts if item[0].id == run.id]
        causes = (cause for _, causes in of_run for cause in causes)
        # the finding of unused tensor cores states the time of its kernels, and what to do
        stated = next((c.kernels for c in causes if c.rule == "unused tensor cores"), ())
        family = next(iter(prepared.usage.kernels_by_family.values()), ())
        if {kernel.name for kernel in family}.difference(stated):
            yield from kernels.describe_kernel_with_most_time(prepared, names, steps)
        yield from kernels.describe_largest_ncu_saving(prepared, names, steps)
        yield from kernels.describe_small_grids(prepared, steps)
        yield from kernels.describe_kernel_with_most_flops(run, prepared.flops_by_launch, names)
        yield from kernels.describe_constant_move_instructions(prepared)
        yield from step.describe_idle_gpu([prepared], names, steps)
        yield from step.describe_timeline_causes(of_run, steps)
        yield from kernels.describe_range_with_most_gpu_time(run)
        yield from step.describe_copies(prepared, steps)
        yield from step.describe_allocations(prepared, steps)
        yield from warn_about_missing_durations_and_flops(
            prepared, has_derived_flops=has_derived_flops
        )


def describe_flop_differences(analysis: Analysis, steps: Steps) -> list[Finding]:
    """Return the differences and what is wrong with the sweep, with causes.

    Without any, return that all rows agree whose FLOPs are known completely.
    """
    ledger = analysis.ledger
    rows_by_key = {row.key: row for row in ledger.rows}
    stated = []
    for headline in build_ledger_headlines(analysis.judgement, ledger):
        rules, cause = headline.rules, ", ".join(headline.rules) or None
        if headline.place is None:  # what is wrong with the sweep concerns each of its figures
            evidence = next((EVIDENCE[rule] for rule in rules if rule in EVIDENCE), "ledger")
            trail = build_sweep_evidence_trail_key(rules[0]) if rules else None
            share, step = None if SWITCH in rules else 1.0, next(iter(steps.values()), None)
        else:
            row = rows_by_key[headline.place]
            evidence, share, step = "ledger", None, steps.get(row.batch)
            trail = build_row_evidence_trail_key(row.layer_label, row.direction, row.batch)
            # the part of the row's time in which executed and estimated FLOPs differ
            if row.ratio is not None and row.time is not None and step and row.trusted:
                part = 1 - min(row.ratio, 1 / row.ratio) if row.ratio else 1.0
                share = row.time.median * part / step.median_ns
        finding = Finding(headline.sentence, evidence, trail=trail, cause=cause)
        stated.append(add_time_impact_and_fix(finding, share, step))
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


def describe_derived_flops_coverage(analysis: Analysis) -> Iterator[Finding]:
    """Yield for how much of the time FLOPs are derived, and how far the rules were verified."""
    batches = reversed(analysis.study.prepared_batches)
    run = next(
        (batch.derived_run for batch in batches if batch.derived_run and not batch.counted_run),
        None,
    )
    covered = (
        compute_rule_kernel_time_coverage(
            (kernel for kernel, _ in run.measured_launches), run.instructions_by_launch
        )
        if run
        else None
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


def warn_about_rates_above_peak(analysis: Analysis) -> Iterator[Finding]:
    """Yield a warning about rates above the peak of the device."""
    above = [point for point in analysis.roofline.above_kernels if point.over == "peak"]
    if above:
        further = len(above) - 1
        rows = pluralize_count(further, "more row")
        addition = f" The same applies to {rows}." if further else ""
        text = f"perfctl refuses {above[0].traffic.name}: {above[0].refused}.{addition}"
        yield Finding(text, "roofline", warning=True)


def _make_gap_warning(text: str) -> Finding:
    return Finding(text, "gaps", warning=True)


def warn_of_missing_flops(
    study: Study, ledger: Ledger, *, missing_counts_reported: bool = False
) -> Iterator[Finding]:
    """Yield which FLOPs are unknown or lower bounds. ``missing_counts_reported``: another warning
    states that nothing was measured."""
    if not ledger.rows:
        return
    yield from _warn_of_missing_estimates(ledger)
    bounds = [row for row in ledger.rows if row.executed.lower_bound and row.estimated.value]
    if not ledger.has_executed_flops and missing_counts_reported:
        return
    if not ledger.has_executed_flops:
        reasons = sorted({row.executed.reason for row in ledger.rows if row.executed.reason})
        reason = "; ".join(reasons[:2])
        counting = [
            batch.counted_or_derived_run
            for batch in study.prepared_batches
            if batch.counted_or_derived_run
        ]
        text = (
            f"{reason}. perfctl therefore cannot compute FLOPs per step or a ratio."
            if any(prepared.step_count is None for prepared in counting)
            else f"There are no executed FLOPs: {reason}."
        )
        yield _make_gap_warning(text)
    elif any(row.executed.state == "derived" for row in ledger.rows):
        if bounds:
            names = _join_first_names_to_width(sorted(row.name for row in bounds))
            text = f"The derived FLOPs of {names} are lower bounds: {PARTLY_DERIVED}."
            yield _make_gap_warning(text)
    else:
        pairs = (
            (reason, row.name)
            for row in bounds
            for reason in row.executed.lacking or ("some launches have no counters",)
        )
        for reason, same in group_by(pairs, lambda pair: pair[0]).items():
            names = _join_first_names_to_width(sorted(name for _, name in same))
            text = f"The executed FLOPs of {names} are lower bounds: {reason}."
            yield _make_gap_warning(text)


def _warn_of_missing_estimates(ledger: Ledger) -> Iterator[Finding]:
    """Yield the rows that run an operation without a formula, with the operations' names."""
    rows = [row for row in ledger.rows if any(call.flops is None for call in row.calls)]
    if rows:
        calls = (call for row in rows for call in row.calls if call.flops is None)
        kinds = _join_first_names_to_width(call.kind or "an operation" for call in calls)
        names = _join_first_names_to_width(row.name for row in rows)
        states = {"lower bounds" if row.estimated.lower_bound else "unknown" for row in rows}
        text = (
            f"The estimated FLOPs of {names} are {' or '.join(sorted(states))}: they do not "
            f"include {kinds}."
        )
        yield _make_gap_warning(text)


def _join_first_names_to_width(names: Iterable[str]) -> str:
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
                yield _make_gap_warning(f"{run_label(run)}: {gap.reason.rstrip('.')}.")


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
        yield _make_gap_warning(text)


def warn_about_missing_durations_and_flops(
    prepared: PreparedRun, *, has_derived_flops: bool
) -> Iterator[Finding]:
    """Yield which durations and FLOPs the kernels of a report lack. ``has_derived_flops``: the
    FLOPs are known without counters."""
    report, kernels = prepared.run.report, list(prepared.run.report.kernels)
    timed = sum(kernel.duration_ns is not None for kernel in kernels)
    if timed < len(kernels):
        gap = next((gap for gap in report.gaps if gap.quantity == "kernel.duration_ns"), None)
        which = (
            "No launch has"
            if timed == 0
            else f"Only {count_cell(timed).text} of {pluralize_count(len(kernels), 'launch')} have"
        )
        reason = f": {gap.reason.rstrip('.')}" if gap else ""
        yield _make_gap_warning(f"{which} a duration{reason}.")
    lacking = None if has_derived_flops else explain_incomplete_flops(prepared)
    if lacking is not None:
        state, reason = lacking
        text = f"Executed FLOPs are {'lower bounds' if state == 'lower bound' else state}"
        text = "No FLOP counts" if state == "not collected" else text
        yield _make_gap_warning(f"{text}: {reason}.")


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
            f"{problem}; run rocprofv3 --pmc with the SQ_INSTS_VALU counters",
        )
    if run.profiler != "ncu" and not is_amd_run(run):
        return (
            "not collected",
            f"{run.profiler} does not record them; run the program under perfctl ncu",
        )
    flops = [prepared.flops_by_launch.get(kernel.launch, NO_FLOPS) for kernel in run.report.kernels]
    total = sum_figures(item.total for item in flops)
    if total.value is None:
        return total.state.replace("_", " "), total.reason or "no reason was recorded"
    parts = []
    if total.launches < total.of_launches:
        without = total.of_launches - total.launches
        verb = "has" if without == 1 else "have"
        parts.append(f"{without} of {pluralize_count(total.of_launches, 'launch')} {verb} no count")
    if total.missing:
        reasons: dict[str, list[str]] = {}  # of each launch whose total lacks the path
        for item in flops:
            for path in item.total.missing if item.total.value is not None else ():
                reason = getattr(getattr(item, path, None), "reason", None)
                reasons.setdefault(path, []).append(reason or "it was not collected")
        texts = (
            f"without {path} FLOPs"
            f"{f' in {len(of_path)} of {len(flops)} launches' * (len(of_path) < len(flops))}, "
            f"because {of_path[0]}"
            for path, of_path in reasons.items()
        )
        parts.append("; ".join(texts))
    return ("lower bound", "; ".join(parts)) if parts else None
