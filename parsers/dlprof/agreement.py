"""What DLProf states more than once: sums of ops and kernels beside their parts, percentages of one
whole, totals beside means and calls, rows numbered from 1. Where these disagree the report was
damaged or edited; it is read as it is."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isfinite

from perfctl.parsers.dlprof.blocks import Block
from perfctl.parsers.text.doubts import contradictions, numbering
from perfctl.parsers.text.sqlite import Database
from perfctl.records.report import Diagnostic

_SHARES = (
    "tensor core kernel duration %",
    "non-tensor core kernel duration %",
    "memory duration %",
    "dataloader duration %",
    "io duration %",
    "cpu duration %",
    "other duration %",
)
"""Parts of the wall clock time; each is rounded to one decimal."""
_ROUNDED = 0.051
_WHOLES, _FEWEST_LINES = ("all ops", "all kernels"), 3
_PAIRS = (
    ("gpu count", "gpu name(s)"),
    ("start iteration", "stop iteration"),
    ("gpu utilization %", "wall clock time (ns)"),
)
"""Lines of a summary of which no version writes one without the other."""
_IN_EACH = ("gpu count", "wall clock time (ns)", "total iterations")
"""Lines of the first three blocks, which every CSV summary has, the shortest ones too."""
_TIMES = ("cpu time (ns)", "gpu time (ns)", "cpu overhead (ns)", "gpu idle (ns)", "api time (ns)")
_CALLS = ("no calls", "num calls aggregated", "# calls", "calls")
_TOGETHER = (
    "wall clock time (ns)",
    "gpu utilization %",
    *_SHARES,
    "total iterations",
    "aggregated iterations",
    "start iteration",
    "stop iteration",
    "average iteration time (ns)",
    "iteration time standard deviation",
)
"""Lines of a summary of DLProf 1.7 and 1.8, all with numbers, which also has the blocks of all ops
and all kernels. Shorter summaries have the first lines and the total at most, so any other line of
these says that all were written."""
_NUMBERS = ("gpu count", *_TOGETHER)
_LINES_OF_WHOLES = {
    "all ops": ("all ops", "ops using tc", "ops eligible for tc but not using", "all other ops"),
    "all kernels": ("all kernels", "kernels using tc", "memory", "all other kernels"),
}
_IN_SHORT = (
    "wall clock time (ns)",
    "gpu utilization %",
    "memory duration %",
    "dataloader duration %",
    "total iterations",
    "all kernels",
    "memory",
)
_WHOLE_AND_PARTS = (
    ("total gpu time (ns)", "tc gpu time (ns)", "non-tc gpu time (ns)"),
    ("total kernel count", "tc kernel count", "non-tc kernel count"),
)
"""Columns of the table of Tensor Cores: the first is the sum of the others."""
_OP_ID = re.compile(r"(.+)_(\d{1,6})")
_MOST_ROWS = 100_000
"""Up to so many rows SQLite looks up all references."""


def of_summary(blocks: Sequence[Block], *, is_csv: bool) -> tuple[Diagnostic, ...]:
    found = list[str]()
    figures: dict[str, float | None] = {}
    labels = Counter(
        label.strip().lower() for block in blocks if not block.columns for label, _ in block.lines
    )
    for block in blocks:
        if block.columns:
            found += _sums(block)
        for label, values in block.lines if not block.columns else ():
            figures.setdefault(label.strip().lower(), _number(values[0]))
    found += [
        f"the line '{label[:60]}' stands {times} times"
        for label, times in labels.items()
        if times > 1
    ]
    for one, other in _PAIRS:
        if (one in labels) != (other in labels):
            missing = other if one in labels else one
            found.append(f"the line '{missing}' is missing")
    if is_csv and 0 < len(lost := [label for label in _IN_EACH if label not in labels]) < len(
        _IN_EACH
    ):
        found += [f"the line '{label}' is missing" for label in lost]
    found += _left_out(blocks, labels, figures)
    for label in _NUMBERS:
        if label in figures and ((figure := figures[label]) is None or not isfinite(figure)):
            found.append(f"the line '{label}' states no number")
    found += [
        f"the line '{label[:60]}' states {value:g}, less than 0"
        for label, value in figures.items()
        if (value or 0) < 0
    ]
    count, names = (
        next(
            (
                values[0]
                for block in blocks
                if not block.columns
                for label, values in block.lines
                if label.strip().lower() == name
            ),
            "",
        )
        for name in _PAIRS[0]
    )
    if count and names and _number(count) != len(names.split(",")):
        found.append(f"{count[:20]} GPUs, but {len(names.split(','))} names of GPUs")
    shares = [figures[label] for label in _SHARES if figures.get(label) is not None]
    if len(shares) == len(_SHARES):
        whole = sum(share or 0 for share in shares)
        if abs(whole - 100) > _ROUNDED * (1 + len(shares)):
            found.append(f"the parts of the wall clock time add up to {whole:.1f} %")
    found += _iterations(figures)
    return contradictions(found)


def _left_out(
    blocks: Sequence[Block], labels: Collection[str], figures: Mapping[str, float | None]
) -> Iterator[str]:
    """Lines and blocks that are not there though a summary of that length has them."""
    titles = {block.title.lower(): block for block in blocks}
    every = {*_TOGETHER, *_LINES_OF_WHOLES["all ops"], *_LINES_OF_WHOLES["all kernels"]}.difference(
        _IN_SHORT
    )
    if every.isdisjoint(
        {*labels, *(label.lower() for block in blocks for label, _ in block.lines)}
    ):
        return
    lost = [label for label in (*_PAIRS[0], *_TOGETHER) if label not in labels]
    lost += [title for title in _WHOLES if title not in titles or not titles[title].columns]
    for title, lines in _LINES_OF_WHOLES.items():
        mine = (
            [label.lower() for label, _ in titles[title].lines] if title in titles else list(lines)
        )
        lost += [line for line in lines if line not in mine]
    if lost:
        yield f"the line '{lost[0]}' is missing" + (
            f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        )


def _iterations(figures: Mapping[str, float | None]) -> Iterator[str]:
    names = ("total iterations", "aggregated iterations", "start iteration", "stop iteration")
    total, aggregated, first, last = (figures.get(name) for name in names)
    if (
        aggregated is not None
        and first is not None
        and last is not None
        and last - first + 1 != aggregated
    ):
        yield f"{aggregated:.0f} aggregated iterations, but from {first:.0f} to {last:.0f}"
    mean, whole = figures.get("average iteration time (ns)"), figures.get("wall clock time (ns)")
    if (
        aggregated
        and mean is not None
        and whole is not None
        and abs(aggregated * mean - whole) > _ROUNDED * aggregated + 1
    ):
        yield f"{aggregated:.0f} iterations of {mean:,.1f} ns each, but {whole:,.0f} ns in all"
    if total is not None and aggregated is not None and aggregated > total:
        yield f"{aggregated:.0f} aggregated iterations of {total:.0f}"


def _sums(block: Block) -> Iterator[str]:
    """The first line of these blocks is the sum of the others."""
    if block.title.lower() not in _WHOLES or len(block.lines) < _FEWEST_LINES:
        return
    (label, whole), *parts = block.lines
    if label.lower() != block.title.lower():
        yield f"the block '{block.title}' has no line '{block.title}'"
        return
    names = Counter(name for name, _ in parts)
    yield from (
        f"the line '{name[:60]}' stands {times} times" for name, times in names.items() if times > 1
    )
    for at, name in enumerate(block.columns):
        stated = _number(whole[at]) if at < len(whole) else None
        numbers = [_number(values[at]) for _, values in parts if at < len(values)]
        known = [number for number in numbers if number is not None]
        if len(known) < len(parts) or stated is None:
            yield f"{label}: {name} is no number in every line"
        elif sum(known) != stated:
            yield f"{label}: {name} is {stated:,.0f}, its parts add up to {sum(known):,.0f}"


def of_tables(tables: Mapping[str, Collection[Mapping[str, str]]]) -> tuple[Diagnostic, ...]:
    """Of the tables of CSV or JSON reports: kind -> rows."""
    found = contradictions(
        [text for kind, rows in tables.items() for text in _of_table(kind, rows)]
    )
    return (*found, *_numbers(tables.get("detail", ())))


def _numbers(rows: Collection[Mapping[str, str]]) -> Iterator[Diagnostic]:
    """Ops are called CONV2D_1, CONV2D_2, ...; forward and backward share a number."""
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for row in rows:
        if found := _OP_ID.fullmatch(row.get("op id", "")):
            numbers[found[1]].add(int(found[2]))
    for name, mine in numbers.items():
        yield from numbering(f"ops of the type {name[:60]} with the numbers", mine, first=1)


def _of_table(kind: str, rows: Collection[Mapping[str, str]]) -> Iterator[str]:
    times = Counter(tuple(row.values()) for row in rows)
    yield from (
        f"{kind}: the row of {cells[0][:60]} stands {more} times"
        for cells, more in times.items()
        if more > 1
    )
    for row in rows:
        for columns in _WHOLE_AND_PARTS:
            whole, *parts = (_number(row.get(column, "")) for column in columns)
            if (
                whole is not None
                and None not in parts
                and whole != sum(part or 0 for part in parts)
            ):
                yield (
                    f"{kind}: {next(iter(row.values()))[:60]}: {columns[0]} is {whole:,.0f}, its "
                    "parts add up to something else"
                )
        name = f"{kind}: {next(iter(row.values()))[:60]}"
        counts = (_number(row[column]) for column in _CALLS if column in row)
        calls = next((count for count in counts if count is not None), None)
        for what in _TIMES:
            total, mean, low, high = (
                _number(row.get(f"{part} {what}", "")) for part in ("total", "avg", "min", "max")
            )
            yield from _of_row(
                f"{name}: {what}",
                calls if what != "gpu idle (ns)" else None,
                total,
                mean,
                low,
                high,
            )


def _of_row(
    name: str,
    calls: float | None,
    total: float | None,
    mean: float | None,
    low: float | None,
    high: float | None,
) -> Iterator[str]:
    """Totals of groups may be of one instance of the group for all calls in it: then the mean is
    the total."""
    if calls and total is not None and mean is not None and mean != total:
        of = total / mean if mean else 0.0
        # means of 32 bits
        if not isfinite(of) or abs(mean * round(of) - total) > 2 * _ROUNDED * max(1.0, round(of)):
            yield f"{name} is {total:,.0f} in all, which is no multiple of the mean {mean:,.1f}"
    known = [value for value in (low, mean, high, total) if value is not None]
    if any(one > two + _ROUNDED for one, two in zip(known, known[1:])):  # noqa: B905, RUF007
        yield f"{name}: least, mean, largest and total are not in this order"


def of_database(database: Database) -> tuple[Diagnostic, ...]:
    """Rows that were deleted, and references to none."""
    tables = [table for table in sorted(database.tables) if not table.startswith("sqlite_")]
    found = [database.deleted()]
    if sum(database.count(table) for table in tables) <= _MOST_ROWS:
        broken = Counter(row[0] for row in database.connection.execute("PRAGMA foreign_key_check"))
        found += [
            f"{times} rows of {table} refer to rows that are not there"
            for table, times in broken.items()
        ]
    return contradictions([text for text in found if text])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
