"""The HTML report as records, so that templates decide nothing: run groups, below an overview with
a row for each and the curves of all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.counts.hardware.peaks import DevicePeaks
from perfctl.orchestrator.ledger.analysis import Analysis, analyse_studies
from perfctl.orchestrator.ledger.prepared import (
    MODES,
    Study,
    format_study_heading,
    group_into_studies,
    group_studies_by_sweep,
)
from perfctl.orchestrator.ledger.usage.inference import (
    LIGHTEST_FIRST,
    list_image_inference_latencies,
    pick_least_slowed_latency_per_batch,
)
from perfctl.orchestrator.ledger.usage.readings import UsageShare
from perfctl.orchestrator.report.charts.charts import (
    Chart,
    ChartLine,
    LegendEntry,
    draw_batch_chart,
)
from perfctl.orchestrator.report.charts.study import get_model_or_workload_label
from perfctl.orchestrator.report.ledger.page import build_total_ratio_cell
from perfctl.orchestrator.report.ledger.ranks import list_job_communications
from perfctl.orchestrator.report.numbers import (
    drop_trailing_zeros,
    format_integer_or_six_digits,
    format_rate,
    format_step_times,
)
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.chapters import RunGroup, make_report_sections
from perfctl.orchestrator.report.page.usage import usage_share_cell
from perfctl.orchestrator.report.studies.inference_fields import is_timed_image_inference
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    build_table,
    count_cell,
    missing_cell,
    rate_cell,
    text_cell,
    text_columns,
    time_cell,
    time_column,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.bench import WORKLOAD
from perfctl.records.run import Run

WHOLE = 6
"""Networks of a bench that have a part each; more share one."""
SOURCE = "Every number comes from a row of the database, which names its profiler report."
OPEN_GROUPS = 3
"""Run groups that are all open; of more, and of existing reports, only the first is, below the
overview."""
COLOURS = (0, 1, 2, 3, 4, 5, 6, 9)
"""Numbers of the colors of curves; further studies are in the table only."""
WIDE = 20.0
"""Curves whose values lie further apart are drawn on a log axis."""


def build_report_view(
    runs: Iterable[Run],
    *,
    generated_at: str = "",
    title: str | None = None,
    peaks: Sequence[DevicePeaks] = (),
    caution: str | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> View:
    """Return the report of these runs: a chapter for each run group, those with a ledger first.

    A bench of many networks is one part, with a row for each point instead of a ledger for each
    network. ``on_progress`` receives the name of each group, how many are done, how many there are.
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
    inference = [study for study in shown_studies if is_timed_image_inference(study)]
    analyses = list(analyse_studies(shown_studies, peaks))
    views = []
    for number, analysis in enumerate(analyses, 1):
        on_progress(get_model_or_workload_label(analysis.study), number - 1, len(shown_studies))
        first = {id(run) for run in analysis.study.runs}
        jobs_of_first = tuple(job for job in jobs if id(job.job.ranks[0].run) in first)
        views.append(_build_study_view(RunGroup(analysis, f"s{number}", jobs_of_first)))
    often = Counter(view.title for view in views)
    recordings: dict[Hashable, str] = {}
    for index, (view, study) in enumerate(zip(views, shown_studies, strict=True)):
        device = dict(view.properties).get("device")
        name = f"{view.title}, {device}" if often[view.title] > 1 and device else view.title
        if len(views) > 1 and study.is_foreign:
            recorded = recordings.setdefault(_build_recording_key_from_launches(study), name)
            name = name if recorded == name else f"{name}: the same recording as {recorded}"
        views[index] = replace(view, title=name)
        if study in inference:  # below the part of all models
            is_profiled = any(run.profiler != "none" for run in study.runs)
            is_folded = len(shown_studies) > 1 or not is_profiled
            views[index] = replace(view, title=f"Details: {name}", is_folded=is_folded)
    joint = build_run_groups_overview(
        [
            (view.key, analysis)
            for view, analysis in zip(views, analyses, strict=True)
            if analysis.study not in inference
        ]
    )
    views = [*_build_inference_and_bench_views(inference, bench, len(shown_studies) + 1), *views]
    if title is None:
        is_of_one = (
            not inference
            and not bench
            and len(shown_studies) > 1
            and len(group_studies_by_sweep(shown_studies)) == 1
        )
        title = _build_title_for_study_parts(shown_studies) if is_of_one else _choose_title(views)
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


