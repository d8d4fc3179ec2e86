"""How a command is declared: its options once, as a frozen dataclass, what it does, and its view.

The fields of the class are the options: a type hint, a default, and an :class:`Option` that says
what the field means. The command line (``cli.commands``) and the keywords of the Python API
(:func:`api`) are made from it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Generic, ParamSpec, Protocol, TypeVar, get_args

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.options import Field as Field
from perfctl.orchestrator.options import Option as Option
from perfctl.orchestrator.options import options_of as options_of
from perfctl.orchestrator.options import words as words
from perfctl.orchestrator.report.view import Layout, Lines, View

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")


class Events(Protocol):
    """Hears what goes on while a command works: the command line prints it, the Python API does
    not."""

    def note(self, text: str) -> None:
        """What is going on: "measuring peaks, about 20 s"."""

    def warning(self, text: str) -> None:
        """What the user should know before using the result."""

    def error(self, text: str) -> None:
        """What went wrong with a part of the work, which goes on."""

    def progress(self, what: str, done: int, total: int, path: Path | None = None) -> None:
        """What is being done now, the parts done before it, and how many there are (0: not known
        yet). ``path``: the file that is being read."""

    def ask(self, question: str, default: str) -> str | None:
        """Return what the user answers; None if nobody can."""

    @property
    def command_line(self) -> str | None:
        """What the user typed, which the store keeps; None from Python."""


class Silent:
    """Drops everything."""

    command_line = None

    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...
    def progress(self, what: str, done: int, total: int, path: Path | None = None) -> None: ...
    def ask(self, question: str, default: str) -> None: ...


DEFAULT_STORE = Path("perfctl.db")
Store = Annotated[Path, Option("The store.")]
Force = Annotated[bool, Option("Overwrite a file of that name.", "Output")]
MemoryLimit = Annotated[
    str | int | None,
    Option(
        "Memory that the reading of a report may take: 4G; 0 is no limit. Default: "
        "PERFCTL_MEMORY_LIMIT, else 2G, or a quarter of the machine's.",
        metavar="SIZE",
        parse=str,
    ),
]
Sweep = Annotated[int | None, Option("Only this sweep.")]
Runs = Annotated[
    Sequence[int], Option("Only these runs (repeatable).", names=("--run",), metavar="N")
]
PeaksOf = Annotated[
    str,
    Option(
        "Peaks of the roofline: published, or measured (once on this machine, then kept by the "
        "store).",
        names=("--peaks",),
    ),
]


@dataclass(frozen=True, slots=True)
class Command(Generic[Options, Result]):
    """A command: ``run`` turns options into a result, ``view`` turns the result into words."""

    options: type[Options]
    run: Callable[[Options, Events], Result]
    view: Callable[[Result], View | Layout | Lines]
    record: Callable[[Result], Any] = lambda result: result
    """The result -> what ``--json`` prints; None: nothing."""
    has_document: bool = True
    """Its view is also printed as Markdown and LaTeX."""
    check: Callable[[Result, Events], None] = lambda result, events: None
    """Called when the result is printed: raises the error that gives another exit code than 0."""
    has_own_progress: bool = False
    """Whether what runs it shows how far it is, so that the command line shows nothing."""


def api(
    options: Callable[P, Options], run: Callable[[Options, Events], Result]
) -> Callable[P, Result]:
    """The command as a function of the Python API: its keywords are the fields of ``options``."""

    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        return run(_with_paths(options(*args, **kwargs)), Silent())

    declared: Any = options
    texts = [f"{one.name}: {one.option.help}" for one in options_of(declared)]
    lines = [line for text in texts for line in wrap(text, 100, subsequent_indent="    ")]
    call.__doc__ = "\n\n".join([inspect.getdoc(declared) or "", "\n".join(lines)])
    call.__signature__ = inspect.signature(declared)  # type: ignore[attr-defined]
    return call


def _with_paths(options: Options) -> Options:
    """Return the options with paths for texts where a path is meant."""
    given: Any = options
    paths = {}
    kind: Any = type(given)
    for one in options_of(kind):
        kinds = (one.hint, *get_args(one.hint))
        value = getattr(given, one.name)
        if isinstance(value, str) and Path in kinds and str not in kinds:
            paths[one.name] = Path(value)
    return replace(given, **paths) if paths else options


def read_share(text: str) -> float:
    """ "5%" as 0.05. Raises UsageError for what is not a percentage."""
    percentage = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if percentage is None:
        raise UsageError(f"`gate`: '{text}' is not a percentage", "Write for instance `gate` 5%")
    return float(percentage[1]) / 100


def word_or_number(text: str) -> str | float:
    """ "0.75" as a number, "full" as it is."""
    try:
        return float(text)
    except ValueError:
        return text
