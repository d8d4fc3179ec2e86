"""What is asked of a whole file besides its measurements: its SHA-256, and whether it holds
anything that looks like a secret.

For a large file both are worked out while it is parsed, where there is a second core. Hashing
releases Python's lock, so a thread does it. The search for secrets does not, so a process of its
own does it::

    python -P -m perfctl.orchestrator.ingest.scan_file FILE

which prints the names it finds as a JSON list. It ends when its stdin does: whoever started it has
ended then. In a database only a few tables are searched, which takes no time.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import replacing
from perfctl.parsers.secret_scan import is_database, names_in

if TYPE_CHECKING:
    from perfctl.parsers.scrub import Scrubbed

WORKER = "perfctl.orchestrator.ingest.scan_file"
"""The module that is run as a process; its ``__name__`` there is another."""
LARGE = 1 << 25
"""Bytes above which the search for secrets gets a process of its own, which takes some 0.1 s
to start."""
SMALL = 1 << 20
"""Bytes up to which a file is hashed when its hash is asked for: a thread would take longer
to start."""
PIECE = 1 << 24
"""Bytes hashed at a time, without Python's lock: to get that back may take longer than hashing a
small piece."""


class FileScan:
    """Hash and secrets of one file or folder. For a large file the work begins with the ``with``
    block and ends with it.

    Raises FileNotFoundError where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        size = path.stat().st_size
        self._has_own = (
            path.is_file()
            and size >= LARGE
            and len(os.sched_getaffinity(0)) > 1
            and not is_database(path)
        )
        """A process of its own searches for secrets."""
        self._stopped = threading.Event()
        self._worker: ThreadPoolExecutor | None = None
        if path.is_dir() or size > SMALL:
            self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="perfctl-sha256")
        self._digest: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FileScan:
        if self._has_own:
            self._process = _start(self._path)
        if self._worker is not None:
            self._hashed = self._worker.submit(sha256, self._path, self._stopped)
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._worker is not None:
            self._worker.shutdown()
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def digest(self) -> str:
        """``sha256`` of it. Raises OSError where it cannot be read."""
        if self._digest is None:
            self._digest = sha256(self._path) if self._worker is None else self._hashed.result()
        return self._digest

    def secrets(self) -> list[str]:
        """Names of what looks like a secret in it, sorted."""
        if self._process is not None and self._process.stdout is not None:
            said = self._process.stdout.read()
            if self._process.wait() == 0 and said:
                return [str(name) for name in json.loads(said)]
        return names_in(self._path)


def _start(path: Path) -> subprocess.Popen[bytes] | None:
    command, pipe = (sys.executable, "-P", "-m", WORKER, os.fspath(path)), subprocess.PIPE
    try:
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:  # no more processes: it is done in this one
        return None


def sha256(path: Path, stopped: threading.Event | None = None) -> str:
    """Hexadecimal, of a file; of a folder, over its files' names and contents in order. Once
    ``stopped``, of a part only."""
    digest = hashlib.sha256()
    files: Sequence[Path] = (
        sorted(child for child in path.rglob("*") if child.is_file()) if path.is_dir() else [path]
    )
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


def scrub(file: Path, out: Path | None = None, *, force: bool = False) -> Scrubbed:
    """Write a copy of a report without process environments and secrets; ``out`` defaults to
    ``scrubbed_name``.

    Raises UsageError, before anything is written, where the copy cannot be made or is there and
    ``force`` is not given; ReportError for a format that cannot be edited.
    """
    from perfctl.parsers import refuse_special
    from perfctl.parsers.scrub import scrub as write_copy

    target = out or scrubbed_name(file)
    if not file.exists():
        raise UsageError(f"{file}: there is no such file", "Check the path")
    refuse_special(file)
    if target.exists() and target.samefile(file):
        raise UsageError(f"`out`: {target} is the report itself", "Name another file")
    with replacing(target, force=force) as partial:
        return replace(write_copy(file, partial), path=target)


def scrubbed_name(file: Path) -> Path:
    """Where the copy goes: report.sqlite -> report.scrubbed.sqlite, trace.json.gz ->
    trace.scrubbed.json.gz."""
    ending = "".join(file.suffixes[-2 if file.suffix == ".gz" else -1 :])
    return file.with_name(f"{file.name.removesuffix(ending)}.scrubbed{ending}")


def main() -> None:
    """The worker process. Exit code 1 where nobody is left to be told."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.stdout.write(json.dumps(names_in(Path(sys.argv[1]))))
    sys.stdout.flush()


def _end_with_stdin() -> None:
    # Not through sys.stdin: its lock, held in a read, would be waited for when Python ends.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
