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
CUT_NAME = 12
"""Characters of a name for which an optional column gives way."""


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
    out: list[str] = []
    for line in hold_units(words).split("\n"):
        held = ""
        for piece in _pieces(line, width):
            if held.strip(" ") and len(held) + len(piece.rstrip(" ")) > width:
                out.append(held)
                held = ""
            while len(piece.rstrip(" ")) > width:
                out.append(piece[:width])
                piece = piece[width:]
            held += piece
        out += [held] if held.strip(" ") else []
    return [line.replace(NO_BREAK, " ").rstrip() for line in out]


def _pieces(line: str, whole: int) -> list[str]:
    """Where a line may be broken: after blanks, and in a word of over ``whole`` characters after /
    . _ - , : ="""
    pieces: list[str] = []
    for word in re.findall("[^ ]+ *| +", line):
        is_long = len(word.rstrip(" ")) > whole
        pieces += re.findall("[^/._,:=-]*[/._,:=-]+ *|[^/._,:=-]+", word) if is_long else [word]
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


ROWS = 12
"""Rows of a table before "and N more"."""
LEFT_OUT = {
    "category",
    "direction",
    "host time",
    "allocated, all calls",
    "concerns",
    "run",
    "batches",
    "images",
    "loss",
    "problems",
}
"""Columns of the page that do not fit 80 columns; problems are among the findings."""
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
    left_out: Collection[str] = LEFT_OUT,
    width: int | None = None,
    **options: Any,
) -> Group:
    """A table for the terminal, cut to ``rows``, without its optional columns where these do not
    fit ``width``; ``options``: of :func:`grid`."""
    from rich.console import Group

    kept = [
        (place, column) for place, column in enumerate(view.columns) if column.label not in left_out
    ]
    if width is not None and _needed_width(view, [place for place, _ in kept]) > width:
        kept = [(place, column) for place, column in kept if not column.is_optional]
    sides = {"num": "right", "code": "code"}
    options.setdefault("heads", any(column.label for _, column in kept))
    if view.is_dense:
        options["whole"] = [column.label for _, column in kept if column.style != "text"]
    table = grid(
        *((column.label, sides.get(column.style, "left")) for _, column in kept), **options
    )
    if view.is_dense:
        table.padding = (0, 1, 0, 0)
    widths = [
        max((len(row[place].unit or "") for row in view.rows[:rows]), default=0)
        for place, _ in kept
    ]
    for row in view.rows[:rows]:
        table.add_row(
            *(
                styled_cell(row[place], width)
                for (place, _), width in zip(kept, widths, strict=True)
            )
        )
    said = list(view.notes)
    if view.total > rows:
        said.append(f"and {view.total - rows} more: {elsewhere}")
    below = [text("\n".join(said), "dim")] if said else []
    above = [text(view.caption, "bold")] if view.caption else []
    return Group(*above, table, *below)


def _needed_width(view: View, places: Sequence[int]) -> int:
    """Return the characters of a table whose names are cut as far as is usual."""
    longest = [
        max([len(view.columns[place].label), *(len(row[place].text) for row in view.rows)])
        for place in places
    ]
    return 2 * (len(places) - 1) + sum(
        min(length, CUT_NAME) if view.columns[place].style == "code" else length
        for place, length in zip(places, longest, strict=True)
    )


def styled_cell(cell: Cell, width: int = 0) -> Text:
    """``width``: of the longest unit in the column, so that units stand below each other."""
    style = STYLES.get(cell.style, "")
    if cell.unit is None or not width:
        return text(cell.text, style)
    return text(f"{cell.text} {cell.unit.ljust(width)}", style)
