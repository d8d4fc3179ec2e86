"""Reports read and stored by a child process with a limit on memory; this one hears of it and says it.

A report that ends the child (out of memory, a crash of a library) has cost itself: another child goes on behind it. The
transaction that was open is gone with the child.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.actions.ingest.parallel import heard_error, told_error
from perfctl.orchestrator.actions.ingest.sources import Source
from perfctl.orchestrator.actions.wall.child import Ended, Send, forked
from perfctl.orchestrator.errors import PerfctlError, StoreNote
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import Written

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.ingest.ingest import IngestListener, Intake


@dataclass(slots=True)
class Done:
    """What became of the reports so far; see ``Ingested``."""

    taken: list[tuple[Path, Written]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    empty: list[Path] = field(default_factory=list)


def take(
    entries: Sequence[Source | str],
    make: Callable[..., Intake],
    store: Path,
    listener: IngestListener,
    done: Done,
    limit: int,
) -> None:
    """Take all entries into the store. ``make(connection=, listener=, done=)`` gives what takes one.

    Raises what ends an ingest: StoreError, ToolMissing and their like.
    """
    hear = _Hearer(listener, done)
    first = 0
    while True:
        hear.at = first - 1
        try:
            with forked(partial(_take_from, first, entries, make, store), limit) as lines:
                for line in lines:
                    hear(*json.loads(line))
            return
        except Ended as end:
            if hear.at < first:
                raise PerfctlError(f"{store}: no report could be read: {end}") from None
            entry = entries[hear.at]
            why = f"{entry.shown if isinstance(entry, Source) else entry}: {end}. It was left out"
            done.failed.append(why)
            listener.failed(why)
            listener.end()
            first = hear.at + 1


class _Hearer:
    """Does what the child says."""

    def __init__(self, listener: IngestListener, done: Done) -> None:
        self._listener, self._done = listener, done
        self.at = -1
        """Entry that the child is reading."""

    def __call__(self, name: str, *said: Any) -> None:
        match name, said:
            case "at", (number,):
                self.at = number
            case "taken", (path, written):
                self._done.taken.append((Path(path), Written(**written)))
            case "failed", (why,):
                self._done.failed.append(why)
            case "empty", (path,):
                self._done.empty.append(Path(path))
            case "warn", (is_note, text):
                warnings.warn(StoreNote(text) if is_note else UserWarning(text), stacklevel=1)
            case "error", (*error,):
                found = heard_error(error)
                assert found is not None
                raise found
            case "say", ("begin", path, what):
                self._listener.begin(Path(path), what)
            case "say", (method, *arguments):
                getattr(self._listener, method)(*arguments)


def _take_from(
    first: int, entries: Sequence[Source | str], make: Callable[..., Intake], store: Path, send: Send
) -> None:
    """In the child: take these entries and those behind them."""

    def tell(*said: Any) -> None:
        send(json.dumps(said))

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        tell("warn", isinstance(message, StoreNote), str(message))

    warnings.showwarning = warn
    done = Done(
        _Told(lambda one: tell("taken", str(one[0]), asdict(one[1]))),
        _Told(lambda why: tell("failed", why)),
        _Told(lambda path: tell("empty", str(path))),
    )
    try:
        with database.writing(store, keep_empty=False) as connection:
            intake = make(connection=connection, listener=_Teller(tell), done=done)
            for number in range(first, len(entries)):
                tell("at", number)
                intake.take(entries[number])
    except Exception as error:
        tell("error", *(told_error(error) or ()))


class _Told(list[Any]):
    """A list whose elements are told to the other process as they come."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, one: Any) -> None:
        self._tell(one)


class _Teller:
    """A listener that hands on what it hears."""

    def __init__(self, tell: Callable[..., None]) -> None:
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
