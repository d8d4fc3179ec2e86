"""Run one process of a run, and end everything that it started, whatever happens.

The process has its own session, logs in files, and a private TMPDIR. It is ended gently first (SIGTERM, so that
nsys and ncu write what they have) and then for good, when its time is up, when perfctl is asked to stop, and
after it ended by itself and left something behind. Should perfctl be killed, :mod:`guard` does it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from perfctl.orchestrator.errors import Interrupted, RunFailed, ToolMissing
from perfctl.orchestrator.launch import adoption, container, guard, guardian, sampler
from perfctl.orchestrator.launch.profiler import Command, Outcome
from perfctl.orchestrator.launch.sampler import Sampling

GRACE_S = 3.0
"""Between SIGTERM and SIGKILL."""
LINGER_S = 2.0
"""What a run's other processes get once the first has ended: nsys's agent goes by itself in this time."""
STARTED = ".perfctl-started"
"""Touched in the scratch folder when the first process starts: an artifact older than it is not this run's."""

_TICK_S = 1.0
_PAUSE_S = 0.1
_SAME_S = 0.3
"""The same signal again within this time says nothing new: Slurm and the batch script that passes it on both send it."""
_KILL_S = 2.0
_QUIET_S = 0.05
"""None must have been seen for so long. One look is not enough: who forks and ends while it is taken can leave a child
that began after the list of processes was read, and nsys starts its agent in just that way (2022.4)."""
_LONGEST_TMPDIR = 60
"""Bytes. A socket's path has room for 107, and tools put names of up to 40 below TMPDIR (multiprocessing: 33)."""


class Stopped(Interrupted):
    """perfctl was asked to stop; ``outcome`` is how the process ended that ran just then."""

    def __init__(self, message: str, signal_number: int, remedy: str, outcome: Outcome) -> None:
        super().__init__(message, signal_number, remedy)
        self.outcome = outcome


@dataclass(slots=True)
class _Asked:
    """Signals that asked perfctl to stop, in order."""

    numbers: list[int] = field(default_factory=list)


_common: list[_Asked] = []
"""What threads that run processes look at: only the main thread hears signals."""


def run(
    command: Command,
    *,
    cwd: Path,
    stdout: Path,
    stderr: Path,
    scratch: Path,
    timeout_s: float | None = None,
    on_tick: Callable[[float], None] | None = None,
    grace_s: float = GRACE_S,
    temporary: Path | None = None,
    sampling: Sampling | None = None,
) -> Outcome:
    """Start ``command``, wait for it, and leave none of its processes behind.

    Output is appended to the files ``stdout`` and ``stderr`` and never held in memory; standard input is empty.
    ``scratch`` becomes its TMPDIR (the caller removes it), or a folder made for it below ``temporary``. ``on_tick``
    hears the seconds gone by, about once a second; ``sampling`` is what to read beside it. Raises ToolMissing or
    RunFailed when it cannot be started, Stopped when INT, TERM or HUP arrived.
    """
    mark = uuid.uuid4().hex
    members = guard.Members(mark, partial(adoption.living, mark))
    with (
        _stop_signals() as asked,
        adoption.during(mark),
        _temporary_folder(scratch, temporary) as folder,
        guardian.watching(mark, folder) as tell_guardian,
    ):
        started_at, started = datetime.now(UTC), time.monotonic_ns()
        child = _start(command, _environment(command, mark, folder), cwd, stdout, stderr)
        try:
            tell_guardian(child.pid)
            with sampler.beside(sampling, mark, child.pid):
                timed_out = not _wait(child, asked, timeout_s, on_tick, tell_guardian)
            ended = child.returncode
            duration_ns = time.monotonic_ns() - started
            _end(child, members, asked, linger_s=grace_s if ended is None else LINGER_S)
        finally:
            _end_now(child, members)
    outcome = Outcome(
        exit_code=None if timed_out or asked.numbers else _exit_code(ended),
        timed_out=timed_out,
        started_at=started_at.isoformat(timespec="milliseconds"),
        duration_ns=duration_ns,
        stdout=stdout,
        stderr=stderr,
    )
    if asked.numbers:
        number = asked.numbers[0]
        remedy = "What was whole is kept: give the same command to go on"
        raise Stopped(f"stopped by {signal.Signals(number).name} during {command.stage}", number, remedy, outcome)
    return outcome


