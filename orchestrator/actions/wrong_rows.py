"""Which rows of a run cannot be what perfctl wrote: values of another type, NULL where there has to
be one, numbers out of range.

perfctl checks values where it writes them; another program may have written to the store, or its
disk may have failed. Types are looked at whenever a run is read, a column at a time; each value by
itself once a command has failed on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from perfctl.orchestrator.store.checks import possible
from perfctl.orchestrator.store.read import TABLES
from perfctl.records.run import Run

REMEDY = "Correct them, or ingest its report again into a new store"
_MOST = 3
"""Columns that are named; one is enough to find what happened."""
_LONGEST = 40
"""Characters of a value that are shown."""
_NAMES = {name: table for name, (table, _) in TABLES.items()} | {
    "kernels": "kernel",
    "counters": "counter",
    "ranges": "range",
    "devices": "device",
}
"""Field of Report -> the table that a person looks its rows up in."""
_CHECKED = {"kernel": "kernel_launch", "counter": "metric_value"}


@dataclass(frozen=True, slots=True)
class _Column:
    """A field of a record, and which values perfctl would have written to it."""

    name: str
    kinds: frozenset[type[Any]]
    """Texts and numbers that it may be; none where it holds something else."""
    is_optional: bool
    between: tuple[float, float] | None

    def has_types(self, values: Sequence[Any]) -> bool:
        """Return whether values have types that can be its own, NULL or any number for a number."""
        if not self.kinds:
            return True
        types = set(map(type, values)) - {NoneType}
        if self.kinds == {str}:
            return types <= {str}
        is_finite = float not in types or all(map(isfinite, filter(None, values)))
        return is_finite and types <= self.kinds | {int, float}

    def accepts(self, value: object) -> bool:
        """Return whether the value can be its own."""
        if not self.kinds:
            return True
        if value is None:
            return self.is_optional
        if isinstance(value, str):
            return str in self.kinds
        if not isinstance(value, (int, float)) or not self.kinds & {int, float}:
            return False
        if not isfinite(value) or (isinstance(value, float) and float not in self.kinds):
            return False
        return self.between is None or self.between[0] <= value <= self.between[1]


def wrong_rows(run: Run) -> str | None:
    """Return what is wrong with the run's rows, and what to do, ready to follow its name; None
    where nothing is found."""
    return _describe(
        (f"{table}.{column.name}", value)
        for table, rows in _tables(run)
        for row in rows
        for column in _columns(row.__class__, table)
        if not column.accepts(value := getattr(row, column.name))
    )


def wrong_types(run: Run) -> str | None:
    """Return the same, but only for texts and bytes where numbers have to be, bytes where texts
    have to be, and infinite numbers.

    A text is no count, yet it can be shown as one, or taken for an unknown one, without any command
    failing on it.
    """
    for table, rows in _tables(run):
        if not rows:
            continue
        columns = _columns(rows[0].__class__, table)
        tuples = rows if isinstance(rows[0], tuple) else map(_values_of(columns), rows)
        values = zip(*tuples, strict=True)
        if not all(column.has_types(own) for column, own in zip(columns, values, strict=True)):
            return wrong_rows(run)
    return None


def wrong_columns(row: Mapping[str, Any]) -> str | None:
    """Return the same of one row of the table run, by column."""
    columns = [column for column in _columns(Run, "run") if column.name in row]
    return _describe(
        (f"run.{column.name}", row[column.name])
        for column in columns
        if not column.accepts(row[column.name])
    )


def _tables(run: Run) -> Iterator[tuple[str, Sequence[Any]]]:
    yield "run", [run]
    yield "layer_call", run.layer_calls
    for name, table in _NAMES.items():
        yield table, getattr(run.report, name)


@cache
def _columns(record: Any, table: str) -> tuple[_Column, ...]:
    hints = get_type_hints(record)
    names = [one.name for one in fields(record)] if is_dataclass(record) else record._fields
    between = possible(_CHECKED.get(table, table))
    columns = []
    for name in names:
        kinds = set(get_args(hints[name]) if isinstance(hints[name], UnionType) else [hints[name]])
        own = frozenset(kinds - {NoneType}) if kinds <= {int, float, str, NoneType} else frozenset()
        columns.append(_Column(name, own, NoneType in kinds, between.get(name)))
    return tuple(columns)


def _values_of(columns: Sequence[_Column]) -> Callable[[object], tuple[Any, ...]]:
    return lambda row: tuple(getattr(row, column.name) for column in columns)


def _describe(wrong: Iterable[tuple[str, object]]) -> str | None:
    """Return the line about (table.column, value), with the first value of each column."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for column, value in wrong:
        text = "NULL" if value is None else repr(value)
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}... ({len(text):,} characters)"
        first.setdefault(column, text)
        counts[column] += 1
    if not first:
        return None
    parts = [
        f"{column} is {text}" + (f" in {counts[column]:,} rows" if counts[column] > 1 else "")
        for column, text in first.items()
    ]
    more = f" and {len(parts) - _MOST} more columns" if len(parts) > _MOST else ""
    return f"its rows in the store cannot be read: {', '.join(parts[:_MOST])}{more}. {REMEDY}"
