"""What one rule is given, and how factors and shares become words and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log

from perfctl.orchestrator.analyse.case import Case, EvidenceTable, Work
from perfctl.orchestrator.analyse.verdict_budget import Budget, budget
from perfctl.orchestrator.analyse.verdict_records import Verdict

NEWS = 0.005
"""A factor nearer to 1 than this is not worth a verdict, and a gap smaller than this is none."""


@dataclass(frozen=True)
class Scene:
    """One case with the others around it."""

    case: Case
    cases: EvidenceTable

    @cached_property
    def budget(self) -> Budget:
        batch, layer, _ = self.case.place
        return budget(self.case, self.cases.get((batch, layer, "forward")))

    @property
    def counted(self) -> float | None:
        """FLOPs of the row; None without a count."""
        return self.case.row.counted.value

    @property
    def ratio(self) -> float | None:
        """Counted / paper, as the ledger has it."""
        return self.case.row.ratio

    @property
    def who(self) -> str:
        """ "conv2 forward at batch 64"."""
        return f"{self.case.row.name} at batch {self.case.row.batch}"


def is_news(factor: float) -> bool:
    """Does the factor differ from 1 by enough to be said?"""
    return factor > 0 and abs(log(factor)) > log(1 + NEWS)


def explained(ratio: float | None, factor: float | None) -> float | None:
    """Share (0..1) of the gap log(ratio) that the factor explains; None without a gap, a ratio or a factor."""
    if not ratio or factor is None or not is_news(ratio):
        return None
    if factor <= 0:
        return 0.0
    return min(max(1 - abs(log(ratio / factor)) / abs(log(ratio)), 0.0), 1.0)


def times(factor: float) -> str:
    """0.444 -> "0.444", 3.5556 -> "3.56", 1.0156 -> "1.016"."""
    return f"{factor:.2f}" if factor >= 2 else f"{factor:.3f}"


def percent(share: float) -> str:
    """0.0156 -> "1.6 %"."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def amount(flops: float) -> str:
    """1358954496 -> "1.36 G"."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(flops) >= size:
            return f"{flops / size:.3g} {prefix}"
    return f"{flops:.3g} "


def names(works: tuple[Work, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(work.name for work in works))


def verdict(
    scene: Scene, rule: str, sentence: str, factor: float | None, todo: str, works: tuple[Work, ...] = ()
) -> Verdict:
    """A verdict of one row, its share of the gap worked out."""
    return Verdict(rule, sentence, factor, explained(scene.ratio, factor), todo, names(works))
