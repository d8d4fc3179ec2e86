"""What a row's count is made of: its products as names, grids and shapes predict them, and the work
beside them.

The parts of a count, in this order, so that the rules' factors multiply to the whole: the products
(predicted from kernel names, grids and shapes; paper's where nothing is known), more launches of
them, transforms of Winograd and Fourier algorithms, forward work run again, sums over split-K
slices, layouts and epilogues.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from perfctl.orchestrator.counts.derived.cuda_convolutions import COMPLEX_PRODUCT
from perfctl.orchestrator.counts.kernels.grids import (
    FUSED_CHANNELS,
    WINOGRAD_PRODUCTS,
    ConvShape,
    GemmShape,
    Grid,
    Tiling,
    tile_fused_winograd,
    up,
    winograd_product,
)
from perfctl.orchestrator.counts.kernels.names import of_layer
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, RowEvidence, Shape
from perfctl.orchestrator.ledger.causes.matching import (
    CLOSE,
    DEPTH_STEPS,
    EXACT,
    TRANSFORMED,
    PredictedProducts,
    distance,
    from_grids,
    from_rules,
    launches_of,
    sums_inside,
    tiled,
)

DIRECT = ("conv", "depthwise")
"""Families of products that need no transforms."""
LEAST_MULTIPLIES = 0.24
"""Of paper's multiply-adds; Winograd F(4x4,3x3) needs 36 / 144."""
_FFT_TILE = re.compile(r"(?:r2c|c2r)_(\d+)x(\d+)")

COMPLEX = 4
"""Multiply-adds of a complex product."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """FLOPs of one step."""

    paper: float
    base: float
    """Products as predicted; ``paper`` where no rule predicts."""
    rules: tuple[str, ...]
    """How ``base`` was predicted; () where it was not."""
    method: str | None
    """In words, of the algorithm that the layer's kernels are: "winograd F(2x2,3x3)", "implicit
    gemm", "fft"."""
    family: str | None
    products: tuple[KernelGroup, ...]
    seen: float
    """Executed FLOPs of ``products``, as multiply-adds."""
    transforms: float = 0
    transforming: tuple[KernelGroup, ...] = ()
    repeated: float = 0
    repeating: tuple[KernelGroup, ...] = ()
    summed: float = 0
    summing: tuple[KernelGroup, ...] = ()
    extra: float = 0
    extras: tuple[KernelGroup, ...] = ()
    several: tuple[KernelGroup, ...] = ()
    """Products that each do the whole layer, one after the other; the other parts are then
    not separated."""
    called: float = 0
    """Launches of a whole product beyond those of the step, by their grids."""
    onto: float = 0
    """Multiply-adds of products onto what is in their output; a part of ``extra``, and not
    of ``seen``."""

    def grown(self, part: str) -> float:
        """By what factor one part (called, transforms, repeated, summed or extra) makes the parts
        before it grow.

        Where more was counted than predicted, the products are taken as counted: a small part of a
        large count is not a large one.
        """
        parts = ("called", "transforms", "repeated", "summed", "extra")
        seen = max(self.seen - self.called, 0.0)
        base = max(self.base, seen) if self.rules or not self.seen else seen
        before = base + sum(float(getattr(self, name)) for name in parts[: parts.index(part)])
        return 1 + float(getattr(self, part)) / before if before else 1.0


