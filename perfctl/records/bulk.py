"""Bulk fields of a report in forms that a store can insert faster than record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from perfctl.records.report import Counter, Kernel

NO_NAME = "(name not available: NULL in the report)"
"""Name of a kernel whose name is NULL: a record always has one."""

R = TypeVar("R", bound=NamedTuple)
ColumnChunks = Iterator[Sequence[Sequence[Any]]]
"""Some rows at a time, as columns."""


@dataclass(frozen=True, slots=True)
class ColumnRecords(Generic[R]):
    """Many records made column by column: iterate over records, or take the columns."""

    record: type[R]
    chunks: Callable[[], ColumnChunks]
    """Yields some rows at a time, one sequence per field of ``record``; last fields may be left out
    and are None then. Raises ReportError where the report is damaged."""

    def __iter__(self) -> Iterator[R]:
        make: Callable[[tuple[Any, ...]], R] = partial(tuple.__new__, self.record)
        for columns in self.chunks():
            missing = len(self.record._fields) - len(columns)
            nothing = (repeat(None, len(columns[0])) for _ in range(missing))
            yield from map(make, zip(*chain(columns, nothing), strict=True))


Metric = tuple[str, str | None, str | None]
"""Name, base unit, section."""


@dataclass(frozen=True, slots=True)
class NumberedCounters:
    """Many counters of few metrics: iterate over records, or take the columns."""

    metrics: Sequence[Metric]
    chunks: Callable[[], ColumnChunks]
    """Yields some rows at a time, as columns: launch, index in ``metrics``, value, text."""

    def __iter__(self) -> Iterator[Counter]:
        for launches, numbers, values, texts in self.chunks():
            for launch, number, value, text in zip(launches, numbers, values, texts, strict=True):
                name, unit, section = self.metrics[number]
                yield Counter(launch, name, value, unit, section, text)


@dataclass(frozen=True, slots=True)
class SqlKernels:
    """Kernels in a table of an SQLite report: iterate over records, or copy them inside SQLite,
    which takes 1 s of processor time for a million of them, and record by record 6 s."""

    path: Path
    """The report. A store attaches it, read-only."""
    table: str
    """Its rows are numbered without a hole, launch 0 by ``first_row``."""
    first_row: int
    fields: Mapping[str, str]
    """Kernel's fields from device_index on -> SQL of the table's columns; those left out are
    NULL."""
    name_column: str
    names: Mapping[int, tuple[str, str | None]]
    """Each number in ``name_column`` -> name and short name."""
    stretches: Callable[[], Iterator[Sequence[Sequence[int]]]]
    """Yields, some at a time, columns of stretches of rows with the same ranges around their launch
    calls: first row, last row, number of the layer, step, range_number; -1 for none. Every row is
    in one stretch. For SQLite a join with these is five times as fast as a look-up a row."""
    layers: Mapping[int, tuple[str | None, str | None, str | None]]
    """Number of a layer -> layer, direction and layer_source."""
    records: ColumnRecords[Kernel]
    """All the kernels as records."""

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.records)
