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
from dataclasses import dataclass, replace
from math import ceil, log, prod

from perfctl.orchestrator.counts.derived.cuda_convolutions import COMPLEX_PRODUCT
from perfctl.orchestrator.counts.kernels.grids import (
    FUSED_CHANNELS,
    WHOLE,
    WINOGRAD_PRODUCTS,
    ConvShape,
    GemmShape,
    Grid,
    Tiling,
    build_fused_winograd_tiling,
    convert_to_unfused_winograd_gemm,
    round_up,
)
from perfctl.orchestrator.counts.kernels.names import choose_main_layer_algorithm
from perfctl.orchestrator.ledger.causes.evidence import (
    KernelGroup,
    Kernels,
    RowEvidence,
    count_launches,
    sum_executed_flops,
    sum_multiply_add_flops,
)
from perfctl.orchestrator.ledger.causes.layer_shapes import Shape
from perfctl.orchestrator.ledger.causes.matching import (
    CLOSE,
    DEPTH_STEPS,
    EXACT,
    TRANSFORMED,
    PredictedProducts,
    compute_log_ratio_distance,
    count_split_k_additions,
    list_fitting_tilings,
    predict_product_flops_from_rules,
    predict_product_flops_from_tiles,
)

DIRECT = ("conv", "depthwise")
"""Families of products that need no transforms."""
LEAST_MULTIPLIES = 0.24
"""Of paper's multiply-adds; Winograd F(4x4,3x3) needs 36 / 144."""
TEMPLATE = "triton_tem_"
"""Begins the names of kernels that torch.compile tries; their tiles are in none."""
_FFT_TILE = re.compile(r"(?:r2c|c2r)_(\d+)x(\d+)")

# 2:4: s16832spgemm, SparseGemm, cutlass3x_sm100_sptensorop
SPARSE = re.compile(
    r"(?<![a-z])(?<!block_)(?:sparse|spgemm|spmma)(?![a-z])|sparse(?:gemm|tensorop)|sptensorop",
    re.IGNORECASE,
)
COMPLEX = 4
"""Multiply-adds of a complex product."""


@dataclass(frozen=True, slots=True)
class CountBreakdown:
    """FLOPs of one step."""

    estimated: float
    base: float
    """Products as predicted; ``estimated`` where no rule predicts."""
    rules: tuple[str, ...]
    """How ``base`` was predicted; () where it was not."""
    method: str | None
    """In words, of the algorithm that the layer's kernels are: "winograd F(2x2,3x3)", "implicit
    gemm", "fft"."""
    family: str | None
    products: Kernels
    seen: float
    """Executed FLOPs of ``products``, as multiply-adds."""
    transforms: float = 0
    transforming: Kernels = ()
    repeated: float = 0
    repeating: Kernels = ()
    summed: float = 0
    summing: Kernels = ()
    extra: float = 0
    extras: Kernels = ()
    several: Kernels = ()
    """Products that each do the whole layer, one after the other; the other parts are then
    not separated."""
    called: float = 0
    """Launches of a whole product beyond those of the step, by their grids."""
    onto: float = 0
    """Multiply-adds of products onto what is in their output; a part of ``extra``, and not
    of ``seen``."""

    def compute_flop_factor_of_part(self, part: str) -> float:
        """By what factor one part (called, transforms, repeated, summed or extra) makes the parts
        before it grow.

        Where more was counted than predicted, the products are taken as counted: a small part of a
        large count is not a large one.
        """
        parts = ("called", "transforms", "repeated", "summed", "extra")
        launched = max(self.seen - self.called, 0.0)
        base = max(self.base, launched) if self.rules or not self.seen else launched
        before = base + sum(float(getattr(self, name)) for name in parts[: parts.index(part)])
        return 1 + float(getattr(self, part)) / before if before else 1.0


