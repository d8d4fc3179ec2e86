"""Reports inside tar and zip archives."""

from __future__ import annotations

import errno
import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from perfctl.parsers import ReportError
from perfctl.parsers.text.json import GZIP_MAGIC

_NAME = re.compile(r"\.(?:tar|tgz|tbz2?|txz|tar\.(?:gz|bz2|xz))\Z|\.zip\Z", re.IGNORECASE)
_EXPANSION = 200
"""Profilers' texts shrink 15 to 40 times; an archive that grows more than this, past _SMALL, is refused."""
_SMALL = 256 << 20
_MOST_FILES = 100_000
"""Members of an archive, and of those inside it; a study has some thousand reports."""
_DEEPEST_NAME = 64
"""Folders in a member's name, and below _LONGEST_NAME the bytes of each: Linux takes no longer ones."""
_LONGEST_NAME = 255
_LONGEST_HEADER = 1 << 20
"""Bytes of a member's header, which tarfile takes into memory whole; a long name has some hundred."""
_CUT = (EOFError, zlib.error, lzma.LZMAError)
"""What they raise where the compression begins well and is cut or damaged."""
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError, LookupError, struct.error, *_CUT)
"""What the libraries raise for a damaged archive, and for one with a password or an unknown method."""
_NO_FILE = (errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""What the system says of names and places that no archive of reports has."""


def is_archive(path: Path) -> bool:
    """Return whether the file is a tar or zip archive, by its name and its content."""
    if _NAME.search(path.name) is None or not path.is_file():
        return False
    try:
        if path.suffix.lower() == ".zip":
            return zipfile.is_zipfile(path)
        with tarfile.open(path, tarinfo=_Member):
            return True
    except _CUT:
        return True
    except (OSError, *_BROKEN):
        return False


def may_be_archive(path: Path) -> bool:
    """Return whether the file's name is that of an archive."""
    return _NAME.search(path.name) is not None


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


@dataclass(slots=True)
class Room:
    """How much may still be unpacked from an archive and those inside it."""

    size: int
    """Bytes of the archive."""
    bytes: int = field(init=False)
    files: int = _MOST_FILES

    def __post_init__(self) -> None:
        self.bytes = max(_SMALL, _EXPANSION * self.size)

    def take(self, path: Path, size: int) -> None:
        """Room for a member of ``path``. Raises ReportError where there is none."""
        self.bytes -= size
        self.files -= 1
        remedy = "If that is right, unpack it and pass the folder"
        if self.files < 0:
            raise ReportError(path, "archive", f"it holds more than {_MOST_FILES:,} files", remedy)
        if self.bytes < 0:
            raise ReportError(path, "archive", f"it unpacks to more than {_EXPANSION} times its size", remedy)


def unpack(path: Path, folder: Path, room: Room) -> int:
    """Write the archive's files below ``folder``: no links, no hidden ones, none that would lie elsewhere. How many were left
    out because no file can have their name.

    Raises ReportError for a damaged archive, one without room for it, and one that only pretends to be small.
    """
    free, strange = shutil.disk_usage(folder).free, 0
    try:
        with _members(path) as members:
            for name, size, opened in members:
                room.take(path, size)
                with opened() as content:
                    if content is None:
                        continue
                    if not _is_possible(name):
                        strange += 1
                        continue
                    free -= size
                    if free < 0:
                        reason = f"its files do not fit into {folder.parent}"
                        raise ReportError(path, "archive", reason, "Set TMPDIR to a folder with more room")
                    target = folder.joinpath(*name.parts)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as out:
                        shutil.copyfileobj(content, out, 1 << 20)
    except (*_BROKEN, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.errno not in _NO_FILE:
            raise
        reason = f"the archive cannot be unpacked ({str(error) or type(error).__name__})"
        raise ReportError(path, "archive", reason, "Copy it again, or unpack it and pass the folder") from error
    return strange


_Opened = Callable[[], AbstractContextManager[IO[bytes] | None]]
"""Opens a member; None for one that is not wanted."""


@contextmanager
def _members(path: Path) -> Iterator[Iterator[tuple[PurePosixPath, int, _Opened]]]:
    with ExitStack() as stack:
        if path.suffix.lower() == ".zip":
            yield _of_zip(stack.enter_context(zipfile.ZipFile(path)))
        else:
            yield _of_tar(stack.enter_context(tarfile.open(path, tarinfo=_Member)))


class _Member(tarfile.TarInfo):
    """Of a tar archive; one whose header would fill the memory is damage."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        names = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, b"X")
        if self.type in names and self.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"the header of a member has {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def _of_tar(archive: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, int, _Opened]]:
    for member in archive:
        name = PurePosixPath(member.name)
        wanted = member.isfile() and _is_wanted(name)
        opened = partial(archive.extractfile, member) if wanted else nullcontext
        yield name, member.size, cast("_Opened", opened)


def _of_zip(archive: zipfile.ZipFile) -> Iterator[tuple[PurePosixPath, int, _Opened]]:
    for member in archive.infolist():
        name = PurePosixPath(member.filename)
        wanted = not member.is_dir() and _is_wanted(name)
        opened = partial(archive.open, member) if wanted else nullcontext
        yield name, member.file_size if wanted else 0, cast("_Opened", opened)


def _is_possible(name: PurePosixPath) -> bool:
    """Whether a file can have this name, and lies no deeper than anybody puts reports."""
    parts = name.parts
    longest = max(len(os.fsencode(part)) for part in parts) if "\0" not in str(name) else _LONGEST_NAME + 1
    return len(parts) <= _DEEPEST_NAME and longest <= _LONGEST_NAME


def _is_wanted(name: PurePosixPath) -> bool:
    """No hidden file (macOS puts ._NAME beside each), and none outside of the archive's own folder."""
    parts = [part for part in name.parts if part != "."]
    return bool(parts) and not name.is_absolute() and not any(part.startswith(".") for part in parts)
