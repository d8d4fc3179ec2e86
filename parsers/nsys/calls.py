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
from perfctl.parsers.nsys.ranges import MARK, PROCESS_BITS, RangeTable, blanked
from perfctl.parsers.nsys.tables import OSRT, RUNTIME, STRINGS, SYNC, Strings, opened
from perfctl.parsers.text.sqlite import Database
from perfctl.records.bulk import Columns
from perfctl.records.report import WAITS, ApiCall, OpCall

if TYPE_CHECKING:
    from perfctl.parsers.attribution import Flags, Integers
    from perfctl.parsers.text.sqlite_pages import Column

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


class Sums:
    """Calls by number of their name; None is the number of those without one."""

    def __init__(self) -> None:
        self.of: dict[int | None, Sum] = {}

    def add(self, name: Column, length: Integers, known: Flags | None) -> None:
        """Some calls: numbers of their names, how long each took, and where that is known (None:
        everywhere)."""
        import numpy as np

        if not len(length):
            return
        numbers, which = np.unique(name.or_else(-1), return_inverse=True)
        calls = np.bincount(which, minlength=len(numbers))
        if known is not None and not known.all():
            which, length = which[known], length[known]
        total = np.zeros(len(numbers), np.int64)
        shortest, longest = np.full(len(numbers), NEVER), np.full(len(numbers), -1)
        np.add.at(total, which, length)
        np.minimum.at(shortest, which, length)
        np.maximum.at(longest, which, length)
        for number, count, together, low, high in zip(
            numbers.tolist(),
            calls.tolist(),
            total.tolist(),
            shortest.tolist(),
            longest.tolist(),
            strict=True,
        ):
            key = None if number == -1 else number
            found = Sum(count, together, *((None, None) if low == NEVER else (low, high)))
            self.of[key] = _added(self.of[key], found) if key in self.of else found


def _added(one: Sum, other: Sum) -> Sum:
    lows = [some.shortest for some in (one, other) if some.shortest is not None]
    highs = [some.longest for some in (one, other) if some.longest is not None]
    calls, total = one.calls + other.calls, one.total + other.total
    return Sum(calls, total, min(lows, default=None), max(highs, default=None))


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
        for number, more in _sums(
            database, table, "nameId" if database.has(table, "nameId") else "textId"
        ).of.items():
            mpi.of[number] = _added(mpi.of[number], more) if number in mpi.of else more
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
    import numpy as np

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
        import numpy as np

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
    for number, of in sums.of.items():
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
    import numpy as np

    chosen = np.flatnonzero(ranges.kind != MARK)
    if not len(chosen):
        return
    start, end = ranges.spans.start[chosen], ranges.spans.end[chosen]
    every_end = ranges.spans.end[ranges.spans.end != NEVER]
    until = max(int(ranges.spans.start.max()), int(every_end.max(initial=-NEVER)))
    length = np.where(end == NEVER, until, end) - start
    domain, process = ranges.domain[chosen], ranges.spans.process[chosen]
    keys = [ranges.name[chosen], ranges.kind[chosen], *([domain, process] if domain.any() else [])]
    order = np.lexsort(keys)
    sorted_keys = [key[order] for key in keys]
    changes = np.zeros(len(order), bool)
    changes[0] = True
    for key in sorted_keys:
        changes[1:] |= key[1:] != key[:-1]
    firsts = np.flatnonzero(changes)
    lengths = length[order]
    columns = (
        np.diff(np.append(firsts, len(order))),
        np.add.reduceat(lengths, firsts),
        np.minimum.reduceat(lengths, firsts),
        np.maximum.reduceat(lengths, firsts),
    )
    first_rows = order[firsts]
    sums: dict[tuple[str | None, str, int], Sum] = {}
    for row, *figures in zip(
        first_rows.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        number = int(domain[row])
        of = ranges.domains.get((int(process[row]), number), "") if number else None
        place = of, ranges.names[int(ranges.name[chosen[row]])], int(ranges.kind[chosen[row]])
        sums[place] = _added(sums[place], Sum(*figures)) if place in sums else Sum(*figures)
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
        for number, some in sums.of.items()
    ]
    return sorted(calls, key=_rank)
