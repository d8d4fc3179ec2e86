"""Reports inside tar and zip archives."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from perfctl.parsers import ReportError, is_tar
from perfctl.parsers.text.json import GZIP_MAGIC

_NAME = re.compile(r"\.(?:tar|tgz|tbz2?|txz|tar\.(?:gz|bz2|xz))\Z|\.zip\Z", re.IGNORECASE)
_EXPANSION = 200
"""Profilers' texts shrink 15 to 40 times; an archive that grows more than this, past _SMALL, is refused."""
_SMALL = 256 << 20
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
           LookupError, struct.error)  # fmt: skip
"""What the libraries raise for a damaged archive, and for one with a password or an unknown method."""
_NO_FILE = (errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""What the system says of names and places that no archive of reports has."""


def is_archive(path: Path) -> bool:
    """Return whether the file is a tar or zip archive, by its name and its content."""
    if _NAME.search(path.name) is None or not path.is_file():
        return False
    try:
        return zipfile.is_zipfile(path) if path.suffix.lower() == ".zip" else is_tar(path)
    except OSError:
        return False


def unpacked_bytes(path: Path) -> int:
    """Size of a file's content, of a gzipped one as it says (modulo 4 GiB); -1 where it cannot be read."""
    try:
        with path.open("rb") as file:
            if file.read(2) != GZIP_MAGIC:
                return path.stat().st_size
            file.seek(-4, os.SEEK_END)
            return int.from_bytes(file.read(4), "little")
    except OSError:
        return -1


def sha256_unpacked(path: Path) -> str:
    """Of a file's content; a gzipped one's is unpacked as far as its ``unpacked_bytes``. A damaged one's is its own."""
    digest = hashlib.sha256()
    left = unpacked_bytes(path)
    with path.open("rb") as file:
        is_zipped = file.read(2) == GZIP_MAGIC
    try:
        with gzip.open(path) if is_zipped else path.open("rb") as content:
            while left > 0 and (data := content.read(min(left, 1 << 20))):
                digest.update(data)
                left -= len(data)
    except (OSError, EOFError, zlib.error):
        digest.update(str(path).encode())
    return digest.hexdigest()


def unpack(path: Path, folder: Path) -> None:
    """Write the archive's files below ``folder``: no links, no hidden ones, none that would lie elsewhere.

    Raises ReportError for a damaged archive, one without room for it, and one that only pretends to be small.
    """
    free, limit = shutil.disk_usage(folder).free, max(_SMALL, _EXPANSION * path.stat().st_size)
    total = 0
    try:
        with _members(path) as members:
            for name, size, opened in members:
                total += size
                if total > limit:
                    reason = f"it unpacks to more than {_EXPANSION} times its size"
                    raise ReportError(path, "archive", reason, "If that is right, unpack it and pass the folder")
                if total > free:
                    reason = f"its files do not fit into {folder.parent} ({free >> 20:,} MiB free)"
                    raise ReportError(path, "archive", reason, "Set TMPDIR to a folder with more room")
                target = folder.joinpath(*name.parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as out:
                    shutil.copyfileobj(opened, out, 1 << 20)
    except (*_BROKEN, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.errno not in _NO_FILE:
            raise
        reason = f"the archive cannot be unpacked ({str(error) or type(error).__name__})"
        raise ReportError(path, "archive", reason, "Copy it again, or unpack it and pass the folder") from error


@contextmanager
def _members(path: Path) -> Iterator[Iterator[tuple[PurePosixPath, int, IO[bytes]]]]:
    with ExitStack() as stack:
        if path.suffix.lower() == ".zip":
            yield _of_zip(stack.enter_context(zipfile.ZipFile(path)))
        else:
            yield _of_tar(stack.enter_context(tarfile.open(path)))


def _of_tar(archive: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, int, IO[bytes]]]:
    for member in archive:
        name = PurePosixPath(member.name)
        opened = archive.extractfile(member) if member.isfile() and _is_wanted(name) else None
        if opened is not None:
            yield name, member.size, opened


def _of_zip(archive: zipfile.ZipFile) -> Iterator[tuple[PurePosixPath, int, IO[bytes]]]:
    for member in archive.infolist():
        name = PurePosixPath(member.filename)
        if not member.is_dir() and _is_wanted(name):
            with archive.open(member) as opened:
                yield name, member.file_size, opened


def _is_wanted(name: PurePosixPath) -> bool:
    """No hidden file (macOS puts ._NAME beside each), and none outside of the archive's own folder."""
    parts = [part for part in name.parts if part != "."]
    return bool(parts) and not name.is_absolute() and not any(part.startswith(".") for part in parts)
