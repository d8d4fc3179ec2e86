"""Kernels without products: what moves or compares values, and PyTorch's elementwise kernels, an element at a time.

Sources: counters of an A100 (``add`` is a + alpha b: one FFMA an element, and no FADD), and the kernels of ATen.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from math import ceil

from perfctl.orchestrator.analyse.derived.records import Derived, Launch
from perfctl.orchestrator.analyse.kernels.names import Algorithm

_MOVES = ("copy", "layout")
_COMPARES = re.compile(
    r"max_pool_forward|max_?pool.*forward|launch_clamp_scalar|clamp_(?:min|max)_scalar|threshold_kernel|comparefunctor|fillfunctor"
    r"|(?:^|::)relu_?kernel|masked_fill|bool_tensor|isnan|argmax|tril_kernel|triu_kernel|triu_tril_kernel"
)
_FUNCTORS = (
    (re.compile(r"cudafunctor(?:onself|onother)?_add<float>"), "ffma"),
    (re.compile(r"(?:binary_internal::|::)mulfunctor<float"), "fmul"),
)
"""Functor of an elementwise kernel in fp32 -> its one instruction for an element."""
_PER_BLOCK = re.compile(
    r"(?:^|::)(?:unrolled_|vectorized_|legacy_)?elementwise_kernel<(?:\(int\))?(\d+)(?:, ?(?:\(int\))?(\d+))?"
)
_ITEMS = (512, 1024, 2048)
"""Elements of a block of vectorized and unrolled kernels: 128 threads of 4, 8 or 16."""


def pointwise(launch: Launch, algorithm: Algorithm, sizes: Collection[int]) -> Derived | None:
    """Instructions of a kernel without products; ``sizes``: elements of the tensors that it may work on."""
    name = launch.name.lower()
    if algorithm.family in _MOVES or algorithm.role in ("layout", "offsets"):
        return Derived("moves values", "moves values: no FADD, FMUL or FFMA", 0, 0, 0)
    if _COMPARES.search(name):
        return Derived("compares values", "compares and fills: no FADD, FMUL or FFMA", 0, 0, 0)
    instruction = next((found for pattern, found in _FUNCTORS if pattern.search(name)), None)
    found = _PER_BLOCK.search(name)
    if instruction is None or found is None or launch.grid is None:
        return None
    vector = "vectorized_" in name or "unrolled_" in name
    per_block = _ITEMS if vector else (int(found[1]) * int(found[2] or 1),)
    fits = {size for size in sizes for each in per_block if ceil(size / each) == launch.grid[0]}
    if len(fits) != 1:
        return None
    elements = fits.pop()
    rule = f"one {instruction.upper()} for each of {elements:,} elements"
    ffma, fmul = (elements if instruction == name else 0 for name in ("ffma", "fmul"))
    return Derived("elementwise", rule, ffma, fmul, 0)
