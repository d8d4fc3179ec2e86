"""Reads ncu's summary CSV (``--print-summary per-kernel``): minimum, maximum and average over all launches of a kernel.

There are no launches in such a file, so it gives no kernels and no counters: each figure becomes a
:class:`~perfctl.parsers.records.Summary` whose name says metric, kernel and over how many launches, and a gap says
what the file cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfctl.parsers.ncu_lines import cells
from perfctl.parsers.ncu_long import NOT_USED, USED, is_header
from perfctl.parsers.records import Gap, Summary
from perfctl.parsers.text_lines import Log
from perfctl.parsers.units import AmbiguousNumber, DecimalStyle, StyleEvidence, base_unit, read_number, to_base
from perfctl.parsers.unknown import others

FIGURES = ("Minimum", "Maximum", "Average")
_NEEDED = ("Kernel Name", "Invocations", "Metric Name", "Metric Unit", *FIGURES)


def unknown(header: list[str]) -> list[str]:
    """Unknown columns."""
    return others(header, USED, NOT_USED, FIGURES)


def is_summary(header: list[str]) -> bool:
    """Is this the header of a summary page?"""
    return all(name in header for name in _NEEDED)


def read(text_rows: Iterator[str], header: list[str], log: Log) -> tuple[list[Summary], list[Gap]] | None:
    """The figures of the page, in base units, and the gaps that come with it; None when a further page follows."""
    kept = []
    for text_row in text_rows:
        row = cells(text_row)
        if row is not None and is_header(row):
            return None
        if row is None or len(row) < len(header):
            log.cut_rows += 1
            continue
        kept.append(dict(zip(header, row, strict=False)))
    return read_rows(kept)


def read_rows(rows: list[dict[str, str]]) -> tuple[list[Summary], list[Gap]]:
    """The same from rows that name their cells as the CSV does (_NEEDED, and Grid Size and Block Size where known)."""
    evidence = StyleEvidence()
    for row in rows:
        for name in FIGURES:
            evidence.add(row[name])
    gaps = [
        Gap("kernel", "not_available", "a per-kernel summary has no launches; export without --print-summary"),
        Gap("counter", "not_available", "a per-kernel summary has averages instead; export without --print-summary"),
    ]
    style = evidence.decide()
    return [figure for row in rows for figure in _figures(row, style, gaps)], gaps


def _figures(row: dict[str, str], style: DecimalStyle, gaps: list[Gap]) -> Iterator[Summary]:
    """Three figures of one row."""
    unit, scale = base_unit(row["Metric Unit"])
    shape = f" grid {row['Grid Size']} block {row['Block Size']}" if "Grid Size" in row and "Block Size" in row else ""
    for figure in FIGURES:
        name = f"{row['Metric Name']}, {figure.lower()} of {row['Invocations']} launches of {row['Kernel Name']}{shape}"
        try:
            number = read_number(row[figure], style)
        except AmbiguousNumber:
            number = None
            gaps.append(Gap(f"summary:{name}", "ambiguous", f'"{row[figure]}" may be a whole number or a fraction'))
        if number is None:
            yield Summary(name, None, unit, row[figure])
        else:
            yield Summary(name, to_base(number, scale), unit)
