"""What a rule receives and says, and how factors and shares are written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Literal

from perfctl.orchestrator.ledger.causes.breakdown import Breakdown, breakdown
from perfctl.orchestrator.ledger.causes.evidence import EvidenceTable, KernelGroup, RowEvidence

NEWS = 0.005
"""A factor closer to 1 than this makes no verdict, and a gap smaller than this counts as no gap."""
PART = 0.2
"""Share of a gap: so large a part of a small gap makes a verdict all the same."""


Confidence = Literal["observed", "predicted and matched", "plausible"]
"""observed: counters or launches show it. predicted and matched: shapes, names and grids say a
number, and the count is near it. plausible: it fits, and so may something else."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One reason, with its number. FLOPs: 1 multiply-add = 2."""

    rule: str
    """Name of the rule that found it, one word or two: "tile padding", "wrong window"."""
    sentence: str
    """A full sentence with the subject, the number, the comparison and the cause."""
    factor: float | None
    """Counted / paper that the rule alone predicts (0.44, 3.6); None for a rule that says why there
    is no number."""
    explained: float | None
    """Share (0..1) of the gap log(counted / paper) that ``factor`` explains; None where there is no
    gap, or no factor but 1."""
    todo: str
    kernels: tuple[str, ...] = ()
    confidence: Confidence = "plausible"


@dataclass(frozen=True)
class RuleInput:
    """One case with the others around it."""

    evidence: RowEvidence
    table: EvidenceTable
    loose: tuple[KernelGroup, ...] = ()
    """Kernels that no layer's range enclosed, at the same batch size."""

    @cached_property
    def breakdown(self) -> Breakdown:
        batch, layer, _ = self.evidence.place
        return breakdown(
            self.evidence,
            self.table.get((batch, layer, "forward")),
            self.table.launched(batch, layer),
        )

    @property
    def counted(self) -> float | None:
        """FLOPs of the row; None without a count."""
        return self.evidence.row.counted.value

    @property
    def ratio(self) -> float | None:
        """Counted / paper, as the ledger has it."""
        return self.evidence.row.ratio

    def tells(self, factor: float) -> bool:
        """True when the factor is worth a verdict: by itself, or as a part of the row's
        small gap."""
        gap = abs(log(self.ratio)) if self.ratio and is_news(self.ratio) else 0.0
        return is_news(factor) or (factor > 0 and abs(log(factor)) > PART * gap > 0)

    @property
    def who(self) -> str:
        """ "conv2 forward at batch 64"."""
        return f"{self.evidence.row.name}{self.evidence.row.at}"


def is_news(factor: float) -> bool:
    """True when the factor differs from 1 by more than NEWS."""
    return factor > 0 and abs(log(factor)) > log(1 + NEWS)


def explained(ratio: float | None, factor: float | None) -> float | None:
    """Share (0..1) of the gap log(ratio) that the factor explains; None without a gap, a ratio or
    a factor."""
    if ratio is None or ratio < 0 or factor is None or (ratio and not is_news(ratio)):
        return None
    if not ratio:
        return 1.0 if factor == 0 else 0.0
    return min(max(1 - abs(log(ratio / factor)) / abs(log(ratio)), 0.0), 1.0) if factor > 0 else 0.0


def times(factor: float) -> str:
    """0.444 -> "0.444", 3.5556 -> "3.56", 1.0156 -> "1.016"."""
    return f"{factor:.2f}" if factor >= 2 else f"{factor:.3f}"


def percent(share: float) -> str:
    """0.0156 -> "1.6 %"."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def amount(flops: float) -> str:
    """1358954496 -> "1.36 G"."""
    sizes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, prefix = next((item for item in sizes if abs(flops) >= item[0]), (1, ""))
    return f"{flops / size:.3g} {prefix}"


def gap_of(evidence: RowEvidence) -> float | None:
    """Counted / paper where it says how far off the count is; None without a count, or where it may
    only be too low."""
    row = evidence.row
    return None if row.ratio is None or (row.counted.lower_bound and row.ratio <= 1) else row.ratio


def verdict(
    given: RuleInput,
    rule: str,
    sentence: str,
    factor: float | None,
    todo: str,
    kernels: tuple[KernelGroup, ...] = (),
    confidence: Confidence = "observed",
) -> Verdict:
    if given.evidence.derived and confidence == "observed":
        confidence = "predicted and matched"  # nothing was counted
    share = explained(given.ratio, factor) if factor is not None and given.tells(factor) else None
    names = tuple(dict.fromkeys(kernel.name for kernel in kernels))
    return Verdict(rule, sentence, factor, share, todo, names, confidence)
