"""Run one process of a run, and end every process that it started.

It has its own session, logs and TMPDIR. At the time limit, when nothing moves, on a signal, and for
what remains after its end, it gets SIGTERM first, so that nsys and ncu can write their reports,
then SIGKILL: the more they have recorded, the later, and not while their files still grow. The
watchdog does this if perfctl is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from perfctl.orchestrator.errors import Interrupted, RunFailed, ToolMissing
from perfctl.orchestrator.launch.images import run as images_run
from perfctl.orchestrator.launch.process import progress, watchdog, watchdog_client
from perfctl.orchestrator.launch.process.progress import FileActivity, StallRule
from perfctl.orchestrator.launch.profilers.base import Command, ProcessOutcome
from perfctl.orchestrator.launch.sampling import sampler
from perfctl.orchestrator.launch.sampling.sampler import SamplingSettings
from perfctl.workloads.spec import START_VARIABLE

LINGER_S = 2.0
"""Time for a run's other processes to end after the first: nsys's agent needs it."""
GROWING_S = 5.0
"""A tool whose files changed within this time is still writing, and is not killed."""
STARTED = ".perfctl-started"
"""File in the scratch folder, touched when the first process starts: an older report belongs to
another run."""

_TICK_S = 1.0
_PAUSE_S = 0.1
_SAME_S = 0.3
"""Seconds within which a repeated signal counts once: Slurm and the batch script both send it."""
_KILL_S = 2.0
_QUIET_S = 0.05
"""Time without any member before a run counts as ended: one scan misses a child forked during it
(nsys 2022.4's agent)."""
_LONGEST_TMPDIR = 60
"""Bytes. A socket's path may have 107, and tools append names of up to 40 to TMPDIR
(multiprocessing: 33)."""


class StoppedBySignal(Interrupted):
    """perfctl was asked to stop; ``outcome`` is that of the process that was running."""

    def __init__(
        self, message: str, signal_number: int, remedy: str, outcome: ProcessOutcome
    ) -> None:
        super().__init__(message, signal_number, remedy)
        self.outcome = outcome


_asked: list[list[int]] = []
"""Signals that asked perfctl to stop, in order, of each block of the main thread that collects
them: the innermost last."""


def run_command(
    command: Command,
    *,
    cwd: Path,
    stdout: Path,
    stderr: Path,
    scratch: Path,
    timeout_s: float | None = None,
    grace_s: float | None = None,
    tmpdir_parent: Path | None = None,
    sampling: SamplingSettings | None = None,
    stall_rule: StallRule | None = None,
) -> ProcessOutcome:
    """Start ``command``, wait for it, and leave none of its processes running.

    Output is appended to the files ``stdout`` and ``stderr``; standard input is empty. TMPDIR is
    ``scratch``, which the caller removes, or a new folder below ``tmpdir_parent``. ``sampling``:
    what to sample meanwhile; ``stall_rule``: when it counts as stuck and is stopped. ``grace_s``:
    seconds between SIGTERM and SIGKILL; None for as many as the tool needs. Raises ToolMissing or
    RunFailed when it cannot start, StoppedBySignal after SIGINT, SIGTERM or SIGHUP.
    """
    mark = uuid.uuid4().hex
    members = watchdog.RunProcesses(mark, partial(watchdog_client.reap_and_find_orphans, mark))
    with (
        collect_stop_signals() as signals,
        watchdog_client.adopt_orphans(mark),
        _make_private_tmpdir(scratch, tmpdir_parent) as folder,
        watchdog_client.start_watchdog(mark, folder) as tell_watchdog,
    ):
        samples = tuple(scratch.parent / name for name in (sampler.FILE, sampler.SMI_FILE))
        places = tuple({stdout.parent, scratch.parent, *((folder,) if tmpdir_parent else ())})
        started_at, started = datetime.now(UTC), time.monotonic_ns()
        child = _start_process(
            command, _build_environment(command, mark, folder), cwd, stdout, stderr
        )
        try:
            tell_watchdog(child.pid)
            stuck = _make_stall_check(stall_rule, FileActivity(places, samples), (stdout, stderr))
            with sampler.sample_in_background(sampling, mark, child.pid):
                end = _wait_for_exit_or_stop(
                    child, signals, timeout_s, tell_watchdog, stuck, command.is_recorded
                )
            ended = child.returncode
            duration_ns = time.monotonic_ns() - started
            reports = FileActivity(places, (stdout, stderr, *samples), by_date=False)
            _terminate_and_wait_for_processes(
                child,
                members,
                signals,
                *_choose_exit_wait_and_extension(
                    command, grace_s, reports, running=ended is None or command.runs_on
                ),
                tool_ends_before_program=command.runs_on,
            )
        finally:
            if child.poll() is None:
                _signal_process_group(child, signal.SIGKILL)
            members.kill_all(limit_s=_KILL_S, quiet_s=_QUIET_S)
            child.wait()
    if end is not None or signals:
        ended = None
    outcome = ProcessOutcome(
        # as in a shell: 128 + n for signal n
        exit_code=128 - ended if ended is not None and ended < 0 else ended,
        timed_out=end == _TIME_IS_UP,
        started_at=started_at.isoformat(timespec="milliseconds"),
        duration_ns=duration_ns,
        stdout=stdout,
        stderr=stderr,
        stalled_s=stall_rule.seconds if stall_rule and end == _STUCK else None,
    )
    if signals:
        remedy = "perfctl keeps complete runs. Repeat the same command to continue"
        message = f"stopped by {signal.Signals(signals[0]).name} during {command.stage}"
        raise StoppedBySignal(message, signals[0], remedy, outcome)
    return outcome


def _start_process(
    command: Command, environment: dict[str, str], cwd: Path, stdout: Path, stderr: Path
) -> subprocess.Popen[bytes]:
    stdout.parent.mkdir(parents=True, exist_ok=True)
    stderr.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            stdout.open("ab") as out_file,
            stderr.open("ab") as err,
            watchdog_client.exempt_started_children_from_orphans() as own_children,
        ):
            child = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
            own_children.add(child.pid)
            return child
    except FileNotFoundError as error:
        remedy = "Install it or put it on PATH; perfctl doctor lists what is installed"
        raise ToolMissing(f"{error.filename or command.argv[0]} was not found", remedy) from error
    except OSError as error:
        raise RunFailed(
            f"{command.argv[0]} could not be started: {error.strerror}", "See perfctl doctor"
        ) from error


