"""Grids, tiles and multiplies that follow from a kernel's name and its layer's shape.

Verified on public measurements of cuDNN 8.9 and cuBLAS (fp32 forward on a V100, a T4 and two A100);
``scripts/proof/neusight.py`` repeats that. The same arithmetic for tensor-core kernels that print
their tile is not verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from perfctl.orchestrator.counts.kernels.names import Algorithm

Grid = tuple[int, int, int]
WINOGRAD_IMAGES = 16
"""The transforms of the Winograd that is not fused work on this many images at a time."""
WINOGRAD_PRODUCTS = 36
"""Products of F(4x4,3x3), which its grid has in z."""
FUSED_CHANNELS = 32
"""Output channels, and Winograd tiles, of one thread block of the fused Winograd."""
WHOLE = 1e-6
"""Counts that are whole multiples of each other are no further apart."""
STEP = 8
"""Elements of the sum that a tile of ``sgemm`` takes at a time; each slice of a ``sliced1xS``
kernel takes as many."""
_SLICED = re.compile(r"_sliced1x(\d+)")
_SWIZZLES = (1, 2, 4, 8)
"""CUTLASS lays this many rows of tiles beside each other (``GemmIdentityThreadblockSwizzle``)."""


@dataclass(frozen=True, slots=True)
class GemmShape:
    """A product of (m x k) and (k x n), ``batch`` times. A Linear layer: m rows, n outputs,
    k inputs."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def macs(self) -> int:
        """Multiply-adds on paper."""
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class ConvShape:
    """One 2-D convolution, forward."""

    batch: int
    in_channels: int
    out_channels: int
    out_h: int
    out_w: int
    kernel_h: int
    kernel_w: int
    groups: int = 1
    same_size: bool = False
    """Stride 1 and an output as large as the input: the gradient of the input is then a convolution
    of the same size."""

    @property
    def pixels(self) -> int:
        """Output positions of all images: the rows of the implicit product."""
        return self.batch * self.out_h * self.out_w

    @property
    def depth(self) -> int:
        """Multiply-adds of one output."""
        return self.in_channels // self.groups * self.kernel_h * self.kernel_w

    @property
    def macs(self) -> int:
        """Multiply-adds on paper."""
        return self.pixels * self.out_channels * self.depth


