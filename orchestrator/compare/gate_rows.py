"""What a gate compares: quantities by place, what each means, the verdict on each, and which rows
one change moved together. FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple


class Place(NamedTuple):
    """What a quantity is of; all empty: of the whole."""

    study: str = ""
    """ "mnist_cnn, training, fp32", or the name of a report; "" for a model."""
    batch: int | None = None
    layer: str = ""
    """Dotted module path; "" for the whole step."""
    direction: str = ""

    @property
    def name(self) -> str:
        """ "mnist_cnn, training, fp32, batch 16, conv2 forward"."""
        size = "" if self.batch is None else f"batch {self.batch}"
        layer = " ".join(filter(None, (self.layer, self.direction)))
        return ", ".join(filter(None, (self.study, size, layer))) or "whole"


class Kind(NamedTuple):
    """What a quantity is, and how it is judged."""

    unit: str
    said: str
    less_is_better: bool = True
    """False: any change counts."""
    tolerance: float = 0.0
    """Share of the baseline's value that may come on top: 0 is exact."""


KINDS: Mapping[str, Kind] = {
    "setup": Kind(
        "", "what was asked for: options, mode, precision, device, batch size", less_is_better=False
    ),
    "steps": Kind("", "measured steps of a recording", less_is_better=False),
    "parameters": Kind("", "elements of all parameters"),
    "flops": Kind("FLOP", "multiply-adds x 2, by formula, or as counted"),
    "elementwise_flops": Kind("FLOP", "by formula: biases, activations, norms, pooling"),
    "bytes": Kind("bytes", "tensors that operations read and write, by formula"),
    "operations": Kind("", "operations that PyTorch's dispatcher sees in a step"),
    "cast_bytes": Kind(
        "bytes", "read and written by copies from one floating-point type to another"
    ),
    "copied_bytes": Kind(
        "bytes", "tensors that clone makes, also where contiguous or reshape call it"
    ),
    "memory_peak": Kind(
        "bytes", "largest sum of the tensors that are alive, as the allocator rounds them"
    ),
    "counted_flops": Kind("FLOP", "what kernels executed in a step, by counters"),
    "derived_flops": Kind(
        "FLOP", "what kernels executed in a step, by their names, grids and shapes"
    ),
    "dram_bytes": Kind(
        "bytes", "between the GPU and its memory in a step, by counters", tolerance=0.05
    ),
    "launches": Kind("", "kernels a step"),
    "kernels": Kind("", "names of kernels, and launches of each a step", less_is_better=False),
    "threads": Kind(
        "", "of all blocks of all launches a step, by grids and blocks", less_is_better=False
    ),
    "algorithm": Kind("", "how the kernels compute it, by their names", less_is_better=False),
    "allocated": Kind("bytes", "peak of PyTorch's allocator", tolerance=0.01),
    "time": Kind("ns", "a step: the median of each session, a sweep with --repeat", tolerance=0.05),
}
"""Quantity -> what it means. A tolerance is stated in the baseline where it was chosen."""
TIME, SETUP = "time", "setup"
NAMING = (
    SETUP,
    "steps",
    "algorithm",
    "cast_bytes",
    "flops",
    "parameters",
    "launches",
    "kernels",
    "counted_flops",
    "derived_flops",
    "threads",
    "operations",
    "elementwise_flops",
    "copied_bytes",
    "bytes",
    "dram_bytes",
    "memory_peak",
    "allocated",
    TIME,
)
"""Quantities, those first that name a cause rather than a consequence: a cast moves bytes, and a
wider layer does too."""
Value = int | float | str | Mapping[str, float] | tuple[float, ...]
"""A figure; a text; launches by kernel name; or the time of each session, the oldest first."""
Values = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of one subject."""

    places: Mapping[Place, Values]
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What is not held -> why: "batch 16, conv3 forward: dram_bytes"."""
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Study -> fact -> value: libraries, device, clocks."""
    problems: tuple[str, ...] = ()
    """Why figures are less than the whole: where a trace stopped."""


SAME, WITHIN, WORSE, CHANGED, BETTER = "same", "within the tolerance", "worse", "changed", "better"
NEW, MISSING, NOT_JUDGED = "new", "missing", "not judged"
MEANING = {
    WORSE: "more than the baseline, by more than the tolerance; of time, shown by its spread too",
    CHANGED: "another value, where more and less do not say which is better",
    MISSING: "in the baseline, and not known now",
    NEW: "not in the baseline: --update takes it in",
    BETTER: "less than the baseline: --update holds the new level",
    NOT_JUDGED: "known on both sides, and not to be compared",
    WITHIN: "differs by no more than the tolerance, or than its spread explains",
    SAME: "equal",
}
"""Verdict -> what it means; what a reader must see first comes first."""
FAILS = (WORSE, CHANGED)


@dataclass(frozen=True, slots=True)
class Judged:
    """One quantity against the baseline."""

    JSON_KEYS = ("*", "unit")
    JSON_NAMES: ClassVar = {"result": "verdict", "reason": "said"}

    place: Place
    quantity: str
    before: Value | None
    after: Value | None
    result: Annotated[str, MEANING] = NOT_JUDGED
    reason: str = ""
    """Why, or what changed: "+9,437,184 FLOP, +100 %"."""
    change: float | None = None
    """After over before, less 1; None where that is not defined."""

    @property
    def unit(self) -> str | None:
        """Of the quantity."""
        return KINDS[self.quantity].unit or None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One entry of the baseline, judged."""

    JSON_KEYS = (
        "entry",
        "failed",
        "undecided",
        "problems",
        "notes",
        "differences",
        "not_the_same",
        "same",
    )
    JSON_NAMES: ClassVar = {"not_the_same": "rows"}

    entry: str
    rows: tuple[Judged, ...]
    """All, in the order of the baseline."""
    differences: tuple[str, ...] = ()
    """Facts of the environment that differ: "torch: 2.13.0 before, 2.14.1 now"."""
    problems: tuple[str, ...] = ()
    """Why the subject could not be had, or not all of it."""
    notes: tuple[str, ...] = ()
    """What is not held, and why."""

    def of(self, *verdicts: str) -> tuple[Judged, ...]:
        return tuple(row for row in self.rows if row.result in verdicts)

    @property
    def not_the_same(self) -> tuple[Judged, ...]:
        """All rows but those that are equal."""
        return tuple(row for row in self.rows if row.result != SAME)

    @property
    def same(self) -> int:
        """How many rows are equal."""
        return len(self.of(SAME))

    @property
    def failed(self) -> bool:
        return bool(self.of(*FAILS))

    @property
    def undecided(self) -> bool:
        """Something of the baseline could not be judged at all, or nothing of it could."""
        return bool(self.problems or self.of(MISSING)) or all(
            row.result in (NEW, NOT_JUDGED) for row in self.rows
        )


