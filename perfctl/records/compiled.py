"""What torch.compile made of a step, on a machine without a GPU."""

from __future__ import annotations

from dataclasses import dataclass


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
