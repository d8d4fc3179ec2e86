"""The chapters of a run group, in order: the HTML report and ``perfctl show`` choose from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.usage.exchange import JobCommunication
from perfctl.orchestrator.ledger.usage.phase_layers import PhaseParts
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.study import (
    SAMPLED,
    SAMPLED_MEMORY,
    Sampled,
    chart_views,
    layer_colours,
    sampled_counters,
    series_charts,
    utilization_chart,
)
from perfctl.orchestrator.report.findings import findings
from perfctl.orchestrator.report.findings.rank import rank
from perfctl.orchestrator.report.ledger.matrix import matrix
from perfctl.orchestrator.report.ledger.page import ledger_view
from perfctl.orchestrator.report.ledger.parts import parts_table, times_table, variants_table
from perfctl.orchestrator.report.ledger.phases import has_repeats, phase_tables, phases_of
from perfctl.orchestrator.report.ledger.ranks import rank_findings, ranks_tables
from perfctl.orchestrator.report.ledger.roofline import (
    describe_peaks,
    roofline_charts,
    roofline_tables,
)
from perfctl.orchestrator.report.ledger.trail import packed, trails
from perfctl.orchestrator.report.mfu import audit_step
from perfctl.orchestrator.report.mfu import view as show_mfu
from perfctl.orchestrator.report.page import about, kernels, study, usage
from perfctl.orchestrator.report.page.icicle import icicles
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.page.section import Section
from perfctl.orchestrator.report.page.timeline import timelines
from perfctl.orchestrator.report.studies.inference import inference_answer
from perfctl.orchestrator.report.studies.inference_findings import answered
from perfctl.orchestrator.report.tables import Table
from perfctl.orchestrator.report.view import View
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
    def names(self) -> Mapping[str, str]:
        return self.analysis.names

    @cached_property
    def usages(self) -> Sequence[RunUsage]:
        return [prepared.usage for prepared in self.study.prepared_runs]

    @cached_property
    def phases(self) -> Sequence[PhaseParts]:
        return phases_of(self.analysis)

    @cached_property
    def colours(self) -> Mapping[str, int]:
        return layer_colours(self.analysis.ledger)

    @cached_property
    def mfu(self) -> View | None:
        """MFU of a dense language model in training, by every formula."""
        audit = audit_step(self.analysis)
        return None if audit is None else show_mfu(audit)

    @cached_property
    def is_image_inference(self) -> bool:
        """Whether the part of all models has its latency and images per second."""
        return answered(self.study)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        of_jobs = [item for job in self.jobs for item in rank_findings(job)]
        stated = tuple(
            item
            for item in findings(self.analysis)
            if not (self.is_image_inference and item.evidence == "inference")
        )
        return rank((*of_jobs, *stated)) if of_jobs else stated

    @cached_property
    def charts(self) -> tuple[tuple[Chart, ...], tuple[Chart, ...]]:
        """The charts of the first screen, and the others."""
        charts = chart_views(self.key, self.analysis, timed=not self.is_image_inference)
        origins = " and ".join(dict.fromkeys(run.origin for run in self.runs))
        if origins != "measured":  # a chart is also read without its page
            charts = tuple(replace(chart, note=f"{origins}; {chart.note}") for chart in charts)
        first = 0 if has_repeats(self.phases) else FIRST_CHARTS
        return charts[:first], charts[first:]


@dataclass(frozen=True, slots=True)
class ReportChapter:
    """One chapter: its tables, and what only the HTML report has of it."""

    key: str
    title: str
    list_tables: Callable[[RunGroup], Iterable[Table | None]] = lambda group: ()
    draw: Callable[[RunGroup], dict[str, Any]] = lambda group: {}
    """Further fields of its section."""
    is_folded: Callable[[RunGroup], bool] = lambda group: False
    list_wide: Callable[[RunGroup], Iterable[Table | None]] = lambda group: ()
    """Tables that a terminal has no room for, and that the HTML report shows on request."""

    def make_section(self, group: RunGroup) -> Section | None:
        """Return the chapter for the HTML report; None if the group has nothing for it."""
        tables, folded = (
            tuple(table for table in tables if table is not None)
            for tables in (self.list_tables(group), self.list_wide(group))
        )
        if self.is_folded(group):
            tables, folded = (), tables
        fields = {name: value for name, value in self.draw(group).items() if value}
        if not tables and not folded and fields.keys() <= {"facts"}:
            return None
        return Section(self.title, key=self.key, tables=tables, folded=folded, **fields)


def _draw_ledger(group: RunGroup) -> dict[str, Any]:
    """The ledger as matrix and table, with the trails of its figures."""
    analysis = group.analysis
    view = ledger_view(analysis)
    if view is None:
        return {}
    texts = {item.text for item in group.findings}  # no sentence stands twice
    sweep = (replace(item, sentence="") if item.sentence in texts else item for item in view.sweep)
    fields: dict[str, Any] = {"ledger": replace(view, sweep=tuple(sweep))}
    minor = frozenset((entry.layer, entry.direction) for entry in view.groups if entry.is_minor)
    # the table of parts stands in place of a row for each of hundreds of layers
    if not has_repeats(group.phases) and (drawn := matrix(analysis, minor)) is not None:
        fields["matrix"] = drawn
    names = {short: name[:1000] for name, short in group.names.items() if name != short}
    return fields | {"trails": packed(trails(analysis)) | {"names": names}}


def _draw_roofline(group: RunGroup) -> dict[str, Any]:
    roofline = group.analysis.roofline
    charts = roofline_charts(group.key, roofline, group.colours, group.names)
    peaks = describe_peaks(roofline)
    return {"facts": (peaks,) if peaks else (), "charts": charts}


def _draw_kernels(group: RunGroup) -> dict[str, Any]:
    grids = (
        kernels.launches(group.study.prepared_runs, group.names),
        study.counters(group.runs, group.names),
    )
    return {"grids": tuple(grid for grid in grids if grid is not None)}


def _draw_utilization(group: RunGroup) -> dict[str, Any]:
    chart = utilization_chart(f"{group.key}-utilization", [("", group.usages)])
    sampled = (*_draw_samples(group, sampled_counters(group.runs)), *_draw_samples(group, SAMPLED))
    return {"charts": (*((chart,) if chart else ()), *sampled)}


def _draw_samples(group: RunGroup, quantities: Sampled) -> tuple[Chart, ...]:
    """The samples of an existing report; perfctl's own runs are too short and too many."""
    name = f"{group.key}-{next(iter(quantities), '')}"
    return series_charts(name, group.runs, quantities) if group.study.foreign else ()


