"""Machine code of GPU kernels, as far as counting its instructions needs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction."""

    address: int
    """Bytes from the start of the kernel's code."""
    predicate: str
    """Register that decides whether it runs: "P0", "!P0", "UP1", "!PT"; "" where it always runs."""
    opcode: str
    """With its suffixes: "HMMA.16816.F32"."""
    operands: tuple[str, ...]
    targets: tuple[int, ...] = ()
    """Addresses that it names: of a branch, a call, a table of branches or a place where threads meet."""
    line: str = ""
    """Source file and line, as "kernel.py:12"; "" where the code was built without them."""

    @property
    def base(self) -> str:
        """The opcode without suffixes."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a kernel."""

    place: int
    """From 0."""
    offset: int
    """Bytes from the start of constant bank 0."""
    size: int
    """Bytes."""
    name: str = ""
    """As in the source; "" where the code does not hold it."""


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel of a file of machine code, as its headers describe it."""

    name: str
    """As the linker knows it, mangled."""
    arch: int
    """80 for sm_80."""
    symbol: int
    """Index in the symbol table, by which nvdisasm finds it."""
    registers: int | None = None
    """Of a thread; None where the file does not say."""
    shared_bytes: int = 0
    """Static shared memory of a block."""
    stack_bytes: int | None = None
    """Local memory of a thread for arrays and spilled registers; None where the file does not say."""
    block: tuple[int, int, int] | None = None
    """Threads of a block, where the code requires one size."""
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """One kernel, as a list shows it."""

    kernel: KernelCode
    name: str
    """Demangled."""
    number: int = 0
    """Which piece of a program or library holds it."""
    place: str = ""
    """File of a Triton cache that holds it."""
    dynamic_shared_bytes: int | None = None
    """Shared memory that the launch adds, where metadata say so."""


@dataclass(frozen=True, slots=True)
class Element:
    """One piece of GPU code in a program or library."""

    kind: str
    """elf or ptx."""
    arch: int
    number: int
    """From 1, among all pieces of machine code, as cuobjdump numbers them; 0 for PTX."""
    container: tuple[int, int]
    """Where the container with its header begins in the file, and where it ends."""
    place: tuple[int, int]
    """Where the piece with its header begins in the file, and where it ends."""
