"""Writes Nsight Compute's console text, in the layouts up to 2022.3 and after it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

Row = tuple[str, str, str]
"""(metric, unit, value), as printed."""
OLD_WIDTHS = (70, 15, 30)


@dataclass
class Launch:
    name: str
    grid: tuple[int, int, int] = (64, 1, 1)
    block: tuple[int, int, int] = (256, 1, 1)
    stream: int = 7
    sections: list[tuple[str, list[Row]]] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    """Of the first section."""


def old_text(launches: Sequence[Launch]) -> str:
    """Up to 2022.3: no grid, no header row, columns of 70, 15 and 30 characters."""
    lines = ["[42] app@127.0.0.1"]
    for launch in launches:
        lines.append(f"  {launch.name}, 2023-Sep-06 05:40:14, Context 1, Stream {launch.stream}")
        lines += _sections(launch, header=False)
    return "\n".join(lines) + "\n"


def new_text(launches: Sequence[Launch]) -> str:
    """After 2022.3: with grid, device and a header row, columns as wide as their cells."""
    lines = ["[42] app@127.0.0.1"]
    for launch in launches:
        place = f"Context 1, Stream {launch.stream}, Device 0, CC 8.0"
        lines.append(f"  {launch.name} {launch.grid}x{launch.block}, {place}")
        lines += _sections(launch, header=True)
    return "\n".join(lines) + "\n"


def raw_text(launches: Sequence[Launch]) -> str:
    """The raw page up to 2022.3: the header stands above the only ruler."""
    lines = ["[42] app@127.0.0.1"]
    for launch in launches:
        lines.append(f"  {launch.name}, 2023-Sep-06 05:40:14, Context 1, Stream {launch.stream}")
        rows = [row for _, section in launch.sections for row in section]
        widths = (*_widths(rows)[:2], 20)
        lines.append("  " + _line(("Metric Name", "Metric Unit", "Metric Value"), widths))
        lines.append("  " + " ".join("-" * width for width in widths))
        for row in rows:
            lines += ["  " + line for line in _wrapped(row, widths)]
        lines.append("")
    return "\n".join(lines) + "\n"


def _sections(launch: Launch, *, header: bool) -> list[str]:
    lines = []
    for number, (title, rows) in enumerate(launch.sections):
        widths = _widths(rows) if header else OLD_WIDTHS
        ruler = "    " + " ".join("-" * width for width in widths)
        lines += [f"    Section: {title}", ruler]
        if header:
            lines += ["    " + _line(("Metric Name", "Metric Unit", "Metric Value"), widths), ruler]
        for row in rows:
            lines += ["    " + line for line in _wrapped(row, widths)]
        lines.append(ruler)
        for rule in launch.rules if number == 0 else []:
            lines += _rule(rule)
        lines.append("")
    return lines


def _rule(text: str) -> list[str]:
    kind, _, words = text.partition(" ")
    first, *rest = textwrap.wrap(words, 100)
    return [f"    {kind}   {first:<110}", *(f"          {line:<110}" for line in rest), ""]


def _widths(rows: Sequence[Row]) -> tuple[int, ...]:
    table = [("Metric Name", "Metric Unit", "Metric Value"), *rows]
    return tuple(max(len(row[column]) for row in table) for column in range(3))


def _wrapped(row: Row, widths: Sequence[int]) -> list[str]:
    """A name is broken hard, a value between words."""
    names = [row[0][at : at + widths[0]] for at in range(0, len(row[0]), widths[0])]
    values = textwrap.wrap(row[2], widths[2]) or [""]
    count = max(len(names), len(values))
    cells = zip(
        [*names, *[""] * count], [row[1], *[""] * count], [*values, *[""] * count], strict=False
    )
    return [_line(cell, widths) for cell in list(cells)[:count]]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return " ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])