def _is_ours(group: RunGroup) -> bool:
    return not group.study.foreign


def _is_always(group: RunGroup) -> bool:
    return True


CHAPTERS = (
    ReportChapter(
        "phases",
        "Prefill and decode",
        lambda group: (usage.phases_table(group.runs), *phase_tables(group.phases)),
    ),
    ReportChapter(
        "passes", "Forward and backward", lambda group: (usage.passes_table(group.runs),)
    ),
    ReportChapter("inference", "Inference", lambda group: inference_answer(group.runs).tables),
    ReportChapter("ledger", "FLOPs ledger", draw=_draw_ledger),
    ReportChapter("charts", "Charts", draw=lambda group: {"charts": group.charts[0]}),
    ReportChapter(
        "parts",
        "Parts",
        lambda group: (parts_table(group.analysis.parts), variants_table(group.analysis)),
    ),
    ReportChapter("times", "CPU timer", lambda group: (times_table(group.analysis),)),
    ReportChapter(
        "breakdown",
        "Where the time goes",
        draw=lambda group: {"icicles": icicles(group.analysis, group.colours)},
    ),
    ReportChapter(
        "roofline",
        "Roofline",
        lambda group: roofline_tables(group.analysis.roofline, group.names),
        _draw_roofline,
        is_folded=lambda group: bool(group.analysis.ledger.rows),
    ),
    ReportChapter(
        "mfu",
        "MFU",
        lambda group: group.mfu.document().tables if group.mfu and group.mfu.document else (),
        lambda group: {
            "facts": (group.mfu.title, *group.mfu.facts, *group.mfu.notes) if group.mfu else ()
        },
    ),
    ReportChapter(
        "advice",
        "Advice of ncu",
        lambda group: (kernels.advice_table(group.runs, group.names),),
        is_folded=_is_ours,
    ),
    ReportChapter(
        "sweep",
        "Batch sweep",
        lambda group: (
            study.sweep_table(
                group.analysis.points, group.study.axis, rates=not group.is_image_inference
            )
            if _is_ours(group)
            else None,
        ),
        lambda group: {"charts": group.charts[1]},
    ),
    ReportChapter("steps", "Steps", lambda group: (study.steps(group.runs),), is_folded=_is_always),
    ReportChapter(
        "switches", "Kernel switches", lambda group: (kernels.switch_table(group.analysis),)
    ),
    ReportChapter(
        "kernels",
        "Kernels",
        lambda group: (
            kernels.summary(group.study.prepared_runs, group.names),
            kernels.mix_table(group.runs, group.names),
        ),
        _draw_kernels,
    ),
    ReportChapter(
        "timeline",
        "Timeline",
        draw=lambda group: {"timelines": timelines(group.runs, group.colours, group.names)},
    ),
    ReportChapter(
        "operators",
        "Operators",
        lambda group: study.operators(group.runs),
        is_folded=_is_ours,
    ),
    ReportChapter(
        "ranges",
        "Ranges and copies",
        lambda group: (study.ranges(group.runs), *study.copy_tables(group.runs)),
        is_folded=_is_ours,
    ),
    ReportChapter(
        "api",
        "API calls",
        lambda group: (study.api_calls(group.runs),),
        is_folded=_is_always,
    ),
    ReportChapter(
        "ranks", "Ranks", lambda group: (table for job in group.jobs for table in ranks_tables(job))
    ),
    ReportChapter(
        "utilization",
        "Utilization",
        lambda group: (
            usage.ways_table(group.usages),
            usage.busy_table(group.usages),
            usage.readings_table(group.usages),
            usage.energy_table(group.usages),
            usage.counters_table(group.runs),
        ),
        _draw_utilization,
        list_wide=lambda group: (
            usage.causes_table(group.analysis.verdicts),
            *usage.waits_tables(group.usages, group.names),
        ),
    ),
    ReportChapter(
        "memory",
        "Memory",
        lambda group: (usage.memory_use_table(group.usages), usage.memory_table(group.runs)),
        lambda group: {"charts": _draw_samples(group, SAMPLED_MEMORY)},
    ),
    ReportChapter(
        "values",
        "Values of the report",
        lambda group: (study.summaries(group.runs),),
        is_folded=_is_always,
    ),
    ReportChapter(
        "runs",
        "Runs and environment",
        lambda group: (about.runs_table(group.study), about.differences(group.runs)),
        lambda group: {
            "environment": about.environment(group.runs),
            "commands": about.commands(group.study),
        },
    ),
    ReportChapter(
        "gaps",
        "Missing values",
        lambda group: (about.missing_values(group.study, group.analysis.ledger),),
    ),
    ReportChapter(
        "messages",
        "Events of the tools",
        lambda group: (about.diagnostics(group.runs),),
        is_folded=_is_always,
    ),
)


def make_sections(group: RunGroup) -> tuple[Section, ...]:
    """Return the chapters of a group that the HTML report has."""
    omitted = {"inference", "values"} if _is_ours(group) else {"inference"}
    sections = (chapter.make_section(group) for chapter in CHAPTERS if chapter.key not in omitted)
    return tuple(section for section in sections if section is not None)


def list_terminal_tables(group: RunGroup, *, is_complete: bool) -> tuple[Table, ...]:
    """Return the tables that ``perfctl show`` prints, without those that its ledger repeats."""
    omitted = NOT_ON_TERMINAL | (set() if is_complete else WITH_ALL)
    if group.analysis.ledger.rows:
        omitted |= {"roofline"}
    tables = (
        table
        for chapter in CHAPTERS
        if chapter.key not in omitted
        for table in chapter.list_tables(group)
    )
    return tuple(table for table in tables if table is not None)
