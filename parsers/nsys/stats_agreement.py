"""What the tables of ``nsys stats`` say twice: each row's total, average, calls, least, median and
largest, and its share of the table. Where these contradict each other the file was damaged, edited
or cut; its rows are read as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import sqrt

from perfctl.parsers.nsys.stats_columns import COUNTS, NAMES, TEXTS
from perfctl.parsers.nsys.stats_rows import Cells
from perfctl.parsers.text.doubts import implied_whole, is_mean
from perfctl.parsers.text.numbers import DecimalStyle, Unit

_TOTALS = ("Total Time", "Total")
_ORDER = (("Min", "Med"), ("Med", "Max"), ("Min", "Avg"), ("Avg", "Max"), ("Min", "Max"))
_TIMES = ("Total Time", "Avg", "Med", "Min", "Max", "StdDev")
_OF_WHOLE_TABLE = 100.0
_SHARE_DECIMALS = 0.05
"""A share is printed with one decimal."""
_HALF, _WHOLE = 0.501, 1.01
_OF_FUNCTIONS = ("cuda_api_sum", "osrt_sum")
_BY_TOTAL = (*_OF_FUNCTIONS, "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "nvtx_sum")
"""Reports whose rows nsys sorts by their total, the largest first."""
_DEFAULT = (
    "nvtx_sum",
    "osrt_sum",
    "cuda_api_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "openmp_sum",
    "opengl_khr_range_sum",
    "opengl_khr_gpu_range_sum",
    "vulkan_marker_sum",
    "vulkan_gpu_marker_sum",
    "dx11_pix_sum",
    "dx12_gpu_marker_sum",
    "dx12_pix_sum",
    "wddm_queue_sum",
    "um_sum",
    "um_total_sum",
    "um_cpu_page_faults_sum",
    "openacc_sum",
    "syscall_sum",
)
"""What nsys 2023 and 2024 run, in this order, where no report is named."""
_SURELY_DEFAULT = 8
"""Reports that stand in the default order, from which on they were not named one by one."""
_OF_COPIES = ("cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum")
_OF_CUDA = re.compile(r"cu(?:da)?[A-Z]")
_CHANCE = 3
"""Calls from which two rows do not have the same total, mean, least, largest and deviation
by chance."""
FASTEST_GBPS = 20_000
"""Bytes a nanosecond that no memory moves: the fastest, of 2026, moves 8,000 GB/s."""
_HALF_SHARE = 0.0501
"""How far it is from the true one at most."""


def contradictions(report: str, read: Sequence[Cells]) -> Iterator[str]:
    """Yield one text for each figure of a table of sums that does not agree with the others of its
    row or table."""
    seen: set[tuple[str, ...]] = set()
    same: dict[tuple[str, ...], str] = {}
    figures = [label for label in (read[0].shape.at if read else ()) if label not in TEXTS]
    stated = [label for label in figures if any(row.text(label) for row in read)]
    units = (
        {
            read[0].shape.columns[at].unit
            for label, at in read[0].shape.at.items()
            if label in _TIMES
        }
        if read
        else set()
    )
    if len(units) > 1:
        yield f"{report}: its columns of times are in different units"
    for label in figures:
        places = {_decimals(row, label) for row in read if row.text(label)}
        if len(places) > 1:
            yield (
                f"{report}: figures in the column {label} have different numbers of decimals "
                f"({', '.join(map(str, sorted(places)))})"
            )
    totals, shares = list[float](), list[float]()
    for row in read:
        name = f"{report}: {row.text(*NAMES)[:80]}"
        cells = tuple(row.row)
        if not row.text(*NAMES) and not report.startswith("nvtx"):
            yield f"{report}: a row has no name"
        yield from _of_name(report, name, row.text(*NAMES))
        if cells in seen:
            yield f"{name}: the row stands twice"
        elif (
            (row.number(*COUNTS) or 0) >= _CHANCE and row.number("StdDev") and _is_of_whole_ns(row)
        ):
            figures_of = tuple(row.text(label) for label in figures)
            other = same.setdefault(figures_of, name)
            if other != name:
                yield f"{name}: its figures are exactly those of {other.partition(': ')[2]}"
        seen.add(cells)
        empty = [label for label in stated if not row.text(label)]
        yield from (
            f"{name}: {label} is empty"
            for label in empty
            if label != "StdDev" or row.number(*COUNTS) != 1
        )
        yield from _of_row(name, row)
        share, total = row.number("Time"), row.number("Total Time")
        if share is not None and total is not None:
            shares.append(float(share))
            totals.append(float(total))
    if report in _BY_TOTAL:
        if "Avg" not in figures and {"Min", "Max"} <= set(figures):
            yield f"{report}: it has columns Min and Max, but none with the average"
        yield from _in_order(report, read)
    if shares and len(shares) == len(read):
        yield from _of_table(
            report, shares, totals, max(_rounded(row, "Total Time") for row in read)
        )


def left_out(processed: Sequence[str]) -> str:
    """Reports that nsys runs by default between those that it announced, and that are not there; ""
    for none, and where others were asked for."""
    places = [_DEFAULT.index(report) for report in processed if report in _DEFAULT]
    if len(places) < max(_SURELY_DEFAULT, len(processed)) or places != sorted(places):
        return ""
    return ", ".join(
        report
        for at, report in enumerate(_DEFAULT)
        if places[0] < at < places[-1] and at not in places
    )


def of_units(read: Mapping[str, Sequence[Cells]]) -> Iterator[str]:
    """nsys prints the times of all reports (report -> rows) in one unit."""
    units = {
        report: unit
        for report, rows in read.items()
        if rows and (unit := _unit(rows[0], "Total Time")) is not None
    }
    if len(set(units.values())) > 1:
        yield f"times are not in one unit in {', '.join(units)}"


def of_copies(read: Mapping[str, Sequence[Cells]]) -> Iterator[str]:
    """What the sums of copies by time and by size (report -> rows) say of the same operations: how
    many they were, and how fast."""
    by_time, by_size = (
        {row.text(*NAMES): row for row in read.get(report, ())} for report in _OF_COPIES
    )
    if any(_unit(row, "Total") is None for row in by_size.values()):
        yield "cuda_gpu_mem_size_sum: the unit of its sizes is none that nsys prints"
    if not by_time or not by_size:
        return
    for name in by_time.keys() ^ by_size.keys():
        yield (
            f"{name[:80]}: it is in one of the sums of copies, by time and by size, but not in the "
            "other"
        )
    for name in by_time.keys() & by_size.keys():
        times, sizes = by_time[name], by_size[name]
        if times.number(*COUNTS) != sizes.number(*COUNTS):
            yield f"{name}: {_of(times, *COUNTS)} by time, but {_of(sizes, *COUNTS)} by size"
        took, moved = times.number("Total Time"), sizes.number("Total")
        are_known = _unit(sizes, "Total") is not None and _unit(times, "Total Time") is not None
        if took and moved and are_known and moved / took > FASTEST_GBPS:
            yield f"{name}: {moved:.3g} B in {took:.3g} ns, which no memory can: a unit is wrong"


def _of_name(report: str, name: str, text: str) -> Iterator[str]:
    if report in _OF_FUNCTIONS and "," in text:
        yield f"{name}: this is not the name of a function: the row has lost its beginning"
    if report == "osrt_sum" and _OF_CUDA.match(text):
        yield (
            f"{name}: this is no function of the operating system: rows before it, or the title of "
            "their table, are missing"
        )
    if (
        text
        and text.startswith("[CUDA") is not (report in _OF_COPIES)
        and report in (*_OF_COPIES, "cuda_gpu_kern_sum")
    ):
        what = "a kernel" if report in _OF_COPIES else "an operation on memory"
        yield f"{name}: this is {what}: rows before it, or the title of their table, are missing"
    is_clipped = "\u2026" in text or text.endswith("...")
    if report == "cuda_gpu_kern_sum" and not is_clipped and text.count("(") != text.count(")"):
        yield (
            f"{name}: a bracket in its name has no other one: a part of the name is missing, and "
            "perhaps rows"
        )


def _in_order(report: str, read: Sequence[Cells]) -> Iterator[str]:
    totals = [(row.number("Total Time"), row) for row in read]
    for (above, _), (total, row) in pairwise(totals):
        if above is not None and total is not None and total > above:
            name = f"{report}: {row.text(*NAMES)[:80]}"
            yield (
                f"{name}: it took longer than the row above it, but nsys puts the longest first: "
                "rows are missing or were moved"
            )


def _is_of_whole_ns(row: Cells) -> bool:
    """Sizes are the same where memory is copied to and fro, and times that are rounded to
    milliseconds where they are short."""
    return row.text("Total Time").isdecimal() and _scale(row, "Total Time") == 1.0


def _of_row(name: str, row: Cells) -> Iterator[str]:
    calls, total, average = row.number(*COUNTS), row.number(*_TOTALS), row.number("Avg")
    if calls is not None and total is not None and average is not None:
        # nothing is rounded
        is_sum = row.text(*_TOTALS).isdecimal() and _scale(row, *_TOTALS) == 1.0
        slack = (0.0 if is_sum else _rounded(row, *_TOTALS)) + _rounded(row, "Avg") * max(
            1.0, float(calls)
        )
        if abs(float(total) - float(average) * float(calls)) > slack:
            yield (
                f"{name}: {_of(row, *COUNTS)} calls of {_of(row, 'Avg')} each, but "
                f"{_of(row, *_TOTALS)} in all"
            )
    for low, high in _ORDER:
        less, more = row.number(low), row.number(high)
        if (
            less is not None
            and more is not None
            and float(less) - float(more) > _rounded(row, low) + _rounded(row, high)
        ):
            yield f"{name}: {low} {_of(row, low)} is more than {high} {_of(row, high)}"
    if calls == 0:
        yield f"{name}: it was called 0 times"
    for label in row.shape.at:
        if label not in TEXTS and (row.number(label) or 0) < 0:
            yield f"{name}: {label} is {_of(row, label)}, less than 0"
    yield from _of_spread(name, row)


def _of_spread(name: str, row: Cells) -> Iterator[str]:
    """So many calls of that mean, of which one took the least and one the largest time, deviate
    from it by so much at least and at most, and their median is not further from it than the
    deviation. True of a sample's deviation and of all calls'."""
    calls, mean = row.number(*COUNTS), row.number("Avg")
    low, high, deviation, median = (row.number(label) for label in ("Min", "Max", "StdDev", "Med"))
    if calls is None or mean is None or low is None or high is None or calls < 1:
        return
    off = _rounded(row, "Min") + _rounded(row, "Max") + 2 * _rounded(row, "Avg")
    if low <= mean <= high and not is_mean(float(calls), float(low), float(mean), float(high), off):
        extremes = f"{_of(row, 'Min')} and another {_of(row, 'Max')}"
        yield (
            f"{name}: {_of(row, *COUNTS)} calls, of which one took {extremes}, do not have the "
            f"mean {_of(row, 'Avg')}"
        )
    if deviation is None or calls < 2:
        return
    off += _rounded(row, "StdDev")
    most = sqrt(
        max(0.0, float(high - mean) + off)
        * max(0.0, float(mean - low) + off)
        * float(calls)
        / (float(calls) - 1)
    )
    least = float(high - low) / sqrt(2 * float(calls))
    if not least - off <= float(deviation) <= most + off:
        yield (
            f"{name}: StdDev {_of(row, 'StdDev')} cannot be that of calls of {_of(row, 'Min')} to "
            f"{_of(row, 'Max')}"
        )
    elif median is not None and abs(float(median - mean)) > float(deviation) + off + _rounded(
        row, "Med"
    ):
        yield f"{name}: Med {_of(row, 'Med')} is further from Avg {_of(row, 'Avg')} than its StdDev"


def _of_table(
    report: str, shares: Sequence[float], totals: Sequence[float], slack: float
) -> Iterator[str]:
    """``slack``: by how much each total may be off."""
    every, whole = sum(totals), sum(shares)
    if abs(whole - _OF_WHOLE_TABLE) > _SHARE_DECIMALS * (len(shares) + 1):
        yield (
            f"{report}: its shares add up to {whole:.1f} %, not 100 %: rows are missing or stand "
            "twice"
        )
        return
    wrong = [
        at
        for at, (share, total) in enumerate(zip(shares, totals, strict=True))
        if every and abs(share - 100 * total / every) > 2 * _SHARE_DECIMALS
    ]
    if wrong:
        yield (
            f"{report}: the shares of {len(wrong)} of its {len(shares)} rows are not those of "
            "their times"
        )
        return
    least, most = implied_whole(zip(shares, totals, strict=True), _HALF_SHARE, slack)
    if not least <= every + slack * len(totals) or not every - slack * len(totals) <= most:
        stated = f"{least:,.0f}" if every < least else f"{most:,.0f}"
        yield (
            f"{report}: its times add up to {every:,.0f}, but its shares are of {stated}: rows are "
            "missing or changed"
        )


def _of(row: Cells, *labels: str) -> str:
    return row.text(*labels)


def _rounded(row: Cells, *labels: str) -> float:
    """By how much a printed figure may be wrong, in its base unit: half of the last decimal; a
    whole one, without decimals, was cut off up to 2021."""
    decimals = _decimals(row, *labels)
    return (_HALF if decimals else _WHOLE) * _scale(row, *labels) * 10.0**-decimals


def _decimals(row: Cells, *labels: str) -> int:
    text = row.text(*labels)
    mark = "," if row.shape.style is DecimalStyle.COMMA else "."
    return len(text.rpartition(mark)[2]) if mark in text else 0


def _scale(row: Cells, *labels: str) -> float:
    """Base units in one of the column's."""
    unit = _unit(row, *labels)
    return float(unit.scale if unit else 1)


def _unit(row: Cells, *labels: str) -> Unit | None:
    at = next((row.shape.at[label] for label in labels if label in row.shape.at), None)
    return None if at is None else row.shape.columns[at].unit
