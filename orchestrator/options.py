"""What an option is, and the options that a record declares.

A record's fields are options: a type hint, a default, and an :class:`Option` that says what the
field means. Commands, and the records of a sweep and of its profilers, declare theirs in this way.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from perfctl.orchestrator.errors import UsageError

Part = TypeVar("Part")

LETTERS = {"out": "-o", "batches": "-b", "workload": "-w", "profiler": "-p", "jobs": "-j"}
"""Option -> its letter, which is the same in every command."""
KINDS = (bool, int, float, Path, str)
"""What one value of an option can be."""


@dataclass(frozen=True, slots=True)
class Option:
    """What a field of a command's options means."""

    help: str
    group: str = "Input"
    """Heading above it in ``--help``: one of ``cli.commands.HEADINGS``."""
    names: tuple[str, ...] = ()
    """Names on the command line; empty: the name of the field, as in --tokens-per-second, with its
    letter if it has one."""
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


Expect = Annotated[
    Sequence[str],
    Option(
        "Formula for one launch of the kernels, or one of the NVTX ranges, that match a pattern: "
        "'sgemm*: flops=2*N**3, bytes=3*4*N**2', or a TOML file (repeatable).",
        metavar="FORMULA",
    ),
]


Formulas = Annotated[
    Path | None,
    Option(
        "Python file that calls perfctl.register_flops. perfctl executes it.",
    ),
]


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    """One option: the field of the class and its declaration."""

    name: str
    hint: Any
    default: Any
    """``inspect.Parameter.empty``: it has to be given."""
    option: Option

    @property
    def command_line_names(self) -> tuple[str, ...]:
        """Return every name of the option, such as --out and -o, or --srun/--no-srun."""
        if self.option.names:
            return self.option.names
        flag_name = self.name.replace("_", "-")
        negative = f"/--no-{flag_name}" * self.has_negative_flag
        return tuple(filter(None, (f"--{flag_name}{negative}", LETTERS.get(self.name))))

    @property
    def flag(self) -> str:
        """Return the option as one types it, such as --tool-args; of an argument, its metavar."""
        if self.option.is_argument:
            return self.option.metavar or self.name.replace("_", "-").upper()
        return next(name for name in self.command_line_names if name.startswith("--")).partition(
            "/"
        )[0]

    @property
    def parameter_name(self) -> str:
        """Return the name of the option on the command line as an identifier: --tool-args is
        tool_args."""
        return self.name if self.option.is_argument else self.flag[2:].replace("-", "_")

    @property
    def has_negative_flag(self) -> bool:
        """Return whether the option has a negative form, such as --no-srun."""
        return not self.option.names and {bool, type(None)} <= set(get_args(self.hint))

    @property
    def item_type_hint(self) -> Any:
        """Return the hint of one value if the option has several; None if it has one."""
        hints = (self.hint, *get_args(self.hint))
        sequences = (hint for hint in hints if get_origin(hint) in (Sequence, tuple))
        return next((get_args(hint)[0] for hint in sequences), None)

    @property
    def value_type(self) -> Any:
        """Return what one value of the option is: one of KINDS."""
        hint = self.item_type_hint or self.hint
        return next((kind for kind in KINDS if kind in (hint, *get_args(hint))), str)

    def parse_value_text(self, text: str) -> Any:
        """Return what was typed as a value, or as one of several. Raises UsageError."""
        if self.option.parse is not None:
            return self.option.parse(text)
        try:
            value = self.value_type(text)
        except ValueError:
            number = "a whole number" if self.value_type is int else "a number"
            raise UsageError(f"`{self.name}`: '{text}' is not {number}") from None
        self.raise_if_outside_range(value, text)
        return value

    def raise_if_outside_range(self, value: Any, typed_text: object) -> None:
        """Raise UsageError for a value, typed as ``typed_text``, that is out of range."""
        option = self.option
        if option.least is not None and value < option.least:
            raise UsageError(f"`{self.name}` must be at least {option.least:g}, got {typed_text}")
        if option.most is not None and value > option.most:
            raise UsageError(f"`{self.name}` must be at most {option.most:g}, got {typed_text}")


