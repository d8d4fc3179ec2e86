"""Drawings of charts.py made part of the page (colors as CSS variables, labels under the pointer),
or files for a paper: PDF, PNG, SVG in the page's light colors, of a width in millimeters. The same
input gives the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, RULE, PAPER, ON_DEEP = "#1a1e23", "#59636e", "#e2e4e6", "#fdfdfb", "#ffffff"
SERIES = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"),
    *("#b3bac1", "#e4e7e9", "#8c6d52"),
)
"""The light colors of style.css: 7 is "other", without a color of its own, 8 the rest, 9 one color
more."""
VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper", ON_DEEP: "--on0"} | {
    color: f"--s{number}" for number, color in enumerate(SERIES)
}
"""Color in a drawing -> the variable of the page, which has a dark form too."""
FORMATS = ("pdf", "png", "svg")
MM = 25.4
SMALLEST_TEXT = 0.75
"""Of the page's 10 points: 7.5 pt, at whatever width."""
LEGEND_ROW = 0.17
NOTEBOOK_MM, NOTEBOOK_DPI = 150, 110
_KEPT: ContextVar[tuple[list[Drawn], bool] | None] = ContextVar("kept", default=None)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One chart of a page, still as a figure."""

    name: str
    """Key of the study and of the chart: "s1-ratio"."""
    description: str
    figure: Figure
    later: bool = False
    """The page's drawing of it was not made yet."""
    warning: str | None = None
    """What a reader should know before using it, in one sentence."""


def svg(name: str, description: str, figure: Figure) -> str:
    """The drawing, as matplotlib writes it; empty where it is drawn when it is saved."""
    kept = _KEPT.get()
    if kept is not None:
        found, later = kept
        found.append(Drawn(name, description, figure, later))
        if later:
            return ""
    return _svg(name, figure)


def _svg(name: str, figure: Figure) -> str:
    import matplotlib

    out = io.StringIO()
    settings: Any = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "DejaVu Sans",
        "figure.autolayout": False,
        "figure.constrained_layout.use": False,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # a glyph that the measuring font lacks; the browser has its own
        warnings.simplefilter("ignore", UserWarning)
        with _laid_out(figure):
            figure.savefig(
                out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
            )
    return out.getvalue()


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Inside, everything has its place and keeps it: saving a figure that lays itself out draws it
    once more, for nothing."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)
    try:
        yield
    finally:
        figure.set_layout_engine(engine)


@contextmanager
def drawn(*, later: bool = False) -> Iterator[list[Drawn]]:
    """The charts that are drawn inside the block; ``later``: none is drawn before it is saved."""
    found: list[Drawn] = []
    token = _KEPT.set((found, later))
    try:
        yield found
    finally:
        _KEPT.reset(token)


class Picture:
    """A chart in a notebook, which shows it where it is a cell's last value: the page's light
    colours on white."""

    def __init__(self, chart: Drawn) -> None:
        self._chart = chart
        self.name = chart.name
        self.description = chart.description
        self.warning = chart.warning
        """What a reader should know before using it; None for most."""

    @cached_property
    def png(self) -> bytes:
        """The file; drawn when it is first asked for."""
        out = io.BytesIO()
        save(self._chart, out, "png", NOTEBOOK_MM, dpi=NOTEBOOK_DPI)
        return out.getvalue()

    @property
    def figure(self) -> Figure:
        """As matplotlib's, to change it."""
        _ = self.png
        return self._chart.figure

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        said = self.description.partition(". ")[0]
        return f"{said} (warning: {self.warning})" if self.warning else said


