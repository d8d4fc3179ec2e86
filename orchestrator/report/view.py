"""What a command answers, before it has a form: a title, facts, tables, notes; and its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfctl.orchestrator.report.files.documents import Part, of_view
from perfctl.orchestrator.report.tables import Table
from perfctl.orchestrator.report.text_tables import add_rows, draw_table, grid, text

if TYPE_CHECKING:
    from typing import TypeAlias

    from rich.console import RenderableType

    Block: TypeAlias = RenderableType


@dataclass(frozen=True, slots=True)
class View:
    """One answer. Whoever shows it chooses the form; nothing in it is laid out yet."""

    title: str
    facts: tuple[str, ...] = ()
    """Sentences below the title: what the figures rest on."""
    tables: tuple[Table, ...] = ()
    findings: tuple[str, ...] = ()
    """Above the tables, numbered."""
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


@dataclass(frozen=True, slots=True)
class Paper:
    """What the terminal is like."""

    width: int
    print_to_text: Callable[[Iterable[RenderableType]], str]
    """Makes of tables and texts what is printed of them, also in another process."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An answer that is laid out by itself: too long to be held whole, or of a form of its own."""

    draw: Callable[[Paper], Iterable[RenderableType | str]]
    """Makes its parts for the terminal; a string is what ``print_to_text`` made."""
    parts: Callable[[], Iterable[Part]] = tuple
    """Makes its sections for Markdown and LaTeX."""


@dataclass(frozen=True, slots=True)
class Lines:
    """An answer for other programs, printed to the byte."""

    lines: Iterable[str]
    asked_by: str
    """The option that asked for it, which excludes --format."""
    has_names: bool = False
    """Whether names from reports are in it, whose control characters are never printed."""


def on_terminal(view: View, width: int) -> Iterator[RenderableType]:
    """The view as rich draws it."""
    blocks: list[Sequence[RenderableType]] = [
        [*([text(view.title, "bold")] if view.title else []), *map(text, view.facts)],
        number_sentences(view.findings, view.warnings),
        *([_draw(table, view.rows_on_terminal, width)] for table in view.tables),
        [text(note) for note in view.notes],
    ]
    yield from separate(blocks)


def draw_views(views: Iterable[View], width: int) -> Iterator[RenderableType]:
    """Yield views as rich draws them, with an empty line between two."""
    return separate([list(on_terminal(view, width)) for view in views])


def number_sentences(findings: Sequence[str], warnings: Sequence[str] = ()) -> list[RenderableType]:
    """Return findings with their numbers, then warnings with "!"."""
    rows = [(str(number), finding) for number, finding in enumerate(findings, 1)]
    rows += [("!", warning) for warning in warnings]
    return [add_rows(grid(("", "right"), ("", "left"), heads=False), rows)] if rows else []


def separate(blocks: Iterable[Sequence[RenderableType]]) -> Iterator[RenderableType]:
    """Yield what is in the blocks, with an empty line between two that are not empty."""
    for number, block in enumerate(block for block in blocks if block):
        if number:
            yield text("")
        yield from block


def _draw(table: Table, rows: int | None, width: int) -> RenderableType:
    shown = len(table.rows) if rows is None else rows
    return draw_table(table, shown, "--json has them", width=width)


def as_parts(view: View) -> list[Part]:
    """The view as sections of a document, for Markdown and LaTeX."""
    sentences = (*view.facts, *view.findings, *view.warnings)
    parts = [Part(view.title, sentences), *map(of_view, view.tables)]
    if view.notes or view.lines:
        parts.append(Part(None, (), notes=(*view.notes, *view.lines)))
    return parts
