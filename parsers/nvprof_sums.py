"""What the sums of nvprof say twice: each row's time, calls and average, its least, average and largest time, and its share
of its table. Where these contradict each other the file was damaged, edited or cut; its rows are read as they are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from perfctl.parsers.text.doubts import contradictions, implied_whole
from perfctl.records.report import Diagnostic

_LAST_DIGITS = 1.01
"""Of a printed figure: by how many of its last digits it may be off."""
_WHOLE = 100.0
Time = Callable[[str, str], int | None]


class Sums:
    """Rows of the tables of sums, by the table they are in."""

    def __init__(self, time_ns: Time) -> None:
        """``time_ns``: a cell and the unit of its column in nanoseconds."""
        self._time_ns = time_ns
        self._wrong: list[str] = []
        self._shares: defaultdict[tuple[int, str], list[tuple[float, float, float, float]]] = defaultdict(list)
        self._unknown: set[tuple[int, str]] = set()

    def add(self, table: int, group: str, cells: Mapping[str, str], units: Mapping[str, str]) -> None:
        """One row of the ``table`` that began at that line; shares are of the rows of its ``group``."""
        name = f"{group}: {cells.get('Name', '').strip()[:80]}"
        time, average, least, most = (self._figure(cells, units, key) for key in ("Time", "Avg", "Min", "Max"))
        calls = cells.get("Calls", "").strip()
        stated = {
            "Time": time,
            "Calls": calls.isdecimal() and len(calls) < 16,
            "Avg": average,
            "Min": least,
            "Max": most,
        }
        self._wrong += [f"{name}: {key} states no number" for key, found in stated.items() if not found]
        if time and average and calls.isdecimal() and len(calls) < 16:
            slack = time[1] + average[1] * int(calls)
            if abs(time[0] - average[0] * int(calls)) > slack:
                self._wrong.append(
                    f"{name}: {calls} calls of {cells['Avg'].strip()} each, but {cells['Time'].strip()} in all"
                )
        for low, one, high, two in (("Min", least, "Avg", average), ("Avg", average, "Max", most)):
            if one and two and one[0] - two[0] > one[1] + two[1]:
                self._wrong.append(f"{name}: {low} {cells[low].strip()} is more than {high} {cells[high].strip()}")
        share = cells.get("Time(%)", "").strip().removesuffix("%")
        if time and re.fullmatch(r"\d{1,3}(?:\.\d{1,9})?", share):
            self._shares[table, group].append((float(share), time[0], 10.0 ** -len(share.partition(".")[2]), time[1]))
        else:
            self._unknown.add((table, group))

    def _figure(self, cells: Mapping[str, str], units: Mapping[str, str], key: str) -> tuple[float, float] | None:
        """(nanoseconds, by how much they may be off)"""
        text, unit = cells.get(key, ""), units.get(key, "")
        found = self._time_ns(text, unit)
        if found is None:
            return None
        decimals = re.search(r"\.(\d+)", text)
        word = re.sub(r"[^A-Za-z]", "", text) or unit
        digit = float(self._time_ns(f"1{word}", "") or 1) * 10.0 ** -len(decimals[1] if decimals else "")
        return float(found), _LAST_DIGITS * max(digit, 1.0)

    def doubts(self) -> tuple[Diagnostic, ...]:
        """One warning about all that does not fit."""
        return contradictions([*self._wrong, *self._tables()])

    def _tables(self) -> Iterator[str]:
        for (table, group), rows in self._shares.items():
            if (table, group) in self._unknown:
                continue
            half = _LAST_DIGITS * max(digit for _, _, digit, _ in rows) / 2
            slack = max(off for *_, off in rows)
            whole, every = sum(share for share, *_ in rows), sum(time for _, time, *_ in rows)
            least, most = implied_whole(((share, time) for share, time, *_ in rows), half, slack)
            if abs(whole - _WHOLE) > half * (1 + len(rows)):
                yield f"{group}: its shares add up to {whole:.6g} %, not 100 %: rows are missing or stand twice"
            elif least > every + slack * len(rows) or most < every - slack * len(rows):
                yield f"{group}: its shares are not those of its times"
