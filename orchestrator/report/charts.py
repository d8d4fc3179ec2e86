"""Charts as SVG text: the one file that knows matplotlib.

Colours are drawn as fixed stand-ins and then replaced by CSS variables, so that one drawing serves the
light and the dark page. Text stays text. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, RULE, PAPER, ON_DEEP = "#010101", "#020202", "#030303", "#050505", "#040404"
SERIES = tuple(f"#0a0a0{number}" for number in range(9))
"""Stand-ins; 7 is what has no colour of its own ("other"), 8 what is left over."""
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper", ON_DEEP: "--on0"} | {
    colour: f"--s{number}" for number, colour in enumerate(SERIES)
}
SIZE = (6.0, 3.3)
"""Inches at 72 units an inch: 432 x 238 in the drawing's own units."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its points against batch size, and the spread where there are repeats."""

    label: str
    batches: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    colour: int = 0


def against_batch(
    name: str, description: str, lines: Sequence[Series], show: Callable[[float], str], *, log: bool = False
) -> str:
    """Lines against batch size (log2 axis, real values as ticks), labelled at their ends.

    With ``log`` the values stand on a log2 axis too, with a line at 1 named "paper".
    """
    figure, axes = _new()
    for line in lines:
        colour = SERIES[line.colour % len(SERIES)]
        if line.lows:
            axes.fill_between(line.batches, line.lows, line.highs, color=colour, alpha=0.18, linewidth=0)
        style = "" if log else "-"
        axes.plot(line.batches, line.values, f"o{style}", color=colour, markersize=4.5, linewidth=1.6)
    batches = sorted({batch for line in lines for batch in line.batches})
    _batch_axis(axes, batches)
    if log:
        _ratio_axis(axes, [value for line in lines for value in line.values], batches)
    else:
        highest = max([*(value for line in lines for value in line.values), *(h for line in lines for h in line.highs)])
        axes.set_ylim(0, highest * 1.12 or 1)
        axes.yaxis.set_major_formatter(_formatter(show))
    if len(lines) > 1 or log:
        _label_ends(axes, lines, log2 if log else float)
    return _svg(figure, name, description)


def shares(
    name: str, description: str, rows: Sequence[tuple[str, Mapping[str, float]]], colours: Mapping[str, int]
) -> str:
    """One bar a row from 0 to 100 %, its parts in the order of ``colours``; wide parts carry their name."""
    figure, axes = _new(height=0.62 + 0.42 * len(rows))
    for place, (_, parts) in enumerate(rows):
        left = 0.0
        for part in colours:
            width = parts.get(part, 0.0) * 100
            if width <= 0:
                continue
            colour = SERIES[colours[part] % len(SERIES)]
            axes.barh(place, width, left=left, height=0.72, color=colour, edgecolor=PAPER, linewidth=1)
            if width >= 5 + 1.35 * len(part):
                dark = INK if colours[part] == 8 else ON_DEEP if colours[part] == 0 else "#0b0b0b"
                spot: dict[str, Any] = {
                    "ha": "center",
                    "va": "center",
                    "fontsize": 9,
                    "color": dark,
                    "parse_math": False,
                }
                axes.text(left + width / 2, place, _drawable(part), **spot)
            left += width
    axes.set_xlim(0, 100)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return _svg(figure, name, description)


def _new(height: float = SIZE[1]) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0], height), dpi=72, layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=10, length=3)
    return figure, axes


def _drawable(label: str) -> str:
    """Short enough to stand beside a line, and of characters that can be drawn."""
    text = "".join(character if character.isprintable() else "\ufffd" for character in label[-200:])
    return text if len(label) <= 28 else "…" + text[-27:]


def _formatter(show: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: show(value))


def _batch_axis(axes: Axes, batches: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    shown = batches if len(batches) <= 9 else [*batches[:: -(-len(batches) // 8)]]
    axes.set_xticks(list(shown), [str(batch) for batch in shown])
    axes.minorticks_off()
    axes.set_xlim(batches[0] / 1.25, batches[-1] * 1.25)
    axes.set_xlabel("batch size", color=MUTED, fontsize=10)


def _ratio_axis(axes: Axes, values: Sequence[float], batches: Sequence[int]) -> None:
    """log2 with room for 1/2 to 2 at least, and the line that everything is read against."""
    low, high = min([0.5, *values]), max([2.0, *values])
    axes.set_yscale("log", base=2)
    axes.set_ylim(low / 1.3, high * 1.3)
    first, last = ceil(log2(low / 1.3)), floor(log2(high * 1.3))
    step = max(1, ceil((last - first) / 8))
    ticks = [2.0**power for power in range(first, last + 1) if power % step == 0]
    axes.set_yticks(ticks, [f"{tick:g}" if tick >= 2**-4 else f"1/{1 / tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axhline(1, color=INK, linewidth=1)
    axes.annotate("paper", (batches[0] / 1.25, 1), xytext=(3, 3), textcoords="offset points", fontsize=9, color=INK)


def _label_ends(axes: Axes, lines: Sequence[Series], scale: Callable[[float], float]) -> None:
    """A name at the last point of each line, moved apart where they would lie on each other."""
    low, high = (scale(end) for end in axes.get_ylim())
    spots = [((scale(line.values[-1]) - low) / (high - low), line) for line in lines[:8]]
    spots.sort(key=lambda spot: spot[0])
    step, place = 0.075, -1.0
    for height, line in spots:
        place = max(height, place + step)
        axes.annotate(
            "●", (1.0, place), xycoords="axes fraction", xytext=(3, 0), textcoords="offset points", va="center",
            fontsize=8, annotation_clip=False, color=SERIES[line.colour % len(SERIES)],
        )  # fmt: skip
        axes.annotate(
            _drawable(line.label), (1.0, place), xycoords="axes fraction",
            xytext=(12, 0), textcoords="offset points", va="center", fontsize=9.5, annotation_clip=False,
            color=INK, parse_math=False,
        )  # fmt: skip


def _svg(figure: Figure, name: str, description: str) -> str:
    import matplotlib

    out = io.StringIO()
    settings: Any = {"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph that the measuring font lacks; the browser has its own
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return _tidy(out.getvalue(), description)


def _tidy(text: str, description: str) -> str:
    """Only the drawing: no prologue, metadata or style of its own; stand-ins become CSS variables."""
    from html import escape

    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    head = f'<svg class="chart" {box.group()} role="img" aria-label="{escape(description)}">'
    text = head + text[text.index(">") + 1 :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"(font(?:-family)?: ?)([^;\"]*?)'DejaVu Sans'[^;\"]*", _font, text)
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace("; ; ", "; ")
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def _font(found: re.Match[str]) -> str:
    """Keep the size, give the family to the page."""
    return "" if found.group(1).startswith("font-family") else f"font-size: {found.group(2).strip()}"
