"""What is on disk of a run: its record, whether it is whole, how it gets its final name, and who may write there."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.paths import RunPaths

RUN_RECORD_VERSION = 1
_TYPES: dict[str, type] = {
    **dict.fromkeys(("profiler", "status", "origin", "workload", "reason", "started_at", "artifact", "variant"), str),
    **dict.fromkeys(("batch_size", "exit_code", "duration_ns", "artifact_bytes"), int),
    "commands": list,
}
"""Of the record's fields; each may be missing."""
_LARGEST = 2**63

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def is_whole(folder: Path) -> bool:
    """Was this run finished, and is its artifact still as large as it was then?"""
    record = read_run_record(folder)
    if record is None or record.get("status") != "ok":
        return False
    artifact = folder / str(record.get("artifact"))
    return artifact.exists() and size(artifact) == record.get("artifact_bytes")


def read_run_record(folder: Path) -> dict[str, Any] | None:
    """run.json of a run's folder; None when there is none, it is not whole, or its fields are not what they should be."""
    record = read_json(folder / "run.json")
    if record is None or record.get("perfctl_run") != RUN_RECORD_VERSION:
        return None
    return (
        record if all(_fits(record.get(name), kind) for name, kind in _TYPES.items()) and _is_inside(record) else None
    )


def _fits(value: object, kind: type) -> bool:
    return value is None or (isinstance(value, kind) and (not isinstance(value, int) or abs(value) < _LARGEST))


def _is_inside(record: dict[str, Any]) -> bool:
    """Is the artifact a name within the run's own folder, and each command a list of words?"""
    name = record.get("artifact")
    commands = record.get("commands") or []
    words = all(isinstance(one, list) and all(isinstance(word, str) for word in one) for one in commands)
    return words and (name is None or (Path(name).name == name and name not in ("", "..") and "\0" not in name))


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None when there is none, or the file is not whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def put_in_place(paths: RunPaths) -> None:
    """b16.part becomes b16; what was there before goes only once the new one is in place."""
    old = paths.folder.with_name(paths.folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if paths.folder.exists():
        paths.folder.rename(old)
    paths.part.rename(paths.folder)
    shutil.rmtree(old, ignore_errors=True)


def size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    if path.is_dir():
        return sum(child.stat().st_size for child in path.rglob("*") if child.is_file())
    return path.stat().st_size


def write_json(path: Path, content: dict[str, Any]) -> None:
    """All of it or nothing, also where several processes on several nodes write the same file."""
    partial = path.with_name(f"{path.name}.{platform.node()}.{os.getpid()}.tmp")
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"
    with open(partial, "w", encoding="utf-8", errors="backslashreplace", opener=_no_link) as file:
        file.write(text)  # arguments need not be UTF-8
    partial.replace(path)


def _no_link(path: str, flags: int) -> int:
    """Others may write to a shared folder: what they put under this name is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextmanager
def alone(folder: Path, batch: int | None = None) -> Iterator[None]:
    """Hold the sweep's lock, or that of one batch size only; it goes by itself when the process ends, however it ends.

    Raises UsageError when another perfctl holds it. Who has one batch size lets others have theirs.
    """
    with ExitStack() as held:
        if batch is None:
            held.enter_context(
                _lock(folder / ".lock", fcntl.LOCK_EX, f"{folder}: another perfctl is running this sweep")
            )
        else:
            held.enter_context(
                _lock(folder / ".lock", fcntl.LOCK_SH, f"{folder}: another perfctl is running this sweep")
            )
            own = f"{folder}: another perfctl is running batch size {batch}"
            held.enter_context(_lock(folder / f".b{batch}.lock", fcntl.LOCK_EX, own))
        yield


@contextmanager
def _lock(path: Path, kind: int, taken: str) -> Iterator[None]:
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UsageError(taken, "Wait for it, or choose another --out") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # Lustre without -o flock, some NFS: goes on without
            os.close(handle)
            raise
    try:
        yield
    finally:
        os.close(handle)
