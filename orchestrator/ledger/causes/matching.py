"""Which products a kernel's name, grid, tiles and FMUL say that one launch is: held against the
shapes of its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import ceil, log, prod

from perfctl.orchestrator.counts.kernels.grids import (
    STEP,
    WHOLE,
    ConvShape,
    ExpectedGrid,
    GemmShape,
    Grid,
    Tiling,
    expected_grid,
    slices_of,
    summed,
    tilings,
    up,
)
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, RowEvidence, Shape

CLOSE = log(1.2)
"""A predicted number of multiplies further than this from what was counted is not the reason."""
EXACT = log(1.02)
"""A predicted number of multiplies further than this from what was counted is not the reason if the
grid's formula is not verified for the direction."""
ENOUGH = 0.75
"""Share of the multiplies of a whole launch: a part of the batch that needs as many is as likely as
a further call."""
TILES = (1, 8, 16, 32, 64, 96, 128, 192, 256)
WIDTHS = (1, 32, 64, 128, 256)
DEPTH_STEPS = (4, 8, 16, 32)
"""Steps along the sum that SIMT kernels take."""
UNTILED = ("direct", "depthwise", "matrix times vector")
"""Methods of kernels that fill no tiles."""
TRANSFORMED = ("winograd", "fft")

Match = tuple[float, str, int, float]
"""(multiplies of one launch, rule, launches that one call takes, multiply-adds of one launch onto
what is in its output)."""

INDUCTOR = (16, 32, 64, 128, 256)
"""Sides of tiles, and steps, of PyTorch's Triton templates. They shrink to the next power of two of
what they cover."""


def launches_of(kernels: Sequence[KernelGroup]) -> float:
    return sum(kernel.launches for kernel in kernels)


def unknown_tiles(evidence: RowEvidence) -> frozenset[tuple[int, int]]:
    """Tiles that a product may have, by its name or its count: fewer rows may have needed the same
    whole tiles."""
    forward, products = evidence.forward, evidence.product_kernels
    if forward is None or not products:
        return frozenset()
    named = {kernel.algorithm.tile[:2] for kernel in products if kernel.algorithm.tile}
    tiles = {pair for m, n in named for pair in ((m, n), (n, m))} or {
        (m, n) for m in TILES for n in TILES
    }
    rows, columns = _outputs(forward)
    depth = evidence.paper / (rows * columns)
    done = sum(kernel.products for kernel in products)
    needed = evidence.calls * max(sum(1 for call in evidence.row.calls if call.flops), 1)
    areas = (
        {done / depth / parts for parts in (1, max(launches_of(products) / needed, 1))}
        if depth and done
        else set()
    )
    sizes = {(m, n): up(rows, m) * up(columns, n) for m, n in tiles}
    deep = forward.k if isinstance(forward, GemmShape) else forward.depth  # padded to steps, too
    areas = {area * deep / up(deep, step) for area in areas for step in (1, *DEPTH_STEPS, 64)}
    return frozenset(
        tile for tile, size in sizes.items() if any(abs(log(area / size)) < EXACT for area in areas)
    )


