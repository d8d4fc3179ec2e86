"""What is said while reports are taken into a store: one stream of events, in the order of the
files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.store.write import Written


@dataclass(frozen=True, slots=True)
class Found:
    """So many files and folders will be read."""

    total: int


@dataclass(frozen=True, slots=True)
class Started:
    """``what`` happens to a file from now on."""

    path: Path
    what: str = "reading"


@dataclass(frozen=True, slots=True)
class Note:
    """What is going on."""

    text: str


@dataclass(frozen=True, slots=True)
class Warned:
    """What the user should know before using the result."""

    text: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A run is in the store."""

    path: Path
    written: Written
    doubts: tuple[str, ...] = ()
    """What perfctl did not understand of a format newer than itself, and why there are no rows."""
    is_empty: bool = False
    """The report was recognised, and gave no rows."""
    ranks: tuple[int, ...] | None = None
    """Of a run folder: runs that are its other ranks; None for a report made elsewhere."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A report could not be read, or not to its end: why, in one line."""

    text: str
    is_expected: bool = True
    """False for a fault of perfctl or a library, and where memory was short."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The file is done with."""

    path: Path


Event = Found | Started | Note | Warned | Stored | Failed | Ended
Hear = Callable[[Event], None]


def hear_nothing(event: Event) -> None:
    """Drop every event."""
