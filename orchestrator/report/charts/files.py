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
LETTER = 0.08
"""Width of a letter of the legend in inches, at full size."""
NOTEBOOK_MM, NOTEBOOK_DPI = 150, 110
_COLLECTED: ContextVar[tuple[list[Picture], bool] | None] = ContextVar("collected", default=None)


@dataclass(frozen=True, repr=False)
class Picture:
    """One chart of a page, still as a figure. A notebook shows it where it is a cell's last value:
    the page's light colours on white."""

    name: str
    """Key of the study and of the chart: "s1-ratio"."""
    description: str
    figure: Figure
    """As matplotlib's, to change it before it is drawn."""
    later: bool
    """The page's drawing of it was not made yet."""
    warning: str | None = None
    """What a reader should know before using it, in one sentence; None for most."""

    @cached_property
    def png(self) -> bytes:
        """The file; drawn when it is first asked for."""
        file = io.BytesIO()
        save_chart(self, file, "png", NOTEBOOK_MM, dpi=NOTEBOOK_DPI)
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        title = self.description.partition(". ")[0]
        return f"{title} (warning: {self.warning})" if self.warning else title


def collect_or_draw_svg(name: str, description: str, figure: Figure) -> str:
    """Return the drawing, as matplotlib writes it; empty if it is drawn when it is saved."""
    collected = _COLLECTED.get()
    if collected is not None:
        charts, later = collected
        charts.append(Picture(name, description, figure, later))
        if later:
            return ""
    return _render_svg_text(name, figure)


def _render_svg_text(name: str, figure: Figure) -> str:
    text_file = io.StringIO()
    with _use_reproducible_drawing_settings(name), _freeze_layout(figure):
        no_dates = {"Date": None, "Creator": None}
        figure.savefig(text_file, format="svg", metadata=no_dates, transparent=True)
    return text_file.getvalue()


@contextmanager
def _use_reproducible_drawing_settings(name: str) -> Iterator[None]:
    """Write text as text, and the same bytes for the same drawing."""
    import matplotlib

    settings: Any = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "font.family": "DejaVu Sans",
        "figure.autolayout": False,
        "figure.constrained_layout.use": False,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # a glyph that the font lacks is drawn as a box; the browser has its own
        warnings.simplefilter("ignore", UserWarning)
        yield


@contextmanager
def _freeze_layout(figure: Figure) -> Iterator[None]:
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
def collect_charts(*, defers_drawing: bool = False) -> Iterator[list[Picture]]:
    """Collect the charts that are drawn inside the block; ``defers_drawing``: none is drawn before
    it is saved."""
    charts: list[Picture] = []
    token = _COLLECTED.set((charts, defers_drawing))
    try:
        yield charts
    finally:
        _COLLECTED.reset(token)


def save_chart(
    chart: Picture,
    target: Path | BinaryIO,
    file_format: str,
    width_mm: float,
    height_mm: float | None = None,
    dpi: int = 300,
) -> None:
    """Write one chart; ``height_mm`` None keeps the height that the text needs. Dates and versions
    are not written."""
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    figure = chart.figure
    if chart.later:
        _render_svg_text(chart.name, figure)  # it lays out the drawing, as in the page
    wide, high = figure.get_size_inches()
    scale = min(max(width_mm / MM / float(wide), SMALLEST_TEXT), 1.0)
    figure.set_size_inches(width_mm / MM, height_mm / MM if height_mm else float(high) * scale)
    figure.patch.set_alpha(1)
    _add_bar_legend(figure, scale, grows_figure=height_mm is None)
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
    }[file_format]
    with _use_reproducible_drawing_settings(chart.name):
        figure.savefig(
            target, format=file_format, dpi=dpi, metadata=dict.fromkeys(fields), facecolor="white"
        )


def _add_bar_legend(figure: Figure, scale: float, *, grows_figure: bool) -> None:
    bars = (bar for axes in figure.axes for bar in axes.containers)
    parts = {label: bar for bar in bars if not (label := str(bar.get_label())).startswith("_")}
    if not parts:
        return
    wide, high = figure.get_size_inches()
    names = [truncate_label_start(name) for name in parts]
    entry = LETTER * scale * (max(map(len, names)) + 4)
    columns = max(1, min(3, int(wide / entry)))
    if grows_figure:
        figure.set_size_inches(wide, high + LEGEND_ROW * -(-len(parts) // columns))
    draw_legend(figure, list(parts.values()), names, ncols=columns)


def draw_legend(figure: Figure, parts: list[Any], names: list[str], **options: Any) -> None:
    """Draw the names below the drawing."""
    legend = figure.legend(
        parts,
        names,
        loc="outside lower center",
        frameon=False,
        fontsize=9,
        handlelength=0.8,
        columnspacing=1.2,
        **options,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


@dataclass(frozen=True, slots=True)
class HoverArea:
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


def build_hover_shapes_svg(
    hits: Sequence[HoverArea],
    transform: Callable[[tuple[float, float]], Sequence[float]],
    drawing_height: float,
) -> str:
    """Unseen shapes over the points and bars, each with its label: shown on hover, with and without
    a script.

    ``transform``: from the data's units to the drawing's, counted from below; ``drawing_height``:
    how high the drawing is.
    """
    drawings = []
    for hit in hits:
        x, y = transform((hit.x, hit.y))
        if hit.right is None or hit.top is None:
            shape = f'<circle class="hit" cx="{x:.1f}" cy="{drawing_height - y:.1f}" r="7"'
        else:
            right, top = transform((hit.right, hit.top))
            shape = (
                f'<rect class="hit" x="{min(x, right):.1f}" y="{drawing_height - max(y, top):.1f}" '
                f'width="{abs(right - x):.1f}" height="{abs(top - y):.1f}"'
            )
        tag, label = shape[1:].split()[0], escape(truncate_label_start(hit.text, 300))
        drawing = f"{shape}><title>{label}</title></{tag}>"
        drawings.append(_wrap_shape_in_link(hit, drawing, label) if hit.href else drawing)
    return "\n".join(drawings)


def _wrap_shape_in_link(hit: HoverArea, drawing: str, label: str) -> str:
    marks = {"data-trail": hit.trail, "data-layer": hit.layer, "data-direction": hit.direction}
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in marks.items() if value)
    return f'<a href="{escape(hit.href)}"{attributes} aria-label="{label}">{drawing}</a>'


def truncate_label_start(label: str, max_characters: int = 28) -> str:
    """Short enough for a place beside a line, and of characters that can be drawn."""
    text = "".join(
        character if character.isprintable() else "\ufffd" for character in label[-max_characters:]
    )
    return text if len(label) <= max_characters else "…" + text[1:]


def convert_svg_for_page(text: str, description: str, shapes: str) -> str:
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
    text = re.sub(
        r"(font(?:-family)?: ?)([^;\"]*?)'DejaVu Sans'[^;\"]*",
        lambda font: "" if font[1].startswith("font-f") else f"font-size: {font[2].strip()}",
        text,
    )
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace("; ; ", "; ")
    text = re.sub(r"\s*\n\s*", "\n", text).strip()
    return text.removesuffix("</svg>") + shapes + "</svg>"
