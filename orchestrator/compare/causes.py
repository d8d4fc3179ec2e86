"""Why a step changed: both sides aligned by layer, direction and algorithm, with what the change of
each place comes from, and which differences between the sides may have caused it.

Everything is read off the rows and differences of a pair. Kernels of no layer are aligned by their
family, and so are all kernels where the two sides have no layer in common; all ways to compute a
convolution are then one family.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, ClassVar

from perfctl.orchestrator.compare.compare import ComparedPair
from perfctl.orchestrator.compare.quantities import (
    BETTER,
    DIFFERS,
    EQUAL,
    KERNEL_TIME,
    NOT_SHOWN,
    PER_REPORT,
    STEP_TIME,
    UNATTRIBUTED,
    WITHIN,
    WORSE,
    ComparedRow,
    SideFigure,
)
from perfctl.orchestrator.compare.sides import NOT_RECORDED, FactDifference
from perfctl.orchestrator.counts.kernels.names import (
    ARITHMETIC_FAMILIES,
    list_layer_algorithms,
    recognise_family,
)
from perfctl.orchestrator.ledger.timing import KERNEL_BASIS
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import pluralize_count

ALGORITHM, ARITHMETIC, OTHER_KERNELS = "another algorithm", "other arithmetic", "other kernels"
LAUNCHES, GRIDS, SAME = "launches", "other grids", "same kernels"
ONLY_A, ONLY_B, TIMED = "only in A", "only in B", "no kernels recorded"
KINDS = {
    ALGORITHM: "the kernels use another algorithm, according to their names",
    ARITHMETIC: "the same algorithm, in another data type or on other units",
    OTHER_KERNELS: "the same algorithm, with other kernels: another tile, layout or version",
    LAUNCHES: "the same kernels, some or all of them another number of times per step",
    GRIDS: "the same kernels equally often, on other grids: tensors of another size",
    SAME: "the same kernels, equally often, on the same grids",
    ONLY_A: "B did not record it",
    ONLY_B: "A did not record it",
    TIMED: "its time is known, but not its kernels",
}
"""What stands behind the change of a place, those that say most first -> its meaning."""
_LAUNCHES_SHARE_MAX = 0.01
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
LIKELY, POSSIBLE, UNLIKELY = "likely", "possible", "unlikely"
NOT_RANKED = "not ranked"
LEVELS = (LIKELY, POSSIBLE, UNLIKELY, NOT_RANKED)
UNCHANGED_KERNELS_SHARE_MAX = 0.02
"""If the time of kernels that did not change moved by a larger share, it moved with the machine."""
KERNELS_SHARE_OF_CHANGE_MIN = 0.5
"""If kernels account for a smaller share of the step's change, the change is between them."""
RowKey = tuple[str, str]
"""(layer, direction); ("", family) of kernels of no layer."""
SidePair = tuple[float | None, float | None]
"""A figure of A and of B."""
_Ranked = tuple[str, str]
"""(level, reason)."""
_NOTHING: _Ranked = (UNLIKELY, "no value points to it")
_OTHER = (ALGORITHM, ARITHMETIC, OTHER_KERNELS)
_LAUNCHED = (ONLY_A, ONLY_B, LAUNCHES)
_ALWAYS: Mapping[str, _Ranked] = {
    **dict.fromkeys(
        ("workload", "variant", "mode", "batch", "sequences", "world_size"),
        (LIKELY, "A and B do a different amount of work per step"),
    ),
    **dict.fromkeys(
        ("device", "cpu_model", "cpu_capability"), (LIKELY, "kernel times differ between devices")
    ),
    **dict.fromkeys(
        ("profiler", "profiler version", "what timed the steps", "perfctl"),
        (POSSIBLE, "profilers add time to a step"),
    ),
}
"""Fact -> how likely it is, whatever the kernels show."""


@dataclass(frozen=True, slots=True)
class ExecutedWork:
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
    is_arithmetic: bool = False
    """True if a kernel multiplies; otherwise ``algorithms`` are of the other work."""