def break_down_executed_flops(
    evidence: RowEvidence, forward: RowEvidence | None, other_layer_launches: int | None = None
) -> CountBreakdown:
    """Return the parts of a row's count.

    ``forward``: the same layer's forward row at the same batch size, for a row of its gradients.
    ``other_layer_launches``: see ``predict_product_flops_from_tiles``.
    """
    if several := _find_kernels_doing_full_layer(evidence):
        products = tuple(kernel for kernel, _ in several)
        base = sum(2 * multiplies * kernel.launches for kernel, multiplies in several)
        product_flops = sum_multiply_add_flops(products)
        return CountBreakdown(
            evidence.estimated_flops,
            base,
            (),
            None,
            None,
            products,
            product_flops,
            several=products,
        )
    repeating = _find_recomputed_forward_kernels(evidence, forward)
    own_kernels = [
        _convert_sparse_counts_to_dense(kernel)
        for kernel in _remove_repeated_launches(evidence.kernels, repeating)
    ]
    products = tuple(kernel for kernel in own_kernels if kernel.is_main_product_kernel)
    # a convolution by itself is no product between transforms: theirs was not recorded
    has_own = any(kernel.algorithm.family not in DIRECT for kernel in products) or not products
    roles = ("transform", "offsets") if has_own else ("offsets",)
    algorithm = choose_main_layer_algorithm(
        kernel.name
        for kernel in own_kernels
        if kernel.is_main_product_kernel or kernel.algorithm.role in roles
    )
    predicted = _predict_product_flops(
        evidence, own_kernels, algorithm.family, other_layer_launches
    )
    is_transformed = algorithm.family in TRANSFORMED
    # what the products execute beyond multiply-adds: transforms in a fused Winograd kernel, else
    # an epilogue
    fused = tuple(
        kernel for kernel in products if kernel.executed_flops > kernel.multiply_add_flops
    )
    shapes = (
        ()
        if is_transformed
        else (*evidence.verified_product_shapes, *evidence.unverified_weight_gradient_shapes)
    )
    sums = [(kernel, fadd) for kernel in fused if (fadd := count_split_k_additions(kernel, shapes))]
    added = sum(fadd for _, fadd in sums)
    within = sum_executed_flops(fused) - sum_multiply_add_flops(fused) - added
    epilogue = 0.0 if is_transformed else within + predicted.onto
    summing = tuple(kernel for kernel in own_kernels if kernel.algorithm.role == "reduction")
    helpers = [kernel for kernel in own_kernels if not kernel.is_main_product_kernel]
    transforming = tuple(kernel for kernel in helpers if kernel.algorithm.family in TRANSFORMED)
    extras = tuple(kernel for kernel in helpers if kernel not in (*transforming, *summing))
    return CountBreakdown(
        evidence.estimated_flops,
        predicted.flops,
        predicted.rules,
        algorithm.method,
        algorithm.family,
        products,
        sum_multiply_add_flops(products) - predicted.onto,
        transforms=sum_executed_flops(transforming) + (within if is_transformed else 0.0),
        transforming=transforming,
        repeated=sum_executed_flops(repeating),
        repeating=repeating,
        summed=sum_executed_flops(summing) + added,
        summing=(*summing, *(kernel for kernel, _ in sums)),
        extra=sum_executed_flops(extras) + epilogue,
        extras=(*extras, *(fused if epilogue else ())),
        called=predicted.called,
        onto=predicted.onto,
    )


def _convert_sparse_counts_to_dense(kernel: KernelGroup) -> KernelGroup:
    """Return a kernel of 2:4 sparsity with the FLOPs of all multiplies, of which it does half."""
    tensor, flops = kernel.tensor.value, kernel.flops.value
    if not SPARSE.search(kernel.name) or not tensor or flops is None:
        return kernel
    return replace(
        kernel,
        tensor=replace(kernel.tensor, value=2 * tensor),
        flops=replace(kernel.flops, value=flops + tensor),
    )


def _remove_repeated_launches(
    kernels: Sequence[KernelGroup], repeating: Sequence[KernelGroup]
) -> list[KernelGroup]:
    """Return the kernels without the launches that forward's kernels have in ``repeating``; those
    with further launches come last."""
    repeated = {kernel.name_and_grid: kernel.launches for kernel in repeating}
    reduced = [
        kernel.scale_to_launches(kernel.launches - repeated[kernel.name_and_grid])
        for kernel in kernels
        if kernel.launches > repeated.get(kernel.name_and_grid, float("inf"))
    ]
    return [*(kernel for kernel in kernels if kernel.name_and_grid not in repeated), *reduced]