def _build_environment(command: Command, run_mark: str, tmpdir: Path) -> dict[str, str]:
    """perfctl's environment with the command's additions, the mark, and TMPDIR."""
    outer = os.environ.get(watchdog.VARIABLE)
    variables = {
        watchdog.VARIABLE: f"{outer}:{run_mark}" if outer else run_mark,
        START_VARIABLE: str(time.monotonic()),
        "TMPDIR": str(tmpdir),
    }
    if command.in_image:
        variables = (
            images_run.collect_variables_passed_into_image()
            | images_run.add_container_prefixed_variables(variables)
            | images_run.build_tmpdir_bind_variables(tmpdir)
        )
    return {**os.environ, **command.environment, **variables}


_TIME_IS_UP, _STUCK, _RECORDED = "the time limit was reached", "stuck", "recorded"


def _make_stall_check(
    stall_rule: StallRule | None, file_activity: FileActivity, logs: tuple[Path, Path]
) -> Callable[[], bool]:
    """Return whether nothing has moved for as long as ``stall_rule`` allows, counted from where its
    pattern first appears."""
    if stall_rule is None:
        return lambda: False
    watch, armed = stall_rule, False

    def is_stalled() -> bool:
        nonlocal armed
        still_s = file_activity.measure_idle_seconds()
        if not armed and watch.is_watch_started(logs):
            armed = True
            file_activity.last, still_s = time.monotonic(), 0.0
        return armed and still_s >= watch.seconds

    return is_stalled