def breakdown(
    evidence: RowEvidence, forward: RowEvidence | None, others: int | None = None
) -> Breakdown:
    """Return the parts of a row's count.

    ``forward``: the same layer's forward row at the same batch size, for a row of its gradients.
    ``others``: see ``from_grids``.
    """
    if several := _several(evidence):
        products = tuple(kernel for kernel, _ in several)
        seen = sum(kernel.products for kernel in products)
        base = sum(2 * multiplies * kernel.launches for kernel, multiplies in several)
        return Breakdown(evidence.paper, base, (), None, None, products, seen, several=products)
    repeating = _repeated(evidence, forward)
    own = _remove_repeated(evidence.kernels, repeating)
    products = tuple(kernel for kernel in own if kernel.main)
    # a convolution by itself is no product between transforms: theirs was not recorded
    has_own = any(kernel.algorithm.family not in DIRECT for kernel in products) or not products
    roles = ("transform", "offsets") if has_own else ("offsets",)
    algorithm = of_layer(
        kernel.name for kernel in own if kernel.main or kernel.algorithm.role in roles
    )
    predicted = _predict(evidence, own, algorithm.family, others)
    is_transformed = algorithm.family in TRANSFORMED
    # what the products execute beyond multiply-adds: transforms in a fused Winograd kernel, else
    # an epilogue
    fused = tuple(kernel for kernel in products if kernel.executed > kernel.products)
    shapes = () if is_transformed else (*evidence.shapes, *evidence.filter_shapes)
    sums = [(kernel, fadd) for kernel in fused if (fadd := sums_inside(kernel, shapes))]
    added = sum(fadd for _, fadd in sums)
    within = sum(kernel.executed - kernel.products for kernel in fused) - added
    epilogue = 0.0 if is_transformed else within + predicted.onto
    summing = tuple(kernel for kernel in own if kernel.algorithm.role == "reduction")
    others_own = [kernel for kernel in own if not kernel.main]
    transforming = tuple(one for one in others_own if one.algorithm.family in TRANSFORMED)
    extras = tuple(one for one in others_own if one not in (*transforming, *summing))
    return Breakdown(
        evidence.paper,
        predicted.flops,
        predicted.rules,
        algorithm.method,
        algorithm.family,
        products,
        sum(kernel.products for kernel in products) - predicted.onto,
        transforms=_executed(transforming) + (within if is_transformed else 0.0),
        transforming=transforming,
        repeated=_executed(repeating),
        repeating=repeating,
        summed=_executed(summing) + added,
        summing=(*summing, *(kernel for kernel, _ in sums)),
        extra=_executed(extras) + epilogue,
        extras=(*extras, *(fused if epilogue else ())),
        called=predicted.called,
        onto=predicted.onto,
    )


def _remove_repeated(
    kernels: Sequence[KernelGroup], repeating: Sequence[KernelGroup]
) -> list[KernelGroup]:
    """Return the kernels without the launches that forward's kernels have in ``repeating``."""
    own = [*kernels]
    for kernel in repeating:
        whole = next(one for one in own if one.key == kernel.key)
        own.remove(whole)
        if whole.launches > kernel.launches:
            own.append(whole.part(whole.launches - kernel.launches))
    return own


def _predict(
    evidence: RowEvidence, own: Sequence[KernelGroup], family: str | None, others: int | None
) -> PredictedProducts:
    """Return the products as tiles and transforms say; the estimated ones if nothing is known."""
    products = [kernel for kernel in own if kernel.main]
    is_gradient = evidence.row.direction != "forward"
    # next to one gradient by Fourier transforms, another's product
    is_mixed = family == "fft" and is_gradient
    plain = [one for one in products if not is_mixed or not COMPLEX_PRODUCT.search(one.name)]
    nothing = PredictedProducts(evidence.paper, (), 0.0, 0.0)
    predicted = from_grids(evidence, plain, others) or nothing
    if family in TRANSFORMED and (ruled := from_rules(evidence, products)) is not None:
        return ruled
    if family == "fft":
        is_trial = len(products) > evidence.paper_products
        plain_part = predicted if is_mixed and not is_trial else nothing
        flops, rules = _fourier(evidence, own, plain_part.flops, plain_part.rules)
    elif family == "winograd" and (not predicted.rules or (is_gradient and _winograds(own) > 1)):
        flops, rules = _winograd_in_theory(evidence, own)
    else:
        return predicted
    return predicted._replace(flops=flops, rules=rules)


def _executed(kernels: Sequence[KernelGroup]) -> float:
    return sum(kernel.executed for kernel in kernels)


