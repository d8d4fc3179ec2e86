"""Records of a comparison of two sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perfctl.orchestrator.analyse.statistics import Ratio
from perfctl.records.run import Run

LEVELS = ("step", "layer", "kernel")
"""Whole steps and memory; layers by direction; kernels by their whole name inside them."""
SLOWER, FASTER, LARGER, SMALLER = "slower", "faster", "larger", "smaller"
NEW, GONE, DIFFERS = "new", "gone", "differs"
WITHIN, NOT_SHOWN, EQUAL, NOT_JUDGED = "within the gate", "not shown", "equal", "not judged"
WORSE, BETTER, NEWS = (SLOWER, LARGER), (FASTER, SMALLER), (NEW, GONE, DIFFERS)
MEANING = {
    SLOWER: "more time: above the gate, and significant",
    FASTER: "less time: above the gate, and significant",
    LARGER: "more memory, above the gate",
    SMALLER: "less memory, above the gate",
    NEW: "in B only",
    GONE: "in A only",
    DIFFERS: "a different exact count",
    WITHIN: "significant, and below the gate",
    NOT_SHOWN: "not significant: the spread is as large as the difference",
    EQUAL: "the same count",
    NOT_JUDGED: "no spread, figures of different meaning, or sides that are not comparable",
}


@dataclass(frozen=True, slots=True)
class Side:
    """A or B, with its name."""

    label: str
    runs: tuple[Run, ...]


class Key(NamedTuple):
    """What a row is about; the same on both sides."""

    level: str
    quantity: str
    """time, throughput, memory, flops, energy or energy-delay product."""
    what: str
    """Of a step: "step", "forward", "peak allocated"; else ""."""
    layer: str = ""
    direction: str = ""
    kernel: str = ""
    """Whole name: short names are for people."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One quantity in one run."""

    values: tuple[float, ...]
    """One for each step, or one for the run. ns, bytes, FLOP (1 multiply-add = 2) or samples per second."""
    basis: str
    """Its source; rows of different sources are not judged."""
    trusted: bool = True
    grids: tuple[str, ...] = ()
    launches: float | None = None
    note: str | None = None
    """Why the figure is less than exact; None when it is exact."""


@dataclass(frozen=True, slots=True)
class Number:
    """One side of a row."""

    median: float
    interval: tuple[float, float] | None
    """95 % interval over runs; None with one run."""
    low: float
    high: float
    runs: int
    of_runs: int
    steps: int
    grids: tuple[str, ...] = ()
    launches: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity on both sides."""

    key: Key
    name: str
    """ "step", "conv2 forward", "conv2 forward: volta_sgemm_128x64_tn"."""
    a: Number | None
    b: Number | None
    change: float | None
    """Median of B over median of A, less 1."""
    interval: tuple[float, float] | None
    """95 % interval of the change of this row; None if not judged by a spread."""
    p: float | None
    adjusted: float | None
    verdict: str
    why: str
    basis: str | None
    ratio: Ratio | None = None
    """What the interval was made from; None if not judged by a spread."""

    @property
    def weight(self) -> float:
        return abs((self.b.median if self.b else 0.0) - (self.a.median if self.a else 0.0))


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that is not the same on both sides."""

    fact: str
    a: str
    b: str
    blocks: bool
    """True: times are not comparable; False: for information."""
    why: str

    software: bool = False
    """A library or driver: a possible cause of the change, which does not block."""

    @property
    def sentence(self) -> str:
        """ "torch: 2.8.0 in A, 2.9.0 in B"."""
        return f"{self.fact}: {self.a} in A, {self.b} in B"


@dataclass(frozen=True, slots=True)
class Pair:
    """One workload at one batch size, on both sides."""

    heading: str
    batch_a: int | None
    batch_b: int | None
    runs_a: tuple[Run, ...]
    runs_b: tuple[Run, ...]
    differences: tuple[Difference, ...]
    facts: tuple[tuple[str, str, str], ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def blocked(self) -> tuple[Difference, ...]:
        """Differences that make it not comparable."""
        return tuple(found for found in self.differences if found.blocks)

    @property
    def batch(self) -> str:
        """ "64", "64 / 128" (forced), or "" if unknown."""
        return " / ".join(dict.fromkeys(str(size) for size in (self.batch_a, self.batch_b) if size is not None))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B, whole."""

    a: Side
    b: Side
    gate: float
    forced: bool
    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    failed: tuple[str, ...]

    def rows(self, verdicts: tuple[str, ...]) -> tuple[tuple[Pair, Row], ...]:
        """Rows with these verdicts, the largest change first, without throughput, which repeats its step."""
        every = ((pair, row) for pair in self.pairs for row in pair.rows if row.key.quantity != "throughput")
        found = (item for item in every if item[1].verdict in verdicts)
        return tuple(sorted(found, key=lambda item: (LEVELS.index(item[1].key.level), -item[1].weight)))

    @property
    def regressions(self) -> tuple[tuple[Pair, Row], ...]:
        return self.rows(WORSE)

    @property
    def improvements(self) -> tuple[tuple[Pair, Row], ...]:
        return self.rows(BETTER)

    @property
    def news(self) -> tuple[tuple[Pair, Row], ...]:
        return self.rows(NEWS)

    @property
    def not_comparable(self) -> tuple[Pair, ...]:
        return () if self.forced else tuple(pair for pair in self.pairs if pair.blocked)

    @property
    def judged(self) -> int:
        rows = (row for pair in self.pairs for row in pair.rows if row.key.quantity == "time")
        return sum(row.verdict not in (NOT_JUDGED, NEW, GONE) for row in rows)
