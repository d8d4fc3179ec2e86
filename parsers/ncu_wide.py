"""Reads ncu's wide CSV: one row per launch, one column per metric (``ncu --page raw --csv``), under a row of units.

The unit of a column holds for all launches and is chosen for each column by itself: reads may be in Gbyte beside
writes in Mbyte.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from perfctl.parsers.ncu_lines import cells
from perfctl.parsers.ncu_long import LONGEST_ID, Columns, is_header
from perfctl.parsers.ncu_nvtx import PUSH_POP, START_END
from perfctl.parsers.ncu_table import Table
from perfctl.parsers.text_lines import Log


def metric_columns(header: list[str]) -> list[int]:
    """Return the columns that are metrics: names without spaces, with an underscore or a point."""
    return [
        index
        for index, name in enumerate(header)
        if " " not in name and ("_" in name or "." in name) and PUSH_POP not in name and START_END not in name
    ]


def read(text_rows: Iterator[str], header: list[str], table: Table, log: Log, number: int) -> list[str] | None:
    """Read one wide table to its end, or to the header of a further table, which is returned.

    A file that another program stripped of its units row is read with unknown units (as ncu prints a report of a
    version it does not know).
    """
    columns, metrics = Columns(header), metric_columns(header)
    keys: array[int] | None = None
    for text_row in text_rows:
        row = cells(text_row)
        if row is not None and is_header(row):
            return row
        if row is None or len(row) <= columns.kernel:
            log.cut_rows += 1
            continue
        if keys is None:
            units = row if row[columns.id] == "" else []
            keys = _keys(header, metrics, units, table)
            if units:
                continue
        if not row[columns.id].isdecimal() or len(row[columns.id]) > LONGEST_ID:
            log.cut_rows += 1
            continue
        log.cut_rows += len(row) < len(header)
        _add(row, columns, metrics, keys, table, number)
    return None


def _keys(header: list[str], metrics: list[int], units: list[str], table: Table) -> array[int]:
    """Number of the metric and unit of each metric column."""
    return array("I", [table.key(header[at], units[at] if at < len(units) else "", None) for at in metrics])


def _add(row: list[str], columns: Columns, metrics: list[int], keys: array[int], table: Table, number: int) -> None:
    """Take in the row of one launch; a row that was cut off gives the cells it has."""
    launch = len(table.launches)
    table.launches.append(columns.launch(row, number))
    table.meet(row[columns.process], row[columns.id], number)
    texts = list(map(table.cells.ids.__getitem__, [row[at] for at in metrics if at < len(row)]))
    table.add(launch, keys[: len(texts)], texts)
    table.cells.end(launch)
