"""What a look at all kernels of an nsys export tells a store that copies them by SQL, so that it
need not look at each row again: which columns hold nothing that a count cannot be, and which names
there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perfctl.parsers.nsys.tables import KERNEL, STRINGS
from perfctl.parsers.text.sqlite import Database
from perfctl.records.possible import LONGEST_NS, MOST_OF_A_LAUNCH

if TYPE_CHECKING:
    from perfctl.parsers.attribution import Integers
    from perfctl.parsers.text.sqlite_pages import Column

NAMES = ("demangledName", "shortName")
COUNTS = {
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
    "cluster_x": "clusterX",
    "cluster_y": "clusterY",
    "cluster_z": "clusterZ",
}
"""Field of Kernel -> its column, of those that are never negative."""
MOST_NAMES = 1 << 20
"""Numbers of strings that are looked up in a table."""
FAR = 1 << 62
"""The difference of two times between -FAR and FAR fits into 64 bits."""


class KernelCheck:
    """Kernels while their columns are read: ``add`` all of them, then ask. Of rows that cannot be
    read as integers nothing is known, and then of no row."""

    def __init__(self, database: Database) -> None:
        import numpy as np

        self.columns = [
            column for column in (*NAMES, *COUNTS.values()) if database.has(KERNEL, column)
        ]
        """What ``add`` wants to see."""
        self._least = dict.fromkeys(self.columns, 0)
        self._shortest = 0
        self._has_names = set(NAMES) <= set(self.columns)
        last = database.ends(STRINGS)[1] if database.has(STRINGS, "id", "value") else None
        most = min(MOST_NAMES, last + 1 if isinstance(last, int) else 0)
        # one more than the short name's number; 0: not seen
        self._short = np.zeros(max(most, 0), np.int64)
        self.is_whole = True
        """Whether all of these columns were seen, and hold nothing but integers and NULL."""
        self.first: int | None = None
        """The earliest start and the latest end, ns; None without kernels, or where not all
        have both."""
        self.last: int | None = None
        self.backwards = 0
        """Kernels that end before they begin."""

    def add(self, columns: Sequence[Column], start: Column, end: Column, length: Integers) -> None:
        """Some rows: ``self.columns``, or none where they are not known; ``length``: negative where
        it is not known."""
        if start.known is None and end.known is None and len(length):
            lowest, highest = int(start.values.min()), int(end.values.max())
            self.first = lowest if self.first is None else min(self.first, lowest)
            self.last = highest if self.last is None else max(self.last, highest)
            self.backwards += int((length < 0).sum()) if length.min() < 0 else 0
        if len(columns) < len(self.columns):
            self.is_whole = False
        if not self.is_whole:
            return
        found = dict(zip(self.columns, columns, strict=True))
        for name, column in found.items():
            is_possible = name in NAMES or column.values.max() <= MOST_OF_A_LAUNCH
            self._least[name] = min(
                self._least[name], int(column.values.min()) if is_possible else -1
            )
        is_near = (
            min(start.values.min(), end.values.min()) > -FAR
            and max(start.values.max(), end.values.max()) < FAR
        )
        is_possible = is_near and length.max() <= LONGEST_NS
        self._shortest = min(self._shortest, int(length.min()) if is_possible else -1)
        self._has_names = self._has_names and self._add_names(*(found[name] for name in NAMES))

    def _add_names(self, names: Column, shorts: Column) -> bool:
        """Whether each name goes with one short name alone, so far."""
        has_gaps = names.known is not None or shorts.known is not None
        if (
            has_gaps
            or min(self._least[name] for name in NAMES) < 0
            or names.values.max() >= len(self._short)
        ):
            return False
        is_new = self._short[names.values] == 0
        self._short[names.values[is_new]] = shorts.values[is_new] + 1
        return bool((self._short[names.values] == shorts.values + 1).all())

    def never_negative(self) -> list[str]:
        """Fields of Kernel whose values are integers from 0 to what there can be in all rows,
        or NULL."""
        if not self.is_whole:
            return []
        found = [field for field, column in COUNTS.items() if self._least.get(column, -1) >= 0]
        return [*found, "duration_ns"] if self._shortest >= 0 else found

    def names(self) -> Mapping[int, int] | None:
        """Number of each name -> that of its short name; None where this is not known."""
        import numpy as np

        if not (self.is_whole and self._has_names):
            return None
        names = np.flatnonzero(self._short)
        return dict(zip(names.tolist(), (self._short[names] - 1).tolist(), strict=True))