@dataclass(frozen=True, slots=True)
class ComparedWork:
    """One place on both sides."""

    JSON_KEYS = ("layer", "direction", "kind", "change", "flops", "a", "b")
    JSON_NAMES: ClassVar = {"kind": "change_kind", "change": "change_ns", "flops": "flops_b_over_a"}

    layer: str
    direction: str
    """Of a layer; for kernels of no layer their family ("convolution")."""
    name: str
    kind: Annotated[str, KINDS]
    """One of KINDS."""
    a: ExecutedWork | None
    b: ExecutedWork | None
    row: ComparedRow | None = None
    """Its time and its verdict; None where kernels of no layer were added up."""
    counted: tuple[float, float] | None = None
    """Exact FLOPs of A and of B in a step (1 multiply-add = 2); None where one is not known."""

    @property
    def present_sides(self) -> tuple[ExecutedWork, ...]:
        """Return what the sides that ran it executed."""
        return tuple(side for side in (self.a, self.b) if side is not None)

    @property
    def algorithms_or_types_of_sides(self) -> list[tuple[str, ...]]:
        """Return the data types of each side if these changed, otherwise the algorithms."""
        is_arithmetic = self.kind == ARITHMETIC
        return [
            side.arithmetic if is_arithmetic else side.algorithms for side in self.present_sides
        ]

    @property
    def changed_methods(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the methods that only A, and those that only B uses; none if they did not
        change."""
        if self.kind not in (ALGORITHM, ARITHMETIC):
            return (), ()
        before, after = self.algorithms_or_types_of_sides
        return (
            tuple(name for name in before if name not in after),
            tuple(name for name in after if name not in before),
        )

    @property
    def flops(self) -> float | None:
        """FLOPs of B over those of A."""
        return _divide_b_by_a(self.counted)

    @property
    def change(self) -> float | None:
        """Time of B less that of A, in ns a step; what one side lacks takes no time there. None
        when not known."""
        a, b = self.ns_a_and_b
        return None if a is None or b is None else b - a

    @property
    def ns_a_and_b(self) -> SidePair:
        """Return the time of A and of B per step; 0 of a side that did not run it."""
        return self.a.ns if self.a else 0.0, self.b.ns if self.b else 0.0

    @property
    def launches_a_and_b(self) -> SidePair:
        """Return the launches of A and of B per step; 0 of a side that did not run it."""
        return self.a.launches if self.a else 0.0, self.b.launches if self.b else 0.0


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """Places whose change has one origin."""

    kind: str
    before: tuple[str, ...]
    """Algorithms, or types of numbers, that B no longer uses; likewise ``after``: those that only
    B uses."""
    after: tuple[str, ...]
    parts: tuple[ComparedWork, ...]
    """The largest change first."""

    @property
    def change_ns(self) -> float:
        """ns a step, of the places whose time is known."""
        return sum(part.change or 0.0 for part in self.parts)

    @property
    def flops_b_over_a(self) -> float | None:
        """FLOPs of B over those of A, of all places together; None unless all are known."""
        return _divide_b_by_a(
            _sum_pairs_unless_missing([part.counted or (None, None) for part in self.parts])
        )

    @property
    def time_b_over_a(self) -> float | None:
        """Time of B over that of A, of all places together; None unless both ran all of them, for a
        known time."""
        times = (part.ns_a_and_b for part in self.parts)
        return _divide_b_by_a(_sum_pairs_unless_missing([(a or None, b or None) for a, b in times]))

    @property
    def libraries(self) -> frozenset[str]:
        return frozenset().union(
            *(side.libraries for part in self.parts for side in part.present_sides)
        )


@dataclass(frozen=True, slots=True)
class RankedDifference:
    """A difference, and how likely it is behind the change."""

    JSON_NAMES: ClassVar = {"level": "likelihood", "why": "likelihood_reason"}
    JSON_INLINED = ("difference",)

    difference: FactDifference
    level: str
    why: str


@dataclass(frozen=True)
class AlignedPair:
    """The alignment of a pair."""

    JSON_KEYS = ("pair", "comparable", "suspects", "by_layer", "parts")
    JSON_NAMES: ClassVar = {"suspects": "differences", "parts": "aligned"}
    JSON_INLINED = ("pair",)

    pair: ComparedPair
    parts: tuple[ComparedWork, ...]
    """Times in ns per step, B less A."""
    by_layer: bool
    """False where the sides have no layer in common, so that all kernels are aligned by
    their family."""
    step: ComparedRow | None
    """Time of a whole step."""
    kernels: ComparedRow | None
    """Time of all kernels of a step."""
    per_step: bool = True
    """False where all figures are of a whole report, whose number of steps is unknown."""

    @cached_property
    def causes(self) -> tuple[ChangeCause, ...]:
        """The largest change of time first."""
        groups = group_by(
            sorted(self.parts, key=lambda part: -abs(part.change or 0.0)),
            lambda part: (part.kind, *part.changed_methods),
        )
        causes = [ChangeCause(*origin, tuple(parts)) for origin, parts in groups.items()]
        order = list(KINDS)
        return tuple(
            sorted(causes, key=lambda cause: (-abs(cause.change_ns), order.index(cause.kind)))
        )

    @cached_property
    def suspects(self) -> tuple[RankedDifference, ...]:
        """Every difference of the pair, the likeliest first; within a level in the order of the
        facts. None is ranked if nothing was compared: no change could then have a cause."""
        has_rows = any(row.medians_of_both for row in self.pair.rows)
        ranked = [
            RankedDifference(
                difference,
                *(
                    _judge_difference_likelihood(difference, self)
                    if has_rows
                    else (NOT_RANKED, "nothing to compare")
                ),
            )
            for difference in self.pair.differences
        ]
        return tuple(sorted(ranked, key=lambda suspect: LEVELS.index(suspect.level)))

    @property
    def comparable(self) -> bool:
        return not self.pair.blocking_differences

    def select_parts_of_kind(self, *kinds: str) -> tuple[ComparedWork, ...]:
        return tuple(part for part in self.parts if part.kind in kinds)

    @property
    def has_kernels_on_any_side(self) -> bool:
        return bool(self._parts_with_kernels)

    @property
    def has_times_not_from_ncu(self) -> bool:
        """False where all times are ncu's, at locked clocks."""
        rows = (self.step, self.kernels, *(part.row for part in self.parts))
        bases = [row.basis for row in rows if row is not None]
        return not bases or any(basis != KERNEL_BASIS["ncu"] for basis in bases)

    @property
    def step_or_kernel_result(self) -> str | None:
        """On the step, else on its kernels; None without either."""
        row = self.step or self.kernels
        return None if row is None else row.result

    @property
    def total_ns_of_both(self) -> tuple[float, float] | None:
        """What the parts add up to in A and in B, in ns: all kernels of a step, else the step, else
        all kernels. None: unknown."""
        row = self.kernels or self.step
        if row is not None:
            return row.medians_of_both
        return _sum_pairs_unless_missing([part.ns_a_and_b for part in self._parts_with_kernels])

    @property
    def total_change_ns(self) -> float | None:
        """Change of ``total_ns_of_both``."""
        return (
            None
            if self.total_ns_of_both is None
            else self.total_ns_of_both[1] - self.total_ns_of_both[0]
        )

    @property
    def launches_of_both(self) -> tuple[float, float] | None:
        """Launches a step in A and in B; None where a part does not say."""
        return _sum_pairs_unless_missing(
            [part.launches_a_and_b for part in self._parts_with_kernels]
        )

    @property
    def _parts_with_kernels(self) -> list[ComparedWork]:
        """Return the places that ran kernels."""
        return [part for part in self.parts if any(side.kernels for side in part.present_sides)]

    @property
    def unchanged_kernel_time_ratio(self) -> float | None:
        """Time of B over that of A, of all places that ran the same kernels as often on the same
        grids; None without any."""
        times = [
            part.ns_a_and_b
            for part in self.select_parts_of_kind(SAME)
            if None not in part.ns_a_and_b
        ]
        return _divide_b_by_a(_sum_pairs_unless_missing(times))


def _sum_pairs_unless_missing(pairs: Sequence[SidePair]) -> tuple[float, float] | None:
    """Return the sums of A and of B; None without any, or if a figure is not known."""
    complete_pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not pairs or len(complete_pairs) < len(pairs):
        return None
    return sum(a for a, _ in complete_pairs), sum(b for _, b in complete_pairs)


def _divide_b_by_a(sums: tuple[float, float] | None) -> float | None:
    """Return B over A."""
    return sums[1] / sums[0] if sums and sums[0] else None


def align_layers_and_kernels(pair: ComparedPair) -> AlignedPair:
    """Return the rows of a pair, aligned."""
    times = [row for row in pair.rows if row.key.quantity == "time"]
    kernels = [row for row in times if row.key.level == "kernel"]
    layers_a = {row.key.layer for row in kernels if row.before is not None}
    layers_b = {row.key.layer for row in kernels if row.after is not None}
    by_layer = not kernels or bool(layers_a & layers_b - {UNATTRIBUTED, ""})
    groups: dict[RowKey, list[ComparedRow]] = defaultdict(list)
    for row in kernels:
        row_key = row.key[3:5]
        if row.key.layer == UNATTRIBUTED or not by_layer:
            kind = recognise_family(row.key.kernel)
            is_optimizer = row.key.direction == "optimizer"
            row_key = "", "optimizer" if is_optimizer else _FAMILIES.get(kind, kind or "other")
        groups[row_key].append(row)
    # kernels of no layer are listed by their kind of work
    layers = {
        row.key[3:5]: row
        for row in times
        if row.key.level == "layer"
        and (not kernels or (by_layer and row.key.layer != UNATTRIBUTED))
    }
    counts = {
        row.key[3:5]: medians
        for row in pair.rows
        if row.key[:2] == ("layer", "flops")
        and row.result in (EQUAL, DIFFERS)
        and (medians := row.medians_of_both)
        and medians[0]
    }
    parts = []
    for key in dict.fromkeys((*layers, *groups)):
        layer, group = layers.get(key), groups.get(key, [])
        a = summarize_executed_kernels(
            [(row.key.kernel, row.before) for row in group], layer.before if layer else None
        )
        b = summarize_executed_kernels(
            [(row.key.kernel, row.after) for row in group], layer.after if layer else None
        )
        name = layer.name if layer is not None else f"{key[1]} kernels"
        parts.append(ComparedWork(*key, name, _classify_change(a, b), a, b, layer, counts.get(key)))
    steps = {row.key: row for row in times if row.key.level == "step"}
    per_step = not any(PER_REPORT in (row.basis or "") for row in kernels)
    return AlignedPair(
        pair, tuple(parts), by_layer, steps.get(STEP_TIME), steps.get(KERNEL_TIME), per_step
    )


def summarize_executed_kernels(
    rows: Sequence[tuple[str, SideFigure | None]], layer: SideFigure | None = None
) -> ExecutedWork | None:
    """Return what one side ran: its kernels by name, and the time of the layer."""
    ran = [(name, number) for name, number in rows if number is not None]
    if not (ran or layer):
        return None
    launches = [number.launches for _, number in ran if number.launches is not None]
    kernels = tuple(sorted({name for name, _ in ran}))
    doing = list_layer_algorithms(kernels)
    types = {
        " ".join(filter(None, (kernel.math, "tensor cores" if kernel.tensor_core else None)))
        for kernel in doing
    }
    return ExecutedWork(
        kernels=kernels,
        algorithms=tuple(
            sorted(filter(None, {kernel.method or kernel.family for kernel in doing}))
        ),
        arithmetic=tuple(sorted(filter(None, types))),
        libraries=frozenset(kernel.library for kernel in doing if kernel.library),
        launches=sum(launches) if launches and len(launches) == len(ran) else None,
        grids=frozenset(f"{name} {grid}" for name, number in ran for grid in number.grids),
        ns=layer.median if layer is not None else sum(number.median for _, number in ran),
        is_arithmetic=any(
            kernel.family in (*ARITHMETIC_FAMILIES, "winograd", "fft") for kernel in doing
        ),
    )


def _classify_change(a: ExecutedWork | None, b: ExecutedWork | None) -> str:
    if a is None or b is None:
        return ONLY_B if a is None else ONLY_A
    if not a.kernels or not b.kernels:
        return TIMED
    if a.is_arithmetic != b.is_arithmetic:  # copies do not take the place of a product
        return ONLY_A if a.is_arithmetic else ONLY_B
    if a.algorithms != b.algorithms and a.algorithms and b.algorithms:
        return ALGORITHM
    if a.arithmetic != b.arithmetic and a.arithmetic and b.arithmetic:
        return ARITHMETIC
    launches_differ = (
        a.launches is not None
        and b.launches is not None
        and abs(a.launches - b.launches) > _LAUNCHES_SHARE_MAX * max(a.launches, b.launches)
    )
    # kernels that one side lacks are launches that it lacks, unless others took their place
    is_part = set(a.kernels) <= set(b.kernels) or set(b.kernels) <= set(a.kernels)
    if launches_differ and is_part:
        return LAUNCHES
    if a.kernels != b.kernels:
        return OTHER_KERNELS
    return SAME if a.grids == b.grids else GRIDS


def _judge_difference_likelihood(difference: FactDifference, alignment: AlignedPair) -> _Ranked:
    """What one side did not record may be the same on both, so it is never likely."""
    level, reason = _ALWAYS.get(difference.fact, _NOTHING)
    if (rule := _RULES.get(difference.fact)) is not None:
        level, reason = rule(alignment)
    if level == LIKELY and NOT_RECORDED in (difference.a, difference.b):
        side = "A" if difference.a == NOT_RECORDED else "B"
        return POSSIBLE, f"{side} did not record it, so it may be the same"
    return level, reason


def is_step_change_outside_kernels(alignment: AlignedPair) -> bool:
    """Return whether the step changed, and its kernels by less than half of that."""
    step, kernels = (row and row.medians_of_both for row in (alignment.step, alignment.kernels))
    if not step or not kernels or alignment.step_or_kernel_result in (NOT_SHOWN, WITHIN):
        return False
    change, inside = step[1] - step[0], kernels[1] - kernels[0]
    is_change = abs(change) > UNCHANGED_KERNELS_SHARE_MAX * step[0]
    return is_change and inside / change < KERNELS_SHARE_OF_CHANGE_MIN


def _format_first_part_and_count(parts: tuple[ComparedWork, ...]) -> str:
    """Return "conv2 forward" or "conv2 forward and 2 others"."""
    other_count = len(parts) - 1
    suffix = f" and {pluralize_count(other_count, 'other')}" if other_count else ""
    return f"{parts[0].name}{suffix}"


def _select_parts_with_matching_side(
    parts: tuple[ComparedWork, ...], is_match: Callable[[ExecutedWork], bool]
) -> tuple[ComparedWork, ...]:
    return tuple(part for part in parts if any(map(is_match, part.present_sides)))


def _judge_clock_likelihood(reason: str, alignment: AlignedPair) -> _Ranked:
    factor = alignment.unchanged_kernel_time_ratio
    if factor is None:
        return POSSIBLE, reason
    if abs(factor - 1) <= UNCHANGED_KERNELS_SHARE_MAX:
        return UNLIKELY, f"unchanged kernels took {factor:.2f} times as long"
    if alignment.step_or_kernel_result not in WORSE + BETTER:
        return POSSIBLE, f"{reason}, and the step shows no change"
    return LIKELY, f"{reason}: the unchanged ones took {factor:.2f} times as long"


def _judge_data_type_likelihood(alignment: AlignedPair) -> _Ranked:
    if parts := alignment.select_parts_of_kind(ARITHMETIC):
        return LIKELY, f"{_format_first_part_and_count(parts)} multiply in another data type"
    if _select_parts_with_matching_side(alignment.parts, lambda side: bool(side.arithmetic)):
        return UNLIKELY, "the kernels multiply in the same data types"
    return POSSIBLE, "other arithmetic"


def _judge_library_likelihood(
    library: str, operation: str, reason: str, alignment: AlignedPair
) -> _Ranked:
    if not alignment.has_kernels_on_any_side:
        return UNLIKELY, "no kernel ran on a GPU"
    if parts := _select_parts_with_matching_side(
        alignment.select_parts_of_kind(*_OTHER), lambda side: library in side.libraries
    ):
        return LIKELY, f"{reason}, and {_format_first_part_and_count(parts)} ran other kernels"
    if _select_parts_with_matching_side(alignment.parts, lambda side: library in side.libraries):
        return UNLIKELY, f"the same {operation} kernels ran"
    return UNLIKELY, f"no {operation} kernel ran"


def _judge_torch_likelihood(alignment: AlignedPair) -> _Ranked:
    if not alignment.has_kernels_on_any_side:
        return LIKELY, "torch and its CPU libraries do the arithmetic"
    other = alignment.select_parts_of_kind(*_OTHER)
    changed = alignment.select_parts_of_kind(*_LAUNCHED) + _select_parts_with_matching_side(
        other, lambda side: not side.libraries & {"cudnn", "cublas"}
    )
    if changed:
        return (
            LIKELY,
            f"torch chooses the kernels, and {_format_first_part_and_count(changed)} changed",
        )
    if other:
        return POSSIBLE, "torch includes CUDA, cuBLAS and cuDNN"
    if is_step_change_outside_kernels(alignment):
        return LIKELY, "the time between kernels changed, which torch spends on the host"
    return UNLIKELY, "both sides launched the same kernels equally often"


def _judge_user_code_likelihood(alignment: AlignedPair) -> _Ranked:
    if changed := alignment.select_parts_of_kind(*_LAUNCHED, GRIDS):
        return (
            LIKELY,
            f"your code decides what runs, and {_format_first_part_and_count(changed)} changed",
        )
    if not alignment.has_kernels_on_any_side:
        return LIKELY, "the step ran on the host, as your code does"
    if is_step_change_outside_kernels(alignment):
        return LIKELY, "the time between kernels changed, in which your code runs"
    if alignment.select_parts_of_kind(*_OTHER):
        return POSSIBLE, "your code decides how each layer is computed"
    return UNLIKELY, "both sides launched the same kernels equally often"


def _judge_host_likelihood(alignment: AlignedPair) -> _Ranked:
    if not alignment.has_kernels_on_any_side:
        return LIKELY, "the step ran on the CPU"
    if is_step_change_outside_kernels(alignment):
        return LIKELY, "the time between kernels changed, which the host spends"
    if alignment.step is not None and alignment.kernels is not None:
        return UNLIKELY, "the kernel time changed like the step time"
    return POSSIBLE, "the host launches the kernels"


def _judge_driver_likelihood(alignment: AlignedPair) -> _Ranked:
    if not alignment.has_kernels_on_any_side:
        return UNLIKELY, "no kernel ran on a GPU"
    if is_step_change_outside_kernels(alignment):
        return POSSIBLE, "the driver launches the kernels, and the time between them changed"
    if alignment.select_parts_of_kind(*_OTHER):
        return UNLIKELY, "the kernels changed"
    return _judge_clock_likelihood("the driver sets clocks", alignment)


def _judge_data_likelihood(alignment: AlignedPair) -> _Ranked:
    if parts := alignment.select_parts_of_kind(GRIDS):
        return LIKELY, f"{_format_first_part_and_count(parts)} ran on tensors of another size"
    return POSSIBLE, "other data may need other work"


_CLOCK = partial(_judge_clock_likelihood, "the clock changes the time of every kernel")
_CUDNN = partial(
    _judge_library_likelihood,
    "cudnn",
    "convolution",
    "convolutions run the kernels that cuDNN chooses",
)
_CUDA = partial(
    _judge_library_likelihood,
    "cublas",
    "GEMM",
    "GEMMs run the kernels that cuBLAS (part of CUDA) chooses",
)
_RULES: Mapping[str, Callable[[AlignedPair], _Ranked]] = {
    **dict.fromkeys(("largest clock", "SM clock while it ran"), _CLOCK),
    **dict.fromkeys(("precision", "tf32_conv", "tf32_matmul"), _judge_data_type_likelihood),
    **dict.fromkeys(("cudnn", "cudnn_benchmark"), _CUDNN),
    **dict.fromkeys(
        ("threads", "threads of the host", "python", "host", "cpu", "cpu_count", "kernel"),
        _judge_host_likelihood,
    ),
    "commit": _judge_user_code_likelihood,
    "torch": _judge_torch_likelihood,
    "cuda": _CUDA,
    "driver": _judge_driver_likelihood,
    "data": _judge_data_likelihood,
}
"""Fact -> how likely it is, by the kernels. Facts in neither table point nowhere."""