def _build_recording_key_from_launches(study: Study) -> Hashable:
    """Return the times of all launches, which two reports have in common only if they are of one
    recording; otherwise what no other report has."""
    launches = frozenset(
        (kernel.start_ns, kernel.duration_ns)
        for run in study.runs
        for kernel in run.report.kernels
        if kernel.start_ns is not None
    )
    return launches or id(study)


def _build_inference_and_bench_views(
    inference_studies: Sequence[Study], bench_studies: Sequence[Study], first_bench_number: int
) -> Iterator[View]:
    """Yield the part of all models and those of a bench. Few reports have one, so what draws them
    is loaded for these only."""
    if inference_studies:
        from perfctl.orchestrator.report.studies.inference import build_all_models_inference_view

        yield build_all_models_inference_view(inference_studies)
    if bench_studies:
        from perfctl.orchestrator.report.studies.cost import build_bench_views

        yield from build_bench_views(bench_studies, first_bench_number)


def _build_title_for_study_parts(studies_of_parts: Sequence[Study]) -> str:
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
    facts = {**about.list_study_facts(study), "from": about.find_first_run_date(group.runs)}
    if len(points) < 2:
        timed = study.prepared_runs[0].step_time
        step = points[0].step if points else timed and timed[0]
        busy = _find_gpu_busy_share(study, next(iter(study.batches), None))
        facts["step"] = format_step_times(step) if step else None
        facts["GPU busy"] = usage_share_cell(busy).text if busy.value is not None else None
    title, ranks = format_study_heading(group.study), sum(len(job.job.ranks) for job in group.jobs)
    if ranks:
        title = f"{title}, first of {ranks} ranks"
        facts["ranks"] = (
            "compared under Ranks; 'perfctl runs' lists them, 'perfctl show' prints one"
        )
    return about.build_run_group_view(group.key, title, group.runs, facts, stated, sections)


@dataclass(frozen=True, slots=True)
class _OverviewEntry:
    """A run group of the overview, at the batch size with the most samples per second."""

    key: str
    analysis: Analysis
    rates: Mapping[int, float]
    """Batch size -> samples per second, ascending."""

    @property
    def fastest_batch(self) -> int | None:
        """The fastest batch size; without times the only one."""
        if self.rates:
            return max(self.rates, key=lambda size: self.rates[size])
        sizes = self.analysis.study.batches
        return sizes[0] if len(sizes) == 1 else None

    @property
    def identifying_facts(self) -> tuple[str | None, ...]:
        """Model, mode, precision, device and profiler."""
        study = self.analysis.study
        return (
            format_study_heading(study)
            if study.workload is None
            else get_model_or_workload_label(study),
            MODES.get(study.mode or "", study.mode),
            study.precision,
            about.describe_study_device(study),
            about.describe_profiler_versions(study.runs),
        )


def build_run_groups_overview(analyses: Sequence[tuple[str, Analysis]]) -> View:
    """Return one row for each run group, which leads there, and one chart with the curves of all;
    nothing for fewer than two.

    analyses: (key of the run group in the report, its analysis), in the report's order.
    """
    if len(analyses) < 2:
        return View()
    entries = [
        _OverviewEntry(key, analysis, _compute_samples_per_second_by_batch(analysis))
        for key, analysis in analyses
    ]
    columns = [
        *text_columns("model or report", "mode", "precision", "device", "profiler", "batch"),
        Column(
            "fastest batch",
            note="with the most samples per second; the columns to the right refer to this batch "
            "size",
        ),
        time_column("time per step", "median over the measured steps"),
        Column(
            "samples/s",
            note="batch / median step; for inference images/s: batch / mean step, with loading",
        ),
        Column("executed / estimated", note="sum over all layers for which both are known"),
        Column(
            "GPU busy", note="share of the time with a kernel running; otherwise the driver's value"
        ),
    ]
    rows = build_table(
        "Overview", columns, map(_build_overview_row, entries), has_filter_and_csv=False
    )
    tables = tuple(filter(None, [rows]))
    drawn = [entry for entry in entries if entry.rates][: len(COLOURS)]
    if len(drawn) < 2 or len({batch for entry in drawn for batch in entry.rates}) < 2:
        return View(tables=tables)
    omitted = sum(bool(entry.rates) for entry in entries) - len(drawn)
    note = f"the first {len(COLOURS)}; the table has {omitted} more" if omitted else ""
    return View(tables=tables, charts=_draw_samples_per_second_chart(drawn, note))


