"""A profiler that needs no tool, for tests of sweeps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfctl.orchestrator.launch.profilers.base import (
    Command,
    ProcessOutcome,
    RequiredTool,
    RunStatus,
)
from perfctl.orchestrator.launch.sweep.folders import RunPaths
from perfctl.orchestrator.launch.sweep.request import SweepRequest

WRITES = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('a report of ' + sys.argv[2])"


@dataclass(frozen=True, slots=True)
class Small:
    """A profiler of two lines of Python, which get the report's path and the batch size: a report
    is a text file."""

    program: str = WRITES
    retry_on: bytes | None = None
    name: str = "small"

    def list_missing_tools(self) -> tuple[RequiredTool, ...]:
        return ()

    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        argv = (
            sys.executable,
            "-S",
            "-c",
            self.program,
            str(self.get_report_path(request.paths)),
            str(request.setting.batch),
        )
        return (Command(argv, "profile", retry_on=self.retry_on),)

    def get_report_path(self, paths: RunPaths) -> Path:
        return paths.get_report_path(".txt")

    def determine_run_status(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> RunStatus:
        code = outcomes[-1].exit_code
        return RunStatus("ok", None) if code == 0 else RunStatus("failed", f"exit code {code}")


def asked(
    tmp_path: Path,
    profiler: Small | str = WRITES,
    batches: tuple[int, ...] = (16, 32, 64),
    **fields: Any,
) -> SweepRequest:
    """A sweep below ``tmp_path`` under a profiler, or a Small one of that program; ``fields`` are
    those of the request."""
    made = Small(profiler) if isinstance(profiler, str) else profiler
    return SweepRequest(
        profiler=made,
        workload="mnist_cnn",
        device="cpu",
        host="host",
        batches=batches,
        out=tmp_path / "runs",
        command_line=f"perfctl {made.name}",
        **{"sample": "off", **fields},
    )
