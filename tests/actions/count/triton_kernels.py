"""Kernels of our own in Triton. Imported where Triton is installed; compiled for a GPU that need not be there."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TILE_M, TILE_N, TILE_K, BLOCK = 64, 64, 32, 1024
WARPS = 4


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def product(a, b, c, M, N, K, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    columns = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    steps = tl.arange(0, TILE_K)
    left, right = a + rows[:, None] * K + steps[None, :], b + steps[:, None] * N + columns[None, :]
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for _ in range(0, K, TILE_K):
        total += tl.dot(tl.load(left), tl.load(right))
        left += TILE_K
        right += TILE_K * N
    tl.store(c + rows[:, None] * N + columns[None, :], total)


def compile_all(arch: int) -> None:
    """Into Triton's cache folder."""
    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    _compile(add, types, {"BLOCK": BLOCK}, arch)
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
    tiles = {"TILE_M": TILE_M, "TILE_N": TILE_N, "TILE_K": TILE_K}
    types |= dict.fromkeys(tiles, "constexpr")
    _compile(product, types, tiles, arch)


def compile_fixed(arch: int, k: int, **options: int) -> None:
    """``product`` with its K in the code."""
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "M": "i32", "N": "i32", "K": "constexpr"}
    tiles = {"TILE_M": TILE_M, "TILE_N": TILE_N, "TILE_K": TILE_K}
    _compile(product, types | dict.fromkeys(tiles, "constexpr"), {"K": k, **tiles}, arch, **options)


def _compile(kernel: Any, types: dict[str, str], constants: dict[str, int], arch: int, **options: int) -> None:
    arguments = [name for name, kind in types.items() if kind != "constexpr"]
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(arguments))}
    source = ASTSource(kernel, types, constants, aligned)
    triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": WARPS, **options})