def _choose_exit_wait_and_extension(
    command: Command, grace_s: float | None, file_activity: FileActivity, *, running: bool
) -> tuple[float, Callable[[], bool]]:
    """Return (seconds for the run's processes to end, whether to wait longer than that)."""
    if not running:
        return LINGER_S, lambda: False
    if grace_s is not None:
        return grace_s, lambda: False
    seconds = progress.choose_kill_grace_seconds(command.argv, file_activity.total_bytes)
    until = time.monotonic() + progress.LONGEST_S
    writes = seconds > progress.PLAIN_S
    return (
        seconds,
        lambda: (
            writes and file_activity.measure_idle_seconds() < GROWING_S and time.monotonic() < until
        ),
    )


def _wait_for_exit_or_stop(
    child: subprocess.Popen[bytes],
    signals: list[int],
    timeout_s: float | None,
    tell_watchdog: Callable[[], None],
    is_stuck: Callable[[], bool],
    is_recorded: Callable[[float], bool],
) -> str | None:
    """Wait until it ends or a signal arrives (None), its time is up, nothing moves, or all is
    recorded."""
    started = time.monotonic()
    next_tick = started + _TICK_S
    while True:
        try:
            child.wait(_PAUSE_S)
            return None
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        tell_watchdog()
        if signals:
            return None
        if timeout_s is not None and now - started >= timeout_s:
            return _TIME_IS_UP
        if now >= next_tick:
            next_tick = now + _TICK_S
            if is_stuck():
                return _STUCK
            if is_recorded(now - started):
                return _RECORDED


def _terminate_and_wait_for_processes(
    child: subprocess.Popen[bytes],
    run_processes: watchdog.RunProcesses,
    signals: list[int],
    linger_s: float,
    still_writing: Callable[[], bool],
    *,
    tool_ends_before_program: bool,
) -> None:
    """SIGTERM if it still runs, then time for all of the run's processes to end, longer while they
    write; a second signal ends the wait. SIGTERM ends /usr/bin/ncu, a shell script, while the ncu
    that it started is still writing (2022.3)."""
    for pid in (
        run_processes.find_living_processes_of_run()
        if tool_ends_before_program and child.poll() is not None
        else ()
    ):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    if child.poll() is None:
        _signal_process_group(child, signal.SIGTERM)
    patience = max(1, len(signals))
    until = time.monotonic() + linger_s
    while len(signals) <= patience and (time.monotonic() < until or still_writing()):
        child.poll()
        if not run_processes.find_living_processes_of_run():
            return
        time.sleep(_PAUSE_S)


def _signal_process_group(child: subprocess.Popen[bytes], signal_to_send: int) -> None:
    try:
        os.killpg(child.pid, signal_to_send)
    except (ProcessLookupError, PermissionError):
        child.send_signal(signal_to_send)


@contextmanager
def collect_stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of ending; ignored signals (nohup) stay ignored.
    Only the main thread receives signals; other threads get what it collects meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield _asked[-1] if _asked else []
        return
    signals: list[int] = []
    last: dict[int, float] = {}

    def append_signal_unless_repeated(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - last.get(number, -_SAME_S) >= _SAME_S:
            signals.append(number)
            last[number] = now

    before: dict[signal.Signals, Any] = {}
    _asked.append(signals)
    try:
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(kind) is not signal.SIG_IGN:
                before[kind] = signal.signal(kind, append_signal_unless_repeated)
        yield signals
    finally:
        _asked.pop()
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def _make_private_tmpdir(scratch: Path, parent_folder: Path | None) -> Iterator[Path]:
    """``scratch``, made private, by a path short enough for sockets: a deep folder gets a short
    link. With ``parent_folder``, a new folder there. STARTED stays in ``scratch``, on the reports'
    file system, for one clock dates both."""
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    (scratch / STARTED).open("a").close()
    if parent_folder is None and len(os.fsencode(scratch.absolute())) <= _LONGEST_TMPDIR:
        yield scratch.absolute()
        return
    parent = parent_folder.absolute() if parent_folder is not None else None
    with tempfile.TemporaryDirectory(
        prefix="perfctl-", dir=parent, ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        if parent_folder is None:
            folder = folder / "t"
            folder.symlink_to(scratch.absolute())
        yield folder
