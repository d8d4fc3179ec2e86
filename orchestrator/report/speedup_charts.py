"""Which charts a speed-up study gets, and from which numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from perfctl.orchestrator.analyse.categories import CATEGORIES
from perfctl.orchestrator.analyse.speedup_records import ArmFacts, Speedup
from perfctl.orchestrator.report.charts import shares
from perfctl.orchestrator.report.numbers import percent, ratio, short, significant, size, time
from perfctl.orchestrator.report.speedup_drawings import Bar, Course, bars, epoch, pies, plotted

_MOST_BARS = 24
_PIECES = 7
"""Of a pie, as many as have a colour of their own."""
_REST = "all others"
ON_TEST = "On test data, newest run."


class Chart(NamedTuple):
    """One drawing, as the page shows it."""

    svg: str
    title: str
    note: str = ""
    legend: tuple[tuple[str, int], ...] = ()
    """(name, colour) where the drawing itself has no room for names."""


_METRICS: tuple[tuple[str, str, Callable[[float], str], str], ...] = (
    ("Training loss", "loss", significant, "Mean over the training data while it was learnt from, newest run."),
    ("Test loss", "test_loss", significant, ON_TEST),
    ("Accuracy", "accuracy", percent, ON_TEST),
    ("Dice", "dice", percent, ON_TEST),
)
_COLOURS = {kind: place for place, kind in enumerate(CATEGORIES)} | {"optimizer": 9, "other": 8}


def charts(one: Speedup, key: str, *, pie: bool = False) -> list[Chart]:
    """Everything that this study has values for; with ``pie`` what are parts of a whole as pies, for who asks."""
    return [*_course_charts(one, key), *_bar_charts(one, key), *_work_charts(one, key, pie), *_memory_charts(one, key)]


def _course_charts(one: Speedup, key: str) -> list[Chart]:
    found = []
    for what, field, show, note in _METRICS:
        for along, by, across in (("epoch", "epoch", epoch), ("time", "training time", _clock)):
            lines = _courses(one, field, along)
            if lines:
                name = f"{key}-{what.replace(' ', '-').lower()}-by-{along}"
                title = f"{what} by {by}"
                found.append(
                    Chart(
                        plotted(name, title, lines, (across, show), (by, what if what == "Dice" else what.lower())),
                        title,
                        note,
                    )
                )
    spent = _courses(one, "ns", "epoch")
    if spent:
        title = "Training time of each epoch"
        drawing = plotted(f"{key}-epoch-time", title, spent, (epoch, _clock), ("epoch", "time"))
        found.append(Chart(drawing, title, "Without the test pass."))
    return found


def _bar_charts(one: Speedup, key: str) -> list[Chart]:
    gains = _gain_bars(one)
    if not gains:
        return []
    title = f"Times faster than {one.base}"
    note = "Bars are ratios of geometric means, lines their 95 % intervals; 1 is as fast."
    drawing = bars(f"{key}-speedup", f"{title}, with the 95 % interval", gains, ratio, "times faster", 1.0)
    return [Chart(drawing, title, note)]


def _work_charts(one: Speedup, key: str, pie: bool) -> list[Chart]:
    """Kinds of work of all arms, and each arm's most expensive operations."""
    found = []
    worked = [(arm.label, dict(arm.categories)) for arm in one.arms if arm.categories]
    said = "Kinds of work by share of the time in the trace"
    if worked:
        legend = tuple((kind, _COLOURS[kind]) for kind in CATEGORIES if any(kind in parts for _, parts in worked))
        name = f"{key}-work"
        drawing = pies(name, said, worked, _COLOURS) if pie else shares(name, said, worked, _COLOURS, what="")
        found.append(Chart(drawing, "Kinds of work", "By share of the time in the trace.", legend))
    for place, arm in enumerate(one.arms):
        if arm.top:
            found.append(_operations(arm, f"{key}-operations-{arm.label.replace(':', '-')}", place, pie))
    return found


def _operations(arm: ArmFacts, name: str, place: int, pie: bool) -> Chart:
    title = f"The most expensive on {arm.label}"
    if pie:
        parts = {item.name: item.share for item in arm.top[:_PIECES]}
        colours = {operation: number for number, operation in enumerate(parts)} | {_REST: 8}
        parts[_REST] = max(1 - sum(parts.values()), 0.0)
        return Chart(pies(name, title, [(arm.label, parts)], colours), title)
    rows = [Bar(item.name, item.self_ns, None, None, place) for item in arm.top]
    what = "Time of kernels" if arm.top[0].total_ns is None else "Self time of operations"
    return Chart(
        bars(name, title, rows, _clock, "time in the trace"), title, f"{what}, all steps in the trace together."
    )


def _memory_charts(one: Speedup, key: str) -> list[Chart]:
    used = _memory_bars(one)
    if not used:
        return []
    drawing = bars(f"{key}-memory", "Peak memory", used, _bytes, "peak memory")
    return [Chart(drawing, "Peak memory", "As the run recorded it.")]


def _clock(value: float) -> str:
    return short(time(value))


def _bytes(value: float) -> str:
    return short(size(value))


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
    return found[:_MOST_BARS]


def _memory_bars(one: Speedup) -> list[Bar]:
    found = []
    for place, arm in enumerate(one.arms):
        for name, value in arm.memory.items():
            if name.startswith("peak"):
                found.append(Bar(f"{arm.label} {name.removeprefix('peak ')}", float(value), None, None, place))
    return found[:_MOST_BARS]
