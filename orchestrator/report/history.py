"""A history as a view and for programs. Times in ns, memory in bytes; FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perfctl.orchestrator.compare.changes import LevelChange, compute_min_points_for_change
from perfctl.orchestrator.compare.history import History, HistoryLine, HistoryRun, HistorySeries
from perfctl.orchestrator.report.compare.why import format_quantity
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_complete_table,
    text_column,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.report import pluralize_count

BARS = "▁▂▃▄▅▆▇█"
POINTS = 30
"""Newest points of a trend."""
ROWS = 12
"""Rows of a line in the terminal, and sentences about its changes."""


def build_history_view(history: History) -> View:
    """Return each line as a table: its series, those that changed first, and what changed."""
    changes = sum(len(series.changes) for line in history.lines for series in line.series)
    points = sum(len(line.points) for line in history.lines)
    count = pluralize_count(changes, "change") if changes else "No change"
    names = (
        _strip_common_folder(history.stores) if len(history.stores) > 1 else list(history.stores)
    )
    stores = ", ".join(names)
    if len(names) > 4:
        stores = f"{len(names)} databases, {names[0]} to {names[-1]}"
    busy = sum(len(line.busy_reason_by_point) for line in history.lines)
    unjudged = f"; the times of {busy} are not judged" if busy else ""
    notes = ["Trend: the newest points, from the smallest to the largest value."]
    if any(len(line.points) < compute_min_points_for_change() for line in history.lines):
        notes.insert(
            0,
            f"perfctl needs {compute_min_points_for_change()} points of a line to judge its "
            f"times ('perfctl "
            "compare' compares two runs by their repeats).",
        )
    return View(
        f"{count} in {pluralize_count(points, 'point')}{unjudged}",
        (
            f"From {stores}. perfctl reports a time if it changed significantly, by more than "
            f"{history.gate * 100:g}%, and stayed at the new level. It reports every change of an "
            "exact count.",
        ),
        tuple(_build_history_line_table(history, line) for line in history.lines),
        notes=tuple(notes),
        rows_on_terminal=ROWS,
        command="history",
    )


def _build_history_line_table(history: History, line: HistoryLine) -> Table:
    changes = [(series, change) for series in line.series for change in series.changes]
    rows = sorted(
        line.series, key=lambda series: (series.what.quantity == "layer", not series.changes)
    )
    points, runs, busy = len(line.points), sum(map(len, line.points)), line.busy_reason_by_point
    notes = []
    if line.separation_reason:
        notes.append(f"A separate line: {line.separation_reason}.")
    if busy:
        part = f"of {len(busy)} of {points} points " if len(busy) < points else ""
        notes.append(f"The times {part}are not judged: {next(iter(busy.values()))}.")
    notes += [describe_level_change(history, line, *change) for change in changes[:ROWS]]
    if len(changes) > ROWS:
        notes.append(f"{len(changes) - ROWS:,} more changes: --json")
    cells = [
        (
            series.what.name,
            draw_sparkline(series.values[-POINTS:]),
            *(
                Cell(
                    format_quantity(series.what.quantity, series.values[index]),
                    format_value_with_range(series, index),
                    value=series.values[index],
                )
                for index in (0, -1)
            ),
            Cell(
                _format_series_change(series),
                style="news" if series.changes else "",
                value=next((change.change for change in series.changes), None),
            ),
        )
        for series in rows
    ]
    heads = text_column("quantity"), text_column("trend")
    columns = (*heads, Column("first"), Column("last"), text_column("change"))
    batch = "" if line.batch is None else f", batch {line.batch}"
    heading = (
        f"{line.name}{batch}, {line.profiler}, {line.device or 'device unknown'}: "
        f"{pluralize_count(points, 'point')}, {pluralize_count(runs, 'run')}"
    )
    return build_complete_table(heading, columns, cells, notes)


def _format_series_change(series: HistorySeries) -> str:
    """Return "+5.2%", or why there is none."""
    if series.changes:
        shares = (change.change for change in series.changes)
        return ", ".join("new" if share is None else f"{share * 100:+.3g}%" for share in shares)
    if not series.judged:
        return "not judged"
    if series.exact:
        return "none"
    if series.what.quantity == "throughput":
        return "like the step"
    return (
        "none significant"
        if len(series.values) >= compute_min_points_for_change()
        else "too few points"
    )


def describe_level_change(
    history: History, line: HistoryLine, series: HistorySeries, change: LevelChange
) -> str:
    """Return by how much, between which points, how sure, and what else changed."""

    def name_point_range(first: int, last: int) -> str:
        points = (line.points[series.points[index]] for index in (first, last))
        return " and ".join(_format_point_label(history, point) for point in points)

    if change.interval is None or change.p is None:
        before, after = (
            format_quantity(series.what.quantity, series.values[change.after + step])
            for step in (-1, 0)
        )
        evidence = f"an exact count, {before} to {after}"
    else:
        low, high = (f"{end * 100:+.1f}%" for end in change.interval)
        evidence = f"95% interval {low} to {high}, p = {change.p:.2g}"
        if change.earliest < change.latest:
            evidence += f", with 95% between {name_point_range(change.earliest - 1, change.latest)}"
    differ = [
        f"{suspect.difference.fact} {suspect.difference.a} to {suspect.difference.b} "
        f"({suspect.level})"
        for suspect in change.differences[:3]
    ]
    others_changed = (
        f"also changed: {', '.join(differ)}" if differ else "no other recorded fact changed"
    )
    by = "came" if change.change is None else f"{change.change * 100:+.3g}%"
    between = name_point_range(change.after - 1, change.after)
    return f"{series.what.name} {by} between {between} ({evidence}); {others_changed}"


def _format_point_label(history: History, point: Sequence[HistoryRun]) -> str:
    """Return its first run, with the database if there are several."""
    first = point[0]
    store = (
        f" of {_strip_common_folder(history.stores)[first.store]}"
        if len(history.stores) > 1
        else ""
    )
    details = ", ".join(filter(None, ((first.started_at or "")[:10], first.commit)))
    return f"run {first.run}{store}{f' ({details})' if details else ''}"


def _strip_common_folder(stores: Sequence[str]) -> list[str]:
    """Paths without the folder that all of them share."""
    shared = os.path.commonpath([Path(store).absolute().parent for store in stores])
    return [os.path.relpath(store, shared) for store in stores]


def format_value_with_range(series: HistorySeries, index: int) -> str:
    """Return the median of a point's repeats with their range: "361 ms (350 ms to 402 ms in 3
    runs)"."""
    repeats = series.repeats[index]
    low, high = (format_quantity(series.what.quantity, end) for end in (min(repeats), max(repeats)))
    spread = f"{low} to {high} in {len(repeats)} runs" if len(repeats) > 1 else "1 run"
    return f"{format_quantity(series.what.quantity, series.values[index])} ({spread})"


def draw_sparkline(values: Sequence[float]) -> str:
    """One bar a value, from the smallest to the largest."""
    low, high = min(values), max(values)
    return "".join(
        BARS[round((number - low) / (high - low) * 7) if high > low else 3] for number in values
    )
