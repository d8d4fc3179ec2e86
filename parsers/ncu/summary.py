"""Reads ncu's per-kernel summary (``--print-summary``): three figures of each metric, and no
launches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfctl.parsers.text.numbers import (
    AmbiguousNumber,
    StyleEvidence,
    base_unit,
    read_number,
    to_base,
)
from perfctl.records.report import Diagnostic, Gap, Report, Summary

FIGURES = ("Minimum", "Maximum", "Average")
FIGURE_COLUMNS = frozenset(("Kernel Name", "Invocations", "Metric Name", "Metric Unit", *FIGURES))
"""Columns that every summary has; Grid Size and Block Size may come with them."""


def report(
    path: Path,
    form: str,
    rows: list[dict[str, str]],
    gaps: Iterable[Gap],
    diagnostics: Iterable[Diagnostic],
) -> Report:
    """Return the figures of rows that name their cells as the CSV does."""
    evidence = StyleEvidence()
    for row in rows:
        for figure in FIGURES:
            evidence.add(row[figure])
    style = evidence.decide()
    summaries, ambiguous = [], []
    for row in rows:
        unit, scale = base_unit(row["Metric Unit"])
        kernel = row["Kernel Name"]
        if "Grid Size" in row and "Block Size" in row:
            kernel += f" grid {row['Grid Size']} block {row['Block Size']}"
        for figure in FIGURES:
            name = (
                f"{row['Metric Name']}, {figure.lower()} of {row['Invocations']} launches of "
                f"{kernel}"
            )
            number = None
            try:
                number = read_number(row[figure], style)
            except AmbiguousNumber:
                reason = f'"{row[figure]}" may be a whole number or a fraction'
                ambiguous.append(Gap(f"summary:{name}", "ambiguous", reason))
            if number is None:
                summaries.append(Summary(name, None, unit, row[figure]))
            else:
                summaries.append(Summary(name, to_base(number, scale), unit))
    no_launches = "a per-kernel summary has {}; export without --print-summary"
    return Report(
        tool="ncu",
        path=path,
        form=form,
        summaries=tuple(summaries),
        gaps=(
            Gap("kernel", "not_available", no_launches.format("no launches")),
            Gap("counter", "not_available", no_launches.format("averages instead")),
            *ambiguous,
            *gaps,
        ),
        diagnostics=tuple(diagnostics),
    )
