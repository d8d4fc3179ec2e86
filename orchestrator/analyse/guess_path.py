"""The best way through the items of a step, again and again, for a sequence that fits each item more or less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]

SKIP = 1.5
"""Lost for each item that is passed over."""
AGAIN = 0.75
"""Lost when an item takes one more element."""
LATE = 0.5
"""Lost for each item that the very first element is past, up to MOST."""
MOST = 3.0
LEAVE = 2.0
"""Lost when an element is given to no item."""


def viterbi(fits: Sequence[Sequence[float]]) -> tuple[float, list[int | None]]:
    """(score, item of each element or None): items come in order, and after the last the first again.

    ``fits[element][item]`` is gained when they are put together. The path may begin and end anywhere.
    """
    import numpy as np

    count = len(fits[0])
    place = np.arange(count)
    rows = {id(row): np.asarray(row, float) for row in fits}
    score = np.zeros(count)  # of the first element: set below
    """Best score of all paths whose last item is this one."""
    came = np.empty((len(fits), count), np.int32)
    left = np.empty((len(fits), count), bool)
    for number, row in enumerate(fits):
        gain = rows[id(row)]
        from_before, before = _further(score, place)
        # From any item over the end of the step to an item: all those between are passed over.
        ends = score + SKIP * place
        last = int(ends.argmax())
        over = ends[last] - SKIP * (count - 1 + place)
        options = np.stack([from_before, score - AGAIN, over])
        if not number:
            options[:] = -np.minimum(LATE * place, MOST)
        choice = options.argmax(axis=0)
        taken = options[choice, place] + gain
        stay = score - LEAVE
        left[number] = stay > taken
        came[number] = np.where(left[number], place, np.stack([before, place, np.full(count, last)])[choice, place])
        score = np.where(left[number], stay, taken)
    at = int(score.argmax())
    total = float(score[at])
    path: list[int | None] = []
    for number in range(len(fits) - 1, -1, -1):
        path.append(None if left[number, at] else at)
        at = int(came[number, at])
    return total, path[::-1]


def _further(score: Numbers, place: Places) -> tuple[Numbers, Places]:
    """For each item, the best score on coming from an earlier one, and from which."""
    import numpy as np

    lifted = score + SKIP * place
    best = np.maximum.accumulate(lifted)
    risen = np.concatenate([[True], lifted[1:] > best[:-1]])
    where = np.maximum.accumulate(np.where(risen, place, 0))
    value = np.concatenate([[-np.inf], best[:-1] - SKIP * (place[1:] - 1)])
    return value, np.concatenate([[0], where[:-1]])
