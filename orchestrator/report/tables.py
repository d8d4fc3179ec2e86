"""Tables of the page: columns, rows, and how much was left out; and their cells: a shown text, the
full value or the reason, and the state of a figure.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import isfinite
from typing import Any

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.report.numbers import (
    DASH,
    WriteNumber,
    format_bytes,
    format_integer_or_six_digits,
    format_percent,
    format_rate,
    format_si,
    format_time,
    round_to_six_significant_digits,
)
from perfctl.records.run import Run

NAME = 90
"""Characters of a name that has no short form."""
TURNING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Marks that turn a line around or end it: what stands on the screen or page would not be what
was said."""
ROWS_SHOWN = 200
"""Longer tables are cut to this, with the number of the other rows."""
EXACT_INTEGERS = 2**53
"""Integers up to which JavaScript adds differences exactly."""
REASONS = 2
"""Reasons that are given for a column without values."""
ShortNames = Mapping[str, str]
"""Kernel name of a report -> its short name."""
JsonObject = dict[str, Any]
LongColumn = tuple[tuple[str, str, str], Sequence[Any]]
"""((label, unit, kind), values)."""


@dataclass(frozen=True, slots=True)
class ChangeBar:
    """A change on a scale around 0, in percent of the width of the scale."""

    left: float = 0.0
    width: float = 0.0
    middle: float = 0.0
    style: str = "none"
    """worse, better, news or plain; none: there is no change to show."""
    over: str = ""
    """"left", "right" or both: where it goes on beyond the scale; with "far" the change itself
    is there."""
    band: float = 0.0
    """Width of the band around 0 in which changes are ignored."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str
    title: str | None = None
    """Full value with its unit, or the reason why there is none."""
    style: str = ""
    """"" (counted, or words), "est" (estimated), "der" (derived), "no" (not collected, not
    available), "refused"."""
    value: float | str | None = None
    """Sorted by and exported; None when there is nothing."""
    unit: str | None = None
    """Prefix and unit ("M", "ms", "") beside the number; None for a cell of one piece."""
    is_lower_bound: bool = False
    """Parts of the figure are missing, which ``title`` names."""
    bar: ChangeBar | None = None
    """Beside the text in an HTML report."""
    folded: str = ""
    """What follows the text, in an HTML report on request."""
    href: str = ""
    """Part of the HTML report to which the text leads; "" for none."""


def number_cell(
    text: str,
    title: str | None,
    value: float,
    *,
    style: str = "",
    mark: str = "",
    is_lower_bound: bool = False,
) -> Cell:
    """Return ``text`` ("24.7 ms") as a cell of a number and its unit; a known zero has none.
    ``mark`` stands before it."""
    number, _, unit = text.partition(" ")
    return Cell(
        mark + number,
        title,
        style,
        round_to_six_significant_digits(value),
        unit if value else "",
        is_lower_bound,
    )


def text_cell(text: object, title: str | None = None) -> Cell:
    """A cell of words."""
    return Cell(str(text), title, value=str(text))


@lru_cache(maxsize=1024)
def missing_cell(reason: str) -> Cell:
    """An en dash with the reason."""
    return Cell(DASH, reason, "no")


def optional_text_cell(text: object, reason: str = "the report does not say") -> Cell:
    """A cell of words, which a report may not have."""
    return missing_cell(reason) if text is None or text == "" else text_cell(text)


def name_cell(name: str, short_name: str | None = None) -> Cell:
    """A name from a report: shortened in the cell, whole in the title."""
    text = short_name or name
    if short_name is None and len(name) > NAME:
        text = f"{name[:60]} … {name[-25:]}"
    return Cell(text, name[:1000] if name != text else None, value=name)


def join_notes(*notes: str | None) -> str:
    """Return the notes that there are: "a; b"."""
    return "; ".join(filter(None, notes))


def amount_cell(
    value: float | None,
    unit: str,
    reason: str = "not collected",
    format_number: WriteNumber = format_si,
    note: str | None = None,
) -> Cell:
    """A count with an SI prefix (the unit stands in the column's head). ``note``: behind the full
    value in the title."""
    if value is None:
        return missing_cell(reason)
    title = join_notes(format_integer_or_six_digits(value, unit), note)
    return number_cell(format_number(value), title, value)


def amount_with_unit_cell(value: float | None, unit: str, reason: str = "not collected") -> Cell:
    """An amount with its unit, for columns whose head has none."""
    return amount_cell(value, unit, reason, lambda number: format_si(number, unit))


def rate_cell(value: float | None, unit: str, reason: str = "not collected") -> Cell:
    """So many a second (the unit stands in the column's head)."""
    return amount_cell(value, unit, reason, format_rate)


def count_cell(value: int | None, reason: str = "not collected") -> Cell:
    """A whole number, grouped, all digits."""
    return (
        missing_cell(reason)
        if value is None
        else Cell(format_integer_or_six_digits(value), value=value)
    )


def four_decimals_cell(value: float | None, reason: str = "not collected") -> Cell:
    """A loss or another number of one unit, to four decimals."""
    return missing_cell(reason) if value is None else Cell(f"{value:.4f}", str(value), value=value)


def time_cell(ns: float | None, reason: str = "not collected", note: str | None = None) -> Cell:
    """A duration; the title has the nanoseconds."""
    return amount_cell(ns, "ns", reason, format_time, note)


def size_cell(size_bytes: float | None, reason: str = "not collected") -> Cell:
    """Bytes; the title has them all."""
    return amount_cell(size_bytes, "B", reason, format_bytes)


def share_cell(share: float | None, reason: str = "not known") -> Cell:
    """A percentage."""
    return (
        missing_cell(reason)
        if share is None
        else Cell(format_percent(share), value=round(share, 6))
    )


def mark_cell_estimated(cell: Cell, reason: str) -> Cell:
    """The cell as an estimate: "~ " before its value; ``reason`` in its title."""
    if cell.value is None:
        return cell
    title = join_notes(cell.title, reason)
    return replace(cell, text=f"~ {cell.text}", title=title, style="est")


def format_state_sign(figure: Figure) -> str:
    """The sign before a value: "~ " when it is estimated, "ƒ " when it is derived, "≥ " when a part
    of it is missing, "≤ " for an upper bound."""
    bound = "≥ " if figure.lower_bound else "≤ " if figure.upper_bound else ""
    return bound + {"estimated": "~ ", "derived": "ƒ "}.get(figure.state, "")


def choose_figure_style(figure: Figure) -> str:
    """The style of the figure's state."""
    if figure.value is None:
        return "refused" if figure.state == "refused" else "no"
    return {"estimated": "est", "derived": "der"}.get(figure.state, "")


def explain_figure_state(figure: Figure) -> str:
    """The grounds of the state: the rule, missing parts, or why there is no value."""
    if figure.value is None:
        return f"{figure.state.replace('_', ' ')}: {figure.reason}"
    notes = []
    if figure.launches < figure.of_launches:
        notes.append(f"{figure.launches} of {figure.of_launches} launches")
    if figure.missing:
        notes.append(f"without {', '.join(figure.missing)}")
    if figure.reason:
        notes.append(figure.reason)
    parts = [
        part
        for part in (figure.rule or "").split("; ")
        if part.rpartition(": ")[2] not in (figure.reason or "")
    ]
    if figure.rule and parts:
        notes.append(f"rule: {'; '.join(parts)}")
    return "; ".join(notes)


def figure_cell(figure: Figure, unit: str) -> Cell:
    """A figure in its state: text_cell, "~" when estimated, "≥" when a part is missing, an en dash,
    or struck."""
    if figure.value is None:
        state = choose_figure_style(figure)
        return Cell("refused" if state == "refused" else DASH, explain_figure_state(figure), state)
    title = join_notes(
        format_integer_or_six_digits(figure.value, unit), explain_figure_state(figure)
    )
    return number_cell(
        format_si(figure.value),
        title,
        figure.value,
        style=choose_figure_style(figure),
        mark=format_state_sign(figure),
        is_lower_bound=figure.lower_bound,
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, the unit under it, and the style of its cells."""

    label: str
    unit: str = ""
    style: str = "num"
    """num (right-aligned), text, word (text that is cut and not wrapped, in a dense table), or code
    (names from a report)."""
    note: str | None = None
    """Shown on hover and focus of the head: a definition, or why the whole column is empty."""
    base: str = ""
    """Unit of the full values where the cells carry their own ("ns" beside 41.2 µs); for the
    exported file."""
    carried: bool = False
    """The cells show ``unit`` behind their prefixes, so that the head need not."""
    is_optional: bool = False
    """The terminal leaves it out where there is no room."""
    order: str = ""
    """"ascending" or "descending": the rows are made in the order of this column.
    :func:`build_table` drops it where they are not."""


RUN = Column("run", style="text", is_optional=True)
"""Left out of a listing whose rows are all of one run."""


def run_label(run: Run) -> str:
    """Return "ncu b64", "nsys N=256" or, without any parameter, "nsys run 3"."""
    names = [] if run.batch_size is None else [f"b{run.batch_size}"]
    names += [run.other_parameters_text] if run.other_parameters_text else []
    return f"{run.profiler} {', '.join(names) or f'run {run.id}'}"


def time_column(label: str, note: str | None = None, **options: Any) -> Column:
    """Return a column of times in ns."""
    return Column(label, base="ns", note=note, **options)


def size_column(label: str, note: str | None = None, **options: Any) -> Column:
    """Return a column of sizes in bytes."""
    return Column(label, base="B", note=note, **options)


def text_column(label: str, note: str | None = None, **options: Any) -> Column:
    """Return a column of words."""
    return Column(label, style="text", note=note, **options)


def name_column(label: str, note: str | None = None) -> Column:
    """Return a column of names from a report."""
    return Column(label, style="code", note=note)


def text_columns(*labels: str) -> list[Column]:
    """Return columns of words."""
    return list(map(text_column, labels))


@dataclass(frozen=True, slots=True)
class Table:
    """A table that stands in the page as HTML."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    hidden: int = 0
    tools: bool = True
    """Offer filter and CSV."""
    notes: tuple[str, ...] = ()
    """Above the table: why columns are left out."""
    marks: tuple[tuple[str, str], ...] = ()
    """(layer, direction) of each row, to light up with; empty where rows are of no layer."""
    is_dense: bool = False
    """On a terminal one blank stands between columns, and only text is wrapped."""

    @property
    def total(self) -> int:
        """Rows shown and not shown."""
        return len(self.rows) + self.hidden


def build_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    notes: Iterable[str] = (),
    *,
    max_rows: int = ROWS_SHOWN,
    has_filter_and_csv: bool = True,
    keep_empty_columns: bool = False,
    explain_empty_columns: bool = True,
    omitted_columns: Collection[str] = (),
) -> Table | None:
    """Return a table with ``notes`` above it; None when there are no rows. A value is a cell, or
    becomes one of the kind of its column.

    A column in which every cell is a dash is left out unless ``keep_empty_columns``. If
    ``explain_empty_columns``, a note above the table gives the reason. ``omitted_columns``: labels
    of columns that are left out.
    """
    cells = [tuple(map(_convert_to_cell, columns, row)) for row in rows]
    if not cells:
        return None
    pairs = zip(columns, zip(*cells, strict=True), strict=True)
    every = [pair for pair in pairs if pair[0].label not in omitted_columns]
    columns_shown = (
        every
        if keep_empty_columns
        else [pair for pair in every if not _are_all_cells_missing(pair[1])]
    )
    if columns[0] is RUN and not explain_empty_columns and len({row[0].text for row in cells}) == 1:
        del columns_shown[0]
    empty: dict[tuple[str, ...], list[str]] = {}
    for column, values in every if explain_empty_columns and not keep_empty_columns else ():
        if _are_all_cells_missing(values):
            titles = dict.fromkeys(cell.title or "not collected" for cell in values)
            empty.setdefault(tuple(titles)[:REASONS], []).append(column.label)
    reasons = (f"{', '.join(labels)}: {'; '.join(titles)}." for titles, labels in empty.items())
    return Table(
        keep_order_mark_on_first_sorted_column(
            (mark_column_if_cells_show_unit(*pair), pair[1]) for pair in columns_shown
        ),
        tuple(zip(*(values[:max_rows] for _, values in columns_shown), strict=True)),
        caption,
        max(len(cells) - max_rows, 0),
        tools=has_filter_and_csv and min(len(cells), max_rows) > 8,
        notes=(*reasons, *notes),
    )


def build_table_hiding_empty_columns(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    notes: Iterable[str] = (),
    *,
    has_filter_and_csv: bool = True,
) -> Table | None:
    """Return a table without columns of dashes only, and without the run's column when there is
    only one run."""
    return build_table(
        caption,
        columns,
        rows,
        notes,
        has_filter_and_csv=has_filter_and_csv,
        explain_empty_columns=False,
    )


def build_complete_table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    notes: Sequence[str] = (),
    *,
    is_dense: bool = False,
) -> Table:
    """Return a table of every row and column. If it ``is_dense``, its columns stand close on a
    terminal, and those of dashes are left out."""
    table = build_table(
        caption,
        columns,
        rows,
        notes,
        max_rows=len(rows),
        has_filter_and_csv=False,
        keep_empty_columns=not is_dense,
        explain_empty_columns=False,
    ) or Table(tuple(columns), (), caption, tools=False, notes=tuple(notes))
    return replace(table, is_dense=is_dense)


def _are_all_cells_missing(cells: Iterable[Cell]) -> bool:
    return all(cell.style == "no" for cell in cells)


def mark_column_if_cells_show_unit(column: Column, cells: Iterable[Cell]) -> Column:
    """The column, marked where its cells show its unit."""
    return replace(
        column, carried=bool(column.unit) and any(cell.unit is not None for cell in cells)
    )


def keep_order_mark_on_first_sorted_column(
    columns: Iterable[tuple[Column, Sequence[Cell]]],
) -> tuple[Column, ...]:
    """The columns, with ``order`` at the first one only whose cells are in it; those without a
    value come last."""
    heads: list[Column] = []
    for column, cells in columns:
        values = [_get_cell_number(cell) for cell in cells]
        known_values = [value for value in values if value is not None]
        is_in_order = (
            len(known_values) > 1
            and known_values
            == sorted(known_values, reverse=column.order == "descending")
            == values[: len(known_values)]
        )
        first = is_in_order and not any(head.order for head in heads)
        heads.append(column if first else replace(column, order=""))
    return tuple(heads)


def _get_cell_number(cell: Cell) -> float | None:
    try:
        return None if cell.style == "no" or cell.value is None else float(cell.value)
    except ValueError:
        return None


def _convert_to_cell(column: Column, value: Any) -> Cell:
    """Return words and names by the column's style, times and sizes by its unit, a run by its
    label, else a count."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, Run):
        return text_cell(run_label(value))
    if column.style == "code" and value:
        return name_cell(value)
    if column.style != "num":
        return optional_text_cell(value)
    if column.base == "ns":
        return time_cell(value)
    return size_cell(value) if column.base == "B" else count_cell(value)


@dataclass(frozen=True, slots=True)
class PackedTable:
    """A table of any length: its columns as packed() makes them."""

    key: str
    caption: str
    rows: int
    columns: tuple[JsonObject, ...]
    hidden: int
    notes: tuple[str, ...]

    @property
    def data(self) -> JsonObject:
        """What the page carries."""
        return {"rows": self.rows, "columns": self.columns}


def encode_column_in_smallest_form(
    label: str, unit: str, kind: str, values: Sequence[Any]
) -> JsonObject:
    """Return one column in the smallest of five forms.

    ``{label, unit, kind, ...}`` with its data as one of ``c`` (one value for all rows), ``d`` +
    ``i`` (dictionary and index a row), ``d`` + ``r`` (index, how often, index, ...), ``b`` + ``s``
    (first of integers, and differences), ``v`` (the values). None stays null.
    :func:`encode_integers_as_base64` writes ``i`` and ``s``. ``kind`` says how a value is written:
    time, si, int, text or code."""
    head = {"label": label, "unit": unit, "kind": kind}
    tidied = {value: _convert_to_json_number(value) for value in dict.fromkeys(values)}
    tidy = [tidied[value] for value in values]
    distinct = list(dict.fromkeys(tidied.values()))
    if len(distinct) == 1:
        return head | {"c": distinct[0]}
    forms = []
    if len(distinct) <= max(16, len(tidy) // 3):
        order = {value: number for number, value in enumerate(distinct)}
        runs = [part for value, same in groupby(tidy) for part in (order[value], len(list(same)))]
        if len(runs) < len(tidy) // 2:
            return head | {"d": distinct, "r": runs}
        forms.append(
            {"d": distinct, "i": encode_integers_as_base64([order[value] for value in tidy])}
        )
    is_whole = all(type(value) is int for value in distinct)
    if is_whole and max(distinct) - min(distinct) < EXACT_INTEGERS:
        differences = encode_integers_as_base64(
            [value - tidy[0] for value in tidy], as_differences=True
        )
        forms.append({"b": tidy[0], "s": differences})
    # an index has fewer digits than a difference only if the dictionary is short
    return head | min(forms, key=lambda form: len(str(form)), default={"v": tidy})


def encode_integers_as_base64(values: Sequence[int], *, as_differences: bool = False) -> str:
    """Return LEB128 (seven bits a byte, the lowest first, the eighth says that more follow) in
    base64; "" for zeros alone.

    ``as_differences``: each value less the one before, 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
    """
    import numpy as np

    numbers = np.asarray(values, np.int64)
    if as_differences:
        numbers = np.diff(numbers, prepend=0)
        numbers = (numbers << 1) ^ (numbers >> 63)
    if not numbers.any():
        return ""
    bits = numbers.astype(np.uint64)
    groups = bits[:, None] >> np.arange(0, 64, 7, dtype=np.uint64)
    is_used = groups > 0
    is_used[:, 0] = True
    groups &= np.uint64(127)
    groups[:, :-1] |= is_used[:, 1:].astype(np.uint64) << np.uint64(7)
    return b64encode(groups[is_used].astype(np.uint8).tobytes()).decode("ascii")


def pack_long_table(
    key: str,
    columns: Sequence[LongColumn],
    row_count: int,
    hidden_count: int,
    extra_columns: Iterable[JsonObject] = (),
    notes: Sequence[str] = (),
    *,
    short_kernel_names: ShortNames,
) -> PackedTable:
    """Return columns, then ``extra_columns`` that are packed and stand in the long table only;
    those without a value become a note.
    """
    caption = {"launches": "Every launch", "counters": "Counters by kernel name"}[key]
    packed_columns = [
        *(encode_column_in_smallest_form(*head, values) for head, values in columns),
        *extra_columns,
    ]
    for column in packed_columns:
        if column["label"] == "kernel" and short_kernel_names:
            names_of_column = column.get("d") or column.get("v") or [column.get("c")]
            column["short"] = {
                name: short_kernel_names[name]
                for name in dict.fromkeys(names_of_column)
                if short_kernel_names.get(name, name) != name
            }
    empty = [
        column["label"]
        for column in packed_columns
        if column.get("c", 0) is None and "refused" not in str(column.get("state", ""))
    ]
    columns_with_values = tuple(column for column in packed_columns if column["label"] not in empty)
    notes_above = (*([f"not in these reports: {', '.join(empty)}"] if empty else []), *notes)
    return PackedTable(key, caption, row_count, columns_with_values, hidden_count, notes_above)


def _convert_to_json_number(value: Any) -> Any:
    """Whole floats as integers; NaN and infinity, which JSON lacks, as null."""
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return int(value) if value.is_integer() else value
    return value
