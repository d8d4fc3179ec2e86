"""A profiler that says that it could not start just then gets a second chance, and only one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.profilers import nsys
from perfctl.orchestrator.launch.profilers.base import Command, Outcome, RunRequest, Tool, Verdict
from perfctl.orchestrator.launch.sweep import sweep as sweep_sweep
from perfctl.orchestrator.launch.sweep.folders import RunPaths
from perfctl.orchestrator.launch.sweep.request import Listener, SweepRequest

BUSY = """
import pathlib, sys
tries = pathlib.Path(sys.argv[1])
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) <= int(sys.argv[2]):
    sys.exit(sys.argv[3])
pathlib.Path(sys.argv[4]).write_text("a report")
"""


@dataclass(frozen=True, slots=True)
class Busy:
    """A profiler that does not start the first ``fails`` times, and says ``said``."""

    tries: Path
    fails: int
    said: str
    name: str = "busy"

    def missing(self) -> tuple[Tool, ...]:
        return ()

    def commands(self, request: RunRequest) -> tuple[Command, ...]:
        words = (str(self.tries), str(self.fails), self.said, str(self.artifact(request.paths)))
        return (Command((sys.executable, "-c", BUSY, *words), "profile", retry_on=nsys.BUSY),)

    def artifact(self, paths: RunPaths) -> Path:
        return paths.report(".txt")

    def judge(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        code = outcomes[-1].exit_code
        return Verdict("ok", None) if code == 0 else Verdict("failed", f"exit code {code}")


@pytest.mark.parametrize(
    ("fails", "said", "status", "tries"),
    [
        (1, "sem_open: File exists", "ok", 2),
        (2, "sem_open: File exists", "failed", 2),
        (1, "another reason", "failed", 1),
    ],
)
def test_a_profiler_that_could_not_start_beside_another_is_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, said: str, status: str, tries: int
) -> None:
    monkeypatch.setattr(sweep_sweep, "PAUSE_S", (0.0, 0.1))
    profiler = Busy(tmp_path / "tries", fails, said)
    request = SweepRequest(profiler, "mnist_cnn", (), (16,), "cpu", tmp_path / "runs", "perfctl busy", "host")
    stages: list[str] = []
    (result,) = sweep_sweep.run(request, Listener(started=lambda batch, stage: stages.append(stage)))
    assert (result.status, len(profiler.tries.read_text())) == (status, tries)
    assert stages == ["profile", "profile-again"][:tries]
    noted = "trying once more" in (result.folder / "stderr.log").read_text()
    assert noted == (tries == 2)
