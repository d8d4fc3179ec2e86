"""What a sweep is asked, what each of its runs came to, and who hears of it meanwhile."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from perfctl.orchestrator.launch import container, process
from perfctl.orchestrator.launch.container import Image
from perfctl.orchestrator.launch.devices import Place
from perfctl.orchestrator.launch.paths import RunPaths, file_name
from perfctl.orchestrator.launch.profiler import Profiler, RunRequest
from perfctl.orchestrator.launch.program import Program


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """One ``perfctl PROFILER --batches ...`` call."""

    profiler: Profiler
    workload: str
    workload_arguments: tuple[str, ...]
    batches: tuple[int, ...]
    device: str
    """cpu or cuda."""
    out: Path
    """Folder that holds all sweeps (perfctl-runs)."""
    command_line: str
    """What the user typed, ready to paste."""
    host: str
    origin: str = "measured"
    """measured, or recorded when it is replayed."""
    timeout_s: float | None = None
    """For each batch size; None for no limit."""
    again: bool = False
    """Repeat what is whole already."""
    repeat: int = 1
    """Whole runs wanted of each batch size, each a process of its own."""
    python: str = sys.executable
    program: Program | None = None
    """A program of the user's, run in the workload's place; ``workload`` is then its name."""
    alongside: bool = False
    """Others run other batch sizes of this sweep now: write nothing but own folders, and keep what a stop leaves."""
    given_name: str | None = None
    """What the sweep is called, where another perfctl (on another machine) has named it already."""
    scratch: Path | None = None
    """Folder of this machine's own below which TMPDIR is made; None for the run's folder."""
    grace_s: float = process.GRACE_S
    """What a profiler gets to write its report when it is stopped."""
    image: Image | None = None
    """Runs go inside it; None for none."""
    sample_s: float | None = None
    """Seconds from one reading of the device and of the run's processes to the next; None for none."""
    places: tuple[Place, ...] = ()
    """As many runs at a time, each on one of these; none for one after the other, wherever a program goes by itself."""

    @property
    def name(self) -> str:
        """The same request always has the same name, so that it finds what it has already.

        An edited script makes another request: what its older self left is not taken for it.
        """
        if self.given_name is not None:
            return self.given_name
        options: dict[str, Any] = asdict(self.profiler) if is_dataclass(self.profiler) else {}
        asked: list[object] = [self.profiler.name, options, self.workload, self.workload_arguments, self.device]
        asked.append(self.origin)
        if self.program is not None:
            asked += self.program.identity()
        if self.image is not None:
            asked += self.image.identity()
        digest = hashlib.sha256(json.dumps(asked, default=str, sort_keys=True).encode()).hexdigest()
        return f"{self.profiler.name}-{file_name(self.workload)}-{digest[:8]}"

    @property
    def folder(self) -> Path:
        return self.out / self.name

    def run_request(self, batch_size: int, attempt: int = 1) -> RunRequest:
        paths = RunPaths(self.folder.absolute(), batch_size, attempt)
        python = self.program.python if self.program else container.PYTHON if self.image else self.python
        return RunRequest(self.workload, self.workload_arguments, batch_size, self.device, paths, python, self.program)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How one batch size went; ``folder`` holds everything it left."""

    batch_size: int
    status: str
    """ok, partial or failed."""
    reason: str | None
    folder: Path
    skipped: bool = False
    """It was whole before, and nothing ran."""
    duration_ns: int | None = None
    repeat: int = 1
    """Which of the repeats it is, from 1."""


@dataclass(frozen=True, slots=True)
class Listener:
    """What a caller wants to hear while a sweep goes on."""

    started: Callable[[int, str], None] = lambda batch, stage: None
    """(batch size, stage) before each process."""
    tick: Callable[[float], None] = lambda seconds: None
    """Seconds that the process has run, about once a second."""
    finished: Callable[[RunResult], None] = lambda result: None
    stopped: Callable[[RunResult], None] = lambda result: None
    """What a run left that was told to stop; Interrupted follows."""
