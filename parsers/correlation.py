"""Match kernels and copies with their launch calls, by process and correlation id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfctl.parsers.attribution import NOBODY, SLICE

if TYPE_CHECKING:
    from perfctl.parsers.attribution import Flags, Integers

_SPARSE = 8
"""Ids are looked up in a table while it has at most this many places for each of them."""


class Calls:
    """Launch calls, one per element, looked up by process and correlation id."""

    def __init__(self, process: Integers, correlation: Integers) -> None:
        """Both must match: every process counts its correlation ids from 1."""
        import numpy as np

        self._of: dict[int, tuple[Integers | None, _Ids]] = {}
        if not len(process):
            return
        if process.min() == process.max():
            self._of[int(process[0])] = None, _Ids(correlation)
            return
        for value in np.unique(process).tolist():
            calls = np.flatnonzero(process == value)
            self._of[value] = calls, _Ids(correlation[calls])

    def find(self, process: Integers, correlation: Integers) -> Integers:
        """Index of the call with the same process and correlation id, the first of several; NOBODY where there is none."""
        import numpy as np

        found = np.full(len(process), NOBODY)
        alone = len(process) > 0 and process.min() == process.max()
        for value in process[:1].tolist() if alone else np.unique(process).tolist():
            if value not in self._of:
                continue
            calls, ids = self._of[value]
            rows = slice(None) if alone else np.flatnonzero(process == value)
            place = ids.first_equal(correlation[rows])
            found[rows] = place if calls is None else np.append(calls, NOBODY)[place]
        return found


class _Ids:
    """Ids of the calls of one process (at least one)."""

    def __init__(self, ids: Integers) -> None:
        import numpy as np

        self._low, self._span = ids.min(), int(ids.max()) - int(ids.min()) + 1
        self._table = self._order = None
        number = np.int32 if len(ids) < 1 << 31 else np.int64
        if self._span <= _SPARSE * len(
            ids
        ):  # dense ids, as usual: one table, filled backwards so that the first of equal ids wins
            self._table = np.full(self._span + 1, NOBODY, number)
            for first in reversed(
                range(0, len(ids), SLICE)
            ):  # in pieces: memory of large arrays is allocated anew each time
                piece = ids[first : first + SLICE]
                self._table[piece[::-1] - self._low] = np.arange(first, first + len(piece), dtype=number)[::-1]
        else:
            self._order = np.argsort(ids, kind="stable")
            self._sorted = ids[self._order]

    def first_equal(self, wanted: Integers) -> Integers:
        """Index of the first id that equals each of ``wanted``; NOBODY where none does."""
        import numpy as np

        if self._table is not None:
            place = wanted - self._low
            return np.asarray(self._table[np.where((place >= 0) & (place < self._span), place, self._span)])
        assert self._order is not None
        at = np.searchsorted(self._sorted, wanted)
        at[at == len(self._sorted)] = 0
        return np.where(self._sorted[at] == wanted, self._order[at], NOBODY)


class Wanted:
    """Correlation ids of kernels and copies, to skip calls that launched none of them."""

    def __init__(self, ids: Sequence[Integers]) -> None:
        import numpy as np

        held = [some for some in ids if len(some)]
        self._low = min((some.min() for some in held), default=np.int64(0))
        self._span = int(max((some.max() for some in held), default=-1)) - int(self._low) + 1
        self._table = self._sorted = None
        if self._span <= _SPARSE * sum(map(len, held)):
            self._table = np.zeros(self._span + 1, bool)
            for some in held:
                self._table[some - self._low] = True
        else:
            self._sorted = np.unique(np.concatenate(held))

    def among(self, ids: Integers) -> Flags:
        """Return a mask of the ids that are wanted."""
        import numpy as np

        if self._table is not None:
            place = ids - self._low
            return self._table[np.where((place >= 0) & (place < self._span), place, self._span)]
        assert self._sorted is not None
        at = np.searchsorted(self._sorted, ids)
        at[at == len(self._sorted)] = 0
        return np.asarray(self._sorted[at] == ids)
