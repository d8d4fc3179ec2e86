"""Unpack tar and zip archives of reports, within bounds."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

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
_LONGEST_HEADER = 1 << 16
"""Bytes of a member's header, which tarfile takes into memory whole and searches in quadratic
time; a long name has some hundred."""
_SECONDS, _BYTES_PER_SECOND = 60, 1_000_000
"""Time for an archive and those inside it."""
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
class UnpackingBudget:
    """How much may still be unpacked from an archive and those inside it."""

    size: int
    """Bytes of the archive."""
    bytes: int = field(init=False)
    files: int = _MOST_FILES
    until: float = field(init=False)
    """When it has to be unpacked, by the monotonic clock."""

    def __post_init__(self) -> None:
        self.bytes = max(_SMALL, _EXPANSION * self.size)
        self.until = time.monotonic() + _SECONDS + self.size / _BYTES_PER_SECOND

    def charge_member_or_raise(self, archive_path: Path, member_bytes: int) -> None:
        """Make room for a member of ``archive_path``. Raises ReportError where there is none."""
        self.bytes -= member_bytes
        self.files -= 1
        remedy = "If the archive is valid, unpack it and pass the folder"
        if self.files < 0:
            raise ReportError(
                archive_path, "archive", f"it holds more than {_MOST_FILES:,} files", remedy
            )
        if self.bytes < 0:
            reason = f"it unpacks to more than {_EXPANSION} times its size"
            raise ReportError(archive_path, "archive", reason, remedy)


class _TarMember(tarfile.TarInfo):
    """A member whose header would fill the memory is damage."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        is_too_long = self.type in _LONG_HEADERS and self.size > _LONGEST_HEADER
        if is_too_long or self.size < 0:
            raise tarfile.ReadError(f"a member or its header states {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def has_archive_name(path: Path) -> bool:
    """Return whether the file's name is that of an archive."""
    return _NAME.search(path.name) is not None


def is_archive(path: Path) -> bool:
    """Return whether the file is a tar or zip archive, by its name and its content."""
    if not has_archive_name(path) or not path.is_file():
        return False
    try:
        if path.suffix.lower() == ".zip":
            return zipfile.is_zipfile(path)
        with tarfile.open(path, tarinfo=_TarMember):
            return True
    except (OSError, tarfile.ReadError):
        return False
    except Exception:  # tarfile raises errors of many types for a damaged one
        return True


def unpack_archive_and_count_skipped(path: Path, folder: Path, budget: UnpackingBudget) -> int:
    """Write the archive's files below ``folder``: no links, no hidden ones, none that would lie
    elsewhere. How many were left out because no file can have their name.

    Raises ReportError for a damaged archive, one without room for it, and one that only pretends to
    be small.
    """
    free, left_out = shutil.disk_usage(folder).free, 0
    try:
        with closing(_iterate_archive_members(path)) as members:
            for member, open_member in members:
                name = PurePosixPath(member.name)
                parts = [part for part in name.parts if part != "."]
                is_hidden = any(part.startswith(".") for part in parts)  # or lies elsewhere
                is_wanted = member.isfile() and parts and not (is_hidden or name.is_absolute())
                # what a tar archive hides has to be unpacked to get past it
                budget.charge_member_or_raise(
                    path, member.size if is_wanted or path.suffix.lower() != ".zip" else 0
                )
                if not is_wanted:
                    continue
                longest = max(len(os.fsencode(part)) for part in parts)
                if "\0" in member.name or len(parts) > _DEEPEST_NAME or longest > _LONGEST_NAME:
                    left_out += 1
                    continue
                free -= member.size
                if free < 0:
                    reason = f"its files do not fit into {folder.parent}"
                    remedy = "Set TMPDIR to a folder with more space"
                    raise ReportError(path, "archive", reason, remedy)
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with open_member() as content, target.open("wb") as target_file:
                    shutil.copyfileobj(content, target_file, 1 << 20)
    except (ReportError, MemoryError):
        raise
    except Exception as error:  # tarfile and zipfile raise errors of many types
        if isinstance(error, OSError) and error.errno is not None and error.errno not in _NO_FILE:
            raise
        reason = f"the archive cannot be unpacked ({str(error) or type(error).__name__})"
        remedy = "Copy it again, or unpack it and pass the folder"
        raise ReportError(path, "archive", reason, remedy) from error
    return left_out


def _iterate_archive_members(path: Path) -> Generator[tuple[tarfile.TarInfo, Callable[[], Any]]]:
    """Yield the members of an archive, and what opens each before the next is asked for."""
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                member = tarfile.TarInfo(info.filename)
                member.size = info.file_size
                member.type = tarfile.DIRTYPE if info.is_dir() else tarfile.REGTYPE
                yield member, partial(packed.open, info)
        return
    with tarfile.open(path, tarinfo=_TarMember) as archive:
        for member in archive:
            yield member, partial(archive.extractfile, member)
