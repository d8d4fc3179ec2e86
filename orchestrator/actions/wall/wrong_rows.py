"""Which rows of a run cannot be what perfctl wrote: values of another type, NULL where there has to be one, numbers out of range.

perfctl checks values where it writes them; another program may have written to the store, or its disk may have failed. Rows are
looked at once a command has failed on them, so stores that are as they should be cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from perfctl.orchestrator.store.checks import POSSIBLE
from perfctl.orchestrator.store.read import TABLES
from perfctl.records.run import Run

REMEDY = "Correct them, or ingest its report again into a new store"
_MOST = 3
"""Columns that are named; one is enough to find what happened."""
_LONGEST = 40
"""Characters of a value that are shown."""
_NAMES = {name: table for name, (table, _) in TABLES.items()} | {
    "kernels": "kernel", "counters": "counter", "ranges": "range", "devices": "device"
}  # fmt: skip
"""Field of Report -> the table that a person looks its rows up in."""
_CHECKED = {"kernel": "kernel_launch", "counter": "metric_value"}


def wrong_rows(run: Run) -> str | None:
    """What is wrong with the run's rows, and what to do, ready to follow its name; None where nothing is found."""
    return _said(_wrong(run))


def wrong_columns(row: Mapping[str, Any]) -> str | None:
    """The same of one row of the table run, by column."""
    judges = [(name, is_right) for name, is_right in _judges(Run, "run") if name in row]
    return _said((f"run.{name}", row[name]) for name, is_right in judges if not is_right(row[name]))


def _said(wrong: Iterable[tuple[str, object]]) -> str | None:
    found: dict[str, tuple[object, int]] = {}
    for column, value in wrong:
        first, count = found.get(column, (value, 0))
        found[column] = first, count + 1
    if not found:
        return None
    said = [f"{column} is {_shown(value)}{f' in {n:,} rows' if n > 1 else ''}" for column, (value, n) in found.items()]
    more = f" and {len(said) - _MOST} more columns" if len(said) > _MOST else ""
    return f"its rows in the store cannot be read: {', '.join(said[:_MOST])}{more}. {REMEDY}"


def _shown(value: object) -> str:
    if value is None:
        return "NULL"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def _wrong(run: Run) -> Iterator[tuple[str, object]]:
    """(table.column, value), for each value that is wrong."""
    yield from _of_table("run", [run])
    report = run.report
    yield from _of_table("layer_call", run.layer_calls)
    for name, table in _NAMES.items():
        yield from _of_table(table, getattr(report, name))


def _of_table(table: str, rows: Iterable[Any]) -> Iterator[tuple[str, object]]:
    kind: type[Any] | None = None
    judges: tuple[tuple[str, Callable[[object], bool]], ...] = ()
    for row in rows:
        if type(row) is not kind:
            kind = type(row)
            judges = _judges(kind, _CHECKED.get(table, table))
        for name, is_right in judges:
            value = getattr(row, name)
            if not is_right(value):
                yield f"{table}.{name}", value


def _judges(record: type[Any], table: str) -> tuple[tuple[str, Callable[[object], bool]], ...]:
    """(field, whether a value can be its own), of fields that hold a text or a number."""
    names = [one.name for one in fields(record)] if is_dataclass(record) else list(record._fields)
    hints = get_type_hints(record)
    found = []
    for name in names:
        hint = hints[name]
        kinds = set(get_args(hint)) if isinstance(hint, UnionType) else {hint}
        if kinds <= {int, float, str, NoneType}:
            found.append((name, _judge(kinds, POSSIBLE.get(table, {}).get(name))))
    return tuple(found)


def _judge(kinds: set[type[Any]], between: tuple[float, float] | None) -> Callable[[object], bool]:
    def is_right(value: object) -> bool:
        if value is None:
            return NoneType in kinds
        if isinstance(value, str):
            return str in kinds
        if not isinstance(value, (int, float)) or not kinds & {int, float}:
            return False
        if not isfinite(value) or (isinstance(value, float) and float not in kinds):
            return False
        return between is None or between[0] <= value <= between[1]

    return is_right
