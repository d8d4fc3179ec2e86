"""Text and tables for the terminal, and the one that needs no analysis: runs of a store."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from perfctl.orchestrator.report.numbers import DASH, time

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from perfctl.orchestrator.report.tables import Cell
    from perfctl.orchestrator.report.tables import Table as View

_RUN_NAME = 12
"""Characters that a workload and a device get in the list of runs at least."""
_RUN_COLUMNS = (
    ("run", "id", "right"),
    ("tool", "profiler", "left"),
    ("workload", "workload", "code"),
    ("batch", "batch_size", "right"),
    ("serving", "serving", "left"),
    ("mode", "mode", "left"),
    ("device", "device_name", "code"),
    ("kernels", "kernels", "right"),
    ("started", "started", "right"),
    ("took", "took", "right"),
    ("status", "state", "left"),
)
"""Label, key and side."""


def runs_table(rows: Iterable[Mapping[str, Any]], width: int = 80) -> Table:
    """One line a run, for ``perfctl runs``. A row has the columns of the store's table run,
    device_name, kernels.

    What is the same in every run, or known of none, stands below; ``took`` gives way where
    ``width`` is too small.
    """
    held = list(rows)
    moments, year = _started(held)
    held = [
        {**row, "state": _state(row), "started": moment, "took": _took(row)}
        for row, moment in zip(held, moments, strict=True)
    ]
    shared = _shared(held)
    columns = [one for one in _RUN_COLUMNS if one[1] not in shared]
    words = {
        key: [DASH if row[key] is None else str(row[key]) for row in held] for _, key, _ in columns
    }
    needed = (
        sum(min(max(map(len, [label, *words[key]])), _RUN_NAME) for label, key, _ in columns)
        + 2 * len(columns)
        - 2
    )
    if needed > width:
        columns = [one for one in columns if one[1] != "took"]
    table = grid(*((label, side) for label, _, side in columns), short=_RUN_NAME)
    same = ", ".join(filter(None, shared.values()))
    said = [f"All runs: {same}." if same else "", year]
    if any(said):
        table.caption = text(" ".join(filter(None, said)))
    lines = zip(*(words[key] for _, key, _ in columns), strict=True)
    return add_rows(
        table,
        [[text(word, "bold red" if word == "failed" else "") for word in line] for line in lines],
    )


def _shared(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Key of a column that need not be shown -> what to say instead, if anything."""
    found = {}
    for key in ("mode", "kernels", "started", "took", "serving"):
        values = {row.get(key) for row in rows}
        if values == {None}:
            found[key] = "no kernels recorded" if key == "kernels" else ""
        elif len(values) == 1 and key == "mode":
            found[key] = {"train": "training", "infer": "inference"}.get(str(*values), str(*values))
    if "serving" not in found:  # needs the room of columns that are empty
        found |= {
            key: "" for key in ("workload", "batch_size") if all(row[key] is None for row in rows)
        }
    return found


def _state(row: Mapping[str, Any]) -> str:
    """ "ok" of a run that was measured here, "ingested" of a good one that was not, else
    its status."""
    status, origin = row["status"] or DASH, row["origin"]
    return origin if status == "ok" and origin not in (None, "measured") else status


def _started(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str | None], str]:
    """When each run began, as short as it can be, and what to say of it: "11-20 20:58" in one year,
    else "2026-11-20"."""
    years = {row["started_at"][:4] for row in rows if row["started_at"]}
    part = slice(5, 16) if len(years) == 1 else slice(0, 10)
    moments = [row["started_at"] and row["started_at"][part].replace("T", " ") for row in rows]
    return moments, f"Started: UTC, {years.pop()}." if len(years) == 1 else ""


def _took(row: Mapping[str, Any]) -> str | None:
    return None if row["duration_ns"] is None else time(row["duration_ns"])


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
    **options: Any,
) -> Group:
    """A table for the terminal, cut to ``rows``; ``options``: of :func:`grid`."""
    from rich.console import Group

    kept = [
        (place, column) for place, column in enumerate(view.columns) if column.label not in left_out
    ]
    sides = {"num": "right", "code": "code"}
    options.setdefault("heads", any(column.label for _, column in kept))
    if view.is_dense:
        options["whole"] = [column.label for _, column in kept if column.style != "text"]
    table = grid(
        *((column.label, sides.get(column.style, "left")) for _, column in kept), **options
    )
    if view.is_dense:
        table.padding = (0, 1, 0, 0)
    widths = [max(len(row[place].unit or "") for row in view.rows[:rows]) for place, _ in kept]
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
    return Group(text(view.caption, "bold"), table, *below)


def styled_cell(cell: Cell, width: int = 0) -> Text:
    """``width``: of the longest unit in the column, so that units stand below each other."""
    style = STYLES.get(cell.style, "")
    if cell.unit is None or not width:
        return text(cell.text, style)
    return text(f"{cell.text} {cell.unit.ljust(width)}", style)
