"""Columns of times, sizes, words and names, and the label of a run in its column."""

from __future__ import annotations

from typing import Any

from perfctl.orchestrator.report.tables import Column
from perfctl.records.run import Run


def time_column(label: str, note: str | None = None, **options: Any) -> Column:
    """Return a column of times in ns."""
    return Column(label, base="ns", note=note, **options)


def size_column(label: str, note: str | None = None, **options: Any) -> Column:
    """Return a column of sizes in bytes."""
    return Column(label, base="B", note=note, **options)


def text_column(label: str, note: str | None = None, **options: Any) -> Column:
    """Return a column of words."""
    return Column(label, style="text", note=note, **options)


def name_column(label: str, note: str | None = None) -> Column:
    """Return a column of names from a report."""
    return Column(label, style="code", note=note)


def run_label(run: Run) -> str:
    """Return "ncu b64" or, without a batch size, "nsys run 3"."""
    if run.batch_size is None:
        return f"{run.profiler} run {run.id}"
    return f"{run.profiler} b{run.batch_size}"
