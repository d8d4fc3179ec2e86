"""Findings in sentences: only what simple rules prove, each with the section of its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.timeline.judge import RunVerdicts
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.sweep import describe_unused_batch_sizes
from perfctl.orchestrator.report.findings import flops, kernels, missing, step
from perfctl.orchestrator.report.findings.missing import explain_incomplete_flops
from perfctl.orchestrator.report.findings.rank import Steps, find_median_steps, sort_findings
from perfctl.orchestrator.report.ledger.causes import build_ledger_headlines
from perfctl.orchestrator.report.ledger.phases import (
    find_largest_parts,
    find_tile_padding,
    has_repeated_blocks,
    list_phases,
)
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.inference_findings import list_inference_findings
from perfctl.orchestrator.report.tables import ShortNames

SHOWN = 6
"""Findings that are shown at once; the rest are listed under "more"."""

__all__ = ["SHOWN", "explain_incomplete_flops", "list_findings", "list_report_findings"]


def list_findings(analysis: Analysis) -> tuple[Finding, ...]:
    """Return findings by the share of the step that is at stake, then warnings; empty if nothing
    stands out."""
    study, steps = analysis.study, find_median_steps(analysis)
    runs = study.prepared_runs
    if study.is_foreign:
        is_derived = any(batch.derived for batch in study.prepared_batches)
        return sort_findings(
            (
                *_list_operator_findings(analysis, steps),
                *list_report_findings(
                    runs, analysis.names, steps, analysis.verdicts, is_derived=is_derived
                ),
                *kernels.describe_largest_bound(analysis.roofline, analysis.names),
                *missing.warn_of_failed_runs(study),
            )
        )
    label = (Finding(text, "sweep") for text in describe_unused_batch_sizes(study))
    idle = tuple(step.describe_idle_gpu(runs, analysis.names, steps))
    return (
        *label,
        *sort_findings(
            (
                *flops.describe_flop_differences(analysis, steps),
                *step.describe_largest_layers(study, analysis.ledger, {}),
                *(
                    list_inference_findings(study.runs)
                    or step.describe_sample_times(study, analysis.points)
                ),
                *(idle or step.describe_launch_waits(analysis, steps)),
                *step.describe_busy_batches([prepared.usage for prepared in runs]),
                *step.describe_timeline_causes(analysis.verdicts, steps),
                *step.describe_throttling(study.runs),
                *step.describe_unattributed_time(study, analysis.ledger),
                *flops.warn_of_refused_rates(analysis),
                *flops.describe_derived_flops(analysis),
                *missing.warn_of_missing_flops(study, analysis.ledger),
                *missing.warn_of_missing_steps(study),
                *missing.warn_of_failed_runs(study),
            )
        ),
    )


def _list_operator_findings(analysis: Analysis, steps: Steps) -> Iterator[Finding]:
    """Yield findings of an existing report whose operators' shapes give estimated FLOPs."""
    study, ledger = analysis.study, analysis.ledger
    if not ledger.rows or not study.has_ledger:
        return
    phases = list_phases(analysis)
    yield from flops.describe_flop_differences(analysis, steps)
    if has_repeated_blocks(phases):
        yield from find_largest_parts(
            phases, lambda batch: step.compute_largest_other_share(study, ledger, batch)
        )
    else:
        yield from step.describe_largest_layers(study, ledger, steps)
    lines = build_ledger_headlines(analysis.judgement, ledger)
    if not any("tile padding" in line.rules for line in lines):
        yield from find_tile_padding(phases)
    yield from step.describe_unattributed_time(study, ledger)
    yield from flops.warn_of_refused_rates(analysis)
    yield from flops.describe_derived_flops(analysis)
    # if all counts of a run are missing, a separate warning states it and what to do
    is_reported = any(
        explain_incomplete_flops(prepared) is not None for prepared in study.prepared_runs
    )
    yield from missing.warn_of_missing_flops(study, ledger, is_reported=is_reported)


def list_report_findings(
    runs: Sequence[PreparedRun],
    names: ShortNames,
    steps: Steps,
    verdicts: RunVerdicts = (),
    *,
    is_derived: bool = False,
) -> Iterator[Finding]:
    """Yield findings and warnings of runs without layers. ``is_derived``: their FLOPs are known
    without counters; ``names``: short kernel names."""
    for prepared in runs:
        run = prepared.run
        if not run.report.kernels:
            yield from kernels.describe_largest_sums(run)
            yield from kernels.describe_longest_call(run)
            yield from step.describe_gpu_samples(run)
            yield from missing.warn_of_missing_kernels(run)
            continue
        yield from kernels.describe_largest_advice(prepared, names, steps)
        yield from kernels.describe_largest_kernel(prepared, names, steps)
        yield from kernels.describe_executed_flops(run, prepared.flops, names)
        yield from kernels.describe_constant_moves(prepared)
        yield from step.describe_idle_gpu([prepared], names, steps)
        of_run = [item for item in verdicts if item[0].id == run.id]
        yield from step.describe_timeline_causes(of_run, steps)
        yield from kernels.describe_largest_range(run)
        yield from step.describe_copies(prepared, steps)
        yield from missing.warn_of_missing_counts(prepared, is_derived=is_derived)
