"""The answer to a query: a table that fits the terminal, CSV, or plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.numbers import DASH

if TYPE_CHECKING:
    from rich.console import RenderableType

SHORTEST = 14
"""Characters that a column of text keeps at least; where that does not fit, each row is shown as a list."""


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Column names told apart: id, id -> id, id_2."""
    found: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in found:
            number += 1
            candidate = f"{name}_{number}"
        found.append(candidate)
    return tuple(found)


def plain(value: Any) -> Any:
    """A value that JSON has: bytes as hexadecimal digits, infinities as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not -1e400 < value < 1e400:
        return None if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def answer(names: Sequence[str], rows: Sequence[Sequence[Any]], width: int = 80) -> RenderableType:
    """Rows below their column names; rows of more columns than fit one below the other, each as a list."""
    texts = [[_shown(value) for value in row] for row in rows]
    needed = 2 * len(names)
    for place, name in enumerate(names):
        longest = max([len(name), *(len(row[place]) for row in texts)])
        needed += min(longest, SHORTEST) if _is_text(rows, place) else longest
    return _table(names, texts, rows) if needed <= width else _lists(names, texts)


def _table(names: Sequence[str], texts: Sequence[Sequence[str]], rows: Sequence[Sequence[Any]]) -> RenderableType:
    from rich.table import Table

    grid = Table(box=None, header_style="dim", pad_edge=False)
    for place, name in enumerate(names):
        text = _is_text(rows, place)
        grid.add_column(_text(name), justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for row in texts:
        grid.add_row(*map(_text, row))
    return grid


def _lists(names: Sequence[str], texts: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table

    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="dim", overflow="fold")
    grid.add_column(overflow="fold")
    for number, row in enumerate(texts, 1):
        grid.add_row(_text(f"row {number}"), _text(""))
        for name, value in zip(names, row, strict=True):
            grid.add_row(_text(f"  {name}"), _text(value))
    return grid


def _is_text(rows: Iterable[Sequence[Any]], place: int) -> bool:
    return any(isinstance(row[place], (str, bytes)) for row in rows)


def _shown(value: Any) -> str:
    """NULL as a dash, which no number is; 0 as 0."""
    if value is None:
        return DASH
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(words: str) -> Any:
    """Text as it is: control characters and marks that turn the line around are not sent to the terminal."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in words))
