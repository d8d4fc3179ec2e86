"""Remove the stale lock that a killed nsys leaves in shared memory.

An nsys 2022.4 that gets SIGKILL while it starts its agent can keep the lock for good. Every later nsys on the machine
then waits ten seconds and ends with "Agent launcher failed", until the file is removed; nsys creates a new one.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108  # nosec B108 - where glibc keeps shared memory
PATTERN = f"{FOLDER}/NSys-*"


def clear(folder: Path = FOLDER, processes: Path = Path("/proc")) -> str | None:
    """Remove this user's lock files unless an nsys is running. A sentence about what was removed; None for nothing."""
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
    return f"removed {', '.join(removed)}, the lock of an nsys that was killed" if removed else None


def _is_nsys(process: Path) -> bool:
    try:
        name = (process / "comm").read_text(errors="replace").strip()
        return (
            name.startswith("nsys")
            and (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False
