"""The charts of a speed-up study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perfctl.orchestrator.compare.speedup import Gain, Speedup
from perfctl.orchestrator.counts.kernels.categories import CATEGORIES
from perfctl.orchestrator.counts.kernels.short_names import shorten
from perfctl.orchestrator.ledger.arm_figures import ArmFacts, Epoch
from perfctl.orchestrator.report.charts import charts as style
from perfctl.orchestrator.report.charts.charts import Chart, Series, against_batch, shares_chart
from perfctl.orchestrator.report.charts.files import INK, PAPER, RULE, SERIES, Hit, drawable
from perfctl.orchestrator.report.numbers import percent, ratio, short, significant, size, time

_WIDE, _LONG = 0.05, 20
"""Smaller parts have no share in words; labels of more characters leave room for few ticks only."""
_MOST_BARS, _PIECES = 24, 7
"""The pieces of a pie are as many as have a colour of their own."""
LABEL_CHARACTERS = 28
"""Characters of a kernel's name beside its bar."""
_REST = "all others"
ON_TEST = "On test data, newest run."
_METRICS: tuple[tuple[str, str, Callable[[float], str], str], ...] = (
    (
        "Training loss",
        "loss",
        significant,
        "Mean over the training data during the epoch, newest run.",
    ),
    ("Test loss", "test_loss", significant, ON_TEST),
    ("Accuracy", "accuracy", percent, ON_TEST),
    ("Dice", "dice", percent, ON_TEST),
)
_COLOURS = {kind: index for index, kind in enumerate(CATEGORIES)} | {"optimizer": 9, "other": 8}


def epoch(value: float) -> str:
    """A whole number of epochs."""
    return f"{value:g}"


class Bar(NamedTuple):
    """One horizontal bar, with its interval where it has one."""

    label: str
    value: float
    low: float | None
    high: float | None
    colour: int


