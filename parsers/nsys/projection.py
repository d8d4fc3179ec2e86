"""GPU time of ranges: what the calls inside a range launched took on the GPU, as ``nsys stats`` projects ranges
(nvtx_gpu_proj_sum). A range has an operation when its launch call lies inside the range on the range's own thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfctl.parsers.attribution import NOBODY, Nest, Spans
from perfctl.parsers.nsys.ranges import MARK, PUSH_POP, RangeTable, blanked

if TYPE_CHECKING:
    import numpy.typing as npt

    from perfctl.parsers.attribution import Integers

LAST, FIRST = -(2**63), 2**63 - 1
"""Start values of a maximum and a minimum."""


class GpuTime:
    """Sums and extremes of the GPU operations of every range; ``add`` all of them, then ``times``."""

    def __init__(self, ranges: RangeTable) -> None:
        import numpy as np

        count = len(ranges.kind)
        self._ranges = ranges
        self._sum = np.zeros(count + 1, np.int64)  # the last of each is for operations outside of every range
        self._first = np.full(count + 1, FIRST)
        self._last = np.full(count + 1, LAST)
        self._parent, _ = ranges.attribution.tree()
        on_thread = ((ranges.kind == PUSH_POP) | ranges.on_one_thread) & (ranges.spans.thread != NOBODY)
        self._nest = None if self._is_tree(on_thread & (ranges.kind != MARK)) else self._nest_of(on_thread)

    @property
    def keeps_calls(self) -> bool:
        """Whether ``add`` needs the spans of the calls: some ranges cross, so no tree says which ones are around a call."""
        return self._nest is not None

    def _is_tree(self, on_thread: npt.NDArray[Any]) -> bool:
        """Whether these ranges are push/pop ranges alone, and of two on one thread one is inside the other or they share
        no moment."""
        import numpy as np

        chosen = np.flatnonzero(on_thread)
        if (self._ranges.kind[chosen] != PUSH_POP).any():
            return False
        spans = self._ranges.spans
        chosen = chosen[np.lexsort((spans.start[chosen], self._parent[chosen], spans.thread[chosen]))]
        before, after = chosen[:-1], chosen[1:]
        siblings = (self._parent[before] == self._parent[after]) & (spans.thread[before] == spans.thread[after])
        return not (siblings & (spans.end[before] > spans.start[after])).any()

    def _nest_of(self, on_thread: npt.NDArray[Any]) -> tuple[Nest, Integers]:
        import numpy as np

        chosen = np.flatnonzero(on_thread)
        spans = self._ranges.spans.take(chosen)
        return Nest(spans.thread, spans.start, spans.end), np.append(chosen, NOBODY)

    def add(
        self, innermost: npt.NDArray[Any], call: Integers, calls: Spans | None, start: Integers, length: Integers
    ) -> None:
        """Operations: the innermost range around each, the number of its launch call, when it began and how long it took."""
        if (length < 0).any():  # of these nobody knows when they ran
            timed = length >= 0
            innermost, call, start, length = innermost[timed], call[timed], start[timed], length[timed]
        if self._nest is None or calls is None:
            self._add(innermost, start, length)
            return
        nest, numbers = self._nest
        spans = calls.take(call)
        for found in nest.around(nest.places(spans.thread, spans.start), spans.end):
            self._add(numbers[found], start, length)

    def _add(self, of_range: npt.NDArray[Any], start: Integers, length: Integers) -> None:
        import numpy as np

        np.add.at(self._sum, of_range, length)
        np.minimum.at(self._first, of_range, start)
        np.maximum.at(self._last, of_range, start + length)

    def times(self, is_known: bool) -> tuple[list[int | None], list[int | None]]:
        """(time of its operations added up, from the first start to the last end) of every range. Call it once, last."""
        import numpy as np

        count = len(self._ranges.kind)
        if not is_known:
            return [None] * count, [None] * count
        if self._nest is None:
            self._climb()
        none = self._last[:-1] == LAST
        known = (self._ranges.kind == PUSH_POP) | self._ranges.on_one_thread
        known &= self._ranges.spans.thread != NOBODY
        span = np.where(none, 0, self._last[:-1] - np.where(none, 0, self._first[:-1]))
        return blanked(self._sum[:-1], ~known), blanked(span, none | ~known)

    def _climb(self) -> None:
        """Give each range's operations to the ranges around it, the deepest first."""
        import numpy as np

        _, depth = self._ranges.attribution.tree()
        for level in range(int(depth.max(initial=0)), 0, -1):
            inner = np.flatnonzero(depth == level)
            outer = self._parent[inner]
            np.add.at(self._sum, outer, self._sum[inner])
            np.minimum.at(self._first, outer, self._first[inner])
            np.maximum.at(self._last, outer, self._last[inner])
