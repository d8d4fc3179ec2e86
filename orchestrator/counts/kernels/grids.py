"""How whole tiles cover a layer's product: from a kernel's name, its grid and the layer's shape.

A formula says as which product a kernel computes a layer, and how that product's tiles lie in the
grid. Verified on public measurements of cuDNN 8.9 and cuBLAS (fp32 forward on a V100, a T4 and two
A100); ``scripts/proof/neusight.py`` repeats that. The same arithmetic for tensor-core kernels that
print their tile is not verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from perfctl.orchestrator.counts.kernels.names import Algorithm

Grid = tuple[int, int, int]
WINOGRAD_IMAGES = 16
"""Images on which the transforms of the Winograd that is not fused work at a time."""
WINOGRAD_PRODUCTS = 36
"""Products of F(4x4,3x3), which its grid has in z."""
FUSED_PRODUCTS = 16
"""Products of F(2x2,3x3), which each thread block of the fused Winograd computes."""
FUSED_CHANNELS = 32
"""Output channels, and Winograd tiles, of one thread block of the fused Winograd."""
WHOLE = 1e-6
"""Relative difference up to which counts are taken as whole multiples of each other."""
STEP = 8
"""Elements of the sum that a tile of ``sgemm`` takes at a time; each slice of a ``sliced1xS``
kernel takes as many."""
_SLICED = re.compile(r"_sliced1x(\d+)")
_SWIZZLES = (1, 2, 4, 8)
"""Rows of tiles that CUTLASS lays next to each other (``GemmIdentityThreadblockSwizzle``)."""


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
        """Estimated multiply-adds."""
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
    def is_3_by_3(self) -> bool:
        return (self.kernel_h, self.kernel_w) == (3, 3)

    @property
    def output_positions(self) -> int:
        """Output positions of all images: the rows of the implicit product."""
        return self.batch * self.out_h * self.out_w

    @property
    def macs_per_output(self) -> int:
        """Multiply-adds of one output."""
        return self.in_channels // self.groups * self.kernel_h * self.kernel_w

    @property
    def macs(self) -> int:
        """Estimated multiply-adds."""
        return self.output_positions * self.out_channels * self.macs_per_output

    @property
    def implicit_gemm(self) -> GemmShape:
        """The implicit product: output positions by channels, one product per group."""
        return GemmShape(
            self.output_positions,
            self.out_channels // self.groups,
            self.macs_per_output,
            self.groups,
        )

    @property
    def input_gradient_for_equal_sizes(self) -> ConvShape:
        """The convolution that computes the gradient of an input as large as the output."""
        return replace(self, in_channels=self.out_channels, out_channels=self.in_channels)

    @property
    def weight_gradient_gemm(self) -> GemmShape:
        """Channels out by weights of a channel, a sum over all outputs; one product per group."""
        return GemmShape(
            self.out_channels // self.groups,
            self.macs_per_output,
            self.output_positions,
            self.groups,
        )


def round_up(length: int, step: int | None) -> int:
    """Return the length rounded up to whole steps; unchanged without a step."""
    return -(-length // step) * step if step else length


def parse_slice_count(name: str) -> int:
    """Return the slices of a thread block that share one tile along the sum: 4 for ``sliced1x4``,
    else 1."""
    sliced = _SLICED.search(name)
    return int(sliced[1]) if sliced else 1


def compute_padded_split_k_length(length: int, parts: int, step: int | None) -> int:
    """Return a sum's length in ``parts`` parts of whole steps: every part is rounded up by itself,
    the shorter last one too."""
    part = max(ceil(length / max(parts, 1)), 1)
    full_parts, remainder = divmod(length, part)
    return full_parts * round_up(part, step) + round_up(remainder, step)


@dataclass(frozen=True, slots=True)
class Tiling:
    """One way in which a kernel's tiles cover a product."""

    shape: GemmShape
    sides: tuple[int, int]
    """Of a tile, along the product's rows and columns."""
    parts: int = 1
    """Parts of the sum, each for thread blocks of its own (split-K)."""
    step: int | None = None
    """Elements of the sum that are computed at a time; None where the name does not state it."""
    is_xmma: bool = False
    """True for cuBLAS's ``xmma_gemm_.._ffma``, of which every part takes one step at least, also
    where the others leave nothing of the sum (counted on an H100, CUDA 13.0)."""

    @property
    def tile_counts(self) -> tuple[int, int]:
        """Tiles along the rows and columns of one product."""
        return ceil(self.shape.m / self.sides[0]), ceil(self.shape.n / self.sides[1])

    @property
    def values(self) -> int:
        """Of all tiles, those beyond the product's edges included, and all products of a batch."""
        return self.shape.batch * prod(self.tile_counts) * prod(self.sides)

    @property
    def padded_k(self) -> int:
        """Length of the sum as it is computed: each part in whole steps."""
        k, length = self.shape.k, compute_padded_split_k_length(self.shape.k, self.parts, self.step)
        idle = self.parts - ceil(k / max(ceil(k / self.parts), 1))
        return length + (idle * (self.step or 1) if self.is_xmma else 0)

    @property
    def padded_macs(self) -> int:
        """Multiplies of the launch (each with its add: half of its FLOPs), padding included."""
        return self.values * self.padded_k

    def describe_tiles(self, row_label: str = "", column_label: str = "") -> str:
        """Return the tiles in words; ``row_label`` and ``column_label`` name what the product has
        along them."""
        shape, (along_rows, along_columns) = self.shape, self.sides
        times = f"{shape.batch:,} products x " if shape.batch > 1 else ""
        down = f"ceil({f'{shape.m:,} {row_label}'.strip()} / {along_rows})"
        across = f"ceil({f'{shape.n:,} {column_label}'.strip()} / {along_columns})"
        return f"{times}{down} x {across} tiles x {along_rows} x {along_columns}"

    def describe_arithmetic(
        self, estimated_macs: int, row_label: str = "", column_label: str = ""
    ) -> str:
        """Return the arithmetic of the multiplies, next to the estimated multiply-adds."""
        length = f"{self.padded_k:,}"
        if self.parts > 1 or self.padded_k != self.shape.k:
            parts = f" in {self.parts} parts" if self.parts > 1 else ""
            padded = f", padded to {length}" if self.padded_k != self.shape.k else ""
            length = f"(sum of {self.shape.k:,}{parts}{padded})"
        tiles = self.describe_tiles(row_label, column_label)
        return (
            f"{tiles} x {length} = {self.padded_macs:,} multiplies (estimated {estimated_macs:,})"
        )


