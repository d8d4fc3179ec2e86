"""A limit on the memory that a process takes.

Linux counts what a process may write to for itself (RLIMIT_DATA, ``VmData``): what Python, numpy
and SQLite allocate, and not the files and libraries that are only mapped. The limit is on top of
what the process has already.
"""

from __future__ import annotations

import os
import re
import resource
from contextlib import suppress
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


def choose_default_memory_limit_bytes() -> int:
    """Return bytes: a quarter of the machine's memory, at most MOST and at least LEAST."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return MOST
    return max(LEAST, min(MOST, machine // 4))


def parse_memory_limit(text: str | int | None) -> int:
    """Return the bytes of "2GiB", "500M" or a number; 0 for no limit, for None what VARIABLE says,
    else ``choose_default_memory_limit_bytes``. K, M, G are powers of 1,024.

    Raises UsageError for anything else, and for less than 16 MiB.
    """
    source = "`memory_limit`"
    if text is None:
        source, text = VARIABLE, os.environ.get(VARIABLE) or None
    if text is None:
        return choose_default_memory_limit_bytes()
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", str(text).strip(), re.IGNORECASE)
    size = int(float(parts[1]) * (1 << _UNITS[parts[2].upper()])) if parts else -1
    if size < 0 or 0 < size < _SMALLEST or size >= 1 << 62:
        raise UsageError(
            f"invalid value '{text}' for {source}",
            "Use a size of at least 16 MiB such as 4G, or 0 for no limit",
        )
    return size


def format_memory_limit(limit_bytes: int) -> str:
    """Return "2 GiB", "700 MiB"."""
    return (
        f"{limit_bytes / 2**30:.3g} GiB"
        if limit_bytes >= 1 << 30
        else f"{limit_bytes / 2**20:.3g} MiB"
    )


def limit_additional_process_memory(additional_bytes: int) -> None:
    """Let this process take ``additional_bytes`` more than it has, from now on; 0 for no limit."""
    if not additional_bytes:
        return
    with suppress(OSError, ValueError):  # a system without /proc keeps no limit
        status = Path("/proc/self/status").read_text()
        (used_kib,) = re.findall(r"^VmData:\s*(\d+) kB", status, re.MULTILINE)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        new_limit = (int(used_kib) << 10) + additional_bytes
        if soft == resource.RLIM_INFINITY or new_limit < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (new_limit, hard))
