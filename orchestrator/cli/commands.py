"""Lists of commands in ``--help``, in groups and with whole lines, and a quick way to
read values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

from typer.core import TyperCommand, TyperGroup


class CommandList(TyperGroup):
    """A group of commands. Each has one whole line in the list: a line that is too long is wrapped,
    and not cut."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Heading -> names of its commands, in this order; without any, one list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was typed."""
        for param in self.get_params(ctx):
            _read_directly(param)
        return list(super().parse_args(ctx, args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lists."""
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        wide = max(map(len, shown), default=0)
        for heading, names in (self.sections or {"Commands": tuple(shown)}).items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(wide), line_of(shown[name])) for name in names])


def line_of(command: Any) -> str:
    """What a command does: its line in the list, else the first sentence of its help."""
    said = command.short_help or " ".join((command.help or "").partition("\n\n")[0].split())
    return str(said.partition(". ")[0].rstrip(".") + ".")


class Command(TyperCommand):
    """A command of perfctl."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments as the documentation writes them: MODEL, [PATHS]..., whatever the release of
        typer does."""
        return [
            re.sub(r"^\{(.*)\}", r"\1", piece).upper()
            for piece in super().collect_usage_pieces(ctx)
        ]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was typed."""
        for param in self.get_params(ctx):
            _read_directly(param)
        return list(super().parse_args(ctx, args))


def _read_directly(param: Any) -> None:
    """Values that need no work are taken as they are: without this, typer imports pydantic (a
    quarter of what ``show`` took).

    That is a default, a word where one is asked for, digits where a whole number is. The rest is
    typer's, its errors too. Releases of typer that do not read values in this way are left alone.
    """
    read: Any = getattr(param, "get_runtime_param", None)
    kind = getattr(param, "type_descriptor", None)
    if read is None or kind is None or getattr(param, "_runtime_param", None) is not None:
        return
    annotation, limits = kind.annotation, kind.parameter_info

    class Direct:
        def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
            if param.nargs == -1 and isinstance(value, list | tuple):
                (item,) = get_args(annotation) or (annotation,)
                items = [_read_word(one, item, limits) for one in value]
                known: Any = None if None in items else items
            elif param.multiple or param.nargs != 1:
                is_empty = value is None and (param.multiple or param.nargs == -1)
                known = () if is_empty else None
            elif value is None or (type(value) is annotation and value == param.default):
                return value
            else:
                known = _read_word(value, annotation, limits)
            return read().coerce(value, param=param, ctx=ctx) if known is None else known

    direct = Direct()
    param.get_runtime_param = lambda: direct


def _read_word(value: Any, annotation: Any, limits: Any) -> str | int | Path | None:
    """Return the value of a word that needs no work; None if typer has to read it."""
    if limits.parser is not None or not isinstance(value, str | Path):
        return None
    if annotation is Path:
        return Path(value) if _is_free(limits) and _may_be_read(value) else None
    if type(value) is not str:
        return None
    if annotation is str:
        return value
    is_free = limits.min is None and limits.max is None and not limits.clamp
    is_number = value.isascii() and value.isdecimal() and len(value) < 16
    return int(value) if annotation is int and is_free and is_number else None


def _is_free(limits: Any) -> bool:
    """Whether a path need not exist, be of one kind or be written to."""
    asked = (
        limits.exists,
        limits.writable,
        limits.resolve_path,
        limits.allow_dash,
        limits.path_type,
    )
    return limits.file_okay and limits.dir_okay and not any(asked)


def _may_be_read(path: str | Path) -> bool:
    """Whether there is nothing of that name, or something that may be read."""
    try:
        return not os.path.lexists(path) or os.access(path, os.R_OK)
    except ValueError:
        return False