def _predict_product_flops(
    evidence: RowEvidence,
    own_kernels: Sequence[KernelGroup],
    family: str | None,
    other_layer_launches: int | None,
) -> PredictedProducts:
    """Return the products as tiles and transforms say; the estimated ones if nothing is known."""
    products = [kernel for kernel in own_kernels if kernel.is_main_product_kernel]
    is_gradient = evidence.row.direction != "forward"
    # next to one gradient by Fourier transforms, another's product
    is_mixed = family == "fft" and is_gradient
    plain = [
        kernel for kernel in products if not is_mixed or not COMPLEX_PRODUCT.search(kernel.name)
    ]
    # what a kernel does on tensor cores is the product, if that is all of it
    tensor = sum(kernel.tensor.value or 0 for kernel in products)
    is_all = (
        tensor > 0
        and all(kernel.tensor.value for kernel in products)
        and compute_log_ratio_distance(tensor, evidence.estimated_flops) < log(1 + WHOLE)
    )
    beside = sum_multiply_add_flops(products) - tensor if is_all else 0.0
    nothing = PredictedProducts(evidence.estimated_flops, (), 0.0, beside)
    predicted = predict_product_flops_from_tiles(evidence, plain, other_layer_launches) or nothing
    if (
        family in TRANSFORMED
        and (ruled := predict_product_flops_from_rules(evidence, products)) is not None
    ):
        return ruled
    if family == "fft":
        is_trial = len(products) > evidence.estimated_product_count
        base = predicted if is_mixed and not is_trial else nothing
        flops, rules = _predict_fft_flops(evidence, own_kernels, base)
    elif family == "winograd" and (
        not predicted.rules
        or (is_gradient and _count_winograd_products(own_kernels, evidence.calls) > 1)
    ):
        flops, rules = _predict_winograd_flops(evidence, own_kernels)
    else:
        return predicted
    return predicted._replace(flops=flops, rules=rules)


def _find_recomputed_forward_kernels(evidence: RowEvidence, forward: RowEvidence | None) -> Kernels:
    """Return forward's kernels that ran again among the gradients' own; () unless others suffice
    for the gradients.

    A kernel that forward runs too may be a gradient's: cuDNN uses the same one for both where the
    shapes allow it. So only others that do a gradient's work (a quarter of its multiply-adds at
    least, as Winograd F(4x4) does) count.
    """
    if (
        forward is None
        or evidence.row.direction == "forward"
        or _find_kernels_doing_full_layer(forward)
    ):
        return ()
    products = forward.product_kernels
    if (
        forward.forward is not None
        and sum(kernel.multiply_add_flops > 0 for kernel in products) > 1
    ):
        return ()  # trials, or another layer's kernels
    before = {kernel.name_and_grid: kernel.launches for kernel in forward.kernels}
    repeated = {
        kernel.name_and_grid: kernel.scale_to_launches(before[kernel.name_and_grid])
        for kernel in evidence.kernels
        if kernel.launches >= before.get(kernel.name_and_grid, float("inf"))
    }
    if not any(kernel.is_main_product_kernel for kernel in repeated.values()):
        return ()
    if any(kernel.name_and_grid not in repeated for kernel in products):
        return ()
    # a smaller batch than paper's: all kernels have less
    less = min(evidence.row.ratio or 1.0, 1.0) * LEAST_MULTIPLIES
    gradients, launches = evidence.estimated_product_count, count_launches(products)
    least_work = less * evidence.estimated_flops / max(gradients, 1)
    if not any(
        kernel.is_main_product_kernel and kernel.algorithm.family == "attention"
        for kernel in evidence.kernels
    ):
        # attention of several products has two in backward for each of forward; steps and calls
        # launch all of them again
        needed = (
            round(evidence.estimated_flops / forward.estimated_flops)
            if forward.estimated_flops
            else 1
        )
        least_work = min(least_work, less * forward.estimated_flops / max(launches, 1))
        gradients = max(gradients, needed) * max(round(launches), 1)
    other_launches = sum(
        kernel.launches - before.get(kernel.name_and_grid, 0.0)
        for kernel in evidence.product_kernels
        if kernel.flops.value is None
        or kernel.flops.lower_bound
        or kernel.multiply_add_flops >= least_work * kernel.launches
    )
    # more than the gradients need may be trials or a second backward, whose kernels forward may
    # have in common
    most = max(2 * gradients - launches, gradients + 1)
    is_partial = evidence.row.executed.lower_bound
    suffice = gradients <= other_launches < most if is_partial else other_launches == gradients
    return tuple(repeated.values()) if suffice else ()


