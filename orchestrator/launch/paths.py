"""Where every file of a sweep lies. Nothing else in perfctl puts a path of a run together.

::

    perfctl-runs/
        torch-mnist_cnn-train-1a2b3c4d/     one sweep: the name is made from its request, so that the
            sweep.json                      same request finds what it already has
            b16/                            one run, whole (b16.2 is a second one, made with --again)
                run.json                    the run's own record: argv, times, exit code, status
                workload.json               written by the profiled process: steps, memory, shapes
                report.*                    what the profiler left
                stdout.log stderr.log
            b32.part/                       a run that is under way, or was cut off
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class RunPaths:
    """All files of one run. ``folder`` is the final place, ``part`` where it is put together."""

    sweep_folder: Path
    batch_size: int
    attempt: int = 1
    """Counts up with --again, so that a repetition never replaces what the store refers to."""

    @property
    def folder(self) -> Path:
        suffix = f".{self.attempt}" if self.attempt > 1 else ""
        return self.sweep_folder / f"b{self.batch_size}{suffix}"

    @property
    def part(self) -> Path:
        return self.sweep_folder / f"b{self.batch_size}.part"

    @property
    def scratch(self) -> Path:
        """Private TMPDIR of the run's processes; removed when the run ends."""
        return self.part / "tmp"

    @property
    def workload_record(self) -> Path:
        """Where the profiled process writes its record, while the run is under way."""
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
    """``name`` as part of a folder's: letters, digits and ._- of ASCII; "program" where nothing is left."""
    stem, dot, suffix = name.rpartition(".") if name.endswith(".py") else (name, "", "")
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", stem).strip("._-")[:_LONGEST_NAME]
    return f"{safe or 'program'}{dot}{suffix}"
