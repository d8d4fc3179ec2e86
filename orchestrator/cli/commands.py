"""Lists of commands in ``--help``, in groups and with whole lines, and the spellings that options had in earlier releases."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup

OLD_SPELLINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "predict": {"--model": (), "-m": (), "--db": ("--store",), "--infer": ("--mode", "infer")},
    "estimate": {"--model": (), "-m": ()},
    "calculator": {"--db": ("--store",)},
    "serve": {"--db": ("--store",)},
    "ledger": {"--batch": ("--batches",)},
    "trace": {"--run": ()},
    "query": {"--seconds": ("--timeout",)},
}
"""Command -> an option that is not listed any more, and the words that stand for it; none where its value is enough."""
OLD_VALUES = {"estimate": {"--format": {"markdown": "md", "latex": "tex"}}}
"""Command -> option -> a value that it took under another name."""


class CommandList(TyperGroup):
    """A group of commands. Each has one whole line in the list: a line that is too long is wrapped, and not cut."""

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
    """A command that also takes the spellings of earlier releases, which its help does not list."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments as the documentation writes them: MODEL, [PATHS]..., whatever the release of typer does."""
        return [re.sub(r"^\{(.*)\}", r"\1", piece).upper() for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was typed, in the spellings of today."""
        name = str(ctx.info_name)
        for param in self.get_params(ctx):
            _read_directly(param)
        return list(super().parse_args(ctx, today(args, OLD_SPELLINGS.get(name, {}), OLD_VALUES.get(name, {}))))


def _read_directly(param: Any) -> None:
    """Values that need no work are taken as they are: without this, typer imports pydantic (a quarter of what ``show`` took).

    That is a default, a word where one is asked for, digits where a whole number is. The rest is typer's, its errors too.
    Releases of typer that do not read values in this way are left alone.
    """
    read: Any = getattr(param, "get_runtime_param", None)
    kind = getattr(param, "type_descriptor", None)
    if read is None or kind is None or getattr(param, "_runtime_param", None) is not None:
        return
    annotation, limits = kind.annotation, kind.parameter_info

    class Direct:
        def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
            if param.multiple or param.nargs != 1:
                is_empty = value is None and (param.multiple or param.nargs == -1)
                return () if is_empty else read().coerce(value, param=param, ctx=ctx)
            if value is None or (type(value) is annotation and value == param.default):
                return value
            if annotation is Path and isinstance(value, str | Path) and limits.parser is None:
                if _is_free(limits) and _may_be_read(value):
                    return Path(value)
            elif type(value) is str and limits.parser is None:
                if annotation is str:
                    return value
                free = limits.min is None and limits.max is None and not limits.clamp
                if annotation is int and free and value.isascii() and value.isdecimal() and len(value) < 16:
                    return int(value)
            return read().coerce(value, param=param, ctx=ctx)

    direct = Direct()
    param.get_runtime_param = lambda: direct


def _is_free(limits: Any) -> bool:
    """Whether a path need not exist, be of one kind or be written to."""
    asked = (limits.exists, limits.writable, limits.resolve_path, limits.allow_dash, limits.path_type)
    return limits.file_okay and limits.dir_okay and not any(asked)


def _may_be_read(path: str | Path) -> bool:
    """Whether there is nothing of that name, or something that may be read."""
    try:
        return not os.path.lexists(path) or os.access(path, os.R_OK)
    except ValueError:
        return False


def today(
    args: Sequence[str], spellings: Mapping[str, tuple[str, ...]], values: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """``args`` with old options and values replaced, up to ``--``."""
    out: list[str] = []
    cut = args.index("--") if "--" in args else len(args)
    for word in args[:cut]:
        option, equals, value = word.partition("=")
        new = values.get(out[-1], {}) if out else {}
        if option in spellings:
            out += [*spellings[option], *([value] if equals else [])]
        elif word[:1] == "-" and word[:2] in spellings:  # -mNAME
            out += [*spellings[word[:2]], word[2:]]
        elif equals and option in values:
            out.append(f"{option}={values[option].get(value, value)}")
        else:
            out.append(new.get(word, word))
    return [*out, *args[cut:]]
