"""TensorBoard's event files, which need no TensorBoard to be written: scalars against a step.

A file is a row of records: length (8 bytes, little endian), its masked CRC-32C, the data, its masked CRC-32C (TensorFlow,
tsl/lib/io/record_writer.h). The data is a protocol buffer, ``Event`` of tensorflow/core/util/event.proto: 1 wall_time
(double), 2 step (int64), 3 file_version (string), 5 summary; a summary has values (1) of tag (1, string) and simple_value (2,
float).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

VERSION = b"brain.Event:2"
_POLYNOMIAL, _MASK_DELTA = 0x82F63B78, 0xA282EAD8
"""CRC-32C, bits reversed; and what a masked checksum has added."""


class Scalar(NamedTuple):
    """One value of one curve."""

    tag: str
    step: int
    value: float
    wall_time: float
    """Seconds since 1970."""


def event_file(scalars: Iterable[Scalar], started: float) -> bytes:
    """The bytes of ``events.out.tfevents.*``; ``started``: seconds since 1970. The same scalars give the same bytes."""
    head = _double(1, started) + _text(3, VERSION)
    return b"".join(map(_record, (head, *map(_event, scalars))))


def _event(one: Scalar) -> bytes:
    value = _text(1, one.tag.encode()) + b"\x15" + struct.pack("<f", one.value)
    return _double(1, one.wall_time) + b"\x10" + _varint(one.step) + _text(5, _text(1, value))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _text(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def masked_crc(data: bytes) -> int:
    """CRC-32C, turned by 15 bits and moved, so that a checksum of checksums is none of the usual ones."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_entry, range(256)))
