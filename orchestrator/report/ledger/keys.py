"""Keys of trails, which stand in the page's address; apart from the trails, so that charts and
tables can name them too."""

from __future__ import annotations


def row_key(place: str, direction: str, batch: int | None) -> str:
    """Key of a ledger row's trail: "conv2/forward/64"."""
    return "/".join((place, direction, "" if batch is None else str(batch)))


def sweep_key(rule: str) -> str:
    """Key of the trail of a verdict about the sweep: "sweep/wrong-window"."""
    return f"sweep/{rule.replace(' ', '-')}"
