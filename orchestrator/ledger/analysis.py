"""A study with everything that is computed about it, once: what the page, the terminal and exports
show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from perfctl.orchestrator.counts.hardware.peaks import DevicePeaks
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_names_uniquely
from perfctl.orchestrator.ledger.causes.judge import StudyCauses, find_study_flop_gap_causes
from perfctl.orchestrator.ledger.causes.timeline.judge import (
    RunVerdicts,
    detect_run_timeline_verdicts,
)
from perfctl.orchestrator.ledger.ledger import Ledger, build_ledger
from perfctl.orchestrator.ledger.prepared import Study, group_studies_by_sweep
from perfctl.orchestrator.ledger.roofline import Roofline, build_roofline
from perfctl.orchestrator.ledger.sweep import BatchPoint, list_batch_points
from perfctl.records.run import Run


@dataclass(frozen=True)
class Analysis:
    """One study, analysed."""

    study: Study
    ledger: Ledger
    judgement: StudyCauses
    roofline: Roofline
    points: tuple[BatchPoint, ...]
    parts: tuple[Study, ...] = ()
    """The studies of the same sweep that differ in GPU or options, itself first; empty for all but
    the first of them."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Kernel name -> its short form, unique among all the studies that are read together."""

    @cached_property
    def verdicts(self) -> RunVerdicts:
        """What the timeline of each run shows could be faster."""
        usages = [prepared.usage for prepared in self.study.prepared_runs]
        return [(usage.run, detect_run_timeline_verdicts(usage)) for usage in usages]


def analyse_study(
    study: Study,
    measured_peaks: Sequence[DevicePeaks] = (),
    related_studies: Sequence[Study] | None = None,
    short_kernel_names: Mapping[str, str] | None = None,
) -> Analysis:
    """Ledger, verdicts, roofline and sweep of a study; ``measured_peaks`` go before published ones.

    ``related_studies``: the studies that it is read with, as ``analyse_studies`` finds them; by
    default it is read alone. ``short_kernel_names``: of all that is read together; by
    default of this study.
    """
    entries = build_ledger(study)
    group = (study,) if related_studies is None else tuple(related_studies)
    return Analysis(
        study=study,
        ledger=entries,
        judgement=find_study_flop_gap_causes(study, entries, group),
        roofline=build_roofline(study, entries, measured_peaks),
        points=list_batch_points(study),
        parts=group,
        names=shorten_kernel_names_of_runs(study.runs)
        if short_kernel_names is None
        else short_kernel_names,
    )


def analyse_studies(
    studies: Iterable[Study],
    measured_peaks: Sequence[DevicePeaks] = (),
    short_kernel_names: Mapping[str, str] | None = None,
) -> list[Analysis]:
    """Each study analysed, in order. What concerns several parts of one sweep is with the first
    of them.

    ``short_kernel_names``: as ``analyse_study`` takes them; by default of all these studies.
    """
    studies = tuple(studies)
    beside = {id(group[0]): group for group in group_studies_by_sweep(studies)}
    short_kernel_names = (
        shorten_kernel_names_of_runs(run for study in studies for run in study.runs)
        if short_kernel_names is None
        else short_kernel_names
    )
    return [
        analyse_study(study, measured_peaks, beside.get(id(study), ()), short_kernel_names)
        for study in studies
    ]


def shorten_kernel_names_of_runs(runs: Iterable[Run]) -> dict[str, str]:
    """Kernel name -> its short form, unique among these runs."""
    return shorten_kernel_names_uniquely(
        kernel.name for run in runs for kernel in run.report.kernels
    )
