"""Items worked on by child processes; this process hears of each and says it. What goes between
them are lines of JSON.

With one child (``each``), an item that ends it (out of memory, a crash of a library) has cost
itself: another child goes on behind it. Several (``spread``) share the items.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from perfctl.orchestrator.actions.wall import memory
from perfctl.orchestrator.actions.wall.child import Ended, Send, forked, is_possible
from perfctl.orchestrator.actions.wall.unexpected import alone
from perfctl.orchestrator.errors import (
    Lost,
    PerfctlError,
    StoreError,
    StoreNote,
    ToolMissing,
    UsageError,
)
from perfctl.records.errors import ReportError

T = TypeVar("T")
R = TypeVar("R")
Tell = Callable[..., None]
"""Called in the child with a name and what JSON can hold."""
_ERRORS = {kind.__name__: kind for kind in (PerfctlError, UsageError, ToolMissing, StoreError)}
"""What may end the work with a line of its own."""
_WARNINGS: dict[str, type[UserWarning]] = {kind.__name__: kind for kind in (Lost, StoreNote)}
"""Warnings that the command line says in a way of their own."""


def told_error(error: Exception | None) -> tuple[str, str, str | None] | None:
    """What ends the work, for JSON."""
    if isinstance(error, PerfctlError):
        return type(error).__name__, error.message, error.remedy
    return None if error is None else ("", f"{type(error).__name__}: {error}", None)


def heard_error(told: Sequence[str | None] | None) -> Exception | None:
    """What ``told_error`` made, as an exception again."""
    if told is None:
        return None
    name, message, remedy = told
    return _ERRORS.get(name, PerfctlError)(str(message), remedy) if name else RuntimeError(message)


def each(
    items: Sequence[T],
    opened: Callable[[Tell], AbstractContextManager[Callable[[T], None]]],
    hear: Callable[..., None],
    ended: Callable[[T, Ended], None],
    limit: int,
) -> None:
    """Call what ``opened`` gives on every item, in a child with ``limit`` bytes of memory.

    ``hear`` gets what is told, ``ended`` each item that ended its child. Raises what ends the work
    itself: StoreError and the like; PerfctlError where the child ends before the first item.
    """
    first = 0
    while True:
        at = first - 1
        try:
            with forked(partial(_work, first, items, opened), limit) as lines:
                for line in lines:
                    match json.loads(line):
                        case ["at", number]:
                            at = number
                        case [name, *said] if not _heard(name, said):
                            hear(name, *said)
            return
        except Ended as end:
            if at < first:
                raise PerfctlError(f"nothing could be read: {end}") from None
            ended(items[at], end)
            first = at + 1


def spread(
    items: Sequence[T],
    opened: Callable[[], AbstractContextManager[Callable[[T], R]]],
    processes: int,
) -> Iterator[R]:
    """What the function that ``opened`` gives makes of each item, in their order: that many
    children take turns. JSON must be able to hold it, and what it holds otherwise (tuples as lists)
    is what comes.

    What a child warns of is warned of here. Raises what ends the work, and PerfctlError where a
    child ended before.
    """

    @contextmanager
    def telling(tell: Tell) -> Iterator[Callable[[T], None]]:
        with opened() as make:
            yield lambda item: tell("made", make(item))

    try:
        with ExitStack() as stack:
            shares = [
                partial(_work, 0, items[first::processes], telling) for first in range(processes)
            ]
            children = [stack.enter_context(forked(share, 0)) for share in shares]
            for number in range(len(items)):
                yield _made(children[number % processes])
    except Ended as end:
        remedy = "Try again; where memory ran out, while less else is running"
        raise PerfctlError(f"the work stopped before its end: {end}", remedy) from None


def _made(lines: Iterator[str]) -> Any:
    """What comes next of what a child makes."""
    for line in lines:
        match json.loads(line):
            case ["made", result]:
                return result
            case [name, *said]:
                _heard(name, said)
    raise Ended(0)


def _heard(name: str, said: Sequence[Any]) -> bool:
    """Whether it was a warning, which is warned of here. Raises the error that it is."""
    if name == "error":
        raise heard_error(said) or RuntimeError
    if name == "warn":
        kind, text = said
        warnings.warn(_WARNINGS.get(kind, UserWarning)(text), stacklevel=3)
    return name == "warn"


def answer(name: object, work: Callable[[], Any], limit: int) -> Any:
    """What ``work`` returns, which JSON can hold, from a child with ``limit`` bytes of memory;
    where none is possible, from this process with the same limit.

    Raises PerfctlError with one line about ``name`` where there is no answer, and what ``work``
    raises of that kind.
    """
    had = memory.shown(limit) if limit and memory.is_kept() else None
    said: dict[str, Any] = {}

    def one(hear: Callable[..., None]) -> None:
        try:
            with alone(name, partial(hear, "failed"), limit=had, passing=(OSError,)):
                hear("answer", work())
        except (ReportError, OSError) as error:
            hear("failed", str(error))

    if had and is_possible():

        @contextmanager
        def opened(tell: Tell) -> Iterator[Callable[[None], None]]:
            yield lambda _: one(tell)

        each(
            [None],
            opened,
            said.__setitem__,
            lambda _, end: said.update(failed=f"{name}: {end}"),
            limit,
        )
    else:
        with memory.kept(limit):
            one(said.__setitem__)
    if "failed" in said:
        raise PerfctlError(said["failed"])
    return said["answer"]


def _work(
    first: int,
    items: Sequence[T],
    opened: Callable[[Tell], AbstractContextManager[Callable[[T], None]]],
    send: Send,
) -> None:
    """In the child: these items and those behind them."""

    def tell(*said: Any) -> None:
        send(json.dumps(said))

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        tell("warn", type(message).__name__, str(message))

    warnings.showwarning = warn
    try:
        with opened(tell) as work:
            for number in range(first, len(items)):
                tell("at", number)
                work(items[number])
    except Exception as error:
        tell("error", *(told_error(error) or ()))
