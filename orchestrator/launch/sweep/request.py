"""The request for a sweep, the results of its runs, and the listener to its progress. With it, the
revision of the user's code."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from perfctl.orchestrator.launch import annotator
from perfctl.orchestrator.launch.images import run as images_run
from perfctl.orchestrator.launch.images.run import Image
from perfctl.orchestrator.launch.machine import devices, tools
from perfctl.orchestrator.launch.machine.devices import Place
from perfctl.orchestrator.launch.process.progress import Stall
from perfctl.orchestrator.launch.profilers.base import Command, Profiler, RunRequest
from perfctl.orchestrator.launch.program import Program
from perfctl.orchestrator.launch.sampling import sampler
from perfctl.orchestrator.launch.sampling.sampler import Sampling
from perfctl.orchestrator.launch.sweep.folders import RunPaths, file_name
from perfctl.orchestrator.launch.sweep.options import DEFAULTS, SweepOptions

LIMIT_S = 5.0
"""Of one question: a repository that takes longer is treated as unknown."""
QUIET = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""Options of git: neither the index is refreshed nor a program of the repository's own started."""


def revision(folder: Path, script: Path | None = None) -> dict[str, str]:
    """Facts for a run's environment: commit, commit_time (ISO 8601) and uncommitted_changes ("yes"
    or "no").

    folder: where the code lies. script: a file of it that is run; one that git does not track is a
    change, too. Other untracked files are not looked at. Empty without git, without a repository
    and without a commit; a fact that git does not give in time is left out.
    """
    head = answer(folder, "log", "-1", "--no-show-signature", "--format=%H %cI", "HEAD")
    commit, _, moment = (head or "").strip().partition(" ")
    if not commit:
        return {}
    changed = answer(
        folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none"
    )
    tracked = "" if script is None else answer(folder, "ls-files", "--", str(script.absolute()))
    found = {"commit": commit, "commit_time": moment}
    if changed is None or tracked is None:
        return found
    is_changed = bool(changed.strip()) or (script is not None and not tracked.strip())
    return {**found, "uncommitted_changes": "yes" if is_changed else "no"}


