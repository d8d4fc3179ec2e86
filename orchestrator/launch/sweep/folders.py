"""A run's folder: read and write its record, check that it is complete, rename it, lock it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from perfctl.orchestrator.errors import UsageError
from perfctl.records.run import make_parameter

LAUNCHES = "launches.json"
"""File of the first pass in the folder of a run: what the plain step launched."""
RECORD_NAME = "recorded-run.json"
"""New name of the recorded run.json, because the sweep writes its own."""
_RANK_VARIABLES = {"OMPI_COMM_WORLD_RANK": "mpirun", "PMI_RANK": "mpiexec", "SLURM_PROCID": "srun"}
"""Variable that tells a process its rank -> the launcher that sets it."""
Text = str | None
Number = Annotated[int, Meta(ge=1 - 2**63, le=2**63 - 1)] | None
FileName = Annotated[str, Meta(pattern=r"^(?!\.\.?$)[^/\0]+$")] | None
"""Name of a file in the run's folder."""


class RunRecord(msgspec.Struct):
    """The fields of run.json that perfctl reads; each of them may be missing."""

    perfctl_run: Literal[1]
    profiler: Text = None
    status: Text = None
    origin: Text = None
    workload: Text = None
    reason: Text = None
    started_at: Text = None
    variant: Text = None
    artifact: FileName = None
    batch_size: Number = None
    parameters: dict[str, str] | None = None
    exit_code: Number = None
    duration_ns: Number = None
    artifact_bytes: Number = None
    commands: list[list[str]] | None = None


@dataclass(frozen=True, slots=True)
class SweepSetting:
    """One value of each parameter that a sweep varies; a run is of one setting."""

    batch: int | None = None
    """The batch size; None where none was asked for."""
    others: tuple[tuple[str, str], ...] = ()
    """(name, value as typed) of the other parameters, by name."""

    @property
    def parameters(self) -> dict[str, str]:
        """Name -> value of all parameters, the batch size first."""
        return {**({} if self.batch is None else {"batch": str(self.batch)}), **dict(self.others)}

    @property
    def sort_key(self) -> tuple[object, ...]:
        """What settings are sorted by: numbers by size, texts after them."""
        other_parameters = (make_parameter(*pair) for pair in self.others)
        return self.batch or 0, [
            (n, number is None, number or 0, v) for n, v, number in other_parameters
        ]

    @property
    def file_name(self) -> str:
        """ "b16", "b16+N=256", "N=256+precision=tf32": the name of its runs' folders; "run"
        without a parameter. A value with other characters than letters, digits and - gets a
        digest."""
        names = [] if self.batch is None else [f"b{self.batch}"]
        for name, value in self.others:
            safe = re.sub(r"[^A-Za-z0-9-]", "_", value)[:40]
            digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:8]
            names.append(f"{name}={safe}{'' if safe == value else f'-{digest}'}")
        return "+".join(names) or "run"

    @property
    def command_line_options(self) -> tuple[str, ...]:
        """Options that ask perfctl for this setting."""
        batch = () if self.batch is None else ("--batches", str(self.batch))
        return (
            *batch,
            *(argument for pair in self.others for argument in ("--sweep", "=".join(pair))),
        )

    def __str__(self) -> str:
        """Return "batch 16, N=256"."""
        batch = [] if self.batch is None else [f"batch {self.batch}"]
        return ", ".join((*batch, *map("=".join, self.others))) or "the program"


def read_sweep_setting(record: Mapping[str, Any]) -> SweepSetting:
    """Return the setting in run.json, or in any other record with batch_size and parameters."""
    other_parameters = {**(record.get("parameters") or {})}
    other_parameters.pop("batch", None)
    return SweepSetting(record.get("batch_size"), tuple(sorted(other_parameters.items())))


def parse_run_folder_name(name: str) -> tuple[SweepSetting, str] | None:
    """Return (setting, "" or "2", "part" and so on) of the name of a run's folder; None for any
    other name."""
    match = re.fullmatch(r"(run|b\d+|(?:b\d+\+)?\w+=[^.]+)(?:\.(\d+|part))?", name)
    if match is None:
        return None
    pieces = match[1].split("+") if match[1] != "run" else []
    batch = int(pieces.pop(0)[1:]) if pieces and "=" not in pieces[0] else None
    other_parameters = (piece.partition("=")[::2] for piece in pieces)
    return SweepSetting(batch, tuple(other_parameters)), match[2] or ""


@dataclass(frozen=True, slots=True)
class RunPaths:
    """All files of one run. ``folder`` is its final folder, ``partial_folder`` the one while it is
    under way."""

    sweep_folder: Path
    setting: SweepSetting
    attempt: int = 1
    """Counts repetitions from 1, so that none replaces files that the store refers to."""

    @property
    def folder(self) -> Path:
        suffix = f".{self.attempt}" if self.attempt > 1 else ""
        return self.sweep_folder / f"{self.setting.file_name}{suffix}"

    @property
    def partial_folder(self) -> Path:
        return self.sweep_folder / f"{self.setting.file_name}.part"

    @property
    def scratch(self) -> Path:
        """Private TMPDIR of the run's processes; removed at the end of the run."""
        return self.partial_folder / "tmp"

    @property
    def workload_record(self) -> Path:
        """The record that the profiled process writes while the run is under way."""
        return self.partial_folder / "workload.json"

    @property
    def stdout(self) -> Path:
        return self.partial_folder / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self.partial_folder / "stderr.log"

    def get_report_path(self, suffix: str) -> Path:
        """Return the profiler's report, while the run is under way: "report" + ``suffix``
        (".sqlite", ".csv", ...)."""
        return self.partial_folder / f"report{suffix}"


