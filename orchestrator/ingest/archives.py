"""Unpack tar and zip archives of reports, within bounds."""

from __future__ import annotations

import errno
import lzma
import os
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from perfctl.parsers import ReportError

_NAME = re.compile(r"\.(?:tar|tgz|tbz2?|txz|tar\.(?:gz|bz2|xz))\Z|\.zip\Z", re.IGNORECASE)
_EXPANSION = 200
"""Profilers' texts shrink 15 to 40 times; an archive that grows more than this, past _SMALL,
is refused."""
_SMALL = 256 << 20
_MOST_FILES = 100_000
"""Members of an archive, and of those inside it; a study has some thousand reports."""
_DEEPEST_NAME = 64
"""Folders in a member's name, and below _LONGEST_NAME the bytes of each: Linux takes no
longer ones."""
_LONGEST_NAME = 255
_LONGEST_HEADER = 1 << 20
"""Bytes of a member's header, which tarfile takes into memory whole; a long name has
some hundred."""
_CUT = (EOFError, zlib.error, lzma.LZMAError)
"""What they raise where the compression begins well and is cut or damaged."""
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    LookupError,
    struct.error,
    *_CUT,
)
"""What the libraries raise for a damaged archive, and for one with a password or an
unknown method."""
_NO_FILE = (errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""What the system says of names and places that no archive of reports has."""
_LONG_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    b"X",
)


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
        """Make room for a member of ``path``. Raises ReportError where there is none."""
        self.bytes -= size
        self.files -= 1
        remedy = "If that is right, unpack it and pass the folder"
        if self.files < 0:
            raise ReportError(path, "archive", f"it holds more than {_MOST_FILES:,} files", remedy)
        if self.bytes < 0:
            reason = f"it unpacks to more than {_EXPANSION} times its size"
            raise ReportError(path, "archive", reason, remedy)


@dataclass(frozen=True, slots=True)
class _Member:
    name: PurePosixPath
    size: int
    is_file: bool
    open: Callable[[], IO[bytes] | None]

    def is_wanted(self) -> bool:
        """Return whether it is a file, not hidden (macOS puts ._NAME beside each), and inside the
        archive's own folder."""
        parts = [part for part in self.name.parts if part != "."]
        is_hidden = any(part.startswith(".") for part in parts)
        return self.is_file and bool(parts) and not self.name.is_absolute() and not is_hidden

    def has_possible_name(self) -> bool:
        """Return whether a file can have this name, and lies no deeper than anybody puts
        reports."""
        parts = self.name.parts
        if "\0" in str(self.name) or len(parts) > _DEEPEST_NAME:
            return False
        return all(len(os.fsencode(part)) <= _LONGEST_NAME for part in parts)


class _TarMember(tarfile.TarInfo):
    """A member whose header would fill the memory is damage."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type in _LONG_HEADERS and self.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"the header of a member has {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def may_be_archive(path: Path) -> bool:
    """Return whether the file's name is that of an archive."""
    return _NAME.search(path.name) is not None


def is_archive(path: Path) -> bool:
    """Return whether the file is a tar or zip archive, by its name and its content."""
    if not may_be_archive(path) or not path.is_file():
        return False
    try:
        if path.suffix.lower() == ".zip":
            return zipfile.is_zipfile(path)
        with tarfile.open(path, tarinfo=_TarMember):
            return True
    except _CUT:
        return True
    except (OSError, *_BROKEN):
        return False


def unpack(path: Path, folder: Path, room: Room) -> int:
    """Write the archive's files below ``folder``: no links, no hidden ones, none that would lie
    elsewhere. How many were left out because no file can have their name.

    Raises ReportError for a damaged archive, one without room for it, and one that only pretends to
    be small.
    """
    free, left_out = shutil.disk_usage(folder).free, 0
    try:
        with ExitStack() as stack:
            for member in _list_members(path, stack):
                is_wanted = member.is_wanted()
                # what a tar archive hides has to be unpacked to get past it
                room.take(path, member.size if is_wanted or path.suffix.lower() != ".zip" else 0)
                if not is_wanted:
                    continue
                if not member.has_possible_name():
                    left_out += 1
                    continue
                free -= member.size
                if free < 0:
                    reason = f"its files do not fit into {folder.parent}"
                    remedy = "Set TMPDIR to a folder with more room"
                    raise ReportError(path, "archive", reason, remedy)
                content = member.open()
                if content is None:
                    continue
                target = folder.joinpath(*member.name.parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as out:
                    shutil.copyfileobj(content, out, 1 << 20)
    except (*_BROKEN, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.errno not in _NO_FILE:
            raise
        reason = f"the archive cannot be unpacked ({str(error) or type(error).__name__})"
        remedy = "Copy it again, or unpack it and pass the folder"
        raise ReportError(path, "archive", reason, remedy) from error
    return left_out


def _list_members(path: Path, stack: ExitStack) -> Iterator[_Member]:
    """Yield the members of an archive, which is open as long as ``stack``."""
    if path.suffix.lower() == ".zip":
        packed = stack.enter_context(zipfile.ZipFile(path))
        for info in packed.infolist():
            opened = partial(packed.open, info)
            name = PurePosixPath(info.filename)
            yield _Member(name, info.file_size, not info.is_dir(), opened)
        return
    archive = tarfile.open(path, tarinfo=_TarMember)  # noqa: SIM115
    stack.enter_context(archive)
    for member in archive:
        name = PurePosixPath(member.name)
        yield _Member(name, member.size, member.isfile(), partial(archive.extractfile, member))
