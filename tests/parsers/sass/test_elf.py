"""Cubins and containers of GPU code, byte by byte; all files here are synthetic."""

from __future__ import annotations

import struct

import pytest

from perfctl.parsers.sass import elf

ENTRY, FUNCTION = 0x10, 0x12


def elf_file(
    parts: dict[str, tuple[int, bytes, int]], *, machine: int = elf.CUDA, flags: int = 0x5005 << 8, abi: int = 8
) -> bytes:
    """An ELF file of these sections: name -> (type, content, link)."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*parts, ".shstrtab"))
    every = {"": (0, b"", 0), **parts, ".shstrtab": (3, names, 0)}
    body, headers = b"", b""
    for name, (kind, content, link) in every.items():
        at = names.find(b"\0" + name.encode() + b"\0") + 1 if name else 0
        entry = 24 if kind == 2 else 0
        headers += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), len(content), link, 0, 8, entry)
        body += content
    head = elf.MAGIC + bytes((2, 1, 1, 0x41, abi)) + bytes(7)
    head += struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(every), len(every) - 1
    )
    return head + body + headers


def cubin(name: str = "kernel", arch: int = 80) -> bytes:
    strings = b"\0" + name.encode() + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, FUNCTION, ENTRY, 1, 0, 256)
    registers = struct.pack("<BBHII", 4, 0x2F, 8, 1, 42) + struct.pack("<BBHII", 4, 0x12, 8, 1, 512)
    argument = struct.pack("<BBHIHHI", 4, 0x17, 12, 0, 1, 8, 4 << 18) + struct.pack(
        "<BBHIHHI", 4, 0x17, 12, 0, 0, 0, 8 << 18
    )
    launch = struct.pack("<BBHIHH", 4, 0x0A, 8, 0, 0x160, 12) + struct.pack("<BBHIII", 4, 0x10, 12, 128, 2, 1)
    return elf_file(
        {
            ".strtab": (3, strings, 0), ".symtab": (2, symbols, 1), ".nv.info": (0x70000000, registers, 0),
            f".nv.info.{name}": (0x70000000, argument + launch, 0), f".nv.shared.{name}": (1, bytes(96), 0),
        },
        flags=arch << 8,
    )  # fmt: skip


def test_a_kernel_has_its_resources_arguments_and_block() -> None:
    (found,) = elf.kernels(cubin())
    assert (found.name, found.arch, found.symbol) == ("kernel", 80, 1)
    assert (found.registers, found.stack_bytes, found.shared_bytes, found.block) == (42, 512, 96, (128, 2, 1))
    assert [(one.place, one.offset, one.size) for one in found.parameters] == [(0, 0x160, 8), (1, 0x168, 4)]


def test_older_files_state_the_architecture_in_another_byte() -> None:
    assert elf.arch(elf_file({}, flags=0x00500550, abi=7)) == 0x50
    assert elf.arch(elf_file({}, flags=0x09006402, abi=8)) == 100


def test_a_file_that_is_cut_off_anywhere_is_refused() -> None:
    whole = cubin()
    for length in range(64, len(whole), 7):
        with pytest.raises(elf.BrokenCode, match="cut off"):
            elf.kernels(whole[:length])


def container(*pieces: tuple[int, int, bytes]) -> bytes:
    """A fatbin of pieces: (kind, architecture, content)."""
    inside = b"".join(
        struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(content), 0, 0, 8, 1, arch) + bytes(32) + content
        for kind, arch, content in pieces
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside


def test_the_pieces_of_a_library_are_numbered_as_cuobjdump_numbers_them() -> None:
    code = container((2, 80, b"a" * 64), (1, 80, b"ptx" * 8)) + bytes(8) + container((2, 90, b"b" * 32))
    library = elf_file({".nv_fatbin": (1, code, 0)}, machine=62)
    found = elf.elements(library)
    assert [(one.kind, one.arch, one.number) for one in found] == [("elf", 80, 1), ("ptx", 80, 0), ("elf", 90, 2)]


def test_one_piece_alone_makes_a_container_of_its_own() -> None:
    code = container((2, 80, b"a" * 64), (2, 90, b"b" * 32))
    library = elf_file({".nv_fatbin": (1, code, 0)}, machine=62)
    small = elf.small_fatbin(library, [elf.elements(library)[1]])
    assert small == container((2, 90, b"b" * 32))


def test_a_damaged_container_is_refused() -> None:
    code = bytearray(container((2, 80, b"a" * 64)))
    code[16 + 8 : 16 + 16] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(elf.BrokenCode, match="damaged"):
        elf.elements(elf_file({".nv_fatbin": (1, bytes(code), 0)}, machine=62))


def test_a_library_says_its_own_name() -> None:
    strings = b"\0libcublas.so.13\0"
    dynamic = struct.pack("<QQ", 14, 1) + bytes(16)
    library = elf_file({".dynstr": (3, strings, 0), ".dynamic": (6, dynamic, 1)}, machine=62)
    assert elf.soname(library) == "libcublas.so.13"
