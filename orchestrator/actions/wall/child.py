"""A process forked from this one that reads reports: it has a limit on memory, and takes nothing
with it when it ends.

It has everything loaded that this process has, so it costs a few milliseconds. It ends when this
process does, however that ends.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from perfctl.orchestrator.actions.wall import memory

_PR_SET_PDEATHSIG = 1
_OWN_THREADS = ("perfctl", "rich.")
"""Beginnings of the modules whose threads hold nothing that a child needs: they draw progress."""
_ENDING = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
)
Send = Callable[[str], None]


class Ended(Exception):
    """The child ended without having done its work; ``status``: its exit code, or the signal's
    number below 0."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        if self.status >= 0:
            return f"the process that read it ended with exit code {self.status}"
        more = (
            ", which is what the system does when memory runs out"
            if self.status == -signal.SIGKILL
            else ""
        )
        return f"the process that read it was ended by signal {-self.status}{more}"


def is_possible(*files: Path) -> bool:
    """Whether a child may be forked here: on Linux, from a process without threads of others, which
    has none of ``files`` open: SQLite does not stand being forked with a database that is open."""
    if not memory.is_kept():
        return False
    if any(not _is_own(thread) for thread in threading.enumerate()):
        return False
    wanted = {str(file.resolve()) for file in files}
    return wanted.isdisjoint(_open_files())


def _is_own(thread: threading.Thread) -> bool:
    work = getattr(thread, "_target", None)
    home = str(getattr(work, "__module__", None) or type(thread).__module__)
    return thread is threading.current_thread() is threading.main_thread() or home.startswith(
        _OWN_THREADS
    )


def _open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  as text
        with suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115


@contextmanager
def forked(work: Callable[[Send], None], limit: int) -> Iterator[Iterator[str]]:
    """Inside, the lines that ``work`` sends from a child with ``limit`` bytes of memory more than
    this process has.

    The lines end with the child's work; Ended is raised where the child ended before. No child is
    left after the block.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 and later, about threads: see is_possible
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        _be_child(work, limit, writing, parent)
    os.close(writing)
    status: list[int] = []
    try:
        with os.fdopen(reading, "r", encoding="ascii") as lines:
            yield _lines(lines, child, status)
    finally:
        if not status:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # before it had a group of its own
            _wait(child)


def _lines(lines: Iterator[str], child: int, status: list[int]) -> Iterator[str]:
    for line in lines:
        if line.endswith("\n"):  # what is cut off is of a child that ended
            yield line
    status.append(_wait(child))
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it started: nsys, where it reads an .nsys-rep
    if status[0]:
        raise Ended(status[0])


def _wait(child: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # this process ignores SIGCHLD
        return 0


def _be_child(work: Callable[[Send], None], limit: int, writing: int, parent: int) -> NoReturn:
    """Everything that the child does."""
    code = 70
    try:
        os.setsid()  # Ctrl-C reaches the parent only, which ends this one
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(code)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for (
            number
            # handlers of this process and its libraries are for it alone: in here they may wait
            # for ever
        ) in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(2, 1)  # what a library prints is no result
        gc.freeze()  # walking what the parent has would copy its memory page by page
        memory.keep_for_good(limit)
        with os.fdopen(writing, "w", encoding="ascii", buffering=1 << 16) as out:

            def send(line: str) -> None:
                out.write(f"{line}\n")
                out.flush()

            work(send)
        code = 0
    except MemoryError:
        code = 71
    except BaseException:  # nobody is left to hear of it; the parent says that the child ended
        sys.excepthook(*sys.exc_info()) if os.environ.get("PERFCTL_DEBUG") else None
    finally:
        os._exit(code)
    raise AssertionError
