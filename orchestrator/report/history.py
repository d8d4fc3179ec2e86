"""A history as text and for programs. Times in ns, memory in bytes; FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.history.changes import fewest
from perfctl.orchestrator.analyse.history.lines import QUANTITIES, Line, Series
from perfctl.orchestrator.report.numbers import si, size, time

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.history import History
    from perfctl.orchestrator.analyse.compare.suspects import Suspect
    from perfctl.orchestrator.analyse.history.changes import Change

BARS = "▁▂▃▄▅▆▇█"
POINTS = 30
"""Newest points of a sparkline in the terminal."""
ROWS = 12
"""Rows of a line in the terminal: those that changed first."""


def text(found: History) -> Iterator[str]:
    """Each line: what it is, what changed in it, and its series."""
    for at, line in enumerate(found.lines):
        if at:
            yield ""
        batch = "" if line.batch is None else f", batch {line.batch}"
        yield f"{line.name}{batch}, {line.profiler}, {line.facts.get('device', 'device unknown')}: {_count(line)}"
        if line.apart:
            yield f"  a line of its own: {line.apart}"
        if len(line.points) < fewest():
            yield f"  times are not judged: a change shows from {fewest()} points on ('perfctl compare' judges two by their repeats)"
        changed = [(series, change) for series in line.series for change in series.changes]
        for series, change in changed[:ROWS]:
            yield f"  {sentence(line, series, change, found.suspects.get((at, series.points[change.after]), ()))}"
        if len(changed) > ROWS:
            yield f"  and {len(changed) - ROWS} more changes: --json has them"
        rows = sorted(line.series, key=lambda one: one.what.quantity == "layer" and not one.changes)
        width = max((len(one.what.name) for one in rows[:ROWS]), default=0)
        for one in rows[:ROWS]:
            shown = one.values[-POINTS:]
            yield f"  {one.what.name.ljust(width)}  {sparkline(shown)}  {value(one, one.values[0])} first, {value(one, one.values[-1])} last"
        if len(rows) > ROWS:
            yield f"  and {len(rows) - ROWS} more layers: --json has them"


def _count(line: Line) -> str:
    points, runs = len(line.points), sum(map(len, line.points))
    return f"{points} point{'s' if points > 1 else ''}, {runs} run{'s' if runs > 1 else ''}"


def sentence(line: Line, series: Series, change: Change, blamed: Sequence[Suspect]) -> str:
    """By how much, between which points, how sure, and what else changed."""
    before, after = (line.points[series.points[at]] for at in (change.after - 1, change.after))
    where = f"between {_point(before)} and {_point(after)}"
    if change.interval is None or change.p is None:
        sure = f"an exact count, {value(series, series.values[change.after - 1])} to {value(series, series.values[change.after])}"
    else:
        low, high = (f"{end * 100:+.1f} %" for end in change.interval)
        sure = f"95 % interval {low} to {high}, p = {change.p:.2g}"
        if change.earliest < change.latest:
            sides = (line.points[series.points[at]] for at in (change.earliest - 1, change.latest))
            sure += f", with 95 % between {' and '.join(map(_point, sides))}"
    differ = [f"{one.difference.fact} {one.difference.a} to {one.difference.b} ({one.level})" for one in blamed[:3]]
    also = f"; also changed: {', '.join(differ)}" if differ else "; nothing else that was recorded changed"
    return f"{series.what.name} {change.change * 100:+.3g} % {where} ({sure}){also}"


def _point(point: Sequence[Any]) -> str:
    first = point[0]
    more = ", ".join(filter(None, ((first.started_at or "")[:10], first.commit)))
    return f"run {first.run}{f' ({more})' if more else ''}"


def value(series: Series, number: float) -> str:
    """With its unit."""
    if QUANTITIES[series.what.quantity] == "ns":
        return time(number)
    return size(number) if series.what.quantity == "memory" else si(number)


def sparkline(values: Sequence[float]) -> str:
    """One bar a value, from the smallest to the largest."""
    low, high = min(values), max(values)
    return "".join(BARS[round((one - low) / (high - low) * 7) if high > low else 3] for one in values)


def as_json(found: History) -> dict[str, Any]:
    """Every line with all its points and series."""
    return {"stores": list(found.stores), "gate": found.gate,
            "lines": [_line(line, at, found) for at, line in enumerate(found.lines)]}  # fmt: skip


def _line(line: Line, at: int, found: History) -> dict[str, Any]:
    points = [
        {"store": found.stores[point[0].store], "runs": [one.run for one in point], "started_at": point[0].started_at,
         "commit": point[0].commit, "commit_time": point[0].commit_time} for point in line.points
    ]  # fmt: skip
    series = [
        {"quantity": one.what.quantity, "layer": one.what.layer, "direction": one.what.direction,
         "unit": QUANTITIES[one.what.quantity], "exact": one.exact, "points": one.points, "values": one.values,
         "changes": [_change(one, change, found.suspects.get((at, one.points[change.after]), ())) for change in one.changes]}
        for one in line.series
    ]  # fmt: skip
    return {"heading": line.name, "batch": line.batch, "profiler": line.profiler, "device": line.facts.get("device"),
            "apart": line.apart, "points": points, "series": series}  # fmt: skip


def _change(series: Series, change: Change, blamed: Sequence[Suspect]) -> dict[str, Any]:
    places = {name: series.points[getattr(change, name)] for name in ("after", "earliest", "latest")}
    infinite = change.change == float("inf")
    differ = [{**asdict(one.difference), "as_cause": one.level, "as_cause_why": one.why} for one in blamed]
    return {**places, "before": series.points[change.after - 1], "change": None if infinite else change.change,
            "interval": change.interval, "p": change.p, "differences": differ}  # fmt: skip
