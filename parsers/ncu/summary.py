"""Reads ncu's per-kernel summary (``--print-summary``): three figures of each metric, and no
launches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfctl.parsers.common.numbers import (
    AmbiguousNumber,
    StyleEvidence,
    base_unit,
    read_value,
    scaled,
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
            value = None
            try:
                value = scaled(row[figure], read_value(row[figure], style), style, scale)
            except AmbiguousNumber:
                reason = f'"{row[figure]}" may be a whole number or a fraction'
                ambiguous.append(Gap(f"summary:{name}", "ambiguous", reason))
            summaries.append(Summary(name, value, unit, row[figure] if value is None else None))
    return Report(
        tool="ncu",
        path=path,
        form=form,
        summaries=tuple(summaries),
        gaps=(
            Gap(
                "kernel",
                "not_available",
                "a per-kernel summary has no launches; export without --print-summary",
            ),
            Gap(
                "counter",
                "not_available",
                "a per-kernel summary has averages instead; export without --print-summary",
            ),
            *ambiguous,
            *gaps,
        ),
        diagnostics=tuple(diagnostics),
    )
