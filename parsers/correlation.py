"""Which launch call a kernel or copy came from: the one with its process and correlation id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfctl.parsers.attribution import NOBODY, SLICE

if TYPE_CHECKING:
    from perfctl.parsers.attribution import Integers

_SPARSE = 8
"""Correlation ids are looked up in a table while it has at most this many places for each of them."""


def match_calls(
    process: Integers, correlation: Integers, call_process: Integers, call_correlation: Integers
) -> Integers:
    """Index of the call with the same process and correlation id, the first of several; NOBODY where there is none.

    Both must agree: correlation ids are counted anew in every process.
    """
    import numpy as np

    one = process[0] if process.size and process.min() == process.max() else None
    if one is not None and call_process.size and call_process.min() == call_process.max() == one:
        return _first_equal(call_correlation, correlation)
    found = np.full(len(process), NOBODY)
    for value in np.unique(process):
        mine, theirs = np.flatnonzero(process == value), np.flatnonzero(call_process == value)
        if theirs.size:
            found[mine] = np.append(theirs, NOBODY)[_first_equal(call_correlation[theirs], correlation[mine])]
    return found


def _first_equal(ids: Integers, wanted: Integers) -> Integers:
    """Index of the first of ``ids`` (not empty) that equals each of ``wanted``; NOBODY where none does."""
    import numpy as np

    low, span = ids.min(), int(ids.max()) - int(ids.min()) + 1
    if span <= _SPARSE * len(ids):  # counted up, as usual: a table of all of them, first ones written last
        table = np.full(span + 1, NOBODY)
        for first in reversed(range(0, len(ids), SLICE)):  # piece by piece: large arrays are fetched anew each time
            piece = ids[first : first + SLICE]
            table[piece[::-1] - low] = np.arange(first, first + len(piece))[::-1]
        found = np.empty(len(wanted), np.int64)
        for first in range(0, len(wanted), SLICE):
            place = wanted[first : first + SLICE] - low
            inside = (place >= 0) & (place < span)
            found[first : first + SLICE] = table[np.where(inside, place, span)]
        return found
    order = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids[order], wanted)
    at[at == len(ids)] = 0
    return np.where(ids[order[at]] == wanted, order[at], NOBODY)
