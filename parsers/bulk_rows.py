"""Bulk fields of a report that a store can take faster than one record after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from perfctl.parsers.records import Counter, Kernel

NO_NAME = "(name not available: NULL in the report)"
"""What stands in the place of a kernel's name, which a record always has."""

R = TypeVar("R", bound=NamedTuple)


@dataclass(frozen=True, slots=True)
class Columns(Generic[R]):
    """Many records that are made column by column: any reader may iterate, a store may take the columns instead."""

    record: type[R]
    chunks: Callable[[], Iterator[Sequence[Sequence[Any]]]]
    """Some rows at a time, as one sequence a field of ``record``; raises ReportError where the report is damaged."""

    def __iter__(self) -> Iterator[R]:
        make: Callable[[tuple[Any, ...]], R] = partial(tuple.__new__, self.record)
        return chain.from_iterable(map(make, zip(*columns, strict=True)) for columns in self.chunks())


Metric = tuple[str, str | None, str | None]
"""Name, base unit, section."""


@dataclass(frozen=True, slots=True)
class NumberedCounters:
    """Many counters of few metrics: any reader may iterate, a store may take the columns instead."""

    metrics: Sequence[Metric]
    chunks: Callable[[], Iterator[Sequence[Sequence[Any]]]]
    """Some rows at a time, as columns: launch, place of the metric in ``metrics``, value, text."""

    def __iter__(self) -> Iterator[Counter]:
        for launches, numbers, values, texts in self.chunks():
            for launch, number, value, text in zip(launches, numbers, values, texts, strict=True):
                name, unit, section = self.metrics[number]
                yield Counter(launch, name, value, unit, section, text)


@dataclass(frozen=True, slots=True)
class SqlKernels:
    """Kernels that lie in a table of an SQLite report: any reader may iterate, a store may copy them by SQL instead."""

    path: Path
    """The report. A store attaches it, read-only, as the schema ``report``."""
    select: str
    """One SELECT: launch, a number for the name, a number for the short name, a number for the layer (from 0), step,
    then Kernel's fields from range_number on."""
    parameters: Mapping[str, bytes]
    """What is to be bound to the named parameters in ``select``."""
    layers: Mapping[int, tuple[str | None, str | None, str | None]]
    """Number -> layer, direction and layer_source."""
    texts: Callable[[Iterable[object]], Mapping[object, str | None]]
    """Number of a name -> the text behind it, of NULL None; raises ReportError where the report is damaged."""
    records: Columns[Kernel]
    """The same as records."""

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.records)
