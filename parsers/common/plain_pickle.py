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
_CONSTANTS: dict[str, Any] = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_plain_pickle_and_step_count(path: Path, tool: str, remedy: str) -> tuple[Any, int]:
    """(the content, how many instructions made it). Raises ReportError with ``remedy`` for what is
    not plain data.

    One object may stand in many places, and inside itself: whoever walks through it keeps to that
    number of steps.
    """
    if (size := path.stat().st_size) > LIMIT:
        raise ReportError(path, tool, f"{size:,} bytes of a pickle exceed the limit", remedy)
    machine = _PickleMachine()
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
                machine.execute_instruction(instruction.name, argument)
                steps += 1
        return machine.result, steps
    except _NotPlainError as error:
        reason = (
            f"it contains more than plain data (instruction {error}). perfctl did not read or run "
            "it"
        )
        raise ReportError(path, tool, reason, remedy) from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ReportError(
            path, tool, f"the pickle is damaged or truncated ({str(error)[:100]})", remedy
        ) from error


class _NotPlainError(Exception):
    """Names the instruction."""


class _PickleMachine:
    """The part of pickle's stack machine that makes plain data. An instruction that does not fit
    the stack raises LookupError, ValueError, TypeError or AttributeError."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        """Values since the last mark."""
        self.below: list[list[Any]] = []
        """Values below each mark."""
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def execute_instruction(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        if opcode in _VALUES:
            stack.append(argument)
        elif opcode in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[argument])
        elif opcode == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif opcode in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = stack[-1]
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if opcode == "EMPTY_DICT" else [])
        elif opcode == "MARK":
            self.below.append(stack)
            self.stack = []
        elif opcode in ("SETITEMS", "DICT", "APPENDS", "LIST", "TUPLE"):
            self.stack = self.below.pop()
            self._build_container(opcode, stack)
        elif opcode == "APPEND":
            self._build_container("APPENDS", [stack.pop()])
        elif opcode == "SETITEM":
            value, key = stack.pop(), stack.pop()
            self._build_container("SETITEMS", [key, value])
        elif opcode in _TUPLES:
            stack.append(tuple([stack.pop() for _ in range(_TUPLES[opcode])][::-1]))
        elif opcode == "STOP":
            self.result = stack.pop()
        elif opcode not in ("PROTO", "FRAME"):
            raise _NotPlainError(opcode)

    def _build_container(self, opcode: str, items: list[Any]) -> None:
        """Make a list, tuple or dictionary of items, or add them to the one on the stack."""
        if opcode == "TUPLE":
            self.stack.append(tuple(items))
            return
        if opcode in ("LIST", "DICT"):
            self.stack.append([] if opcode == "LIST" else {})
        target = self.stack[-1]
        if opcode in ("LIST", "APPENDS"):
            target.extend(items)
        else:
            target.update(zip(items[::2], items[1::2], strict=True))
