"""What is asked of compilers on a machine without a GPU, and what torch.compile made of a step."""

from __future__ import annotations

from dataclasses import dataclass

WARPS = 4
"""Of a thread block, where nothing is said: as Triton."""


@dataclass(frozen=True, slots=True)
class KernelAsked:
    """Which Triton kernel, and what of its arguments is known when it is compiled."""

    file: str
    kernel: str
    targets: tuple[int, ...]
    """90 for sm_90."""
    signature: tuple[tuple[str, str], ...]
    """Argument -> its type as Triton writes it: "*fp32", "i32"; with ":16" behind it, a multiple of 16, with ":1" not known to
    be. A pointer without either is a multiple of 16, as torch allocates."""
    constants: tuple[tuple[str, str], ...] = ()
    """constexpr argument -> its value as Python writes it."""
    warps: int = WARPS
    stages: int | None = None


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One graph that torch.compile hands to Inductor."""

    direction: str
    """forward or backward."""
    operations: int
    """Of Inductor's own graph, before it fuses them."""
    kernels: int
    """Kernels that Inductor generates."""
    library_calls: int
    """Beside them: matrix products and convolutions."""


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """One step of a model under torch.compile, without data: Inductor's kernels are those of its CPU backend."""

    graphs: tuple[CompiledGraph, ...] | None
    """None where Inductor could not lower a graph."""
    breaks: tuple[tuple[str, int], ...]
    """Why one graph stops and another begins -> how often."""
    torch: str
    """Version."""
    problem: str | None = None
    """Where the step stopped, or why there are no graphs."""
    broke: bool = False
    """The step stopped, so that breaks are not all."""
