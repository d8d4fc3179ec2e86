"""Worker processes that read reports and analyse runs, each with a limit on memory and on time.

A worker that dies (out of memory, a crash of a library, a signal) or hangs costs the item that it
had; another worker goes on with the next. Workers end with this process, however that ends.

A worker is forked where that is safe: it has everything loaded that this process has, and costs a
few milliseconds. Beside threads of others, or where the store is open (SQLite does not stand being
forked with it), a new interpreter is started instead; the work must then be picklable::

    python -P -m perfctl.orchestrator.pool SOCKET PARENT
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from perfctl.orchestrator import memory
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.faults import isolate_unexpected_exception
from perfctl.records.errors import ReportError

T = TypeVar("T")
R = TypeVar("R")
Tell = Callable[[object], None]
"""Sends an event from a worker to this process."""
Opened = Callable[[], AbstractContextManager[Callable[[T, Tell], Any]]]
"""Opens in a worker what all its items need, and gives the function that works on one of them."""

AHEAD = 8
"""Items per worker that may be done before it is their turn."""
_PR_SET_PDEATHSIG = 1
_OWN_THREADS = ("perfctl", "rich.")
"""Beginnings of the modules whose threads hold nothing that a worker needs: they draw progress."""
_ENDING_SIGNALS = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
)


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The last event of an item: what the work returned."""

    result: Any


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The last event of an item that took its worker with it."""

    why: str


@dataclass(frozen=True, slots=True)
class _WorkerError:
    """The last event of a worker: what ends the whole work."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _PythonWarning:
    """A warning of a worker, to be given again by this process."""

    warning: Warning


def run_in_workers(
    items: Sequence[T],
    open_work: Opened[T],
    *,
    processes: int = 1,
    memory_limit_bytes: int = 0,
    get_time_limit_s: Callable[[T], float] = lambda item: inf,
    store_path: Path | None = None,
    may_fork: bool = True,
) -> Generator[tuple[T, Iterator[Any]]]:
    """Yield each item with its events, in order: those that the work told as they come, then
    WorkDone or WorkerLost.

    ``memory_limit_bytes``: bytes of memory that a worker may take, 0 for no limit;
    ``get_time_limit_s``: how long it may take for an item; ``store_path``: a database that workers
    open themselves; ``may_fork``: False for new interpreters only, as torch needs them. Raises what
    the work raises. No worker is left behind the last item, nor where the caller stops before.
    """
    pool = _Pool(
        items, open_work, processes, memory_limit_bytes, get_time_limit_s, store_path, may_fork
    )
    try:
        for number, item in enumerate(items):
            events = pool.yield_item_events(number)
            yield item, events
            for _ in events:  # what the caller left of them
                pass
        for worker in pool.workers:
            with suppress(OSError):  # it closes what it has open
                worker.connection.send(None)
            worker.wait_for_exit(kill=False)
    finally:
        for worker in pool.workers:
            worker.wait_for_exit(kill=True)


def call_in_worker(
    error_subject: object, work: Callable[[], R], memory_limit_bytes: int, time_limit_s: float = inf
) -> R:
    """Return what ``work`` returns in a worker with ``memory_limit_bytes`` of memory and this much
    time.

    Raises PerfctlError with one line about ``error_subject`` where it fails, and what ``work``
    raises of that kind.
    """
    last: Any = None
    opened = partial(_open_single_call, error_subject, work, memory_limit_bytes)
    for _, events in run_in_workers(
        [None],
        opened,
        memory_limit_bytes=memory_limit_bytes,
        get_time_limit_s=lambda item: time_limit_s,
    ):
        *_, last = events
    if isinstance(last, WorkerLost):
        raise PerfctlError(f"{error_subject}: {last.why}")
    answer: R = last.result
    return answer


