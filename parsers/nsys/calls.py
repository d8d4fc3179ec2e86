"""Sums of calls in an nsys export, as ``nsys stats`` has them (cuda_api_sum, osrt_sum, nvtx_sum,
mpi_event_sum, ...)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfctl.parsers.attribution import NEVER
from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.nsys.ranges import MARK, PROCESS_BITS, RangeTable, blanked
from perfctl.parsers.nsys.tables import OSRT, RUNTIME, STRINGS, SYNC, Strings, opened
from perfctl.records.bulk import Columns
from perfctl.records.report import WAITS, ApiCall, OpCall

if TYPE_CHECKING:
    import numpy as np

    from perfctl.parsers.attribution import Flags, Integers
    from perfctl.parsers.common.sqlite_pages import Column
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
    """Yield the sum of each group: ``group`` is the number of each call's, from 0. ``known``: where
    it is known how long the call took (None: everywhere)."""
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


class Sums(dict[int | None, Sum]):
    """Calls by number of their name; None is the number of those without one."""

    def add(self, name: Column, length: Integers, known: Flags | None) -> None:
        """Add some calls: numbers of their names, how long each took, and where that is known."""
        numbers, group = np.unique(name.or_else(-1), return_inverse=True)
        for number, found in zip(numbers.tolist(), sum_groups(group, length, known), strict=True):
            self.add_sum(None if number == -1 else number, found)

    def add_sum(self, number: int | None, found: Sum) -> None:
        """Add calls that are summed already."""
        self[number] = self[number].plus(found) if number in self else found


def api_calls(database: Database, cuda: Sums, ranges: RangeTable) -> list[ApiCall]:
    """All domains; in each, what took longest first, as ``nsys stats`` prints them."""
    strings = Strings(database, NO_NAME)
    found = [*_named("cuda", cuda, strings)]
    if database.has(OSRT, "start", "end", "nameId"):
        found += _named("osrt", _sums(database, OSRT, "nameId", "eventClass", OSRT_CALL), strings)
    found += _of_ranges(ranges)
    for table, domain in OF_LIBRARIES.items():
        found += _named(domain, _sums(database, table, "nameId"), strings)
    mpi = Sums()
    for table in OF_MPI:
        name = "nameId" if database.has(table, "nameId") else "textId"
        for number, found_here in _sums(database, table, name).items():
            mpi.add_sum(number, found_here)
    found += _named("mpi", mpi, strings)
    return [*found, *_synchronisation(database)]


def _sums(
    database: Database, table: str, name: str, kind: str | None = None, only: int = 0
) -> Sums:
    """Of a table of calls; where it has the column ``kind``, of the rows in which that
    is ``only``."""
    sums = Sums()
    names = (name, "start", "end", *([kind] if kind and database.has(table, kind) else []))
    for number, start, end, *kinds in database.numbers(table, *names):
        known = end.where_known() & start.where_known()
        length = (end.values - start.values) * known
        if kinds:
            rows = (kinds[0].values == only).nonzero()[0]
            number = number._replace(values=number.or_else(-1)[rows], known=None)
            length, known = length[rows], known[rows]
        sums.add(number, length, known)
    return sums


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
    columns = ("nameId", "start", "end", "globalTid")
    with opened(path) as database:
        for name, start, end, thread in database.numbers(RUNTIME, *columns):
            known = start.where_known() & end.where_known() & (end.values >= start.values)
            rows = np.flatnonzero(known & np.isin(name.or_else(-1), wanted))
            if not len(rows):
                continue
            begins, threads = start.values[rows], thread.or_else(-1)[rows]
            nothing = [None] * len(rows)
            yield (
                [names[number] for number in name.values[rows].tolist()],
                begins.tolist(),
                (end.values[rows] - begins).tolist(),
                *(nothing,) * 5,
                [steps.at(*place) for place in zip(threads.tolist(), begins.tolist(), strict=True)],
                blanked(threads & ~PROCESS_BITS, threads == -1),
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


def _named(domain: str, sums: Sums, strings: Strings) -> list[ApiCall]:
    """Longest first."""
    found = []
    for number, of in sums.items():
        name = strings[number] or NO_NAME
        if domain == "cuda":
            name = _VERSION.sub("", name)
        found.append(ApiCall(domain, name, of.calls, of.total, of.shortest, of.longest))
    return sorted(found, key=_rank)


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


def _synchronisation(database: Database) -> list[ApiCall]:
    """How long the host, or a stream, waited for the GPU, by kind of waiting."""
    labels = {
        number: str(label).lower()
        for number, label in database.rows("ENUM_CUPTI_SYNC_TYPE", "id", "label")
    }
    sums = _sums(database, SYNC, "syncType")
    calls = [
        ApiCall("sync", labels.get(number) or SYNCS.get(number or 0) or f"type {number}", *some)
        for number, some in sums.items()
    ]
    return sorted(calls, key=_rank)
