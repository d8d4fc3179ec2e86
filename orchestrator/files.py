"""Write files: whole or not at all, never over a results database, and never over another file that
perfctl did not write unless that was asked for."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.records.sqlite_header import APPLICATION_ID, read_application_id

_LOCKS: set[int] = set()
"""Descriptors that hold the folders of ``make_locked_scratch_folder``."""
_SCRATCH = ".tmp"
_HEAD_BYTES = 4096
_OWN = re.compile(
    rb"script-src 'sha256-[^>]*style-src 'unsafe-inline'[^>]*>.* - perfctl</title>"
    rb"|\A#{2,3} perfctl (?:compare: |gate\n)|<testsuites name=.perfctl gate"
    rb'|\A\{\s+"format": "perfctl gate"',
    re.DOTALL,
)
"""Head of a file that perfctl wrote and may replace: an HTML report, a summary, JUnit, a baseline.
Formats of other programs have none."""


@contextmanager
def make_locked_scratch_folder(parent_folder: Path, name: str) -> Iterator[Path]:
    """Yield a new private folder in ``parent_folder``, ``.NAME-RANDOM.tmp``, which is gone after
    the block. Raises OSError.

    It is locked for as long as its process lives: what a killed process left under this name is
    removed first.
    """
    remove_unlocked_scratch_folders(parent_folder, name)
    while True:
        folder = Path(
            tempfile.mkdtemp(
                prefix=_make_scratch_folder_prefix(name), suffix=_SCRATCH, dir=parent_folder
            )
        )
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        if _try_to_lock_folder(lock):
            break
        os.close(lock)  # another process took it for abandoned
    _LOCKS.add(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _LOCKS.discard(lock)
        os.close(lock)


def _release_locks_in_forked_child() -> None:
    """A forked process holds no lock of its parent, whose folders would outlive it for as long as
    the child does. The numbers stay in use: somebody closes them."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for lock in _LOCKS:
        os.dup2(nothing, lock, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_release_locks_in_forked_child)


def _make_scratch_folder_prefix(name: str) -> str:
    return f".{os.fsdecode(os.fsencode(name)[:150])}-"


def _try_to_lock_folder(folder_descriptor: int) -> bool:
    """Lock the folder. False where another process is removing it, or has; without locks nobody
    removes any."""
    try:
        fcntl.flock(folder_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return os.fstat(folder_descriptor).st_nlink > 0


def remove_unlocked_scratch_folders(parent_folder: Path, name: str) -> None:
    """Remove folders of ``make_locked_scratch_folder`` that no process holds. Where the file
    system has no locks, they stay."""
    start = _make_scratch_folder_prefix(name)
    with suppress(OSError):
        for name in os.listdir(parent_folder):  # noqa: PTH208  half the time of iterdir
            if not name.startswith(start) or not name.endswith(_SCRATCH):
                continue
            with suppress(OSError):
                path = parent_folder / name
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if os.fstat(lock).st_uid == os.geteuid():
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(path)
                finally:
                    os.close(lock)


@contextmanager
def replace_when_done(path: Path, *, force: bool, is_folder: bool = False) -> Iterator[Path]:
    """Yield a file (or folder) in a scratch folder beside ``path``; it becomes ``path`` when the
    block ends well.

    perfctl replaces a link and keeps its target. It writes the content into a device or pipe. In
    a folder that exists already, only files of the same names are replaced. Raises UsageError
    before anything is written if ``raise_if_output_not_replaceable`` does.
    """
    raise_if_output_not_replaceable(path, force=force, is_folder=is_folder)
    is_special = path.exists() and not (path.is_file() or path.is_dir())
    target = path.resolve() if path.parent == Path("/dev") else path  # /dev/stdout is a link
    beside = Path(tempfile.gettempdir()) if is_special else target.parent
    with (
        convert_write_errors(path),
        make_locked_scratch_folder(beside, path.name) as scratch_folder,
    ):
        partial = scratch_folder / path.name
        if is_folder:
            partial.mkdir()
        else:
            partial.touch()
        yield partial
        if is_special:
            with partial.open("rb") as content, path.open("wb") as target_file:
                shutil.copyfileobj(content, target_file)
        elif is_folder and path.is_dir():
            for file in partial.iterdir():
                raise_if_output_not_replaceable(path / file.name, force=force)
                file.replace(path / file.name)
        else:
            partial.replace(target)


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Write ``text`` by ``replace_when_done``. Raises PerfctlError if that fails."""
    with replace_when_done(path, force=force) as partial:
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")


@contextmanager
def convert_write_errors(path: Path, remedy: str = "Choose another `out`") -> Iterator[None]:
    """Raise PerfctlError about ``path`` for an OSError inside the block."""
    try:
        yield
    except OSError as error:
        raise PerfctlError(f"{path}: cannot be written ({error.strerror})", remedy) from error


def raise_if_output_not_replaceable(path: Path, *, force: bool, is_folder: bool = False) -> None:
    """Raise UsageError if ``path`` cannot be written, is a results database, or holds something
    that perfctl did not write and ``force`` is false."""
    if not path.parent.is_dir():
        raise UsageError(f"`out`: folder {path.parent} not found", "Create the folder first")
    if path.is_dir() and not is_folder:
        raise UsageError(f"`out`: {path} is a folder", "Name a file")
    if is_folder and path.exists() and not path.is_dir():
        raise UsageError(f"`out`: {path} is a file", "Name a folder")
    is_free = force or not (is_folder and path.exists() and any(path.iterdir()))
    if path.is_file():
        head = b"?"
        with suppress(OSError), path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if read_application_id(head) == APPLICATION_ID:
            problem = f"{path} is a results database, which perfctl never overwrites"
            raise UsageError(problem, "Choose another file")
        is_free = force or not head or _OWN.search(head) is not None
    if not is_free:
        raise UsageError(
            f"{path} already exists", "Use `force` to overwrite it, or choose another file"
        )


def get_perfctl_user_folder(xdg_variable: str, default_base: str) -> Path:
    """perfctl's folder below the one that an XDG variable names; the default where it names no
    absolute path."""
    named_folder = Path(os.environ.get(xdg_variable, ""))
    return (
        named_folder if named_folder.is_absolute() else Path(default_base).expanduser()
    ) / "perfctl"
