"""Why counted and paper differ: what a verdict is, and what a whole study's verdicts are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Place = tuple[int, str, str]
"""(batch size, layer, direction) of a ledger row."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One reason, with its number. FLOPs: 1 multiply-add = 2."""

    rule: str
    """Name of the rule that found it, one word or two: "tile padding", "wrong window"."""
    sentence: str
    """A full sentence with the subject, the number, the comparison and the cause."""
    factor: float | None
    """Counted / paper that the rule alone predicts (0.44, 3.6); None for a rule that says why there is no number."""
    explained: float | None
    """Share (0..1) of the gap log(counted / paper) that ``factor`` explains; None where there is no gap to explain."""
    todo: str
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """One ledger row: its verdicts, the strongest first, and what they leave open."""

    verdicts: tuple[Verdict, ...] = ()
    unexplained: float | None = None
    """Share (0..1) of the gap that no verdict explains; None without a gap or without a count."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All verdicts of a study."""

    rows: Mapping[Place, Judged] = field(default_factory=dict)
    sweep: tuple[Verdict, ...] = ()
    """About the sweep as a whole: the count does not follow the batch size, a direction is missing."""

    def at(self, batch: int, layer: str, direction: str) -> Judged:
        """Of one ledger row; empty where nothing was found."""
        return self.rows.get((batch, layer, direction), Judged())
