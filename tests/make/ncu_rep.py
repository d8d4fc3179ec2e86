"""Report files of Nsight Compute, block by block, as NVIDIA's .proto files describe them."""

from __future__ import annotations

import struct

MAGIC = b"NVR\0"
FILE_HEADER = b"\x08\x07"
"""Field 1: layout 7."""


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def piece(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def sized(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def session(versions: dict[str, str], created: int | None = None) -> bytes:
    """Return the message with the date of the report and the versions of its providers."""
    return (number(2, created) if created is not None else b"") + b"".join(
        piece(8, piece(1, name.encode()) + piece(2, text.encode()))
        for name, text in versions.items()
    )


def block(payload: bytes, results: int, details: bytes = b"", extra: bytes = b"") -> bytes:
    """Return a block with so many results; ``details`` is its session."""
    header = extra + number(2, results) + (piece(3, details) if details else b"")
    return sized(header + number(5, len(payload))) + payload


def report_bytes(*blocks: bytes) -> bytes:
    return MAGIC + sized(FILE_HEADER) + b"".join(blocks)