def list_tilings(
    shape: GemmShape,
    tile: tuple[int, int],
    grid: Grid | None,
    fmul_per_slice: float | None = None,
    swizzled: bool = False,
) -> Iterator[Tiling]:
    """Yield the tilings that a grid allows, likeliest first; without a grid those that
    ``fmul_per_slice`` allows, else both unsplit.

    cuBLAS works column by column, so that a tile's first side mostly lies along the columns.
    ``fmul_per_slice``: FMUL of one slice, a multiply by alpha for each value and part.
    ``swizzled``: CUTLASS's order of thread blocks.
    """
    ways = [Tiling(shape, sides) for sides in dict.fromkeys((tile[::-1], tile))]
    if grid is None:
        for way in ways:
            parts = fmul_per_slice / way.values if fmul_per_slice else 1.0
            if 1 - WHOLE <= parts <= shape.k and abs(parts - round(parts)) < WHOLE * parts:
                yield replace(way, parts=round(parts))
        return
    split, remainder = divmod(grid[2], shape.batch)
    for way in ways:
        if not remainder and has_block_per_tile(grid, *way.tile_counts, swizzled):
            yield replace(way, parts=split)


def has_block_per_tile(
    grid: Grid, row_tiles: int, column_tiles: int, swizzled: bool = False
) -> bool:
    """Return whether the grid's x and y have a thread block for each tile; ``swizzled``: or lie in
    CUTLASS's order."""
    if grid[0] * grid[1] == row_tiles * column_tiles:
        return True
    both = ((row_tiles, column_tiles), (column_tiles, row_tiles))
    return swizzled and any(
        grid[:2] == (along * by, ceil(across / by)) for along, across in both for by in _SWIZZLES
    )


@dataclass(frozen=True, slots=True)
class TilePrediction:
    """How a kernel's tiles cover a layer, by its name, its grid and the layer's shape."""

    family: str
    """Formula that was used: implicit gemm, winograd fused, winograd not fused, gemm."""
    tilings: tuple[Tiling, ...]
    """All that the grid allows, likeliest first: they need the same multiplies where a grid was
    recorded. Empty if the grid contradicts the shape."""


