"""A profiler that needs no tool, for tests of sweeps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.launch.profilers.base import Command, Outcome, RunRequest, Tool, Verdict
from perfctl.orchestrator.launch.sweep.folders import RunPaths


@dataclass(frozen=True, slots=True)
class Small:
    """A profiler of two lines of Python: a report is a text file."""

    program: str
    name: str = "small"

    def missing(self) -> tuple[Tool, ...]:
        return ()

    def commands(self, request: RunRequest) -> tuple[Command, ...]:
        report = str(self.artifact(request.paths))
        return (Command((sys.executable, "-c", self.program, report, str(request.batch_size)), "profile"),)

    def artifact(self, paths: RunPaths) -> Path:
        return paths.report(".txt")

    def judge(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        code = outcomes[-1].exit_code
        return Verdict("ok", None) if code == 0 else Verdict("failed", f"exit code {code}")
