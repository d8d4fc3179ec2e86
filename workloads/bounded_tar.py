"""Read untrusted tar archives in bounded memory: only members requested by name are unpacked."""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

_MOST_NAME = 1 << 20
"""Bytes of a header with a long name or attributes, which Python reads into memory."""
_MOST_MEMBER = 64 << 20
_MOST_READ = 1 << 30
"""Unpacked bytes of an archive of which a few members are wanted."""
_MOST_MEMBERS = 200_000
"""tarfile keeps an object per member; ImageNet's validation archive has 50,000."""
_LONG_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


class BoundedTarInfo(tarfile.TarInfo):
    """Rejects headers that would fill the memory. Raises tarfile.ReadError."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> BoundedTarInfo:
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0 or (found.type in _LONG_HEADERS and found.size > _MOST_NAME):
            raise tarfile.ReadError(f"a member's name or attributes take {found.size:,} bytes")
        return found


def members_of(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members in order. Raises tarfile.ReadError when there are too many."""
    for number, member in enumerate(archive):
        if number >= _MOST_MEMBERS:
            raise tarfile.ReadError(f"it has more than {_MOST_MEMBERS:,} members")
        yield member


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Contents of the regular files with these names in any folder of the archive; the last of each name wins.

    Raises tarfile.ReadError for a file over 64 MiB and for an archive that unpacks to more than 1 GiB, and what tarfile
    raises for a damaged archive.
    """
    found: dict[str, bytes] = {}
    read = 0
    with tarfile.open(path, "r|*", tarinfo=BoundedTarInfo) as archive:
        for member in members_of(archive):
            read += member.size
            if read > _MOST_READ:
                raise tarfile.ReadError(f"it unpacks to more than {_MOST_READ >> 20:,} MiB")
            name = member.name.rsplit("/", 1)[-1]
            if not member.isfile() or name not in names:
                continue
            if member.size > _MOST_MEMBER:
                raise tarfile.ReadError(f"{name} has {member.size:,} bytes")
            content = archive.extractfile(member)
            found[name] = content.read() if content is not None else b""
    return found
