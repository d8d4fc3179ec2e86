"""Rules whose factor follows from a layer's shape: groups run as dense, masks and borders that are
skipped, scores computed again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log

from perfctl.orchestrator.counts.kernels.grids import ConvShape
from perfctl.orchestrator.ledger.causes.evidence import RowEvidence, sum_products
from perfctl.orchestrator.ledger.causes.matching import EXACT, by_groups, tiled
from perfctl.orchestrator.ledger.causes.rule import (
    UNSTATED,
    Cause,
    Facts,
    Implies,
    RuleInput,
    Same,
    deviates,
)

SWAPPED_ERROR_MAX = 0.01
"""Relative error up to which a count is another row's estimate."""
SWAPPED_RATIO_MIN = 1.1
"""Two layers with estimates closer than this cannot be told apart by their counts."""


@dataclass(frozen=True, slots=True)
class MaskFacts(Facts):
    """Queries and keys under a causal mask, and the scores of one tile."""

    rows: int
    columns: int
    m: int
    n: int


@dataclass(frozen=True, slots=True)
class GroupFacts(Facts):
    """Groups of a convolution, and the multiply-adds of all as one and of the estimate."""

    groups: int
    multiplies: float
    estimated: int


@dataclass(frozen=True, slots=True)
class SwapFacts(Facts):
    """The row whose count this is, and both layers."""

    other: str
    layer: str
    other_layer: str


def causal_mask(case: RuleInput) -> Cause | None:
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
    if kernel is None or square is None or case.executed is None:
        return None
    (rows, columns), (m, n) = square, (kernel.algorithm.tile or (1, 1))[:2]
    if rows % m or columns % n:
        return None
    tiles = sum(
        min(ceil(((block + 1) * m + columns - rows) / n), columns // n)
        for block in range(rows // m)
    )
    share = tiles * m * n / (rows * columns)
    if not deviates(share):
        return None
    facts = MaskFacts(rows, columns, m, n)
    return case.propose("causal mask", share, facts, (kernel,), Implies())


def groups_as_dense(case: RuleInput) -> Cause | None:
    """A kernel multiplies all channels of a grouped convolution, the zeros between groups included.

    Evidence  one kernel with the grid, or within 2% the count, of the convolution without groups.
    Factor    dense multiply-adds / estimated multiply-adds: the number of groups, and padding.
    Silent    if the grid has blocks for each group.
    Fix       a layout or data type for which cuDNN has a grouped kernel.
    """
    shape, evidence = case.evidence.forward, case.evidence
    kernels = evidence.product_kernels
    if not isinstance(shape, ConvShape) or shape.groups == 1 or case.executed is None:
        return None
    if evidence.row.direction != "forward" or len(kernels) != 1:
        return None
    (kernel,) = kernels
    if kernel.algorithm.family not in ("conv", "gemm"):
        return None
    if by_groups(kernel, shape) is not None:
        return None
    dense = replace(shape, groups=1)
    matches = tiled(kernel, dense) if kernel.grid else []
    if kernel.grid and not matches and kernel.grid[2] % shape.groups == 0:
        return None
    multiplies = matches[0].multiplies if matches else dense.macs
    return case.propose(
        "groups run as dense",
        multiplies / shape.macs,
        GroupFacts(shape.groups, multiplies, shape.macs),
        kernels,
        Implies(
            flops=Same(kernel.multiplies, multiplies, EXACT),
            launches=Same(kernel.launches, evidence.calls),
            is_stated=bool(matches),
        ),
    )


def swapped(case: RuleInput) -> Cause | None:
    """Two layers have each other's counts: a range, or a name, is at the wrong layer.

    Evidence  two rows of one direction, each with the other's estimate as its count, within 1%.
    Factor    estimate of the other row / own estimate.
    Silent    if a third row fits too.
    Fix       check the ranges and names of both layers.
    """
    evidence = case.evidence
    rows = case.table.network_order[evidence.row.size, evidence.row.direction]
    matches = [row for row in rows if row is not evidence and _have_swapped_counts(evidence, row)]
    if len(matches) != 1:
        return None
    (other,) = matches
    return case.propose(
        "swapped layers",
        other.paper / evidence.paper,
        SwapFacts(other.row.name, evidence.row.layer, other.row.layer),
        evidence.product_kernels,
        UNSTATED,
    )


def _have_swapped_counts(row: RowEvidence, other: RowEvidence) -> bool:
    pairs = ((row, other), (other, row))
    for counted, estimated in pairs:
        executed = counted.row.counted
        if not executed.value or executed.lower_bound or not estimated.paper:
            return False
        if abs(executed.value / estimated.paper - 1) >= SWAPPED_ERROR_MAX:
            return False
    return abs(log(row.paper / other.paper)) > log(SWAPPED_RATIO_MIN)


def skipped_border(case: RuleInput) -> Cause | None:
    """A depthwise kernel skips the taps that fall on the padding.

    Evidence  depthwise kernels with the count of the taps inside the image, within 2%.
    Factor    taps inside the image / all taps.
    Silent    for gradients, and for kernels of another family.
    Fix       none; the estimate counts every tap of every output.
    """
    evidence, share = case.evidence, case.evidence.inside
    if share is None or case.executed is None or not deviates(share):
        return None
    kernels = evidence.product_kernels
    depthwise = all(kernel.algorithm.family == "depthwise" for kernel in kernels)
    if evidence.row.direction != "forward" or not kernels or not depthwise:
        return None
    executed = sum_products(kernels) / evidence.paper
    implies = Implies(flops=Same(executed, share, EXACT))
    return case.propose("skipped border", share, None, kernels, implies)
