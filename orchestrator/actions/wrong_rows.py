"""Which rows of a run cannot be what perfctl wrote: values of another type, NULL where there has to
be one, numbers out of range.

perfctl checks values where it writes them; another program may have written to the store, or its
disk may have failed. Types are looked at whenever a run is read, a column at a time; each value by
itself once a command has failed on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
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
    "kernels": "kernel",
    "counters": "counter",
    "ranges": "range",
    "devices": "device",
}
"""Field of Report -> the table that a person looks its rows up in."""
_CHECKED = {"kernel": "kernel_launch", "counter": "metric_value"}


def wrong_rows(run: Run) -> str | None:
    """What is wrong with the run's rows, and what to do, ready to follow its name; None where
    nothing is found."""
    return _said(_wrong(run))


def wrong_types(run: Run) -> str | None:
    """The same, but only for texts and bytes where numbers have to be, bytes where texts have to
    be, and infinite numbers.

    A text is no count, yet it can be shown as one, or taken for an unknown one, without any command
    failing on it.
    """
    tables: list[Sequence[Any]] = [
        [run],
        run.layer_calls,
        *(getattr(run.report, name) for name in _NAMES),
    ]
    return None if all(map(_types_fit, tables)) else wrong_rows(run)


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
    said = [
        f"{column} is {_shown(value)}{f' in {n:,} rows' if n > 1 else ''}"
        for column, (value, n) in found.items()
    ]
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


def _types_fit(rows: Sequence[Any]) -> bool:
    """Whether each column has values of its own types alone, apart from NULL; a list has rows of
    one type."""
    if not rows:
        return True
    record: Any = type(rows[0])
    kinds = _kinds(record)
    columns = (
        zip(*rows, strict=True)
        if isinstance(rows[0], tuple)
        else zip(*map(_values(kinds), rows), strict=True)
    )
    return all(
        _column_fits(column, found)
        for column, found in zip(columns, kinds.values(), strict=True)
        if found
    )


def _values(names: Iterable[str]) -> Callable[[object], tuple[Any, ...]]:
    return lambda row: tuple(getattr(row, name) for name in names)


def _column_fits(column: Sequence[Any], kinds: frozenset[type[Any]]) -> bool:
    there = set(map(type, column)) - {NoneType}
    if kinds == {str}:
        return there <= {str}
    is_finite = float not in there or all(map(isfinite, filter(None, column)))
    return is_finite and there <= kinds | {int, float}


@cache
def _kinds(record: Any) -> dict[str, frozenset[type[Any]]]:
    """Field -> types of its texts and numbers; none of a field that holds something else."""
    names = (
        [one.name for one in fields(record)]
        if is_dataclass(record)
        else list(getattr(record, "_fields", ()))
    )
    hints = get_type_hints(record)
    found = {}
    for name in names:
        kinds = frozenset(
            get_args(hints[name]) if isinstance(hints[name], UnionType) else {hints[name]}
        )
        found[name] = kinds - {NoneType} if kinds <= {int, float, str, NoneType} else frozenset()
    return found


def _judges(record: Any, table: str) -> tuple[tuple[str, Callable[[object], bool]], ...]:
    """(field, whether a value can be its own), of fields that hold a text or a number."""
    hints, between = get_type_hints(record), POSSIBLE.get(table, {})
    return tuple(
        (
            name,
            _judge(kinds, is_optional=NoneType in get_args(hints[name]), between=between.get(name)),
        )
        for name, kinds in _kinds(record).items()
        if kinds
    )


def _judge(
    kinds: frozenset[type[Any]], *, is_optional: bool, between: tuple[float, float] | None
) -> Callable[[object], bool]:
    def is_right(value: object) -> bool:
        if value is None:
            return is_optional
        if isinstance(value, str):
            return str in kinds
        if not isinstance(value, (int, float)) or not kinds & {int, float}:
            return False
        if not isfinite(value) or (isinstance(value, float) and float not in kinds):
            return False
        return between is None or between[0] <= value <= between[1]

    return is_right