@contextmanager
def _open_single_call(
    error_subject: object, work: Callable[[], Any], memory_limit_bytes: int
) -> Iterator[Callable[[None, Tell], Any]]:
    def raise_perfctl_error(reason: str) -> NoReturn:
        raise PerfctlError(reason)

    def run_and_convert_errors(item: None, tell: Tell) -> Any:
        try:
            with isolate_unexpected_exception(
                error_subject,
                raise_perfctl_error,
                memory_limit_bytes=memory_limit_bytes,
                exceptions_to_reraise=(OSError,),
            ):
                return work()
        except (ReportError, OSError) as error:
            raise PerfctlError(str(error)) from error

    yield run_and_convert_errors


def can_fork_safely(store_path: Path | None = None) -> bool:
    """Return whether a worker may be forked here: from a process without threads of others, which
    does not have ``store_path`` open."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if any(not _is_main_perfctl_or_rich_thread(thread) for thread in threading.enumerate()):
        return False
    if store_path is None:
        return True
    open_files = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  as text
        with suppress(OSError):
            open_files.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
    return str(store_path.resolve()) not in open_files


def _is_main_perfctl_or_rich_thread(thread: threading.Thread) -> bool:
    work = getattr(thread, "_target", None)
    home = str(getattr(work, "__module__", None) or type(thread).__module__)
    return thread is threading.main_thread() or home.startswith(_OWN_THREADS)


@dataclass
class _Pool(Generic[T]):
    """The workers, and what was heard of each item."""

    items: Sequence[T]
    opened: Opened[T]
    processes: int
    limit: int
    seconds: Callable[[T], float]
    store: Path | None
    fork: bool
    workers: list[_Worker] = field(default_factory=list)
    next: int = 0
    """The item that the next idle worker gets."""
    heard: dict[int, deque[object]] = field(default_factory=lambda: defaultdict(deque))

    def yield_item_events(self, item_index: int) -> Iterator[object]:
        """Yield the events of an item until its last."""
        while True:
            while not self.heard[item_index]:
                self._give_items_to_idle_workers(item_index + AHEAD * self.processes)
                self._receive_worker_events()
            event = self.heard[item_index].popleft()
            match event:
                case _WorkerError(error):
                    raise error
                case _PythonWarning(warning):
                    warnings.warn(warning, stacklevel=4)
                case _:
                    yield event
            if isinstance(event, (WorkDone, WorkerLost)):
                del self.heard[item_index]
                return

    def _give_items_to_idle_workers(self, end_index: int) -> None:
        """Give each idle worker an item; start workers where there are too few."""
        while self.next < min(end_index, len(self.items)):
            worker = next((idle for idle in self.workers if idle.item is None), None)
            try:
                if worker is None and len(self.workers) == self.processes:
                    return
                if worker is None:
                    worker = _Worker(self.opened, self.limit, self.store, self.fork)
                    self.workers.append(worker)
                worker.connection.send((self.items[self.next],))
            except OSError:
                if worker is not None:  # it died while it had nothing to do
                    self._end_and_remove_worker(worker, kill=True)
                    continue
                if self.workers:
                    return
                self.heard[self.next].append(
                    WorkerLost("perfctl could not start a process to read it")
                )
                self.next += 1
                return
            worker.item = self.next
            worker.deadline = time.monotonic() + self.seconds(self.items[self.next])
            self.next += 1

    def _receive_worker_events(self) -> None:
        """Take the next event of each worker that has one; of a worker that is gone, its last."""
        busy = [worker for worker in self.workers if worker.item is not None]
        seconds_left = min((worker.deadline for worker in busy), default=0) - time.monotonic()
        ready = wait(
            [worker.connection for worker in busy],
            None if seconds_left == inf else max(seconds_left, 0),
        )
        for worker in busy:
            assert worker.item is not None
            event: object
            if worker.connection in ready:
                try:
                    event = worker.connection.recv()
                except (EOFError, OSError):
                    event = WorkerLost(
                        _describe_exit_status(self._end_and_remove_worker(worker, kill=False))
                    )
            elif worker.deadline < time.monotonic():
                self._end_and_remove_worker(worker, kill=True)
                seconds = self.seconds(self.items[worker.item])
                event = WorkerLost(f"the process that read it did not end within {seconds:,.0f} s")
            else:
                continue
            self.heard[worker.item].append(event)
            if isinstance(event, (WorkDone, WorkerLost, _WorkerError)):
                worker.item = None

    def _end_and_remove_worker(self, worker: _Worker, *, kill: bool) -> int:
        self.workers.remove(worker)
        return worker.wait_for_exit(kill=kill)


def _describe_exit_status(status: int) -> str:
    if status >= 0:
        return f"the process that read it ended with exit code {status}"
    is_kill = status == -signal.SIGKILL
    suspicion = ", probably because memory ran out" if is_kill else ""
    return f"the process that read it was killed by signal {-status}{suspicion}"


class _Worker:
    """One process, in a session of its own: Ctrl-C reaches this process only, which ends it."""

    def __init__(self, opened: Opened[Any], limit: int, store: Path | None, fork: bool) -> None:
        self.item: int | None = None
        """The item that it has; None while it is idle."""
        self.deadline = inf
        self.connection, its_end = Pipe()
        parent = os.getpid()
        with its_end:
            if fork and can_fork_safely(store):
                with warnings.catch_warnings():
                    # Python 3.12 and later, about threads: see can_fork_safely
                    warnings.simplefilter("ignore", DeprecationWarning)
                    self._pid = os.fork()
                if self._pid == 0:
                    self.connection.close()
                    _run_worker(its_end, parent, opened, limit)
                return
            os.set_inheritable(its_end.fileno(), True)
            arguments = (
                "-P",
                "-m",
                "perfctl.orchestrator.pool",
                str(its_end.fileno()),
                str(parent),
            )
            command = (sys.executable, *arguments)
            self._pid = os.posix_spawn(sys.executable, command, os.environ, setsid=True)
        self.connection.send((opened, limit))

    def wait_for_exit(self, *, kill: bool) -> int:
        """Wait for its end, and end what it has started (nsys, where it reads an .nsys-rep); its
        exit code, or the signal's number below 0."""
        if self._pid == 0:
            return 0
        if kill:
            self._kill_process_group()
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        except ChildProcessError:  # this process ignores SIGCHLD
            status = 0
        self._kill_process_group()
        self.connection.close()
        self._pid = 0
        return status

    def _kill_process_group(self) -> None:
        for send in (os.killpg, os.kill):  # a new process has no group of its own yet
            with suppress(ProcessLookupError):
                send(self._pid, signal.SIGKILL)