class Cause(NamedTuple):
    """Rows of one quantity in one study, of all its places and batch sizes."""

    first: Judged
    """The row that says most: of the layer where the quantity moved most, else of the whole."""
    whole: Judged | None
    """Of the step that ``first`` is a part of; None where ``first`` is the whole, or the whole is
    not among the rows."""
    others: tuple[Judged, ...]
    """Rows of the other places, those that moved most first."""


def causes(outcome: Outcome, *verdicts: str) -> list[Cause]:
    """Return the rows of these verdicts, those first whose quantity names a cause rather than a
    consequence (``NAMING``)."""
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for row in outcome.of(*verdicts):
        groups[row.place.study, row.quantity].append(row)
    new = outcome.of(NEW)
    found = [
        _group_cause(rows, [row for row in new if (row.place.study, row.quantity) == key])
        for key, rows in groups.items()
    ]
    return sorted(
        found, key=lambda cause: (naming_rank(cause.first), -abs(cause.first.change or 0))
    )


def naming_rank(row: Judged) -> int:
    """Return the position of the row's quantity among those that name a cause."""
    return NAMING.index(row.quantity) if row.quantity in NAMING else len(NAMING)


def _group_cause(rows: Sequence[Judged], new: Sequence[Judged]) -> Cause:
    """``new``: rows of places that the baseline does not have; one of them may be what made a sum
    larger."""
    ordered = sorted((*rows, *new), key=lambda row: -_distance(row.before, row.after))
    first = min(
        (row for row in ordered if row.place.batch == rows[0].place.batch),
        key=lambda row: 0 if row.place.layer else 1 if row.place.direction else 2,
    )
    direction = first.place._replace(layer="")
    totals = {row.place: row for row in rows if row is not first and not row.place.layer}
    total = totals.get(direction) or totals.get(direction._replace(direction=""))
    others = tuple(row for row in ordered if row is not first and row in rows)
    return Cause(first, total, others)


def _distance(before: Value | None, after: Value | None) -> float:
    """Return how far a value moved, in its own unit: of kernels the launches that came and went, of
    sessions the newest; a text has no distance."""
    if isinstance(before, Mapping) or isinstance(after, Mapping):
        old, new = (side if isinstance(side, Mapping) else {} for side in (before, after))
        return sum(abs(new.get(name, 0) - old.get(name, 0)) for name in {*old, *new})
    numbers = [
        side[-1] if isinstance(side, tuple) else side if isinstance(side, int | float) else 0
        for side in (before, after)
    ]
    return abs(numbers[1] - numbers[0])
