"""A study as its readers meet it: sentences, then chapters with charts and tables."""

from __future__ import annotations

from dataclasses import dataclass

from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import Table


@dataclass(frozen=True, slots=True)
class Chapter:
    """One part of a study: sentences, then charts, then tables."""

    key: str
    """Part of the address of the page, and of the names of files; letters, digits and dashes."""
    title: str
    text: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()
    """Long tables: folded on the page, in the CSV files, not in the Markdown."""


@dataclass(frozen=True, slots=True)
class StudyPage:
    """A whole study. It is written three times: page, Markdown, CSV."""

    kind: str
    """flops, inference, speedup or cost: the command's name."""
    title: str
    facts: tuple[tuple[str, str], ...]
    """What was studied and where: (model, MNIST CNN), (device, ...), (batch sizes, ...)."""
    findings: tuple[Finding, ...]
    """The answer, most important first; ``evidence`` is the key of a chapter."""
    chapters: tuple[Chapter, ...]
    missing: tuple[tuple[str, str], ...] = ()
    """(what, why it is not in this study): never a 0, never left out in silence."""
    origin: str | None = None
    """Where the numbers were not measured by this command: "transcribed", "recorded on ..."."""
    command: str | None = None
    """The command that repeats it."""
    links: tuple[tuple[str, str], ...] = ()
    """(text, file beside the page): other pages of the study."""
