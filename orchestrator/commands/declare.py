"""How a command is declared: its options once, as a frozen dataclass, what it does, and its view.

The fields of the class are the options: a type hint, a default, and an :class:`Option` that says
what the field means. The command line (``cli.commands``) and the keywords of the Python API
(:func:`make_api_function`) are made from it.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.events import SILENT
from perfctl.orchestrator.events import Events as Events
from perfctl.orchestrator.files import raise_if_output_not_replaceable
from perfctl.orchestrator.options import DeclaredOption as DeclaredOption
from perfctl.orchestrator.options import Option as Option
from perfctl.orchestrator.options import list_declared_options as list_declared_options
from perfctl.orchestrator.options import parse_option_texts
from perfctl.orchestrator.options import split_at_commas as split_at_commas
from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT_STORE

if TYPE_CHECKING:
    from perfctl.orchestrator.report.view import RawLines, View

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")


Store = Annotated[Path, Option("Results database.")]
Force = Annotated[bool, Option("Overwrite an existing file.", "Output")]
MemoryLimit = Annotated[
    str | int | None,
    Option(
        "Memory limit for parsing one report, for example 4G; 0 means no limit. Default: "
        "$PERFCTL_MEMORY_LIMIT, or the smaller of 2 GiB and a quarter of RAM.",
        metavar="SIZE",
        parse=str,
    ),
]
CommandLine = Annotated[str, Option("What was typed, ready to paste.", filled_from="line")]
WorkloadWords = Annotated[Sequence[str], Option("Options for the workload.", filled_from="rest")]
ProgramWords = Annotated[
    Sequence[str] | None,
    Option(
        "Command of your script, with {batch} in place of the batch size.", filled_from="program"
    ),
]
Sweep = Annotated[int | None, Option("Only this sweep.")]
Runs = Annotated[
    Sequence[int], Option("Only these runs (repeatable).", names=("--run",), metavar="N")
]
DECLARATIONS = {
    "bench": "bench.GROUP",
    "dlprof": "profile.DLPROF",
    "doctor": "prepare.DOCTOR",
    "exercise": "exercise.GROUP",
    "image": "prepare.IMAGES",
    "infer": "profile.INFER",
    "ncu": "profile.NCU",
    "nsys": "profile.NSYS",
    "open": "ingest.OPEN",
    "prepare": "prepare.PREPARE",
    "replay": "profile.REPLAY",
    "runs": "query.RUNS",
    "scrub": "ingest.SCRUB",
    "serve": "report.SERVE",
    "show": "ledger.SHOW",
    "slurm": "slurm.GROUP",
    "study": "study.GROUP",
    "torch": "profile.TORCH",
    "trace": "export.TRACE",
}
"""Command -> module of this package and name of its declaration there, unless it is COMMAND in a
module of its own name."""
OUTPUT_FILES = ("out", "junit", "markdown", "page")
"""Options that name a file to write."""
HtmlReport = Annotated[Path | None, Option("Write an HTML report.", "Output")]
PeaksOf = Annotated[
    str,
    Option(
        "Roofline peaks: published (data sheet) or measured (20 s benchmark on this machine, "
        "cached).",
        names=("--peaks",),
    ),
]


@runtime_checkable
class CheckedResult(Protocol):
    """A result that knows what went wrong."""

    def check(self) -> None:
        """Raise the error that gives another exit code than 0."""


def raise_if_result_check_fails(result: object, events: Events) -> None:
    """Raise what the result's own ``check`` raises, if it has one."""
    if isinstance(result, CheckedResult):
        result.check()


@dataclass(frozen=True, slots=True, eq=False)
class Command(Generic[Options, Result]):
    """A command: ``run`` turns options into a result, ``view`` turns the result into words."""

    options: type[Options]
    run: Callable[[Options, Events], Result]
    view: Callable[[Result], View | RawLines]
    record: Callable[[Result], Any] = lambda result: result
    """The result -> what ``--json`` prints; None: nothing."""
    outputs: tuple[str, ...] = ()
    """The names of those in ``outputs.OUTPUTS``; empty: as the annotations of ``record`` or ``run``
    say."""
    has_document: bool = True
    """Its view is also printed as Markdown and LaTeX."""
    has_json: bool = True
    """Its result is also printed as JSON."""
    check: Callable[[Result, Events], None] = raise_if_result_check_fails
    """Called when the result is printed: raises the error that gives another exit code than 0."""
    common: tuple[str, ...] = ()
    """Fields that ``--help`` lists first, in this order; empty: those with ``is_common``."""
    notes: str = ""
    """A paragraph below its description in ``--help``."""
    examples: tuple[str, ...] = ()
    """Lines to type, below its description in ``--help``."""
    line: str = ""
    """Its line in the list of a group; empty: the first sentence of its help."""
    help: str = ""
    """What it does; empty: the docstring of its options."""
    own: Mapping[str, DeclaredOption] = field(default_factory=dict)
    """Options that a file declares. Their values become the field ``own`` of the options."""
    without: Sequence[str] = ()
    """Fields of the options that are no options of this command."""

    @property
    def declared_options(self) -> tuple[DeclaredOption, ...]:
        """Return every option of the command."""
        declared: Any = self.options
        fields = (*self.own.values(), *list_declared_options(declared))
        return tuple(field for field in fields if field.name not in self.without)

    def make_options(self, values: Mapping[str, Any]) -> Options:
        """Return the options with these values, by the names of ``declared_options``."""
        shared = {name: value for name, value in values.items() if name not in self.own}
        own_values = {"own": {name: values[name] for name in self.own}} if self.own else {}
        return self.options(**shared, **own_values)


