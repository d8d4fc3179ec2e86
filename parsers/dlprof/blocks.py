"""The blocks that a summary of DLProf is a stack of."""

from __future__ import annotations

from typing import NamedTuple


class Block(NamedTuple):
    """One titled block of the summary."""

    title: str
    columns: tuple[str, ...]
    """Names of the value columns; empty where each line is a label and one value."""
    lines: list[tuple[str, tuple[str, ...]]]
    """(label, values)"""
