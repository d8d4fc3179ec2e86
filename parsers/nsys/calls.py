"""Sums of calls in an nsys export, as ``nsys stats`` has them (cuda_api_sum, osrt_sum, nvtx_sum,
mpi_event_sum, ...)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfctl.parsers.attribution import NEVER, NOBODY, Spans
from perfctl.parsers.common.sqlite import Database, integer
from perfctl.parsers.nsys.columns import NULL, read_pieces
from perfctl.parsers.nsys.ranges import MARK, PROCESS_BITS, RangeTable, blanked
from perfctl.parsers.nsys.tables import OSRT, RUNTIME, STRINGS, SYNC, Strings, opened
from perfctl.records.bulk import Columns
from perfctl.records.report import WAITS, ApiCall, OpCall

if TYPE_CHECKING:
    from perfctl.parsers.attribution import Flags, Integers

NO_NAME = "(no name)"
OSRT_CALL = 27
"""Class of the rows of OSRT_API that are calls; others mark where tracing began and ended."""
OF_LIBRARIES = {"CUDNN_EVENTS": "cudnn", "CUBLAS_EVENTS": "cublas"}
"""Table -> domain of its calls. Since 2024 nsys records these libraries as NVTX domains."""
OF_MPI = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
NVTX_LIBRARIES = {
    "nccl": "nccl",
    "cublas": "cublas",
    "cublaslt": "cublas",
    "cudnn": "cudnn",
    "mpi": "mpi",
}
"""NVTX domain, in lower case -> domain of the calls that its ranges are."""
SYNCS = {
    1: "event synchronize",
    2: "stream wait event",
    3: "stream synchronize",
    4: "context synchronize",
}
"""CUpti_ActivitySynchronizationType; exports since 3.0.0 have ENUM_CUPTI_SYNC_TYPE."""
NAMES_TOGETHER_MAX = 1 << 16
"""Numbers of names that lie so near to each other are places in an array; others are sorted."""
_OF_NCCL = re.compile(r"nccl[A-Z]")
_VERSION = re.compile(r"_v.{4}$", re.DOTALL)
"""Of a CUDA function ("cudaLaunchKernel_v7000"): nsys stats cuts it off."""


class Sum(NamedTuple):
    """Calls of one function."""

    calls: int = 0
    total: int = 0
    shortest: int = NEVER
    """NEVER if no call has an end."""
    longest: int = -NEVER

    def plus(self, other: Sum) -> Sum:
        """Return both together."""
        shortest, longest = min(self.shortest, other.shortest), max(self.longest, other.longest)
        return Sum(self.calls + other.calls, self.total + other.total, shortest, longest)

    def as_call(self, domain: str, name: str) -> ApiCall:
        """Return the record."""
        extremes = (None, None) if self.shortest == NEVER else (self.shortest, self.longest)
        return ApiCall(domain, name, self.calls, self.total, *extremes)


class Sums(dict[int, Sum]):
    """Calls by number of their name; NULL is the number of those without one."""

    def add(self, name: Integers, length: Integers, known: Flags) -> None:
        """Add some calls: numbers of their names, how long each took, and where that is known."""
        if not len(name):
            return
        first, last = int(name.min()), int(name.max())
        if last - first < NAMES_TOGETHER_MAX:
            numbers, group = np.arange(first, last + 1), name - first
        else:
            numbers, group = np.unique(name, return_inverse=True)
        calls, total = np.bincount(group), np.zeros(len(numbers), np.int64)
        shortest, longest = np.full(len(numbers), NEVER), np.full(len(numbers), -NEVER)
        group, length = group[known], length[known]
        np.add.at(total, group, length)
        np.minimum.at(shortest, group, length)
        np.maximum.at(longest, group, length)
        columns = (column.tolist() for column in (numbers, calls, total, shortest, longest))
        for number, count, *times in zip(*columns, strict=True):
            if count:
                self[number] = self.get(number, Sum()).plus(Sum(count, *times))


def api_calls(database: Database, cuda: Sums, ranges: RangeTable) -> list[ApiCall]:
    """Return the calls of all domains; in each, what took longest first, as ``nsys stats`` prints
    them."""
    strings = Strings(database, NO_NAME)
    strings[NULL] = NO_NAME
    name_of = strings.__getitem__
    names = {number: _VERSION.sub("", strings[number] or NO_NAME) for number in cuda}
    found = [some.as_call("cuda", names[number]) for number, some in cuda.items()]
    found.sort(key=_rank)
    is_call = f"eventClass = {OSRT_CALL}" if database.has(OSRT, "eventClass") else "TRUE"
    found += _sum_table(database, "osrt", {OSRT: "nameId"}, name_of, is_call)
    found += _of_ranges(ranges)
    for table, domain in OF_LIBRARIES.items():
        found += _sum_table(database, domain, {table: "nameId"}, name_of)
    named = {table: "nameId" if database.has(table, "nameId") else "textId" for table in OF_MPI}
    found += _sum_table(database, "mpi", named, name_of)
    rows = database.rows("ENUM_CUPTI_SYNC_TYPE", "id", "label")
    labels: dict[object, str] = {**SYNCS} | {number: str(label).lower() for number, label in rows}

    def name_kind(number: object) -> str:
        return labels.get(number, f"type {number}")

    return [*found, *_sum_table(database, "sync", {SYNC: "syncType"}, name_kind)]


def _sum_table(
    database: Database,
    domain: str,
    tables: Mapping[str, str],
    name_of: Callable[[object], str | None],
    where: str = "TRUE",
) -> list[ApiCall]:
    """Sum the calls in these tables by name, longest first. ``tables``: table -> its column of
    numbers of names."""
    rows = " UNION ALL ".join(
        f"SELECT {integer(name)} AS name, {integer('end')} - {integer('start')} AS length "
        f"FROM {table} WHERE {where}"
        for table, name in tables.items()
        if database.has(table, name, "start", "end")
    )
    if not rows:
        return []
    query = (
        "SELECT name, count(*), coalesce(sum(length), 0), min(length), max(length) "
        f"FROM ({rows}) GROUP BY name"
    )
    sums = database.connection.execute(query)
    found = [ApiCall(domain, name_of(name) or NO_NAME, *some) for name, *some in sums]
    return sorted(found, key=_rank)


def waits(path: Path, database: Database, ranges: RangeTable) -> Columns[OpCall] | tuple[()]:
    """Return each call that waits for the GPU, in the order of the table, with the measured step in
    which it began.

    Records are made while they are read, from a connection of their own.
    """
    if not database.has(RUNTIME, "nameId", "start", "end") or not database.has(
        STRINGS, "id", "value"
    ):
        return ()
    query = f"SELECT id, value FROM {STRINGS} WHERE value GLOB 'cu*Synchronize*'"
    found = {
        number: _VERSION.sub("", str(text)) for number, text in database.connection.execute(query)
    }
    names = {number: name for number, name in found.items() if name in WAITS}
    return Columns(OpCall, partial(_read_waits, path, names, ranges)) if names else ()


def _read_waits(
    path: Path, names: dict[int, str], ranges: RangeTable
) -> Iterator[Sequence[Sequence[Any]]]:
    numbers = ranges.step_numbers()
    with opened(path) as database:
        pieces = read_pieces(database, RUNTIME, "nameId", "start", "end", "globalTid")
        for name, start, end, thread in pieces:
            rows = np.flatnonzero((start != NULL) & (end >= start) & np.isin(name, list(names)))
            if not len(rows):
                continue
            begins, threads = start[rows], thread[rows]
            moments = Spans(threads & PROCESS_BITS, threads, begins, begins)
            steps = numbers[ranges.attribution.of_calls(moments).step]
            nothing = [None] * len(rows)
            yield (
                [names[number] for number in name[rows].tolist()],
                begins.tolist(),
                (end[rows] - begins).tolist(),
                *(nothing,) * 5,
                blanked(steps, steps == NOBODY),
                blanked(threads & ~PROCESS_BITS, threads == NULL),
                nothing,
            )


def _rank(call: ApiCall) -> tuple[int, str]:
    return -(call.total_ns or 0), call.name


def _of_ranges(ranges: RangeTable) -> list[ApiCall]:
    """Sum ranges by domain, name and style, and once more those of libraries that annotate their
    own calls. A range that never ended lasts until the last NVTX event, as ``nsys stats`` has
    it."""
    chosen = np.flatnonzero(ranges.kind != MARK)
    if not len(chosen):
        return []
    spans = ranges.spans.take(chosen)
    every_end = ranges.spans.end[ranges.spans.end != NEVER]
    until = max(int(ranges.spans.start.max()), int(every_end.max(initial=-NEVER)))
    length = np.where(spans.end == NEVER, until, spans.end) - spans.start
    columns = (ranges.name[chosen], ranges.kind[chosen], ranges.domain[chosen], spans.process)
    group = np.zeros(len(chosen), np.int64)
    for column in columns if columns[2].any() else columns[:2]:
        values, number = np.unique(column, return_inverse=True)
        _, group = np.unique(group * len(values) + number, return_inverse=True)
    by_group = Sums()
    by_group.add(group, length, np.ones(len(group), bool))
    _, rows = np.unique(group, return_index=True)
    keys = zip(*(column[rows].tolist() for column in columns), strict=True)
    sums: dict[tuple[str | None, str, int], Sum] = {}
    for (name, kind, domain, process), found in zip(keys, by_group.values(), strict=True):
        of = ranges.domains.get((process, domain), "") if domain else None
        place = of, ranges.names[name], kind
        sums[place] = sums.get(place, Sum()).plus(found)
    calls, libraries = [], []
    for (of, name, _), found in sums.items():
        calls.append(found.as_call("nvtx", f"{of}:{name}" if of else name))
        library = NVTX_LIBRARIES.get((of or "").lower())
        if of == "" and _OF_NCCL.match(name):  # NCCL's own domain may have no name
            library = "nccl"
        if library:
            libraries.append(found.as_call(library, name))
    libraries.sort(key=lambda call: (call.domain, *_rank(call)))
    return [*sorted(calls, key=_rank), *libraries]
