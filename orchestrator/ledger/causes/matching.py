"""Which products the launches of a row are: the tiles that counts/ predicts from kernel names,
grids and shapes, compared with what was counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import ceil, inf, log, prod
from typing import NamedTuple

from perfctl.orchestrator.counts.derived.records import Launch, LaunchWork
from perfctl.orchestrator.counts.derived.rules import derive_instructions
from perfctl.orchestrator.counts.kernels.grids import (
    STEP,
    WHOLE,
    ConvShape,
    GemmShape,
    Tiling,
    list_tilings,
    parse_slice_count,
    predict_forward_tiles,
    round_up,
)
from perfctl.orchestrator.ledger.causes.evidence import (
    KernelGroup,
    RowEvidence,
    count_launches,
    sum_multiply_add_flops,
)
from perfctl.orchestrator.ledger.causes.layer_shapes import Shape

CLOSE = log(1.2)
"""Largest distance, as a logarithm, between predicted and counted multiplies of a forward
product."""
EXACT = log(1.02)
"""Largest distance in gradients, for whose grids no measurement verified the formula."""
ENOUGH = 0.75
"""Share of the multiplies of a complete launch from which a part of the batch is as likely as a
further call."""
TILES = (1, 8, 16, 32, 64, 96, 128, 192, 256)
WIDTHS = (1, 32, 64, 128, 256)
DEPTH_STEPS = (4, 8, 16, 32)
"""Steps along the sum that SIMT kernels take."""
UNTILED = ("direct", "depthwise", "matrix times vector")
"""Methods of kernels that fill no tiles."""
TRANSFORMED = ("winograd", "fft")
INDUCTOR = (16, 32, 64, 128, 256)
"""Sides of tiles, and steps, of PyTorch's Triton templates. They shrink to the next power of two of
what they cover."""
_LOADS = re.compile(r"_alignc(\d+)")
"""Channels that a kernel of cuDNN loads at a time; it may fill up those of its input."""
_BY_COUNT = (
    "no name contains its tile; of the tiles that fit its grid, only this one fits its count"
)


class TileMatch(NamedTuple):
    """The tiles of a kernel's launches, which fit its count."""

    tiling: Tiling
    launches: int = 1
    """Launches of one call, each for a part of the batch."""
    onto: float = 0.0
    """Multiply-adds of one launch onto what is in its output."""


class PredictedProducts(NamedTuple):
    """FLOPs of a step, as the matched tiles say."""

    flops: float
    """Estimated FLOPs of the products."""
    rules: tuple[str, ...]
    """How each was predicted; () if none was."""
    called: float
    """FLOPs of further launches of the same products."""
    onto: float
    """FLOPs of sums onto what is in the output."""


def compute_log_ratio_distance(first: float, second: float) -> float:
    """Return how far two counts are apart, as a logarithm: half is as far as double, and 0 is
    infinitely far from any other count."""
    if not (first and second):
        return 0.0 if first == second else inf
    return abs(log(first / second))


def convert_to_gemm(shape: Shape) -> GemmShape:
    """Return the shape as one product, the groups of a convolution next to each other."""
    if isinstance(shape, GemmShape):
        return shape
    return GemmShape(shape.output_positions, shape.out_channels, shape.macs_per_output)


def list_fitting_tilings(kernel: KernelGroup, shape: Shape) -> list[Tiling]:
    """Return the tilings of one launch that fit the shape: by grid, or all without one."""
    if (grouped := find_per_group_tiling(kernel, shape)) is not None:
        return [grouped]
    algorithm = kernel.algorithm
    if (loads := _LOADS.search(kernel.name)) and isinstance(shape, ConvShape):
        filled = replace(shape, in_channels=round_up(shape.in_channels, int(loads[1])))
        cuts = (
            list_fitting_tilings(kernel, filled)
            if filled != shape and kernel.multiply_add_flops
            else []
        )
        if (
            cuts
            and compute_log_ratio_distance(kernel.multiply_adds_per_launch, cuts[0].padded_macs)
            < EXACT
        ):
            return cuts
    if (
        isinstance(shape, GemmShape)
        and algorithm.family == "conv"
        and algorithm.direction in (None, "grad_weight")
    ):
        # a filter's gradient, of ``unverified_weight_gradient_shapes``
        algorithm = replace(algorithm, family="gemm", direction=None)
    if algorithm.tile is None and algorithm.library == "triton":
        return _find_unique_triton_tiling(kernel, shape)
    prediction = predict_forward_tiles(algorithm, kernel.grid or None, shape)
    return (
        [_choose_k_step_fitting_count(tiling, kernel) for tiling in prediction.tilings]
        if prediction
        else []
    )


