"""What an option is, and the options that a record declares.

A record's fields are options: a type hint, a default, and an :class:`Option` that says what the
field means. Commands, and the records of a sweep and of its profilers, declare theirs in this way.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from perfctl.orchestrator.errors import UsageError

Part = TypeVar("Part")


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
    typed_default: str | None = None
    """The default as one types it, for ``parse``; None: its text."""
    write: Callable[[Any], str] | None = None
    """Writer of what ``parse`` reads; None: its words with commas between."""
    is_common: bool = False
    """Whether ``--help`` lists it among the common options."""
    filled_from: str = ""
    """Which part of the typed line it is, if it is not an option there: "rest" (words that are not
    options of the command), "program" (the words after --) or "line" (all of it)."""


@dataclass(frozen=True, slots=True)
class Field:
    """One option: the field of the class and its declaration."""

    name: str
    hint: Any
    default: Any
    """``inspect.Parameter.empty``: it has to be given."""
    option: Option

    @property
    def flag(self) -> str:
        """Return the option as one types it, such as --tool-args; of an argument, its metavar."""
        word = self.name.replace("_", "-")
        if self.option.is_argument:
            return self.option.metavar or word.upper()
        names = (name for name in self.option.names if name.startswith("--"))
        return next(names, f"--{word}").partition("/")[0]

    @property
    def parameter(self) -> str:
        """Return the name of the option on the command line as an identifier: --tool-args is
        tool_args."""
        return self.name if self.option.is_argument else self.flag[2:].replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Return whether the option has a negative form, such as --no-srun."""
        return not self.option.names and {bool, type(None)} <= set(get_args(self.hint))


@cache
def options_of(declared: Hashable) -> tuple[Field, ...]:
    """Return the options of a command, in the order of their declaration."""
    kind: Any = declared
    hints = get_type_hints(kind, include_extras=True)
    options = []
    for field in fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            plain, option = get_args(hint)[:2]
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            options.append(Field(field.name, plain, default, option))
    return tuple(options)


def words_of(options: Any, declared: Iterable[Field]) -> list[str]:
    """Return options as one would type them, and arguments after ``--``; nothing for one that has
    its default, and for what other parts of the line fill."""
    words: list[str] = []
    arguments: list[str] = []
    for field in declared:
        option, value = field.option, getattr(options, field.name)
        if value == field.default or value is None or option.filled_from:
            continue
        name = field.flag
        if option.is_argument:
            arguments.append(str(value))
        elif option.write is not None:
            words.append(f"{name}={option.write(value)}")
        elif isinstance(value, bool):
            words.append(name if value else f"--no-{name.removeprefix('--')}")
        elif isinstance(value, tuple) and option.parse is not None:
            words.append(f"{name}={','.join(map(str, value))}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"{name}={one}" for one in values]
    return [*words, "--", *arguments] if arguments else words


def part_of(options: Any, kind: type[Part]) -> Part:
    """Return the fields of ``options`` that ``kind``, a class that it inherits from, has."""
    declared: Any = kind
    return kind(**{field.name: getattr(options, field.name) for field in fields(declared)})


def words(text: str | None) -> tuple[str, ...]:
    """Return "a, b" as separate words; empty for None."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def read_numbers(text: str, field: str, example: str) -> tuple[int, ...]:
    """Return "16,32" as numbers. Raises UsageError that names the piece that is none."""
    pieces = [piece.strip() for piece in text.split(",")]
    for piece in pieces:
        if not piece.isdecimal():
            raise UsageError(
                f"invalid value '{piece}' for `{field}`", f"Use numbers such as {example}"
            )
    return tuple(map(int, pieces))


def read_batches(text: str, field: str = "batches") -> tuple[int, ...]:
    """Return "16,32" as batch sizes. Raises UsageError."""
    return read_numbers(text, field, "16,32,64")


def check_batches(batches: Sequence[int]) -> None:
    """Raise UsageError if there is no batch size, or one below 1."""
    if not batches:
        raise UsageError("`batch` names no batch size", "For example `batch` 16,32,64")
    if min(batches) < 1:
        raise UsageError(f"`batch` must be at least 1 (got {min(batches)})")


def read_seconds(text: str) -> float:
    """Return "30m", "2h" or "90s" in seconds. Raises UsageError."""
    units = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in units:
        raise UsageError(
            f"invalid value '{text}' for `budget`",
            "Use a time such as 30m, 2h or 90s; 0 measures nothing new",
        )
    return float(match[1]) * units[match[2]]
