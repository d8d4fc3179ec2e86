"""The chapters of a run group, in order: the HTML report and ``perfctl show`` choose from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.usage.exchange import JobCommunication
from perfctl.orchestrator.ledger.usage.phase_layers import PhaseParts
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.charts.charts import Chart, Colours
from perfctl.orchestrator.report.charts.study import (
    SAMPLED,
    SAMPLED_MEMORY,
    Sampled,
    assign_layer_colours,
    draw_busy_share_by_batch,
    draw_samples_over_time,
    draw_study_charts,
    list_counters_to_chart,
)
from perfctl.orchestrator.report.findings import list_findings
from perfctl.orchestrator.report.ledger.page import build_ledger_matrix, build_ledger_view
from perfctl.orchestrator.report.ledger.parts import (
    build_cpu_time_vs_peak_minimum_table,
    build_device_by_study_table,
    build_variant_comparison_table,
)
from perfctl.orchestrator.report.ledger.phases import (
    build_phase_tables,
    has_repeated_blocks,
    list_prefill_decode_phases,
)
from perfctl.orchestrator.report.ledger.ranks import (
    build_communication_tables,
    find_communication_costs,
)
from perfctl.orchestrator.report.ledger.roofline import (
    build_roofline_tables,
    describe_device_peaks,
    draw_roofline_charts_by_precision,
)
from perfctl.orchestrator.report.ledger.trail import (
    build_figure_source_trails,
    deduplicate_trail_texts,
)
from perfctl.orchestrator.report.mfu import audit_fastest_training_step_mfu, build_mfu_view
from perfctl.orchestrator.report.page import about, kernels, study, usage
from perfctl.orchestrator.report.page.records import Finding, sort_findings_by_impact
from perfctl.orchestrator.report.page.timeline import build_time_breakdown_icicles, build_timelines
from perfctl.orchestrator.report.studies.inference import build_inference_summary_view
from perfctl.orchestrator.report.studies.inference_fields import is_timed_image_inference
from perfctl.orchestrator.report.tables import JsonObject, ShortNames, Table
from perfctl.orchestrator.report.view import Section, View
from perfctl.records.run import Run

NOT_ON_TERMINAL = frozenset(
    ["parts", "times", "sweep", "steps", "switches", "ranks", "runs", "messages"]
)
"""Chapters that ``perfctl show`` does not print."""
WITH_ALL = frozenset({"mfu", "ranges", "values"})
"""Chapters that ``perfctl show`` prints with ``--all``."""
FIRST_CHARTS = 2
"""Charts on the first screen; the others are in the batch sweep."""


@dataclass(frozen=True)
class RunGroup:
    """An analysed run group, and what its chapters share."""

    analysis: Analysis
    key: str = ""
    """Begins the addresses of its sections."""
    jobs: tuple[JobCommunication, ...] = ()
    """The jobs whose first rank is in it."""

    @property
    def study(self) -> Study:
        return self.analysis.study

    @property
    def runs(self) -> Sequence[Run]:
        return self.analysis.study.runs

    @property
    def short_names(self) -> ShortNames:
        return self.analysis.names

    @cached_property
    def usages(self) -> Sequence[RunUsage]:
        return [prepared.usage for prepared in self.study.prepared_runs]

    @cached_property
    def phases(self) -> Sequence[PhaseParts]:
        return list_prefill_decode_phases(self.analysis)

    @cached_property
    def layer_colours(self) -> Colours:
        return assign_layer_colours(self.analysis.ledger)

    @cached_property
    def mfu_view(self) -> View | None:
        """MFU of a dense language model in training, by every formula."""
        audit = audit_fastest_training_step_mfu(self.analysis)
        return None if audit is None else build_mfu_view(audit)

    @cached_property
    def is_image_inference(self) -> bool:
        """Whether the part of all models has its latency and images per second."""
        return is_timed_image_inference(self.study)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        of_jobs = [item for job in self.jobs for item in find_communication_costs(job)]
        stated = tuple(
            item
            for item in list_findings(self.analysis)
            if not (self.is_image_inference and item.evidence == "inference")
        )
        return sort_findings_by_impact((*of_jobs, *stated)) if of_jobs else stated

    @cached_property
    def first_and_other_charts(self) -> tuple[tuple[Chart, ...], tuple[Chart, ...]]:
        """The charts of the first screen, and the others."""
        charts = draw_study_charts(
            self.key, self.analysis, includes_times=not self.is_image_inference
        )
        origins = " and ".join(dict.fromkeys(run.origin for run in self.runs))
        if origins != "measured":  # a chart is also read without its page
            charts = tuple(replace(chart, note=f"{origins}; {chart.note}") for chart in charts)
        first = 0 if has_repeated_blocks(self.phases) else FIRST_CHARTS
        return charts[:first], charts[first:]


@dataclass(frozen=True, slots=True)
class ReportChapter:
    """One chapter: its tables, and what only the HTML report has of it."""

    key: str
    title: str
    list_tables: Callable[[RunGroup], Iterable[Table | None]] = lambda group: ()
    draw: Callable[[RunGroup], JsonObject] = lambda group: {}
    """Further fields of its section."""
    is_folded: Callable[[RunGroup], bool] = lambda group: False
    list_wide: Callable[[RunGroup], Iterable[Table | None]] = lambda group: ()
    """Tables that a terminal has no room for, and that the HTML report shows on request."""

    def make_section(self, group: RunGroup) -> Section | None:
        """Return the chapter for the HTML report; None if the group has nothing for it."""
        tables, folded = (
            tuple(filter(None, tables))
            for tables in (self.list_tables(group), self.list_wide(group))
        )
        if self.is_folded(group):
            tables, folded = (), tables
        fields = {name: value for name, value in self.draw(group).items() if value}
        if not tables and not folded and fields.keys() <= {"facts"}:
            return None
        is_of_one_batch = self.key == "sweep" and len(group.analysis.points) < 2
        title = "More charts" if is_of_one_batch else self.title
        return Section(title, key=self.key, tables=tables, folded=folded, **fields)


def _make_ledger_fields(group: RunGroup) -> JsonObject:
    """The ledger as matrix and table, with the trails of its figures."""
    analysis = group.analysis
    view = build_ledger_view(analysis)
    if view is None:
        return {}
    texts = {item.text for item in group.findings}  # no sentence stands twice
    sweep = (replace(item, sentence="") if item.sentence in texts else item for item in view.sweep)
    names = {short: name[:1000] for name, short in group.short_names.items() if name != short}
    # the table of parts stands in place of a row for each of hundreds of layers
    is_of_parts = has_repeated_blocks(group.phases)
    return {
        "ledger": replace(view, sweep=tuple(sweep)),
        "matrix": None if is_of_parts else build_ledger_matrix(analysis),
        "trails": deduplicate_trail_texts(build_figure_source_trails(analysis)) | {"names": names},
    }


def _make_roofline_fields(group: RunGroup) -> JsonObject:
    roofline = group.analysis.roofline
    charts = draw_roofline_charts_by_precision(
        group.key, roofline, group.layer_colours, group.short_names
    )
    peaks = describe_device_peaks(roofline)
    return {"facts": (peaks,) if peaks else (), "charts": charts}


def _make_launch_and_counter_grids(group: RunGroup) -> JsonObject:
    grids = (
        kernels.pack_launches_table(group.study.prepared_runs, group.short_names),
        study.pack_counter_ranges_table(group.runs, group.short_names),
    )
    return {"grids": tuple(filter(None, grids))}


def _make_utilization_fields(group: RunGroup) -> JsonObject:
    chart = draw_busy_share_by_batch(f"{group.key}-utilization", [("", group.usages)])
    sampled = (
        *_draw_ingested_sample_charts(group, list_counters_to_chart(group.runs)),
        *_draw_ingested_sample_charts(group, SAMPLED),
    )
    return {"charts": (*((chart,) if chart else ()), *sampled)}


def _draw_ingested_sample_charts(group: RunGroup, quantities: Sampled) -> tuple[Chart, ...]:
    """The samples of an existing report; perfctl's own runs are too short and too many."""
    name = f"{group.key}-{next(iter(quantities), '')}"
    return draw_samples_over_time(name, group.runs, quantities) if group.study.is_foreign else ()


