"""The progress of the sweeps in a folder, read from their files without locking or writing."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.launch.run_folder import read_json, read_run_record

FRESH_S = 120.0
"""Where locks are not visible, a run counts as under way if its folder changed within this time."""
_RUN = re.compile(r"b(\d+)(?:\.(\d+|part))?\Z")


@dataclass(frozen=True, slots=True)
class RunState:
    """One batch size of a sweep, at one attempt."""

    batch_size: int
    attempt: str
    """Empty for the first, "2", "3", ... for repetitions."""
    status: str
    """ok, partial, failed, running, or "cut off"."""
    reason: str | None
    started_at: str | None
    duration_ns: int | None


@dataclass(frozen=True, slots=True)
class SweepState:
    """One sweep's folder."""

    name: str
    command: str | None
    host: str | None
    running: bool
    runs: tuple[RunState, ...]


def sweeps(folder: Path) -> list[SweepState]:
    """The sweeps in ``folder`` and in perfctl-runs below it, newest first. Does not follow links."""
    found = []
    for parent in (folder, folder / "perfctl-runs"):
        if not parent.is_dir() or parent.is_symlink():
            continue
        for place in parent.iterdir():
            record = place / "sweep.json"
            if not place.is_symlink() and record.is_file():
                found.append((record.stat().st_mtime_ns, place))
    return [_sweep(place) for _, place in sorted(found, key=lambda item: (-item[0], item[1].name))]


def _sweep(folder: Path) -> SweepState:
    record = read_json(folder / "sweep.json") or {}
    held = _held(folder)
    runs = [run for place in folder.iterdir() if (run := _run(place, held)) is not None]
    runs.sort(key=lambda run: (run.batch_size, run.attempt))
    command, host = record.get("command"), record.get("host")
    return SweepState(
        folder.name,
        command if isinstance(command, str) else None,
        host if isinstance(host, str) else None,
        held or any(run.status == "running" for run in runs),
        tuple(runs),
    )


def _run(place: Path, held: bool) -> RunState | None:
    name = _RUN.match(place.name)
    if name is None or place.is_symlink() or not place.is_dir():
        return None
    batch = int(name[1])
    record = read_run_record(place) or {}
    if name[2] == "part":
        status = "running" if held or _fresh(place) else "cut off"
        return RunState(batch, "", status, _text(record.get("reason")), None, None)
    length = record.get("duration_ns")
    return RunState(
        batch,
        name[2] or "",
        _text(record.get("status")) or "cut off",
        _text(record.get("reason")),
        _text(record.get("started_at")),
        length if isinstance(length, int) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _fresh(folder: Path) -> bool:
    try:
        newest = max(place.stat().st_mtime for place in (folder, *folder.iterdir()))
    except OSError:  # the run was completed and renamed meanwhile
        return True
    return time.time() - newest < FRESH_S


def _held(folder: Path) -> bool:
    """Whether a process of this machine holds a lock of the sweep. Read from /proc: taking the lock would stop others."""
    try:
        numbers = {str(file.stat().st_ino) for file in folder.glob(".*lock")}
        lines = Path("/proc/locks").read_text().splitlines() if numbers else []
    except OSError:
        return False
    return any(
        " FLOCK " in line and line.split()[5].rpartition(":")[2] in numbers for line in lines if "->" not in line
    )
