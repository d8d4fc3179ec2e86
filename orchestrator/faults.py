"""An unexpected exception costs the file or run that raised it, and nothing else.

It is said in one line with a reference number, and its traceback is kept in a file, without secrets
and without anything of the report but what the exception itself quotes. The same fault has the same
number wherever it happens.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import sqlite3
import stat
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from perfctl.orchestrator import memory
from perfctl.orchestrator.errors import LostWarning, PartlyDone, PerfctlError
from perfctl.orchestrator.files import get_perfctl_user_folder
from perfctl.orchestrator.store.connection import DISK_ERRORS
from perfctl.records.errors import ReportError
from perfctl.redact import mask_arguments, mask_secrets
from perfctl.version import __version__

T = TypeVar("T")
R = TypeVar("R")

_KEPT = 100
"""Tracebacks that are kept, the newest."""
_OF_THE_STORE = DISK_ERRORS | {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_CONSTRAINT,
}
"""SQLite's errors that would come again with the next file: a disk that is full, a store that
is locked."""
_THREADS = "can't start new thread"
"""What Python says where a thread's stack does not fit into the memory that is left."""


def warn_run_or_file_skipped(text: str) -> None:
    """Say that a run or file was left out. The command line prints it and ends with exit code 4."""
    warnings.warn(LostWarning(text), stacklevel=3)


@contextmanager
def isolate_unexpected_exception(
    item_name: object,
    on_failure: Callable[[str], None] = warn_run_or_file_skipped,
    *,
    memory_limit_bytes: int = 0,
    is_store_damaged: Callable[[], bool] = lambda: False,
    exceptions_to_reraise: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """An unexpected exception in the block ends the block only: ``on_failure`` gets one line, which
    names ``item_name``.

    What perfctl raises itself (PerfctlError, ReportError), what stops it (Ctrl-C, SystemExit) and
    SQLite's errors that are of the store pass through. ``memory_limit_bytes``: bytes of memory that
    there were, for the line that says that it was not enough. ``is_store_damaged`` finds out
    whether SQLite's complaint of a damaged file is about the store. ``exceptions_to_reraise``: what
    else the caller expects.
    """
    try:
        yield
    except (PerfctlError, ReportError):
        raise
    except Exception as error:
        code = getattr(error, "sqlite_errorcode", 0)
        # SQLITE_CONSTRAINT_NOTNULL: a record lacks something
        code = code & 0xFF if code != sqlite3.SQLITE_CONSTRAINT_NOTNULL else 0
        is_damage = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        if code in _OF_THE_STORE or (is_damage and is_store_damaged()):
            raise
        if isinstance(error, exceptions_to_reraise) and not _is_short_of_memory(error):
            raise
        on_failure(describe_and_save_exception(item_name, error, memory_limit_bytes))


def _is_short_of_memory(error: BaseException) -> bool:
    is_refused = _THREADS in str(error) or getattr(error, "errno", None) == errno.ENOMEM
    return is_refused or isinstance(error, MemoryError)


def describe_and_save_exception(
    item_name: object, error: BaseException, memory_limit_bytes: int = 0
) -> str:
    """Return one line about an unexpected exception, and keep its traceback.

    If memory ran out, the line names ``memory_limit_bytes``. Never raises.

    Its reference number is made of its type and of perfctl's own functions that it came through.
    """
    if _is_short_of_memory(error) and memory_limit_bytes:
        return (
            f"{item_name}: parsing needs more than "
            f"{memory.format_memory_limit(memory_limit_bytes)} of memory. If "
            "the file is valid, raise `memory_limit`"
        )
    if _is_short_of_memory(error):
        return (
            f"{item_name}: not enough memory to read it. Close other programs, or read it on "
            f"a larger "
            "machine"
        )
    frames = [
        f"{Path(frame.filename).name}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
    ]
    text = " ".join([type(error).__name__, *frames[-6:]])
    number = hashlib.sha256(text.encode()).hexdigest()[:8]
    description = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    file = _save_traceback(number, item_name, error)
    advice = (
        f"To report it, send {file}"
        if file
        else "perfctl could not save the traceback, because no folder is writable"
    )
    return mask_secrets(
        f"{item_name}: unexpected error ({description}), reference {number}. {advice}"
    )


def _save_traceback(number: str, name: object, error: BaseException) -> Path | None:
    """Write the traceback to NUMBER.txt; None where that cannot be done. The same fault takes the
    place of the one before."""
    about = (
        f"perfctl {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"{name}\n"
    )
    command = " ".join(mask_arguments(sys.argv[1:4]))
    text = mask_secrets(f"{about}perfctl {command}\n\n{''.join(traceback.format_exception(error))}")
    folders: Sequence[Callable[[], Path]] = (
        lambda: get_perfctl_user_folder("XDG_CACHE_HOME", "~/.cache") / "log",
        lambda: Path(tempfile.gettempdir(), f"perfctl-log-{os.getuid()}"),
    )
    for folder in folders:
        with suppress(OSError, RuntimeError):  # no home folder
            log = folder()
            log.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = log.lstat()  # another user's link leads elsewhere
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            file = log / f"{number}.txt"
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
            tracebacks = sorted(log.glob("????????.txt"), key=lambda path: path.stat().st_mtime)
            for old in tracebacks[:-_KEPT]:
                old.unlink(missing_ok=True)
            return file
    return None


def process_all_but_failing_items(
    items: Sequence[T],
    process_items: Callable[[Sequence[T]], R],
    get_item_name: Callable[[T], object],
    on_failure: Callable[[str], None] = warn_run_or_file_skipped,
) -> R:
    """Return ``process_items`` of all items; if that fails unexpectedly, of all but those that it
    fails on separately: ``on_failure`` gets a line about each of these.

    Raises what ``process_items`` raises if it fails on no item separately, and PartlyDone if it
    fails on each.
    """
    try:
        return process_items(items)
    except (PerfctlError, ReportError):
        raise
    except Exception as error:
        sound = []
        for item in items:
            try:
                with suppress(PerfctlError, ReportError):
                    process_items([item])
                sound.append(item)
            except Exception as fault:
                on_failure(describe_and_save_exception(get_item_name(item), fault))
        if len(sound) == len(items):
            raise
        if not sound:
            raise PartlyDone("nothing is left to show", "See the reasons above") from error
    return process_all_but_failing_items(sound, process_items, get_item_name, on_failure)