def predict_forward_tiles(
    algorithm: Algorithm, grid: Grid | None, shape: GemmShape | ConvShape
) -> TilePrediction | None:
    """Return how tiles cover the layer in one launch; None if no formula is known for the kernel.

    Forward only: the gradients of a convolution use other shapes, and a gradient of a Linear layer
    is a product with a shape of its own. In a layer with Winograd transforms the product kernel has
    36 (or 16) in the grid's z, which tells it from other products. Without a grid, tiles that name
    and shape allow.
    """
    if algorithm.role != "main" or algorithm.direction in ("grad_input", "grad_weight"):
        return None
    if isinstance(shape, GemmShape):
        products = [shape]
    elif shape.groups != 1:
        return None
    elif algorithm.family == "winograd":
        return _predict_fused_winograd_tiles(algorithm, grid, shape)
    elif algorithm.family == "conv":
        return _predict_implicit_gemm_tiles(algorithm, grid, shape)
    elif (prediction := _predict_unfused_winograd_tiles(algorithm, grid, shape)) is not None:
        return prediction
    else:  # 1 x 1, or after im2col: one product per image, or all images at once
        image = GemmShape(
            shape.out_h * shape.out_w, shape.out_channels, shape.macs_per_output, shape.batch
        )
        is_by_image = grid is not None and grid[2] == shape.batch > 1
        products = [image, shape.implicit_gemm] if is_by_image else [shape.implicit_gemm]
    if algorithm.family != "gemm" or algorithm.tile is None:
        return None
    m, n, step = algorithm.tile
    is_xmma = _is_xmma_cuda_core_kernel(algorithm)
    ways = (way for product in products for way in list_tilings(product, (m, n), grid))
    fitting = (replace(way, step=step, is_xmma=is_xmma) for way in ways)
    return TilePrediction("gemm", tuple(fitting))


def _predict_implicit_gemm_tiles(
    algorithm: Algorithm, grid: Grid | None, shape: ConvShape
) -> TilePrediction | None:
    """Tiles of output positions by channels, each over the complete depth."""
    if algorithm.tile is None or algorithm.method not in ("implicit gemm", "explicit gemm"):
        return None
    m, n, step = algorithm.tile
    tiling = Tiling(shape.implicit_gemm, (m, n), step=step)
    fits = grid is None or grid[:2] == tiling.tile_counts
    if grid is not None and (algorithm.tensor_core or _is_xmma_cuda_core_kernel(algorithm)):
        fits |= grid[1::-1] == tiling.tile_counts
    return TilePrediction("implicit gemm", (tiling,) if fits else ())


def _predict_fused_winograd_tiles(
    algorithm: Algorithm, grid: Grid | None, shape: ConvShape
) -> TilePrediction | None:
    """F(2x2,3x3) in one kernel: a block is 32 tiles of 2 x 2 outputs by 32 channels, 16
    multiplies each."""
    if algorithm.winograd_block is None or algorithm.winograd != (2, 3) or not shape.is_3_by_3:
        return None
    tiling = build_fused_winograd_tiling(shape, algorithm.winograd_block)
    images, rows, columns = algorithm.winograd_block
    blocks = (
        ceil(shape.batch / images) * tiling.tile_counts[1],
        ceil(shape.out_h / (2 * rows)),
        ceil(shape.out_w / (2 * columns)),
    )
    return TilePrediction("winograd fused", (tiling,) if blocks == grid else ())


def build_fused_winograd_tiling(shape: ConvShape, block: tuple[int, int, int]) -> Tiling:
    """Return the 16 products of F(2x2,3x3), in blocks of images x rows x columns of tiles by 32
    channels."""
    images, rows, columns = block
    blocks = (
        ceil(shape.batch / images)
        * ceil(shape.out_h / (2 * rows))
        * ceil(shape.out_w / (2 * columns))
    )
    tiles = prod(block)
    product = GemmShape(blocks * tiles, shape.out_channels, shape.in_channels, FUSED_PRODUCTS)
    return Tiling(product, (tiles, FUSED_CHANNELS))


def convert_to_unfused_winograd_gemm(shape: ConvShape) -> GemmShape:
    """Return what F(4x4,3x3) multiplies between its transforms: tiles of 4 x 4 outputs, 16 images
    at a time, by channels; 36 products."""
    tiles = round_up(shape.batch, WINOGRAD_IMAGES) * ceil(shape.out_h / 4) * ceil(shape.out_w / 4)
    return GemmShape(tiles, shape.out_channels, shape.in_channels, WINOGRAD_PRODUCTS)


def _predict_unfused_winograd_tiles(
    algorithm: Algorithm, grid: Grid | None, shape: ConvShape
) -> TilePrediction | None:
    """F(4x4,3x3) with its transforms in kernels of their own."""
    if grid is None or grid[2] != WINOGRAD_PRODUCTS or algorithm.family != "gemm":
        return None
    if algorithm.tile is None or not shape.is_3_by_3:
        return None
    m, n, step = algorithm.tile
    ways = (
        Tiling(convert_to_unfused_winograd_gemm(shape), sides, step=step)
        for sides in ((n, m), (m, n))
    )
    fitting = (way for way in ways if grid[:2] in (way.tile_counts, way.tile_counts[::-1]))
    return TilePrediction("winograd not fused", tuple(fitting))


def _is_xmma_cuda_core_kernel(algorithm: Algorithm) -> bool:
    """Return whether it is a kernel of xmma on the CUDA cores: NVIDIA's libraries name their others
    after the architecture (``volta_sgemm``), if at all."""
    is_named = algorithm.library in ("cublas", "cudnn") and not algorithm.tensor_core
    return is_named and (algorithm.architecture or "").startswith("sm")
