"""What a profiler is to perfctl: argument lists, an artifact, and how its failures read.

A new profiler is one file with one class that fits :class:`Profiler`, one line in PROFILERS of ``launch/__init__.py``,
a command in SWEEPS of ``cli/profilers.py``, and one test file that compares whole argument lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfctl.orchestrator.launch.paths import RunPaths
from perfctl.orchestrator.launch.program import LAUNCHERS, Program

RANK = "{rank}"
"""In the options of a profiler that each rank starts: nothing for rank 0, .rank1 and so on for the others."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One process at one batch size."""

    workload: str
    """Name in ``perfctl.workloads.WORKLOADS``, or what a program of the user's is called."""
    workload_arguments: tuple[str, ...]
    """Options of the workload, ready for its command line (without --batch and --record)."""
    batch_size: int
    device: str
    """cpu or cuda."""
    paths: RunPaths
    python: str
    """The interpreter that runs the workload."""
    program: Program | None = None
    """A program of the user's to run in the workload's place; None for a built-in one."""

    @property
    def has_ranks(self) -> bool:
        """The program is a launcher that starts a script once per rank."""
        return self.program is not None and self.program.words[0] in LAUNCHERS

    def workload_command(
        self, *, annotate: str, window: str, trace: Path | None = None, under: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """The plain command that a profiler wraps.

        ``annotate``: how layers are marked, "nvtx", "record_function" or "none".
        ``window``: how the measured steps are marked off for the profiler: "cuda" (cudaProfilerStart/Stop),
        "torch" (the workload itself runs torch.profiler), or "none". ``trace`` is where torch.profiler's goes.
        ``under``: the profiler and its options, for each rank of a launcher to start itself under, with RANK in
        the names of its files.
        """
        program = self.program
        return (
            self.python, *(program.flags if program else ()),
            "-m", "perfctl.workloads", *(() if program else (self.workload,)),
            "--batch", str(self.batch_size),
            "--record", str(self.paths.workload_record),
            "--annotate", annotate,
            "--window", window,
            *self.workload_arguments,
            *(("--trace", str(trace)) if trace else ()),
            *(("--under", json.dumps(under)) if under else ()),
            *(("--", *program.at(self.batch_size)) if program else ()),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """One process to start. Never a shell string."""

    argv: tuple[str, ...]
    stage: str
    """What a progress bar calls it: "profile", "export"."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to perfctl's own environment."""
    needs: Path | None = None
    """What the command before must have left for this one to be worth starting; None when it needs nothing."""
    in_image: bool = False
    """``argv`` begins with a container's runtime: what the process is told must get through it."""
    once_more: bytes | None = None
    """What the tool says (a pattern of lines) when it could not start, and would the next time; None for nothing."""
    clear: Callable[[], str | None] | None = None
    """Before that next time: takes what is in the tool's way away, and says what it was; None when there was nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one process ended. ``exit_code`` alone is never believed."""

    exit_code: int | None
    """None when it was killed by perfctl (time limit, interrupt)."""
    timed_out: bool
    started_at: str
    """UTC, ISO 8601."""
    duration_ns: int
    stdout: Path
    stderr: Path


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a finished run is worth."""

    status: str
    """ok, partial or failed."""
    reason: str | None
    """One sentence with cause and remedy; None when ok."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program or library a profiler needs."""

    name: str
    why: str
    install: str
    instead: str
    """What would work without it on this machine."""


class Profiler(Protocol):
    """One profiler, with its own options as fields."""

    @property
    def name(self) -> str:
        """The value of ``run.profiler``."""
        ...

    def missing(self) -> tuple[Tool, ...]:
        """Tools that this profiler needs and this machine lacks; empty when it can run."""
        ...

    def commands(self, request: RunRequest) -> tuple[Command, ...]:
        """What to start, in order; a later one runs only when the one before left what it needs."""
        ...

    def artifact(self, paths: RunPaths) -> Path:
        """The file (or folder) that the parsers read."""
        ...

    def judge(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        """Read exit codes, logs and the artifact's presence together; never the exit code alone."""
        ...
