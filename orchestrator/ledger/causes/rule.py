"""The record of a cause, what a rule receives, and how factors and shares are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log
from typing import Any, Literal

from perfctl.orchestrator.counts.kernels.grids import GemmShape, round_up
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.breakdown import CountBreakdown, break_down_executed_flops
from perfctl.orchestrator.ledger.causes.evidence import (
    EvidenceTable,
    KernelGroup,
    Kernels,
    RowEvidence,
)
from perfctl.orchestrator.ledger.causes.matching import (
    CLOSE,
    EXACT,
    compute_log_ratio_distance,
    has_grid_matching_row_shape,
)

DEVIATION_MIN = 0.005
"""A factor closer to 1 is no cause, and a ratio closer to 1 is no gap: counts scatter by less."""
GAP_SHARE_MIN = 0.2
"""Share of a gap that a factor close to 1 must make up to be a cause anyway."""

Confidence = Literal["observed", "predicted and matched", "likely", "plausible"]
"""observed: counters or launches show the cause. predicted and matched: shapes, names and grids
predict a number, and the count is near it. likely: so they do, but something else that the cause
implies was not recorded. plausible: the cause fits, and so may another."""


Facts = Mapping[str, Any]
"""Name -> number or name, of which ``report`` makes a cause's sentence and its fix. A fact that is
None, False, 0, "" or not there leaves out the part of the sentence that states it."""


@dataclass(frozen=True, slots=True)
class ExpectedNumber:
    """A recorded number that must be the one that a cause predicts."""

    recorded: float
    predicted: float
    error_max: float = 0.0
    """Largest difference, as a logarithm: half is as far as double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implications:
    """What else is recorded if a cause holds. None, False, (): the cause says nothing about it."""

    is_counted: bool = False
    """True if counters or launches show the cause itself."""
    is_stated: bool = True
    """True if names, grids and flags state all that the factor needs; False if something else may
    have the same count."""
    flops: ExpectedNumber | None = None
    """Of the cause's kernels."""
    launches: ExpectedNumber | None = None
    """Of the cause's kernels, per step."""
    is_complete: bool = False
    """True if ncu left no launch out."""
    trials: bool | None = None
    """True if cuDNN was trying algorithms; False if it was not, because a trial looks alike."""
    batches: tuple[int, ...] = ()
    """Batch sizes of which one ran."""
    gradients_only: float | None = None
    """Executed / estimated of the gradients' kernels, which forward does not have."""
    product: GemmShape | None = None
    """What each of the cause's kernels computes."""
    partner: RowEvidence | None = None
    """Row whose kernels this one has, or which has its kernels."""
    served: tuple[RowEvidence, ...] = ()
    """Rows without kernels, whose work the row's kernel does."""
    changes: bool = False
    """True if the steps of a run may differ."""


COUNTED, UNSTATED = Implications(is_counted=True), Implications(is_stated=False)
"""What causes imply that counters show, and that only fit."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for a difference, as numbers and names; ``report`` makes the sentence."""

    rule: str
    """Name of the rule that proposes it, one word or two: "tile padding", "wrong window"."""
    factor: float | None
    """Executed / estimated that this cause alone predicts (0.44, 3.6); None if it predicts
    no number."""
    facts: Facts = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    confidence: Confidence = "plausible"
    variant: str = ""
    """Which of the rule's sentences states the facts; "" for a rule with one sentence."""
    explained: float | None = None
    """Share (0..1) of the gap log(executed / estimated) that ``factor`` explains, set by
    ``drop_refuted_and_rank_causes``; None without a gap, or if the factor is 1 or None."""
    row: str = ""
    """Name and batch size of the row; "" for a cause of the sweep."""
    ours: bool = False
    """True when 'perfctl ncu' made the run, so that it is no advice to use it."""