def _repeated(evidence: RowEvidence, forward: RowEvidence | None) -> tuple[KernelGroup, ...]:
    """Return forward's kernels that ran again among the gradients' own; () unless others suffice
    for the gradients.

    A kernel that forward runs too may be a gradient's: cuDNN uses the same one for both where the
    shapes allow it. So only others that do a gradient's work (a quarter of its multiply-adds at
    least, as Winograd F(4x4) does) count.
    """
    if forward is None or evidence.row.direction == "forward" or _several(forward):
        return ()
    products = forward.product_kernels
    if forward.forward is not None and sum(kernel.products > 0 for kernel in products) > 1:
        return ()  # trials, or another layer's kernels
    before = {kernel.key: kernel.launches for kernel in forward.kernels}
    again = tuple(
        kernel.part(before[kernel.key])
        for kernel in evidence.kernels
        if kernel.launches >= before.get(kernel.key, float("inf"))
    )
    # a smaller batch than paper's: all kernels have less
    less = min(evidence.row.ratio or 1.0, 1.0) * LEAST_MULTIPLIES
    gradients, launches = evidence.paper_products, launches_of(products)
    least_work = less * evidence.paper / max(gradients, 1)
    if not any(one.main and one.algorithm.family == "attention" for one in evidence.kernels):
        # attention of several products has two in backward for each of forward; steps and calls
        # launch all of them again
        needed = round(evidence.paper / forward.paper) if forward.paper else 1
        least_work = min(least_work, less * forward.paper / max(launches, 1))
        gradients = max(gradients, needed) * max(round(launches), 1)
    others = sum(
        kernel.launches - before.get(kernel.key, 0.0)
        for kernel in evidence.product_kernels
        if kernel.flops.value is None
        or kernel.flops.lower_bound
        or kernel.products >= least_work * kernel.launches
    )
    keys = {kernel.key for kernel in again}
    has_all = all(kernel.key in keys for kernel in products)
    # more than the gradients need may be trials or a second backward, whose kernels forward may
    # have in common
    most = max(2 * gradients - launches, gradients + 1)
    is_partial = evidence.row.counted.lower_bound
    suffice = gradients <= others < most if is_partial else others == gradients
    return again if any(kernel.main for kernel in again) and has_all and suffice else ()


def _several(evidence: RowEvidence) -> tuple[tuple[KernelGroup, float], ...]:
    """Return (kernel, multiplies that its name, its grid and the shape predict) of products that
    each do the complete layer."""
    if evidence.row.direction != "forward" or len(evidence.shapes) != 1 or evidence.calls != 1:
        return ()
    (shape,) = evidence.shapes
    is_tried = evidence.environment.get("cudnn_benchmark") == "on"
    is_dense = not isinstance(shape, ConvShape) or shape.groups == 1
    complete: list[tuple[KernelGroup, float]] = []
    for kernel in evidence.product_kernels:
        algorithm, predicted = kernel.algorithm, 0.0
        if kernel.multiplies and kernel.grid and algorithm.library != "triton" and is_dense:
            predicted = next((cut.multiplies for cut in tiled(kernel, shape)), 0.0)
        near = CLOSE if predicted or algorithm.winograd else EXACT
        if not predicted and is_tried and isinstance(shape, ConvShape):
            if algorithm.winograd:
                predicted = winograd_multiplies(shape, *algorithm.winograd)
            elif algorithm.family in ("conv", "depthwise"):
                predicted = shape.macs
        if kernel.multiplies and predicted and distance(kernel.multiplies, predicted) < near:
            complete.append((kernel, predicted))
    counted = sum(kernel.products for kernel, _ in complete)
    rest = sum(kernel.products for kernel in evidence.product_kernels) - counted
    is_all = rest <= counted * LEAST_MULTIPLIES / 4
    return tuple(complete) if len(complete) > 1 and is_all else ()


def winograd_multiplies(shape: ConvShape, m: int, r: int) -> float:
    """(m + r - 1)^2 multiplies for each tile of m x m outputs and each pair of channels; tiles at
    the edge are whole."""
    tiles = shape.batch * ceil(shape.out_h / m) * ceil(shape.out_w / m)
    return tiles * (m + r - 1) ** 2 * shape.in_channels * shape.out_channels / shape.groups


