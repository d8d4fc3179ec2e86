"""A history as a view and for programs. Times in ns, memory in bytes; FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfctl.orchestrator.compare.changes import Change, fewest
from perfctl.orchestrator.compare.history import History, Line, Seen, Series
from perfctl.orchestrator.report.numbers import per_second, si, size, time
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    text_column,
    whole_table,
)
from perfctl.orchestrator.report.view import View

BARS = "▁▂▃▄▅▆▇█"
POINTS = 30
"""Newest points of a trend."""
ROWS = 12
"""Rows of a line in the terminal, and sentences about its changes."""


def view(history: History) -> View:
    """Return each line as a table: its series, those that changed first, and what changed."""
    changes = sum(len(series.changes) for line in history.lines for series in line.series)
    points = sum(len(line.points) for line in history.lines)
    count = "No change" if not changes else "1 change" if changes == 1 else f"{changes} changes"
    names = _short(history.stores) if len(history.stores) > 1 else list(history.stores)
    stores = ", ".join(names)
    if len(names) > 4:
        stores = f"{len(names)} databases, {names[0]} to {names[-1]}"
    busy = sum(len(line.busy) for line in history.lines)
    unjudged = f"; the times of {busy} are not judged" if busy else ""
    return View(
        f"{count} in {points} point{'s' if points > 1 else ''}{unjudged}",
        (
            f"From {stores}. perfctl reports a time if it changed significantly, by more than "
            f"{history.gate * 100:g}%, and stayed at the new level. It reports every change of an "
            "exact count.",
        ),
        tuple(_table_of(history, line) for line in history.lines),
        notes=(
            *_too_few_points(history),
            "Trend: the newest points, from the smallest to the largest value.",
        ),
        rows_on_terminal=ROWS,
        command="history",
    )


def _table_of(history: History, line: Line) -> Table:
    changes = [(series, change) for series in line.series for change in series.changes]
    rows = sorted(
        line.series, key=lambda series: (series.what.quantity == "layer", not series.changes)
    )
    notes = [*_about(line), *(sentence(history, line, *change) for change in changes[:ROWS])]
    if len(changes) > ROWS:
        notes.append(f"{len(changes) - ROWS:,} more changes: --json")
    cells = [
        (
            series.what.name,
            sparkline(series.values[-POINTS:]),
            *(Cell(value(series, end), value=end) for end in (series.values[0], series.values[-1])),
            Cell(
                _change_of(series),
                style="news" if series.changes else "",
                value=next((change.change for change in series.changes), None),
            ),
        )
        for series in rows
    ]
    heads = text_column("quantity"), text_column("trend")
    columns = (*heads, Column("first"), Column("last"), text_column("change"))
    return whole_table(heading(line), columns, cells, notes)


def _change_of(series: Series) -> str:
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
    return "none significant" if len(series.values) >= fewest() else "too few points"


def heading(line: Line) -> str:
    """ "mnist_cnn, batch 16, torch, NVIDIA A100: 12 points, 36 runs"."""
    batch = "" if line.batch is None else f", batch {line.batch}"
    return (
        f"{line.name}{batch}, {line.profiler}, {line.facts.get('device', 'device unknown')}: "
        f"{_count(line)}"
    )


def _about(line: Line) -> Iterator[str]:
    """Why it is a line of its own, and why its times are not judged."""
    if line.separation_reason:
        yield f"a separate line: {line.separation_reason}"
    if busy := line.busy:
        points = f"of {len(busy)} of {len(line.points)} points "
        points = points if len(busy) < len(line.points) else ""
        yield f"the times {points}are not judged: {next(iter(busy.values()))}"


def _too_few_points(history: History) -> Iterator[str]:
    if any(len(line.points) < fewest() for line in history.lines):
        yield (
            f"perfctl needs {fewest()} points of a line to judge its times ('perfctl compare' "
            "compares two runs by their repeats)."
        )


def _count(line: Line) -> str:
    points, runs = len(line.points), sum(map(len, line.points))
    return f"{points} point{'s' if points > 1 else ''}, {runs} run{'s' if runs > 1 else ''}"


def sentence(history: History, line: Line, series: Series, change: Change) -> str:
    """Return by how much, between which points, how sure, and what else changed."""

    def name_points(first: int, last: int) -> str:
        points = (line.points[series.points[index]] for index in (first, last))
        return " and ".join(_point(history, point) for point in points)

    if change.interval is None or change.p is None:
        before, after = (value(series, series.values[change.after + step]) for step in (-1, 0))
        evidence = f"an exact count, {before} to {after}"
    else:
        low, high = (f"{end * 100:+.1f}%" for end in change.interval)
        evidence = f"95% interval {low} to {high}, p = {change.p:.2g}"
        if change.earliest < change.latest:
            evidence += f", with 95% between {name_points(change.earliest - 1, change.latest)}"
    differ = [
        f"{suspect.difference.fact} {suspect.difference.a} to {suspect.difference.b} "
        f"({suspect.level})"
        for suspect in change.differences[:3]
    ]
    others_changed = (
        f"also changed: {', '.join(differ)}" if differ else "no other recorded fact changed"
    )
    by = "came" if change.change is None else f"{change.change * 100:+.3g}%"
    between = name_points(change.after - 1, change.after)
    return f"{series.what.name} {by} between {between} ({evidence}); {others_changed}"


def _point(history: History, point: Sequence[Seen]) -> str:
    """Return its first run, with the database if there are several."""
    first = point[0]
    store = f" of {_short(history.stores)[first.store]}" if len(history.stores) > 1 else ""
    details = ", ".join(filter(None, ((first.started_at or "")[:10], first.commit)))
    return f"run {first.run}{store}{f' ({details})' if details else ''}"


def _short(stores: Sequence[str]) -> list[str]:
    """Paths without the folder that all of them share."""
    shared = os.path.commonpath([Path(store).absolute().parent for store in stores])
    return [os.path.relpath(store, shared) for store in stores]


def value(series: Series, number: float) -> str:
    """With its unit."""
    if series.unit == "ns":
        return time(number)
    if series.what.quantity == "launches":
        return f"{number:,.5g}"
    if series.what.quantity == "throughput":
        return f"{per_second(number)} samples/s"
    return size(number) if series.what.quantity == "memory" else si(number)


def sparkline(values: Sequence[float]) -> str:
    """One bar a value, from the smallest to the largest."""
    low, high = min(values), max(values)
    return "".join(
        BARS[round((number - low) / (high - low) * 7) if high > low else 3] for number in values
    )
