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

The command line prints "--gpus must be at least 1, got 0. Leave --gpus out for one"
(``cli.commands.with_flags``): a field that the called command takes becomes its option, one with
another name there as ``OTHER_NAMES`` says. Whole commands (perfctl ncu --repeat 5) may stand in
advice as they are.
"""

from __future__ import annotations


def sentence(text: str) -> str:
    """With a full stop, where it does not end with a mark of its own."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


class PerfctlError(Exception):
    """Base of all. ``remedy`` is what the user can do next; it is printed after the message."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{sentence(self.message)} {self.remedy}" if self.remedy else self.message

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


class Lost(UserWarning):
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
