"""A sweep: one process per batch size, each in its own folder, whatever happens to the others."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import Interrupted, UsageError
from perfctl.orchestrator.launch import process
from perfctl.orchestrator.launch.paths import RunPaths
from perfctl.orchestrator.launch.profiler import Command, Outcome, Profiler, RunRequest, Verdict

RUN_RECORD_VERSION = 1


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
    python: str = sys.executable

    @property
    def name(self) -> str:
        """The same request always has the same name, so that it finds what it has already."""
        options: dict[str, Any] = asdict(self.profiler) if is_dataclass(self.profiler) else {}
        asked = [self.profiler.name, options, self.workload, self.workload_arguments, self.device, self.origin]
        digest = hashlib.sha256(json.dumps(asked, default=str, sort_keys=True).encode()).hexdigest()
        return f"{self.profiler.name}-{self.workload}-{digest[:8]}"

    @property
    def folder(self) -> Path:
        return self.out / self.name

    def run_request(self, batch_size: int, attempt: int = 1) -> RunRequest:
        paths = RunPaths(self.folder.absolute(), batch_size, attempt)
        return RunRequest(self.workload, self.workload_arguments, batch_size, self.device, paths, self.python)


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


@dataclass(frozen=True, slots=True)
class Listener:
    """What a caller wants to hear while a sweep goes on."""

    started: Callable[[int, str], None] = lambda batch, stage: None
    """(batch size, stage) before each process."""
    tick: Callable[[float], None] = lambda seconds: None
    """Seconds that the process has run, about once a second."""
    finished: Callable[[RunResult], None] = lambda result: None


def check_batches(batches: tuple[int, ...]) -> None:
    """Raises UsageError unless there is at least one batch size, all are positive, and none stands twice."""
    if not batches:
        raise UsageError("no batch size was given", "Say --batches 16,32,64")
    for batch in batches:
        if batch < 1:
            raise UsageError(f"batch size {batch} is not positive", "Say --batches 16,32,64")
    if len(set(batches)) < len(batches):
        raise UsageError(f"a batch size stands twice in {','.join(map(str, batches))}", "Name each once")


def commands(request: SweepRequest) -> Iterator[tuple[int, Command]]:
    """Everything that the sweep would start: (batch size, command), in order."""
    for batch in request.batches:
        for command in request.profiler.commands(request.run_request(batch)):
            yield batch, command


def run(request: SweepRequest, listener: Listener) -> list[RunResult]:
    """Run every batch size that is not whole yet. One failing is recorded, and the rest go on.

    Raises UsageError when another perfctl works on the same sweep, Interrupted when asked to stop.
    """
    check_batches(request.batches)
    request.folder.mkdir(parents=True, exist_ok=True)
    with _alone(request.folder):
        _write_json(request.folder / "sweep.json", _sweep_record(request))
        return [_run_batch(request, batch, listener) for batch in request.batches]


def _run_batch(request: SweepRequest, batch: int, listener: Listener) -> RunResult:
    whole, free = _attempts(request, batch)
    if whole is not None and not request.again:
        result = RunResult(batch, "ok", None, whole, skipped=True)
    else:
        result = _run_now(request, request.run_request(batch, free), listener)
    listener.finished(result)
    return result


def _attempts(request: SweepRequest, batch: int) -> tuple[Path | None, int]:
    """(folder of the newest whole attempt or None, number of the attempt that a new run may use)."""
    whole, attempt = None, 1
    while (folder := request.run_request(batch, attempt).paths.folder).exists():
        if not is_whole(folder):
            break
        whole, attempt = folder, attempt + 1
    return whole, attempt


def _run_now(request: SweepRequest, asked: RunRequest, listener: Listener) -> RunResult:
    paths = asked.paths
    shutil.rmtree(paths.part, ignore_errors=True)
    paths.scratch.mkdir(parents=True)
    planned = request.profiler.commands(asked)
    outcomes: list[Outcome] = []
    try:
        for command in planned:
            if command.needs is not None and not command.needs.exists():
                break
            listener.started(asked.batch_size, command.stage)
            outcomes.append(_start(command, asked, request, listener, len(outcomes)))
        verdict = request.profiler.judge(asked, tuple(outcomes))
    except Interrupted:
        _write_record(request, asked, planned, outcomes, Verdict("partial", "interrupted before it was whole"))
        shutil.rmtree(paths.scratch, ignore_errors=True)
        raise
    _write_record(request, asked, planned, outcomes, verdict)
    shutil.rmtree(paths.scratch, ignore_errors=True)
    _put_in_place(paths)
    spent = sum(outcome.duration_ns for outcome in outcomes)
    return RunResult(asked.batch_size, verdict.status, verdict.reason, paths.folder, duration_ns=spent)


def _start(command: Command, asked: RunRequest, request: SweepRequest, listener: Listener, number: int) -> Outcome:
    """The first process writes stdout.log and stderr.log; later ones (exports) get their own."""
    paths = asked.paths
    stdout, stderr = paths.stdout, paths.stderr
    if number:
        stdout, stderr = (path.with_name(f"{command.stage}-{path.name}") for path in (stdout, stderr))
    return process.run(
        command,
        cwd=Path.cwd(),
        stdout=stdout,
        stderr=stderr,
        timeout_s=request.timeout_s,
        scratch=paths.scratch,
        on_tick=listener.tick,
    )


def is_whole(folder: Path) -> bool:
    """Was this run finished, and is its artifact still as large as it was then?"""
    record = read_run_record(folder)
    if record is None or record.get("status") != "ok":
        return False
    artifact = folder / str(record.get("artifact"))
    return artifact.exists() and _size(artifact) == record.get("artifact_bytes")


def read_run_record(folder: Path) -> dict[str, Any] | None:
    """run.json of a run's folder; None when there is none, or it is not whole."""
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("perfctl_run") == RUN_RECORD_VERSION else None


