"""Bulk fields of a report in forms that a store can insert faster than record by record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from perfctl.records.report import Counter, Kernel

NO_NAME = "(name not available: NULL in the report)"
"""Name of a kernel whose name is NULL: a record always has one."""

R = TypeVar("R", bound=NamedTuple)


@dataclass(frozen=True, slots=True)
class Columns(Generic[R]):
    """Many records made column by column: iterate over records, or take the columns."""

    record: type[R]
    chunks: Callable[[], Iterator[Sequence[Sequence[Any]]]]
    """Yields some rows at a time, one sequence per field of ``record``; last fields may be left out
    and are None then. Raises ReportError where the report is damaged."""

    def __iter__(self) -> Iterator[R]:
        make: Callable[[tuple[Any, ...]], R] = partial(tuple.__new__, self.record)
        return chain.from_iterable(
            map(make, zip(*self._whole(columns), strict=True)) for columns in self.chunks()
        )

    def _whole(self, columns: Sequence[Sequence[Any]]) -> Iterator[Iterable[Any]]:
        missing = len(self.record._fields) - len(columns)
        return chain(columns, (repeat(None, len(columns[0])) for _ in range(missing)))


AROUND = "temp.kernels_around"
"""Table of a store's connection: stretches of a report's kernels that have the same range
around them."""
AROUND_COLUMNS = ("first_row", "last_row", "layer", "step", "range_number")
"""Columns of ``AROUND``, integers: first and last rowid in the report, number of the layer (from
0), step, range_number."""

Metric = tuple[str, str | None, str | None]
"""Name, base unit, section."""


@dataclass(frozen=True, slots=True)
class NumberedCounters:
    """Many counters of few metrics: iterate over records, or take the columns."""

    metrics: Sequence[Metric]
    chunks: Callable[[], Iterator[Sequence[Sequence[Any]]]]
    """Yields some rows at a time, as columns: launch, index in ``metrics``, value, text."""

    def __iter__(self) -> Iterator[Counter]:
        for launches, numbers, values, texts in self.chunks():
            for launch, number, value, text in zip(launches, numbers, values, texts, strict=True):
                name, unit, section = self.metrics[number]
                yield Counter(launch, name, value, unit, section, text)


@dataclass(frozen=True, slots=True)
class SqlKernels:
    """Kernels in a table of an SQLite report: iterate over records, or copy them by SQL."""

    path: Path
    """The report. A store attaches it, read-only, as the schema ``report``."""
    select: str
    """One SELECT from the report and from ``AROUND``, which the store fills first: launch, a number
    for the name, a number for the short name, a number for the layer, step, then ``fields``."""
    fields: Sequence[str]
    """Kernel's fields from range_number on, in its order; those left out are NULL."""
    around: Callable[[], Iterator[Sequence[Sequence[int]]]]
    """Yields some rows of ``AROUND`` at a time, one sequence per column; -1 stands for NULL. Every
    row of the report's table is in one of them; they are in the order of the table."""
    layers: Mapping[int, tuple[str | None, str | None, str | None]]
    """Number -> layer, direction and layer_source."""
    texts: Callable[[Iterable[object]], Mapping[object, str | None]]
    """Number of a name -> its text; NULL -> None. Raises ReportError where the report
    is damaged."""
    records: Columns[Kernel]
    """All the kernels as records."""
    never_negative: Collection[str] = ()
    """Names of ``fields`` that are known to hold nothing but integers from 0 on, and NULL."""
    names: Mapping[int, int] | None = None
    """Number of each name -> that of its short name, where every name has one and goes with no
    other; else None."""

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.records)