def answer(folder: Path, *words: str, limit_s: float = LIMIT_S) -> str | None:
    """What git says in ``folder``; None where it is missing, refuses or takes too long."""
    try:
        code, lines, _ = tools.run(["git", *QUIET, "-C", str(folder), *words], limit_s)
    except (OSError, subprocess.SubprocessError):
        return None
    return "\n".join(lines) if code == 0 else None


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """One sweep: a workload under a profiler at several batch sizes."""

    profiler: Profiler
    workload: str
    """Name of the built-in workload, or of ``program``."""
    workload_arguments: tuple[str, ...]
    device: str
    """cpu or cuda."""
    host: str
    options: SweepOptions = DEFAULTS
    """What was asked; ``workload``, ``device``, ``image`` and ``places`` are what it comes to."""
    origin: str = "measured"
    """measured; recorded for a replay."""
    python: str = sys.executable
    program: Program | None = None
    """The user's program to run instead of a built-in workload; ``workload`` is then its name."""
    image: Image | None = None
    """The image to run in; None for none."""
    places: tuple[Place, ...] = ()
    """One run at a time on each of these; empty for one run after the other, without placement."""

    def with_options(self, **changes: Any) -> SweepRequest:
        """Return the request with other options."""
        return replace(self, options=replace(self.options, **changes))

    @property
    def name(self) -> str:
        """The same request always has the same name, so that it finds its existing runs; an edited
        script changes it."""
        if self.options.sweep_name is not None:
            return self.options.sweep_name
        asked: list[object] = [
            self.profiler.name,
            self.profiler_options,
            self.workload,
            self.workload_arguments,
            self.device,
            self.origin,
            *(self.program.identity() if self.program else ()),
            *(self.image.identity() if self.image else ()),
        ]
        digest = hashlib.sha256(json.dumps(asked, default=str, sort_keys=True).encode()).hexdigest()
        return f"{self.profiler.name}-{file_name(self.workload)}-{digest[:8]}"

    @property
    def profiler_options(self) -> dict[str, Any]:
        return asdict(self.profiler) if is_dataclass(self.profiler) else {}

    @property
    def folder(self) -> Path:
        return self.options.out / self.name

    def run_request(self, batch_size: int, attempt: int = 1) -> RunRequest:
        paths = RunPaths(self.folder.absolute(), batch_size, attempt)
        python = (
            self.program.python
            if self.program
            else images_run.PYTHON
            if self.image
            else self.python
        )
        return RunRequest(
            self.workload,
            self.workload_arguments,
            batch_size,
            self.device,
            paths,
            python,
            self.program,
            annotator=self.annotator,
            visible=self.visible,
            within=self.image.prefix() if self.image else (),
        )

    @property
    def annotator(self) -> Path | None:
        """The file that runs inside a process of an interpreter other than perfctl's own; None
        where none is needed."""
        if self.program is None or self.image is not None or self.program.python == sys.executable:
            return None
        return self.folder.absolute() / annotator.NAME

    @property
    def visible(self) -> str | None:
        """CUDA_VISIBLE_DEVICES of the runs; None where it is not set."""
        own = self.places[0].environment if len(self.places) == 1 else {}
        return own.get(devices.VISIBLE, os.environ.get(devices.VISIBLE))

    def stall(self, command: Command) -> Stall | None:
        """When a run of ``command`` counts as stuck; None for never, as for exports, which may
        write at their end only."""
        stall_s = self.options.stall
        if stall_s is None or command.needs is not None:
            return command.stall
        return Stall(stall_s) if stall_s else None

    @property
    def other_folders(self) -> list[Path]:
        """Folders that a run inside an image needs besides the working directory and
        the sweep's."""
        script, scratch = self.program.script if self.program else None, self.options.scratch
        return [*([scratch] if scratch else []), *([script.parent] if script else [])]

    def commands(self, asked: RunRequest) -> tuple[Command, ...]:
        """The commands of one run, inside the sweep's image, with the environment of its place if
        there is only one."""
        made = self.profiler.commands(asked)
        if len(self.places) == 1:
            place = self.places[0].environment
            made = tuple(replace(one, environment={**one.environment, **place}) for one in made)
        if self.image is None:
            return made
        return tuple(
            self.image.wrap(one, (self.folder, *self.other_folders), Path.cwd()) for one in made
        )

    def facts(self, commands: Iterable[Command] = ()) -> dict[str, str]:
        """Facts for a run's record: its container, the commit of the program, its place, and what
        its commands chose."""
        runs_in = self.image or images_run.inside()
        found = runs_in.facts() if runs_in and self.origin == "measured" else {}
        if self.program is not None and self.origin == "measured":
            script = self.program.script
            found |= revision(script.parent if script else Path.cwd(), script)
        found |= self.places[0].facts() if len(self.places) == 1 else {}
        for command in commands:
            found |= command.facts
        return found

    @property
    def sample_s(self) -> float | None:
        """Seconds between samples of the device and the run's processes; None for no sampling."""
        return sampler.interval(self.options.sample)

    def sampling(self, asked: RunRequest, command: Command) -> Sampling | None:
        """What to sample during a run; None when sampling is off or the run is a replay."""
        if self.sample_s is None or self.origin != "measured":
            return None
        visible = command.environment.get(devices.VISIBLE, self.visible)
        return Sampling(self.sample_s, asked.paths.part, asked.device == "cuda", visible)

    def reserved(self) -> tuple[Place, ...]:
        """The places to lock during the sweep: those requested, or the GPU that programs use
        by default."""
        if self.places or self.device != "cuda" or self.origin != "measured":
            return self.places
        first = devices.first_gpu()
        return (first,) if first else ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run; ``folder`` holds its files."""

    JSON_KEYS = ("batch_size", "status", "reason", "skipped", "duration_ns", "folder")

    batch_size: int
    status: Annotated[str, ("ok", "partial", "failed")]
    reason: str | None
    """null: it is ok."""
    folder: Path
    skipped: bool = False
    """The batch size was complete already, and nothing ran."""
    duration_ns: int | None = None
    """Of the whole run; null: nothing ran, or it did not end."""
    repeat: int = 1
    """Number of the repeat, from 1."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for the progress of a sweep."""

    started: Callable[[int, str], None] = lambda batch, stage: None
    """(batch size, stage) before each process."""
    noted: Callable[[str], None] = lambda text: None
    """What the user should know of a run that starts now."""
    finished: Callable[[RunResult], None] = lambda result: None
    stopped: Callable[[RunResult], None] = lambda result: None
    """The result of a run that was stopped; Interrupted is raised next."""
