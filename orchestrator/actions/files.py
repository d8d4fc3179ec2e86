"""Write files: whole or not at all, and never over another file unless that was asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfctl.orchestrator.errors import PerfctlError, UsageError


@contextmanager
def replacing(path: Path, *, force: bool, folder: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path``; it is renamed to ``path`` when the block ends well, and removed when it fails.

    In a folder that exists already, only files of the same names are replaced. Raises UsageError before anything is
    written when ``path`` exists and ``force`` is false.
    """
    check_free(path, force=force, folder=folder)
    partial = temporary_name(path)
    try:
        if folder:
            partial.mkdir()
        else:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        yield partial
        if folder and path.is_dir():
            for file in partial.iterdir():
                file.replace(path / file.name)
            partial.rmdir()
        else:
            partial.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to a temporary file, then rename it over ``path``. Raises PerfctlError when that fails."""
    partial = temporary_name(path)
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> PerfctlError:
    return PerfctlError(f"{path}: cannot be written ({error.strerror})", "Choose another `out`")


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that nobody can guess, so that nobody can have put a link there."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(8).hex()}.tmp")


def check_free(path: Path, *, force: bool, folder: bool = False) -> None:
    """Raises UsageError when ``path`` cannot be written, or exists and ``force`` is false."""
    if not path.parent.is_dir():
        raise UsageError(f"`out`: there is no folder {path.parent}", "Create it first")
    if path.is_dir() and not folder:
        raise UsageError(f"`out`: {path} is a folder", "Name a file")
    if folder and path.exists() and not path.is_dir():
        raise UsageError(f"`out`: {path} is a file", "Name a folder")
    if path.exists() and not force and not (folder and not any(path.iterdir())):
        raise UsageError(f"{path} already exists", "Replace it with `force`, or choose another `out`")


def user_folder(variable: str, default: str) -> Path:
    """perfctl's folder below the one that an XDG variable names; the default where it names no absolute path."""
    asked = Path(os.environ.get(variable, ""))
    return (asked if asked.is_absolute() else Path(default).expanduser()) / "perfctl"