class Course(NamedTuple):
    """Values of one arm along epochs or time."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    colour: int


def plotted(
    name: str,
    lines: Sequence[Course],
    show: tuple[Callable[[float], str], Callable[[float], str]],
    titles: tuple[str, str, str],
) -> str:
    """Lines with a dot at each value, named at their ends; ``show`` is for x and y, ``titles`` for
    all, x and y."""
    show_x, show_y = show
    figure, axes = style.new_axes(x=titles[1], y=titles[2], shows=show)
    for line in lines:
        axes.plot(
            line.xs,
            line.ys,
            "o-",
            color=SERIES[line.colour % len(SERIES)],
            markersize=4.5,
            linewidth=1.6,
        )
    axes.set_ylim(0, max(value for line in lines for value in line.ys) * 1.12 or 1)
    axes.set_xlim(left=0)
    if show_x is epoch:
        ticks = sorted({x for line in lines for x in line.xs})
        axes.set_xticks(ticks[:: -(-len(ticks) // 8)])
    else:
        axes.xaxis.set_major_locator(style.few_ticks())
    if len(lines) > 1:
        style.label_ends(
            axes, [Series(line.label, (0,), line.ys, colour=line.colour) for line in lines], float
        )
    hits = [
        Hit(f"{line.label}, {show_x(x)}: {show_y(y)}", x, y)
        for line in lines
        for x, y in zip(line.xs, line.ys, strict=True)
    ]
    return style.as_svg(figure, name, titles[0], hits)


def bars(
    name: str,
    description: str,
    rows: Sequence[Bar],
    show: Callable[[float], str],
    title: str,
    line_at: float | None = None,
) -> str:
    """Horizontal bars from 0, each with its interval as a line; ``line_at`` draws the reference."""
    figure, axes = style.new_axes(0.5 + 0.27 * len(rows), title, shows=(show,))
    hits = []
    for index, bar in enumerate(rows):
        axes.barh(index, bar.value, height=0.66, color=SERIES[bar.colour % len(SERIES)])
        words = f"{bar.label}: {show(bar.value)}"
        if bar.low is not None and bar.high is not None:
            axes.plot(
                [bar.low, bar.high],
                [index, index],
                color=INK,
                linewidth=1.4,
                marker="|",
                markersize=6,
            )
            words += f" ({show(bar.low)} to {show(bar.high)})"
        hits.append(Hit(words, 0, index - 0.33, max(bar.value, bar.high or 0), index + 0.33))
    if line_at is not None:
        axes.axvline(line_at, color=INK, linewidth=1)
    typical = max(bar.value for bar in rows)
    axes.set_xlim(
        0, min(max([typical, *(bar.high or 0 for bar in rows)]), 2.5 * typical) * 1.05 or 1
    )
    axes.set_yticks(range(len(rows)), [drawable(bar.label) for bar in rows])
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(
        style.few_ticks(5 if max(len(bar.label) for bar in rows) < _LONG else 3)
    )
    axes.grid(visible=False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    return style.as_svg(figure, name, description, hits)


def pies(
    name: str,
    description: str,
    rows: Sequence[tuple[str, Mapping[str, float]]],
    colours: Mapping[str, int],
) -> str:
    """A pie a row side by side, parts (shares, 0..1) in the order of ``colours``; wide parts carry
    their share.

    Bars are the default: lengths are easier to compare than angles.
    """
    figure, first = style.new_axes(height=0.8 + 5.0 / max(len(rows), 2))
    figure.delaxes(first)
    seen: dict[str, Any] = {}
    for axes, (label, parts) in zip(
        figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True
    ):
        kept = [(part, parts[part]) for part in colours if parts.get(part, 0.0) > 0]
        wedges = axes.pie(
            [share for _, share in kept],
            colors=[SERIES[colours[part] % len(SERIES)] for part, _ in kept],
            labels=[percent(share) if share >= _WIDE else "" for _, share in kept],
            startangle=90,
            counterclock=False,
            wedgeprops={"edgecolor": PAPER, "linewidth": 1},
            labeldistance=1.12,
            textprops={"color": INK, "fontsize": 9, "parse_math": False},
        )[0]
        seen |= {part: wedge for (part, _), wedge in zip(kept, wedges, strict=True)}
        axes.set_title(drawable(label), color=INK, fontsize=10, parse_math=False)
    names = [part for part in colours if part in seen]
    legend = figure.legend(
        [seen[part] for part in names],
        [drawable(part, 40) for part in names],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=9,
        handlelength=0.8,
        columnspacing=1.2,
        labelcolor=INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return style.as_svg(figure, name, description)


def charts(study: Speedup, key: str, *, pie: bool = False) -> list[Chart]:
    """Everything that this study has values for; ``pie`` draws shares of a whole as pies."""
    work = work_charts(study, key, pie=pie)
    return [*_bar_charts(study, key), *_course_charts(study, key), *work]


def across(studies: Sequence[Speedup]) -> Iterator[Chart]:
    """How many times faster at each batch size, a line a device: by whole epochs, then by steps."""
    base = studies[0].base
    for level, what, note in (
        ("epoch", "whole epochs", "every sample loaded and trained on once, without a profiler"),
        ("step", "steps", "measured steps, under the profiler"),
    ):
        gains: dict[str, dict[int, Gain]] = {}
        for study in studies:
            for other in study.comparisons:
                gain = next((line.gain for line in other.lines if line.key.level == level), None)
                if gain is not None and study.batch is not None:
                    gains.setdefault(other.label, {})[study.batch] = gain
        lines = [
            Series(
                label,
                tuple(at),
                tuple(gain.value for gain in at.values()),
                tuple(gain.low for gain in at.values()),
                tuple(gain.high for gain in at.values()),
                index,
            )
            for index, (label, at) in enumerate(gains.items(), 1)
        ]
        if any(len(line.batches) > 1 for line in lines):
            title = f"Times faster than {base} by {what}, by batch size"
            description = "; ".join(
                f"{line.label} {ratio(line.values[0])} to {ratio(line.values[-1])}"
                for line in lines
            )
            svg = against_batch(
                f"all-{level}", f"{title}. {description}", lines, ratio, up="times faster"
            )
            yield Chart(title, svg, f"{note}; shaded: 95% interval")


def _course_charts(study: Speedup, key: str) -> Iterator[Chart]:
    for what, field, show, note in _METRICS:
        for along, by, across in (("epoch", "epoch", epoch), ("time", "training time", show_time)):
            if lines := _courses(study, field, along):
                name, title = (
                    f"{key}-{what.replace(' ', '-').lower()}-by-{along}",
                    f"{what} by {by}",
                )
                titles = (title, by, what if what == "Dice" else what.lower())
                yield Chart(title, plotted(name, lines, (across, show), titles), note)
    if lines := _courses(study, "ns", "epoch"):
        title = "Training time of each epoch"
        drawing = plotted(f"{key}-epoch-time", lines, (epoch, show_time), (title, "epoch", "time"))
        yield Chart(title, drawing, "Without the test pass.")


def _bar_charts(study: Speedup, key: str) -> Iterator[Chart]:
    gains = [
        Bar(f"{other.label} {line.key.name}", line.gain.value, line.gain.low, line.gain.high, index)
        for index, other in enumerate(study.comparisons, 1)
        for line in other.lines
        if line.gain is not None and line.key.level in ("epoch", "step", "phase")
    ][:_MOST_BARS]
    if gains:
        title = f"Times faster than {study.base}"
        note = "Bars: ratios of geometric means; lines: their 95% intervals; 1: equally fast."
        description = f"{title}, with the 95% interval"
        drawing = bars(f"{key}-speedup", description, gains, ratio, "times faster", 1.0)
        yield Chart(title, drawing, note)


def work_charts(study: Speedup, key: str, *, pie: bool) -> Iterator[Chart]:
    """Kinds of work and the most expensive operations of each arm, as bars or pies; peak memory
    beside the bars."""
    worked = [(arm.label, dict(arm.categories)) for arm in study.arms if arm.categories]
    if worked:
        name, title, note = f"{key}-work", "Kinds of work", "By share of the time in the trace."
        description = f"{title} by share of the time in the trace"
        if pie:
            yield Chart(title, pies(name, description, worked, _COLOURS), note)
        else:
            yield shares_chart(name, title, description, worked, _COLOURS, note, what="")
    for index, arm in enumerate(study.arms):
        if arm.top_operations:
            yield _operations(arm, f"{key}-operations-{arm.label.replace(':', '-')}", index, pie)
    used = [
        Bar(f"{arm.label} {name.removeprefix('peak ')}", float(value), None, None, index)
        for index, arm in enumerate(study.arms)
        for name, value in arm.memory.items()
        if name.startswith("peak")
    ][:_MOST_BARS]
    if used and not pie:
        drawing = bars(
            f"{key}-memory", "Peak memory", used, lambda value: short(size(value)), "peak memory"
        )
        yield Chart("Peak memory", drawing, "From the run's own record.")


def _operations(arm: ArmFacts, name: str, index: int, pie: bool) -> Chart:
    title = f"The most expensive on {arm.label}"
    if pie:
        parts = {item.name: item.share for item in arm.top_operations[:_PIECES]}
        colours = {operation: number for number, operation in enumerate(parts)} | {_REST: 8}
        parts[_REST] = max(1 - sum(parts.values()), 0.0)
        return Chart(title, pies(name, title, [(arm.label, parts)], colours))
    is_kernels = arm.top_operations[0].total_ns is None
    kernels = (item.name for item in arm.top_operations) if is_kernels else ()
    names = shorten(kernels, LABEL_CHARACTERS)
    rows = [
        Bar(names.get(item.name, item.name), item.self_ns, None, None, index)
        for item in arm.top_operations
    ]
    quantity = "Time of kernels" if is_kernels else "Self time of operations"
    drawing = bars(name, title, rows, show_time, "time in the trace")
    return Chart(title, drawing, f"{quantity}, all steps in the trace.")


def show_time(value: float) -> str:
    """Return nanoseconds as an axis has them."""
    return short(time(value))


def _courses(study: Speedup, field: str, along: str) -> list[Course]:
    return [
        course
        for index, arm in enumerate(study.arms)
        for course in epoch_courses(arm.label, arm.epochs, field, index, along)
    ]


def epoch_courses(
    label: str, epochs: Sequence[Epoch], field: str, colour: int, along: str = "epoch"
) -> Iterator[Course]:
    """Yield a figure of the epochs that have it, along their numbers or their training time."""
    values = [(item, getattr(item, field)) for item in epochs]
    points = [
        (float(item.number + 1) if along == "epoch" else item.elapsed_ns, float(value))
        for item, value in values
        if value is not None
    ]
    if points:
        xs, ys = zip(*points, strict=True)
        yield Course(label, xs, ys, colour)