def _choose_k_step_fitting_count(tiling: Tiling, kernel: KernelGroup) -> Tiling:
    """Return the tiling with the step along the sum that fits the count, unless it is named."""
    if (
        tiling.step
        or not kernel.multiply_add_flops
        or kernel.algorithm.family not in ("conv", "gemm")
    ):
        return tiling
    for step in DEPTH_STEPS:  # each slice takes complete steps of its own
        stepped = replace(tiling, step=parse_slice_count(kernel.name) * step)
        is_padded = stepped.padded_k != tiling.padded_k
        if (
            is_padded
            and compute_log_ratio_distance(kernel.multiply_adds_per_launch, stepped.padded_macs)
            < EXACT
        ):
            return stepped
    return tiling


def find_per_group_tiling(kernel: KernelGroup, shape: Shape) -> Tiling | None:
    """Return the tiling of a grouped convolution whose groups each have tiles of their own, in the
    grid's z.

    Without a recorded grid the count decides; the same count may then be that of all groups as one.
    """
    tile = kernel.algorithm.tile
    if not isinstance(shape, ConvShape) or shape.groups == 1 or tile is None:
        return None
    if kernel.algorithm.family != "conv":
        return None
    tiling = _choose_k_step_fitting_count(
        Tiling(shape.implicit_gemm, tile[:2], step=tile[2]), kernel
    )
    if kernel.grid:
        fits = kernel.grid[2] == shape.groups and prod(kernel.grid[:2]) == prod(tiling.tile_counts)
    else:
        counted = kernel.multiply_adds_per_launch
        fits = counted > 0 and compute_log_ratio_distance(counted, tiling.padded_macs) <= EXACT
    return tiling if fits else None


def _find_unique_triton_tiling(kernel: KernelGroup, shape: Shape) -> list[Tiling]:
    """Return the tiling of a Triton kernel, whose tile is in no name, if only one filling fits grid
    and count."""
    if not kernel.grid or not kernel.multiply_adds_per_launch or getattr(shape, "groups", 1) != 1:
        return []
    gemm = convert_to_gemm(shape)
    sides = (
        [side for side in INDUCTOR if side < 2 * size or side == INDUCTOR[0]]
        for size in (gemm.m, gemm.n, gemm.k)
    )
    candidates = (Tiling(gemm, (m, n), step=step) for m, n, step in product(*sides))
    fitting = {
        tiling.padded_macs: tiling
        for tiling in candidates
        if prod(tiling.tile_counts) * gemm.batch == prod(kernel.grid)
        and compute_log_ratio_distance(kernel.multiply_adds_per_launch, tiling.padded_macs) < EXACT
    }
    return list(fitting.values()) if len(fitting) == 1 else []


def _match_gemm_tiles_by_fmul(kernel: KernelGroup, shape: Shape) -> TileMatch | None:
    """Return the tiles of a product, and how its sum is split, by its FMUL, which scales by alpha;
    a recorded grid has to agree.

    cuBLAS computes C = alpha A B + beta C. Each block scales its tile once, and so does each slice
    of a ``sliced1xS`` kernel, whose sums are added afterwards: FMUL is tiles x m x n x slices x
    split. Every part of a split sum, the shorter last one too, is padded by itself to steps of 8
    for each slice. Parts may be added to C one after the other: a multiply-add for each value of
    the tile and each part but the first; also for that one if beta is not 0 (a bias, for PyTorch).
    """
    tile, scale = kernel.algorithm.tile, kernel.counts.get("fmul", 0) / kernel.launches
    is_gemm = kernel.algorithm.family == "gemm" and not kernel.algorithm.tensor_core
    if tile is None or not scale or not is_gemm or not isinstance(shape, GemmShape):
        return None
    slices = parse_slice_count(kernel.name)
    matches: list[tuple[float, TileMatch]] = []
    for each in dict.fromkeys((slices, 1)):
        for cut in list_tilings(shape, tile[:2], kernel.grid or None, scale / each):
            if abs(scale / cut.values / each - cut.parts) > WHOLE * cut.parts:
                continue
            for step, onto in product(
                (STEP * slices, *DEPTH_STEPS, 1), sorted({0, cut.parts - 1, cut.parts})
            ):
                stepped = replace(cut, step=step)
                apart = compute_log_ratio_distance(
                    kernel.multiply_adds_per_launch, cut.values * (stepped.padded_k + onto)
                )
                if apart < (WHOLE if onto else EXACT):
                    matches.append((apart, TileMatch(stepped, onto=cut.values * onto)))
    return min(matches, key=lambda item: item[0])[1] if matches else None


