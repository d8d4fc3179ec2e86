"""What was read from machine code, kept in the user's cache folder: counts of basic blocks, never instructions.

The key is the content of the code (SHA-256), what was asked, the disassembler and perfctl's own code. The digest of a large
file is itself kept under the file's size and time of change. Nothing is kept where ``PERFCTL_NO_CACHE`` is set.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.actions.count import licences
from perfctl.orchestrator.actions.files import user_folder
from perfctl.orchestrator.actions.traces import entries
from perfctl.orchestrator.analyse.derived.code.records import CodeCounts, CodeLoop, Size
from perfctl.orchestrator.errors import UsageError
from perfctl.records import codec
from perfctl.records.errors import readable
from perfctl.records.sass import KernelCode, Listed, Parameter

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.count.find import Code
    from perfctl.records.sass import Instruction

_SMALL = 4 << 20
"""Bytes of a file that is hashed each time."""
_HINTED = 24
_TRIED = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """What the counts of the blocks depend on, beside the code."""

    kernel: str
    arch: str | None
    closed_libraries: bool
    grid: Size | None
    block: Size | None
    arguments: tuple[tuple[str, int], ...]
    shape: Size | None


@dataclass(frozen=True, slots=True)
class Analysed:
    """One kernel's blocks and loops."""

    kernel: KernelCode
    name: str
    code: CodeCounts
    basis: dict[str, str]
    """Loop -> where its turns come from."""
    hints: dict[str, str]
    """Loop -> which arguments would tell its turns."""
    dynamic_shared_bytes: int | None
    tool: str
    """The disassembler, with its version."""
    identity: tuple[str, int, int]
    """Its path, bytes and time of change: as long as they stay, no tool is looked for or started."""
    closed: bool


def analysed(file: Path, request: Request) -> Analysed:
    """The kernel that was asked for: from the cache, or read now."""
    licences.check(file, licences.is_closed(licences.names_of(file)), request.closed_libraries)
    folder = None if os.environ.get(entries.OFF) or not _may_be_code(file) else cache_folder()
    key = ""
    if folder is not None:
        key = entries.digest(
            content_of(file, folder),
            file.name,
            codec.encode(request, Request),
            own_code(),
            os.environ.get("PATH"),
            sys.prefix,
        )
        known: Analysed | None = entries.read(folder, key, Analysed)
        if known is not None and known.identity == _identity(known.identity[0]):
            return known
    found = _read(file, request, folder)
    if folder is not None:
        entries.write(folder, key, Analysed, found)
    return found


def _identity(tool: str) -> tuple[str, int, int]:
    try:
        facts = _facts(Path(tool))
    except OSError:
        return tool, 0, 0
    return tool, *facts[:2]


def _may_be_code(file: Path) -> bool:
    """Whether it is worth the time to hash it: a large file that is no ELF file or container is not read at all."""
    try:
        if file.is_dir() or file.stat().st_size <= _SMALL:
            return True
        with file.open("rb") as stream:
            return stream.read(4) in (b"\x7fELF", b"\x50\xed\x55\xba")
    except OSError:
        return False


def cache_folder() -> Path | None:
    with suppress(OSError, RuntimeError):  # no home folder
        return user_folder("XDG_CACHE_HOME", "~/.cache") / "counts"
    return None


def content_of(file: Path, folder: Path) -> str:
    """SHA-256 of a file; of a folder of Triton's cache, of its files' names, sizes and times."""
    if file.is_dir():
        listed = sorted((str(one), *_facts(one)) for one in file.rglob("*.cubin"))
        return entries.digest("folder", listed)
    with readable(file, "code"):
        facts = _facts(file)
        if facts[0] <= _SMALL:
            return hashlib.sha256(file.read_bytes()).hexdigest()
        key = entries.digest("content of", str(file.resolve()), *facts)
        known: str | None = entries.read(folder, key, str)
        if known is None:
            with file.open("rb") as stream:
                known = hashlib.file_digest(stream, "sha256").hexdigest()
            entries.write(folder, key, str, known)
    return known


def _facts(file: Path) -> tuple[int, int, int]:
    facts = file.stat()
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


@cache
def own_code() -> str:
    """The sizes and times of the code that counts: in a checkout it changes without perfctl's version."""
    from perfctl.orchestrator.analyse.derived.code import records
    from perfctl.parsers import sass

    folders = (Path(records.__file__).parent, Path(next(iter(sass.__path__))), Path(__file__).parent)
    return entries.digest([(str(file), *_facts(file)) for folder in folders for file in sorted(folder.glob("*.py"))])


def _read(file: Path, request: Request, folder: Path | None) -> Analysed:
    from perfctl.orchestrator.actions.count import find
    from perfctl.orchestrator.launch.code import binaries

    code = find.Code(file, request.arch, closed_libraries=request.closed_libraries)
    chosen = find.choose(_listed(code, folder), request.kernel, file)
    kernel = find.named_parameters(chosen, file)
    arguments = _by_offset(kernel, request)
    with code.cubin(chosen.number, chosen.place) as cubin:
        text = binaries.disassemble(cubin, kernel.symbol)
    tool = binaries.find("nvdisasm")
    said = f"nvdisasm {tool.version}".strip()
    return _summary(kernel, chosen, text, request, arguments, (said, tool.identity), code.closed)