def _find_kernels_doing_full_layer(evidence: RowEvidence) -> tuple[tuple[KernelGroup, float], ...]:
    """Return (kernel, multiplies that its name, its grid and the shape predict) of products that
    each do the complete layer."""
    if (
        evidence.row.direction != "forward"
        or len(evidence.verified_product_shapes) != 1
        or evidence.calls != 1
    ):
        return ()
    (shape,) = evidence.verified_product_shapes
    is_tried = evidence.environment.get("cudnn_benchmark") == "on"
    is_dense = not isinstance(shape, ConvShape) or shape.groups == 1
    complete: list[tuple[KernelGroup, float]] = []
    for kernel in evidence.product_kernels:
        algorithm, predicted = kernel.algorithm, 0.0
        if (
            kernel.multiply_adds_per_launch
            and kernel.grid
            and algorithm.library != "triton"
            and is_dense
        ):
            predicted = next((cut.padded_macs for cut in list_fitting_tilings(kernel, shape)), 0.0)
        near = CLOSE if predicted or algorithm.winograd else EXACT
        if not predicted and is_tried and isinstance(shape, ConvShape):
            if algorithm.winograd:
                predicted = count_winograd_multiplies(shape, *algorithm.winograd)
            elif algorithm.family in DIRECT:
                predicted = shape.macs
            elif COMPLEX_PRODUCT.search(kernel.name):
                predicted = _count_fft_product_multiplies(evidence, kernel, shape)
        if TEMPLATE in kernel.name and isinstance(shape, GemmShape):
            predicted = predicted or shape.macs
        if (
            kernel.multiply_adds_per_launch
            and predicted
            and compute_log_ratio_distance(kernel.multiply_adds_per_launch, predicted) < near
        ):
            complete.append((kernel, predicted))
    counted = sum_multiply_add_flops(kernel for kernel, _ in complete)
    is_all = (
        sum_multiply_add_flops(evidence.product_kernels) - counted <= counted * LEAST_MULTIPLIES / 4
    )
    return tuple(complete) if len(complete) > 1 and is_all else ()


def _count_fft_product_multiplies(
    evidence: RowEvidence, kernel: KernelGroup, shape: ConvShape
) -> float:
    """Return the multiplies of a product between Fourier transforms of forward, in complete blocks,
    if grid and count fit one; else 0."""
    sizes = (match for item in evidence.kernels if (match := _FFT_TILE.search(item.name)))
    for size in {int(match[1]) for match in sizes}:
        if size >= max(shape.kernel_h, shape.kernel_w):
            (product,) = _list_fft_gemm_shapes(evidence, shape, size).values()
            if blocks := _count_padded_fourier_multiplies(kernel, product):
                return blocks
    return 0


def count_winograd_multiplies(shape: ConvShape, m: int, r: int) -> float:
    """(m + r - 1)^2 multiplies for each tile of m x m outputs and each pair of channels; tiles at
    the edge are whole."""
    tiles = shape.batch * ceil(shape.out_h / m) * ceil(shape.out_w / m)
    return tiles * (m + r - 1) ** 2 * shape.in_channels * shape.out_channels / shape.groups


def _predict_winograd_flops(
    evidence: RowEvidence, own_kernels: Sequence[KernelGroup]
) -> tuple[float, tuple[str, ...]]:
    """Return the FLOPs of F(m x m, r x r) and their rule: (m + r - 1)^2 multiplies for m^2 outputs
    of r^2 products; whole tiles where the shape is known."""
    sizes = next(
        (kernel.algorithm.winograd for kernel in own_kernels if kernel.algorithm.winograd), None
    )
    if sizes is None:
        return evidence.estimated_flops, ()
    m, r = sizes
    share = ((m + r - 1) / (m * r)) ** 2
    rule = f"{m + r - 1}^2 multiplies in place of {m}^2 x {r}^2"
    shape = next(
        iter([*evidence.verified_product_shapes, *evidence.unverified_input_gradient_shapes]), None
    )
    if isinstance(shape, ConvShape) and (shape.kernel_h, shape.kernel_w) == (r, r):
        share = count_winograd_multiplies(shape, m, r) / shape.macs
        rule += ", including tiles at the edge"
        blocks = (kernel.algorithm.winograd_block for kernel in own_kernels)
        block = next((block for block in blocks if block), None)
        if block is not None and sizes == (2, 3) and shape.groups == 1:
            share = build_fused_winograd_tiling(shape, block).padded_macs / shape.macs
            rule += f" and blocks of {' x '.join(map(str, block))} tiles filled"
        for kernel in own_kernels if sizes == (4, 3) and shape.groups == 1 else ():
            # the product between the transforms, whichever batch ran: one side of its grid has
            # the channels
            tile, grid, is_gemm = (
                kernel.algorithm.tile,
                kernel.grid,
                kernel.algorithm.family == "gemm",
            )
            if not (
                kernel.is_main_product_kernel
                and is_gemm
                and tile
                and grid
                and grid[2] == WINOGRAD_PRODUCTS
            ):
                continue
            sides = _find_tile_orientations(grid, tile, shape.out_channels)
            cuts = [
                Tiling(convert_to_unfused_winograd_gemm(shape), side, step=tile[2])
                for side in sides
            ]
            if len({cut.padded_macs for cut in cuts}) > 1:
                return evidence.estimated_flops, ()  # how many channels are padded is not known
            if cuts:
                share, rule = (
                    cuts[0].padded_macs / shape.macs,
                    cuts[0].describe_arithmetic(shape.macs),
                )
    gradients = max(evidence.estimated_product_count, 1)
    part = min(_count_winograd_products(own_kernels, evidence.calls), gradients) / gradients or 1.0
    if (count := part * gradients * evidence.calls) % evidence.calls:
        rule += f"; {count:g} of {evidence.calls * gradients} products"
    return evidence.estimated_flops * (1 - part + part * share), (rule,)


