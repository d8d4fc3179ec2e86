"""PyTorch's kernels over lists of tensors: optimizers, gradient clipping and other ``_foreach_`` operations.

They cut every tensor into chunks and give each launch as many chunks and tensors as fit (``MultiTensorApply.cuh``), so a launch's
grid and the sizes of the parameters tell its elements. ``elementwise.csv`` holds what they execute for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import ceil, prod

from perfctl.orchestrator.analyse.derived.functors import functor_of
from perfctl.orchestrator.analyse.derived.pointwise import of_elements, per_element
from perfctl.orchestrator.analyse.derived.records import Derived, Launch
from perfctl.records.paper import OpShape

CHUNK = 65_536
"""Elements of a chunk."""
_LISTS = re.compile(
    r"(TensorListMetadata|TensorListScalarListMetadata|FusedOptimizerTensorListMetadata)<(?:[\w:]+, ?)?(?:\(int\))?([1-5])>"
)
_MOST: Mapping[str, tuple[tuple[int, tuple[int, ...]], ...]] = {
    "Tensor": ((320, (110, 64, 48, 36, 30)), (2240, (770, 448, 336, 252, 210))),
    "Scalar": ((320, (96, 64, 48, 36, 30)), (2240, (672, 448, 336, 252, 210))),
}
"""Chunks of a launch at most, and its tensors by the number of lists: built for CUDA 12 and older, for CUDA 13 and newer."""


def over_parameters(launch: Launch, tensors: Sequence[int] | None, capability: str | None = None) -> Derived | None:
    """Instructions of a kernel over lists as long as ``tensors`` (elements of each parameter, in order; None: not known)."""
    lists = lists_of(launch.name)
    if lists is None or not tensors or launch.grid is None:
        return None
    functor = functor_of(launch.name)
    counts = per_element(functor, capability) if functor is not None else None
    if counts is None:
        return None
    fits = {
        elements
        for blocks, limits in _MOST["Scalar" if "Scalar" in lists[1] else "Tensor"]
        for chunks, elements in packed(tensors, limits[int(lists[2]) - 1], blocks)
        if chunks == launch.grid[0]
    }
    return of_elements("optimizer", counts, fits.pop()) if len(fits) == 1 else None


@lru_cache(maxsize=8192)
def lists_of(name: str) -> re.Match[str] | None:
    """What a kernel's name says of the lists that it works on; None for a kernel over no lists."""
    return _LISTS.search(name)


def packed(tensors: Iterable[int], most_tensors: int, most_chunks: int) -> Iterator[tuple[int, int]]:
    """(chunks, elements) of each launch."""
    blocks = held = elements = 0
    for size in tensors:
        held += 1
        chunks = ceil(size / CHUNK)
        for chunk in range(chunks):
            last = chunk == chunks - 1
            blocks += 1
            elements += size - chunk * CHUNK if last else CHUNK
            if blocks == most_chunks or (held == most_tensors and last):
                yield blocks, elements
                blocks = elements = 0
                held = 0 if last else 1
    if blocks:
        yield blocks, elements


def parameters_of(ops: Iterable[OpShape]) -> tuple[int, ...] | None:
    """Elements of each parameter in order of use; None where a module's own parameters are not read off its operations' inputs."""
    totals: dict[str, int] = {}
    seen: dict[str, set[int]] = {}
    for op in sorted(ops, key=lambda op: op.position):
        if op.direction == "forward" and op.parameters:
            totals[op.layer] = op.parameters
            seen.setdefault(op.layer, set()).update(prod(shape) for shape in op.inputs if shape)
    found: list[int] = []
    for layer, total in totals.items():
        sizes = seen[layer]
        pairs = {(size, total - size) for size in sizes if total - size in sizes and size >= total - size}
        if total in sizes:
            pairs.add((total, 0))
        if len(pairs) != 1:
            return None
        found += [size for size in pairs.pop() if size]
    return tuple(found)