def _listed(code: Code, folder: Path | None) -> tuple[Listed, ...]:
    """The kernels of a program or library are kept, too: to find one, all of its code is unpacked."""
    if folder is None or code.kind != "host" or code.path.stat().st_size < _SMALL:
        return code.listed()
    key = entries.digest("kernels of", content_of(code.path, folder), code.arch, own_code())
    known: tuple[Listed, ...] | None = entries.read(folder, key, tuple[Listed, ...])
    if known is None:
        known = code.listed()
        entries.write(folder, key, tuple[Listed, ...], known)
    return known


def _summary(
    kernel: KernelCode,
    chosen: Listed,
    text: str,
    request: Request,
    arguments: Mapping[int, int],
    tool: tuple[str, tuple[str, int, int]],
    closed: bool,
) -> Analysed:
    from perfctl.orchestrator.analyse.derived.code import blocks, turns
    from perfctl.parsers.sass import nvdisasm

    instructions = nvdisasm.parse(text, kernel.name)
    block = request.block or kernel.block
    launch = turns.constant_bank(kernel.arch, block or (), request.grid or (), arguments)
    code = blocks.summarise(instructions, launch)
    unlaunched = turns.constant_bank(kernel.arch, block or (), request.grid or (), {})
    sources = {_said(kernel, arguments): code}  # the last one that already tells a loop's turns is where they come from
    sources |= {
        source: blocks.summarise(instructions, known)
        for source, known in (("block and grid", unlaunched), ("the code", {}))
    }
    basis = {loop.name: source for source, one in sources.items() for loop in _loops(one) if loop.turns is not None}
    hints = _hints(instructions, kernel, launch, code)
    return Analysed(kernel, chosen.name, code, basis, hints, chosen.dynamic_shared_bytes, *tool, closed)


def _loops(code: CodeCounts) -> list[CodeLoop]:
    return [loop for function in code.functions for loop in function.loops]


def _by_offset(kernel: KernelCode, request: Request) -> dict[int, int]:
    """Byte of constant bank 0 -> value, of the arguments that are given."""
    wanted = dict(request.arguments)
    if request.shape is not None:
        wanted = _shape(kernel, request.shape) | wanted
    found: dict[int, int] = {}
    for word, value in wanted.items():
        one = next((each for each in kernel.parameters if word in (each.name, str(each.place))), None)
        if one is None:
            named = ", ".join(
                f"{each.place}{f' ({each.name})' if each.name else ''}: {each.size} bytes" for each in kernel.parameters
            )
            raise UsageError(f"`arguments`: there is no argument {word}", f"This kernel takes {named or 'none'}")
        if one.size not in (4, 8) or not -(1 << 8 * one.size - 1) <= value < 1 << 8 * one.size:
            raise UsageError(f"`arguments`: {value:,} is not a value of argument {word}, which has {one.size} bytes")
        found |= {one.offset + 4 * part: value >> 32 * part & 0xFFFFFFFF for part in range(one.size // 4)}
    return found


def _shape(kernel: KernelCode, shape: Size) -> dict[str, int]:
    """The arguments that are called M, N and K."""
    names = {one.name.lower(): one.name for one in kernel.parameters if one.name}
    found = {names[letter]: side for letter, side in zip("mnk", shape, strict=True) if letter in names}
    if not found:
        said = f"its arguments are {', '.join(names.values())}" if names else "the code does not name its arguments"
        raise UsageError(
            f"`shape`: no argument is called M, N or K; {said}", "Say which argument is what: `arguments` PLACE=VALUE"
        )
    return found


def _said(kernel: KernelCode, arguments: Mapping[int, int]) -> str:
    """ "K = 256": the arguments that were given."""
    words = [
        f"{one.name or f'argument {one.place}'} = {arguments[one.offset]:,}"
        for one in kernel.parameters
        if one.offset in arguments
    ]
    return ", ".join(words)


def _hints(
    instructions: tuple[Instruction, ...], kernel: KernelCode, launch: Mapping[int, int], code: CodeCounts
) -> dict[str, str]:
    """Which whole-number arguments would tell the turns of the loops for which they are not known: found by trying."""
    from perfctl.orchestrator.analyse.derived.code import blocks

    lacking = {loop.name for loop in _loops(code) if loop.turns is None}
    numbers = [one for one in kernel.parameters if one.size == 4 and one.offset not in launch][:_HINTED]
    if not lacking or not numbers:
        return {}

    def told(given: list[Parameter]) -> set[str]:
        tried = blocks.summarise(instructions, {**launch, **{one.offset: _TRIED for one in given}})
        return lacking - {loop.name for loop in _loops(tried) if loop.turns is None}

    if not told(numbers):
        return {}
    found: dict[str, str] = {}
    for one in numbers:
        for name in told([one]):
            found.setdefault(name, f"`arguments` {one.name or one.place}=VALUE")
    return found
