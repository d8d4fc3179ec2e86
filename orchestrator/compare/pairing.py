"""Records of a comparison of two sides, and the pairs of their runs: by workload and options, batch
size, and profiler."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from perfctl.orchestrator.ledger.prepared import Study, device_label, heading, studies
from perfctl.orchestrator.ledger.timing import preference
from perfctl.orchestrator.statistics import Ratio
from perfctl.records.report import CPU_OTHERS, CPU_WAIT
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

BUSY = 0.05
"""Share of waiting, and of cores that others use, from which on a time on a CPU is not that of the
code alone."""

NOT_RECORDED = "not recorded"

_OTHER_WORK = "other work is timed"
_OTHER_SOFTWARE = "an upgrade, which may be the cause"


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
    """One for each step, or one for the run. ns, bytes, FLOP (1 multiply-add = 2) or samples
    per second."""
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

    JSON_KEYS = (
        "key",
        "name",
        "change",
        "interval",
        "p",
        "adjusted",
        "verdict",
        "why",
        "basis",
        "a",
        "b",
    )
    JSON_INLINED = ("key",)

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
    verdict: Annotated[str, MEANING]
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

    JSON_KEYS = ("heading", "batch_a", "batch_b", "rows")

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
        return " / ".join(
            dict.fromkeys(str(size) for size in (self.batch_a, self.batch_b) if size is not None)
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B, whole."""

    JSON_KEYS = ("gate", "forced", "only_a", "only_b", "failed")
    JSON_NAMES: ClassVar = {"failed": "failed_in_b"}

    a: Side
    b: Side
    gate: float
    forced: bool
    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    failed: tuple[str, ...]

    def rows(self, verdicts: tuple[str, ...]) -> tuple[tuple[Pair, Row], ...]:
        """Rows with these verdicts, the largest change first, without throughput, which repeats
        its step."""
        every = (
            (pair, row)
            for pair in self.pairs
            for row in pair.rows
            if row.key.quantity != "throughput"
        )
        found = (item for item in every if item[1].verdict in verdicts)
        return tuple(
            sorted(found, key=lambda item: (LEVELS.index(item[1].key.level), -item[1].weight))
        )

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


class Opposed(NamedTuple):
    """Runs of one setup at one batch size; on each side the repeats of one or several profilers."""

    heading: str
    a: tuple[Run, ...]
    b: tuple[Run, ...]


