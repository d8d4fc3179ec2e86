"""Write the record of a script's run at its start and end. Does not import torch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress

from perfctl.records.report import Gap
from perfctl.workloads.run.record import Record
from perfctl.workloads.script.options import ScriptOptions
from perfctl.workloads.script.steps import StepMarker
from perfctl.workloads.spec import WorkloadError, first_line, utf8

OTHER_LOOPS = "If it trains in other processes, start it with torchrun; if its steps end differently, set --step-marker"


def why_fewer(name: str, options: ScriptOptions, marker: StepMarker, done: int) -> str:
    """Why ``done`` measured steps are fewer than requested; "" when they are not. Names options of this process."""
    if done >= options.steps:
        return ""
    if not marker.optimizer_steps and not marker.calls and not marker.steps:
        return f"{name}: no optimizer stepped and no module was called. {OTHER_LOOPS}"
    if done:
        return f"{name} ended after {done} of {options.steps} measured steps. Give it more data, or reduce --steps"
    seen = f"{marker.optimizer_steps} optimizer steps and {marker.calls} calls of models"
    if not marker.steps and (marker.kind, marker.named) != ("auto", None):
        asked = marker.kind if marker.named is None else f"{marker.kind}:{marker.named}"
        return f"{name}: {seen}, but --step-marker {asked} found no end of a step. Use another marker, or omit it"
    if not marker.steps:
        return f"{name}: {seen}, but no end of a step. Set --step-marker to what ends one"
    few = f"{marker.steps} steps (each ends with {marker.in_words()}; {seen})"
    return f"{name} ended after {few}, before one was measured. Give it more data, or reduce --warmup"


class Keeper:
    """Writes the record of a script at its start, when the window closes, and at its end."""

    def __init__(self, options: ScriptOptions) -> None:
        self.options = options
        self.name = utf8(options.command.name)
        template = options.template()
        self.record = Record(
            workload=self.name,
            batch_size=options.batch_size,
            mode=None,
            precision=None,
            seed=None,
            variant=None if template is None else utf8(template),
            options={
                "command": utf8(shlex.join(options.command.words)),
                "steps": options.steps,
                "warmup": options.warmup,
                "batch_env": options.batch_env,
                "batch_size": options.batch_size,
            },
        )
        self._process = os.getpid()
        self.before_end: Callable[[], str] | None = None
        """Ends watching and returns why there are too few steps; None until torch is imported."""

    def write(self) -> None:
        """Raises WorkloadError when the record cannot be written."""
        path = self.options.record
        if path is None:
            return
        try:
            self.record.write(path)
        except OSError as error:
            raise WorkloadError(f"cannot write the record {path}: {error.strerror or error}") from error

    def end(self, error: BaseException | None) -> None:
        """Note the end of the script, and its exception. Does nothing in a forked child."""
        if os.getpid() != self._process:
            return
        lack = f"{self.name} ended without importing torch, so nothing was measured"
        if self.before_end is not None:
            lack = self.before_end()
        self.judge(error, lack)
        try:
            self.write()
        except WorkloadError as problem:
            say(str(problem))

    def judge(self, error: BaseException | None, lack: str) -> None:
        """Set status and reason. ``lack``: why there are too few steps; "" for enough."""
        record = self.record
        some = any(row.phase == "step" for row in record.steps)
        why = _how_it_ended(self.name, error)
        if why is None and not lack:
            record.status, record.reason = "ok", None
            return
        record.status = "partial" if some else "failed"
        record.reason = why or lack
        if lack:
            if why:
                record.gaps.append(Gap("step", "not_collected", lack))
            else:
                say(lack)


def _how_it_ended(name: str, error: BaseException | None) -> str | None:
    """The failure in one line; None for a script that succeeded."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return None
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        said = f": {utf8(str(error.code))}" if not isinstance(error.code, int) else ""
        return f"{name} ended with exit code {code}{said}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return f"out of memory: {utf8(first_line(error))} Try a smaller batch size."
    return f"{name} raised {type(error).__name__}: {utf8(first_line(error))}"


def say(text: str) -> None:
    """Print a line of perfctl to stderr, unless the script closed it."""
    with suppress(OSError, ValueError):
        print(f"perfctl: {text}", file=sys.stderr)
