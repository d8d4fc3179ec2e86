"""What the sums of nvprof say twice: each row's time, calls and average, its least, average and
largest time, and its share of its table; of unified memory, the number of transfers, their average
and whole size. Where these contradict each other the file was damaged, edited or cut; its rows are
read as they are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from perfctl.parsers.text.doubts import contradictions, implied_whole, is_mean
from perfctl.records.report import Diagnostic

_LAST_DIGITS = 1.01
"""Of a printed figure: by how many of its last digits it may be off."""
_WHOLE = 100.0
_SHARE = re.compile(r"\d{1,2}(?:\.\d{1,9})?|100(?:\.0{1,9})?")
_TIME = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ns|us|ms|s)")
_WHOLE_NS = {"ns": 0, "us": 3}
"""Unit -> decimals that are whole nanoseconds."""
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?([KMGT]?)B")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
Time = Callable[[str, str], int | None]


class Sums:
    """Rows of the tables of sums, by the table they are in."""

    def __init__(self, time_ns: Time) -> None:
        """``time_ns``: a cell and the unit of its column in nanoseconds."""
        self._time_ns = time_ns
        self._wrong: list[str] = []
        self._shares: defaultdict[tuple[int, str], list[tuple[float, float, float, float]]] = (
            defaultdict(list)
        )
        self._unknown: set[tuple[int, str]] = set()

    def add(
        self, table: int, group: str, cells: Mapping[str, str], units: Mapping[str, str]
    ) -> None:
        """One row of the ``table`` that began at that line; shares are of the rows of
        its ``group``."""
        name = f"{group}: {cells.get('Name', '').strip()[:80]}"
        time, average, least, most = (
            self._figure(cells, units, key) for key in ("Time", "Avg", "Min", "Max")
        )
        calls = cells.get("Calls", "").strip()
        stated = {
            "Time": time,
            "Calls": calls.isdecimal() and len(calls) < 16,
            "Avg": average,
            "Min": least,
            "Max": most,
            "Time(%)": _SHARE.fullmatch(
                share := cells.get("Time(%)", "").strip().removesuffix("%")
            ),
        }
        self._wrong += [
            f"{name}: {key} states no number" for key, found in stated.items() if not found
        ]
        self._wrong += _unlikely(name, cells, ("Time", "Avg", "Min", "Max"))
        if time and average and calls.isdecimal() and len(calls) < 16:
            slack = time[1] + average[1] * int(calls)
            if int(calls) == 1 and units.get("Time") == units.get("Avg"):
                slack = 0.0  # both are printed from the same number
            if abs(time[0] - average[0] * int(calls)) > slack:
                self._wrong.append(
                    f"{name}: {calls} calls of {cells['Avg'].strip()} each, but "
                    f"{cells['Time'].strip()} in all"
                )
        for low, one, high, two in (("Min", least, "Avg", average), ("Avg", average, "Max", most)):
            if one and two and one[0] - two[0] > one[1] + two[1]:
                self._wrong.append(
                    f"{name}: {low} {cells[low].strip()} is more than {high} {cells[high].strip()}"
                )
        if (
            average
            and least
            and most
            and calls.isdecimal()
            and int(calls[:16]) > 0
            and least[0] <= average[0] <= most[0]
        ):
            off = average[1] + least[1] + most[1]
            if not is_mean(int(calls[:16]), least[0], average[0], most[0], off):
                shown = f"{cells['Min'].strip()} to {cells['Max'].strip()}"
                self._wrong.append(
                    f"{name}: {calls[:16]} calls of {shown} do not have the mean "
                    f"{cells['Avg'].strip()}"
                )
        if time and stated["Time(%)"]:
            self._shares[table, group].append(
                (float(share), time[0], 10.0 ** -len(share.partition(".")[2]), time[1])
            )
        else:
            self._unknown.add((table, group))

    def add_unified(self, device: str, cells: Mapping[str, str], units: Mapping[str, str]) -> None:
        """One row of unified memory; rows of page faults have no sizes."""
        name = f"{device}: {cells.get('Name', '').strip()[:80]}"
        count = cells.get("Count", "").strip()
        is_count = count.isdecimal() and len(count) < 16
        time = cells.get("Total Time", "").strip(" -") == "" or self._figure(
            cells, units, "Total Time"
        )
        self._wrong += [
            f"{name}: {key} states no number"
            for key, found in (("Count", is_count), ("Total Time", time))
            if not found
        ]
        self._wrong += _unlikely(name, cells, ("Total Time",))
        keys = ("Min Size", "Avg Size", "Max Size", "Total Size")
        printed = {key: cells.get(key, "").strip() for key in keys}
        if all(text in ("", "-") for text in printed.values()):
            return
        sizes = {
            key: _SIZE.fullmatch(text + ("" if text.endswith("B") else units.get(key, "")))
            for key, text in printed.items()
        }
        self._wrong += [
            f"{name}: {key} states no number" for key, size in sizes.items() if not size
        ]
        if not is_count or not all(sizes.values()):
            return
        if not any(
            _fit([size for size in sizes.values() if size], int(count), base)
            for base in (1024, 1000)
        ):
            stated = ", ".join(f"{key} {text}" for key, text in printed.items())
            self._wrong.append(f"{name}: {count} transfers do not have these sizes: {stated}")

    def _figure(
        self, cells: Mapping[str, str], units: Mapping[str, str], key: str
    ) -> tuple[float, float] | None:
        """(nanoseconds, by how much they may be off); None where it is no time, or a
        negative one."""
        text, unit = cells.get(key, ""), units.get(key, "")
        found = self._time_ns(text, unit)
        if found is None or found < 0:
            return None
        decimals = re.search(r"\.(\d+)", text)
        word = re.sub(r"[^A-Za-z]", "", text) or unit
        digit = float(self._time_ns(f"1{word}", "") or 1) * 10.0 ** -len(
            decimals[1] if decimals else ""
        )
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
                yield (
                    f"{group}: its shares add up to {whole:.6g} %, not 100 %: rows are missing or "
                    "stand twice"
                )
            elif least > every + slack * len(rows) or most < every - slack * len(rows):
                yield f"{group}: its shares are not those of its times"


def _unlikely(name: str, cells: Mapping[str, str], keys: Sequence[str]) -> Iterator[str]:
    """A cell with a unit of its own has the one in which its number is from 1 to 1,000, as nvprof
    chooses it."""
    for key in keys:
        found = _TIME.fullmatch(text := cells.get(key, "").strip())
        if found and (
            (float(found[1]) > 1000 and found[2] != "s")
            or (0 < float(found[1]) < 1 and found[2] != "ns")
        ):
            yield f"{name}: {key} is {text}, which nvprof would print in another unit"
        elif (
            found
            and key != "Avg"
            and found[2] in _WHOLE_NS
            and found[1].partition(".")[2][_WHOLE_NS[found[2]] :].strip("0")
        ):
            yield f"{name}: {key} is {text}, but nvprof's times are whole nanoseconds"


def _fit(sizes: Sequence[re.Match[str]], count: int, base: int) -> bool:
    """Are least, average, largest and whole size (in this order) those of so many transfers, if a
    KB has ``base`` bytes?"""
    (low, low_off), (mean, mean_off), (high, high_off), (whole, whole_off) = (
        (
            float(f"{size[1]}.{size[2] or 0}") * (unit := float(base) ** _POWERS[size[3]]),
            _LAST_DIGITS * unit * 10.0 ** -len(size[2] or ""),
        )
        for size in sizes
    )
    in_order = low - mean <= low_off + mean_off and mean - high <= mean_off + high_off
    return in_order and abs(whole - mean * count) <= whole_off + mean_off * count