def _winograd_in_theory(
    evidence: RowEvidence, own: Sequence[KernelGroup]
) -> tuple[float, tuple[str, ...]]:
    """Return the FLOPs of F(m x m, r x r) and their rule: (m + r - 1)^2 multiplies for m^2 outputs
    of r^2 products; whole tiles where the shape is known."""
    sizes = next((kernel.algorithm.winograd for kernel in own if kernel.algorithm.winograd), None)
    if sizes is None:
        return evidence.paper, ()
    m, r = sizes
    share = ((m + r - 1) / (m * r)) ** 2
    rule = f"{m + r - 1}^2 multiplies in place of {m}^2 x {r}^2"
    shape = next(iter([*evidence.shapes, *evidence.unverified_shapes]), None)
    if isinstance(shape, ConvShape) and (shape.kernel_h, shape.kernel_w) == (r, r):
        share = winograd_multiplies(shape, m, r) / shape.macs
        rule += ", including tiles at the edge"
        blocks = (kernel.algorithm.winograd_block for kernel in own)
        block = next((block for block in blocks if block), None)
        if block is not None and sizes == (2, 3) and shape.groups == 1:
            share = tile_fused_winograd(shape, block).multiplies / shape.macs
            rule += f" and blocks of {' x '.join(map(str, block))} tiles filled"
        for kernel in own if sizes == (4, 3) and shape.groups == 1 else ():
            cuts = _between_transforms(kernel, shape)
            if len({cut.multiplies for cut in cuts}) > 1:
                return evidence.paper, ()  # how many channels are padded is not known
            if cuts:
                share, rule = cuts[0].multiplies / shape.macs, cuts[0].rule(shape.macs)
    gradients = max(evidence.paper_products, 1)
    part = min(_winograds(own), gradients) / gradients or 1.0
    return evidence.paper * (1 - part + part * share), (rule,)


def _between_transforms(kernel: KernelGroup, shape: ConvShape) -> list[Tiling]:
    """Return the tilings of the product between Winograd's transforms, whichever batch ran: one
    side of its grid has the channels."""
    tile, grid = kernel.algorithm.tile, kernel.grid
    if not (kernel.main and kernel.algorithm.family == "gemm" and tile and grid):
        return []
    if grid[2] != WINOGRAD_PRODUCTS:
        return []
    sides = _sides(grid, tile, shape.out_channels)
    return [Tiling(winograd_product(shape), side, step=tile[2]) for side in sides]


def _sides(grid: Grid, tile: tuple[int, int, int | None], channels: int) -> list[tuple[int, int]]:
    """(along the rows, along the channels): how the tile may lie so that a side of the grid has the
    channels' blocks."""
    both = dict.fromkeys((tile[:2], tile[1::-1]))
    return [(m, n) for m, n in both if ceil(channels / n) in grid[:2]]