def _match_tiles_to_count(
    kernel: KernelGroup, shape: Shape, launches: int, max_log_distance: float
) -> TileMatch | None:
    """Return what a shape asks of a kernel if its count fits that: the batch may be split over the
    launches."""
    if (
        find_per_group_tiling(kernel, shape) is None
        and (scaled := _match_gemm_tiles_by_fmul(kernel, shape)) is not None
    ):
        return scaled
    is_gemm = isinstance(shape, GemmShape)
    if is_gemm and not kernel.grid and kernel.counts.get("fmul") and "sgemm" in kernel.name:
        return None  # FMUL contradicts the tiles of this shape
    rows = shape.m if isinstance(shape, GemmShape) else shape.batch
    for parts in dict.fromkeys((1, max(launches, 1))):
        for tiling in (
            ()
            if rows % parts
            else list_fitting_tilings(kernel, _get_batch_part_shape(shape, parts))
        ):
            fewer = list_divisors_above_1(parts)[:-1]
            if any(
                _can_part_need_equal_tiles(kernel, shape, count, tiling.padded_macs)
                for count in fewer
            ):
                return None  # some of the launches may be further calls
            bound = max_log_distance if kernel.grid else EXACT
            onto = tiling.values if tiling.is_xmma else 0  # a multiply-add scales each value
            if (
                compute_log_ratio_distance(
                    kernel.multiply_adds_per_launch, tiling.padded_macs + onto
                )
                <= bound
            ):
                return TileMatch(tiling, parts, onto=onto)
    return None


