"""How the charts of a speed-up study are drawn, in the style and with the canvas of charts.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from perfctl.orchestrator.report import charts as style
from perfctl.orchestrator.report.charts import Series
from perfctl.orchestrator.report.numbers import percent
from perfctl.orchestrator.report.svg_text import INK, MUTED, PAPER, RULE, SERIES, Hit, drawable

_WIDE = 0.05
"""Parts below it carry no share in words."""
_LONG = 20
"""Characters of a label that leave room for few ticks."""


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


def epoch(value: float) -> str:
    """A whole number of epochs."""
    return f"{value:g}"


def plotted(
    name: str,
    description: str,
    lines: Sequence[Course],
    show: tuple[Callable[[float], str], Callable[[float], str]],
    titles: tuple[str, str],
) -> str:
    """Lines with a dot at each value, named at their ends; ``show`` and ``titles`` are those of the axes, x first."""
    show_x, show_y = show
    figure, axes = style._new()
    for line in lines:
        axes.plot(line.xs, line.ys, "o-", color=SERIES[line.colour % len(SERIES)], markersize=4.5, linewidth=1.6)
    axes.set_ylim(0, max(value for line in lines for value in line.ys) * 1.12 or 1)
    axes.yaxis.set_major_formatter(style._formatter(show_y))
    axes.set_xlim(left=0)
    if show_x is epoch:
        ticks = sorted({x for line in lines for x in line.xs})
        axes.set_xticks(ticks[:: -(-len(ticks) // 8)])
    else:
        axes.xaxis.set_major_locator(style.few_ticks())
    axes.xaxis.set_major_formatter(style._formatter(show_x))
    axes.set_xlabel(titles[0], color=MUTED, fontsize=10)
    axes.set_ylabel(titles[1], color=MUTED, fontsize=10)
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
    name: str,
    description: str,
    rows: Sequence[Bar],
    show: Callable[[float], str],
    title: str,
    line_at: float | None = None,
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
    axes.xaxis.set_major_locator(style.few_ticks(5 if max(len(bar.label) for bar in rows) < _LONG else 3))
    axes.set_xlabel(title, color=MUTED, fontsize=10)
    axes.grid(visible=False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    return style._svg(figure, name, description, hits)


def pies(
    name: str, description: str, rows: Sequence[tuple[str, Mapping[str, float]]], colours: Mapping[str, int]
) -> str:
    """A pie a row side by side, parts (shares, 0..1) in the order of ``colours``; wide parts carry their share.

    For who asks: angles are read worse than lengths, which is why bars are what is drawn otherwise.
    """
    figure, first = style._new(height=0.8 + 5.0 / max(len(rows), 2))
    figure.delaxes(first)
    seen: dict[str, Any] = {}
    for axes, (label, parts) in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        kept = [(part, parts[part]) for part in colours if parts.get(part, 0.0) > 0]
        wedges = axes.pie(
            [share for _, share in kept],
            colors=[SERIES[colours[part] % len(SERIES)] for part, _ in kept],
            labels=[percent(share) if share >= _WIDE else "" for _, share in kept],
            startangle=90, counterclock=False, wedgeprops={"edgecolor": PAPER, "linewidth": 1},
            labeldistance=1.12, textprops={"color": INK, "fontsize": 9, "parse_math": False},
        )[0]  # fmt: skip
        seen |= {part: wedge for (part, _), wedge in zip(kept, wedges, strict=True)}
        axes.set_title(drawable(label), color=INK, fontsize=10, parse_math=False)
    names = [part for part in colours if part in seen]
    legend = figure.legend(
        [seen[part] for part in names], [drawable(part, 40) for part in names], loc="outside lower center",
        ncols=2, frameon=False, fontsize=9, handlelength=0.8, columnspacing=1.2, labelcolor=INK,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    return style._svg(figure, name, description)