def _is_run_by_perfctl(group: RunGroup) -> bool:
    return not group.study.is_foreign


def _is_always_folded(group: RunGroup) -> bool:
    return True


CHAPTERS = (
    ReportChapter(
        "phases",
        "Prefill and decode",
        lambda group: (
            usage.build_prefill_decode_table(group.runs),
            *build_phase_tables(group.phases),
        ),
    ),
    ReportChapter(
        "passes",
        "Forward and backward",
        lambda group: (usage.build_training_passes_table(group.runs),),
    ),
    ReportChapter(
        "inference", "Inference", lambda group: build_inference_summary_view(group.runs).tables
    ),
    ReportChapter("ledger", "FLOPs ledger", draw=_make_ledger_fields),
    ReportChapter(
        "charts", "Charts", draw=lambda group: {"charts": group.first_and_other_charts[0]}
    ),
    ReportChapter(
        "parts",
        "Parts",
        lambda group: (
            build_device_by_study_table(group.analysis.parts),
            build_variant_comparison_table(group.analysis),
        ),
    ),
    ReportChapter(
        "times", "CPU timer", lambda group: (build_cpu_time_vs_peak_minimum_table(group.analysis),)
    ),
    ReportChapter(
        "breakdown",
        "Where the time goes",
        draw=lambda group: {
            "icicles": build_time_breakdown_icicles(group.analysis, group.layer_colours)
        },
    ),
    ReportChapter(
        "roofline",
        "Roofline",
        lambda group: build_roofline_tables(group.analysis.roofline, group.short_names),
        _make_roofline_fields,
        is_folded=lambda group: bool(group.analysis.ledger.rows),
    ),
    ReportChapter(
        "mfu",
        "MFU",
        lambda group: (
            group.mfu_view.document().tables if group.mfu_view and group.mfu_view.document else ()
        ),
        lambda group: {
            "facts": (group.mfu_view.title, *group.mfu_view.facts, *group.mfu_view.notes)
            if group.mfu_view
            else ()
        },
    ),
    ReportChapter(
        "advice",
        "Advice of ncu",
        lambda group: (kernels.build_ncu_advice_table(group.runs, group.short_names),),
        is_folded=_is_run_by_perfctl,
    ),
    ReportChapter(
        "sweep",
        "Batch sweep",
        lambda group: (
            study.build_sweep_table(
                group.analysis.points,
                group.study.axis_name,
                show_rates=not group.is_image_inference,
            )
            if _is_run_by_perfctl(group)
            else None,
        ),
        lambda group: {"charts": group.first_and_other_charts[1]},
    ),
    ReportChapter(
        "steps",
        "Steps",
        lambda group: (study.build_recorded_steps_table(group.runs),),
        is_folded=_is_always_folded,
    ),
    ReportChapter(
        "switches",
        "Kernel switches",
        lambda group: (kernels.build_kernels_by_batch_range_table(group.analysis),),
    ),
    ReportChapter(
        "kernels",
        "Kernels",
        lambda group: (
            kernels.build_kernel_summary(group.study.prepared_runs, group.short_names),
            kernels.build_instruction_mix_table(group.runs, group.short_names),
        ),
        _make_launch_and_counter_grids,
    ),
    ReportChapter(
        "timeline",
        "Timeline",
        draw=lambda group: {
            "timelines": build_timelines(group.runs, group.layer_colours, group.short_names)
        },
    ),
    ReportChapter(
        "operators",
        "Operators",
        lambda group: study.build_operator_tables(group.runs),
        is_folded=_is_run_by_perfctl,
    ),
    ReportChapter(
        "ranges",
        "Ranges and copies",
        lambda group: (study.build_ranges_table(group.runs), *study.build_copy_tables(group.runs)),
        is_folded=_is_run_by_perfctl,
    ),
    ReportChapter(
        "api",
        "API calls",
        lambda group: (study.build_api_calls_table(group.runs),),
        is_folded=_is_always_folded,
    ),
    ReportChapter(
        "ranks",
        "Ranks",
        lambda group: (table for job in group.jobs for table in build_communication_tables(job)),
    ),
    ReportChapter(
        "utilization",
        "Utilization",
        lambda group: (
            usage.build_utilization_table(group.usages),
            usage.build_gpu_busy_table(group.usages),
            usage.build_device_samples_table(group.usages),
            usage.build_energy_table(group.usages),
            usage.build_counter_means_table(group.runs),
        ),
        _make_utilization_fields,
        list_wide=lambda group: (
            usage.build_timeline_improvements_table(group.analysis.verdicts),
            *usage.build_idle_gap_tables(group.usages, group.short_names),
        ),
    ),
    ReportChapter(
        "memory",
        "Memory",
        lambda group: (
            usage.build_memory_use_table(group.usages),
            usage.build_recorded_memory_table(group.runs),
        ),
        lambda group: {"charts": _draw_ingested_sample_charts(group, SAMPLED_MEMORY)},
    ),
    ReportChapter(
        "values",
        "Values of the report",
        lambda group: (study.build_report_summary_values_table(group.runs),),
        is_folded=_is_always_folded,
    ),
    ReportChapter(
        "runs",
        "Runs and environment",
        lambda group: (
            about.build_runs_table(group.study),
            about.build_environment_differences_table(group.runs),
        ),
        lambda group: {
            "environment": about.list_shared_environment_facts(group.runs),
            "commands": about.list_reproduction_commands(group.study),
        },
    ),
    ReportChapter(
        "gaps",
        "Missing values",
        lambda group: (about.build_missing_values_table(group.study, group.analysis.ledger),),
    ),
    ReportChapter(
        "messages",
        "Events of the tools",
        lambda group: (about.build_profiler_messages_table(group.runs),),
        is_folded=_is_always_folded,
    ),
)


def make_report_sections(group: RunGroup) -> tuple[Section, ...]:
    """Return the chapters of a group that the HTML report has."""
    omitted = {"inference", "values"} if _is_run_by_perfctl(group) else {"inference"}
    sections = (chapter.make_section(group) for chapter in CHAPTERS if chapter.key not in omitted)
    return tuple(filter(None, sections))


def list_terminal_tables(group: RunGroup, *, include_optional: bool) -> tuple[Table, ...]:
    """Return the tables that ``perfctl show`` prints, without those that its ledger repeats."""
    omitted = NOT_ON_TERMINAL | (set() if include_optional else WITH_ALL)
    if group.analysis.ledger.rows:
        omitted |= {"roofline"}
    tables = (
        table
        for chapter in CHAPTERS
        if chapter.key not in omitted
        for table in chapter.list_tables(group)
    )
    return tuple(filter(None, tables))
