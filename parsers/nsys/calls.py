"""Sums of calls in an nsys export, as ``nsys stats`` has them (cuda_api_sum, osrt_sum, nvtx_sum,
mpi_event_sum, ...)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfctl.parsers.attribution import NEVER
from perfctl.parsers.common.sqlite import Database, integer
from perfctl.parsers.nsys.columns import NULL, read_pieces
from perfctl.parsers.nsys.ranges import MARK, PROCESS_BITS, RangeTable, blanked
from perfctl.parsers.nsys.tables import OSRT, RUNTIME, STRINGS, SYNC, Strings, opened
from perfctl.records.bulk import Columns
from perfctl.records.report import WAITS, ApiCall, OpCall

if TYPE_CHECKING:
    import numpy as np

    from perfctl.parsers.attribution import Flags, Integers
else:
    from perfctl.parsers.attribution import np

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
_OF_NCCL = re.compile(r"nccl[A-Z]")
_VERSION = re.compile(r"_v.{4}$", re.DOTALL)
"""Of a CUDA function ("cudaLaunchKernel_v7000"): nsys stats cuts it off."""


class Sum(NamedTuple):
    """Calls of one function."""

    calls: int
    total: int
    shortest: int | None
    """None when no call has an end; likewise ``longest``."""
    longest: int | None

    def plus(self, other: Sum) -> Sum:
        """Return both together."""
        lows = [low for low in (self.shortest, other.shortest) if low is not None]
        highs = [high for high in (self.longest, other.longest) if high is not None]
        calls, total = self.calls + other.calls, self.total + other.total
        return Sum(calls, total, min(lows, default=None), max(highs, default=None))


def sum_groups(group: Integers, length: Integers, known: Flags | None = None) -> Iterator[Sum]:
    """Yield the sum of each group: ``group`` is the number of each call's, from 0. ``known``: calls
    whose length is known (None: all)."""
    calls = np.bincount(group)
    if known is not None and not known.all():
        group, length = group[known], length[known]
    total = np.zeros(len(calls), np.int64)
    shortest, longest = np.full(len(calls), NEVER), np.full(len(calls), -NEVER)
    np.add.at(total, group, length)
    np.minimum.at(shortest, group, length)
    np.maximum.at(longest, group, length)
    columns = (calls, total, shortest, longest)
    for count, together, low, high in zip(*(column.tolist() for column in columns), strict=True):
        extremes = (None, None) if low == NEVER else (low, high)
        yield Sum(count, together, *extremes)


class Sums(dict[int, Sum]):
    """Calls by number of their name; NULL is the number of those without one."""

    def add(self, name: Integers, length: Integers, known: Flags) -> None:
        """Add some calls: numbers of their names, how long each took, and where that is known."""
        numbers = np.unique(name)
        group = np.searchsorted(numbers, name)  # faster than return_inverse, which sorts places
        for number, found in zip(numbers.tolist(), sum_groups(group, length, known), strict=True):
            self[number] = self[number].plus(found) if number in self else found


def api_calls(database: Database, cuda: Sums, ranges: RangeTable) -> list[ApiCall]:
    """Return the calls of all domains; in each, what took longest first, as ``nsys stats`` prints
    them."""
    strings = Strings(database, NO_NAME)
    strings[NULL] = NO_NAME
    name_of = strings.__getitem__
    cut = {number: _VERSION.sub("", strings[number] or NO_NAME) for number in cuda}
    found = [ApiCall("cuda", cut[number], *some) for number, some in cuda.items()]
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
    """Each call that waits for the GPU, in the order of the table, with the measured step in which
    its process began it.

    Records are made while they are read, from a connection of their own.
    """
    if not database.has(RUNTIME, "nameId", "start", "end") or not database.has(
        STRINGS, "id", "value"
    ):
        return ()
    alike = database.connection.execute(
        f"SELECT id, value FROM {STRINGS} WHERE value GLOB 'cu*Synchronize*'"
    )
    cut = {number: _VERSION.sub("", str(text)) for number, text in alike if isinstance(number, int)}
    names = {number: name for number, name in cut.items() if name in WAITS}
    return Columns(OpCall, partial(_waits, path, names, _Steps(ranges))) if names else ()


def _waits(path: Path, names: dict[int, str], steps: _Steps) -> Iterator[Sequence[Sequence[Any]]]:
    wanted = list(names)
    with opened(path) as database:
        pieces = read_pieces(database, RUNTIME, "nameId", "start", "end", "globalTid")
        for name, start, end, thread in pieces:
            rows = np.flatnonzero((start != NULL) & (end >= start) & np.isin(name, wanted))
            if not len(rows):
                continue
            begins, threads = start[rows], thread[rows]
            nothing = [None] * len(rows)
            yield (
                [names[number] for number in name[rows].tolist()],
                begins.tolist(),
                (end[rows] - begins).tolist(),
                *(nothing,) * 5,
                [steps.at(*place) for place in zip(threads.tolist(), begins.tolist(), strict=True)],
                blanked(threads & ~PROCESS_BITS, threads == NULL),
                nothing,
            )


class _Steps:
    """Finds the measured step of a moment, by the ranges of a process that name steps."""

    def __init__(self, ranges: RangeTable) -> None:
        self.of: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        steps = {
            name: label.step for name, label in enumerate(ranges.labels) if label.step is not None
        }
        rows, spans = np.flatnonzero(np.isin(ranges.name, list(steps))), ranges.spans
        columns = (spans.process, spans.start, spans.end, ranges.name)
        for process, start, end, name in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            self.of[process].append((start, end, steps[name]))
        for known in self.of.values():
            known.sort()

    def at(self, thread: int, moment: int) -> int | None:
        """Of a thread as nsys numbers it, its process included; None outside of all steps."""
        known = self.of.get(thread & PROCESS_BITS, [])
        place = bisect_right(known, (moment, NEVER, 0)) - 1
        return known[place][2] if place >= 0 and moment < known[place][1] else None


def _rank(call: ApiCall) -> tuple[int, str]:
    return -(call.total_ns or 0), call.name


def _of_ranges(ranges: RangeTable) -> Iterator[ApiCall]:
    """Ranges by domain, name and style, and once more those of libraries that annotate their own
    calls. A range that never ended lasts until the last NVTX event, as ``nsys stats`` takes it."""
    chosen = np.flatnonzero(ranges.kind != MARK)
    if not len(chosen):
        return
    start, end = ranges.spans.start[chosen], ranges.spans.end[chosen]
    every_end = ranges.spans.end[ranges.spans.end != NEVER]
    until = max(int(ranges.spans.start.max()), int(every_end.max(initial=-NEVER)))
    length = np.where(end == NEVER, until, end) - start
    group, keys = np.zeros(len(chosen), np.int64), [ranges.name[chosen], ranges.kind[chosen]]
    domain, process = ranges.domain[chosen], ranges.spans.process[chosen]
    for key in (*keys, domain, process) if domain.any() else keys:
        values, number = np.unique(key, return_inverse=True)
        _, group = np.unique(group * len(values) + number, return_inverse=True)
    _, rows = np.unique(group, return_index=True)
    sums: dict[tuple[str | None, str, int], Sum] = {}
    for row, summed in zip(rows.tolist(), sum_groups(group, length), strict=True):
        number = int(domain[row])
        of = ranges.domains.get((int(process[row]), number), "") if number else None
        place = of, ranges.names[int(ranges.name[chosen[row]])], int(ranges.kind[chosen[row]])
        sums[place] = sums[place].plus(summed) if place in sums else summed
    found = [
        ApiCall("nvtx", f"{of}:{name}" if of else name, *some)
        for (of, name, _), some in sums.items()
    ]
    libraries = [
        ApiCall(_library(*place), place[1], *some)
        for place, some in sums.items()
        if _library(*place)
    ]
    yield from sorted(found, key=_rank)
    yield from sorted(libraries, key=lambda call: (call.domain, *_rank(call)))


def _library(domain: str | None, name: str, _: int) -> str:
    """The domain of calls that a range belongs to; empty for other ranges. NCCL's own domain may
    have no name."""
    if domain is None:
        return ""
    return "nccl" if not domain and _OF_NCCL.match(name) else NVTX_LIBRARIES.get(domain.lower(), "")
