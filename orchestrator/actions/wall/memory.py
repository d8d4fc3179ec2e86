"""A limit on the memory that reading reports takes.

Linux counts what a process may write to for itself (RLIMIT_DATA, ``VmData``): what Python, numpy
and SQLite allocate, and not the files and libraries that are only mapped. The limit is on top of
what the process has already. Elsewhere there is no such limit, and none is kept.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfctl.orchestrator.errors import UsageError

MOST = 2 << 30
"""The default on a machine with 8 GiB and more: several times what the largest reports take."""
LEAST = 512 << 20
"""The default on a machine with less than 2 GiB: reports of the documented sizes take up to
400 MB."""
_SMALLEST = 16 << 20
VARIABLE = "PERFCTL_MEMORY_LIMIT"
"""Environment variable that says the limit where nothing else does."""
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def is_kept() -> bool:
    """Whether this system keeps limits."""
    return sys.platform.startswith("linux")


def default() -> int:
    """Bytes: a quarter of the machine's memory, at most MOST and at least LEAST."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return MOST
    return max(LEAST, min(MOST, machine // 4))


def bytes_of(text: str | int | None) -> int:
    """ "2GiB", "500M" or a number of bytes; 0 for no limit, None for what VARIABLE says, else
    ``default``. K, M, G are powers of 1,024.

    Raises UsageError for anything else, and for less than 16 MiB.
    """
    source = "`memory_limit`"
    if text is None:
        source, text = VARIABLE, os.environ.get(VARIABLE) or None
    if text is None:
        return default()
    said = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", str(text).strip(), re.IGNORECASE)
    size = int(float(said[1]) * (1 << _UNITS[said[2].upper()])) if said else -1
    if size < 0 or 0 < size < _SMALLEST or size >= 1 << 62:
        raise UsageError(
            f"{source}: '{text}' is not a size of 16 MiB or more",
            "Write for instance 4G; 0 is none",
        )
    return size


def shown(limit: int) -> str:
    """ "2 GiB", "700 MiB"."""
    return f"{limit / 2**30:.3g} GiB" if limit >= 1 << 30 else f"{limit / 2**20:.3g} MiB"


def keep_for_good(limit: int) -> None:
    """From now on this process may take ``limit`` bytes more than it has; 0: no limit."""
    _set(limit)


@contextmanager
def kept(limit: int) -> Iterator[None]:
    """Inside, the same. All threads of the process share it."""
    before = _set(limit)
    try:
        yield
    finally:
        if before is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, before)


def _set(limit: int) -> tuple[int, int] | None:
    """The limits before; None where nothing was changed."""
    if not limit or not is_kept():
        return None
    import resource

    with suppress(OSError, ValueError):
        before = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = _held() + limit
        if before[0] == resource.RLIM_INFINITY or wanted < before[0]:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, before[1]))
            return before
    return None


def _held() -> int:
    """Bytes of ``VmData``."""
    status = Path("/proc/self/status").read_text()
    return next(
        int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:")
    )
