"""Options that a user passes on to a profiler (``--tool-args``), checked for what perfctl itself needs.

An option that perfctl sets too, but does not need, is the user's to change: perfctl then leaves its own out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from perfctl.orchestrator.errors import UsageError

_SHORTEST = 4
"""``--ex`` is the shortest abbreviation that is taken for --export: both tools accept unique beginnings of a name."""


def split(text: str | None) -> tuple[str, ...]:
    """The words of ``text``, as a shell splits them. Raises UsageError for an open quotation mark."""
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(f"`tool_args`: {text!r} cannot be split into words: {error}", "Close the quotation") from error


def check(tool: str, words: tuple[str, ...], needed: Mapping[str, str]) -> None:
    """Raises UsageError for an option that perfctl needs for itself. ``needed``: option, long or short -> why."""
    for word in words:
        name = word.partition("=")[0]
        option = next((known for known in needed if _means(name, known)), None)
        if option is not None:
            said = f"`tool_args`: {tool} cannot get {word}" + (f" ({option})" if option != name else "")
            raise UsageError(f"{said}: {needed[option]}", "Leave it out")
    if words and not words[0].startswith("-"):
        problem = f"`tool_args`: {words[0]!r} is not an option; {tool} would take it for the program"
        raise UsageError(problem, "Options begin with a dash")


def _means(name: str, option: str) -> bool:
    """Whether ``name`` is the option, an abbreviation of it, or a short option with its value attached (-ofile)."""
    if name == option:
        return True
    if option.startswith("--"):
        return len(name) >= _SHORTEST and name.startswith("--") and option.startswith(name)
    return len(name) > 2 and name.startswith(option) and not name.startswith("--")


def without(own: tuple[str, ...], words: tuple[str, ...], pairs: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """perfctl's ``own`` options, less those that the user's ``words`` set. ``pairs``: short name -> long name."""
    said = {word.partition("=")[0] for word in words if word.startswith("-")}
    said |= {long for short, long in (pairs or {}).items() if short in said}
    kept: list[str] = []
    skipping = False
    for word in own:
        if word.startswith("-"):
            skipping = word.partition("=")[0] in said
        if not skipping:
            kept.append(word)
    return tuple(kept)
