"""Items worked on by a child process, one after another; this process hears of each and says it.

An item that ends the child (out of memory, a crash of a library) has cost itself: another child goes on behind it. What goes
between the two are lines of JSON.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

from perfctl.orchestrator.actions.wall import memory
from perfctl.orchestrator.actions.wall.child import Ended, Send, forked, is_possible
from perfctl.orchestrator.actions.wall.unexpected import alone
from perfctl.orchestrator.errors import PerfctlError, StoreError, StoreNote, ToolMissing, UsageError
from perfctl.records.errors import ReportError

T = TypeVar("T")
Tell = Callable[..., None]
"""Called in the child with a name and what JSON can hold."""
_ERRORS = {kind.__name__: kind for kind in (PerfctlError, UsageError, ToolMissing, StoreError)}
"""What may end the work with a line of its own."""


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

    ``hear`` gets what is told, ``ended`` each item that ended its child. Raises what ends the work itself: StoreError and
    the like; PerfctlError where the child ends before the first item.
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
                        case ["warn", is_note, text]:
                            warnings.warn(StoreNote(text) if is_note else UserWarning(text), stacklevel=2)
                        case ["error", *error]:
                            raise heard_error(error) or RuntimeError
                        case [name, *said]:
                            hear(name, *said)
            return
        except Ended as end:
            if at < first:
                raise PerfctlError(f"nothing could be read: {end}") from None
            ended(items[at], end)
            first = at + 1


def answer(name: object, work: Callable[[], Any], limit: int) -> Any:
    """What ``work`` returns, which JSON can hold, from a child with ``limit`` bytes of memory; where none is possible, from
    this process with the same limit.

    Raises PerfctlError with one line about ``name`` where there is no answer, and what ``work`` raises of that kind.
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

        each([None], opened, said.__setitem__, lambda _, end: said.update(failed=f"{name}: {end}"), limit)
    else:
        with memory.kept(limit):
            one(said.__setitem__)
    if "failed" in said:
        raise PerfctlError(said["failed"])
    return said["answer"]


def _work(
    first: int, items: Sequence[T], opened: Callable[[Tell], AbstractContextManager[Callable[[T], None]]], send: Send
) -> None:
    """In the child: these items and those behind them."""

    def tell(*said: Any) -> None:
        send(json.dumps(said))

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        tell("warn", isinstance(message, StoreNote), str(message))

    warnings.showwarning = warn
    try:
        with opened(tell) as work:
            for number in range(first, len(items)):
                tell("at", number)
                work(items[number])
    except Exception as error:
        tell("error", *(told_error(error) or ()))