def _write_record(
    request: SweepRequest,
    asked: RunRequest,
    planned: tuple[Command, ...],
    outcomes: list[Outcome],
    verdict: Verdict,
) -> None:
    artifact = request.profiler.artifact(asked.paths)
    first = outcomes[0] if outcomes else None
    _write_json(
        asked.paths.run_record,
        {
            "perfctl_run": RUN_RECORD_VERSION,
            "profiler": request.profiler.name,
            "origin": request.origin,
            "workload": request.workload,
            "workload_arguments": request.workload_arguments,
            "batch_size": asked.batch_size,
            "device": asked.device,
            "status": verdict.status,
            "reason": verdict.reason,
            "exit_code": first.exit_code if first else None,
            "started_at": first.started_at if first else None,
            "duration_ns": first.duration_ns if first else None,
            "artifact": artifact.name if artifact.exists() else None,
            "artifact_bytes": _size(artifact) if artifact.exists() else None,
            "commands": [command.argv for command in planned],
        },
    )


def _sweep_record(request: SweepRequest) -> dict[str, Any]:
    return {
        "perfctl_sweep": 1,
        "name": request.name,
        "profiler": request.profiler.name,
        "command": request.command_line,
        "host": request.host,
    }


def _put_in_place(paths: RunPaths) -> None:
    """b16.part becomes b16; what was there before goes only once the new one is in place."""
    old = paths.folder.with_name(paths.folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if paths.folder.exists():
        paths.folder.rename(old)
    paths.part.rename(paths.folder)
    shutil.rmtree(old, ignore_errors=True)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    if path.is_dir():
        return sum(child.stat().st_size for child in path.rglob("*") if child.is_file())
    return path.stat().st_size


def _write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the sweep's lock; it goes by itself when the process ends, however it ends."""
    handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise UsageError(
            f"{folder}: another perfctl is running this sweep", "Wait for it, or choose another --out"
        ) from error
    try:
        yield
    finally:
        os.close(handle)
