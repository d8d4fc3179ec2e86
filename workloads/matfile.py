"""Just enough of MATLAB's level 5 MAT-files to read the table of classes in ImageNet's development kit.

One variable that is an array of structs, whose fields are text or numbers, plain or compressed. Written after
MathWorks' "MAT-File Format", 1999 and later; held against files that scipy 1.17 wrote.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
_CODES = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
"""Numeric types of data elements -> struct's letters."""
_TEXT = {1: "utf-8", 2: "utf-8", 16: "utf-8", 4: "utf-16-le", 17: "utf-16-le", 18: "utf-32-le"}
_STRUCT_CLASS, _CHAR_CLASS = 2, 4
_NUMBER_CLASSES = range(6, 16)
_MOST_BYTES = 64 << 20
"""Of one variable once it is unpacked; the table of classes has a quarter of a megabyte."""

Value = str | float | None


class MatError(ValueError):
    """Not such a file, or cut off. One line."""


class _Element(NamedTuple):
    kind: int
    data: bytes
    end: int
    """Where the next one begins."""


def read_structs(content: bytes, variable: str) -> list[dict[str, Value]]:
    """The structs of ``variable``, field by field: text, the first number, or None for anything else and nothing.

    Raises MatError.
    """
    if len(content) < _HEADER_BYTES or content[126:128] != b"IM":
        raise MatError("this is no MAT-file of level 5 in little-endian order")
    at = _HEADER_BYTES
    try:
        while at < len(content):
            element = _element(content, at, padded=False)
            at = element.end
            if element.kind == _COMPRESSED:
                element = _element(_unpacked(element.data), 0, padded=False)
            if element.kind == _MATRIX and (found := _structs(element.data, variable)) is not None:
                return found
    except MatError:
        raise
    except (struct.error, zlib.error, IndexError, KeyError, ValueError) as error:
        raise MatError(f"it is cut off or damaged ({error})") from error
    raise MatError(f"it has no array of structs called {variable}")


def _unpacked(data: bytes) -> bytes:
    """Of a compressed element; MatError where it would fill the memory."""
    stream = zlib.decompressobj()
    plain = stream.decompress(data, _MOST_BYTES)
    if stream.unconsumed_tail:
        raise MatError(f"a variable unpacks to more than {_MOST_BYTES >> 20} MiB, which no table of classes does")
    return plain


def _element(content: bytes, at: int, *, padded: bool = True) -> _Element:
    """The data element at ``at``; those within a matrix are padded to 8 bytes, and small ones fit into 8."""
    (word,) = struct.unpack_from("<I", content, at)
    if word >> 16:
        kind, size, start, end = word & 0xFFFF, word >> 16, at + 4, at + 8
    else:
        kind, (size,), start = word, struct.unpack_from("<I", content, at + 4), at + 8
        end = start + size + (-size % 8 if padded else 0)
    if start + size > len(content):
        raise MatError("an element reaches beyond the end")
    return _Element(kind, content[start : start + size], end)


def _structs(data: bytes, variable: str) -> list[dict[str, Value]] | None:
    """The structs of one matrix; None when it is another variable, or no struct array."""
    flags = _element(data, 0)
    dimensions = _element(data, flags.end)
    name = _element(data, dimensions.end)
    if flags.data[0] != _STRUCT_CLASS or name.data.decode("ascii") != variable:
        return None
    width_of = _element(data, name.end)
    names_of = _element(data, width_of.end)
    (width,) = struct.unpack("<i", width_of.data)
    names = [
        names_of.data[start : start + width].split(b"\0")[0].decode("ascii")
        for start in range(0, len(names_of.data), width)
    ]
    if not names:
        raise MatError(f"the structs of {variable} have no fields")
    at, found = names_of.end, []
    for _ in range(_product(dimensions)):
        row: dict[str, Value] = {}
        for field in names:
            cell = _element(data, at)
            row[field], at = _value(cell.data), cell.end
        found.append(row)
    return found


def _value(data: bytes) -> Value:
    """Text, or the first number of a matrix."""
    if not data:
        return None
    flags = _element(data, 0)
    dimensions = _element(data, flags.end)
    name = _element(data, dimensions.end)
    kind = flags.data[0]
    if kind not in (_CHAR_CLASS, *_NUMBER_CLASSES) or not _product(dimensions):
        return None
    values = _element(data, name.end)
    if kind == _CHAR_CLASS:
        return values.data.decode(_TEXT[values.kind]) if values.kind in _TEXT else None
    code = _CODES[values.kind]
    number: float = struct.unpack_from(f"<{code}", values.data)[0]
    return number


def _product(dimensions: _Element) -> int:
    product = 1
    for size in struct.unpack(f"<{len(dimensions.data) // 4}i", dimensions.data):
        product *= size
    return product
