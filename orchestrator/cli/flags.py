"""Names of fields in messages, turned into the options of the command that runs.

Errors raised outside ``cli`` name a field in backquotes: "`gpus` must be at least 1, got 0". A Python user reads that as it
is; the command line prints "--gpus must be at least 1, got 0". A field that the command does not take stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")
OTHER_NAMES = {
    "batch_size": "batch",
    "command_line": "command",
    "extras": "extra",
    "layers": "layer",
    "pip_options": "pip_option",
    "placement": "devices",
    "samples": "dataset_size",
}
"""Field -> the parameter of a command that has another name."""

_command: Callable[[], Any] | None = None


def remember(application: Any, arguments: Sequence[str]) -> None:
    """From now on, messages are about the command that ``arguments`` call."""
    global _command

    def find() -> Any:
        import typer.main

        found: Any = typer.main.get_command(application)
        for word in arguments:
            inside = getattr(found, "commands", {}).get(word)
            if inside is None:
                break
            found = inside
        return found

    _command = find


def with_flags(text: str) -> str:
    """``text`` with the options of the running command in the place of fields."""
    if _command is None or _FIELD.search(text) is None:
        return text
    known = flags_of(_command())
    return _FIELD.sub(lambda found: _flag(found[1], known) or found[0], text)


def _flag(field: str, known: dict[str, str]) -> str | None:
    return known.get(field) or known.get(OTHER_NAMES.get(field, ""))


def flags_of(command: Any) -> dict[str, str]:
    """Parameter -> its option, or the name of its place; of a group, those of its commands."""
    found: dict[str, str] = {}
    for inside in getattr(command, "commands", {}).values():
        found |= flags_of(inside)
    return found | {one.name: _shown(one) for one in command.params if one.name}


def _shown(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return next((word for word in parameter.opts if word.startswith("--")), str(parameter.opts[0]))
