"""Text and tables for the terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.console import Group
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
    short: int = 16,
) -> Table:
    """A table of these columns: (label, "left", "right" or "code"). No word in it is broken
    over lines.

    ``whole``: labels of columns that are cut rather than wrapped; ``code``: characters of a name at
    most, ``short`` of one that is cut.
    """
    table = _table_class()(
        box=None,
        show_header=heads,
        header_style="dim",
        pad_edge=False,
        caption_justify="left",
        caption_style="dim",
    )
    for label, side in columns:
        if side == "code":
            table.add_column(
                text(label), no_wrap=True, overflow="ellipsis", min_width=short, max_width=code
            )
        else:
            cut = label in whole
            justify: Literal["left", "right"] = "right" if side == "right" else "left"
            table.add_column(
                text(label), justify=justify, no_wrap=cut, overflow="ellipsis" if cut else "fold"
            )
    return table


@cache
def _table_class() -> type[Table]:
    """rich's table with the widths of :func:`widths` and the lines of :func:`wrapped`. rich is
    loaded when one is drawn."""
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

    class WholeWords(Table):
        def __rich_console__(self, console: Any, options: Any) -> Any:
            _, right, _, left = self.padding
            free = options.max_width - (left + right) * (len(self.columns) - 1)
            cells = [
                [
                    one
                    for one in (*([column.header] if self.show_header else []), *column.cells)
                    if isinstance(one, Text)
                ]
                for column in self.columns
            ]
            sizes = [
                _size([one.plain for one in mine], column)
                for column, mine in zip(self.columns, cells, strict=True)
            ]
            fitting = [max(width, 1) for width in widths(sizes, free)]
            if (
                console.color_system is None
                and (drawn := _drawn(self, cells, fitting, free)) is not None
            ):
                yield Segment("".join(drawn))
                if self.caption:
                    whole = options.update(
                        width=sum(fitting) + (left + right) * (len(fitting) - 1), justify="left"
                    )
                    yield from console.render(self.caption, whole)
                return
            for column, mine, width in zip(self.columns, cells, fitting, strict=True):
                column.width = width
                for one in mine if not column.no_wrap else ():
                    one.plain = "\n".join(wrapped(one.plain, column.width))
            yield from super().__rich_console__(console, options)

    return WholeWords


def _drawn(
    table: Table, cells: Sequence[Sequence[Text]], fitting: Sequence[int], free: int
) -> list[str] | None:
    """The lines of a table without colours, as rich draws them, in a tenth of its time. None where
    that is left to rich: some cell is not text, or has characters that are not one column wide."""
    if not cells or table.title or sum(fitting) > free or len({len(mine) for mine in cells}) != 1:
        return None
    count = len(table.rows) + table.show_header
    if len(cells[0]) != count:
        return None
    columns: list[list[list[str]]] = []
    for column, mine, width in zip(table.columns, cells, fitting, strict=True):
        placed = str.rjust if column.justify == "right" else str.ljust
        made: list[list[str]] = []
        for one in mine:
            words = one.plain
            if not (words.isascii() or _is_narrow(words)):
                return None
            if column.no_wrap:
                lines = [
                    line if len(line) <= width else f"{line[: width - 1]}\u2026"
                    for line in words.split("\n")
                ]
            else:
                lines = wrapped(words, width) or [""]
            made.append(
                [
                    placed(line.rstrip() if column.justify == "right" else line, width)
                    for line in lines
                ]
            )
        columns.append(made)
    blanks = [" " * width for width in fitting]
    gap = " " * (table.padding[1] + table.padding[3])
    out: list[str] = []
    for number, row in enumerate(zip(*columns, strict=True)):
        high = max(map(len, row))
        head = table.show_header and number == 0
        for at in range(high):
            parts = []
            for lines, blank in zip(row, blanks, strict=True):
                place = at - (high - len(lines)) if head else at  # heads stand at the bottom
                parts.append(lines[place] if 0 <= place < len(lines) else blank)
            out.append(gap.join(parts) + "\n")
    return out


@lru_cache(maxsize=4096)
def _is_narrow(words: str) -> bool:
    """Whether every character takes one column of a terminal."""
    from rich.cells import cell_len

    return cell_len(words) == len(words) and all(map(cell_len, words.replace("\n", "")))


class Size(NamedTuple):
    """Characters that a column takes."""

    least: int
    """With every word whole, or cut as far as it may be."""
    most: int
    """On one line each."""
    cut: bool = False
    """Is a name, which may be cut."""


def _size(cells: Sequence[str], column: Any) -> Size:
    wide = max((len(line) for cell in cells for line in cell.split("\n")), default=0)
    wide = min(wide, column.max_width or wide)
    least = column.min_width or 0
    if column.max_width is None:  # of a column of names, min_width says how far it may be cut
        wide = max(wide, least)
    if column.no_wrap:
        return Size(min(wide, least or SHORT), wide, cut=True)
    if column.justify == "right":  # a number and its unit stay together
        return Size(wide, wide)
    longest = max(
        (len(piece.rstrip()) for cell in cells for piece in _pieces(cell, LONG)), default=0
    )
    return Size(min(wide, max(longest, least)), wide)


def widths(sizes: Sequence[Size], free: int) -> list[int]:
    """Characters of each column that together fit ``free``: the widest give way first, down to
    their longest word.

    Where even that does not fit, names are cut further, then words over SHORT are broken, then any.
    """
    found = [min(size.most, free) for size in sizes]
    least = [size.least for size in sizes]
    cut = [min(size.least, NAME) if size.cut else size.least for size in sizes]
    for floors in (least, cut, [min(floor, SHORT) for floor in cut], [1] * len(sizes)):
        while sum(found) > free:
            able = [place for place, width in enumerate(found) if width > floors[place]]
            if not able:
                break
            found[max(able, key=lambda place: found[place] - floors[place])] -= 1
    return found


def wrapped(words: str, width: int) -> list[str]:
    """``words`` in lines of at most ``width``, broken at blanks, in paths and names after a mark;
    else not at all."""
    out: list[str] = []
    for line in words.split("\n"):
        if len(line) <= width:
            out.append(line)
            continue
        held = ""
        for piece in _pieces(line, width):
            if held.strip() and len(held) + len(piece.rstrip()) > width:
                out.append(held.rstrip())
                held = ""
            while len(piece.rstrip()) > width:
                out.append(piece[:width])
                piece = piece[width:]
            held += piece
        out += [held.rstrip()] if held.strip() else []
    return out


def _pieces(line: str, whole: int) -> list[str]:
    """Where a line may be broken: after blanks, and in a word of over ``whole`` characters after /
    . _ - , : ="""
    found = []
    for word in re.findall(r"\S+\s*|\s+", line):
        found += (
            re.findall(r"[^/._,:=-]*[/._,:=-]+\s*|[^/._,:=-]+", word)
            if len(word.rstrip()) > whole
            else [word]
        )
    return found


NAME, SHORT, LONG = 7, 16, 40
"""Characters that a cut name keeps at least, and of a word that stays whole before names are
broken; characters of a word that may be broken at a mark."""


def add_rows(table: Table, rows: Iterable[Iterable[str | Text]]) -> Table:
    """The same table; words become :func:`text`."""
    for row in rows:
        table.add_row(*(text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def text(words: str, style: str = "") -> Text:
    """Text as it is: brackets in names are no markup, control characters are not sent to
    the terminal."""
    from rich.text import Text

    if not words.isprintable():
        words = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in words)
    return Text(words, style=style)


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
    for pair in [pair for pair in kept if pair[1].is_optional]:
        if width is not None and _needed_width(view, [place for place, _ in kept]) > width:
            kept.remove(pair)
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
