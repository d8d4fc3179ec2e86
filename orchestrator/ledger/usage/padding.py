"""Multiply-adds that a product executes because its tiles reach over its output."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from perfctl.orchestrator.counts.kernels.names import recognise
from perfctl.records.report import Kernel


class Padding(NamedTuple):
    """One product and the tiles that its kernel covers it with."""

    rows: int
    columns: int
    tile: tuple[int, int]
    """Along rows and along columns, as torch has them."""

    @property
    def factor(self) -> float:
        """Executed / paper multiply-adds: outputs of all tiles over outputs of the product, 1
        or more."""
        (high, wide), rows, columns = self.tile, self.rows, self.columns
        return ceil(rows / high) * high * ceil(columns / wide) * wide / (rows * columns)


def is_product(kernel: Kernel) -> bool:
    """A matrix product by its name, not the sum of its parts or a copy before it."""
    said = recognise(kernel.name)
    return said.family == "gemm" and said.role == "main"


def padding(kernel: Kernel, rows: int, columns: int, *, amd: bool) -> Padding | None:
    """Tiles over a product of ``rows`` x ``columns`` outputs; None where the name states none or
    their direction is open.

    BLAS libraries keep matrices by columns, so a product of torch is computed transposed: the first
    side of the tile lies along torch's columns (features), the second along its rows (tokens).
    Tensile's grids confirm that: MT256x192 for 15,360 x 6,144 launches 24 x 80 work-groups.
    Elsewhere the grid decides, and without one nothing does, unless both ways need as many tiles.
    ``amd``: the grid counts work-items, as HIP reports it, not blocks.
    """
    said = recognise(kernel.name)
    if said.tile is None or not rows or not columns:
        return None
    first, second, _ = said.tile
    turned, straight = (
        Padding(rows, columns, (second, first)),
        Padding(rows, columns, (first, second)),
    )
    if turned.factor == straight.factor or kernel.name.startswith("Cijk_"):
        return turned
    blocks = _blocks(kernel, amd=amd)
    fits = [one for one in (turned, straight) if blocks and blocks == _tiles(one)]
    return fits[0] if len(fits) == 1 else None


def _tiles(one: Padding) -> int:
    return ceil(one.rows / one.tile[0]) * ceil(one.columns / one.tile[1])


def _blocks(kernel: Kernel, *, amd: bool) -> int | None:
    grid: Sequence[int | None] = (kernel.grid_x, kernel.grid_y, kernel.grid_z)
    block: Sequence[int | None] = (kernel.block_x, kernel.block_y, kernel.block_z)
    if None in grid or (amd and None in block):
        return None
    threads = prod(side or 1 for side in block) if amd else 1
    return prod(side or 1 for side in grid) // (threads or 1)
