"""Cells of tables: a shown text, the full value or the reason, and the state of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from perfctl.orchestrator.analyse.figure import Figure
from perfctl.orchestrator.report.numbers import DASH, column_unit, full, in_unit, percent, rounded, unit_of

NAME = 90
"""Characters of a name that has no short form."""
TURNING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Marks that turn a line around or end it: what stands on the screen or page would not be what was said."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str
    title: str | None = None
    """Full value with its unit, or the reason why there is none."""
    style: str = ""
    """"" (counted, or words), "est" (estimated), "der" (derived), "no" (not collected, not available), "refused"."""
    value: float | str | None = None
    """Sorted by and exported; None when there is nothing."""
    unit: str | None = None
    """Prefix and unit ("M", "ms", "") beside the number; None for a cell of one piece."""
    scale: Scale | None = None
    """How the number is written in another unit; None where it is not."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A number that can be written in another unit."""

    value: float
    """In ``unit``, without a prefix."""
    unit: str = ""
    mark: str = ""
    """Before the number: "~ ", "ƒ ", "≥ "."""
    down: bool = True
    """Prefixes below 1 are used."""


def scaled(title: str | None, value: float, scale: Scale, style: str = "") -> Cell:
    """ "24.7 ms" as a cell of a number and its unit, which suits this number alone until a table chooses one."""
    divisor, unit = column_unit((scale.value,), scale.unit, down=scale.down)
    return Cell(scale.mark + in_unit(scale.value, divisor), title, style, rounded(value), unit, scale)


def in_one_unit(cells: Sequence[Cell]) -> list[Cell]:
    """A column with one unit, chosen for its median; far smaller values have their own, other cells stay as they are."""
    scales = [cell.scale for cell in cells if cell.scale is not None]
    if not scales:
        return list(cells)
    first = scales[0]
    column = column_unit((scale.value for scale in scales), first.unit, down=first.down)
    return [cell if cell.scale is None else _written(cell, cell.scale, column) for cell in cells]


def _written(cell: Cell, scale: Scale, column: tuple[float, str]) -> Cell:
    divisor, unit = unit_of(scale.value, column, scale.unit, down=scale.down)
    if unit == cell.unit and cell.style != "est":  # an estimate's sign may stand before another
        return cell
    return Cell(scale.mark + in_unit(scale.value, divisor), cell.title, cell.style, cell.value, unit, scale)


def text_cell(text: object, title: str | None = None) -> Cell:
    """A cell of words."""
    return Cell(str(text), title, value=str(text))


@lru_cache(maxsize=1024)
def nothing(reason: str) -> Cell:
    """An en dash with the reason."""
    return Cell(DASH, reason, "no")


def word(text: object) -> Cell:
    """A cell of words, which a report may not have."""
    return nothing("the report does not say") if text is None or text == "" else text_cell(text)


def name_cell(name: str, short: str | None = None) -> Cell:
    """A name from a report: shortened in the cell, whole in the title."""
    shown = short or name
    if short is None and len(name) > NAME:
        shown = f"{name[:60]} … {name[-25:]}"
    return Cell(shown, name[:1000] if name != shown else None, value=name)


def amount(value: float | None, unit: str, reason: str = "not collected") -> Cell:
    """A count with an SI prefix (the unit stands in the column's head)."""
    return nothing(reason) if value is None else scaled(full(value, unit), value, Scale(value))


def rate(value: float | None, unit: str, reason: str = "not collected") -> Cell:
    """So many a second (the unit stands in the column's head)."""
    return nothing(reason) if value is None else scaled(full(value, unit), value, Scale(value, down=False))


def count(value: int | None, reason: str = "not collected") -> Cell:
    """A whole number, grouped, all digits."""
    return nothing(reason) if value is None else Cell(full(value), value=value)


def decimal_cell(value: float | None, reason: str = "not collected") -> Cell:
    """A loss or another number of one unit, to four decimals."""
    return nothing(reason) if value is None else Cell(f"{value:.4f}", str(value), value=value)


def time_cell(ns: float | None, reason: str = "not collected", note: str | None = None) -> Cell:
    """A duration; the title has the nanoseconds."""
    return (
        nothing(reason)
        if ns is None
        else scaled(f"{full(ns, 'ns')}{'; ' + note if note else ''}", ns, Scale(float(ns) / 1e9, "s"))
    )


def size_cell(value: float | None, reason: str = "not collected") -> Cell:
    """Bytes; the title has them all."""
    return nothing(reason) if value is None else scaled(full(value, "B"), value, Scale(value, "B"))


def share_cell(share: float | None, reason: str = "not known") -> Cell:
    """A percentage."""
    return nothing(reason) if share is None else Cell(percent(share), value=round(share, 6))


def estimated(cell: Cell, reason: str) -> Cell:
    """The cell as an estimate: "~ " before its value; ``reason`` in its title."""
    if cell.value is None and cell.scale is None:
        return cell
    scale = None if cell.scale is None else replace(cell.scale, mark="~ ")
    title = "; ".join(filter(None, (cell.title, reason)))
    return replace(cell, text=f"~ {cell.text}", title=title, style="est", scale=scale)


def mark(figure: Figure) -> str:
    """The sign before a value: "~ " when it is estimated, "ƒ " when it is derived, "≥ " when a part of it is missing."""
    return ("≥ " if figure.lower_bound else "") + {"estimated": "~ ", "derived": "ƒ "}.get(figure.state, "")


def style_of(figure: Figure) -> str:
    """The style of the figure's state."""
    if figure.value is None:
        return "refused" if figure.state == "refused" else "no"
    return {"estimated": "est", "derived": "der"}.get(figure.state, "")


def why(figure: Figure) -> str:
    """The grounds of the state: the rule, missing parts, or why there is no value."""
    if figure.value is None:
        return f"{figure.state.replace('_', ' ')}: {figure.reason}"
    notes = []
    if figure.launches < figure.of_launches:
        notes.append(f"{figure.launches} of {figure.of_launches} launches")
    if figure.missing:
        notes.append(f"without {', '.join(figure.missing)}")
    if figure.reason:
        notes.append(figure.reason)
    parts = [part for part in (figure.rule or "").split("; ") if part.rpartition(": ")[2] not in (figure.reason or "")]
    if figure.rule and parts:
        notes.append(f"rule: {'; '.join(parts)}")
    return "; ".join(notes)


def figure_cell(figure: Figure, unit: str) -> Cell:
    """A figure in its state: text_cell, "~" when estimated, "≥" when a part is missing, an en dash, or struck."""
    if figure.value is None:
        state = style_of(figure)
        return Cell("refused" if state == "refused" else DASH, why(figure), state)
    title = "; ".join(filter(None, (full(figure.value, unit), why(figure))))
    return scaled(title, figure.value, Scale(figure.value, mark=mark(figure)), style_of(figure))