def predict_product_flops_from_tiles(
    evidence: RowEvidence, products: Sequence[KernelGroup], other_layer_launches: int | None = None
) -> PredictedProducts | None:
    """Return the FLOPs of the step's products by their tiles; None if none matches.

    Each product's grid is compared with each shape that the row may have. ``other_layer_launches``:
    how often every product of the other layers was launched. A product launched more often than
    that may be further calls, or parts of one batch in tiles of their own; if its grid fits both,
    nothing is predicted.
    """
    base, called, onto, calls = evidence.estimated_flops, 0.0, 0.0, evidence.calls
    rules: list[str] = []
    open_shapes = [
        *evidence.verified_product_shapes,
        *evidence.unverified_input_gradient_shapes,
        *evidence.unverified_weight_gradient_shapes,
    ]
    # derived counts are those of the rules, so that they agree with any of them
    open_works = [] if evidence.derived else [*evidence.estimated_product_works]
    near = CLOSE if evidence.row.direction == "forward" else EXACT
    if sum(kernel.multiply_add_flops > 0 for kernel in products) > max(
        evidence.estimated_product_count, 1
    ):
        return None  # trials, or work done again: which of them is the layer's is not known
    for kernel in products:
        if kernel.launches % calls or not kernel.launches or not kernel.multiply_add_flops:
            continue
        if (
            kernel.launches == calls
            and (ruled := _find_product_by_derived_count(kernel, open_works)) is not None
        ):
            base += (ruled.executed - ruled.estimated) * calls
            onto += kernel.multiply_add_flops - ruled.executed * calls
            rules.append(ruled.rule + (f"; {calls} calls" if calls > 1 else ""))
            open_works.remove(ruled.work)
            open_shapes = [shape for shape in open_shapes if shape != ruled.work.shape]
            continue
        for shape in open_shapes:
            match = _match_tiles_to_count(kernel, shape, int(kernel.launches) // calls, near)
            if match is None:
                continue
            multiplies = match.tiling.padded_macs
            extra = kernel.launches / calls / (other_layer_launches or 1)
            parts = (
                list_divisors_above_1(ceil(extra))
                if other_layer_launches and match.launches == 1
                else ()
            )
            if any(_can_part_need_equal_tiles(kernel, shape, count, multiplies) for count in parts):
                break
            base += 2 * (multiplies * match.launches - shape.macs) * calls
            called += 2 * multiplies * (kernel.launches - match.launches * calls)
            onto += 2 * match.onto * kernel.launches
            rules.append(_describe_tile_match(match, kernel, shape, calls))
            open_shapes.remove(shape)
            break
    return PredictedProducts(base, tuple(rules), called, onto) if rules else None


def predict_product_flops_from_rules(
    evidence: RowEvidence, products: Sequence[KernelGroup]
) -> PredictedProducts | None:
    """Return the FLOPs of products between transforms, if rules of counts/ give exactly what each
    of them counted; else None."""
    flops, rules, open_works = 0.0, [], [*evidence.estimated_product_works]
    if evidence.derived or len(products) != evidence.estimated_product_count:
        return None
    for kernel in products:
        ruled = _find_product_by_derived_count(
            kernel, open_works
        ) or _find_product_by_derived_count(kernel, open_works, "ffma")
        if kernel.launches != evidence.calls or ruled is None:
            return None
        flops += ruled.executed * kernel.launches
        rules.append(ruled.rule)
        open_works.remove(ruled.work)
    return PredictedProducts(flops, tuple(rules), 0.0, 0.0)


class RuledProduct(NamedTuple):
    """A product of which a rule of counts/ gives exactly what was counted; FLOPs of one launch."""

    work: LaunchWork
    executed: float
    estimated: int
    rule: str


def _find_product_by_derived_count(
    kernel: KernelGroup, works: Sequence[LaunchWork], instruction_path: str = "tensor"
) -> RuledProduct | None:
    """Return the product whose derived FLOPs are those counted on tensor cores, or as FFMA.

    Tiles, clusters, channels filled up and parts of the sum are then known. All multiply-adds of
    FFMA beside tensor cores are the epilogue's.
    """
    is_tensor = instruction_path == "tensor"
    total = kernel.tensor.value if is_tensor else kernel.counts.get(instruction_path)
    launch = Launch(kernel.name, kernel.grid, cluster=kernel.cluster)
    for work in works if total and kernel.algorithm.tensor_core is is_tensor else ():
        derived = derive_instructions(launch, work)
        count = None if derived is None else derived.tensor if is_tensor else derived.ffma
        if derived and count and total and abs(count * kernel.launches / total - 1) < WHOLE:
            estimated = 2 * (work.forward or work.shape).macs
            numbers = f"estimated {estimated if is_tensor else estimated // 2:,}"
            rule = f"{derived.rule} ({numbers}), measured {total / kernel.launches:,.0f}"
            return RuledProduct(work, count if is_tensor else 2 * count, estimated, rule)
    return None


def _describe_tile_match(match: TileMatch, kernel: KernelGroup, shape: Shape, calls: int) -> str:
    """Return how the multiplies of a matched kernel come about."""
    is_implicit = isinstance(shape, ConvShape) and match.tiling.shape.k == shape.macs_per_output
    names = ("output positions", "channels") if is_implicit else ("", "")
    rule = match.tiling.describe_arithmetic(shape.macs, *names)
    if not kernel.derivations:
        rule += f", measured {kernel.multiply_adds_per_launch:,.0f}"
    if kernel.algorithm.tile is None:
        rule += f"; {_BY_COUNT}"
    if match.launches > 1:
        rule += f", in {match.launches} launches"
    return rule + (f"; {calls} calls" if calls > 1 else "")


def count_split_k_additions(kernel: KernelGroup, shapes: Sequence[Shape]) -> float:
    """Return the FADD by which a kernel adds up the parts of its split sum itself; 0 if FADD does
    not follow from values and parts.

    Each part but the first, or each, is added to the values of the tiles, or of the product. Slices
    are added as well.
    """
    added = kernel.counts.get("fadd", 0) / kernel.launches
    for shape in shapes if kernel.algorithm.tile and kernel.grid and added else ():
        fitting = list_fitting_tilings(kernel, shape) if isinstance(shape, GemmShape) else []
        if not fitting or fitting[0].parts < 2:
            continue
        cut = fitting[0]
        slices = (parse_slice_count(kernel.name) - 1) * cut.parts * cut.values
        outputs = cut.shape.batch * cut.shape.m * cut.shape.n
        for parts, values in product((cut.parts - 1, cut.parts), (cut.values, outputs)):
            if abs(added - slices - parts * values) <= WHOLE * added:
                return parts * values * kernel.launches
    return 0.0


def can_grids_fit_shape(evidence: RowEvidence) -> bool:
    """Return whether no product's grid contradicts the row's shape."""
    results = _compare_grids_with_shapes(evidence)
    return not results or any(results)


def has_grid_matching_row_shape(evidence: RowEvidence) -> bool:
    """Return whether a product's grid follows from the row's shape, which no other part of the
    layer's work has."""
    return any(_compare_grids_with_shapes(evidence))


def _compare_grids_with_shapes(evidence: RowEvidence) -> list[bool]:
    """Return, for each pair of a product's grid and a shape with a formula, whether they agree. A
    kernel that a rule of counts/ gives exactly agrees, whatever its grid."""
    works = () if evidence.derived else evidence.estimated_product_works
    ruled = [
        kernel
        for kernel in evidence.product_kernels
        if _find_product_by_derived_count(kernel, works) is not None
    ]
    predictions = [
        predict_forward_tiles(kernel.algorithm, kernel.grid, shape)
        for kernel in evidence.product_kernels
        for shape in evidence.verified_product_shapes
        if kernel.grid and kernel not in ruled
    ]
    agree = [bool(prediction.tilings) for prediction in predictions if prediction is not None]
    return [True] * len(ruled) + agree


def has_tiling_for_row_batch(evidence: RowEvidence) -> bool:
    """Return whether a product's grid or count follows from the row's own batch size. Transforms
    follow it more closely."""
    if any(kernel.algorithm.family in TRANSFORMED for kernel in evidence.kernels):
        return False
    return (
        any(_compare_grids_with_shapes(evidence))
        or predict_product_flops_from_tiles(evidence, evidence.product_kernels) is not None
    )


def has_one_row_of_tiles(evidence: RowEvidence) -> bool:
    """Return whether its grids have no more blocks than its columns need: how many rows they hold
    is not known."""
    kernels, shapes = evidence.product_kernels, evidence.verified_product_shapes
    return bool(kernels and shapes) and all(
        kernel.grid
        and kernel.algorithm.tile
        and any(
            prod(kernel.grid[:2]) <= ceil(convert_to_gemm(shape).n / side)
            for shape in shapes
            for side in kernel.algorithm.tile[:2]
        )
        for kernel in kernels
    )


def list_tiles_fitting_count(evidence: RowEvidence) -> frozenset[tuple[int, int]]:
    """Return the tiles that a product may have, by its name or its count: fewer rows may have
    needed as many tiles."""
    products = evidence.product_kernels
    if evidence.forward is None or not products:
        return frozenset()
    named_tiles = {kernel.algorithm.tile[:2] for kernel in products if kernel.algorithm.tile}
    tiles = {pair for m, n in named_tiles for pair in ((m, n), (n, m))} or set(
        product(TILES, TILES)
    )
    gemm = convert_to_gemm(evidence.forward)
    depth = evidence.estimated_flops / (gemm.m * gemm.n)
    counted = sum_multiply_add_flops(products)
    if not depth or not counted:
        return frozenset()
    needed = evidence.calls * max(evidence.estimated_product_count, 1)
    areas = {counted / depth / parts for parts in (1, max(count_launches(products) / needed, 1))}
    # padded to steps, too
    areas = {
        area * gemm.k / round_up(gemm.k, step) for area in areas for step in (1, *DEPTH_STEPS, 64)
    }
    return frozenset(
        (m, n)
        for m, n in tiles
        if any(
            compute_log_ratio_distance(area, round_up(gemm.m, m) * round_up(gemm.n, n)) < EXACT
            for area in areas
        )
    )


def can_part_need_all_tiles(
    evidence: RowEvidence, products: Sequence[KernelGroup], parts: int
) -> bool:
    """Return whether one of ``parts`` parts of a product may need as many tiles as all of it: by
    grid, tile, or any usual tile."""
    for kernel in products:
        for shape in (
            *evidence.verified_product_shapes,
            *evidence.unverified_input_gradient_shapes,
        ):
            fits, part_fits = (
                any(
                    not kernel.multiply_adds_per_launch
                    or compute_log_ratio_distance(
                        kernel.multiply_adds_per_launch, tiling.padded_macs
                    )
                    < CLOSE
                    for tiling in (list_fitting_tilings(kernel, candidate) if kernel.grid else ())
                )
                for candidate in (shape, _get_batch_part_shape(shape, parts))
            )
            if part_fits or (not fits and _does_padded_part_equal_complete(kernel, shape, parts)):
                return True
    if evidence.row.direction == "forward":
        return False
    # a weight's gradient is a sum over the batch
    shapes = (*evidence.verified_product_shapes, *evidence.unverified_weight_gradient_shapes)
    sums = [shape for shape in shapes if isinstance(shape, GemmShape)]
    lengths = [(shape.k, step) for shape in sums for step in DEPTH_STEPS]
    if isinstance(evidence.forward, ConvShape):  # the filter's gradient, by its channels
        lengths += [
            (evidence.forward.out_channels, size)
            for kernel in products
            for size in (kernel.algorithm.tile[:2] if kernel.algorithm.tile else TILES)
        ]
    return any(
        ceil(length / step) == ceil(length / parts / step) for length, step in lengths
    ) or any(
        _does_padded_part_equal_complete(kernel, shape, parts, is_split_along_k=True)
        for kernel in products
        for shape in sums
    )


def list_divisors_above_1(launches: int) -> Sequence[int]:
    """Return into how many parts a product may be split that was launched so often, by as many
    calls each."""
    return [parts for parts in range(2, launches + 1) if launches % parts == 0]


def _get_batch_part_shape(shape: Shape, parts: int) -> Shape:
    """Return the largest of ``parts`` parts of the rows."""
    if isinstance(shape, ConvShape):
        return replace(shape, batch=ceil(shape.batch / parts))
    return replace(shape, m=ceil(shape.m / parts))


def _does_padded_part_equal_complete(
    kernel: KernelGroup, shape: Shape, parts: int, is_split_along_k: bool = False
) -> bool:
    """Return whether one of ``parts`` parts in complete tiles, its columns padded too, is about as
    much as the estimate of ``shape``."""
    tile, gemm = kernel.algorithm.tile, convert_to_gemm(shape)
    rows, cut = (gemm.m, parts) if is_split_along_k else (ceil(gemm.m / parts), 1)
    if kernel.algorithm.method in UNTILED:
        return rows == gemm.m
    steps = (tile[2],) if tile and tile[2] else (1, *DEPTH_STEPS)
    depths = [gemm.k / round_up(ceil(gemm.k / cut), step) for step in steps]
    groups = shape.groups if isinstance(shape, ConvShape) else 1
    areas = (
        (round_up(rows, m) * round_up(width, n), gemm.m * width)
        for m, n in ((tile[:2], tile[1::-1]) if tile else product(TILES, WIDTHS))
        for width in (gemm.n, gemm.n // groups)
    )
    return any(
        compute_log_ratio_distance(area, paper * depth) < CLOSE
        for area, paper in areas
        for depth in depths
    )


def _can_part_need_equal_tiles(
    kernel: KernelGroup, shape: Shape, parts: int, predicted_multiplies: float
) -> bool:
    """Return whether one launch for a part of the batch would need as many tiles as the one that
    was predicted."""
    smaller = [_get_batch_part_shape(shape, parts)]
    if isinstance(shape, GemmShape):  # the sum of a weight's gradient runs over the batch
        smaller.append(replace(shape, k=ceil(shape.k / parts)))
    return any(
        tiling.padded_macs >= ENOUGH * predicted_multiplies
        for part in smaller
        for tiling in list_fitting_tilings(kernel, part)
    )
