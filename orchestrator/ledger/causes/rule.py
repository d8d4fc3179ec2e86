"""The record of a cause, what a rule receives, and how factors and shares are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from typing import Literal

from perfctl.orchestrator.ledger.causes.breakdown import Breakdown, breakdown
from perfctl.orchestrator.ledger.causes.evidence import EvidenceTable, KernelGroup, RowEvidence

DEVIATION_MIN = 0.005
"""A factor closer to 1 is no cause, and a ratio closer to 1 is no gap: counts scatter by less."""
GAP_SHARE_MIN = 0.2
"""Share of a gap that a factor close to 1 must make up to be a cause anyway."""

Confidence = Literal["observed", "predicted and matched", "plausible"]
"""observed: counters or launches show the cause. predicted and matched: shapes, names and grids
predict a number, and the count is near it. plausible: the cause fits, and so may another."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Numbers and names of one cause, of which ``report`` makes its sentence and its fix.

    Each rule adds its own. None, False, 0 and "" leave out the part of a sentence that states them.
    """


@dataclass(frozen=True, slots=True)
class FlopsFacts(Facts):
    """FLOPs that ran, next to those of the estimate."""

    flops: float
    estimated: float = 0.0


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for a difference, as numbers and names; ``report`` makes the sentence."""

    rule: str
    """Name of the rule that proposes it, one word or two: "tile padding", "wrong window"."""
    factor: float | None
    """Executed / estimated that this cause alone predicts (0.44, 3.6); None if it predicts
    no number."""
    facts: Facts = field(default_factory=Facts)
    kernels: tuple[str, ...] = ()
    confidence: Confidence = "plausible"
    variant: str = ""
    """Which of the rule's sentences states the facts; "" for a rule with one sentence."""
    explained: float | None = None
    """Share (0..1) of the gap log(executed / estimated) that ``factor`` explains, set by
    ``confirm``; None without a gap, or if the factor is 1 or None."""
    row: str = ""
    """Name and batch size of the row; "" for a cause of the sweep."""
    ours: bool = False
    """True when 'perfctl ncu' made the run, so that it is no advice to use it."""


@dataclass(frozen=True)
class RuleInput:
    """The evidence of one ledger row, with the rows and kernels around it."""

    evidence: RowEvidence
    table: EvidenceTable
    unattributed_kernels: tuple[KernelGroup, ...] = ()
    """Kernels of the same batch size that no layer's range encloses."""

    @cached_property
    def breakdown(self) -> Breakdown:
        """Return the parts of the row's count."""
        batch, layer, _ = self.evidence.place
        others = self.table.launched(batch, layer)
        return breakdown(self.evidence, self.row_of("forward"), others)

    def row_of(self, direction: str) -> RowEvidence | None:
        """Return the row of the same layer and batch size in another direction."""
        batch, layer, _ = self.evidence.place
        return self.table.get((batch, layer, direction))

    @property
    def executed(self) -> float | None:
        """Executed FLOPs of the row; None without a count."""
        return self.evidence.row.counted.value

    @property
    def ratio(self) -> float | None:
        """Executed / estimated FLOPs of the row."""
        return self.evidence.row.ratio

    def is_worth_naming(self, factor: float) -> bool:
        """True if the factor deviates from 1, or is a large part of the row's small gap."""
        gap = abs(log(self.ratio)) if self.ratio and deviates(self.ratio) else 0.0
        return deviates(factor) or (factor > 0 and abs(log(factor)) > GAP_SHARE_MIN * gap > 0)

    def propose(
        self,
        rule: str,
        factor: float | None,
        facts: Facts | None = None,
        kernels: Iterable[KernelGroup] = (),
        confidence: Confidence = "observed",
        variant: str = "",
    ) -> Cause:
        """Return a candidate for the row, which ``confirm`` compares with the row's count."""
        row = f"{self.evidence.row.name}{self.evidence.row.at}"
        names = tuple(dict.fromkeys(kernel.name for kernel in kernels))
        return Cause(
            rule,
            factor,
            facts or Facts(),
            names,
            confidence,
            variant,
            row=row,
            ours=self.evidence.ours,
        )


def deviates(factor: float) -> bool:
    """Return whether the factor differs from 1 by more than DEVIATION_MIN."""
    return factor > 0 and abs(log(factor)) > log(1 + DEVIATION_MIN)


def ratio_of(evidence: RowEvidence) -> float | None:
    """Return executed / estimated if it is the gap; None without a count, or if the count may only
    be too low."""
    row = evidence.row
    return None if row.ratio is None or (row.counted.lower_bound and row.ratio <= 1) else row.ratio


def explained_share(ratio: float | None, factor: float | None) -> float | None:
    """Return the share (0..1) of the gap log(ratio) that the factor explains; None without a gap,
    a ratio or a factor."""
    if ratio is None or ratio < 0 or factor is None or (ratio and not deviates(ratio)):
        return None
    if not ratio:
        return 1.0 if factor == 0 else 0.0
    return min(max(1 - abs(log(ratio / factor)) / abs(log(ratio)), 0.0), 1.0) if factor > 0 else 0.0


def times(factor: float) -> str:
    """Return a factor as text: 0.444 -> "0.444", 3.5556 -> "3.56", 1.0156 -> "1.016"."""
    return f"{factor:.2f}" if factor >= 2 else f"{factor:.3f}"


def percent(share: float) -> str:
    """Return a share as text: 0.0156 -> "1.6 %"."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def amount(flops: float) -> str:
    """Return a number with its prefix, ready for a unit: 1358954496 -> "1.36 G"."""
    sizes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, prefix = next((item for item in sizes if abs(flops) >= item[0]), (1, ""))
    return f"{flops / size:.3g} {prefix}"
