"""Why a step changed: both sides aligned by layer, direction and algorithm, with what the change of
each place comes from.

Everything is read off the rows of a pair. Kernels of no layer are aligned by their family, and so
are all kernels where the two sides have no layer in common; all ways to compute a convolution are
then one family.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

from perfctl.orchestrator.compare.quantities import KERNELS, PER_REPORT, UNATTRIBUTED, Key
from perfctl.orchestrator.compare.rows import Number, Row
from perfctl.orchestrator.counts.kernels.names import arithmetic, family
from perfctl.orchestrator.ledger.timing import KERNEL_BASIS

ALGORITHM, ARITHMETIC, OTHER_KERNELS = "another algorithm", "other arithmetic", "other kernels"
LAUNCHES, GRIDS, SAME = "launches", "other grids", "same kernels"
ONLY_A, ONLY_B, TIMED = "only in A", "only in B", "no kernels recorded"
KINDS = {
    ALGORITHM: "the kernels compute it in another way, by their names",
    ARITHMETIC: "the same algorithm, in another type of numbers or on other units",
    OTHER_KERNELS: "the same algorithm, with other kernels: another tile, layout or version",
    LAUNCHES: "the same kernels, another number of times a step",
    GRIDS: "the same kernels as often, on other grids: tensors of another size",
    SAME: "the same kernels, as often, on the same grids",
    ONLY_A: "B did not run it",
    ONLY_B: "A did not run it",
    TIMED: "its time is known, and not its kernels",
}
"""What stands behind the change of a place, those that say most first -> its meaning."""
_ALIKE = 0.01
"""Launches a step that differ by less are the same: a run may begin or end within a step."""
_FAMILIES: dict[str | None, str] = {
    "conv": "convolution",
    "winograd": "convolution",
    "fft": "convolution",
    "depthwise": "convolution",
    "gemm": "GEMM",
    "rnn": "RNN",
    "collective": "communication",
    None: "other",
}
"""Family of a kernel's name -> where it stands without a layer: all ways to compute a
convolution together."""
Place = tuple[str, str]
"""(layer, direction); ("", family) of kernels of no layer."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What one side ran at one place in a step."""

    JSON_KEYS = ("algorithms", "arithmetic", "launches", "ns", "kernels")

    kernels: tuple[str, ...]
    """Whole names, sorted; empty where only the time is known."""
    algorithms: tuple[str, ...]
    """Methods of the kernels that do the arithmetic, sorted: "implicit gemm", "winograd
    F(2x2,3x3)". Empty: names say nothing."""
    arithmetic: tuple[str, ...]
    """Types that they multiply, with "tensor cores" where on these: "tf32 tensor cores"."""
    libraries: frozenset[str]
    launches: float | None
    """A step; None where nothing says it."""
    grids: frozenset[str]
    ns: float | None
    """Time a step."""


@dataclass(frozen=True, slots=True)
class Part:
    """One place on both sides."""

    JSON_KEYS = ("layer", "direction", "kind", "change", "flops", "a", "b")
    JSON_NAMES: ClassVar = {"kind": "behind_it", "change": "change_ns", "flops": "flops_b_over_a"}

    layer: str
    direction: str
    """Of a layer; for kernels of no layer their family ("convolution")."""
    name: str
    kind: Annotated[str, KINDS]
    """One of KINDS."""
    a: Executed | None
    b: Executed | None
    row: Row | None = None
    """Its time and its verdict; None where kernels of no layer were added up."""
    counted: tuple[float, float] | None = None
    """Exact FLOPs of A and of B in a step (1 multiply-add = 2); None where one is not known."""

    @property
    def flops(self) -> float | None:
        """FLOPs of B over those of A."""
        return self.counted[1] / self.counted[0] if self.counted else None

    @property
    def change(self) -> float | None:
        """Time of B less that of A, in ns a step; what one side lacks takes no time there. None
        when not known."""
        a, b = (0.0 if side is None else side.ns for side in (self.a, self.b))
        return None if a is None or b is None else b - a


