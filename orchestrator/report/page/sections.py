"""The HTML report as records, so that templates decide nothing."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from perfctl.orchestrator.counts.hardware.peaks import DevicePeaks
from perfctl.orchestrator.ledger.analysis import analyse_studies
from perfctl.orchestrator.ledger.prepared import (
    Study,
    format_study_heading,
    group_into_studies,
    group_studies_by_sweep,
)
from perfctl.orchestrator.report.charts.study import make_study_label
from perfctl.orchestrator.report.ledger.ranks import list_job_communications
from perfctl.orchestrator.report.numbers import format_step_times
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.chapters import RunGroup, make_report_sections
from perfctl.orchestrator.report.page.section import build_group_view
from perfctl.orchestrator.report.page.several import build_overview, find_busy_share
from perfctl.orchestrator.report.page.usage import usage_share_cell
from perfctl.orchestrator.report.studies.inference_findings import is_timed_inference
from perfctl.orchestrator.report.view import View
from perfctl.records.bench import WORKLOAD
from perfctl.records.run import Run

WHOLE = 6
"""Networks of a bench that have a part each; more share one."""
SOURCE = "Every number comes from a row of the database, which names its profiler report."
OPEN_GROUPS = 3
"""Run groups that are all open; of more, and of existing reports, only the first is, below the
overview."""


def build_report_view(
    runs: Iterable[Run],
    *,
    generated_at: str = "",
    title: str | None = None,
    peaks: Sequence[DevicePeaks] = (),
    caution: str | None = None,
    begun: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> View:
    """Return the report of these runs: a chapter for each run group, those with a ledger first.

    A bench of many networks is one part, with a row for each point instead of a ledger for each
    network. ``begun`` receives the name of each group, how many are done, how many there are.
    """
    every = list(group_into_studies(runs))
    bench = [
        study
        for study in every
        if study.workload == WORKLOAD and {run.profiler for run in study.runs} == {"none"}
    ]
    if len(bench) <= WHOLE:
        bench = []
    shown_studies = sorted(
        (study for study in every if study not in bench), key=lambda study: study.is_foreign
    )
    jobs = list(list_job_communications(run for study in shown_studies for run in study.runs))
    further = {id(use.run) for job in jobs for use in job.job.ranks[1:]}
    shown_studies = [
        study for study in shown_studies if not all(id(run) in further for run in study.runs)
    ]
    inference = [study for study in shown_studies if is_timed_inference(study)]
    analyses = list(analyse_studies(shown_studies, peaks))
    views = []
    for number, analysis in enumerate(analyses, 1):
        begun(make_study_label(analysis.study), number - 1, len(shown_studies))
        first = {id(run) for run in analysis.study.runs}
        jobs_of_first = tuple(job for job in jobs if id(job.job.ranks[0].run) in first)
        views.append(_build_study_view(RunGroup(analysis, f"s{number}", jobs_of_first)))
    often = Tally(view.title for view in views)
    recordings: dict[Hashable, str] = {}
    for index, (view, study) in enumerate(zip(views, shown_studies, strict=True)):
        device = dict(view.properties).get("device")
        name = f"{view.title}, {device}" if often[view.title] > 1 and device else view.title
        if len(views) > 1 and study.is_foreign:
            recorded = recordings.setdefault(_identify_recording(study), name)
            name = name if recorded == name else f"{name}: the same recording as {recorded}"
        views[index] = replace(view, title=name)
        if study in inference:  # below the part of all models
            is_profiled = any(run.profiler != "none" for run in study.runs)
            is_folded = len(shown_studies) > 1 or not is_profiled
            views[index] = replace(view, title=f"Details: {name}", is_folded=is_folded)
    joint = build_overview(
        [
            (view.key, analysis)
            for view, analysis in zip(views, analyses, strict=True)
            if analysis.study not in inference
        ]
    )
    views = [*_build_shared_views(inference, bench, len(shown_studies) + 1), *views]
    if title is None:
        is_of_one = (
            not inference
            and not bench
            and len(shown_studies) > 1
            and len(group_studies_by_sweep(shown_studies)) == 1
        )
        title = _name_parts_of_study(shown_studies) if is_of_one else _choose_title(views)
    is_existing = all(study.is_foreign for study in shown_studies)
    if joint.tables and (is_existing or len(views) > OPEN_GROUPS):
        views[1:] = [replace(view, is_folded=True) for view in views[1:]]
    # "2026-11-20T21:06:57Z" -> "2026-11-20 21:06 UTC"; anything else as it is
    stamp = re.sub(
        r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?(?:Z|\+00:00)$", r"\1 \2 UTC", generated_at
    )
    return replace(
        joint,
        title=title,
        caution=caution,
        notes=(f"perfctl, {stamp}. {SOURCE}",),
        chapters=tuple(views),
    )


def _identify_recording(study: Study) -> Hashable:
    """Return the times of all launches, which two reports have in common only if they are of one
    recording; otherwise what no other report has."""
    launches = frozenset(
        (kernel.start_ns, kernel.duration_ns)
        for run in study.runs
        for kernel in run.report.kernels
        if kernel.start_ns is not None
    )
    return launches or id(study)


def _build_shared_views(
    inference: Sequence[Study], bench: Sequence[Study], first: int
) -> Iterator[View]:
    """Yield the part of all models and those of a bench. Few reports have one, so what draws them
    is loaded for these only."""
    if inference:
        from perfctl.orchestrator.report.studies.inference import build_inference_page_part

        yield build_inference_page_part(inference)
    if bench:
        from perfctl.orchestrator.report.page.bench import build_bench_views

        yield from build_bench_views(bench, first)


def _name_parts_of_study(studies_of_parts: Sequence[Study]) -> str:
    models = dict.fromkeys(
        study.runs[0].report.environment.get("option:model") or study.workload
        for study in studies_of_parts
    )
    return f"{' and '.join(filter(None, models))}, {len(studies_of_parts)} parts of a study"


def _choose_title(views: Sequence[View]) -> str:
    headings = [view.title for view in views if not view.is_folded]
    if len(headings) == 1:
        return headings[0]
    return f"{len(headings)} run groups and reports" if views else "nothing to show"


def _build_study_view(group: RunGroup) -> View:
    sections = make_report_sections(group)
    keys = {section.key for section in sections}
    stated = group.findings
    if "ledger" in keys:
        stated = tuple(
            item if item.evidence in keys else replace(item, evidence="ledger") for item in stated
        )
    study, points = group.study, group.analysis.points
    facts = {**about.list_study_facts(study), "from": about.find_first_day(group.runs)}
    if len(points) < 2:
        timed = study.prepared_runs[0].step_time
        step = points[0].step if points else timed and timed[0]
        busy = find_busy_share(study, next(iter(study.batches), None))
        facts["step"] = format_step_times(step) if step else None
        facts["GPU busy"] = usage_share_cell(busy).text if busy.value is not None else None
    title, ranks = format_study_heading(group.study), sum(len(job.job.ranks) for job in group.jobs)
    if ranks:
        title = f"{title}, first of {ranks} ranks"
        facts["ranks"] = (
            "compared under Ranks; 'perfctl runs' lists them, 'perfctl show' prints one"
        )
    return build_group_view(group.key, title, group.runs, facts, stated, sections)
