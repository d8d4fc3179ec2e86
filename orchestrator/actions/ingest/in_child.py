"""Reports read and stored by a child process with a limit on memory (``wall.items``).

The transaction that was open when a report ended the child is gone with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from perfctl.orchestrator.actions.ingest.sources import Source
from perfctl.orchestrator.actions.messages import SILENT, IngestListener, Messages
from perfctl.orchestrator.actions.wall import child, memory
from perfctl.orchestrator.actions.wall.child import Ended
from perfctl.orchestrator.actions.wall.items import Tell, each
from perfctl.orchestrator.actions.wall.unexpected import alone
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import Written
from perfctl.parsers import ReportError

T = TypeVar("T")


class Taker(Protocol):
    """Takes reports into a store."""

    def take(self, entry: Source | str) -> None:
        """Read one report or run folder; a text says why there is none."""


@dataclass(slots=True)
class Done:
    """What became of the reports so far; see ``Ingested``."""

    taken: list[tuple[Path, Written]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    empty: list[Path] = field(default_factory=list)


def take(
    entries: Sequence[Source | str],
    make: Callable[..., Taker],
    store: Path,
    listener: IngestListener,
    done: Done,
    limit: int,
) -> None:
    """Take all entries into the store. ``make(connection=, listener=, done=)`` gives what
    takes one.

    Raises what ends an ingest: StoreError, ToolMissing and their like.
    """

    @contextmanager
    def opened(tell: Tell) -> Iterator[Callable[[Source | str], None]]:
        told = Done(
            _Told(lambda one: tell("taken", str(one[0]), asdict(one[1]))),
            _Told(lambda why: tell("failed", why)),
            _Told(lambda path: tell("empty", str(path))),
        )
        with database.writing(store) as connection:
            yield make(connection=connection, listener=_Teller(tell), done=told).take

    def ended(entry: Source | str, end: Ended) -> None:
        why = f"{entry.shown if isinstance(entry, Source) else entry}: {end}. It was left out"
        done.failed.append(why)
        listener.failed(why)
        listener.end()

    with database.no_empty(store):
        each(entries, opened, partial(_hear, listener, done), ended, limit)


def _hear(listener: IngestListener, done: Done, name: str, *said: Any) -> None:
    match name, said:
        case "taken", (path, written):
            done.taken.append((Path(path), Written(**written)))
        case "failed", (why,):
            done.failed.append(why)
        case "empty", (path,):
            done.empty.append(Path(path))
        case "say", ("begin", path, what):
            listener.begin(Path(path), what)
        case "say", (method, *arguments):
            getattr(listener, method)(*arguments)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of one report or run folder."""

    item: T
    written: Written | None
    why: str | None = None
    """Why it could not be read, in one line."""
    is_expected: bool = True
    """False where nobody expected that, and where memory was short."""


def outcomes(
    items: Sequence[T],
    take_one: Callable[[sqlite3.Connection, T, Messages], Written | None],
    store: Path,
    limit: int,
    *,
    name: Callable[[T], object],
    messages: Messages = SILENT,
) -> list[Outcome[T]]:
    """What ``take_one`` makes of each item, in a child where one is possible, else in this process
    with the same limit.

    No connection to ``store`` may be open here. An item that fails costs itself; raises StoreError
    where the store does.
    """
    had = memory.shown(limit) if limit and memory.is_kept() else None
    found: list[Outcome[T]] = []

    def outcome(connection: sqlite3.Connection, item: T, messages: Messages) -> Outcome[T]:
        reasons: list[str] = []
        try:
            damaged = partial(database.is_damaged, connection)
            with alone(
                name(item), reasons.append, limit=had, is_of_store=damaged, passing=(OSError,)
            ):
                return Outcome(item, take_one(connection, item, messages))
        except (ReportError, OSError) as error:
            return Outcome(item, None, str(error))
        return Outcome(item, None, reasons[0], is_expected=False)

    if not (limit and memory.is_kept() and child.is_possible(store)):
        with database.writing(store) as connection, memory.kept(limit):
            return [outcome(connection, item, messages) for item in items]

    @contextmanager
    def opened(tell: Tell) -> Iterator[Callable[[T], None]]:
        with database.writing(store) as connection:

            def work(item: T) -> None:
                one = outcome(connection, item, _Teller(tell))
                tell("done", one.written and asdict(one.written), one.why, one.is_expected)

            yield work

    def hear(kind: str, *said: Any) -> None:
        if kind == "done":
            written, why, is_expected = said
            found.append(
                Outcome(items[len(found)], written and Written(**written), why, is_expected)
            )
        elif kind == "say":
            getattr(messages, said[0])(*said[1:])

    def ended(item: T, end: Ended) -> None:
        found.append(
            Outcome(item, None, f"{name(item)}: {end}. It was left out", is_expected=False)
        )

    each(items, opened, hear, ended, limit)
    return found


class _Told(list[Any]):
    """A list whose elements are told to the other process as they come."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, one: Any) -> None:
        self._tell(one)


class _Teller:
    """A listener that hands on what it hears."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def begin(self, path: Path, what: str = "reading") -> None:
        self._tell("say", "begin", str(path), what)

    def end(self) -> None:
        self._tell("say", "end")

    def found(self, total: int) -> None:
        self._tell("say", "found", total)

    def note(self, text: str) -> None:
        self._tell("say", "note", text)

    def warning(self, text: str) -> None:
        self._tell("say", "warning", text)

    def failed(self, text: str) -> None:
        self._tell("say", "failed", text)
