"""What the templates read: the whole page as plain records, nothing left to decide in a template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from perfctl.orchestrator.analyse.grouping import Study, studies
from perfctl.orchestrator.analyse.ledger import Ledger, ledger
from perfctl.orchestrator.analyse.sweep import points
from perfctl.orchestrator.report import about_view, kernel_view, study_view
from perfctl.orchestrator.report.chart_view import Chart, chart_views
from perfctl.orchestrator.report.findings import SHOWN, Finding, findings
from perfctl.orchestrator.report.ledger_view import LedgerView, ledger_view
from perfctl.orchestrator.report.tables import Table
from perfctl.parsers.stored import Run

NUMBERS = ("charts", "ledger", "sweep", "kernels", "counters", "operators", "ranges", "summaries", "steps")
"""Sections of numbers, whose origin stands beside the heading."""
CHARTS_FIRST = 2
"""Charts above the ledger; the others stand in the batch sweep."""
MODES = {"train": "training", "infer": "inference"}


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a study: a heading in the navigation and what stands under it."""

    key: str
    title: str
    tables: tuple[Table, ...] = ()
    ledger: LedgerView | None = None
    charts: tuple[Chart, ...] = ()
    launches: dict[str, Any] | None = None
    environment: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    commands: tuple[tuple[str, str], ...] = ()
    folded: bool = False
    """Closed until the reader opens it."""
    origin: str | None = None
    """Said beside the heading where the numbers below were not measured here."""


@dataclass(frozen=True, slots=True)
class StudyView:
    """One study or one foreign report."""

    key: str
    heading: str
    facts: tuple[tuple[str, str], ...]
    origins: tuple[tuple[str, str], ...]
    """(origin, what it means) of its numbers."""
    findings: tuple[Finding, ...]
    more: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class PageView:
    """The whole page."""

    title: str
    made_at: str
    studies: tuple[StudyView, ...]


def page_view(runs: Iterable[Run], *, generated_at: str, title: str | None) -> PageView:
    """The page of these runs: one part a study, in order of first appearance; studies with a ledger first."""
    found = sorted(studies(runs), key=lambda study: study.foreign)
    views = tuple(_study(study, f"s{number}") for number, study in enumerate(found, 1))
    if title is None:
        title = (
            views[0].heading if len(views) == 1 else f"{len(views)} studies and reports" if views else "nothing to show"
        )
    return PageView(title, _moment(generated_at), views)


def _moment(stamp: str) -> str:
    """ "2026-11-20T21:06:57Z" -> "2026-11-20 21:06 UTC"; anything else as it is."""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?(?:Z|\+00:00)$", r"\1 \2 UTC", stamp)


def heading(study: Study) -> str:
    """ "mnist_cnn, training, fp32" or the file's name."""
    if study.workload is None:
        run = study.runs[0]
        return PurePath(run.artifact).name if run.artifact else f"{run.profiler} run {run.id}"
    parts = [study.workload, study.variant, MODES.get(study.mode or "", study.mode), study.precision]
    return ", ".join(part for part in parts if part)


def tools(runs: Sequence[Run]) -> str:
    """ "ncu 2025.3 + nsys 2025.1"."""
    return " + ".join(dict.fromkeys(f"{run.profiler} {run.profiler_version or ''}".strip() for run in runs))


def _study(study: Study, key: str) -> StudyView:
    entries = ledger(study)
    batch_points = points(study)
    said = findings(study, entries, batch_points)
    news = [item for item in said if not item.warning]
    origins = dict.fromkeys(run.origin for run in study.runs)
    return StudyView(
        key, heading(study), _facts(study),
        tuple((origin, about_view.ORIGINS.get(origin, origin)) for origin in origins),
        tuple(news[:SHOWN]), tuple(news[SHOWN:]), tuple(item for item in said if item.warning),
        tuple(_sections(study, entries, key, _origin(study))),
    )  # fmt: skip


def _facts(study: Study) -> tuple[tuple[str, str], ...]:
    started = sorted(run.started_at for run in study.runs if run.started_at)
    devices = [study.runs[0].device] if study.runs[0].device else list(study.runs[0].report.devices)
    capability = next((device.compute_capability for device in devices if device.compute_capability), None)
    facts = [
        ("device", f"{study.device or 'not recorded'}" + (f" (CC {capability})" if capability else "")),
        ("batch", " ".join(map(str, study.batches))),
        ("tools", tools(study.runs)),
        ("from", started[0][:10] if started else ""),
    ]
    if study.foreign:
        facts.insert(0, ("what", study.runs[0].report.form))
    return tuple((name, value) for name, value in facts if value)


def _origin(study: Study) -> str | None:
    """What to say beside numbers that were not measured here; None when all were."""
    found = dict.fromkeys(run.origin for run in study.runs)
    return None if set(found) <= {"measured"} else " and ".join(found)


def _sections(study: Study, entries: Ledger, key: str, origin: str | None) -> Iterable[Section]:
    """The parts that have something to show, in the page's order."""
    for section in _parts(study, entries, key, origin):
        yield replace(section, origin=origin) if section.key in NUMBERS else section


def _parts(study: Study, entries: Ledger, key: str, origin: str | None) -> Iterable[Section]:
    batch_points = points(study)
    some = study.runs
    if drawn := chart_views(key, entries, batch_points):
        if origin:
            drawn = tuple(replace(chart, note=f"{origin}; {chart.note}") for chart in drawn)
        yield Section("charts", "Charts", charts=drawn[:CHARTS_FIRST])
    if view := ledger_view(entries):
        yield Section("ledger", "Ledger", ledger=view)
    swept = None if study.foreign else study_view.sweep_table(batch_points)
    if swept or drawn[CHARTS_FIRST:]:
        yield Section("sweep", "Batch sweep", tables=(swept,) if swept else (), charts=drawn[CHARTS_FIRST:])
    by_name, launches = kernel_view.summary(some), kernel_view.launches(some)
    if by_name or launches:
        yield Section("kernels", "Kernels", tables=(by_name,) if by_name else (), launches=launches)
    yield from _tables("counters", "Counters", study_view.counters(some), folded=True)
    yield from _tables("operators", "Operators", study_view.operators(some), folded=not study.foreign)
    yield from _tables(
        "ranges", "Ranges and copies", study_view.ranges(some), study_view.copies(some), folded=not study.foreign
    )
    yield from _tables("summaries", "Summaries", study_view.summaries(some))
    yield from _tables("steps", "Steps", study_view.steps(some), folded=True)
    ran = about_view.runs_table(study)
    facts = about_view.environment(some)
    yield Section("runs", "Runs and environment", tables=(ran,) if ran else (), environment=facts)
    yield from _tables("gaps", "Gaps", about_view.gaps(study, entries))
    yield from _tables("messages", "Messages", about_view.diagnostics(some))
    if again := about_view.commands(study):
        yield Section("repeat", "Repeat", commands=again)


def _tables(key: str, title: str, *found: Table | None, folded: bool = False) -> Iterable[Section]:
    kept = tuple(item for item in found if item is not None)
    if kept:
        yield Section(key, title, tables=kept, folded=folded)