@dataclass(frozen=True, slots=True)
class Cause:
    """Places whose change has one origin."""

    kind: str
    before: tuple[str, ...]
    """Algorithms, or types of numbers, that B no longer uses; likewise ``after``: those that only
    B uses."""
    after: tuple[str, ...]
    parts: tuple[Part, ...]
    """The largest change first."""

    @property
    def change(self) -> float:
        """ns a step, of the places whose time is known."""
        return sum(part.change or 0.0 for part in self.parts)

    @property
    def flops(self) -> float | None:
        """FLOPs of B over those of A, of all places together; None unless all are known."""
        known = [part.counted for part in self.parts if part.counted is not None]
        return (
            sum(b for _, b in known) / sum(a for a, _ in known)
            if len(known) == len(self.parts)
            else None
        )

    @property
    def slower(self) -> float | None:
        """Time of B over that of A, of all places together; None unless both ran all of them, for a
        known time."""
        sides = [
            (part.a.ns, part.b.ns)
            for part in self.parts
            if part.a is not None and part.b is not None
        ]
        known = [(a, b) for a, b in sides if a and b]
        return (
            sum(b for _, b in known) / sum(a for a, _ in known)
            if known and len(known) == len(self.parts)
            else None
        )

    @property
    def libraries(self) -> frozenset[str]:
        sides = (side for part in self.parts for side in (part.a, part.b) if side is not None)
        return frozenset().union(*(side.libraries for side in sides))


@dataclass(frozen=True)
class Why:
    """The alignment of a pair."""

    parts: tuple[Part, ...]
    by_layer: bool
    """False where the sides have no layer in common, so that all kernels are aligned by
    their family."""
    step: Row | None
    """Time of a whole step."""
    kernels: Row | None
    """Time of all kernels of a step."""
    per_step: bool = True
    """False where all figures are of a whole report, whose number of steps is unknown."""

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """The largest change of time first."""
        groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[Part]] = defaultdict(list)
        for part in self.parts:
            groups[part.kind, *_instead(part)].append(part)
        made = (
            Cause(
                kind, before, after, tuple(sorted(parts, key=lambda part: -abs(part.change or 0.0)))
            )
            for (kind, before, after), parts in groups.items()
        )
        return tuple(
            sorted(made, key=lambda cause: (-abs(cause.change), list(KINDS).index(cause.kind)))
        )

    def of(self, *kinds: str) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind in kinds)

    @property
    def has_kernels(self) -> bool:
        return any(
            side is not None and side.kernels for part in self.parts for side in (part.a, part.b)
        )

    @property
    def timed(self) -> bool:
        """False where all times are ncu's, at locked clocks."""
        rows = [
            row
            for row in (self.step, self.kernels, *(part.row for part in self.parts))
            if row is not None
        ]
        return not rows or any(row.basis != KERNEL_BASIS["ncu"] for row in rows)

    @property
    def verdict(self) -> str | None:
        """On the step, else on its kernels; None without either."""
        row = self.step or self.kernels
        return None if row is None else row.verdict

    @property
    def total(self) -> tuple[float, float] | None:
        """What the parts add up to in A and in B, in ns: all kernels of a step, else the step, else
        all kernels. None: unknown."""
        row = self.kernels or self.step
        if row is not None:
            return None if row.a is None or row.b is None else (row.a.median, row.b.median)
        times = [
            [0.0 if side is None else side.ns for side in (part.a, part.b)]
            for part in self.parts
            if _ran(part)
        ]
        known = [(a, b) for a, b in times if a is not None and b is not None]
        return (
            (sum(a for a, _ in known), sum(b for _, b in known))
            if known and len(known) == len(times)
            else None
        )

    @property
    def whole(self) -> float | None:
        """Change of ``total``."""
        return None if self.total is None else self.total[1] - self.total[0]

    @property
    def launches(self) -> tuple[float, float] | None:
        """Launches a step in A and in B; None where a part does not say."""
        counts = [
            [0.0 if side is None else side.launches for side in (part.a, part.b)]
            for part in self.parts
            if _ran(part)
        ]
        known = [(a, b) for a, b in counts if a is not None and b is not None]
        return (
            (sum(a for a, _ in known), sum(b for _, b in known))
            if known and len(known) == len(counts)
            else None
        )

    @property
    def unchanged(self) -> float | None:
        """Time of B over that of A, of all places that ran the same kernels as often on the same
        grids; None without any."""
        sides = [(part.a.ns, part.b.ns) for part in self.of(SAME) if part.a and part.b]
        known = [(a, b) for a, b in sides if a is not None and b is not None]
        before = sum(a for a, _ in known)
        return sum(b for _, b in known) / before if before else None


