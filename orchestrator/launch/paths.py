"""Where every file of a sweep is. No other module builds the paths of a run.

::

    perfctl-runs/
        torch-mnist_cnn-train-1a2b3c4d/     one sweep; its name depends on the request alone, so that the
            sweep.json                      same request finds the runs it already has
            b16/                            one complete run (b16.2 is a repetition)
                run.json                    the run's record: argv, times, exit code, status
                workload.json               written by the profiled process: steps, memory, shapes
                report.*                    the profiler's report
                stdout.log stderr.log
            b32.part/                       a run under way, or one that was cut off
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class RunPaths:
    """All files of one run. ``folder`` is its final folder, ``part`` the one while it is under way."""

    sweep_folder: Path
    batch_size: int
    attempt: int = 1
    """Counts repetitions from 1, so that none replaces files that the store refers to."""

    @property
    def folder(self) -> Path:
        suffix = f".{self.attempt}" if self.attempt > 1 else ""
        return self.sweep_folder / f"b{self.batch_size}{suffix}"

    @property
    def part(self) -> Path:
        return self.sweep_folder / f"b{self.batch_size}.part"

    @property
    def scratch(self) -> Path:
        """Private TMPDIR of the run's processes; removed at the end of the run."""
        return self.part / "tmp"

    @property
    def workload_record(self) -> Path:
        """The record that the profiled process writes while the run is under way."""
        return self.part / "workload.json"

    @property
    def stdout(self) -> Path:
        return self.part / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self.part / "stderr.log"

    @property
    def run_record(self) -> Path:
        return self.part / "run.json"

    def report(self, suffix: str) -> Path:
        """The profiler's report while the run is under way: ``report`` + suffix (".sqlite", ".csv", ...)."""
        return self.part / f"report{suffix}"


def file_name(name: str) -> str:
    """``name`` reduced to ASCII letters, digits, '.', '_' and '-'; "program" when nothing is left."""
    stem, dot, suffix = name.rpartition(".") if name.endswith(".py") else (name, "", "")
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", stem).strip("._-")[:_LONGEST_NAME]
    return f"{safe or 'program'}{dot}{suffix}"
