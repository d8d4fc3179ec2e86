"""What can go wrong, and nothing else. Exit codes are mapped in ``cli.main`` alone.

::

    PerfctlError            one clear line: what, where, why, what to do next        exit 1
    |-- UsageError          the request makes no sense (checked before anything runs)     2
    |-- ToolMissing         a program or library is not there, and how to get it          1
    |-- RunFailed           a profiled process ended without a usable report              1
    |-- StoreError          the store is newer than the program, locked, or damaged       1
    |-- PartlyDone          some parts failed or gave no rows, the rest was kept          4
    |-- Regressed           a comparison found something worse than the gate allows       3
    `-- Interrupted         Ctrl-C or TERM; what was whole has been kept            130, 143

A report that cannot be read is ``perfctl.parsers.ReportError`` (exit 1).

A message names a *field* in backquotes, never an option of the command line, because Python users
read it too::

    raise UsageError("`gpus` must be at least 1, got 0", "Leave `gpus` out for one")

The command line prints "--gpus must be at least 1, got 0. Leave --gpus out for one": the command
that runs puts its options in the place of fields (:meth:`PerfctlError.name_options`). Complete
commands (perfctl ncu --repeat 5) may be in advice as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")
"""A field of the request in a message."""


def replace_backquoted_fields(text: str, option_by_field: Mapping[str, str]) -> str:
    """Return ``text`` with options in the place of fields; a field that is none of them is named
    in words."""
    return FIELD.sub(lambda field: option_by_field.get(field[1], field[1].replace("_", " ")), text)


def add_full_stop_if_missing(text: str) -> str:
    """Return a text with a full stop, unless it ends with a mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


class PerfctlError(Exception):
    """Base class of all errors. ``message`` states the problem, ``remedy`` what to do next."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def name_options(self, options: Mapping[str, str]) -> None:
        """Name options of a command in the place of fields. Advice about a field that the command
        does not take is dropped."""
        self.message = replace_backquoted_fields(self.message, options)
        if self.remedy is not None:
            is_possible = options.keys() >= set(FIELD.findall(self.remedy))
            self.remedy = replace_backquoted_fields(self.remedy, options) if is_possible else None

    def __str__(self) -> str:
        return (
            f"{add_full_stop_if_missing(self.message)} {self.remedy}"
            if self.remedy
            else self.message
        )

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the sentence alone."""
        return [str(self)]


class UsageError(PerfctlError):
    """The request makes no sense; nothing was started."""


class ToolMissing(PerfctlError):
    """A program or library is not installed here."""


class RunFailed(PerfctlError):
    """A profiled process ended without a usable report."""


class StoreError(PerfctlError):
    """The store cannot be used."""


class StoreNote(UserWarning):
    """A warning, not an error: what the store's user changed in it, and how perfctl copes. The
    command line prints it once."""


class LostWarning(UserWarning):
    """A warning: a run or file that perfctl had to leave out, because of an error that it did not
    expect. The rest is done; the command line prints it and ends with exit code 4."""


class PartlyDone(PerfctlError):
    """Some parts of the work failed; what succeeded has been kept."""


class Regressed(PerfctlError):
    """What was compared is worse by more than was allowed."""


class Interrupted(PerfctlError):
    """The user or the system asked to stop. ``signal_number`` says how."""

    def __init__(self, message: str, signal_number: int, remedy: str | None = None) -> None:
        super().__init__(message, remedy)
        self.signal_number = signal_number
