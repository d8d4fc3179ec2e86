"""What rocprofv3's reports say more than once: numbers of launches, names beside numbers of
kernels, sums beside means, times in two units. Where these disagree the report was damaged, edited
or filtered; its rows are read as they are."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from sys import float_info

from perfctl.parsers.rocm.records import Cells, exact, whole
from perfctl.parsers.text.doubts import contradictions, is_mean, numbering
from perfctl.records.report import Diagnostic

_FILTERED = "left out by a filter of the profiler, or lost"
_ALL, _LAST_DIGIT, _FLOATS = 100.0, 1.01, 1e-9
"""Percentages add up to the first; by how much of its last printed digit each may be off, and by
how much their sum, since they are worked out as floats, of which rocprofv3 prints all digits."""
_ROUNDED = 1.0
"""By how much a whole mean may be off, which is cut or rounded; one call has the sum as
its mean."""
_FLOAT_TIMES = 1e-12
"""By how much a sum of times may be off, as a share of it."""


class Repeats:
    """What a trace says more than once of its launches: numbers of kernels with their names, and
    times in order."""

    def __init__(self) -> None:
        self.dispatches: list[int] = []
        self._names: dict[str, str] = {}
        self._other_names: dict[str, str] = {}
        self._backwards = 0
        self._sets: dict[int, list[str]] = {}

    def launch(self, dispatch: str, number: str, name: str, begin: str, end: str) -> None:
        """One launch of the kernel with that number; texts as printed."""
        if (found := whole(dispatch)) is not None:
            self.dispatches.append(found)
        if number and self._names.setdefault(number, name) != name:
            self._other_names.setdefault(number, name)
        start, stop = whole(begin), whole(end)
        self._backwards += start is not None and stop is not None and stop < start

    def counter(self, launch: int, name: str) -> None:
        """A counter of a launch (its number from 0)."""
        try:
            self._sets[launch].append(name)
        except KeyError:
            self._sets[launch] = [name]

    def diagnostics(self, *, ordered: bool) -> Iterator[Diagnostic]:
        """``ordered``: the file has its launches in the order of their numbers, as files of
        counters do."""
        yield from numbering(
            "launches with the dispatch IDs", self.dispatches, why=_FILTERED, ordered=ordered
        )
        found = [
            f"kernel {number} is called {self._names[number][:80]}, and {other[:80]}"
            for number, other in self._other_names.items()
        ]
        if self._backwards:
            found.append(f"{self._backwards} launches end before they begin")
        yield from contradictions([*found, *self._uneven()])

    def _uneven(self) -> Iterator[str]:
        """Launches with other counters than most; rocprofv3 reads the same ones of each."""
        usual = Tally(tuple(names) for names in self._sets.values()).most_common(1)
        for launch, names in self._sets.items():
            if tuple(names) != usual[0][0] and usual[0][1] > 1:
                yield (
                    f"launch {launch} has {len(names)} values of counters, the others "
                    f"{len(usual[0][0])}, or in another order"
                )


def sums_disagree(
    name: str,
    calls: float | None,
    total: float | None,
    mean: float | None,
    low: float | None,
    high: float | None,
    *,
    all_digits: bool,
) -> Iterator[str]:
    """What to say of a row of sums (ns) whose figures do not agree; None: the file does not state
    it. ``all_digits``: the sum and the mean are printed as whole numbers, so only the mean
    is rounded."""
    if (
        calls is not None
        and total is not None
        and mean is not None
        and abs(calls * mean - total)
        > _ROUNDED * (calls - 1 if all_digits else calls) + (0.0 if all_digits else 1e-6 * total)
    ):
        yield f"{name[:80]}: {calls:,.0f} calls of {mean:,.1f} ns each, but {total:,.1f} ns in all"
    known = [value for value in (low, mean, high) if value is not None]
    if any(one > two + 1 for one, two in pairwise(known)):
        yield f"{name[:80]}: its least, mean and largest time are not in this order"
    if min(known, default=0.0) < 0 or (total or 0.0) < 0:
        yield f"{name[:80]}: a time is less than 0"
    elif (
        calls
        and calls > 0
        and low is not None
        and mean is not None
        and high is not None
        and low <= mean <= high
        and not is_mean(calls, low, mean, high, 2 * _ROUNDED)
    ):
        yield (
            f"{name[:80]}: {calls:,.0f} calls of {known[0]:,.0f} to {known[2]:,.0f} ns do not have "
            f"the mean {known[1]:,.1f}"
        )
    if calls is not None and calls <= 0:
        yield f"{name[:80]}: it was called {calls:,.0f} times"


def shares_disagree(shares: Sequence[str], totals: Sequence[float]) -> Iterator[str]:
    """The same of the percentages of a table as printed, which add up to 100, and its times. Each
    percentage says of which whole its row's time is a part, the more exactly the more digits
    it has."""
    known = [float(number) for share in shares if (number := exact(share)) is not None]
    if not any(totals) or any(share == "" or share.startswith("<") for share in shares):
        return
    if len(known) < len(shares):
        some = next(share for share in shares if exact(share) is None)
        yield (
            f"{len(shares) - len(known)} of {len(shares)} percentages are no numbers, as "
            f"'{some[:40]}'"
        )
        return
    off = [_last_digit(share) for share in shares]
    if min(known) < 0 or abs(sum(known) - _ALL) > sum(off) + _FLOATS:
        yield f"the percentages add up to {sum(known):.17g}: rows are missing or stand twice"
        return
    wholes = list(zip(known, totals, off, strict=True))
    least = max(_ALL * total / (share + half) for share, total, half in wholes if share + half)
    most = min(
        (_ALL * total / (share - half) for share, total, half in wholes if share > half),
        default=inf,
    )
    slack = _FLOAT_TIMES * sum(totals) + 1
    if not least - slack <= sum(totals) <= most + slack:
        yield "percentages are not those of the times"


def _last_digit(printed: str) -> float:
    """By how much a printed number may be off: "1.25e-07" by 1e-9, and as much as floats are."""
    digits, _, power = printed.lower().partition("e")
    value = abs(float(printed))
    at = min(int(power or 0), 0 if value < 1 else 2) - len(digits.partition(".")[2])
    return _LAST_DIGIT * 10.0**at + 4 * float_info.epsilon * value


def of_sums(
    rows: Sequence[Cells],
    name: str,
    calls: str,
    total: str,
    mean: str,
    share: str,
    low: str = "",
    high: str = "",
) -> tuple[Diagnostic, ...]:
    """One warning about a table of sums, given the names of its columns; rows that stand
    twice included."""
    found = list[str]()
    totals = list[float]()
    seen: Tally[tuple[str, ...]] = Tally(tuple(row.row) for row in rows)
    found += [
        f"{cells[0][:80]}: the row stands {times} times"
        for cells, times in seen.items()
        if times > 1
    ]
    for row in rows:
        count, whole_time, average, least, largest = (
            _number(row, column) for column in (calls, total, mean, low, high)
        )
        all_digits = row.text(total).isdecimal() and row.text(mean).isdecimal()
        found += sums_disagree(
            row.text(name), count, whole_time, average, least, largest, all_digits=all_digits
        )
        figures = [column for column in (calls, total, mean, low, high) if column in row.at]
        found += [
            f"{row.text(name)[:80]}: {column} is no number"
            for column in figures
            if exact(row.text(column)) is None
        ]
        totals.append(whole_time or 0.0)
    return contradictions([*found, *shares_disagree([row.text(share) for row in rows], totals)])


def _number(row: Cells, column: str) -> float | None:
    value = exact(row.text(column)) if column else None
    return None if value is None else float(value)
