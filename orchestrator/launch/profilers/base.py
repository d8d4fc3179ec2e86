"""What all profilers share: commands to start, how they ended, verdicts, and options to pass on.

A new profiler is one subclass of ``outcome.ToolProfiler``, a line in RECORDERS of ``replay``, and a
command of the CLI.

Options that a user passes on to a profiler (``--tool-args``) are checked for what perfctl itself
needs. An option that perfctl sets too, but does not need, is the user's to change: perfctl then
leaves its own out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.process.progress import StallRule
from perfctl.orchestrator.options import Option

_SHORTEST = 4
"""``--ex`` is the shortest abbreviation that is taken for --export: both tools accept unique
beginnings of a name."""


def split_shell_words(text: str) -> tuple[str, ...]:
    """Return the words of ``text``, as a shell splits them. Raises UsageError for an open
    quotation mark."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"`tool_args`: {text!r} cannot be split into words: {error}",
            "Close the quotation marks",
        ) from error


ToolArgs = Annotated[
    tuple[str, ...],
    Option(
        "More options for the profiler, in quotation marks; perfctl splits them like a shell.",
        "Profiler",
        names=("--tool-args",),
        metavar="TEXT",
        parse=split_shell_words,
        write=shlex.join,
    ),
]


@dataclass(frozen=True)
class TimeWindow:
    """Options of a profiler that can record a time window of a program that does not end."""

    delay: Annotated[
        int | None,
        Option(
            "With --for: start the recording this many seconds after your program.",
            "Profiler",
            names=("--after",),
            metavar="SECONDS",
            least=0,
        ),
    ] = None
    duration: Annotated[
        int | None,
        Option(
            "Record a program that does not end, such as a server, for this many seconds, and stop "
            "it.",
            "Profiler",
            names=("--for",),
            metavar="SECONDS",
            least=1,
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.delay is not None and self.duration is None:
            raise UsageError("`delay` needs `duration`", "For example --after 60 --for 10")

    def raise_if_window_without_program(self, program: object | None) -> None:
        """Raise UsageError for a time window of a built-in workload, which ends by itself."""
        if self.duration is not None and program is None:
            raise UsageError(
                "`duration` works only with your own program", "Put it after --: -- ./server"
            )


def describe_end_before_recording(delay_s: int | None) -> str:
    return (
        f"the program ended before the recording began, {delay_s or 0} s after its start. Set a "
        "smaller `delay`"
    )


def reject_reserved_options(
    tool: str, arguments: tuple[str, ...], reserved: Mapping[str, tuple[str, ...]]
) -> None:
    """Raise UsageError for an option that perfctl needs for itself. ``reserved``: reason -> its
    options, long and short."""
    for argument in arguments:
        name = argument.partition("=")[0]
        for reason, options in reserved.items():
            option = next((option for option in options if _is_form_of_option(name, option)), None)
            if option is not None:
                typed = f"{argument} ({option})" if option != name else argument
                problem = f"`tool_args`: perfctl does not pass {typed} to {tool}: {reason}"
                raise UsageError(problem, "Omit it")
    if arguments and not arguments[0].startswith("-"):
        problem = (
            f"`tool_args`: {arguments[0]!r} is not an option; {tool} would treat it as the program"
        )
        raise UsageError(problem, "Options begin with a dash")


def _is_form_of_option(name: str, option: str) -> bool:
    """Return whether ``name`` is the option, an abbreviation of it, or a short option with its
    value attached (-ofile)."""
    if name == option:
        return True
    if option.startswith("--"):
        return len(name) >= _SHORTEST and name.startswith("--") and option.startswith(name)
    return len(name) > 2 and name.startswith(option) and not name.startswith("--")


def merge_options_preferring_user(
    defaults: tuple[str, ...], user_options: tuple[str, ...], long_name_by_short: Mapping[str, str]
) -> tuple[str, ...]:
    """Return perfctl's options, less those that the user's ``user_options`` sets, and then
    ``user_options``. ``long_name_by_short``: short name -> long name."""
    typed = {argument.partition("=")[0] for argument in user_options}
    typed |= {long_name_by_short[name] for name in typed & long_name_by_short.keys()}
    merged: list[str] = []
    is_replaced = False
    for argument in defaults:
        if argument.startswith("-"):
            is_replaced = argument.partition("=")[0] in typed
        if not is_replaced:
            merged.append(argument)
    return (*merged, *user_options)


@dataclass(frozen=True, slots=True)
class Command:
    """One process to start. Never a shell string."""

    JSON_KEYS = ("stage", "argv")

    argv: tuple[str, ...]
    """Words of the command."""
    stage: str
    """Its name in progress output: "profile", "export"."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to perfctl's environment."""
    needs: Path | None = None
    """File that must exist for this command to be started; None when it needs none."""
    in_image: bool = False
    """``argv`` starts a container, which must pass the environment on."""
    retry_on: bytes | None = None
    """Pattern in the output of a tool that could not start, but may when tried again; None for
    no retry."""
    clear: Callable[[], str | None] | None = None
    """Called before the retry to remove obstacles; returns a sentence about them, None when there
    were none."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What was chosen for this command and why, for the run's record: name -> value."""
    brings: Mapping[str, Path] = field(default_factory=dict)
    """Files to copy into the run's folder before it starts: name there -> file."""
    note: str | None = None
    """What the user should know before it starts; None for nothing."""
    runs_on: bool = False
    """The tool ends before its program, whose processes then get SIGTERM."""
    is_recorded: Callable[[float], bool] = lambda seconds: False
    """Whether all is recorded so many seconds after the start, so that perfctl may end it."""
    stall: StallRule | None = None
    """When it counts as stuck, if the user does not say; None for never."""


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """How one process ended. Verdicts never rest on ``exit_code`` alone."""

    exit_code: int | None
    """None when perfctl stopped it (time limit, signal)."""
    timed_out: bool
    started_at: str
    """UTC, ISO 8601."""
    duration_ns: int
    stdout: Path
    stderr: Path
    stalled_s: float | None = None
    """Seconds without any progress after which perfctl stopped it; None when it did not."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a finished run."""

    status: str
    """ok, partial or failed."""
    reason: str | None
    """Cause and remedy; None when ok."""


@dataclass(frozen=True, slots=True)
class RequiredTool:
    """A program or library that a profiler needs."""

    name: str
    why: str
    install: str
    instead: str
    """What works without it on this machine."""