class Alignment(NamedTuple):
    """The pairs, and the rest in words."""

    opposed: tuple[Opposed, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    failed: tuple[str, ...]


def align(a: Sequence[Run], b: Sequence[Run]) -> Alignment:
    """Pair the studies of two sides: equal ones first, then those of one workload that
    differ least.

    If each side has one batch size, they form a pair; different sizes block it.
    """
    pairs, left_a, left_b = _studies(list(studies(a)), list(studies(b)))
    opposed: list[Opposed] = []
    only_a = [heading(study) for study in left_a]
    only_b = [heading(study) for study in left_b]
    failed: list[str] = []
    for first, second in pairs:
        sizes_a, sizes_b = _whole(first), _whole(second)
        crossed = len(sizes_a) == len(sizes_b) == 1
        both = (
            [(sizes_a[0], sizes_b[0])]
            if crossed
            else [(size, size) for size in sizes_a if size in sizes_b]
        )
        opposed += (Opposed(heading(first), _chosen(first, x), _chosen(second, y)) for x, y in both)
        for batch in [] if crossed else [size for size in sizes_a if size not in sizes_b]:
            tried = (
                [run for run in second.at(batch) if run.status != "ok"] if batch is not None else []
            )
            where = f"{heading(first)}, batch {batch}"
            if tried:
                failed.append(
                    f"{where}: {tried[-1].status} in B: "
                    f"{tried[-1].reason or 'no reason was recorded'}"
                )
            else:
                only_a.append(where)
        only_b += [
            f"{heading(second)}, batch {size}"
            for size in sizes_b
            if size not in sizes_a and not crossed
        ]
    return Alignment(tuple(opposed), tuple(only_a), tuple(only_b), tuple(failed))


def repeats(runs: Iterable[Run]) -> dict[str, tuple[Run, ...]]:
    """profiler -> its complete runs of its newest sweep: the runs of one sweep are repeats."""
    whole = [run for run in runs if run.status == "ok"]
    newest: dict[str, int] = {}
    for run in whole:
        newest[run.profiler] = max(run.sweep_id, newest.get(run.profiler, run.sweep_id))
    kept = [run for run in whole if run.sweep_id == newest[run.profiler]]
    return {profiler: tuple(run for run in kept if run.profiler == profiler) for profiler in newest}


def common(a: Iterable[Run], b: Iterable[Run]) -> tuple[str, ...]:
    """Profilers of both sides, the preferred source of times first."""
    both = {run.profiler for run in a} & {run.profiler for run in b}
    return tuple(sorted(both, key=lambda profiler: (preference(profiler), profiler)))


def _studies(
    a: list[Study], b: list[Study]
) -> tuple[list[tuple[Study, Study]], list[Study], list[Study]]:
    found: dict[int, tuple[Study, Study]] = {}
    left_a, left_b = dict(enumerate(a)), dict(enumerate(b))
    every = [
        (_apart(one, other), place, at)
        for place, one in left_a.items()
        for at, other in left_b.items()
    ]
    for _, place, at in sorted(item for item in every if item[0] is not None):
        if place in left_a and at in left_b:
            found[place] = left_a.pop(place), left_b.pop(at)
    return [found[place] for place in sorted(found)], list(left_a.values()), list(left_b.values())


def _apart(one: Study, other: Study) -> float | None:
    """How many facts differ; None for different workloads, or ingested reports of
    different profilers."""
    if one.workload != other.workload:
        return None
    if one.foreign and not common(one.runs, other.runs):
        return None
    facts = ("variant", "mode", "precision", "device")
    differ = sum(getattr(one, fact) != getattr(other, fact) for fact in facts)
    return float(differ) if set(_whole(one)) & set(_whole(other)) else differ + 0.5


def _whole(study: Study) -> list[int | None]:
    found = {run.batch_size for run in study.runs if run.status == "ok"}
    return sorted(found, key=lambda batch: batch or 0)


def _chosen(study: Study, batch: int | None) -> tuple[Run, ...]:
    at = [run for run in study.runs if run.batch_size == batch]
    return tuple(run for several in repeats(at).values() for run in several)


def busy_with_others(runs: Iterable[Run]) -> str | None:
    """Why times on this CPU are those of other programs, too; None where they are not, or nothing
    says so.

    A step takes 1/(1 - waited) of its time. Where others hardly ran, a program's threads wait for
    each other: that is its own time.
    """
    mine = [run for run in runs if run.device is not None and run.device.kind == "cpu"]
    shares = [
        [
            one.value
            for run in mine
            for one in run.report.summaries
            if one.name == name and one.value is not None
        ]
        for name in (CPU_WAIT, CPU_OTHERS)
    ]
    waited, others = (statistics.median(found) if found else None for found in shares)
    if waited is None or waited <= BUSY or (others is not None and others <= BUSY):
        return None
    said = (
        ""
        if others is None
        else f", and other processes kept {100 * others:.0f} % of the cores busy"
    )
    return (
        f"the CPU was busy: threads waited for a core in {100 * waited:.0f} % of the time that "
        f"they wanted to run{said}"
    )


class Fact(NamedTuple):
    """One fact about a run."""

    name: str
    blocks: bool
    """True where another value is other work or another machine, so that times say nothing about
    a change."""
    why: str
    read: Callable[[Run], str | None]
    tolerance: float = 0.0
    """Relative difference of numbers that counts as equal: power and temperature change clocks."""
    software: bool = False
    """A library or driver: its upgrade is what may be compared, so it blocks only where repeats of
    one side differ in it."""


def _said(key: str) -> Callable[[Run], str | None]:
    return lambda run: run.report.environment.get(key)


def _of_cpu(key: str) -> Callable[[Run], str | None]:
    """A fact of the host that says something of the time only where the CPU is what is timed."""
    return lambda run: run.report.environment.get(key) if run.device_kind == "cpu" else None


def commit_of(run: Run) -> str | None:
    """ "1a2b3c4d5e6f", "1a2b3c4d5e6f + changes": the commit of the user's code; None where it was
    not recorded."""
    commit = run.report.environment.get("commit")
    changed = run.report.environment.get("uncommitted_changes") == "yes"
    return f"{commit[:12]}{' + changes' if changed else ''}" if commit else None


def _sampled_clock(run: Run) -> str | None:
    read = [sample for sample in run.report.samples if sample.sm_clock_hz]
    busy = [sample for sample in read if sample.gpu_utilisation]
    clocks = [sample.sm_clock_hz for sample in busy or read if sample.sm_clock_hz]
    return f"{statistics.median(clocks) / 1e6:.0f} MHz" if clocks else None


FACTS = (
    Fact("workload", True, _OTHER_WORK, lambda run: run.workload),
    Fact("variant", True, _OTHER_WORK, lambda run: run.variant or "defaults"),
    Fact("mode", True, _OTHER_WORK, lambda run: run.mode),
    Fact("precision", True, "other arithmetic is timed", lambda run: run.precision),
    Fact(
        "batch",
        True,
        _OTHER_WORK,
        lambda run: None if run.batch_size is None else str(run.batch_size),
    ),
    Fact("device", True, "the difference may come from the machine", device_label),
    Fact(
        "largest clock",
        True,
        "the device is set to another clock",
        lambda run: next(
            (f"{device.clock_hz / 1e6:.0f} MHz" for device in run.devices if device.clock_hz), None
        ),
    ),
    Fact("SM clock while it ran", True, "the device ran at another clock", _sampled_clock, 0.05),
    Fact("tf32_conv", True, "TF32 is other arithmetic", _said("tf32_conv")),
    Fact("tf32_matmul", True, "TF32 is other arithmetic", _said("tf32_matmul")),
    *(
        Fact(name, False, _OTHER_SOFTWARE, _said(name), software=True)
        for name in ("torch", "cuda", "cudnn")
    ),
    Fact(
        "driver",
        False,
        _OTHER_SOFTWARE,
        lambda run: next(
            (device.driver_version for device in run.devices if device.driver_version), None
        ),
        software=True,
    ),
    Fact(
        "cudnn_benchmark",
        False,
        "cuDNN chooses its kernels in another way",
        _said("cudnn_benchmark"),
        software=True,
    ),
    *(
        Fact(name, True, why, _of_cpu(name))
        for name, why in (
            ("cpu_model", "processors of one name differ in speed"),
            ("cpu_capability", "torch uses other instructions"),
            ("threads", "on a CPU, threads change the time"),
        )
    ),
    Fact(
        "world_size", True, _OTHER_WORK, lambda run: run.report.environment.get("world_size", "1")
    ),
    Fact("what timed the steps", True, "steps were timed by another clock", _said("clock")),
    Fact("commit", False, "other code of yours may have run", commit_of, software=True),
    Fact(
        "profiler version",
        False,
        "profilers differ in what they add to a step",
        lambda run: run.profiler_version,
    ),
    *(Fact(name, False, "said only", _said(name)) for name in ("perfctl", "python", "torchvision")),
    Fact("host", False, "said only", lambda run: run.host),
    *(Fact(name, False, "said only", _said(name)) for name in ("kernel", "cpu", "cpu_count")),
    Fact("threads of the host", False, "said only", _said("threads")),
    Fact("origin", False, "said only", lambda run: run.origin),
    *(
        Fact(name, False, "said only", _said(f"option:{name}"))
        for name in ("steps", "warmup", "data")
    ),
    Fact("seed", False, "said only", _said("seed")),
)


def compared(
    a: Sequence[Run], b: Sequence[Run]
) -> tuple[tuple[Difference, ...], tuple[tuple[str, str, str], ...]]:
    """(differences, all facts as (name, A, B)). Runs of the same profilers on both sides.

    A fact that one side did not record does not block. Software blocks only where repeats of one
    side differ in it.
    """
    differences, facts = [], []
    for fact in FACTS:
        if fact.name == "threads of the host" and {run.device_kind for run in (*a, *b)} == {"cpu"}:
            continue
        said_a, said_b = _values(fact, a), _values(fact, b)
        if not said_a and not said_b:
            continue
        words_a, words_b = (", ".join(said) or NOT_RECORDED for said in (said_a, said_b))
        facts.append((fact.name, words_a, words_b))
        if _same(fact, said_a, said_b):
            continue
        mixed = fact.software and max(len(said_a), len(said_b)) > 1
        blocks = (fact.blocks or mixed) and bool(said_a) and bool(said_b)
        why = "repeats of one side are not alike" if mixed else fact.why
        differences.append(Difference(fact.name, words_a, words_b, blocks, why, fact.software))
    return tuple(differences), tuple(facts)


def _values(fact: Fact, runs: Iterable[Run]) -> tuple[str, ...]:
    return tuple(sorted({said for run in runs if (said := fact.read(run)) is not None}))


def _same(fact: Fact, a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    if fact.tolerance and a and b:
        numbers = [float(text.split()[0]) for text in (*a, *b)]
        return max(numbers) <= min(numbers) * (1 + fact.tolerance)
    return a == b and (len(a) == 1 or not (fact.blocks or fact.software))