def _compute_samples_per_second_by_batch(analysis: Analysis) -> dict[int, float]:
    """Return samples per second by batch size, ascending: images/s of inference over images, or
    from the median step."""
    answers = sorted(
        pick_least_slowed_latency_per_batch(list_image_inference_latencies(analysis.study.runs)),
        key=lambda latency: latency.batch,
    )
    if answers:
        return {latency.batch: latency.images_per_second for latency in answers}
    return {
        point.batch: 1e9 / each
        for point in analysis.points
        if isinstance(point.batch, int) and (each := point.step_ns_per_sample) and point.is_complete
    }


def _build_overview_row(entry: _OverviewEntry) -> list[Cell | str | None]:
    analysis, batch, study = entry.analysis, entry.fastest_batch, entry.analysis.study
    ledger_rows = [row for row in analysis.ledger.rows if row.batch == batch or not study.batches]
    point = next((point for point in analysis.points if point.batch == batch), None)
    problems = (text for point in analysis.points for text in point.problems)
    reason = "no run timed complete steps" if study.points else "the report states no batch size"
    reason = next(problems, reason)
    step = time_cell(None, reason)
    if point is not None and point.step is not None:
        note = f"{format_integer_or_six_digits(point.step.median, 'ns')}; {point.basis}"
        step = Cell(format_step_times(point.step), note, value=point.step.median)
    fastest = entry.rates.get(batch) if batch is not None else None
    model, *names = entry.identifying_facts
    return [
        replace(text_cell(model), href=entry.key),
        *names,
        " ".join(map(str, study.points)) or missing_cell("the report does not state it"),
        count_cell(None if fastest is None else batch, reason),
        step,
        rate_cell(fastest, "samples/s", reason),
        build_total_ratio_cell(ledger_rows),
        usage_share_cell(_find_gpu_busy_share(study, batch)),
    ]


def _find_gpu_busy_share(study: Study, batch: int | None) -> UsageShare:
    """Return how busy the GPUs were at a batch size, by the kernels of its least profiled run, else
    by samples, else by DLProf's summary."""
    runs = study.list_runs_at(batch) if study.batches else list(study.prepared_runs)
    runs.sort(key=lambda item: LIGHTEST_FIRST.get(item.run.profiler, len(LIGHTEST_FIRST)))
    ways = [item.usage.utilization_by_source for item in runs]
    shares = [way.kernels for way in ways]
    shares += [share for way in ways for share in (way.nvml, way.dlprof)]
    shares.append(UsageShare(None, "no run at this batch size"))
    return next((share for share in shares if share.value is not None), shares[0])


def _draw_samples_per_second_chart(
    entries: Sequence[_OverviewEntry], note: str
) -> tuple[Chart, ...]:
    names = _make_distinct_names(entries)
    lines = [
        ChartLine(name, entry.rates, colour)
        for name, entry, colour in zip(names, entries, COLOURS, strict=False)
    ]
    values = [value for line in lines for value in line.points.values()]
    chart = draw_batch_chart(
        "overview-rate",
        "Samples per second, by batch size",
        lines,
        lambda rate: drop_trailing_zeros(format_rate(rate)),
        note,
        has_log10_axis=max(values) > WIDE * min(values),
        y_label="samples/s",
    )
    legend = (
        LegendEntry(name, colour, entry.key)
        for name, colour, entry in zip(names, COLOURS, entries, strict=False)
    )
    return () if chart is None else (replace(chart, legend=tuple(legend)),)


def _make_distinct_names(entries: Sequence[_OverviewEntry]) -> list[str]:
    """Return short names: of model, mode, precision, device and tools what differs between the
    run groups."""
    columns = zip(*(entry.identifying_facts for entry in entries), strict=True)
    differing = [column for column in columns if len(set(column)) > 1]
    names = [", ".join(filter(None, values)) for values in zip(*differing, strict=True)] or [
        ""
    ] * len(entries)
    often = Counter(names)
    return [
        f"{name} {number}".strip() if often[name] > 1 or not name else name
        for number, name in enumerate(names, 1)
    ]
