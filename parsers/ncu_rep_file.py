"""Reads the outer structure of an .ncu-rep file: is it complete, how many results does it hold, which ncu wrote it?

NVIDIA's reader opens a file that is cut off and silently gives the results before the cut (seen with ncu_report
2026.x), so the blocks are walked here first. Layout, from the .proto files that ncu ships in extras/FileFormat:
"NVR\\0", u32 size and file header, then blocks of u32 size, block header, payload; a block header carries the number of
results (field 2), session details (field 3) and the payload size (field 5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

MAGIC = b"NVR\0"
_KNOWN_LAYOUT = 7
_HEADER_LIMIT = 2**28
_LATEST = 2**32


@dataclass(slots=True)
class Outline:
    """Facts from the blocks of a report file, without its results."""

    known: bool
    """Whether the file has the layout described above (2019 to 2025). If not, nothing else is known."""
    cut_at: int | None = None
    """Byte at which the structure breaks off; None for a whole file."""
    results: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    """Provider -> version: "CUDA Version", "Display Driver Version", "Nsight Compute Target ...", ..."""
    created: int | None = None
    """Unix time in seconds."""

    @property
    def tool_version(self) -> str | None:
        """Version of ncu, such as "2023.1.0.0"; None in files of 2019."""
        for provider, version in self.versions.items():
            if provider.startswith("Nsight Compute"):
                return version.split(" ", 1)[0]
        return None

    @property
    def created_at(self) -> str | None:
        """When the report was made, UTC, ISO 8601."""
        if self.created is None or not 0 < self.created < _LATEST:
            return None
        return datetime.fromtimestamp(self.created, UTC).isoformat()


def outline(path: Path) -> Outline:
    """Walk the blocks of the file. Raises OSError when it cannot be read; never reads a payload."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(len(MAGIC))
        try:
            layout = next((value for key, value in _fields(_sized(file, size)) if key == 1), None)
        except ValueError:
            return Outline(known=size < 16, cut_at=file.tell())
        found = Outline(known=layout == _KNOWN_LAYOUT)
        while found.known and file.tell() < size:
            at = file.tell()
            try:
                payload = _block(_sized(file, size), found)
            except ValueError:
                found.cut_at = at
                break
            if file.tell() + payload > size:
                found.cut_at = at
                break
            file.seek(payload, 1)
    return found


def _sized(file: BinaryIO, size: int) -> bytes:
    """The next u32-sized piece; ValueError when the file ends before it does."""
    start = file.read(4)
    if len(start) < 4:
        raise ValueError("no size")
    length = struct.unpack("<I", start)[0]
    if length > min(size - file.tell(), _HEADER_LIMIT):
        raise ValueError("piece is longer than the file")
    return file.read(length)


def _block(header: bytes, found: Outline) -> int:
    """Take in one block header; gives the size of its payload."""
    payload, results, details = 0, 0, b""
    for key, value in _fields(header):
        if key == 2 and isinstance(value, int):
            results = value
        elif key == 3 and isinstance(value, bytes):
            details = value
        elif key == 5 and isinstance(value, int):
            payload = value
    for key, value in _fields(details):
        if key == 2 and isinstance(value, int):
            found.created = value
        elif key == 8 and isinstance(value, bytes):
            pair = {part: text.decode("utf-8", "replace") for part, text in _fields(value) if isinstance(text, bytes)}
            found.versions[pair.get(1, "")] = pair.get(2, "")
    found.results += results
    return payload


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message; ValueError where it is none."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("no such wire type")
        if at + length > len(message):
            raise ValueError("field is longer than its message")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("number is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("number is too long")
