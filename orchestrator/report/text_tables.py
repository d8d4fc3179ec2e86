"""Text and tables for the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.numbers import NO_BREAK, insert_no_break_before_units

if TYPE_CHECKING:
    from rich.console import Group
    from rich.containers import Lines
    from rich.table import Table
    from rich.text import Text

    from perfctl.orchestrator.report.tables import Cell, Column
    from perfctl.orchestrator.report.tables import Table as CellTable
LONGEST_NAME = 36
"""Characters of a name that a column shows at most."""
CUT_NAME, WRAPPED_TEXT = 20, 24
"""Characters of a name, and of words, for which an optional column gives way."""
SHORT_NAME, SHORT_TEXT = 8, 12
"""Characters to which a name is cut at most, and of words that are never wrapped."""
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


def make_rich_table(*columns: tuple[str, str]) -> Table:
    """Return a table of these columns: (label, "left", "right", "cut" or "code"). A number stays
    beside its unit; columns of names and words give way, the widest first, and "cut" and "code"
    are cut rather than wrapped. Without any label there is no head."""
    from rich.table import Table

    table = Table(
        box=None,
        show_header=any(label for label, _ in columns),
        header_style="dim",
        pad_edge=False,
    )
    for label, side in columns:
        table.add_column(
            make_printable_text(label),
            justify="right" if side == "right" else "left",
            no_wrap=side == "right",
            overflow="ellipsis" if side in ("cut", "code") else "fold",
            max_width=LONGEST_NAME if side == "code" else None,
        )
    return table


@cache
def _define_unit_preserving_text_class() -> type[Text]:
    """rich's text, which breaks no word and no number from its unit. rich is loaded when some is
    drawn."""
    from rich.containers import Lines
    from rich.text import Text

    class Words(Text):
        def wrap(self, console: Any, width: int, **options: Any) -> Lines:
            is_cut = options.get("overflow") == "ellipsis"
            if is_cut or options.get("no_wrap") or len(self.plain) <= width:
                return super().wrap(console, width, **options | {"no_wrap": is_cut or None})
            return Lines(Text(line, self.style) for line in wrap_text(self.plain, width))

    return Words


def wrap_text(plain: str, width: int) -> list[str]:
    """Return ``plain`` in lines of at most ``width``, broken at blanks, in paths and names after a
    mark; else not at all."""
    lines = []
    for line in insert_no_break_before_units(plain).split("\n"):
        current = ""
        for piece in _split_at_breaks(line, width):
            if current.strip(" ") and len(current) + len(piece.rstrip(" ")) > width:
                lines.append(current)
                current = ""
            while len(piece.rstrip(" ")) > width:
                lines.append(piece[:width])
                piece = piece[width:]
            current += piece
        lines += [current] if current.strip(" ") else []
    return [line.replace(NO_BREAK, " ").rstrip() for line in lines]


def _split_at_breaks(line: str, width: int) -> list[str]:
    """Split a line where it may be broken: after blanks, and in a word of over ``width``
    characters after / . _ - , : ="""
    pieces = []
    for part in re.findall("[^ ]+ *| +", line):
        is_long = len(part.rstrip(" ")) > width
        pieces += re.findall("[^/._,:=-]*[/._,:=-]+ *|[^/._,:=-]+", part) if is_long else [part]
    return pieces


def add_text_rows(table: Table, rows: Iterable[Iterable[str | Text]]) -> Table:
    """Return the same table with these rows; words become :func:`make_printable_text`."""
    for row in rows:
        table.add_row(
            *(make_printable_text(cell) if isinstance(cell, str) else cell for cell in row)
        )
    return table


def make_printable_text(plain: str, style: str = "") -> Text:
    """Text as it is: brackets in names are no markup, control characters are not sent to
    the terminal."""
    if not plain.isprintable():
        plain = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in plain)
    return _define_unit_preserving_text_class()(plain, style)


def draw_terminal_table(table: CellTable, max_rows: int, width: int) -> Group:
    """A table for the terminal, cut to ``max_rows``; of its optional columns the last ones are left
    out until it fits ``width``. If the others would break words or lose names, each row is a
    list."""
    from rich.console import Group

    indexes = list(range(len(table.columns)))
    for index in reversed(range(len(table.columns))):
        if table.columns[index].is_optional and _measure_needed_width(table, indexes) > width:
            indexes.remove(index)
    columns = [table.columns[index] for index in indexes]
    rows_shown = [[row[index] for index in indexes] for row in table.rows[:max_rows]]
    widths = _fit_column_widths(table, columns, rows_shown, width)
    body = _draw_rows_as_lists(columns, rows_shown)
    if widths:
        sides = SIDES | {"word": "cut" if table.is_dense else "left"}
        body = make_rich_table(
            *((column.label, sides.get(column.style, "left")) for column in columns)
        )
        gaps = len(columns) - 1
        if table.is_dense and sum(widths) + 2 * gaps > width:
            body.padding = (0, 1, 0, 0)
        units = [
            max(len(cell.unit or "") for cell in cells) for cells in zip(*rows_shown, strict=True)
        ]
        for row in rows_shown:
            body.add_row(*map(style_cell_text, row, units))
        for drawn, drawn_width in zip(body.columns, widths, strict=True):
            drawn.width = drawn_width
    notes = list(table.notes)
    if table.total > max_rows:
        notes.append(f"{table.total - max_rows:,} more rows: --json")
    below = [make_printable_text("\n".join(notes), "dim")] if notes else []
    above = [make_printable_text(table.caption, "bold")] if table.caption else []
    return Group(*above, body, *below)


def _fit_column_widths(
    table: CellTable, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int
) -> list[int]:
    """Return the characters of each column, the widest of which give way; [] if there is no room
    for every number, the beginning of every name and every word."""
    widths, least = [], []
    for index, column in enumerate(columns):
        texts = [_join_value_and_unit(row[index]) for row in rows]
        longest = max(map(len, (column.label, *texts)))
        label_parts = [*column.label.split(" ")]
        if column.style == "text" and max(map(len, texts), default=0) > SHORT_TEXT:
            texts = [
                piece.rstrip() for cell in texts for piece in _split_at_breaks(cell, WRAPPED_TEXT)
            ]
        most = LONGEST_NAME if column.style == "code" else longest
        shortest = max(map(len, (*label_parts, *texts)))
        if column.style in ("code", "word"):
            shortest = max(min(shortest, SHORT_NAME), *map(len, label_parts))
        widths.append(min(longest, most))
        least.append(min(shortest, widths[-1]))
    room = width - (1 if table.is_dense else 2) * (len(columns) - 1)
    if sum(least) > room:
        return []
    while sum(widths) > room:
        spare = [has if has > needs else 0 for has, needs in zip(widths, least, strict=True)]
        widths[spare.index(max(spare))] -= 1
    return widths


def _join_value_and_unit(cell: Cell) -> str:
    return f"{cell.text} {cell.unit or ''}".rstrip()


def _draw_rows_as_lists(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Table:
    """Return each row as a list of its cells below the first one."""
    table = make_rich_table(("", "left"), ("", "left"))
    for first, *other_cells in rows:
        add_text_rows(
            table, [(columns[0].label, make_printable_text(_join_value_and_unit(first), "bold"))]
        )
        facts = zip(columns[1:], other_cells, strict=True)
        add_text_rows(
            table, [(f"  {column.label}", style_cell_text(cell, 1)) for column, cell in facts]
        )
    return table


def _measure_needed_width(table: CellTable, column_indexes: Sequence[int]) -> int:
    """Return the characters of a table whose names are cut and texts wrapped as far as is usual."""
    needed = 2 * (len(column_indexes) - 1)
    for index in column_indexes:
        column = table.columns[index]
        texts = (column.label, *(_join_value_and_unit(row[index]) for row in table.rows))
        most = {"code": CUT_NAME, "text": WRAPPED_TEXT}.get(column.style)
        longest = max(map(len, texts))
        needed += longest if most is None else min(longest, most)
    return needed


def style_cell_text(cell: Cell, unit_width: int) -> Text:
    """``unit_width``: of the longest unit in the column, so that units stand below each other."""
    style = STYLES.get(cell.style, "")
    if cell.unit is None or not unit_width:
        return make_printable_text(cell.text, style)
    return make_printable_text(f"{cell.text} {cell.unit.ljust(unit_width)}", style)