@dataclass(frozen=True)
class RowCase:
    """The evidence of one ledger row, with the rows and kernels around it."""

    evidence: RowEvidence
    table: EvidenceTable
    unattributed_kernels: Kernels = ()
    """Kernels of the same batch size that no layer's range encloses."""

    @cached_property
    def breakdown(self) -> CountBreakdown:
        """Return the parts of the row's count."""
        batch, layer, _ = self.evidence.row_key
        other_layers = self.table.compute_launch_gcd_excluding_layer(batch, layer)
        return break_down_executed_flops(self.evidence, self.forward_row, other_layers)

    @property
    def forward_row(self) -> RowEvidence | None:
        """The forward row of the same layer and batch size."""
        batch, layer, _ = self.evidence.row_key
        return self.table.get((batch, layer, "forward"))

    @property
    def executed_flops(self) -> float | None:
        """Executed FLOPs of the row; None without a count."""
        return self.evidence.row.executed.value

    @property
    def ratio(self) -> float | None:
        """Executed / estimated FLOPs of the row."""
        return self.evidence.row.ratio

    def is_factor_significant(self, factor: float) -> bool:
        """True if the factor deviates from 1, or is a large part of the row's small gap."""
        gap = abs(log(self.ratio)) if self.ratio and deviates_from_one(self.ratio) else 0.0
        return deviates_from_one(factor) or (
            factor > 0 and abs(log(factor)) > GAP_SHARE_MIN * gap > 0
        )

    def make_cause_unless_contradicted(
        self,
        rule: str,
        factor: float | None,
        kernels: Iterable[KernelGroup] = (),
        implications: Implications = COUNTED,
        variant: str = "",
        **facts: Any,
    ) -> Cause | None:
        """Return the cause if nothing recorded contradicts what it implies; None otherwise."""
        row = f"{self.evidence.row.name}{self.evidence.row.batch_phrase}"
        kernels = tuple(kernels)
        confidence = determine_cause_confidence(self, implications, kernels)
        if confidence is None:
            return None
        names = tuple(dict.fromkeys(kernel.name for kernel in kernels))
        return Cause(
            rule,
            factor,
            facts,
            names,
            confidence,
            variant,
            row=row,
            ours=self.evidence.ours,
        )


def _does_benchmark_setting_match(evidence: RowEvidence, needs_trials: bool) -> bool | None:
    """Return whether cuDNN tried algorithms, or did not, as it must; None if that is not
    recorded."""
    # of matrix products, others try kernels
    if needs_trials and "Conv" not in (evidence.row.kind or "Conv"):
        return None
    benchmark = evidence.environment.get("cudnn_benchmark")
    return (benchmark == "on") is needs_trials if benchmark in ("on", "off") else None


def _is_forward_without_same_deviation(case: RowCase, gradient_ratio: float) -> bool:
    """Return False if forward deviates as its gradients do: another batch ran, or another layer's
    kernels."""
    forward = case.forward_row
    ratio = forward.row.ratio if forward is not None else None
    return (
        not ratio
        or abs(log(ratio)) <= EXACT
        or compute_log_ratio_distance(ratio, gradient_ratio) >= CLOSE
    )


def _does_count_match_complete_tiles(product: GemmShape, kernels: Kernels) -> bool | None:
    """Return whether the count is that of the product in complete tiles; None without a tile."""
    tiles = [(kernel, kernel.algorithm.tile) for kernel in kernels if kernel.multiply_add_flops]
    fits = [
        any(
            compute_log_ratio_distance(
                kernel.multiply_adds_per_launch,
                round_up(product.m, m) * round_up(product.n, n) * product.k,
            )
            < CLOSE
            for m, n in (tile[:2], tile[1::-1])
        )
        for kernel, tile in tiles
        if tile
    ]
    return all(fits) if tiles and len(fits) == len(tiles) else None


def _can_rows_have_swapped_kernels(row: RowEvidence, partner: RowEvidence) -> bool:
    """Return False if kernels of either row have grids that only its own shape has."""
    return not any(
        has_grid_matching_row_shape(first)
        and not has_grid_matching_row_shape(replace(first, forward=second.forward))
        for first, second in ((row, partner), (partner, row))
        if second.forward is not None
    )


def _did_served_layers_run(case: RowCase, served_rows: Iterable[RowEvidence]) -> bool:
    """Return False if a layer whose forward this kernel is to compute has no gradients either, nor
    has this row's layer: it did not run."""
    batch, layer, direction = case.evidence.row_key
    if direction != "forward":
        return True
    gradient_rows = [case.table.get((batch, layer, gradient)) for gradient in BACKWARD]
    executed = sum(row.row.executed.value or 0 for row in gradient_rows if row)
    estimated = sum(row.estimated_flops for row in gradient_rows if row)
    missing = sum(
        row.estimated_flops
        for served in served_rows
        for gradient in BACKWARD
        if (row := case.table.get((batch, served.row.layer, gradient))) and not row.kernels
    )
    return not missing or executed - estimated >= missing / 2


