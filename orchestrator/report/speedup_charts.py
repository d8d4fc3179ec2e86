"""Charts of a speed-up study, in the style and with the canvas of charts.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from perfctl.orchestrator.analyse.categories import CATEGORIES
from perfctl.orchestrator.analyse.speedup_records import Speedup
from perfctl.orchestrator.report import charts as style
from perfctl.orchestrator.report.charts import Series, shares
from perfctl.orchestrator.report.numbers import percent, ratio, significant, size, time
from perfctl.orchestrator.report.svg_text import INK, RULE, SERIES, Hit, drawable

_MOST_BARS = 12


class Bar(NamedTuple):
    """One horizontal bar, with its interval where it has one."""

    label: str
    value: float
    low: float | None
    high: float | None
    colour: int


class Course(NamedTuple):
    """One arm's values along epochs or time."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    colour: int


class Chart(NamedTuple):
    """One drawing, as the page shows it."""

    svg: str
    title: str
    note: str = ""
    legend: tuple[tuple[str, int], ...] = ()
    """(name, colour) where the drawing itself has no room for names."""


_METRICS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Test loss", "test_loss", significant),
    ("Accuracy", "accuracy", percent),
    ("Dice", "dice", percent),
)
_COLOURS = {kind: min(place, 7) if kind != "other" else 8 for place, kind in enumerate(CATEGORIES)}


def charts(one: Speedup, key: str) -> list[Chart]:
    """Everything that this study has values for."""
    return [*_course_charts(one, key), *_bar_charts(one, key)]


def _course_charts(one: Speedup, key: str) -> list[Chart]:
    found = []
    for what, field, show in _METRICS:
        for along, by, across in (("epoch", "epoch", _epoch), ("time", "training time", time)):
            lines = _courses(one, field, along)
            if lines:
                name = f"{key}-{what.replace(' ', '-').lower()}-by-{along}"
                title = f"{what} by {by}"
                found.append(Chart(plotted(name, title, lines, across, show), title, "On test data, newest run."))
    spent = _courses(one, "ns", "epoch")
    if spent:
        title = "Training time of each epoch"
        found.append(Chart(plotted(f"{key}-epoch-time", title, spent, _epoch, time), title, "Without the test pass."))
    return found


def _bar_charts(one: Speedup, key: str) -> list[Chart]:
    found = []
    gains, used = _gain_bars(one), _memory_bars(one)
    if gains:
        title = f"Times faster than {one.base}"
        note = "Bars are ratios of geometric means, lines their 95 % intervals; 1 is as fast."
        found.append(Chart(bars(f"{key}-speedup", f"{title}, with the 95 % interval", gains, ratio, 1.0), title, note))
    worked = [(arm.label, dict(arm.categories)) for arm in one.arms if arm.categories]
    if worked:
        legend = tuple((kind, _COLOURS[kind]) for kind in CATEGORIES if any(kind in parts for _, parts in worked))
        drawing = shares(f"{key}-work", "Kinds of work by share of the time in the trace", worked, _COLOURS)
        found.append(Chart(drawing, "Kinds of work", "By share of the time in the trace.", legend))
    if used:
        found.append(Chart(bars(f"{key}-memory", "Peak memory", used, size), "Peak memory", "As the run recorded it."))
    return found


def _epoch(value: float) -> str:
    return f"{value:g}"


def _courses(one: Speedup, field: str, along: str) -> list[Course]:
    found = []
    for place, arm in enumerate(one.arms):
        known = [(item, getattr(item, field)) for item in arm.epochs if getattr(item, field) is not None]
        if known:
            xs = tuple(float(item.number + 1) if along == "epoch" else item.reached_ns for item, _ in known)
            found.append(Course(arm.label, xs, tuple(float(value) for _, value in known), place))
    return found


def _gain_bars(one: Speedup) -> list[Bar]:
    found = []
    for place, other in enumerate(one.against, 1):
        lines = [line for line in other.lines if line.gain is not None and line.level in ("epoch", "step", "phase")]
        for line in lines:
            assert line.gain is not None
            found.append(Bar(f"{other.label} {line.name}", line.gain.value, line.gain.low, line.gain.high, place))
    return found[: _MOST_BARS * 2]


def _memory_bars(one: Speedup) -> list[Bar]:
    found = []
    for place, arm in enumerate(one.arms):
        for name, value in arm.memory.items():
            if name.startswith("peak"):
                found.append(Bar(f"{arm.label} {name.removeprefix('peak ')}", float(value), None, None, place))
    return found[: _MOST_BARS * 2]


def plotted(
    name: str, description: str, lines: Sequence[Course], show_x: Callable[[float], str], show_y: Callable[[float], str]
) -> str:
    """Lines with a dot at each value, named at their ends."""
    figure, axes = style._new()
    for line in lines:
        axes.plot(line.xs, line.ys, "o-", color=SERIES[line.colour % len(SERIES)], markersize=4.5, linewidth=1.6)
    axes.set_ylim(0, max(value for line in lines for value in line.ys) * 1.12 or 1)
    axes.yaxis.set_major_formatter(style._formatter(show_y))
    axes.set_xlim(left=0)
    if show_x is _epoch:
        ticks = sorted({x for line in lines for x in line.xs})
        axes.set_xticks(ticks[:: -(-len(ticks) // 8)])
    else:
        axes.xaxis.set_major_locator(style.few_ticks())
    axes.xaxis.set_major_formatter(style._formatter(show_x))
    named = [Series(line.label, (0,), line.ys, colour=line.colour) for line in lines]
    if len(lines) > 1:
        style._label_ends(axes, named, float)
    hits = [
        Hit(f"{line.label}, {show_x(x)}: {show_y(y)}", x, y)
        for line in lines
        for x, y in zip(line.xs, line.ys, strict=True)
    ]
    return style._svg(figure, name, description, hits)


def bars(
    name: str, description: str, rows: Sequence[Bar], show: Callable[[float], str], line_at: float | None = None
) -> str:
    """Horizontal bars from 0, each with its interval as a line; ``line_at`` draws what they are read against."""
    figure, axes = style._new(height=0.5 + 0.27 * len(rows))
    hits = []
    for place, bar in enumerate(rows):
        axes.barh(place, bar.value, height=0.66, color=SERIES[bar.colour % len(SERIES)])
        said = f"{bar.label}: {show(bar.value)}"
        if bar.low is not None and bar.high is not None:
            axes.plot([bar.low, bar.high], [place, place], color=INK, linewidth=1.4, marker="|", markersize=6)
            said += f" ({show(bar.low)} to {show(bar.high)})"
        hits.append(Hit(said, 0, place - 0.33, max(bar.value, bar.high or 0), place + 0.33))
    if line_at is not None:
        axes.axvline(line_at, color=INK, linewidth=1)
    typical = max(bar.value for bar in rows)
    axes.set_xlim(0, min(max([typical, *(bar.high or 0 for bar in rows)]), 2.5 * typical) * 1.05 or 1)
    axes.set_yticks(range(len(rows)), [drawable(bar.label) for bar in rows])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(style._formatter(show))
    axes.grid(visible=False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    return style._svg(figure, name, description, hits)
