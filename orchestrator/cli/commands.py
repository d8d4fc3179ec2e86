"""Lists of commands in ``--help``, in groups and with whole lines, and the spellings that options had in earlier releases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
        return list(super().parse_args(ctx, today(args, OLD_SPELLINGS.get(name, {}), OLD_VALUES.get(name, {}))))


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