def explain(rows: Sequence[Row]) -> Why:
    """The rows of one pair, aligned."""
    times = [row for row in rows if row.key.quantity == "time"]
    kernels = [row for row in times if row.key.level == "kernel"]
    shared = _layers(kernels, "a") & _layers(kernels, "b")
    by_layer = bool(shared) or not kernels
    groups: dict[Place, list[Row]] = defaultdict(list)
    for row in kernels:
        groups[_place(row.key, by_layer)].append(row)
    layers = {(row.key.layer, row.key.direction): row for row in times if row.key.level == "layer"}
    if kernels:  # those of no layer stand by their kind of work
        layers = {
            place: row for place, row in layers.items() if by_layer and place[0] != UNATTRIBUTED
        }
    counts = {row.key[3:5]: _exact(row) for row in rows if row.key[:2] == ("layer", "flops")}
    parts = [
        _part(place, groups.get(place, []), layers.get(place), counts.get(place))
        for place in dict.fromkeys((*layers, *groups))
    ]
    whole = {row.key.what: row for row in times if row.key.level == "step"}
    per_step = not any(PER_REPORT in (row.basis or "") for row in kernels)
    return Why(tuple(parts), by_layer, whole.get("step"), whole.get(KERNELS), per_step)


def executed(
    names: Iterable[str],
    *,
    launches: float | None = None,
    grids: Iterable[str] = (),
    ns: float | None = None,
) -> Executed:
    """What kernels of these names do together."""
    kernels = tuple(sorted(set(names)))
    doing = arithmetic(kernels)
    methods = {found.method or found.family for found in doing}
    types = {
        " ".join(filter(None, (one.math, "tensor cores" if one.tensor_core else None)))
        for one in doing
    }
    libraries = frozenset(found.library for found in doing if found.library)
    return Executed(
        kernels,
        tuple(sorted(filter(None, methods))),
        tuple(sorted(filter(None, types))),
        libraries,
        launches,
        frozenset(grids),
        ns,
    )


def _layers(kernels: Iterable[Row], side: str) -> set[str]:
    return {row.key.layer for row in kernels if getattr(row, side) is not None} - {UNATTRIBUTED, ""}


def _place(key: Key, by_layer: bool) -> Place:
    if by_layer and key.layer != UNATTRIBUTED:
        return key.layer, key.direction
    return "", "optimizer" if key.direction == "optimizer" else _FAMILIES.get(
        found := family(key.kernel), found or "other"
    )


def _part(
    place: Place, kernels: Sequence[Row], row: Row | None, counted: tuple[float, float] | None
) -> Part:
    a, b = (_side(kernels, row, side) for side in ("a", "b"))
    name = row.name if row is not None else f"{place[1]} kernels"
    return Part(*place, name, _kind(a, b), a, b, row, counted)


def _side(kernels: Sequence[Row], row: Row | None, which: str) -> Executed | None:
    ran: list[tuple[str, Number]] = [
        (one.key.kernel, found) for one in kernels if (found := getattr(one, which)) is not None
    ]
    whole: Number | None = None if row is None else getattr(row, which)
    if not ran and whole is None:
        return None
    counts = [number.launches for _, number in ran if number.launches is not None]
    return executed(
        (name for name, _ in ran),
        launches=sum(counts) if counts and len(counts) == len(ran) else None,
        grids=(f"{name} {grid}" for name, number in ran for grid in number.grids),
        ns=whole.median if whole is not None else sum(number.median for _, number in ran),
    )


def _kind(a: Executed | None, b: Executed | None) -> str:
    if a is None or b is None:
        return ONLY_B if a is None else ONLY_A
    if not a.kernels or not b.kernels:
        return TIMED
    if a.algorithms != b.algorithms and a.algorithms and b.algorithms:
        return ALGORITHM
    if a.arithmetic != b.arithmetic and a.arithmetic and b.arithmetic:
        return ARITHMETIC
    if a.kernels != b.kernels:
        return OTHER_KERNELS
    if (
        a.launches is not None
        and b.launches is not None
        and abs(a.launches - b.launches) > _ALIKE * max(a.launches, b.launches)
    ):
        return LAUNCHES
    return SAME if a.grids == b.grids else GRIDS


def _instead(part: Part) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What only A, and what only B, computes with, where that is what changed."""
    words = {ALGORITHM: "algorithms", ARITHMETIC: "arithmetic"}.get(part.kind)
    if words is None or part.a is None or part.b is None:
        return (), ()
    a, b = getattr(part.a, words), getattr(part.b, words)
    return tuple(one for one in a if one not in b), tuple(one for one in b if one not in a)


def _ran(part: Part) -> bool:
    return any(side is not None and side.kernels for side in (part.a, part.b))


def _exact(row: Row) -> tuple[float, float] | None:
    """A count of both sides whose verdict says that both are exact."""
    if (
        row.a is None
        or row.b is None
        or not row.a.median
        or row.verdict not in ("equal", "differs")
    ):
        return None
    return row.a.median, row.b.median
