"""What is asked of a whole file besides what it measured: its SHA-256, and whether it holds what looks like a secret.

Of a large file both are found out while it is parsed, where there is a second core: hashing leaves Python's lock to
others, so a thread does it; the look for secrets does not, so a process of its own does it (``secret_names``). In a
database only a few tables are looked through, which takes no time.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from perfctl.orchestrator.cli import secret_names
from perfctl.parsers.secret_scan import is_database, names_in

LARGE = 1 << 25
"""Bytes from which on the look for secrets is worth a process: it takes some 0.1 s to start."""
PIECE = 1 << 24
"""Bytes hashed at a time, without Python's lock: to get that back may take longer than hashing a small piece."""


class Look:
    """A look through one file or folder; of a large file it begins with the block of ``with``, and ends with it.

    Raises FileNotFoundError where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        size = path.stat().st_size
        self._has_own = path.is_file() and size >= LARGE and len(os.sched_getaffinity(0)) > 1 and not is_database(path)
        """A process of its own looks for secrets."""
        self._stopped = threading.Event()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="perfctl-sha256")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Look:
        if self._has_own:
            self._process = _start(self._path)
        self._hashed = self._worker.submit(sha256, self._path, self._stopped)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._worker.shutdown()
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def digest(self) -> str:
        """``sha256`` of it. Raises OSError where it cannot be read."""
        return self._hashed.result()

    def secrets(self) -> list[str]:
        """Names of what looks like a secret in it, sorted."""
        if self._process is not None and self._process.stdout is not None:
            said = self._process.stdout.read()
            if self._process.wait() == 0 and said:
                return [str(name) for name in json.loads(said)]
        return names_in(self._path)


def _start(path: Path) -> subprocess.Popen[bytes] | None:
    """``secret_names`` on a file. It ends when its stdin does, so with perfctl however that ends."""
    command = (sys.executable, "-P", "-m", secret_names.__name__, os.fspath(path))
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:  # no more processes: it is done in this one
        return None


def sha256(path: Path, stopped: threading.Event | None = None) -> str:
    """Of a file; of a folder, over its files' names and contents in order. Hexadecimal; of a part where it is stopped."""
    digest = hashlib.sha256()
    files: Sequence[Path] = sorted(child for child in path.rglob("*") if child.is_file()) if path.is_dir() else [path]
    largest = max((file.stat().st_size for file in files), default=0)
    # Kept for all pieces: new memory for each would cost as much as reading it.
    buffer = memoryview(bytearray(max(1 << 16, min(largest, PIECE))))
    for file in files:
        if path.is_dir():
            digest.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb", buffering=0) as handle:
            while not (stopped and stopped.is_set()) and (count := handle.readinto(buffer)):
                digest.update(buffer[:count])
    return digest.hexdigest()
