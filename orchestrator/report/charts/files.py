"""The page's charts as files for a paper: PDF, PNG, SVG in the page's light colours, of a width in millimetres.

The drawings are those of charts.py; here they get real colours and a size. The same input gives the same bytes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.charts.svg import MUTED, PAPER, RULE, VARIABLES, drawable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png", "svg")
MM = 25.4
"""Millimetres an inch."""
SMALLEST_TEXT = 0.75
"""Of the page's 10 points: 7.5 pt, at whatever width."""
LEGEND_ROW = 0.17
"""Inches."""
_COLOURS = ("color", "markerfacecolor", "markeredgecolor", "facecolor", "edgecolor")


@dataclass(frozen=True, slots=True)
class Drawn:
    """One chart of a page, still as a figure."""

    name: str
    """Key of the study and of the chart: "s1-ratio"."""
    description: str
    figure: Figure


_KEPT: ContextVar[list[Drawn] | None] = ContextVar("kept", default=None)


def keep(name: str, description: str, figure: Figure) -> None:
    """Called for every chart that is drawn."""
    if (kept := _KEPT.get()) is not None:
        kept.append(Drawn(name, description, figure))


@contextmanager
def drawn() -> Iterator[list[Drawn]]:
    """The charts that are drawn inside the block."""
    found: list[Drawn] = []
    token = _KEPT.set(found)
    try:
        yield found
    finally:
        _KEPT.reset(token)


def save(chart: Drawn, path: Path, form: str, width_mm: float, height_mm: float | None = None, dpi: int = 300) -> None:
    """Write one chart; ``height_mm`` None keeps the height that the text needs. Dates and versions are not written."""
    import matplotlib
    from matplotlib.patheffects import withStroke

    figure = chart.figure
    wide, high = figure.get_size_inches()
    scale = min(max(width_mm / MM / float(wide), SMALLEST_TEXT), 1.0)
    figure.set_size_inches(width_mm / MM, height_mm / MM if height_mm else float(high) * scale)
    figure.patch.set_alpha(1)
    _colour(figure)
    _legend(figure, grow=height_mm is None)
    for text in _texts(figure):
        text.set_fontsize(text.get_fontsize() * scale)
        if not figure.axes[0].patches:  # names in bars stand on colour
            text.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
    for axes in figure.axes:
        axes.tick_params(labelsize=10 * scale)
    fields = {"pdf": ("CreationDate", "Creator", "Producer"), "png": ("Software",), "svg": ("Date", "Creator")}[form]
    settings: Any = {
        "svg.hashsalt": chart.name, "svg.fonttype": "none", "pdf.fonttype": 42, "font.family": "DejaVu Sans",
    }  # fmt: skip
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks is drawn as a box
        figure.savefig(path, format=form, dpi=dpi, metadata=dict.fromkeys(fields), facecolor="white")


def _legend(figure: Figure, *, grow: bool) -> None:
    """Names of the parts of bars below them: on the page they stand beside the drawing."""
    bars = [one for axes in figure.axes for one in axes.containers]
    parts: dict[str, Any] = {str(one.get_label()): one for one in bars if not str(one.get_label()).startswith("_")}
    if not parts:
        return
    if grow:
        wide, high = figure.get_size_inches()
        figure.set_size_inches(wide, high + LEGEND_ROW * -(-len(parts) // 3))
    legend = figure.legend(
        list(parts.values()), [drawable(name) for name in parts], loc="outside lower center", ncols=3,
        frameon=False, fontsize=9, handlelength=0.8, columnspacing=1.2,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _texts(figure: Figure) -> list[Any]:
    from matplotlib.text import Text

    ticks = {id(label) for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())}
    return [text for text in figure.findobj(Text) if id(text) not in ticks]


def _colour(figure: Figure) -> None:
    """Real colours in the place of the stand-ins, on everything that is drawn."""
    real = palette()
    for artist in figure.findobj():
        for name in _COLOURS:
            get, put = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if get is not None and put is not None:
                put(_translated(get(), real))
    muted, rule = real[_key(MUTED)], real[_key(RULE)]
    for axes in figure.axes:
        axes.tick_params(colors=muted, labelcolor=muted, grid_color=rule)  # also of ticks that the new size adds


def _translated(value: Any, real: dict[tuple[float, ...], str]) -> Any:
    """A colour, or an array of them, with its opacity."""
    from matplotlib.colors import to_rgba, to_rgba_array

    if isinstance(value, str) and value in ("none", "auto"):
        return value
    colours = [tuple(float(part) for part in colour) for colour in to_rgba_array(value)]
    new = [to_rgba(real[_key(colour)], colour[3]) if _key(colour) in real else colour for colour in colours]
    many = not isinstance(value, str) and len(value) > 0 and not isinstance(value[0], float | int)
    return new if many or not new else new[0]


def _key(colour: Any) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(round(part, 4) for part in to_rgb(colour))


def palette() -> dict[tuple[float, ...], str]:
    """Stand-in -> the page's colour on white, from its style sheet."""
    sheet = resources.files("perfctl.templates").joinpath("style.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"(--[a-z]+\d*):\s*(#[0-9a-f]{3,6})", sheet[: sheet.index("@media")]))
    return {_key(stand_in): light[name] for stand_in, name in VARIABLES.items()} | {_key(PAPER): "#ffffff"}