@cache
def list_declared_options(options_class: Hashable) -> tuple[DeclaredOption, ...]:
    """Return the options of a command, in the order of their declaration."""
    kind: Any = options_class
    hints = get_type_hints(kind, include_extras=True)
    options = []
    for field in fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            plain, option = get_args(hint)[:2]
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            options.append(DeclaredOption(field.name, plain, default, option))
    return tuple(options)


def parse_option_texts(options: Part) -> Part:
    """Return the options with values in the place of texts, where a text is not what is meant:
    "16,32" is (16, 32). Raises UsageError, also for a number out of the option's range."""
    declared: Any = type(options)
    values = {}
    for field in list_declared_options(declared):
        value = getattr(options, field.name)
        is_union = get_origin(field.hint) in (Union, UnionType)
        if not isinstance(value, str):
            if isinstance(value, int | float):
                field.raise_if_outside_range(value, value)
        elif str not in (get_args(field.hint) if is_union else (field.hint,)):
            read = field.parse_value_text(value)
            is_one = field.item_type_hint is not None and field.option.parse is None
            values[field.name] = (read,) if is_one else read
    changed: Any = options
    return replace(changed, **values) if values else options


def format_command_line_arguments(options: Any, declared: Iterable[DeclaredOption]) -> list[str]:
    """Return options as one would type them, and arguments after ``--``; nothing for one that has
    its default, and for what other parts of the line fill."""
    argv: list[str] = []
    arguments: list[str] = []
    for field in declared:
        option, value = field.option, getattr(options, field.name)
        if value == field.default or value is None or option.filled_from:
            continue
        name = field.flag
        if option.is_argument:
            arguments.append(str(value))
        elif option.write is not None:
            argv.append(f"{name}={option.write(value)}")
        elif isinstance(value, bool):
            argv.append(name if value else f"--no-{name.removeprefix('--')}")
        elif isinstance(value, tuple) and option.parse is not None:
            argv.append(f"{name}={','.join(map(str, value))}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            argv += [f"{name}={item}" for item in values]
    return [*argv, "--", *arguments] if arguments else argv


def extract_base_class_fields(options: Any, base_class: type[Part]) -> Part:
    """Return the fields of ``options`` that ``base_class``, a class that it inherits from, has."""
    declared: Any = base_class
    return base_class(**{field.name: getattr(options, field.name) for field in fields(declared)})


def split_at_commas(text: str | None) -> tuple[str, ...]:
    """Return "a, b" as separate words; empty for None."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def parse_comma_separated_integers(text: str, field: str, example: str) -> tuple[int, ...]:
    """Return "16,32" as numbers. Raises UsageError that names the piece that is none."""
    pieces = [piece.strip() for piece in text.split(",")]
    for piece in pieces:
        if not piece.isdecimal():
            raise UsageError(
                f"invalid value '{piece}' for `{field}`", f"Use numbers such as {example}"
            )
    return tuple(map(int, pieces))


def parse_batch_sizes(text: str, field: str = "batches") -> tuple[int, ...]:
    """Return "16,32" as batch sizes. Raises UsageError."""
    return parse_comma_separated_integers(text, field, "16,32,64")


def raise_if_invalid_batch_sizes(
    batches: Sequence[int], field: str = "batch", *, requires_distinct: bool = False
) -> None:
    """Raise UsageError if there is no batch size, one below 1, or a repeated one of
    ``requires_distinct``."""
    if not batches:
        raise UsageError(f"`{field}` names no batch size", f"For example `{field}` 16,32,64")
    if min(batches) < 1:
        raise UsageError(f"`{field}` must be at least 1 (got {min(batches)})")
    if requires_distinct and len(set(batches)) < len(batches):
        text = f"`{field}` repeats a batch size: {','.join(map(str, batches))}"
        raise UsageError(text, "Name each batch size once")


def parse_budget_seconds(text: str) -> float:
    """Return "30m", "2h" or "90s" in seconds. Raises UsageError."""
    units = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in units:
        raise UsageError(
            f"invalid value '{text}' for `budget`",
            "Use a time such as 30m, 2h or 90s; 0 measures nothing new",
        )
    return float(match[1]) * units[match[2]]
