"""What an option of a command means. A record whose fields are options is declared where it is
used: below ``commands`` too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfctl.orchestrator.errors import UsageError


@dataclass(frozen=True, slots=True)
class Option:
    """What a field of a command's options means."""

    help: str
    group: str = "Input"
    """Heading above it in ``--help``: one of ``cli.commands.HEADINGS``."""
    names: tuple[str, ...] = ()
    """Names on the command line; empty: the name of the field, as in --tokens-per-second."""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    is_argument: bool = False
    """Whether the value stands without a name on the command line."""
    parse: Callable[[str], Any] | None = None
    """Reader of what was typed; None: the type hint says how to read it."""


def batch_sizes(text: str) -> tuple[int, ...]:
    """Return "16,32" as numbers. Raises UsageError that names the piece that is none."""
    sizes = []
    for piece in map(str.strip, text.split(",")):
        if not piece.isdecimal():
            raise UsageError(
                f"`batch`: '{piece}' is not a batch size", "Use for instance `batch` 16,32,64"
            )
        sizes.append(int(piece))
    return tuple(sizes)
