"""Text and tables for the terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.numbers import NO_BREAK, hold_units

if TYPE_CHECKING:
    from rich.console import Group
    from rich.containers import Lines
    from rich.table import Table
    from rich.text import Text

    from perfctl.orchestrator.report.tables import Cell
    from perfctl.orchestrator.report.tables import Table as View
CUT_NAME, WRAPPED_TEXT = 20, 24
"""Characters of a name, and of words, for which an optional column gives way."""
SHORT_TEXT = 12
"""Characters of words that are never wrapped."""


def grid(
    *columns: tuple[str, str],
    heads: bool = True,
    whole: Collection[str] = (),
    code: int = 36,
) -> Table:
    """A table of these columns: (label, "left", "right" or "code"). A number stays beside its unit;
    columns of names and words give way, the widest first.

    ``whole``: labels of columns that are cut rather than wrapped; ``code``: characters of a name at
    most.
    """
    from rich.table import Table

    table = Table(
        box=None,
        show_header=heads,
        header_style="dim",
        pad_edge=False,
        caption_justify="left",
        caption_style="dim",
    )
    for label, side in columns:
        is_cut = side == "code" or label in whole
        table.add_column(
            text(label),
            justify="right" if side == "right" else "left",
            no_wrap=side == "right",
            overflow="ellipsis" if is_cut else "fold",
            max_width=code if side == "code" else None,
        )
    return table


@cache
def _text_class() -> type[Text]:
    """rich's text, which breaks no word and no number from its unit. rich is loaded when some is
    drawn."""
    from rich.containers import Lines
    from rich.text import Text

    class Words(Text):
        def wrap(self, console: Any, width: int, **options: Any) -> Lines:
            is_cut = options.get("overflow") == "ellipsis"
            if is_cut or options.get("no_wrap") or len(self.plain) <= width:
                return super().wrap(console, width, **options | {"no_wrap": is_cut or None})
            return Lines(Text(line, self.style) for line in wrapped(self.plain, width))

    return Words


def wrapped(words: str, width: int) -> list[str]:
    """``words`` in lines of at most ``width``, broken at blanks, in paths and names after a mark;
    else not at all."""
    lines: list[str] = []
    for line in hold_units(words).split("\n"):
        current = ""
        for piece in _pieces(line, width):
            if current.strip(" ") and len(current) + len(piece.rstrip(" ")) > width:
                lines.append(current)
                current = ""
            while len(piece.rstrip(" ")) > width:
                lines.append(piece[:width])
                piece = piece[width:]
            current += piece
        lines += [current] if current.strip(" ") else []
    return [line.replace(NO_BREAK, " ").rstrip() for line in lines]


def _pieces(line: str, whole: int) -> list[str]:
    """Where a line may be broken: after blanks, and in a word of over ``whole`` characters after /
    . _ - , : ="""
    pieces: list[str] = []
    for part in re.findall("[^ ]+ *| +", line):
        is_long = len(part.rstrip(" ")) > whole
        pieces += re.findall("[^/._,:=-]*[/._,:=-]+ *|[^/._,:=-]+", part) if is_long else [part]
    return pieces


def add_rows(table: Table, rows: Iterable[Iterable[str | Text]]) -> Table:
    """The same table; words become :func:`text`."""
    for row in rows:
        table.add_row(*(text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def text(words: str, style: str = "") -> Text:
    """Text as it is: brackets in names are no markup, control characters are not sent to
    the terminal."""
    if not words.isprintable():
        words = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in words)
    return _text_class()(words, style)


ROWS, WIDTH = 12, 80
"""Rows of a table before "and N more"; characters that it has room for."""
SIDES = {"num": "right", "code": "code"}
STYLES = {
    "est": "italic",
    "der": "underline",
    "no": "dim",
    "refused": "strike",
    "bad": "bold red",
    "worse": "bold red",
    "better": "green",
    "news": "yellow",
}


def draw_table(
    view: View,
    rows: int = ROWS,
    elsewhere: str = "perfctl report shows them",
    *,
    width: int = WIDTH,
) -> Group:
    """A table for the terminal, cut to ``rows``; of its optional columns the last ones are left out
    until it fits ``width``."""
    from rich.console import Group

    indexes = list(range(len(view.columns)))
    for index in reversed(range(len(view.columns))):
        if view.columns[index].is_optional and _needed_width(view, indexes) > width:
            indexes.remove(index)
    columns = [view.columns[index] for index in indexes]
    if view.can_stack and _needed_width(view, indexes) > width:
        return Group(_stack_rows(view, rows))
    table = grid(
        *((column.label, SIDES.get(column.style, "left")) for column in columns),
        heads=any(column.label for column in columns),
        whole=[column.label for column in columns if view.is_dense and column.style != "text"],
    )
    if view.is_dense:
        table.padding = (0, 1, 0, 0)
    rows_shown = view.rows[:rows]
    widths = [
        max((len(row[index].unit or "") for row in rows_shown), default=0) for index in indexes
    ]
    for row in rows_shown:
        cells = (row[index] for index in indexes)
        table.add_row(*map(styled_cell, cells, widths))
    for index, column in zip(indexes, table.columns, strict=True):
        if column.overflow == "fold" and all(
            len(row[index].text) <= SHORT_TEXT for row in rows_shown
        ):
            column.no_wrap = True
    notes = list(view.notes)
    if view.total > rows:
        notes.append(f"and {view.total - rows} more: {elsewhere}")
    below = [text("\n".join(notes), "dim")] if notes else []
    above = [text(view.caption, "bold")] if view.caption else []
    return Group(*above, table, *below)


def _stack_rows(view: View, rows: int) -> Table:
    """Return each row as a list of its cells, one below the other."""
    table = grid(("", "left"), ("", "left"), heads=False)
    for number, row in enumerate(view.rows[:rows], 1):
        facts = [(f"row {number}", "")]
        facts += [
            (f"  {column.label}", cell.text) for column, cell in zip(view.columns, row, strict=True)
        ]
        add_rows(table, [(text(name, "dim"), value) for name, value in facts])
    return table


def _needed_width(view: View, indexes: Sequence[int]) -> int:
    """Return the characters of a table whose names are cut and texts wrapped as far as is usual."""
    needed = 2 * (len(indexes) - 1)
    for index in indexes:
        column = view.columns[index]
        cells = (len(f"{row[index].text} {row[index].unit or ''}".rstrip()) for row in view.rows)
        most = {"code": CUT_NAME, "text": WRAPPED_TEXT}.get(column.style)
        longest = max([len(column.label), *cells])
        needed += longest if most is None else min(longest, most)
    return needed


def styled_cell(cell: Cell, width: int = 0) -> Text:
    """``width``: of the longest unit in the column, so that units stand below each other."""
    style = STYLES.get(cell.style, "")
    if cell.unit is None or not width:
        return text(cell.text, style)
    return text(f"{cell.text} {cell.unit.ljust(width)}", style)