def up(length: int, step: int | None) -> int:
    """Rounded up to whole steps; as it is without a step."""
    return -(-length // step) * step if step else length


def slices_of(name: str) -> int:
    """Slices of a thread block that share one tile along the sum: 4 for ``sliced1x4``, else 1."""
    found = _SLICED.search(name)
    return int(found[1]) if found else 1


def summed(length: int, parts: int, step: int | None) -> int:
    """A sum's length in ``parts`` parts of whole steps: every part is rounded up by itself, the
    shorter last one too."""
    part = max(ceil(length / max(parts, 1)), 1)
    whole, rest = divmod(length, part)
    return whole * up(part, step) + up(rest, step)


@dataclass(frozen=True, slots=True)
class Tiling:
    """One way in which a kernel's tiles cover a product."""

    shape: GemmShape
    sides: tuple[int, int]
    """Of a tile, along the product's rows and columns."""
    parts: int
    """Parts of the sum, each for thread blocks of its own (split-K)."""

    @property
    def values(self) -> int:
        """Of all tiles, those beyond the product's edges included, and all products of a batch."""
        (along_rows, along_columns), shape = self.sides, self.shape
        return shape.batch * up(shape.m, along_rows) * up(shape.n, along_columns)

    def __str__(self) -> str:
        shape, (along_rows, along_columns) = self.shape, self.sides
        times = f"{shape.batch:,} products x " if shape.batch > 1 else ""
        tiles = f"ceil({shape.m:,} / {along_rows}) x ceil({shape.n:,} / {along_columns}) tiles"
        return f"{times}{tiles} x {along_rows} x {along_columns}"


def tilings(
    shape: GemmShape,
    tile: tuple[int, int],
    grid: Grid | None,
    scale: float | None = None,
    swizzled: bool = False,
) -> Iterator[Tiling]:
    """The tilings that a grid allows, likeliest first; without a grid those that ``scale`` allows,
    else both unsplit.

    cuBLAS works column by column, so that a tile's first side mostly lies along the columns.
    ``scale``: FMUL of one slice, a multiply by alpha for each value and part. ``swizzled``:
    CUTLASS's order of thread blocks.
    """
    for sides in dict.fromkeys((tile[::-1], tile)):
        rows, columns = ceil(shape.m / sides[0]), ceil(shape.n / sides[1])
        values = Tiling(shape, sides, 1).values
        if grid is None:
            parts = scale / values if scale else 1.0
            if 1 - WHOLE <= parts <= shape.k and abs(parts - round(parts)) < WHOLE * parts:
                yield Tiling(shape, sides, round(parts))
        elif grid[2] % shape.batch == 0 and covers(grid, rows, columns, swizzled):
            yield Tiling(shape, sides, grid[2] // shape.batch)
        elif grid[0] * grid[1] * grid[2] == rows * columns * shape.batch:
            yield Tiling(shape, sides, 1)


def covers(grid: Grid, rows: int, columns: int, swizzled: bool = False) -> bool:
    """True where the grid's x and y have a thread block for each tile; ``swizzled``: or lie in
    CUTLASS's order."""
    if grid[0] * grid[1] == rows * columns:
        return True
    both = ((rows, columns), (columns, rows))
    return swizzled and any(
        grid[:2] == (along * by, ceil(across / by)) for along, across in both for by in _SWIZZLES
    )


@dataclass(frozen=True, slots=True)
class ExpectedGrid:
    """What a kernel's name and its layer's shape say that one launch does."""

    matches: bool
    multiplies: int
    """Multiplies of the launch (each with its add: half of its FLOPs), padding included."""
    factor: float
    """``multiplies`` / multiply-adds on paper: above 1 for padding, below 1 for Winograd."""
    rule: str
    family: str
    """Which formula: implicit gemm, winograd fused, winograd not fused, gemm."""


def expected_grid(
    algorithm: Algorithm, grid: Grid, shape: GemmShape | ConvShape
) -> ExpectedGrid | None:
    """Thread blocks and multiplies of one launch; None where no formula is known for the kernel.

    Forward only: the gradients of a convolution use other shapes, and a gradient of a Linear layer
    is a product with a shape of its own. In a layer with Winograd transforms the product kernel has
    36 (or 16) in the grid's z, which tells it from other products.
    """
    if algorithm.role != "main" or algorithm.direction in ("grad_input", "grad_weight"):
        return None
    if isinstance(shape, GemmShape):
        return _gemm(algorithm, grid, shape) if algorithm.family == "gemm" else None
    if shape.groups != 1:
        return None
    match algorithm.family:
        case "winograd":
            return _winograd_fused(algorithm, grid, shape)
        case "conv":
            return _implicit(algorithm, grid, shape)
        case "gemm":
            return _winograd_products(algorithm, grid, shape) or _pointwise(algorithm, grid, shape)
    return None


def _implicit(algorithm: Algorithm, grid: Grid, shape: ConvShape) -> ExpectedGrid | None:
    """ceil(N P Q / tm) x ceil(Cout / tn) blocks of tm x tn outputs, each over the whole depth."""
    if algorithm.tile is None or algorithm.method not in ("implicit gemm", "explicit gemm"):
        return None
    m, n, k = algorithm.tile
    rows, columns = ceil(shape.pixels / m), ceil(shape.out_channels / n)
    ctas, depth = rows * columns, up(shape.depth, k)
    multiplies = ctas * m * n * depth
    matches = grid[:2] == (rows, columns) or (
        bool(algorithm.tensor_core) and grid[1::-1] == (rows, columns)
    )
    blocks = (
        f"ceil({shape.pixels:,} output positions / {m}) x ceil({shape.out_channels} channels / "
        f"{n}) = {ctas:,} blocks"
    )
    rule = f"{blocks} x {m} x {n} x {depth:,} = {multiplies:,} multiplies"
    return _made(matches, multiplies, shape.macs, rule, "implicit gemm")


def _winograd_fused(algorithm: Algorithm, grid: Grid, shape: ConvShape) -> ExpectedGrid | None:
    """F(2x2,3x3) in one kernel: a block is 32 tiles of 2 x 2 outputs by 32 channels, 16
    multiplies each."""
    if (
        algorithm.winograd_block is None
        or algorithm.winograd != (2, 3)
        or (shape.kernel_h, shape.kernel_w) != (3, 3)
    ):
        return None
    images, rows, columns = algorithm.winograd_block
    wanted = (
        ceil(shape.batch / images) * ceil(shape.out_channels / FUSED_CHANNELS),
        ceil(shape.out_h / (2 * rows)),
        ceil(shape.out_w / (2 * columns)),
    )
    ctas, tiles = prod(wanted), images * rows * columns
    multiplies = ctas * tiles * FUSED_CHANNELS * 16 * shape.in_channels
    blocks = (
        f"{wanted[0]} x {wanted[1]} x {wanted[2]} blocks x {tiles} tiles x {FUSED_CHANNELS} "
        "channels"
    )
    rule = f"{blocks} x 16 multiplies x {shape.in_channels} channels = {multiplies:,} multiplies"
    return _made(wanted == grid, multiplies, shape.macs, rule, "winograd fused")


def _winograd_products(algorithm: Algorithm, grid: Grid, shape: ConvShape) -> ExpectedGrid | None:
    """F(4x4,3x3), transforms apart: 36 products of tiles x Cin by Cin x Cout."""
    if (
        grid[2] != WINOGRAD_PRODUCTS
        or algorithm.tile is None
        or (shape.kernel_h, shape.kernel_w) != (3, 3)
    ):
        return None
    m, n, k = algorithm.tile
    tiles = (
        WINOGRAD_IMAGES
        * ceil(shape.batch / WINOGRAD_IMAGES)
        * ceil(shape.out_h / 4)
        * ceil(shape.out_w / 4)
    )
    wanted, sides = _blocks(tiles, shape.out_channels, m, n, grid)
    ctas, depth = WINOGRAD_PRODUCTS * prod(wanted), up(shape.in_channels, k)
    multiplies = ctas * m * n * depth
    blocks = (
        f"ceil({tiles:,} tiles / {sides[0]}) x ceil({shape.out_channels} channels / {sides[1]}) = "
        f"{ctas:,} blocks"
    )
    rule = f"36 products x {blocks} x {m} x {n} x {depth:,} = {multiplies:,} multiplies"
    return _made(grid[:2] == wanted, multiplies, shape.macs, rule, "winograd not fused")


def _pointwise(algorithm: Algorithm, grid: Grid, shape: ConvShape) -> ExpectedGrid | None:
    """A convolution as a plain product (1 x 1, or after im2col): all images at once, or one product
    an image."""
    found = _gemm(algorithm, grid, GemmShape(shape.pixels, shape.out_channels, shape.depth))
    if found is not None and grid[2] == shape.batch and not (found.matches and grid[2] == 1):
        image = GemmShape(shape.out_h * shape.out_w, shape.out_channels, shape.depth, shape.batch)
        apart = _gemm(algorithm, grid, image)
        return apart if apart is not None and apart.matches else found
    return found


def _gemm(algorithm: Algorithm, grid: Grid, shape: GemmShape) -> ExpectedGrid | None:
    """ceil(m / tx) x ceil(n / ty) blocks in either orientation; what is left in z is the batch,
    then split-K."""
    if algorithm.tile is None:
        return None
    m, n, k = algorithm.tile
    wanted, sides = _blocks(shape.m, shape.n, m, n, grid)
    split = max(1, grid[2] // shape.batch)
    ctas = shape.batch * prod(wanted)
    depth = summed(shape.k, split, k)
    multiplies = ctas * m * n * depth
    times = f"{shape.batch} products x " if shape.batch > 1 else ""
    tiles = (
        f"{times}ceil({shape.m:,} / {sides[0]}) x ceil({shape.n:,} / {sides[1]}) = {ctas:,} tiles "
        f"x {m} x {n}"
    )
    shared = f", the sum split over {split} blocks" if split > 1 else ""
    rule = f"{tiles} x {depth:,} = {multiplies:,} multiplies{shared}"
    matches = grid[0] * grid[1] == prod(wanted) and grid[2] % shape.batch == 0
    return _made(matches, multiplies, shape.macs, rule, "gemm")


def _blocks(
    rows: int, columns: int, m: int, n: int, grid: Grid
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Blocks along the grid's x and y, and the tile's sides along rows and columns.

    cuBLAS works column by column, so a tile's first side mostly lies along the outputs. That
    orientation is the answer where no orientation gives the grid.
    """
    across, along = (ceil(columns / m), ceil(rows / n)), (ceil(rows / m), ceil(columns / n))
    choices = {across: (n, m), across[::-1]: (n, m), along: (m, n), along[::-1]: (m, n)}
    # equal sides before an equal number of blocks before none of both
    return max(
        choices.items(),
        key=lambda choice: (choice[0] == grid[:2], prod(choice[0]) == prod(grid[:2])),
    )


def _made(matches: bool, multiplies: int, macs: int, rule: str, family: str) -> ExpectedGrid:
    return ExpectedGrid(matches, multiplies, multiplies / macs, f"{rule} (paper {macs:,})", family)
