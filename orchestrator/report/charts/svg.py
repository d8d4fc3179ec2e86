"""Drawings of charts.py made part of the page: colours as CSS variables, labels under the pointer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

INK, MUTED, RULE, PAPER, ON_DEEP = "#010101", "#020202", "#030303", "#050505", "#040404"
SERIES = tuple(f"#0a0a0{number}" for number in range(10))
"""Stand-ins; 7 is "other", without a colour of its own, 8 the rest, 9 one colour more."""
VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper", ON_DEEP: "--on0"} | {
    colour: f"--s{number}" for number, colour in enumerate(SERIES)
}


@dataclass(frozen=True, slots=True)
class Hit:
    """A text under the pointer and its area: a point, or a box from (x, y) to (right, top), in the data's units."""

    text: str
    x: float
    y: float
    right: float | None = None
    top: float | None = None


def shapes(hits: Sequence[Hit], transform: Callable[[tuple[float, float]], Sequence[float]], high: float) -> str:
    """Unseen shapes over the points and bars, each with its label: shown on hover, with and without a script.

    ``transform``: from the data's units to the drawing's, counted from below; ``high``: how high the drawing is.
    """
    found = []
    for hit in hits:
        x, y = transform((hit.x, hit.y))
        if hit.right is None or hit.top is None:
            shape, tag = f'cx="{x:.1f}" cy="{high - y:.1f}" r="7"', "circle"
        else:
            right, top = transform((hit.right, hit.top))
            shape = f'x="{min(x, right):.1f}" y="{high - max(y, top):.1f}" width="{abs(right - x):.1f}" height="{abs(top - y):.1f}"'
            tag = "rect"
        found.append(f'<{tag} class="hit" {shape}><title>{escape(drawable(hit.text, 200))}</title></{tag}>')
    return "\n".join(found)


def drawable(label: str, most: int = 28) -> str:
    """Short enough for a place beside a line, and of characters that can be drawn."""
    text = "".join(character if character.isprintable() else "\ufffd" for character in label[-most:])
    return text if len(label) <= most else "…" + text[1:]


def tidy(text: str, description: str, shapes: str = "") -> str:
    """Only the drawing: no prologue, metadata or style of its own; stand-ins become CSS variables."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    head = f'<svg class="chart" {box.group()} role="img" aria-label="{escape(description)}">'
    text = head + text[text.index(">") + 1 :]
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"(font(?:-family)?: ?)([^;\"]*?)'DejaVu Sans'[^;\"]*", _font, text)
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace("; ; ", "; ")
    text = re.sub(r"\s*\n\s*", "\n", text).strip()
    return text.removesuffix("</svg>") + shapes + "</svg>"


def _font(found: re.Match[str]) -> str:
    """Keep the size, give the family to the page."""
    return "" if found.group(1).startswith("font-family") else f"font-size: {found.group(2).strip()}"