@dataclass(frozen=True, slots=True)
class Group:
    """Commands below one word, as in ``perfctl image render``."""

    help: str
    commands: Mapping[str, Command[Any, Any] | Group]
    """Word -> command, or a group of more, which the list leaves out."""
    read: Callable[[list[str]], list[str]] = lambda words: words
    """What was typed -> the words of a command, which begin with its own."""
    find: Callable[[str], Command[Any, Any] | None] = lambda word: None
    """The command of a word that the group does not list; None if there is none."""
    line: str = ""
    """Its line in the list of a group; empty: the first sentence of ``help``."""


def load_command_or_group(name: str) -> Any:
    """Return a declared command, or group of them, by its name."""
    module, _, attribute = DECLARATIONS.get(name, f"{name}.COMMAND").partition(".")
    return getattr(import_module(f"perfctl.orchestrator.commands.{module}"), attribute)


def raise_if_outputs_would_overwrite(options: Any) -> None:
    """Raise UsageError if a file that the command is to write is one that it reads, or one that it
    may not replace. Called before a command runs."""
    from perfctl.parsers import sniff

    values: dict[str, list[Path]] = {}
    declared: Any = type(options)
    for option in list_declared_options(declared):
        value = getattr(options, option.name)
        parts = value if isinstance(value, list | tuple) else [value]
        values[option.name] = [Path(part) for part in parts if isinstance(part, str | Path)]
    outputs = [(name, output) for name in OUTPUT_FILES for output in values.pop(name, ())]
    for name, output in outputs:
        if not output.exists() or output.is_dir():
            continue
        for source in chain.from_iterable(values.values()):
            with suppress(OSError, ValueError):  # a text that is no path
                is_inside = source.is_dir() and output.resolve().is_relative_to(source.resolve())
                if source.samefile(output) or (is_inside and sniff(output) is not None):
                    problem = f"`{name}`: {output} is a file that this command reads"
                    raise UsageError(problem, "Choose another file")
        if hasattr(options, "force"):
            raise_if_output_not_replaceable(output, force=options.force)


def make_api_function(
    options: Callable[P, Options], run: Callable[[Options, Events], Result]
) -> Callable[P, Result]:
    """The command as a function of the Python API: its keywords are the fields of ``options``."""

    def call_command(*args: P.args, **kwargs: P.kwargs) -> Result:
        read = parse_option_texts(options(*args, **kwargs))
        raise_if_outputs_would_overwrite(read)
        return run(read, SILENT)

    declared: Any = options
    fields = {
        field.name: field
        for field in list_declared_options(declared)
        if field.option.filled_from != "line"
    }
    texts = [f"{name}: {field.option.help}" for name, field in fields.items()]
    lines = [line for text in texts for line in wrap(text, 96, subsequent_indent="    ")]
    keywords_text = "".join(f"\n    {line}" for line in lines)
    call_command.__doc__ = (inspect.getdoc(declared) or "") + f"\n\nArgs:{keywords_text}" * bool(
        lines
    )
    keywords = [
        parameter.replace(annotation=fields[name].hint)
        for name, parameter in inspect.signature(declared).parameters.items()
        if name in fields
    ]
    call_command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return call_command


def suggest_report_command(store: Path) -> str:
    """Return what to type when runs were stored."""
    option = "" if store == DEFAULT_STORE else f" --store {shlex.quote(str(store))}"
    return f"Next: perfctl report{option}"


def parse_percentage_as_share(text: str) -> float:
    """ "5%" as 0.05. Raises UsageError for what is not a percentage."""
    percentage = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if percentage is None:
        raise UsageError(f"invalid value '{text}' for `gate`", "Use a percentage such as 5%")
    return float(percentage[1]) / 100


Gate = Annotated[
    float,
    Option(
        "Ignore changes up to this percentage.",
        metavar="PERCENT",
        parse=parse_percentage_as_share,
        typed_default="5%",
    ),
]


def parse_number_or_word(text: str) -> str | float:
    """ "0.75" as a number, "full" as it is."""
    try:
        return float(text)
    except ValueError:
        return text