def _start(
    command: Command, environment: dict[str, str], cwd: Path, stdout: Path, stderr: Path
) -> subprocess.Popen[bytes]:
    stdout.parent.mkdir(parents=True, exist_ok=True)
    stderr.parent.mkdir(parents=True, exist_ok=True)
    try:
        with stdout.open("ab") as out, stderr.open("ab") as err, adoption.starting() as own:
            child = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
            own.add(child.pid)
            return child
    except FileNotFoundError as error:
        remedy = "Install it or put it on PATH; perfctl doctor says what is there"
        raise ToolMissing(f"{error.filename or command.argv[0]} was not found", remedy) from error
    except OSError as error:
        raise RunFailed(f"{command.argv[0]} could not be started: {error.strerror}", "See perfctl doctor") from error


def _environment(command: Command, mark: str, folder: Path) -> dict[str, str]:
    """perfctl's own, the command's additions, the mark, and TMPDIR."""
    outer = os.environ.get(guard.VARIABLE)
    own = {guard.VARIABLE: f"{outer}:{mark}" if outer else mark, "TMPDIR": str(folder)}
    if command.in_image:
        own = container.both(own) | container.bound(folder)
    return {**os.environ, **command.environment, **own}


def _wait(
    child: subprocess.Popen[bytes],
    asked: _Asked,
    timeout_s: float | None,
    on_tick: Callable[[float], None] | None,
    tell_guardian: Callable[[], None],
) -> bool:
    """Until it ends or somebody asks to stop: True. False when its time is up."""
    started = time.monotonic()
    next_tick = started + _TICK_S
    while True:
        try:
            child.wait(_PAUSE_S)
            return True
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        tell_guardian()
        if asked.numbers:
            return True
        if timeout_s is not None and now - started >= timeout_s:
            return False
        if on_tick is not None and now >= next_tick:
            next_tick = now + _TICK_S
            on_tick(now - started)


def _end(child: subprocess.Popen[bytes], members: guard.Members, asked: _Asked, *, linger_s: float) -> None:
    """SIGTERM if it still runs, and time for all of the run's processes to go; a second signal cuts that short.

    The wait is for all of them, not for the first: /usr/bin/ncu is a shell script that a TERM ends at once, while
    the real ncu below it is still writing (2022.3).
    """
    members.alive()
    if child.poll() is None:
        _signal_group(child, signal.SIGTERM)
    patience = max(1, len(asked.numbers))
    until = time.monotonic() + linger_s
    while time.monotonic() < until and len(asked.numbers) <= patience:
        child.poll()
        if not members.alive():
            return
        time.sleep(_PAUSE_S)


def _end_now(child: subprocess.Popen[bytes], members: guard.Members) -> None:
    """SIGKILL to whatever is left."""
    if child.poll() is None:
        _signal_group(child, signal.SIGKILL)
    members.end_all(limit_s=_KILL_S, quiet_s=_QUIET_S)
    child.wait()


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        child.send_signal(number)


def _exit_code(returncode: int | None) -> int | None:
    """As a shell shows it: 128 + n for signal n."""
    return 128 - returncode if returncode is not None and returncode < 0 else returncode


@contextmanager
def stop_signals() -> Iterator[_Asked]:
    """Note INT, TERM and HUP for all processes that other threads run meanwhile: each of them is told to stop."""
    with _stop_signals() as asked:
        _common.append(asked)
        try:
            yield asked
        finally:
            _common.remove(asked)


@contextmanager
def _stop_signals() -> Iterator[_Asked]:
    """Note INT, TERM and HUP instead of dying of them; signals that were ignored (nohup) stay ignored."""
    asked = _Asked()
    if threading.current_thread() is not threading.main_thread():
        yield _common[-1] if _common else asked
        return

    last: dict[int, float] = {}

    def note(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - last.get(number, -_SAME_S) >= _SAME_S:
            asked.numbers.append(number)
            last[number] = now

    before: dict[signal.Signals, Any] = {}
    try:
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(kind) is not signal.SIG_IGN:
                before[kind] = signal.signal(kind, note)
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def _temporary_folder(scratch: Path, below: Path | None) -> Iterator[Path]:
    """``scratch``, private, by a path short enough for sockets: a deep one is reached through a link.

    A new folder ``below`` another where one is given; the mark of the start stays beside the reports, where one clock
    dates both.
    """
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    (scratch / STARTED).open("a").close()
    if below is not None:
        with tempfile.TemporaryDirectory(prefix="perfctl-", dir=below.absolute(), ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    if len(os.fsencode(scratch.absolute())) <= _LONGEST_TMPDIR:
        yield scratch.absolute()
        return
    short = Path(tempfile.mkdtemp(prefix="perfctl-"))
    try:
        link = short / "t"
        link.symlink_to(scratch.absolute())
        yield link
    finally:
        shutil.rmtree(short, ignore_errors=True)