def list_run_folders(folder: Path, setting: SweepSetting) -> list[Path]:
    """Return the folders of a setting's runs in a sweep's folder, oldest first: b16, b16.2, b16.3,
    ..."""
    return list(
        takewhile(Path.is_dir, (RunPaths(folder, setting, number).folder for number in count(1)))
    )


def make_safe_file_name(name: str) -> str:
    """``name`` reduced to ASCII letters, digits, '.', '_' and '-'; "program" when nothing
    is left."""
    stem, dot, suffix = name.rpartition(".") if name.endswith(".py") else (name, "", "")
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", stem).strip("._-")[:60]
    return f"{safe or 'program'}{dot}{suffix}"


def is_run_complete(folder: Path) -> bool:
    """Return whether the run is ok and its report still has the recorded size."""
    record = read_run_record(folder)
    if record is None or record.get("status") != "ok":
        return False
    artifact = folder / str(record.get("artifact"))
    return artifact.exists() and measure_size_bytes(artifact) == record.get("artifact_bytes")


def read_run_record(folder: Path) -> dict[str, Any] | None:
    """run.json of a run's folder; None when it is missing, incomplete, or has fields of a
    wrong type."""
    record = read_json_object(folder / "run.json") or {}
    try:
        msgspec.convert(record, RunRecord)
    except msgspec.ValidationError:
        return None
    return record


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None when the file is missing, incomplete or something
    else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def rename_partial_run_folder(paths: RunPaths) -> None:
    """Rename b16.part to b16. An older b16 is removed only after that."""
    old = paths.folder.with_name(paths.folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if paths.folder.exists():
        paths.folder.rename(old)
    paths.partial_folder.rename(paths.folder)
    shutil.rmtree(old, ignore_errors=True)


def measure_size_bytes(path: Path) -> int:
    """Return bytes of a file, or of all files of a folder."""
    files = [child for child in path.rglob("*") if child.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def write_json_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write all of it or nothing, even when processes on several nodes write the same file."""
    partial = path.with_name(f"{path.name}.{platform.node()}.{os.getpid()}.tmp")
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"
    with open(
        partial,
        "w",
        encoding="utf-8",
        errors="backslashreplace",
        opener=_open_without_following_links,
    ) as file:
        file.write(text)  # arguments may contain bytes that are not UTF-8
    partial.replace(path)


def _open_without_following_links(path: str, flags: int, mode: int = 0o666) -> int:
    """Does not follow a link that another user put into a shared folder."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


@contextmanager
def lock_sweep_or_setting(folder: Path, setting: SweepSetting | None = None) -> Iterator[None]:
    """Hold the lock of a sweep, or of one setting; the kernel releases it when the process ends.
    Raises UsageError when another perfctl holds it. Different settings can be locked at the
    same time."""

    def make_busy_error(work: str) -> UsageError:
        launcher = next(
            (_RANK_VARIABLES[name] for name in _RANK_VARIABLES if name in os.environ), None
        )
        once = (
            f"Start perfctl once, before {launcher} (perfctl nsys -- {launcher} -n 2 ./program). "
        )
        return UsageError(
            f"another perfctl is running {work} in {folder}",
            f"{once if launcher else ''}Wait until it ends, or choose another folder for `out`",
        )

    kind = fcntl.LOCK_EX if setting is None else fcntl.LOCK_SH
    with ExitStack() as locks:
        locks.enter_context(
            lock_file(folder / ".lock", kind, lambda _: make_busy_error("the sweep"))
        )
        if setting is not None:
            lock = folder / f".{setting.file_name}.lock"
            locks.enter_context(
                lock_file(lock, fcntl.LOCK_EX, lambda _: make_busy_error(str(setting)))
            )
        yield


@contextmanager
def lock_file(
    path: Path,
    flock_operation: int,
    build_busy_error: Callable[[int], UsageError],
    mode: int = 0o644,
) -> Iterator[int]:
    """Hold a lock on a file, whose handle is given. Raises what ``build_busy_error`` makes of the
    handle when another holds it. Another user's file in a shared folder can be locked, but not
    written (fs.protected_regular)."""
    try:
        handle = _open_without_following_links(str(path), os.O_CREAT | os.O_RDWR, mode)
    except PermissionError:  # a pipe in its place must not block
        handle = _open_without_following_links(str(path), os.O_RDONLY | os.O_NONBLOCK)
    try:
        try:
            fcntl.flock(handle, flock_operation | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise build_busy_error(handle) from error
        except OSError as error:
            # Lustre, some NFS: without a lock
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        yield handle
    finally:
        os.close(handle)
