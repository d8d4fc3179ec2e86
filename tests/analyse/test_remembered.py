"""Results that are kept by the identity of what they were worked out of."""

from __future__ import annotations

from perfctl.orchestrator.analyse.remembered import remembered


def test_the_same_record_is_worked_out_once_and_an_equal_one_on_its_own() -> None:
    asked: list[list[int]] = []

    @remembered(2)
    def total(numbers: list[int]) -> int:
        asked.append(numbers)
        return sum(numbers)

    first, equal = [1, 2], [1, 2]
    assert [total(first), total(first), total(equal)] == [3, 3, 3]
    assert len(asked) == 2
    assert asked[1] is equal


def test_only_the_last_ones_are_kept() -> None:
    asked: list[int] = []

    @remembered(1)
    def size(numbers: list[int]) -> int:
        asked.append(len(numbers))
        return len(numbers)

    one, two = [1], [1, 2]
    assert [size(one), size(two), size(one)] == [1, 2, 1]
    assert asked == [1, 2, 1]
