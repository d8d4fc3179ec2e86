"""Reads pickles that hold plain data, without running anything of them.

A pickle is a program. Its instructions are only listed here (``pickletools.genops`` executes
nothing), and those that put together dictionaries, lists, tuples, numbers and texts are carried out
by this module. Any other, all that could name or call something among them, refuses the file.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from pickletools import genops  # lists instructions, runs none  # nosec B403
from typing import Any

from perfctl.records.errors import ReportError

LIMIT = 256 << 20
"""Largest file in bytes; its objects take some ten times as much memory."""
_VALUES = frozenset(
    (
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
    )
)
"""Instructions whose argument is the value."""
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


def read_plain(path: Path, tool: str, remedy: str) -> tuple[Any, int]:
    """(the content, how many instructions made it). Raises ReportError with ``remedy`` for what is
    not plain data.

    One object may stand in many places, and inside itself: whoever walks through it keeps to that
    number of steps.
    """
    if (size := path.stat().st_size) > LIMIT:
        raise ReportError(path, tool, f"{size:,} bytes of a pickle are too many", remedy)
    machine = _Machine()
    steps = 0
    try:
        # mapped: an instruction may state any length, and a file would make room for all of it
        # before it is read
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            # it reads and reads lines
            for instruction, argument, _ in genops(content):  # type: ignore[arg-type]
                machine.carry_out(instruction.name, argument)
                steps += 1
        return machine.result, steps
    except _NotPlainError as error:
        reason = (
            f"it holds more than plain data (instruction {error}), so it was not read; nothing of "
            "it was run"
        )
        raise ReportError(path, tool, reason, remedy) from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ReportError(
            path, tool, f"the pickle is damaged or cut off ({str(error)[:100]})", remedy
        ) from error


class _NotPlainError(Exception):
    """Names the instruction."""


class _Machine:
    """The part of pickle's stack machine that makes plain data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def carry_out(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[argument])
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self._top()
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = self._top()
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            self._set_items(name)
        elif name in ("APPEND", "APPENDS", "LIST"):
            self._append(name)
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in _TUPLES:
            count = _TUPLES[name]
            items = [self._pop() for _ in range(count)]
            stack.append(tuple(reversed(items)))
        elif name == "STOP":
            self.result = self._pop()
        elif name not in ("PROTO", "FRAME"):
            raise _NotPlainError(name)

    def _top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise ValueError("a mark in place of a value")
        return self.stack[-1]

    def _pop(self) -> Any:
        value = self._top()
        self.stack.pop()
        return value

    def _since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            if place == 0:
                raise ValueError("no mark")
            place -= 1
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def _set_items(self, name: str) -> None:
        items = (
            self._since_mark() if name != "SETITEM" else list(reversed([self._pop(), self._pop()]))
        )
        target = {} if name == "DICT" else self._top()
        if type(target) is not dict or len(items) % 2:
            raise ValueError("no dictionary to put values into")
        for key in items[::2]:
            if type(key) not in (str, int):
                raise ValueError("a key that is no text and no number")
        target.update(zip(items[::2], items[1::2], strict=True))
        if name == "DICT":
            self.stack.append(target)

    def _append(self, name: str) -> None:
        items = [self._pop()] if name == "APPEND" else self._since_mark()
        if name == "LIST":
            self.stack.append(items)
            return
        target = self._top()
        if type(target) is not list:
            raise ValueError("no list to put values into")
        target.extend(items)
