"""What kind of file CODE is, which kernels it holds, and where the machine code of one of them lies."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from perfctl.orchestrator.actions.count import licences, triton
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.launch.code import binaries
from perfctl.parsers.sass import elf
from perfctl.records.errors import ReportError, readable
from perfctl.records.sass import Element, KernelCode, Listed

_LARGEST_PTX = 256 << 20
_FEW = 64
"""Pieces of code of a program that are listed without asking for an architecture."""
_AT_ONCE = 48
"""Pieces that are unpacked at a time, so that a large library never fills the disk."""
_FATBIN_MAGIC = (0xBA55ED50).to_bytes(4, "little")


class Code:
    """CODE, opened. Raises ReportError or UsageError for what holds no GPU code."""

    def __init__(self, path: Path, arch: str | None, *, closed_libraries: bool) -> None:
        self.path = path
        self.arch = None if arch is None else arch_number(arch)
        self._arch_name = arch if arch is None or arch.startswith("sm_") else f"sm_{arch}"
        if not path.exists():
            raise UsageError(
                f"there is no {path}",
                "CODE is a .cubin, a program or library, a PTX file or a folder of Triton's cache",
            )
        self.kind = _kind(path)
        self.closed = self.kind == "host" and self._is_closed()
        licences.check(path, self.closed, closed_libraries)
        if self.kind == "ptx" and arch is None:
            raise UsageError(f"{path} is PTX, which is compiled first", "Name the GPU: `arch` sm_80, sm_90, ...")

    def _is_closed(self) -> bool:
        with _mapped(self.path) as data:
            return licences.is_closed((*licences.names_of(self.path), elf.soname(data)))

    def listed(self, whole: bool = False) -> tuple[Listed, ...]:
        """Every kernel of the wanted architecture; ``whole``: of all, where none is wanted."""
        if self.kind == "triton":
            return self._of_triton()
        if self.kind in ("host", "fatbin"):
            return self._of_host(whole)
        with self.cubin(0) as file:
            found = _kernels(file, self.path)
        shared = triton.shared_bytes(self.path) if self.kind == "cubin" else None
        names = demangled([one.name for one in found])
        return tuple(Listed(one, name, dynamic_shared_bytes=shared) for one, name in zip(found, names, strict=True))

    def _of_triton(self) -> tuple[Listed, ...]:
        found = []
        for entry in triton.entries(self.path):
            try:
                kernels = _kernels(entry.cubin, entry.cubin)
            except ReportError:
                continue  # half written, or of another machine
            for one in kernels:
                if self.arch in (None, one.arch):
                    found.append(Listed(one, one.name, place=str(entry.cubin), dynamic_shared_bytes=entry.shared))
        if not found:
            wanted = "" if self.arch is None else f" for sm_{self.arch}"
            raise PerfctlError(
                f"{self.path} holds no kernel of Triton{wanted}", "It is TRITON_CACHE_DIR, by default ~/.triton/cache"
            )
        return tuple(found)

    def _of_host(self, whole: bool) -> tuple[Listed, ...]:
        with _mapped(self.path) as data:
            pieces = _pieces(data, self.kind, self.path)
            there = sorted({one.arch for one in pieces if one.kind == "elf"})
            if not there:
                raise PerfctlError(
                    f"{self.path} holds PTX alone, no machine code",
                    "Extract it: cuobjdump -xptx all FILE; then count the PTX",
                )
            if self.arch is None and len(there) > 1 and not (whole and len(pieces) <= _FEW):
                raise UsageError(f"{self.path} holds code for {_named(there)}", "Choose one with `arch`")
            wanted = [one for one in pieces if one.kind == "elf" and self.arch in (None, one.arch)]
            if not wanted:
                raise UsageError(f"`arch`: {self.path} holds no code for sm_{self.arch}, but for {_named(there)}")
            found = [
                row
                for at in range(0, len(wanted), _AT_ONCE)
                for row in _unpacked(data, wanted[at : at + _AT_ONCE], self.path)
            ]
        names = demangled([kernel.name for _, kernel in found])
        return tuple(Listed(kernel, name, number) for (number, kernel), name in zip(found, names, strict=True))

    @contextmanager
    def cubin(self, number: int, place: str = "") -> Iterator[Path]:
        """A file with the machine code that holds one kernel, until the block ends."""
        with ExitStack() as stack:
            if self.kind == "ptx":
                yield stack.enter_context(binaries.compiled(self.path, self._arch_name or ""))
            elif self.kind in ("host", "fatbin"):
                with _mapped(self.path) as data:
                    piece = next(one for one in _pieces(data, self.kind, self.path) if one.number == number)
                    small = elf.small_fatbin(data, [piece])
                yield stack.enter_context(binaries.extracted(small))[0]
            else:
                yield Path(place) if place else self.path


def arch_number(words: str) -> int:
    """80 for "sm_80", "80" and "8.0". Raises UsageError."""
    found = re.fullmatch(r"(?:sm_|compute_)?(\d{2,3})[af]?", words.strip().lower().replace(".", ""))
    if found is None:
        raise UsageError(f"`arch`: {words!r} is not an architecture", "Say sm_80, sm_90, sm_100, ...")
    return int(found[1])


def choose(listed: Sequence[Listed], wanted: str, where: Path) -> Listed:
    """The kernel that ``wanted`` names: its whole name, or a part of it; * stands for anything.

    Raises UsageError where none fits, or several do, with their names.
    """
    fits = [one for one in listed if wanted in (one.name, one.kernel.name)]
    if not fits:
        pattern = re.compile(".*".join(re.escape(part.replace(" ", "")) for part in wanted.split("*")))
        fits = [one for one in listed if pattern.search(one.name.replace(" ", "")) or wanted in one.kernel.name]
    if not fits:
        near = ", ".join(dict.fromkeys(_short(one.name) for one in listed[:4]))
        raise UsageError(
            f"`kernel`: {where} holds no {wanted!r}",
            f"It holds {len(listed):,}: {near}{', ...' if len(listed) > 4 else ''}",
        )
    if not any(one.place for one in fits) and len({(one.kernel.name, one.kernel.registers) for one in fits}) == 1:
        return fits[0]  # a template that several source files needed
    if len(fits) > 1:
        names = dict.fromkeys(f"{_short(one.name)} ({one.place})" if one.place else _short(one.name) for one in fits)
        shown = "; ".join(list(names)[:6])
        more = f"; and {len(names) - 6:,} more" if len(names) > 6 else ""
        advice = (
            "Name one of their folders as CODE"
            if fits[0].place
            else "Give more of the name; * stands for anything between two parts"
        )
        raise UsageError(f"`kernel`: {wanted!r} fits {len(fits):,} kernels: {shown}{more}", advice)
    return fits[0]


def named_parameters(chosen: Listed, file: Path) -> KernelCode:
    """The kernel with the names of its arguments, where Triton wrote them beside the code."""
    names = triton.argument_names(Path(chosen.place) if chosen.place else file)
    known = tuple(
        replace(one, name=names[one.place]) if one.place < len(names) else one for one in chosen.kernel.parameters
    )
    return replace(chosen.kernel, parameters=known)


def demangled(names: Sequence[str]) -> list[str]:
    """C++ names as one writes them; those that are none, or where the C++ library is missing, as they are."""
    library = _cxx()
    return [_demangle(library, name) if library is not None and name.startswith("_Z") else name for name in names]


@cache
def _cxx() -> ctypes.CDLL | None:
    for name in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            library = ctypes.CDLL(name)
            library.__cxa_demangle.restype = ctypes.c_void_p
            library.free.argtypes = [ctypes.c_void_p]
        except (OSError, AttributeError):
            continue
        return library
    return None


def _demangle(library: ctypes.CDLL, name: str) -> str:
    status = ctypes.c_int()
    found = library.__cxa_demangle(name.encode("utf-8", "replace"), None, None, ctypes.byref(status))
    if not found:
        return name
    try:
        return ctypes.string_at(found).decode("utf-8", "replace")
    finally:
        library.free(found)


def _kind(path: Path) -> str:
    """triton, cubin, host, fatbin or ptx. Raises ReportError for anything else."""
    if path.is_dir():
        return "triton"
    if not path.is_file():
        raise ReportError(
            path, "code", "it is not a file", "Name a .cubin, a program or library, PTX or Triton's cache"
        )
    with readable(path, "code"), path.open("rb") as file:
        head = file.read(1 << 16)
    if head[:4] == _FATBIN_MAGIC:
        return "fatbin"
    machine = elf.machine(head)
    if machine is not None:
        return "cubin" if machine == elf.CUDA else "host"
    if b"\0" not in head and re.search(rb"^\s*\.version\s+\d", head, re.MULTILINE) and b".target" in head:
        if path.stat().st_size > _LARGEST_PTX:
            raise ReportError(
                path,
                "code",
                f"PTX of {path.stat().st_size:,} bytes is not read",
                "Compile it with ptxas, then count the cubin",
            )
        return "ptx"
    what = "it is empty" if not head else "it is an archive" if head.startswith(b"!<arch>") else "it is not GPU code"
    advice = (
        "Take its objects out with ar x"
        if head.startswith(b"!<arch>")
        else "CODE is a .cubin, a program or library, PTX or Triton's cache"
    )
    raise ReportError(path, "code", what, advice)


@contextmanager
def _mapped(path: Path, shown: Path | None = None) -> Iterator[memoryview]:
    """The content of a file, read only where it is looked at. What is broken in it becomes a ReportError of ``shown``."""
    shown = shown or path
    with readable(shown, "code"), path.open("rb") as file:
        if not path.stat().st_size:
            raise ReportError(shown, "code", "it is empty", "Build it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            try:
                yield view
            except (elf.BrokenCode, struct.error) as error:
                raise ReportError(shown, "code", str(error), "Copy or build it again") from error


def _pieces(data: memoryview, kind: str, path: Path) -> tuple[Element, ...]:
    if kind == "fatbin":
        found = list(elf.containers(data, 0, len(data)))
        pieces = tuple(replace(one, number=at + 1) for at, one in enumerate(one for one in found if one.kind == "elf"))
    else:
        pieces = elf.elements(data)
    if not pieces:
        raise PerfctlError(
            f"{path} is a program without GPU code", "The kernels may lie in a library that it loads: ldd lists those"
        )
    return pieces


def _unpacked(data: memoryview, pieces: Sequence[Element], path: Path) -> list[tuple[int, KernelCode]]:
    with binaries.extracted(elf.small_fatbin(data, pieces)) as files:
        if len(files) != len(pieces):
            raise PerfctlError(
                f"{path}: cuobjdump unpacked {len(files)} of {len(pieces)} pieces of code", "Try a newer CUDA toolkit"
            )
        return [
            (piece.number, kernel) for piece, file in zip(pieces, files, strict=True) for kernel in _kernels(file, path)
        ]


def _kernels(file: Path, shown: Path) -> tuple[KernelCode, ...]:
    with _mapped(file, shown) as data:
        if elf.machine(bytes(data[:20])) != elf.CUDA:
            raise elf.BrokenCode("it is not GPU code")
        return elf.kernels(data)


def _named(architectures: Sequence[int]) -> str:
    return ", ".join(f"sm_{one}" for one in architectures)


def _short(name: str) -> str:
    return name if len(name) <= 110 else f"{name[:107]}..."
