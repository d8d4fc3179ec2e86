"""A speed-up study for the terminal and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.speedup_records import Speedup
from perfctl.orchestrator.report import terminal as terminals
from perfctl.orchestrator.report.speedup_view import notes, tables, upright

if TYPE_CHECKING:
    from rich.console import RenderableType

_ROWS = 12
_ELSEWHERE = "the page and --json have them"


def terminal(one: Speedup) -> list[RenderableType]:
    """Heading, what has to be known, tables."""
    names = ", ".join(arm.label for arm in one.arms)
    lines = [f"{one.workload or 'a program'}, batch {one.batch or 'not known'}: {names}", *notes(one)]
    first, *others = tables(one)
    figures = upright(first)
    shown = [*terminals.shown([figures], len(figures.rows), ""), *terminals.shown(others, _ROWS, _ELSEWHERE)]
    return [*lines, *shown]


def as_json(one: Speedup) -> dict[str, Any]:
    """Every figure, records as objects."""
    found: dict[str, Any] = plain(one)
    return found


def plain(value: Any) -> Any:
    """Records as objects by field name, tuples as lists."""
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if hasattr(value, "__dataclass_fields__"):
        return {key: plain(getattr(value, key)) for key in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value