def save(
    chart: Drawn,
    out: Path | BinaryIO,
    form: str,
    width_mm: float,
    height_mm: float | None = None,
    dpi: int = 300,
) -> None:
    """Write one chart; ``height_mm`` None keeps the height that the text needs. Dates and versions
    are not written."""
    import matplotlib
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    figure = chart.figure
    if chart.later:
        _svg(chart.name, figure)  # its places stand in the file, too
    wide, high = figure.get_size_inches()
    scale = min(max(width_mm / MM / float(wide), SMALLEST_TEXT), 1.0)
    figure.set_size_inches(width_mm / MM, height_mm / MM if height_mm else float(high) * scale)
    figure.patch.set_alpha(1)
    _legend(figure, grow=height_mm is None)
    ticks = {
        id(label)
        for axes in figure.axes
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels())
    }
    texts: list[Any] = [text for text in figure.findobj(Text) if id(text) not in ticks]
    for text in texts:
        text.set_fontsize(text.get_fontsize() * scale)
        if not figure.axes[0].patches:  # names in bars stand on colour
            text.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
    for axes in figure.axes:
        axes.tick_params(labelsize=10 * scale)
    fields = {
        "pdf": ("CreationDate", "Creator", "Producer"),
        "png": ("Software",),
        "svg": ("Date", "Creator"),
    }[form]
    settings: Any = {
        "svg.hashsalt": chart.name,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "font.family": "DejaVu Sans",
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # a glyph that the font lacks is drawn as a box
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(out, format=form, dpi=dpi, metadata=dict.fromkeys(fields), facecolor="white")


def _legend(figure: Figure, *, grow: bool) -> None:
    bars = [one for axes in figure.axes for one in axes.containers]
    parts: dict[str, Any] = {
        str(one.get_label()): one for one in bars if not str(one.get_label()).startswith("_")
    }
    if not parts:
        return
    if grow:
        wide, high = figure.get_size_inches()
        figure.set_size_inches(wide, high + LEGEND_ROW * -(-len(parts) // 3))
    legend = figure.legend(
        list(parts.values()),
        [drawable(name) for name in parts],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
        handlelength=0.8,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


@dataclass(frozen=True, slots=True)
class Hit:
    """A text under the pointer and its area: a point, or a box from (x, y) to (right, top), in the
    data's units."""

    text: str
    x: float
    y: float
    right: float | None = None
    top: float | None = None
    href: str = ""
    """Where it leads; "" for a text only."""
    trail: str = ""
    """Key of the trail that a click opens."""
    layer: str = ""
    direction: str = ""
    """What it belongs to, to light up with; "" for nothing."""


def shapes(
    hits: Sequence[Hit], transform: Callable[[tuple[float, float]], Sequence[float]], high: float
) -> str:
    """Unseen shapes over the points and bars, each with its label: shown on hover, with and without
    a script.

    ``transform``: from the data's units to the drawing's, counted from below; ``high``: how high
    the drawing is.
    """
    found = []
    for hit in hits:
        x, y = transform((hit.x, hit.y))
        if hit.right is None or hit.top is None:
            shape, tag = f'cx="{x:.1f}" cy="{high - y:.1f}" r="7"', "circle"
        else:
            right, top = transform((hit.right, hit.top))
            shape = (
                f'x="{min(x, right):.1f}" y="{high - max(y, top):.1f}" '
                f'width="{abs(right - x):.1f}" height="{abs(top - y):.1f}"'
            )
            tag = "rect"
        said = escape(drawable(hit.text, 300))
        drawn = f'<{tag} class="hit" {shape}><title>{said}</title></{tag}>'
        found.append(_linked(hit, drawn, said) if hit.href else drawn)
    return "\n".join(found)


def _linked(hit: Hit, drawn: str, said: str) -> str:
    marks = {"data-trail": hit.trail, "data-layer": hit.layer, "data-direction": hit.direction}
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in marks.items() if value)
    return f'<a href="{escape(hit.href)}"{attributes} aria-label="{said}">{drawn}</a>'


def drawable(label: str, most: int = 28) -> str:
    """Short enough for a place beside a line, and of characters that can be drawn."""
    text = "".join(
        character if character.isprintable() else "\ufffd" for character in label[-most:]
    )
    return text if len(label) <= most else "…" + text[1:]


def tidy(text: str, description: str, shapes: str = "") -> str:
    """Only the drawing: no prologue, metadata or style of its own; stand-ins become
    CSS variables."""
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL
    )
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    role = "group" if "<a " in shapes else "img"  # what an image holds is not read aloud
    head = f'<svg class="chart" {box.group()} role="{role}" aria-label="{escape(description)}">'
    text = head + text[text.index(">") + 1 :]
    for color, variable in VARIABLES.items():
        text = text.replace(f": {color}", f": var({variable})")
    text = re.sub(r"(font(?:-family)?: ?)([^;\"]*?)'DejaVu Sans'[^;\"]*", _font, text)
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace("; ; ", "; ")
    text = re.sub(r"\s*\n\s*", "\n", text).strip()
    return text.removesuffix("</svg>") + shapes + "</svg>"


def _font(found: re.Match[str]) -> str:
    return (
        "" if found.group(1).startswith("font-family") else f"font-size: {found.group(2).strip()}"
    )