def of_another_layer(kernel: KernelGroup, shape: Shape | None) -> bool:
    """True when grid and count of a transformed product show other channels than the layer's,
    whatever the batch size."""
    grid, tile, block = kernel.grid, kernel.algorithm.tile, kernel.algorithm.winograd_block
    if (
        grid is None
        or not kernel.products
        or kernel.flops.lower_bound
        or not isinstance(shape, ConvShape)
    ):
        return False
    if block is not None:
        blocks, each = (
            grid[0] % ceil(shape.out_channels / FUSED_CHANNELS) == 0,
            prod(block) * FUSED_CHANNELS * 16,
        )
    elif tile is not None and kernel.algorithm.family == "gemm" and grid[2] > 1:
        outputs = shape.out_channels // shape.groups
        points = {WINOGRAD_PRODUCTS, *(size * (size // 2 + 1) * shape.groups for size in (16, 32))}
        blocks = grid[2] in points and bool(_sides(grid, tile, outputs))
        each = tile[0] * tile[1] * (1 if grid[2] == WINOGRAD_PRODUCTS else 4)
    else:
        return False
    deep, channels = kernel.multiplies / (prod(grid) * each), shape.in_channels // shape.groups
    fits = any(distance(deep, up(channels, step)) < EXACT for step in (1, *DEPTH_STEPS))
    return not (blocks and fits)


def _winograds(own: Sequence[KernelGroup]) -> int:
    """Return how many products run as Winograd: fused kernels, and output transforms of others."""
    fused = sum(kernel.algorithm.family == "winograd" for kernel in own if kernel.main)
    return fused + sum(
        "output" in one.name.lower().partition("winograd")[2] for one in own if not one.main
    )


def _fourier(
    evidence: RowEvidence, own: Sequence[KernelGroup], base: float, rules: tuple[str, ...]
) -> tuple[float, tuple[str, ...]]:
    """t x (t/2 + 1) complex products of 4 multiply-adds for the (t - r + 1)^2 outputs of a tile of
    t x t points.

    The gradient of the input is such a convolution with the channels exchanged; that of the filter
    sums over the tiles. ``base``: products by other kernels as predicted, by ``rules``.
    """
    size = next((found for kernel in own if (found := _FFT_TILE.search(kernel.name))), None)
    shape = evidence.forward
    if (
        size is None
        or not isinstance(shape, ConvShape)
        or int(size[1]) < max(shape.kernel_h, shape.kernel_w)
    ):
        return evidence.paper, ()
    t = int(size[1])
    products = _fourier_products(evidence, shape, t)
    papers = {call.direction: call.flops or 0 for call in evidence.row.calls}
    all_rules = [*rules]
    for way, blocks in _transformed_by(evidence, own, products).items():
        product = products[way]
        base += 2 * evidence.calls * (blocks or product.macs * COMPLEX)
        base -= evidence.paper * papers[way] / sum(papers.values())
        tiles = product.k if way == "grad_weight" else product.m
        rule = f"{tiles:,} tiles of {t} x {t} points, {t} x {t // 2 + 1} complex products each"
        all_rules.append(f"{rule}, in complete blocks" if blocks else rule)
    return (base, tuple(all_rules)) if len(all_rules) > len(rules) else (evidence.paper, ())


def _fourier_products(evidence: RowEvidence, shape: ConvShape, t: int) -> Mapping[str, GemmShape]:
    """Return direction -> the product at each point of a tile, of each group, for the
    estimated ones whose tiles are known."""
    points = shape.groups * t * (t // 2 + 1)

    def tiles(height: int, width: int) -> int:
        return (
            shape.batch
            * ceil(height / (t - shape.kernel_h + 1))
            * ceil(width / (t - shape.kernel_w + 1))
        )

    outputs, inputs = shape.out_channels // shape.groups, shape.in_channels // shape.groups
    own, image = tiles(shape.out_h, shape.out_w), evidence.image
    found = {
        "forward": GemmShape(own, outputs, inputs, points),
        "grad_weight": GemmShape(outputs, inputs, own, points),
    }
    if image is not None:
        found["grad_input"] = GemmShape(tiles(*image), inputs, outputs, points)
    wanted = {call.direction for call in evidence.row.calls if call.flops}
    return {direction: product for direction, product in found.items() if direction in wanted}


def _transformed_by(
    evidence: RowEvidence, own: Sequence[KernelGroup], products: Mapping[str, GemmShape]
) -> Mapping[str, int | None]:
    """Direction -> multiplies in whole blocks (None: not known), of the products that run as
    Fourier transforms."""
    kernels = [
        kernel
        for kernel in own
        if kernel.main and (kernel.grid or COMPLEX_PRODUCT.search(kernel.name))
    ]
    if evidence.row.direction == "forward":
        filled = (
            _fourier_blocks(kernel, product) for kernel in kernels for product in products.values()
        )
        blocks = next((found for found in filled if found), None)
        return dict.fromkeys(products, blocks)
    found: dict[str, int | None] = {}
    for kernel in kernels:
        left = ((way, product) for way, product in products.items() if way not in found)
        fits = {
            way: blocks for way, product in left if (blocks := _fourier_blocks(kernel, product))
        }
        if len(fits) in (1, kernel.launches / evidence.calls):
            found |= fits
    complexes = [kernel for kernel in kernels if COMPLEX_PRODUCT.search(kernel.name)]
    gradients = evidence.paper_products
    if (
        not found
        and not any(kernel.grid for kernel in complexes)
        and launches_of(complexes) == gradients * evidence.calls
    ):
        return dict.fromkeys(products if len(products) == gradients else ())
    return found


def _fourier_blocks(kernel: KernelGroup, product: GemmShape) -> int | None:
    """Return the multiplies of the complex products, blocks that are not filled included, if grid
    and count fit: z has the points."""
    tile, grid = kernel.algorithm.tile, kernel.grid
    if not tile or not grid or grid[2] != product.batch or not kernel.products:
        return None
    counted = kernel.multiplies / (prod(grid) * prod(tile[:2]) * COMPLEX)
    steps = (step for step in (1, *DEPTH_STEPS) if distance(counted, up(product.k, step)) < EXACT)
    step = next(steps, None)
    if step is None:
        return None
    cuts = (Tiling(product, sides, step=step) for sides in _sides(grid, tile, product.n))
    multiplies = {cut.multiplies * COMPLEX for cut in cuts}
    return multiplies.pop() if len(multiplies) == 1 else None
