"""Findings in sentences: only what simple rules prove, each with the section of its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.timeline.judge import RunVerdicts
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.sweep import unused_batch_finding
from perfctl.orchestrator.report.findings import flops, kernels, missing, step
from perfctl.orchestrator.report.findings.missing import lacking_flops
from perfctl.orchestrator.report.findings.rank import Steps, measure_steps, rank
from perfctl.orchestrator.report.ledger.causes import headlines
from perfctl.orchestrator.report.ledger.phases import (
    has_repeats,
    largest_parts,
    padding_findings,
    phases_of,
)
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.inference_findings import inference_findings

SHOWN = 6
"""Findings that are shown at once; the rest are listed under "more"."""

__all__ = ["SHOWN", "findings", "lacking_flops", "report_findings"]


def findings(analysis: Analysis) -> tuple[Finding, ...]:
    """Return findings by the share of the step that is at stake, then warnings; empty if nothing
    stands out."""
    study, steps = analysis.study, measure_steps(analysis)
    runs = study.prepared_runs
    if study.foreign:
        is_derived = any(batch.derived for batch in study.prepared_batches)
        return rank(
            (
                *_shape_findings(analysis, steps),
                *report_findings(
                    runs, analysis.names, steps, analysis.verdicts, is_derived=is_derived
                ),
                *kernels.largest_bound(analysis.roofline, analysis.names),
                *missing.failed_runs(study),
            )
        )
    label = (Finding(text, "sweep") for text in unused_batch_finding(study))
    idle = tuple(step.idle_findings(runs, analysis.names, steps))
    return (
        *label,
        *rank(
            (
                *flops.difference_findings(analysis, steps),
                *step.largest_layers(study, analysis.ledger, {}),
                *(inference_findings(study.runs) or step.sample_findings(study, analysis.points)),
                *(idle or step.launch_findings(analysis, steps)),
                *step.batch_findings([prepared.usage for prepared in runs]),
                *step.timeline_findings(analysis.verdicts, steps),
                *step.throttle_findings(study.runs),
                *step.unattributed_findings(study, analysis.ledger),
                *flops.refused_findings(analysis),
                *flops.derived_findings(analysis),
                *missing.missing_flops(study, analysis.ledger),
                *missing.missing_steps(study),
                *missing.failed_runs(study),
            )
        ),
    )


def _shape_findings(analysis: Analysis, steps: Steps) -> Iterator[Finding]:
    """Yield findings of an existing report whose operators' shapes give estimated FLOPs."""
    study, ledger = analysis.study, analysis.ledger
    if not ledger.rows or not study.on_paper:
        return
    phases = phases_of(analysis)
    yield from flops.difference_findings(analysis, steps)
    if has_repeats(phases):
        yield from largest_parts(phases, lambda batch: step.largest_other(study, ledger, batch))
    else:
        yield from step.largest_layers(study, ledger, steps)
    lines = headlines(analysis.judgement, ledger)
    if not any("tile padding" in line.rules for line in lines):
        yield from padding_findings(phases)
    yield from step.unattributed_findings(study, ledger)
    yield from flops.refused_findings(analysis)
    yield from flops.derived_findings(analysis)
    # if all counts of a run are missing, a separate warning states it and what to do
    is_reported = any(lacking_flops(prepared) is not None for prepared in study.prepared_runs)
    yield from missing.missing_flops(study, ledger, is_reported=is_reported)


def report_findings(
    runs: Sequence[PreparedRun],
    names: Mapping[str, str],
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
            yield from kernels.largest_sums(run)
            yield from kernels.largest_call(run)
            yield from step.sampled_findings(run)
            yield from missing.missing_kernels(run)
            continue
        yield from kernels.largest_advice(prepared, names, steps)
        yield from kernels.largest_kernel(prepared, names, steps)
        yield from kernels.executed_flops(run, prepared.flops, names)
        yield from kernels.constant_moves(prepared)
        yield from step.idle_findings([prepared], names, steps)
        of_run = [item for item in verdicts if item[0].id == run.id]
        yield from step.timeline_findings(of_run, steps)
        yield from kernels.largest_range(run)
        yield from step.copy_findings(prepared, steps)
        yield from missing.missing_counts(prepared, is_derived=is_derived)
