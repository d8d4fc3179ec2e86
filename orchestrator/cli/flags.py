"""Names of fields in messages, turned into the options of the command that runs.

Errors raised outside ``cli`` name a field in backquotes: "`gpus` must be at least 1, got 0". A
Python user reads that as it is; the command line prints "--gpus must be at least 1, got 0". A field
that the command does not take stays as it is; a sweep also takes the options of the
built-in workloads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")
OTHER_NAMES = {
    "batch_size": "batch",
    "extras": "extra",
    "layers": "layer",
    "pip_options": "pip_option",
    "seconds": "timeout",
}
"""Field -> the parameter of a command that has another name, and the value that the field
stands for."""

_command: Callable[[], Any] | None = None


def remember(application: Any, arguments: Sequence[str]) -> None:
    """From now on, messages are about the command that ``arguments`` call."""
    global _command
    _command = partial(_called, application, arguments)


@contextmanager
def about(application: Any, arguments: Sequence[str]) -> Iterator[None]:
    """Messages are about the command that ``arguments`` call: inside the block, and of an error
    that leaves it."""
    global _command
    before = _command
    remember(application, arguments)
    yield
    _command = before


def _called(application: Any, arguments: Sequence[str]) -> Any:
    """The command, or the group where none of its commands is named; None where there is no
    such command."""
    import typer.main

    root: Any = typer.main.get_command(application)
    found = root
    for word in arguments:
        inside = found.get_command(None, word) if hasattr(found, "get_command") else None
        if inside is None:
            break
        found = inside
    return None if found is root else found


def with_flags(text: str) -> str:
    """``text`` with the options of the running command in the place of fields."""
    if _command is None or _FIELD.search(text) is None:
        return text
    command = _command()
    known = flags_of(command) if command is not None else {}
    other = {field: name.partition(" ") for field, name in OTHER_NAMES.items()}
    known = {
        field: known[name] + blank + value
        for field, (name, blank, value) in other.items()
        if name in known
    } | known
    if command is not None and command.context_settings.get("ignore_unknown_options"):
        known = _of_workloads() | known
    return _FIELD.sub(lambda found: known.get(found[1], found[0]), text)


def _of_workloads() -> dict[str, str]:
    """Options of the built-in workloads, which sweeps pass on."""
    from perfctl.workloads import WORKLOADS
    from perfctl.workloads.run.options import describe

    words = {
        word for name in WORKLOADS for word in re.findall(r"--[a-z][a-z0-9-]*", describe(name))
    }
    return {word[2:].replace("-", "_"): word for word in words}


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