def from_grids(
    evidence: RowEvidence, products: Sequence[KernelGroup], others: int | None = None
) -> tuple[float, str, float, float] | None:
    """(FLOPs of the step's products, how they were predicted, FLOPs of further launches, and of
    sums onto their output).

    Each product's grid is held against each shape that the row may have; None when none matches.
    ``others``: how often every product of the other layers was launched. A product launched more
    often than that may be further calls, or parts of one batch in tiles of their own; where its
    grid fits both, nothing is predicted.
    """
    base, called, onto, rules, calls = evidence.paper, 0.0, 0.0, [], evidence.calls
    open_shapes = [*evidence.shapes, *evidence.unverified_shapes, *evidence.filter_shapes]
    near = CLOSE if evidence.row.direction == "forward" else EXACT
    gradients = sum(1 for call in evidence.row.calls if call.flops)
    if sum(kernel.products > 0 for kernel in products) > max(gradients, 1):
        return None  # trials, or work done again: which of them is the layer's is not known
    for kernel in products:
        if kernel.launches % calls or not kernel.launches or not kernel.products:
            continue
        for shape in open_shapes:
            found = _matched(kernel, shape, int(kernel.launches) // calls, near)
            if found is None:
                continue
            multiplies, rule, parts, more = found
            extra = kernel.launches / calls / (others or 1)
            if (
                others
                and parts == 1
                and extra > 1
                and _may_be_parts(kernel, shape, ceil(extra), multiplies)
            ):
                break
            base += 2 * (multiplies * parts - shape.macs) * calls
            called += 2 * multiplies * (kernel.launches - parts * calls)
            onto += 2 * more * kernel.launches
            rules.append(rule + (f"; {calls} calls" if calls > 1 else ""))
            open_shapes.remove(shape)
            break
    return (base, "; ".join(rules), called, onto) if rules else None


def _matched(kernel: KernelGroup, shape: Shape, launches: int, near: float) -> Match | None:
    """What a shape asks of a kernel, where its count fits that: the batch may be split over
    the launches."""
    if by_groups(kernel, shape) is None and (scaled := _scaled(kernel, shape)) is not None:
        return scaled
    if (
        isinstance(shape, GemmShape)
        and not kernel.grid
        and kernel.counts.get("fmul")
        and "sgemm" in kernel.name
    ):
        return None  # FMUL speaks against the tiles of this shape
    for parts in (1, launches) if launches > 1 else (1,):
        part = _part_of(shape, parts)
        for multiplies, rule in tiled(kernel, part) if part else ():
            fewer = (count for count in range(2, parts) if parts % count == 0)
            if any(_may_be_parts(kernel, shape, count, multiplies) for count in fewer):
                return None  # some of the launches may be further calls
            if abs(log(kernel.products / (2 * multiplies * kernel.launches))) <= (
                near if kernel.grid else EXACT
            ):
                return (
                    multiplies,
                    rule + (f", in {parts} launches" if parts > 1 else ""),
                    parts,
                    0.0,
                )
    return None


def tiled(kernel: KernelGroup, shape: Shape) -> list[tuple[float, str]]:
    """(multiplies of one launch, rule) for each grid that fits the shape."""
    if (grouped := by_groups(kernel, shape)) is not None:
        return [grouped]
    algorithm = kernel.algorithm
    if (
        isinstance(shape, GemmShape)
        and algorithm.family == "conv"
        and algorithm.direction in (None, "grad_weight")
    ):
        # a filter's gradient, of ``filter_shapes``
        algorithm = replace(algorithm, family="gemm", direction=None)
    if algorithm.tile is None and algorithm.library == "triton":
        return _compiled(kernel, shape)
    found = (expected_grid(algorithm, grid, shape) for grid in _grids(kernel, shape))
    return [deepened(said, kernel, shape) for said in found if said is not None and said.matches]


def _compiled(kernel: KernelGroup, shape: Shape) -> list[tuple[float, str]]:
    """(multiplies, rule) of a Triton kernel, whose tile is in no name: where one filling alone fits
    grid and count."""
    counted = kernel.products / (2 * kernel.launches)
    if not kernel.grid or not counted or getattr(shape, "groups", 1) != 1:
        return []
    (rows, columns), deep = (
        _outputs(shape),
        shape.k if isinstance(shape, GemmShape) else shape.depth,
    )
    down, across, along = (
        [side for side in INDUCTOR if side < 2 * size or side == 16]
        for size in (rows, columns, deep)
    )
    found: dict[int, str] = {}
    for m, n, step in product(down, across, along):
        blocks, padded = ceil(rows / m) * ceil(columns / n), up(deep, step)
        multiplies = blocks * m * n * padded
        if blocks == prod(kernel.grid) and abs(log(counted / multiplies)) < EXACT:
            found[multiplies] = (
                f"{blocks:,} tiles x {m} x {n} x {padded:,} = {multiplies:,} multiplies"
            )
    said = "its tile is in no name, and of those that fit its grid no other filling fits its count"
    return (
        [
            (multiplies, f"{rule} (paper {shape.macs:,}; {said})")
            for multiplies, rule in found.items()
        ]
        if len(found) == 1
        else []
    )


def splits_alike(evidence: RowEvidence, products: Sequence[KernelGroup], parts: int) -> bool:
    """True when one of ``parts`` parts of a product may need as many tiles as all of it: by grid,
    tile, or any usual tile."""
    for kernel in products:
        for shape in (*evidence.shapes, *evidence.unverified_shapes):
            part = _smaller(shape, parts)
            whole, less = (bool(kernel.grid) and _does(kernel, one) for one in (shape, part))
            if less if whole or less else _fills_alike(kernel, shape, parts):
                return True
    if evidence.row.direction != "forward":  # a weight's gradient is a sum over the batch
        sums = [
            shape
            for shape in (*evidence.shapes, *evidence.filter_shapes)
            if isinstance(shape, GemmShape)
        ]
        if any(
            ceil(shape.k / step) == ceil(shape.k / parts / step)
            for shape in sums
            for step in DEPTH_STEPS
        ):
            return True
        if any(
            _fills_alike(kernel, shape, parts, of_sum=True) for kernel in products for shape in sums
        ):
            return True
    forward = evidence.forward
    # the filter's gradient, by its channels
    if isinstance(forward, ConvShape) and evidence.row.direction != "forward":
        sizes = {
            size
            for one in products
            for size in (one.algorithm.tile[:2] if one.algorithm.tile else TILES)
        }
        return any(
            ceil(forward.out_channels / size) == ceil(forward.out_channels / parts / size)
            for size in sizes
        )
    return False


def _smaller(shape: Shape, parts: int) -> Shape:
    """The largest of ``parts`` parts of the rows."""
    if isinstance(shape, ConvShape):
        return replace(shape, batch=ceil(shape.batch / parts))
    return replace(shape, m=ceil(shape.m / parts))


def _does(kernel: KernelGroup, shape: Shape) -> bool:
    """True when each launch has the grid, and about the count, of the shape."""
    each = kernel.products / (2 * kernel.launches)
    return any(
        not each or abs(log(each / multiplies)) < CLOSE for multiplies, _ in tiled(kernel, shape)
    )


def _fills_alike(kernel: KernelGroup, shape: Shape, parts: int, of_sum: bool = False) -> bool:
    """True when one of ``parts`` parts in whole tiles, its columns padded too, is about as much as
    ``shape`` on paper."""
    tile = kernel.algorithm.tile
    sizes = (tile[:2], tile[1::-1]) if tile else product(TILES, WIDTHS)
    rows, columns = _outputs(shape)
    deep = shape.k if isinstance(shape, GemmShape) else shape.depth
    fewer, cut = (rows, parts) if of_sum else (ceil(rows / parts), 1)
    depth = [
        deep / (ceil(deep / cut / step) * step)
        for step in ((tile[2],) if tile and tile[2] else (1, *DEPTH_STEPS))
    ]
    groups = shape.groups if isinstance(shape, ConvShape) else 1
    if kernel.algorithm.method in UNTILED:
        return rows == fewer
    whole = (
        (up(fewer, m) * up(width, n), rows * width)
        for m, n in sizes
        for width in (columns, columns // groups)
    )
    return any(abs(log(area / (paper * part))) < CLOSE for area, paper in whole for part in depth)


def _outputs(shape: Shape) -> tuple[int, int]:
    """Rows and columns of a product."""
    return (
        (shape.m, shape.n) if isinstance(shape, GemmShape) else (shape.pixels, shape.out_channels)
    )


def _may_be_parts(kernel: KernelGroup, shape: Shape, parts: int, multiplies: float) -> bool:
    """True when one launch for a part of the batch would need as many tiles as the one that
    was predicted."""
    smaller = [_smaller(shape, parts)]
    if isinstance(shape, GemmShape):  # the sum of a weight's gradient runs over the batch
        smaller.append(replace(shape, k=ceil(shape.k / parts)))
    return any(found >= ENOUGH * multiplies for part in smaller for found, _ in tiled(kernel, part))


def by_groups(kernel: KernelGroup, shape: Shape) -> tuple[int, str] | None:
    """(multiplies, rule) of a grouped convolution whose groups each have tiles of their own, in the
    grid's z.

    Without a recorded grid the count says so; the same count may then be that of all groups as one.
    """
    tile = kernel.algorithm.tile
    if (
        not isinstance(shape, ConvShape)
        or shape.groups == 1
        or tile is None
        or kernel.algorithm.family != "conv"
    ):
        return None
    m, n, k = tile
    channels = shape.out_channels // shape.groups
    rows, columns = ceil(shape.pixels / m), ceil(channels / n)
    depth = up(shape.depth, k)
    multiplies = shape.groups * rows * columns * m * n * depth
    if kernel.grid and (
        kernel.grid[2] != shape.groups or kernel.grid[0] * kernel.grid[1] != rows * columns
    ):
        return None
    each = kernel.products / (2 * kernel.launches)
    for step in () if k else DEPTH_STEPS:
        deep = up(shape.depth, step)
        if (
            each
            and deep != shape.depth
            and abs(log(each * shape.depth / (multiplies * deep))) < EXACT
        ):
            multiplies, depth = multiplies // shape.depth * deep, deep
            break
    if not kernel.grid and (not each or abs(log(each / multiplies)) > EXACT):
        return None
    blocks = (
        f"{shape.groups} groups x ceil({shape.pixels:,} output positions / {m}) x ceil({channels} "
        f"channels / {n})"
    )
    return (
        multiplies,
        (
            f"{blocks} blocks x {m} x {n} x {depth:,} = {multiplies:,} multiplies (paper "
            f"{shape.macs:,})"
        ),
    )


def _scaled(kernel: KernelGroup, shape: Shape) -> Match | None:
    """FMUL, which scales by alpha, says which tiles a product has and how its sum is split; a
    recorded grid has to agree.

    cuBLAS computes C = alpha A B + beta C. Each block scales its tile once, and so does each slice
    of a ``sliced1xS`` kernel, whose sums are added afterwards: FMUL is tiles x m x n x slices x
    split. Every part of a split sum, the shorter last one too, is padded by itself to steps of 8
    for each slice. Parts may be added to C one after the other: a multiply-add for each value of
    the tile and each part but the first; also for that one where beta is not 0 (a bias,
    for PyTorch).
    """
    tile, scale = kernel.algorithm.tile, kernel.counts.get("fmul", 0) / kernel.launches
    gemm = kernel.algorithm.family == "gemm" and not kernel.algorithm.tensor_core
    if tile is None or not scale or not gemm or not isinstance(shape, GemmShape):
        return None
    counted = kernel.products / (2 * kernel.launches)
    slices = slices_of(kernel.name)
    best: tuple[float, Match] | None = None
    for each in dict.fromkeys((slices, 1)):
        for cut in tilings(shape, tile[:2], kernel.grid or None, scale / each):
            if abs(scale / cut.values / each - cut.parts) > WHOLE * cut.parts:
                continue
            for step, onto in product(
                (STEP * slices, *DEPTH_STEPS, 1), sorted({0, cut.parts - 1, cut.parts})
            ):
                deep = summed(shape.k, cut.parts, step)
                apart = abs(log(counted / (cut.values * (deep + onto))))
                if apart >= (WHOLE if onto else EXACT) or (best is not None and apart >= best[0]):
                    continue
                best = apart, (cut.values * deep, _split_rule(cut, step), 1, cut.values * onto)
    return best[1] if best else None


def _split_rule(cut: Tiling, step: int) -> str:
    """The arithmetic of a product whose FMUL said how often its sum is split."""
    shape, deep = cut.shape, summed(cut.shape.k, cut.parts, step)
    part = up(ceil(shape.k / cut.parts), step)
    rest = deep - part * (cut.parts - 1)
    sums = f"{part:,}" if part == rest else f"{part:,} (the last {rest:,})"
    shared = f" x {cut.parts} parts of the sum, by its FMUL," if cut.parts > 1 else ""
    (m, n), tiles = cut.sides, cut.values // prod(cut.sides)
    blocks = f"ceil({shape.m:,} / {m}) x ceil({shape.n:,} / {n}) = {tiles:,} tiles x {m} x {n}"
    return f"{blocks}{shared} x {sums} = {cut.values * deep:,} multiplies (paper {shape.macs:,})"


def sums_inside(kernel: KernelGroup, shapes: Sequence[Shape]) -> float:
    """FADD by which a kernel adds up the parts of its split sum itself; 0 where FADD is none for
    each value and part.

    Each part but the first, or each, is added to the values of the tiles, or of the product. Slices
    are added as well.
    """
    tile, grid, added = (
        kernel.algorithm.tile,
        kernel.grid,
        kernel.counts.get("fadd", 0) / kernel.launches,
    )
    for shape in shapes if tile and grid and added else ():
        split = grid[2] // shape.batch if grid and isinstance(shape, GemmShape) else 1
        if (
            split < 2
            or not tile
            or not grid
            or not isinstance(shape, GemmShape)
            or not tiled(kernel, shape)
        ):
            continue
        values = grid[0] * grid[1] * tile[0] * tile[1] * shape.batch
        own = (slices_of(kernel.name) - 1) * split * values
        sums = (
            parts * each
            for parts in (split - 1, split)
            for each in (values, shape.batch * shape.m * shape.n)
        )
        if (
            found := next((one for one in sums if abs(added - own - one) <= WHOLE * added), None)
        ) is not None:
            return found * kernel.launches
    return 0.0


def _grids(kernel: KernelGroup, shape: Shape) -> Sequence[Grid]:
    """The recorded grid, or those that the tile of the kernel's name may need for the shape."""
    tile = kernel.algorithm.tile
    if kernel.grid or tile is None:
        return (kernel.grid,) if kernel.grid else ()
    (rows, columns), (m, n, _) = _outputs(shape), tile
    return (ceil(columns / m), ceil(rows / n), 1), (ceil(rows / m), ceil(columns / n), 1)


def _part_of(shape: Shape, parts: int) -> Shape | None:
    if isinstance(shape, ConvShape):
        return None if shape.batch % parts else replace(shape, batch=shape.batch // parts)
    return None if shape.m % parts else replace(shape, m=shape.m // parts)


def fits_grids(evidence: RowEvidence) -> bool:
    """True when no product's grid speaks against the row's shape."""
    found = _matches(evidence)
    return not found or any(found)


def _matches(evidence: RowEvidence) -> list[bool]:
    pairs = [(kernel, shape) for kernel in evidence.product_kernels for shape in evidence.shapes]
    found = [
        expected_grid(kernel.algorithm, kernel.grid, shape)
        for kernel, shape in pairs
        if kernel.grid
    ]
    return [said.matches for said in found if said is not None]


def fills_tiles(evidence: RowEvidence) -> bool:
    """True when a product's grid or count follows from the row's own batch size. Transforms follow
    it more closely."""
    if any(kernel.algorithm.family in TRANSFORMED for kernel in evidence.kernels):
        return False
    return any(_matches(evidence)) or from_grids(evidence, evidence.product_kernels) is not None


def one_row_of_tiles(evidence: RowEvidence) -> bool:
    """True when its grids have no more blocks than its columns need: how many rows they hold is
    not known."""
    kernels, shapes = evidence.product_kernels, evidence.shapes
    return bool(kernels and shapes) and all(
        one.grid
        and one.algorithm.tile
        and any(
            prod(one.grid[:2]) <= ceil(_outputs(shape)[1] / side)
            for shape in shapes
            for side in one.algorithm.tile[:2]
        )
        for one in kernels
    )


def deepened(said: ExpectedGrid, kernel: KernelGroup, shape: Shape) -> tuple[float, str]:
    """The sum's length rounded up to the kernel's step, where the name does not say the step and
    the count fits one."""
    tile = kernel.algorithm.tile
    named = tile is not None and tile[2] is not None
    if named or not kernel.products or kernel.algorithm.family not in ("conv", "gemm"):
        return said.multiplies, said.rule
    deep = shape.depth if isinstance(shape, ConvShape) else shape.k
    # each slice takes whole steps of its own, and so does each part of a split sum
    split = (
        max(kernel.grid[2] // shape.batch, 1) if kernel.grid and isinstance(shape, GemmShape) else 1
    )
    for step in (slices_of(kernel.name) * step for step in DEPTH_STEPS):
        padded = summed(deep, split, step)
        multiplies = said.multiplies * padded / deep
        if (
            padded != deep
            and abs(log(kernel.products / (2 * multiplies * kernel.launches))) < EXACT
        ):
            return (
                multiplies,
                (
                    f"{said.rule}; its sum of {deep} is padded to {padded}, so {multiplies:,.0f} "
                    "multiplies"
                ),
            )
    return said.multiplies, said.rule
