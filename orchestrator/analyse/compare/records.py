"""What a comparison of two sides is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perfctl.records.run import Run

LEVELS = ("step", "layer", "kernel")
"""Whole steps and memory; layers by direction; kernels by name inside them."""
SLOWER, FASTER, LARGER, SMALLER = "slower", "faster", "larger", "smaller"
NEW, GONE, DIFFERS = "new", "gone", "differs"
WITHIN, NOT_SHOWN, EQUAL, NOT_JUDGED = "within the gate", "not shown", "equal", "not judged"
WORSE, BETTER, NEWS = (SLOWER, LARGER), (FASTER, SMALLER), (NEW, GONE, DIFFERS)
MEANING = {
    SLOWER: "takes more time: more than the gate, and more than the spread explains",
    FASTER: "takes less time: more than the gate, and more than the spread explains",
    LARGER: "takes more memory than the gate allows",
    SMALLER: "takes less memory, by more than the gate",
    NEW: "in B only",
    GONE: "in A only",
    DIFFERS: "an exact count that is not the same",
    WITHIN: "a difference is shown, and it is smaller than the gate",
    NOT_SHOWN: "the spread is as large as the difference",
    EQUAL: "the same count",
    NOT_JUDGED: "there is no spread to judge by, or the figures do not mean the same",
}
"""Every verdict on a row, in the words used everywhere."""


@dataclass(frozen=True, slots=True)
class Side:
    """A or B, as it was named."""

    label: str
    runs: tuple[Run, ...]


class Key(NamedTuple):
    """What a row is about; the same on both sides."""

    level: str
    quantity: str
    """time, throughput, memory or flops."""
    what: str
    """Of a step: "step", "forward", "peak allocated"; else ""."""
    layer: str = ""
    direction: str = ""
    kernel: str = ""
    """Short name."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One quantity in one run."""

    values: tuple[float, ...]
    """A value a step; one value for what a run has once. ns, bytes, FLOP (1 multiply-add = 2) or samples per second."""
    basis: str
    """What it was read from; rows whose bases differ are not judged."""
    trusted: bool = True
    grids: tuple[str, ...] = ()
    """Of a kernel: its grids, "16x4x1", most launched first."""
    launches: float | None = None
    """Of a kernel, per step."""
    note: str | None = None
    """Why the figure is less than exact; None when it is exact."""


@dataclass(frozen=True, slots=True)
class Number:
    """One side of a row."""

    median: float
    """Over runs, of each run's median over steps."""
    interval: tuple[float, float] | None
    """95 % interval over runs; None with one run."""
    low: float
    """Smallest and largest run."""
    high: float
    runs: int
    """Runs that have it."""
    of_runs: int
    steps: int
    """Steps in all of them."""
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
    """95 % interval of the change, of this row alone; None where it was not judged by a spread."""
    p: float | None
    """Chance of a difference as large where there is none, of this row alone."""
    adjusted: float | None
    """The same among all rows of its level (Holm)."""
    verdict: str
    why: str
    """What the verdict rests on, or why there is none."""
    basis: str | None

    @property
    def weight(self) -> float:
        """What the change amounts to, for sorting: nanoseconds, bytes or FLOP."""
        return abs((self.b.median if self.b else 0.0) - (self.a.median if self.a else 0.0))


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that is not the same on both sides."""

    fact: str
    a: str
    b: str
    blocks: bool
    """True when times are then not comparable; False when it is only said."""
    why: str

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
    """(fact, A, B), all that were compared."""
    rows: tuple[Row, ...]
    """None of them while something blocks, unless forced."""
    notes: tuple[str, ...]

    @property
    def blocked(self) -> tuple[Difference, ...]:
        """What makes it not comparable; empty when it is."""
        return tuple(found for found in self.differences if found.blocks)

    @property
    def batch(self) -> str:
        """ "64", "64 / 128" where they differ (forced), or "" when not known."""
        sizes = dict.fromkeys(str(size) for size in (self.batch_a, self.batch_b) if size is not None)
        return " / ".join(sizes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B, whole."""

    a: Side
    b: Side
    gate: float
    """0.05: changes up to 5 % do not count."""
    forced: bool
    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...]
    """What only A has whole, in words."""
    only_b: tuple[str, ...]
    failed: tuple[str, ...]
    """What A has whole and B tried and failed."""

    def rows(self, verdicts: tuple[str, ...]) -> tuple[tuple[Pair, Row], ...]:
        """Rows with these verdicts, those that weigh most first; throughput is not said again beside its step."""
        found = [
            (pair, row)
            for pair in self.pairs
            for row in pair.rows
            if row.verdict in verdicts and row.key.quantity != "throughput"
        ]
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
        """Pairs that are blocked and were not forced."""
        return () if self.forced else tuple(pair for pair in self.pairs if pair.blocked)

    @property
    def judged(self) -> int:
        """Rows of times with a verdict; with none, nothing is known to be as fast as it was."""
        rows = (row for pair in self.pairs for row in pair.rows if row.key.quantity == "time")
        return sum(row.verdict not in (NOT_JUDGED, NEW, GONE) for row in rows)
