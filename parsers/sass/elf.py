"""ELF files of 64 bits: sections, symbols, the kernels of a cubin, and the GPU code that a program or library holds.

The attributes in ``.nv.info`` have no specification; their numbers are those that ``cuobjdump -elf`` prints names for
(CUDA 13.1). Flags: low byte = architecture up to ABI version 7, second byte from version 8 on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from perfctl.records.sass import Element, KernelCode, Parameter

Buffer: TypeAlias = "bytes | memoryview"
MAGIC = b"\x7fELF"
CUDA = 190
"""Machine of GPU code (EM_CUDA)."""
_STRING_TABLE, _NO_BYTES, _DYNAMIC, _FUNCTION = 3, 8, 6, 2
_ENTRY = 0x10
"""In a symbol's ``other``: the function is a kernel (STO_CUDA_ENTRY)."""
_SONAME = 14
_PARAM_CBANK, _REQNTID, _FRAME_SIZE, _MIN_STACK, _KPARAM, _REGCOUNT = 0x0A, 0x10, 0x11, 0x12, 0x17, 0x2F
_FATBIN, _FATBIN_ELF, _FATBIN_PTX = 0xBA55ED50, 2, 1
_MOST_SECTIONS = 1 << 20


class BrokenCode(ValueError):
    """The bytes are not what their header says; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int
    entry: int


def machine(head: bytes) -> int | None:
    """Machine of a 64-bit little-endian ELF file, from its first 20 bytes; None for other files."""
    if len(head) < 20 or head[:4] != MAGIC or head[4:6] != b"\x02\x01":
        return None
    return int.from_bytes(head[18:20], "little")


def sections(data: Buffer) -> tuple[Section, ...]:
    """All sections. Raises BrokenCode."""
    try:
        start, size, count, names = struct.unpack_from("<Q", data, 40) + struct.unpack_from("<HHH", data, 58)
        if count == 0 and start:  # more than 65,279: the number stands in the first section
            count = struct.unpack_from("<Q", data, start + 32)[0]
        if size < 64 or count > _MOST_SECTIONS or start + count * size > len(data):
            raise BrokenCode(
                f"it is cut off: its table of sections ends at byte {start + count * size:,} of {len(data):,}"
            )
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + at * size) for at in range(count)]
    except struct.error as error:
        raise BrokenCode("it is cut off: its header is not whole") from error
    for row in rows:
        if row[1] != _NO_BYTES and row[4] + row[5] > len(data):
            raise BrokenCode(f"it is cut off: a section ends at byte {row[4] + row[5]:,} of {len(data):,}")
    table = bytes(data[rows[names][4] : rows[names][4] + rows[names][5]]) if names < count else b""
    return tuple(Section(_text(table, row[0]), row[1], row[4], row[5], row[6], row[7], row[9]) for row in rows)


def arch(data: Buffer) -> int:
    """80 for sm_80."""
    flags = int.from_bytes(bytes(data[48:52]), "little")
    return flags >> 8 & 0xFF if data[8] >= 8 else flags & 0xFF


def kernels(data: Buffer) -> tuple[KernelCode, ...]:
    """The kernels of a cubin, in the order of its symbols. Raises BrokenCode."""
    found = sections(data)
    names = {section.name: section for section in found}
    symbols = next((section for section in found if section.name == ".symtab"), None)
    if symbols is None or symbols.link >= len(found) or symbols.entry != 24:
        raise BrokenCode("it has no table of symbols")
    strings = _bytes(data, found[symbols.link])
    general = dict(_attributes(_bytes(data, names.get(".nv.info"))))
    sm = arch(data)
    listed = []
    for index in range(symbols.size // 24):
        name_at, info, other = struct.unpack_from("<IBB", data, symbols.offset + 24 * index)
        if info & 0xF == _FUNCTION and other & _ENTRY:
            name = _text(strings, name_at)
            shared = names.get(f".nv.shared.{name}")
            stacks = (general.get((kind, index)) for kind in (_FRAME_SIZE, _MIN_STACK))
            known = [value for value in stacks if value is not None]
            kernel = KernelCode(
                name, sm, index, general.get((_REGCOUNT, index)), shared.size if shared else 0, max(known, default=None)
            )
            listed.append(_with_launch(kernel, _bytes(data, names.get(f".nv.info.{name}"))))
    return tuple(listed)


def _with_launch(kernel: KernelCode, info: bytes) -> KernelCode:
    """The kernel with its arguments and its required block."""
    base, parameters, block = 0, [], None
    for kind, value in _entries(info):
        if kind == _PARAM_CBANK and len(value) >= 8:
            base = struct.unpack_from("<H", value, 4)[0]
        elif kind == _KPARAM and len(value) >= 12:
            place, offset, flags = struct.unpack_from("<HHI", value, 4)
            parameters.append(Parameter(place, offset, flags >> 18))
        elif kind == _REQNTID and len(value) >= 12:
            block = struct.unpack_from("<III", value)
    placed = sorted((replace(one, offset=base + one.offset) for one in parameters), key=lambda one: one.place)
    return replace(kernel, parameters=tuple(placed), block=block)


def _attributes(info: bytes) -> Iterator[tuple[tuple[int, int], int]]:
    """((attribute, symbol), value) of those that speak of a symbol."""
    for kind, value in _entries(info):
        if len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            yield (kind, symbol), number


def _entries(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:  # the value follows; other forms hold it in place of its size
            yield kind, info[at : at + size]
            at += size


def elements(data: Buffer) -> tuple[Element, ...]:
    """The pieces of GPU code in a program or library, in file order; none where it holds none. Raises BrokenCode."""
    found: list[Element] = []
    number = 0
    for section in sections(data):
        if section.name not in (".nv_fatbin", "__nv_relfatbin") or section.kind == _NO_BYTES:
            continue
        for piece in containers(data, section.offset, section.offset + section.size):
            number += piece.kind == "elf"
            found.append(replace(piece, number=number if piece.kind == "elf" else 0))
    return tuple(found)


def containers(data: Buffer, at: int, end: int) -> Iterator[Element]:
    """The pieces of the fatbin containers between two places, without their numbers."""
    while at + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != _FATBIN:
            at += 8
            continue
        last = at + header + size
        if last > end:
            raise BrokenCode(f"it is cut off: a container of GPU code ends at byte {last:,} of {end:,}")
        inside = at + header
        while inside + 32 <= last:
            kind, _, own, length = struct.unpack_from("<HHIQ", data, inside)
            sm = struct.unpack_from("<I", data, inside + 28)[0]
            if own < 32 or inside + own + length > last:
                raise BrokenCode(f"its container of GPU code at byte {at:,} is damaged")
            if kind in (_FATBIN_ELF, _FATBIN_PTX):
                yield Element(
                    "elf" if kind == _FATBIN_ELF else "ptx", sm, 0, (at, at + header), (inside, inside + own + length)
                )
            inside += own + length
        at = last


def small_fatbin(data: Buffer, pieces: Sequence[Element]) -> bytes:
    """A file of containers with these pieces alone, from which cuobjdump extracts them without reading the rest."""
    parts = []
    for piece in pieces:
        start, end = piece.container
        head = bytearray(data[start:end])
        struct.pack_into("<Q", head, 8, piece.place[1] - piece.place[0])
        parts.append(bytes(head) + bytes(data[piece.place[0] : piece.place[1]]))
    return b"".join(parts)


def soname(data: Buffer) -> str:
    """The name that a library gives itself; "" where it gives none. Raises BrokenCode."""
    found = sections(data)
    for section in found:
        if section.kind == _DYNAMIC and section.link < len(found):
            strings = _bytes(data, found[section.link])
            for at in range(section.offset, section.offset + section.size - 15, 16):
                tag, value = struct.unpack_from("<QQ", data, at)
                if tag == _SONAME:
                    return _text(strings, value)
    return ""


def _bytes(data: Buffer, section: Section | None) -> bytes:
    return (
        b""
        if section is None or section.kind == _NO_BYTES
        else bytes(data[section.offset : section.offset + section.size])
    )


def _text(table: bytes, at: int) -> str:
    end = table.find(b"\0", at)
    return table[at : end if end >= 0 else len(table)].decode("utf-8", "replace")
