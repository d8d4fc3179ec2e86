"""Which launch call a kernel or copy came from: the one with its process and correlation id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfctl.parsers.attribution import NOBODY

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

    values = np.unique(process)
    if values.size == 1 and call_process.size and (call_process == values[0]).all():
        return _first_equal(call_correlation, correlation)
    found = np.full(len(process), NOBODY)
    for value in values:
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
        table[ids[::-1] - low] = np.arange(len(ids))[::-1]
        inside = (wanted >= low) & (wanted < low + span)
        return table[np.where(inside, wanted - low, span)]
    order = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids[order], wanted)
    at[at == len(ids)] = 0
    return np.where(ids[order[at]] == wanted, order[at], NOBODY)
