"""Kernels find the call they came from by process and correlation id: densely counted ids and
scattered ones alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from perfctl.parsers import attribution
from perfctl.parsers.attribution import Calls, Ids

if TYPE_CHECKING:
    from perfctl.parsers.attribution import Integers

DENSE = [5, 6, 7, 6, 12]
SPARSE = [5, 6_000_000_000, -7_000, 6_000_000_000, 12]
"""The second id stands twice in both."""


def ids(*values: int) -> Integers:
    return np.array(values, np.int64)


def same(value: int, count: int) -> Integers:
    return np.full(count, value)


@pytest.mark.parametrize("known", [DENSE, SPARSE])
def test_the_first_of_several_calls_with_one_id_is_found(known: list[int]) -> None:
    calls = Calls(same(7, 5), ids(*known))
    around = [value + off for value in known for off in (-1, 1)]
    asked = [*known, *around, 2**62, -(2**62)]
    expected = [known.index(value) if value in known else -1 for value in asked]
    assert expected[:5] == [0, 1, 2, 1, 4]
    assert calls.find(same(7, len(asked)), ids(*asked)).tolist() == expected
    assert calls.find(same(8, len(asked)), ids(*asked)).tolist() == [-1] * len(asked), (
        "another process has none of them"
    )


@pytest.mark.parametrize("scale", [1, 1_000_000])
def test_each_process_counts_its_ids_anew(scale: int) -> None:
    process, correlation = ids(7, 9, 7, 9, 9), scale * ids(1, 1, 2, 3, 1)
    calls = Calls(process, correlation)
    asked = [
        (9, 1, 1),
        (7, 1, 0),
        (7, 3, -1),
        (9, 3, 3),
        (9, 2, -1),
        (7, 2, 2),
        (8, 1, -1),
        (-1, 1, -1),
    ]
    found = calls.find(ids(*(one[0] for one in asked)), scale * ids(*(one[1] for one in asked)))
    assert found.tolist() == [one[2] for one in asked]
    assert calls.find(ids(9, 9), scale * ids(3, 2)).tolist() == [3, -1]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_the_first_of_several_is_found_over_all_pieces(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "SLICE", size)
    calls = Calls(same(7, 7), ids(5, 6, 5, 8, 6, 5, 9))
    assert calls.find(same(7, 6), ids(9, 8, 7, 6, 5, 4)).tolist() == [6, 3, -1, 1, 0, -1]


@pytest.mark.parametrize("far", [15, 16, 17, 18, 100])
def test_two_calls_are_told_apart_however_far_their_ids_lie_apart(far: int) -> None:
    """Sixteen places for two ids is the largest table."""
    calls = Calls(same(7, 2), ids(far, 0))
    assert calls.find(same(7, 5), ids(0, far, far + 1, far - 1, -1)).tolist() == [1, 0, -1, -1, -1]
    assert (
        Ids(ids(far, 0)).first_equal(ids(0, far, far + 1, far - 1, -1)).tolist()
        == [1, 0] + [-1] * 3
    )


def test_without_calls_or_without_kernels_nothing_is_found() -> None:
    nothing = ids()
    assert Calls(nothing, nothing).find(ids(7, 8), ids(1, 1)).tolist() == [-1, -1]
    assert Calls(ids(7), ids(1)).find(nothing, nothing).tolist() == []


@pytest.mark.parametrize("known", [DENSE, SPARSE])
def test_ids_that_something_came_from_are_wanted_and_no_others(known: list[int]) -> None:
    wanted = Ids(ids(*known))
    asked = [*known, *(value + off for value in known for off in (-1, 1)), 2**62, -(2**62), 0]
    found = wanted.first_equal(ids(*asked)) >= 0
    assert found.tolist() == [value in known for value in asked]


def test_where_nothing_was_launched_no_call_is_wanted() -> None:
    assert Ids(ids()).first_equal(ids(0, 1, -1)).tolist() == [-1] * 3