def _run_worker(
    connection: Connection, parent: int, open_work: Opened[Any] | None, memory_limit_bytes: int
) -> NoReturn:
    """Everything that a worker does; ``open_work`` is None in a new interpreter, which is sent
    it."""
    code = 70
    try:
        if open_work is not None:
            os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(code)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # handlers of the parent and its libraries are for it alone: in here they may wait for ever
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(2, 1)  # what a library prints is no result
        gc.freeze()  # walking what the parent has would copy its memory page by page
        if open_work is None:
            open_work, memory_limit_bytes = connection.recv()
        memory.limit_additional_process_memory(memory_limit_bytes)
        _work_on_items(connection, open_work)
        code = 0
    except MemoryError:
        code = 71
    except BaseException:  # nobody is left to hear of it; the parent says that the worker ended
        sys.excepthook(*sys.exc_info()) if os.environ.get("PERFCTL_DEBUG") else None
    finally:
        os._exit(code)
    raise AssertionError


def _work_on_items(connection: Connection, open_work: Opened[Any]) -> None:
    tell: Tell = connection.send

    def send_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        tell(_PythonWarning(message if isinstance(message, Warning) else UserWarning(message)))

    warnings.showwarning = send_warning
    try:
        with open_work() as work:
            while (received := connection.recv()) is not None:
                (item,) = received
                tell(WorkDone(work(item, tell)))
    except Exception as error:
        tell(_WorkerError(error))


if __name__ == "__main__":
    from perfctl.orchestrator.pool import _run_worker as be_worker

    be_worker(Connection(int(sys.argv[1])), int(sys.argv[2]), None, 0)
