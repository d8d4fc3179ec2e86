"""Gradients of convolutions on the CUDA cores in fp32: multiply-adds of whole tiles.

Which sides the tiles cover was read off grids: in a public trace of ResNet-50's training on a V100 (PyTorch 1.9, cuDNN 8) all
45 kinds of launches below have the grid that their rule says. No counters were there, so that no error is known. FMUL and FADD
of the epilogues are in no rule. A launch whose grid is not its rule's has no count.
"""

from __future__ import annotations

import re
from math import ceil, prod

from perfctl.orchestrator.analyse.derived.products import transformed, up
from perfctl.orchestrator.analyse.derived.records import ConvGradients, Derived, Launch, Work
from perfctl.orchestrator.analyse.kernels.grids import WINOGRAD_IMAGES, ConvShape
from perfctl.orchestrator.analyse.kernels.names import Algorithm

_STEP = 4
"""Along the sum, of ``scudnn`` kernels, as in forward."""
_PRODUCT_STEP = 8
_ENGINE = re.compile(r"(dgrad_engine|wgrad_alg0_engine)<float, ?\d+, ?(\d), ?(\d),")
"""The tile's sides are 2 to the power of the second and third number."""


def convolution_gradients(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """The gradient of the input or of the weight, whichever the launch's name and grid say; None where both fit."""
    shape, grid = work.shape, launch.grid
    if not isinstance(shape, ConvGradients) or grid is None:
        return None
    if found := _ENGINE.search(launch.name):
        sides = 1 << int(found[2]), 1 << int(found[3])
        return (
            _input_by_image(shape, grid, sides) if found[1] == "dgrad_engine" else _weight_by_part(shape, grid, sides)
        )
    if algorithm.tile is not None and "_stridedB_" in launch.name and "_scudnn_" in launch.name:
        sides = algorithm.tile[:2]
        return _weight_split(shape, grid, sides) if "_splitK_" in launch.name else _input(shape, grid, sides)
    return _winograd(launch, algorithm, shape)


def _input(shape: ConvGradients, grid: tuple[int, int, int], sides: tuple[int, int]) -> Derived | None:
    """``scudnn_.._stridedB``: positions of all images by input channels; the sum runs over K x R x S. Stride 1 only."""
    if not shape.same_size or grid != (ceil(shape.in_pixels / sides[0]), ceil(shape.in_channels / sides[1]), 1):
        return None
    deep = up(shape.out_channels * shape.window, _STEP)
    what = f"{shape.in_pixels:,} inputs by {shape.in_channels} channels"
    return _made("scudnn, grad_input", what, grid[:2], sides, f"{deep:,}", deep)


def _weight_split(shape: ConvGradients, grid: tuple[int, int, int], sides: tuple[int, int]) -> Derived | None:
    """``scudnn_.._stridedB_splitK``: C x R x S by K; the sum runs over output positions, in ``grid[2]`` parts."""
    if grid[:2] != (ceil(shape.depth / sides[0]), ceil(shape.out_channels / sides[1])):
        return None
    parts = grid[2]
    part = ceil(shape.out_pixels / parts)
    last = shape.out_pixels - part * (parts - 1)
    if last < 1:
        return None
    deep = up(part, _STEP) * (parts - 1) + up(last, _STEP)
    what = f"{shape.depth:,} weights of a channel by {shape.out_channels} channels"
    return _made(
        "scudnn, grad_weight", what, grid[:2], sides, f"{shape.out_pixels:,} outputs in {parts} parts: {deep:,}", deep
    )


def _input_by_image(shape: ConvGradients, grid: tuple[int, int, int], sides: tuple[int, int]) -> Derived | None:
    """``dgrad_engine``: for each image C x R x S by output positions, summed over K."""
    if grid != (ceil(shape.depth / sides[0]), ceil(shape.out_h * shape.out_w / sides[1]), shape.batch):
        return None
    what = f"{shape.batch} images x {shape.depth:,} weights of a channel by {shape.out_h * shape.out_w:,} outputs"
    return _made("dgrad_engine", what, grid, sides, f"{shape.out_channels:,}", shape.out_channels)


def _weight_by_part(shape: ConvGradients, grid: tuple[int, int, int], sides: tuple[int, int]) -> Derived | None:
    """``wgrad_alg0_engine``: C x R x S by K; each image's output positions are shared by ``grid[2]`` / images blocks."""
    wanted = ceil(shape.depth / sides[0]), ceil(shape.out_channels / sides[1])
    if grid[:2] != wanted or grid[2] % shape.batch:
        return None
    what = f"{shape.depth:,} weights of a channel by {shape.out_channels} channels"
    return _made("wgrad_alg0_engine", what, wanted, sides, f"{shape.out_pixels:,} outputs", shape.out_pixels)


def _made(family: str, what: str, blocks: tuple[int, ...], sides: tuple[int, int], sum_: str, deep: int) -> Derived:
    ffma = prod(blocks) * prod(sides) * deep
    tiles = f"{' x '.join(f'{number:,}' for number in blocks)} tiles x {sides[0]} x {sides[1]}"
    return Derived(family, f"{what}: {tiles} x {sum_} = {ffma:,} FFMA", ffma=ffma)


def _winograd(launch: Launch, algorithm: Algorithm, shape: ConvGradients) -> Derived | None:
    """The input's gradient is a convolution with the channels exchanged; the weight's sums 36 products over the tiles."""
    if not shape.same_size or (shape.kernel_h, shape.kernel_w) != (3, 3) or launch.grid is None:
        return None
    exchanged = ConvShape(
        shape.batch, shape.out_channels, shape.in_channels, shape.in_h, shape.in_w, shape.kernel_h, shape.kernel_w
    )
    as_forward = transformed(launch, algorithm, Work(exchanged))
    of_weight = _winograd_weight(launch.grid, algorithm, shape)
    found = [one for one in (as_forward, of_weight) if one is not None]
    return found[0] if len({one.ffma for one in found}) == 1 else None


def _winograd_weight(grid: tuple[int, int, int], algorithm: Algorithm, shape: ConvGradients) -> Derived | None:
    if algorithm.family != "gemm" or algorithm.tile is None or algorithm.tensor_core or grid[2] != 36:
        return None
    m, n, _ = algorithm.tile
    if grid[:2] not in (
        (ceil(shape.in_channels / m), ceil(shape.out_channels / n)),
        (ceil(shape.out_channels / m), ceil(shape.in_channels / n)),
    ):
        return None
    images = up(shape.batch, WINOGRAD_IMAGES)
    tiles = images * ceil(shape.out_h / 4) * ceil(shape.out_w / 4)
    what = f"{shape.in_channels} by {shape.out_channels} channels, 36 products"
    return _made(
        "winograd, grad_weight", what, grid, (m, n), f"{tiles:,} tiles of 4 x 4 outputs", up(tiles, _PRODUCT_STEP)
    )
