"""Rules whose factor follows from a layer's shape: groups run as dense, masks and borders that are
skipped, scores computed again."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from perfctl.orchestrator.counts.derived.records import Launch, LaunchWork
from perfctl.orchestrator.counts.derived.rules import derive_instructions
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape, round_up
from perfctl.orchestrator.ledger.causes.evidence import (
    KernelGroup,
    RowEvidence,
    sum_multiply_add_flops,
)
from perfctl.orchestrator.ledger.causes.matching import (
    EXACT,
    find_per_group_tiling,
    list_fitting_tilings,
)
from perfctl.orchestrator.ledger.causes.rule import (
    Cause,
    ExpectedNumber,
    Implications,
    RowCase,
    deviates_from_one,
)
from perfctl.orchestrator.ledger.causes.tensor_rules import THRICE

SWAPPED_ERROR_MAX = 0.01
"""Share of an estimate up to which the differences of two rows cancel out."""
SWAPPED_RATIO_MIN = 1.1
"""Two layers with estimates closer than this cannot be told apart by their counts."""


def detect_causal_mask(case: RowCase) -> Cause | None:
    """A fused attention skips the tiles that the causal mask empties.

    Evidence  ``is_causal``, the queries and keys, and the tile in the kernel's name.
    Factor    tiles on or below the diagonal / all tiles.
    Silent    if the tiles do not fill the square.
    Fix       none; the estimate counts the complete square.
    """
    kernels = (
        kernel
        for kernel in case.evidence.product_kernels
        if kernel.algorithm.family == "attention" and kernel.algorithm.tile
    )
    kernel, square = next(kernels, None), case.evidence.causal
    if kernel is None or square is None or case.executed_flops is None:
        return None
    (rows, columns), (m, n) = square, (kernel.algorithm.tile or (1, 1))[:2]
    if rows % m or columns % n or _derive_fused_attention_flops_and_rule(case) is not None:
        return None
    tiles = sum(
        min(ceil(((block + 1) * m + columns - rows) / n), columns // n)
        for block in range(rows // m)
    )
    share = tiles * m * n / (rows * columns)
    if not deviates_from_one(share):
        return None
    executed = (kernel.tensor.value or 0) / case.evidence.estimated_flops
    implies = Implications(flops=ExpectedNumber(executed, share, EXACT))
    return case.make_cause_unless_contradicted(
        "causal mask", share, (kernel,), implies, rows=rows, columns=columns, m=m, n=n
    )


def detect_attention_tiles(case: RowCase) -> Cause | None:
    """A fused attention computes complete tiles of queries, keys and head sizes, without those that
    a causal mask empties.

    Evidence  the kernel's name (tile, head size, mask) and grid, queries and keys, and a count
              within 2%.
    Factor    multiply-adds of the tiles / estimate: 0.563 for 1,024 x 1,024 scores under a mask in
              tiles of 128 x 128, 1.2 for a head size of 80 in 96.
    Silent    if the name does not state the tile, or the count contradicts it: a window hides more.
    Fix       none; the estimate counts the complete square.
    """
    derived = _derive_fused_attention_flops_and_rule(case)
    if derived is None or case.executed_flops is None:
        return None
    kernel, flops, rule, is_masked = derived
    # three TF32 products for each of fp32 are another cause
    factor = flops / case.evidence.estimated_flops / (3 if THRICE.search(kernel.name) else 1)
    if not case.is_factor_significant(factor):
        return None
    return case.make_cause_unless_contradicted(
        "causal mask" if is_masked else "tile padding",
        factor,
        (kernel,),
        Implications(
            flops=ExpectedNumber((kernel.tensor.value or 0) / kernel.launches, flops, EXACT)
        ),
        "by tiles" if is_masked else "",
        tiles=(rule,),
    )


def _derive_fused_attention_flops_and_rule(
    case: RowCase,
) -> tuple[KernelGroup, float, str, bool] | None:
    """Return the kernel of a fused attention, the FLOPs of a launch and the rule of its tiles, and
    whether a mask empties some; None if no rule of counts/ gives them."""
    evidence = case.evidence
    is_backward = evidence.row.direction != "forward"
    for shape in evidence.attention if evidence.estimated_flops else ():
        for kernel in evidence.product_kernels if shape.backward is is_backward else ():
            launch = Launch(kernel.name, kernel.grid, cluster=kernel.cluster)
            derived = derive_instructions(launch, LaunchWork(shape))
            if derived and derived.tensor and kernel.algorithm.family == "attention":
                return kernel, derived.tensor, derived.rule, shape.causal
    return None


def detect_groups_as_dense(case: RowCase) -> Cause | None:
    """A kernel multiplies all channels of a grouped convolution, the zeros between groups included.

    Evidence  one kernel with the grid, or within 2% the count, of the convolution without groups.
    Factor    dense multiply-adds / estimated multiply-adds: the number of groups, and padding.
    Silent    if the grid has blocks for each group.
    Fix       a layout or data type for which cuDNN has a grouped kernel.
    """
    shape, evidence = case.evidence.forward, case.evidence
    kernels = evidence.product_kernels
    if not isinstance(shape, ConvShape) or shape.groups == 1 or case.executed_flops is None:
        return None
    if evidence.row.direction != "forward" or len(kernels) != 1:
        return None
    (kernel,) = kernels
    if kernel.algorithm.family not in ("conv", "gemm"):
        return None
    if find_per_group_tiling(kernel, shape) is not None:
        return None
    dense = replace(shape, groups=1)
    matches = list_fitting_tilings(kernel, dense) if kernel.grid else []
    if kernel.grid and not matches and kernel.grid[2] % shape.groups == 0:
        return None
    multiplies = matches[0].padded_macs if matches else dense.macs
    return case.make_cause_unless_contradicted(
        "groups run as dense",
        multiplies / shape.macs,
        kernels,
        Implications(
            flops=ExpectedNumber(kernel.multiply_adds_per_launch, multiplies, EXACT),
            launches=ExpectedNumber(kernel.launches, evidence.calls),
            is_stated=bool(matches),
        ),
        groups=shape.groups,
        multiplies=multiplies,
        estimated=shape.macs,
    )


def detect_other_product_size(case: RowCase) -> Cause | None:
    """A kernel computes a product with other rows, or columns, than the layer's.

    Evidence  one kernel, whose grid has the tiles of one side of the layer's product and not of the
              other, and whose count is that of its tiles, within 2% (plausible).
    Factor    multiply-adds of all tiles of the grid / estimate.
    Silent    for gradients, and if tiles of the layer's own product fit.
    Fix       check the sizes with which the layer ran.
    """
    evidence, shape, parts = case.evidence, case.evidence.forward, case.breakdown
    kernels = evidence.product_kernels
    if evidence.row.direction != "forward" or shape is None or len(kernels) != 1:
        return None
    (kernel,), is_gemm = kernels, isinstance(shape, GemmShape)
    tile, grid = kernel.algorithm.tile, kernel.grid
    product = shape if isinstance(shape, GemmShape) else shape.implicit_gemm
    if not tile or not grid or grid[2] != product.batch or not case.executed_flops:
        return None
    if parts.rules or parts.family not in ("conv", "gemm"):
        return None
    fitting = [
        (m, n, rows, columns)
        for m, n in (dict.fromkeys((tile[:2], tile[1::-1])) if is_gemm else (tile[:2],))
        for rows, columns in (dict.fromkeys((grid[:2], grid[1::-1])) if is_gemm else (grid[:2],))
        if (rows == ceil(product.m / m)) != (columns == ceil(product.n / n))
    ]
    if len(fitting) != 1:
        return None
    ((m, n, rows, columns),) = fitting
    has_columns = columns == ceil(product.n / n)
    multiplies = prod(grid) * prod(tile[:2]) * round_up(product.k, tile[2])
    return case.make_cause_unless_contradicted(
        "other size",
        multiplies / product.macs,
        kernels,
        Implications(
            flops=ExpectedNumber(kernel.multiply_adds_per_launch, multiplies, EXACT),
            launches=ExpectedNumber(kernel.launches, evidence.calls),
            is_stated=False,
        ),
        side="rows" if has_columns else "columns",
        executed=rows * m if has_columns else columns * n,
        size=product.m if has_columns else product.n,
        rows=rows,
        columns=columns,
        m=m,
        n=n,
    )


def detect_swapped_layers(case: RowCase) -> Cause | None:
    """What one layer executed beyond its estimate is what another lacks: a range, or a name, is at
    the wrong layer.

    Evidence  two rows of one direction whose differences cancel out, within 1% of the estimate.
    Factor    (own estimate + what the other row lacks) / own estimate, or estimate of the other
              row / own estimate.
    Silent    if a third row fits too, or a grid follows from the shape of its own row only.
    Fix       check the ranges and names of both layers.
    """
    evidence = case.evidence
    rows = case.table.rows_in_network_order[evidence.row.key[0], evidence.row.direction]
    matches = [row for row in rows if row is not evidence and _do_excesses_cancel(evidence, row)]
    if len(matches) != 1:
        return None
    (other,) = matches
    moved = -_compute_excess_flops(other)
    is_swap = (
        abs(moved / (other.estimated_flops - evidence.estimated_flops or 1) - 1) < SWAPPED_ERROR_MAX
    )
    return case.make_cause_unless_contradicted(
        "swapped layers",
        (other.estimated_flops if is_swap else evidence.estimated_flops + moved)
        / evidence.estimated_flops,
        evidence.product_kernels,
        Implications(is_stated=False, partner=other),
        "" if is_swap else "a part",
        other=other.row.name,
        layer=evidence.row.layer,
        other_layer=other.row.layer,
        flops=abs(moved),
        is_more=moved > 0,
    )


def _do_excesses_cancel(row: RowEvidence, other: RowEvidence) -> bool:
    """Return whether one row has as many FLOPs too many as the other has too few."""
    if any(not item.row.executed.value or item.row.executed.lower_bound for item in (row, other)):
        return False
    error, least = (
        SWAPPED_ERROR_MAX,
        (SWAPPED_RATIO_MIN - 1) * max(row.estimated_flops, other.estimated_flops),
    )
    is_swap = all(
        abs(counted.estimated_flops + _compute_excess_flops(counted) - estimated.estimated_flops)
        < error * estimated.estimated_flops
        for counted, estimated in ((row, other), (other, row))
    )
    cancels = abs(_compute_excess_flops(row) + _compute_excess_flops(other)) < error * min(
        row.estimated_flops, other.estimated_flops
    )
    return (is_swap or cancels) and abs(_compute_excess_flops(row)) > least


def _compute_excess_flops(evidence: RowEvidence) -> float:
    """Return the executed FLOPs beyond the estimate."""
    return (evidence.row.executed.value or 0) - evidence.estimated_flops


def detect_skipped_padding_taps(case: RowCase) -> Cause | None:
    """A depthwise kernel skips the taps that fall on the padding.

    Evidence  depthwise kernels with the count of the taps inside the image, within 2%; plausible
              unless they are PyTorch's own, which test every tap.
    Factor    taps inside the image / all taps.
    Silent    for gradients, and for kernels of another family.
    Fix       none; the estimate counts every tap of every output.
    """
    evidence, share = case.evidence, case.evidence.inside
    if share is None or case.executed_flops is None or not deviates_from_one(share):
        return None
    kernels = evidence.product_kernels
    depthwise = all(kernel.algorithm.family == "depthwise" for kernel in kernels)
    if evidence.row.direction != "forward" or not kernels or not depthwise:
        return None
    executed = sum_multiply_add_flops(kernels) / evidence.estimated_flops
    is_stated = all("conv_depthwise" in kernel.name for kernel in kernels)
    implies = Implications(flops=ExpectedNumber(executed, share, EXACT), is_stated=is_stated)
    return case.make_cause_unless_contradicted("skipped border", share, kernels, implies)
