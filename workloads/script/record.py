"""Write the record of a script's run at its start and end. Does not import torch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from perfctl.records.report import Gap
from perfctl.workloads.run.record import WorkloadRecord
from perfctl.workloads.script.counting import StepEndDetector
from perfctl.workloads.script.options import ScriptOptions
from perfctl.workloads.spec import WorkloadError, escape_non_utf8, get_first_error_line

OTHER_PROCESSES = "If it trains in other processes, start it with torchrun"
OTHER_LOOPS = f"{OTHER_PROCESSES}; if its steps end differently, set --step-marker"


def explain_fewer_steps(
    name: str, options: ScriptOptions, marker: StepEndDetector, measured_steps: int
) -> str:
    """Return why ``measured_steps`` are fewer than requested; "" when they are not. Names options
    of this process."""
    if measured_steps >= options.steps:
        return ""
    if not marker.optimizer_steps and not marker.calls and not marker.steps:
        return f"{name}: no optimizer stepped and no module was called. {OTHER_LOOPS}"
    if measured_steps:
        return (
            f"{name} ended after {measured_steps} of {options.steps} measured steps. Give it "
            f"more data, or "
            "reduce --steps"
        )
    events = f"{marker.optimizer_steps} optimizer steps and {marker.calls} calls of models"
    if not marker.steps and (marker.kind, marker.named) != ("auto", None):
        requested = marker.kind if marker.named is None else f"{marker.kind}:{marker.named}"
        return (
            f"{name}: {events}, but --step-marker {requested} found no end of a step. Use another "
            "marker, or omit it"
        )
    if not marker.steps:
        return f"{name}: {events}, but no end of a step. Set --step-marker to what ends one"
    few = f"{marker.steps} steps (each ends with {marker.describe_step_end_rule()}; {events})"
    return (
        f"{name} ended after {few}, before one was measured. Give it more data, or reduce --warmup"
    )


class ScriptRecordWriter:
    """Writes the record of a script at its start, when the window closes, and at its end."""

    def __init__(self, options: ScriptOptions, tell: Callable[[str], object] | None = None) -> None:
        """``tell``: called with a line for the user; None prints it to stderr."""
        self.options, self.tell = options, tell or print_to_stderr
        self.name = escape_non_utf8(options.command.name)
        template = options.format_arguments_with_batch_placeholder()
        values: dict[str, Any] = {"command": escape_non_utf8(shlex.join(options.command.argv))}
        values.update(
            (field, getattr(options, field))
            for field in ("steps", "warmup", "batch_env", "batch_size")
        )
        variant = None if template is None else escape_non_utf8(template)
        self.record = WorkloadRecord(
            self.name, options.batch_size, None, None, None, variant=variant, options=values
        )
        self.process = os.getpid()
        self._ended = False
        self.before_end: Callable[[], str] | None = None
        """Ends watching and returns why there are too few steps; None until torch is imported."""

    def write(self) -> None:
        """Raise WorkloadError when the record cannot be written."""
        self.record.write(self.options.record)

    def claim_free_rank_files(self) -> ScriptOptions:
        """Take the first names that no process of the program has for its record and trace, and
        write the record. Raises WorkloadError."""
        rank = os.environ.get("RANK", "")
        for number in count(int(rank) if rank.isdecimal() else 0):
            options = self.options.add_rank_to_file_paths(number)
            assert options.record is not None
            with suppress(FileExistsError):
                options.record.open("x").close()
                break
        self.options = options
        self.record.options["process"] = self.process
        self.write()
        return options

    def finish_record_on_script_end(self, error: BaseException | None) -> None:
        """Note the end of the script, and its exception, once. Does nothing in a forked child."""
        if os.getpid() != self.process or self._ended:
            return
        self._ended = True
        lack = (
            f"{self.name} ended without importing torch, so nothing was measured. {OTHER_PROCESSES}"
        )
        if self.before_end is not None:
            try:
                lack = self.before_end()
            except Exception as own_error:
                lack = (
                    f"perfctl could not finish its record of {self.name} "
                    f"({type(own_error).__name__}: "
                    f"{get_first_error_line(own_error)})"
                )
        if self.options.duration is not None:  # written when the window closed
            return
        self.set_status(error, lack)
        try:
            self.write()
        except WorkloadError as problem:
            self.tell(str(problem))

    def set_status(self, error: BaseException | None, missing_steps_reason: str) -> None:
        """Set status and reason. ``missing_steps_reason``: why there are too few steps; "" for
        enough.

        A script that ended well after fewer measured steps than requested did not fail; a gap
        says so.
        """
        failure = _describe_failure(self.name, error)
        has_steps = any(row.phase == "step" for row in self.record.steps)
        self.record.set_status(failure or (None if has_steps else missing_steps_reason or None))
        if missing_steps_reason and (failure or has_steps):
            self.record.gaps.append(Gap("step", "not_collected", missing_steps_reason))
        if missing_steps_reason and not failure:
            self.tell(missing_steps_reason)


def _describe_failure(name: str, error: BaseException | None) -> str | None:
    """Return the failure in one line; None for a script that succeeded."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return None
    if isinstance(error, SystemExit):
        code = (
            error.code if isinstance(error.code, int) else f"1: {escape_non_utf8(str(error.code))}"
        )
        return f"{name} ended with exit code {code}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return f"out of memory: {escape_non_utf8(get_first_error_line(error))}"
    return f"{name} raised {type(error).__name__}: {escape_non_utf8(get_first_error_line(error))}"


def _identify_stderr() -> tuple[int, int] | None:
    """Return what descriptor 2 is; None when it is closed."""
    try:
        status = os.fstat(2)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_STDERR = _identify_stderr()


def print_to_stderr(text: str) -> None:
    """Print a line to stderr, unless the script closed it: its descriptor may since be a file of
    the script's."""
    with suppress(OSError, ValueError):
        if _identify_stderr() == _STDERR:
            print(f"perfctl: {text}", file=sys.stderr)