def _find_tile_orientations(
    grid: Grid, tile: tuple[int, int, int | None], channels: int
) -> list[tuple[int, int]]:
    """(along the rows, along the channels): how the tile may lie so that a side of the grid has the
    channels' blocks."""
    both = dict.fromkeys((tile[:2], tile[1::-1]))
    return [(m, n) for m, n in both if ceil(channels / n) in grid[:2]]


def has_grid_of_other_channels(kernel: KernelGroup, shape: Shape | None) -> bool:
    """Return True if grid and count of a transformed product show other channels than the layer's,
    whatever the batch size."""
    grid, tile, block = kernel.grid, kernel.algorithm.tile, kernel.algorithm.winograd_block
    if grid is None or not kernel.multiply_add_flops or kernel.flops.lower_bound:
        return False
    if not isinstance(shape, ConvShape):
        return False
    if block is not None:
        fits_grid = grid[0] % ceil(shape.out_channels / FUSED_CHANNELS) == 0
        area = prod(block) * FUSED_CHANNELS * 16
    elif tile is not None and kernel.algorithm.family == "gemm" and grid[2] > 1:
        outputs = shape.out_channels // shape.groups
        points = {WINOGRAD_PRODUCTS, *(size * (size // 2 + 1) * shape.groups for size in (16, 32))}
        fits_grid = grid[2] in points and bool(_find_tile_orientations(grid, tile, outputs))
        area = tile[0] * tile[1] * (1 if grid[2] == WINOGRAD_PRODUCTS else 4)
    else:
        return False
    depth = kernel.multiply_adds_per_launch / (prod(grid) * area)
    return not (fits_grid and _find_k_padding_step(depth, shape.in_channels // shape.groups))


def _find_k_padding_step(counted_depth: float, depth: int) -> int | None:
    """Return the step to whose multiple a sum is padded, so that it is as deep as counted."""
    steps = (
        step
        for step in (1, *DEPTH_STEPS)
        if compute_log_ratio_distance(counted_depth, round_up(depth, step)) < EXACT
    )
    return next(steps, None)


def _count_winograd_products(own_kernels: Sequence[KernelGroup], calls: int) -> float:
    """Return how many products of each call run as Winograd: fused kernels, and output transforms
    of others."""
    winograds = (
        kernel
        for kernel in own_kernels
        if (kernel.is_main_product_kernel and kernel.algorithm.family == "winograd")
        or (
            not kernel.is_main_product_kernel
            and "output" in kernel.name.lower().partition("winograd")[2]
        )
    )
    return sum(min(kernel.launches / calls, 1) for kernel in winograds)


def _predict_fft_flops(
    evidence: RowEvidence, own_kernels: Sequence[KernelGroup], other_products: PredictedProducts
) -> tuple[float, tuple[str, ...]]:
    """Return the FLOPs and rules of t x (t/2 + 1) complex products of 4 multiply-adds for the
    (t - r + 1)^2 outputs of a tile of t x t points.

    The gradient of the input is such a convolution with the channels exchanged; that of the filter
    sums over the tiles. ``other_products``: the prediction of the products by other kernels.
    """
    size = next((match for kernel in own_kernels if (match := _FFT_TILE.search(kernel.name))), None)
    shape, t = evidence.forward, int(size[1]) if size else 0
    if not isinstance(shape, ConvShape) or t < max(shape.kernel_h, shape.kernel_w):
        return evidence.estimated_flops, ()
    products = _list_fft_gemm_shapes(evidence, shape, t)
    papers = {call.direction: call.flops or 0 for call in evidence.row.calls}
    flops, rules = other_products.flops, list(other_products.rules)
    for direction, blocks in _find_fft_multiplies_by_direction(
        evidence, own_kernels, products
    ).items():
        product = products[direction]
        flops += 2 * evidence.calls * (blocks or product.macs * COMPLEX)
        flops -= evidence.estimated_flops * papers[direction] / sum(papers.values())
        tiles = product.k if direction == "grad_weight" else product.m
        rule = f"{tiles:,} tiles of {t} x {t} points, {t} x {t // 2 + 1} complex products each"
        rules.append(f"{rule}, in complete blocks" if blocks else rule)
    return (
        (flops, tuple(rules))
        if len(rules) > len(other_products.rules)
        else (evidence.estimated_flops, ())
    )


def _list_fft_gemm_shapes(
    evidence: RowEvidence, shape: ConvShape, tile_size: int
) -> Mapping[str, GemmShape]:
    """Return direction -> the product at each point of a tile, of each group, for the
    estimated ones whose tiles are known."""
    points = shape.groups * tile_size * (tile_size // 2 + 1)
    outputs, inputs = shape.out_channels // shape.groups, shape.in_channels // shape.groups
    # tiles over the outputs, and over the inputs
    tiles, input_tiles = (
        shape.batch
        * ceil(height / (tile_size - shape.kernel_h + 1))
        * ceil(width / (tile_size - shape.kernel_w + 1))
        for height, width in ((shape.out_h, shape.out_w), evidence.image or (0, 0))
    )
    products = {
        "forward": GemmShape(tiles, outputs, inputs, points),
        "grad_weight": GemmShape(outputs, inputs, tiles, points),
        "grad_input": GemmShape(input_tiles, inputs, outputs, points),
    }
    estimated = {call.direction for call in evidence.row.calls if call.flops}
    if evidence.image is None:
        estimated.discard("grad_input")
    return {direction: product for direction, product in products.items() if direction in estimated}


def _find_fft_multiplies_by_direction(
    evidence: RowEvidence, own_kernels: Sequence[KernelGroup], products: Mapping[str, GemmShape]
) -> Mapping[str, int | None]:
    """Return direction -> multiplies in complete blocks (None: not known), of the products that run
    as Fourier transforms."""
    complexes = [
        kernel
        for kernel in own_kernels
        if kernel.is_main_product_kernel and COMPLEX_PRODUCT.search(kernel.name)
    ]
    kernels = [
        kernel
        for kernel in own_kernels
        if kernel.is_main_product_kernel and (kernel.grid or kernel in complexes)
    ]
    if evidence.row.direction == "forward":
        multiplies = (
            _count_padded_fourier_multiplies(kernel, product)
            for kernel in kernels
            for product in products.values()
        )
        return dict.fromkeys(products, next(filter(None, multiplies), None))
    transformed: dict[str, int | None] = {}
    for kernel in kernels:
        fits = {
            direction: blocks
            for direction, product in products.items()
            if direction not in transformed
            and (blocks := _count_padded_fourier_multiplies(kernel, product))
        }
        if len(fits) in (1, kernel.launches / evidence.calls):
            transformed |= fits
    gradients = evidence.estimated_product_count
    if (
        not transformed
        and not any(kernel.grid for kernel in complexes)
        and count_launches(complexes) == gradients * evidence.calls
    ):
        return dict.fromkeys(products if len(products) == gradients else ())
    return transformed


def _count_padded_fourier_multiplies(kernel: KernelGroup, product: GemmShape) -> int | None:
    """Return the multiplies of the complex products, blocks that are not filled included, if grid
    and count fit: z has the points."""
    tile, grid = kernel.algorithm.tile, kernel.grid
    if not tile or not grid or grid[2] != product.batch or not kernel.multiply_add_flops:
        return None
    step = _find_k_padding_step(
        kernel.multiply_adds_per_launch / (prod(grid) * prod(tile[:2]) * COMPLEX), product.k
    )
    if step is None:
        return None
    cuts = (
        Tiling(product, sides, step=step)
        for sides in _find_tile_orientations(grid, tile, product.n)
    )
    multiplies = {cut.padded_macs * COMPLEX for cut in cuts}
    return multiplies.pop() if len(multiplies) == 1 else None
