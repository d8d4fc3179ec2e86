"""What a command answers, before it has a form; and its form on a terminal.

``files.documents`` makes Markdown and LaTeX of a view, ``templates/view.html`` an HTML report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.tables import JsonObject, PackedTable, Table
from perfctl.orchestrator.report.text_tables import (
    add_text_rows,
    draw_terminal_table,
    make_printable_text,
    make_rich_table,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perfctl.orchestrator.report.charts.charts import Chart
    from perfctl.orchestrator.report.ledger.page import LedgerMatrix, LedgerView
    from perfctl.orchestrator.report.page.records import Finding


@dataclass(frozen=True, slots=True)
class View:
    """One answer, or one chapter of it. Whoever shows it chooses the form; nothing in it is laid
    out yet."""

    title: str = ""
    facts: tuple[str, ...] = ()
    """Sentences below the title: what the figures rest on."""
    tables: tuple[Table, ...] = ()
    findings: tuple[Finding | str, ...] = ()
    """Above the tables, numbered. Those that warn follow the others, marked."""
    warnings: tuple[str, ...] = ()
    """Below the findings, marked with an exclamation mark."""
    notes: tuple[str, ...] = ()
    """Below everything else."""
    lines: tuple[str, ...] = ()
    """Paths and commands to paste, below the notes; never wrapped."""
    rows_on_terminal: int | None = None
    """Rows of each table on a terminal; None: all of them."""
    least_width: int = 0
    """Columns that it takes, however narrow the terminal is: numbers with all their digits."""
    command: str = ""
    """Name of the command that answers, above the title of an HTML report."""
    key: str = ""
    """Of a chapter: part of the address, and of names of files; letters, digits and dashes."""
    properties: tuple[tuple[str, str], ...] = ()
    """(name, value) of what was measured, below the title."""
    caution: str | None = None
    """A warning that is about everything below it."""
    open_findings: int | None = None
    """Findings of an HTML report that are not folded; None: all of them."""
    is_folded: bool = False
    """An HTML report shows it closed until a reader opens it."""
    charts: tuple[Chart, ...] = ()
    """Of HTML reports; between the findings and the tables."""
    folded: tuple[Table, ...] = ()
    """Tables that an HTML report and Markdown fold."""
    chapters: Iterable[View] = ()
    """May be read once: of many runs, one after the other is held."""
    missing: tuple[tuple[str, str], ...] = ()
    """(quantity, reason) of what the answer does not have."""
    links: tuple[tuple[str, str], ...] = ()
    """(text, file beside the HTML report)."""
    document: Callable[[], View] | None = None
    """Makes the complete answer for ``--format``; None: it is this one."""

    @property
    def finding_and_warning_sentences(self) -> tuple[list[str], list[str]]:
        """Findings, and warnings, as sentences."""
        findings, warnings = [], [self.caution] if self.caution else []
        for finding in self.findings:
            if isinstance(finding, str):
                findings.append(finding)
            else:
                (warnings if finding.warning else findings).append(finding.text)
        return findings, [*warnings, *self.warnings]


@dataclass(frozen=True, slots=True)
class Section(View):
    """A chapter of a run group. Its key is unique in the group."""

    ledger: LedgerView | None = None
    matrix: LedgerMatrix | None = None
    trails: Mapping[str, Any] = field(default_factory=dict)
    """As ``trail.deduplicate_trail_texts`` returns them; "names": short kernel name -> complete
    name."""
    grids: tuple[PackedTable, ...] = ()
    """Long tables that are drawn a screen at a time."""
    timelines: tuple[JsonObject, ...] = ()
    icicles: tuple[JsonObject, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """Facts on which all runs agree."""
    commands: tuple[tuple[str, str], ...] = ()
    """(name, command line) to repeat the runs."""


@dataclass(frozen=True, slots=True)
class RawLines:
    """An answer for other programs, printed to the byte."""

    lines: Iterable[str]
    asked_by: str
    """The option that asked for it, which excludes --format."""
    has_names: bool = False
    """Whether names from reports are in it, whose control characters are never printed."""


def draw_view_on_terminal(view: View, width: int) -> Iterator[RenderableType]:
    """Yield the view as rich draws it, with an empty line between two blocks."""
    for number, block in enumerate(filter(None, _draw_blocks(view, width))):
        if number:
            yield make_printable_text("")
        yield from block


def _draw_blocks(view: View, width: int) -> Iterator[Sequence[RenderableType]]:
    properties = (f"{name}  {value}" for name, value in view.properties)
    title = [make_printable_text(view.title, "bold")] if view.title else []
    yield [*title, *map(make_printable_text, (*properties, *view.facts))]
    findings, warnings = view.finding_and_warning_sentences
    rows = [(str(number), finding) for number, finding in enumerate(findings, 1)]
    rows += [("!", warning) for warning in warnings]
    yield ([add_text_rows(make_rich_table(("", "right"), ("", "left")), rows)] if rows else [])
    for table in (*view.tables, *view.folded):
        limit = len(table.rows) if view.rows_on_terminal is None else view.rows_on_terminal
        yield [draw_terminal_table(table, limit, width)]
    for chapter in view.chapters:
        yield from _draw_blocks(chapter, width)
    yield list(map(make_printable_text, view.notes))