def determine_cause_confidence(
    case: RowCase, implications: Implications, kernels: Kernels = ()
) -> Confidence | None:
    """Return the confidence that the record allows; None if it contradicts the cause.

    The cause implies facts, and the record answers each: False contradicts the cause, None means
    not recorded. With a None the cause is plausible, or likely if only a tile is unknown. A derived
    count observes nothing. If a product was not counted, the factor is of the others only.
    """
    evidence, batches = case.evidence, implications.batches
    seen_batch = evidence.seen_batch
    results = [
        all(
            same is None
            or (
                same.recorded > 0
                and compute_log_ratio_distance(same.recorded, same.predicted) <= same.error_max
            )
            for same in (implications.launches, implications.flops)
        ),
        not (implications.is_complete and evidence.left_out),
        implications.trials is None or _does_benchmark_setting_match(evidence, implications.trials),
        # if several batch sizes fit, which one ran is not known
        not batches or (seen_batch in batches if seen_batch else len(batches) == 1 or None),
        implications.gradients_only is None
        or _is_forward_without_same_deviation(case, implications.gradients_only),
        implications.is_stated or None,
        not evidence.row.executed.value
        or implications.is_counted
        or all(kernel.flops.value is not None for kernel in evidence.product_kernels)
        or None,
        # all steps executed the same, unless the cause may change
        implications.is_counted
        or implications.changes
        or bool(implications.trials)
        or not evidence.launched.has_unequal_steps,
        implications.partner is None
        or _can_rows_have_swapped_kernels(evidence, implications.partner),
        _did_served_layers_run(case, implications.served),
    ]
    tile = implications.product is None or _does_count_match_complete_tiles(
        implications.product, kernels
    )
    if False in results or tile is False:
        return None
    if None in results:
        return "plausible"
    if tile is None:
        return "likely"
    is_observed = implications.is_counted and not evidence.derived
    return "observed" if is_observed else "predicted and matched"


def deviates_from_one(factor: float) -> bool:
    """Return whether the factor differs from 1 by more than DEVIATION_MIN."""
    return factor > 0 and abs(log(factor)) > log(1 + DEVIATION_MIN)


def get_ratio_unless_lower_bound(evidence: RowEvidence) -> float | None:
    """Return executed / estimated if it is the gap; None without a count, or if the count may only
    be too low."""
    row = evidence.row
    return None if row.ratio is None or (row.executed.lower_bound and row.ratio <= 1) else row.ratio


def compute_explained_gap_share(ratio: float | None, factor: float | None) -> float | None:
    """Return the share (0..1) of the gap log(ratio) that the factor explains; None without a gap,
    a ratio or a factor."""
    if ratio is None or ratio < 0 or factor is None or (ratio and not deviates_from_one(ratio)):
        return None
    if not ratio:
        return 1.0 if factor == 0 else 0.0
    return min(max(1 - abs(log(ratio / factor)) / abs(log(ratio)), 0.0), 1.0) if factor > 0 else 0.0


def format_ratio(factor: float) -> str:
    """Return a factor as text: 0.444 -> "0.444", 3.5556 -> "3.56", 1.0156 -> "1.016", 20480 ->
    "20,480", 0.0000488 -> "4.88e-05"."""
    if factor and not 0.0005 <= factor < 1000:
        return f"{factor:,.0f}" if factor > 1 else f"{factor:.3g}"
    return f"{factor:.2f}" if factor >= 2 else f"{factor:.3f}"


def format_share(share: float) -> str:
    """Return a share as text: 0.0156 -> "1.6%"; "< 0.1%" and "> 99.9%" instead of 0 and 100 for
    a part."""
    if 0 < share < 0.0005:
        return "< 0.1%"
    return "> 99.9%" if 0.9995 <= share < 1 else f"{100 * share:.1f}%"


def format_with_si_prefix(flops: float) -> str:
    """Return a number with its prefix, ready for a unit: 1358954496 -> "1.36 G"."""
    sizes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, prefix = next((item for item in sizes if abs(flops) >= item[0]), (1, ""))
    return f"{flops / size:.3g} {prefix}"
