"""Files that commands write: never over another one without --force, and all of it or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.errors import PerfctlError, UsageError

Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


@contextmanager
def replacing(path: Path, *, force: bool, folder: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path``, which gets its own name when the block ends well, and goes when it does not.

    Of a folder that is there already only the files of the same names are replaced. Raises UsageError, before
    anything is written, where something is there and ``force`` is not given.
    """
    check_free(path, force=force, folder=folder)
    partial = unforeseen(path)
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
        raise PerfctlError(f"{path}: cannot be written ({error.strerror})", "Name another one with --out") from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)


def unforeseen(path: Path) -> Path:
    """A temporary name beside ``path`` under which nobody can have put a link: nobody knew it."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(8).hex()}.tmp")


def check_free(path: Path, *, force: bool, folder: bool = False) -> None:
    """Raises UsageError where ``path`` cannot be written, or is there and ``force`` is not given."""
    if not path.parent.is_dir():
        raise UsageError(f"--out: there is no folder {path.parent}", "Make it first")
    if path.is_dir() and not folder:
        raise UsageError(f"--out: {path} is a folder", "Name a file")
    if folder and path.exists() and not path.is_dir():
        raise UsageError(f"--out: {path} is a file", "Name a folder")
    if path.exists() and not force and not (folder and not any(path.iterdir())):
        raise UsageError(f"{path} is there already", "Say --force to replace it, or --out for another name")
