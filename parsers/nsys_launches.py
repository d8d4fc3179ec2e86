"""Finds the launch call of each kernel and copy of an nsys export, and the ranges around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfctl.parsers.attribution import NOBODY, SLICE, Spans
from perfctl.parsers.correlation import Calls, Wanted
from perfctl.parsers.nsys_ranges import PROCESS_BITS, RangeTable
from perfctl.parsers.nsys_tables import RUNTIME
from perfctl.parsers.text.sqlite import Database

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from perfctl.parsers.attribution import Integers


@dataclass(frozen=True, slots=True)
class Around:
    """For every row of a table of GPU work: indices of the ranges around its launch call, NOBODY where there is none.

    They are int32, half the width of other arrays: for millions of rows these are all that is kept.
    """

    innermost: npt.NDArray[np.int32]
    layer: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]

    def at(self, rows: Integers) -> Around:
        """Return the entries of these rows; NOBODY stays NOBODY."""
        if not len(self.innermost):
            nobody = self.innermost.dtype.type(NOBODY).repeat(len(rows))
            return Around(nobody, nobody, nobody)
        known = rows >= 0

        def some(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
            picked = values[rows]
            picked[~known] = NOBODY
            return picked

        return Around(some(self.innermost), some(self.layer), some(self.step))


@dataclass(frozen=True, slots=True)
class Launched:
    """Launches of one table of GPU work."""

    around: Around
    unlaunched: int
    """Rows that no launch call in the report belongs to."""


def attribute(database: Database, tables: Sequence[str], ranges: RangeTable) -> dict[str, Launched]:
    """Of each table, in the order of its rows. Calls that launched none of it are passed over."""
    work = {table: _work(database, table) for table in tables}
    calls = _calls(database, Wanted([correlation for _, correlation in work.values()]), ranges)
    return {table: _launched(*columns, calls) for table, columns in work.items()}


def _work(database: Database, table: str) -> tuple[Integers, Integers]:
    """(process, correlation id) of its rows; NOBODY where it is not said."""
    process, correlation = (
        f"coalesce({database.column(table, name)}, {NOBODY})" for name in ("globalPid", "correlationId")
    )
    pieces = list(database.pieces(table, process, correlation, few=(process,)))
    return _same([piece[0] for piece in pieces]), _joined([piece[1] for piece in pieces])


@dataclass(frozen=True, slots=True)
class _Known:
    """The calls that launched something."""

    calls: Calls
    around: Around
    only: int | None
    """The process, where a single one made all calls."""


def _calls(database: Database, wanted: Wanted, ranges: RangeTable) -> _Known:
    processes, correlations, found = [], [], []
    callers: set[int] = set()
    for correlation, spans in _spans(database):
        callers.update(_extremes(spans.process))
        chosen = wanted.among(correlation).nonzero()[0]
        in_process = ranges.attribution.of_calls(spans.take(chosen), phases=False)
        processes.append(spans.process[chosen])
        correlations.append(correlation[chosen])
        found.append(_narrow([in_process.innermost, in_process.layer, in_process.step]))
    only = callers.pop() if len(callers) == 1 else None
    return _Known(Calls(_same(processes), _joined(correlations)), _together(found), only)


def _spans(database: Database) -> Iterator[tuple[Integers, Spans]]:
    """(correlation ids, spans) of all CUDA API calls, piece by piece; nothing where they were not traced."""
    if not database.has(RUNTIME, "globalTid", "correlationId", "start"):
        return
    length = f"coalesce({database.column(RUNTIME, 'end')} - start, 0)"
    has_values = "correlationId IS NOT NULL AND globalTid IS NOT NULL"
    columns = ("correlationId", "globalTid", "start", length)
    for correlation, thread, start, duration in database.pieces(
        RUNTIME, *columns, where=has_values, few=("globalTid",)
    ):
        yield correlation, Spans(thread & PROCESS_BITS, thread, start, start + duration)


def _launched(process: Integers, correlation: Integers, known: _Known) -> Launched:
    import numpy as np

    found, unlaunched = [], 0
    for first in range(0, len(correlation), SLICE):
        part = slice(first, first + SLICE)
        of_process = process[part]
        if known.only is not None:  # then it can only be that one
            of_process = np.where(of_process == NOBODY, known.only, of_process)
        call = known.calls.find(of_process, correlation[part])
        unlaunched += int((call == NOBODY).sum())
        found.append(known.around.at(call))
    return Launched(_together(found), unlaunched)


def _narrow(columns: Sequence[Integers]) -> Around:
    import numpy as np

    return Around(*(column.astype(np.int32) for column in columns))


def _together(found: Sequence[Around]) -> Around:
    import numpy as np

    if not found:
        return Around(*[np.empty(0, np.int32)] * 3)
    if len(found) == 1:
        return found[0]
    return Around(
        np.concatenate([one.innermost for one in found]),
        np.concatenate([one.layer for one in found]),
        np.concatenate([one.step for one in found]),
    )


def _joined(pieces: list[Integers]) -> Integers:
    import numpy as np

    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _same(pieces: list[Integers]) -> Integers:
    """Join the pieces; where all numbers are equal, without memory for each."""
    import numpy as np

    values = set().union(*map(_extremes, pieces))
    if len(values) == 1:
        return np.broadcast_to(np.int64(values.pop()), sum(map(len, pieces)))
    return _joined(pieces)


def _extremes(values: Integers) -> set[int]:
    return {int(values.min()), int(values.max())} if len(values) else set()
