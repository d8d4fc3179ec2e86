"""The shared memory in which all nsys of a machine take turns, and the lock that one which was killed leaves there.

nsys 2022.4 that gets SIGKILL while it starts its agent can hold the lock for good. From then on each nsys of the machine
waits ten seconds and ends with "Agent launcher failed", until the file is removed; nsys makes a new one.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108  # nosec B108 - where glibc keeps shared memory
PATTERN = f"{FOLDER}/NSys-*"


def clear(folder: Path = FOLDER, processes: Path = Path("/proc")) -> str | None:
    """Remove the files where they are this user's and no nsys runs; what was removed, in words, or None."""
    if any(_is_nsys(process) for process in processes.iterdir() if process.name.isdecimal()):
        return None
    removed = []
    for path in sorted(folder.glob("NSys-*")):
        try:
            facts = path.lstat()
            if facts.st_uid == os.getuid() and path.is_file() and not path.is_symlink():
                path.unlink()
                removed.append(str(path))
        except OSError:
            continue
    return f"{', '.join(removed)} was removed: an nsys that was killed had left its lock in it" if removed else None


def _is_nsys(process: Path) -> bool:
    try:
        name = (process / "comm").read_text(errors="replace").strip()
        return (
            name.startswith("nsys")
            and (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False
