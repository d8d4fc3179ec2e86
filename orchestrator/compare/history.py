"""Lines of a history: runs of one study, batch size, profiler, device and clocks, in order of time
or commits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from perfctl.orchestrator.compare.changes import Change, exact_changes, noisy_changes
from perfctl.orchestrator.compare.facts import FACTS, commit_of
from perfctl.orchestrator.compare.quantities import observe_flops, observe_times
from perfctl.orchestrator.ledger.prepared import PreparedRun, heading, parted, studies
from perfctl.orchestrator.ledger.sweep import memory_figures
from perfctl.records.run import Run

if TYPE_CHECKING:
    from perfctl.orchestrator.compare.suspects import Suspect

QUANTITIES = {
    "step": "ns",
    "throughput": "samples/s",
    "flops": "FLOP",
    "launches": "launches a step",
    "memory": "B",
    "layer": "ns",
}
"""Quantity -> its unit. FLOPs are counted: 1 multiply-add = 2."""
TOGETHER_S = 6 * 3600.0
"""Repeats of a sweep that started this long apart at most are one point; a sweep that is taken up
again later makes another."""
EXACT = ("flops", "launches", "memory")
"""Quantities whose every change counts where all repeats of a point agree."""


class What(NamedTuple):
    """What a series is of."""

    quantity: str
    layer: str = ""
    direction: str = ""

    @property
    def name(self) -> str:
        """ "step", "conv1 forward"."""
        return (
            f"{self.layer} {self.direction}".strip() if self.quantity == "layer" else self.quantity
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """What a history keeps of one run."""

    JSON_KEYS = ("started_at", "commit", "commit_time")

    run: int
    store: int
    sweep: int
    name: str
    batch: int | None
    profiler: str
    started_at: str | None
    commit: str | None
    commit_time: str | None
    facts: dict[str, str]
    """Of every fact that ``compare`` knows."""
    values: dict[What, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of a line; ``points`` are the places of its values among the line's points."""

    JSON_KEYS = ("what", "exact", "points", "values")
    JSON_INLINED = ("what",)

    what: What
    points: tuple[int, ...]
    values: tuple[float, ...]
    """Median of the repeats of each point."""
    exact: bool
    changes: tuple[Change, ...]


@dataclass(slots=True)
class Line:
    """Points that may be compared with each other, oldest first; each is a list of repeats."""

    JSON_KEYS = ("name", "batch", "profiler", "apart")
    JSON_NAMES: ClassVar = {"name": "heading"}

    name: str
    batch: int | None
    profiler: str
    facts: dict[str, str]
    points: list[list[Seen]] = field(default_factory=list)
    apart: str | None = None
    """Why it is not part of an earlier line of the same workload and batch size; None for
    the first."""
    series: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """All lines, and what else differs at each point where something changed."""

    stores: tuple[str, ...]
    gate: float
    lines: tuple[Line, ...]
    suspects: dict[tuple[int, int], tuple[Suspect, ...]]
    """(line, first point after the change) -> what differs between it and the point before, the
    likeliest first."""


def seen(run: Run, store: int) -> Seen:
    """A run, reduced to its quantities."""
    item = parted(PreparedRun(run))
    values: dict[What, float] = {}
    for key, one in observe_times(item).items():
        if not one.trusted or key.level == "kernel":
            continue
        if key.quantity == "throughput" or (key.level, key.what) == ("step", "step"):
            values[What("step" if key.quantity == "time" else "throughput")] = statistics.median(
                one.values
            )
        elif key.level == "layer":
            values[What("layer", key.layer, key.direction)] = statistics.median(one.values)
    for key, one in (observe_flops(item) if run.report.counters else {}).items():
        if key.level == "step" and "lower bound" not in (one.note or ""):
            values[What("flops")] = one.values[0]
    if run.report.kernels and item.steps:
        values[What("launches")] = len({kernel.launch for kernel, _ in item.launches}) / item.steps
    if (allocated := memory_figures(run).get("peak allocated")) is not None:
        values[What("memory")] = allocated
    (study,) = studies([run])
    facts = {fact.name: said for fact in FACTS if (said := fact.read(run)) is not None}
    moment = run.report.environment.get("commit_time")
    return Seen(
        run.id,
        store,
        run.sweep_id,
        heading(study),
        run.batch_size,
        run.profiler,
        run.started_at,
        commit_of(run),
        moment,
        facts,
        values,
    )


def lines(runs: Iterable[Seen], *, by_commit: bool = False, gate: float = 0.05) -> list[Line]:
    """Every line, with the changes of its series that are larger than ``gate`` (0.05 is 5 %)."""
    found: list[Line] = []
    for one in sorted(runs, key=lambda one: (_moment(one, by_commit), one.store, one.run)):
        same = [
            line
            for line in found
            if (line.facts.get("workload"), line.batch, line.profiler)
            == (one.facts.get("workload"), one.batch, one.profiler)
        ]
        reasons = [_apart(line, one) for line in same]
        home = next((line for line, why in zip(same, reasons, strict=True) if not why), None)
        if home is None:
            home = Line(
                one.name,
                one.batch,
                one.profiler,
                dict(one.facts),
                apart="; ".join(reasons[-1]) if reasons else None,
            )
            found.append(home)
        home.facts = one.facts | home.facts
        point = next((point for point in home.points if _together(point[0], one, by_commit)), None)
        if point is None:
            home.points.append([one])
        else:
            point.append(one)
    for line in found:
        line.series = tuple(_series(line, gate))
    return found


def _moment(one: Seen, by_commit: bool) -> float:
    """Seconds since 1970: of the commit where it is asked for and known, else of the run; 0 where
    neither is known."""
    said = (one.commit_time if by_commit else None) or one.started_at
    return 0.0 if said is None else _seconds(said)


def _seconds(moment: str) -> float:
    """Of an ISO 8601 text, whatever its offset; without one it is UTC."""
    try:
        read = datetime.fromisoformat(moment)
    except ValueError:
        return 0.0
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def _together(a: Seen, b: Seen, by_commit: bool) -> bool:
    """Repeats of one point: of one clean commit where commits are asked for; else of one sweep and
    commit, within some hours."""
    if by_commit and a.commit and "+" not in a.commit:
        return a.commit == b.commit
    if (a.store, a.sweep, a.commit) != (b.store, b.sweep, b.commit):
        return False
    return abs(_moment(a, False) - _moment(b, False)) <= TOGETHER_S


def _apart(line: Line, one: Seen) -> list[str]:
    """Facts that make a run not comparable with a line; one that a side did not record does not."""
    found = []
    for fact in FACTS:
        a, b = line.facts.get(fact.name), one.facts.get(fact.name)
        if not fact.blocks or a is None or b is None or a == b:
            continue
        if fact.tolerance:
            low, high = sorted(float(text.split()[0]) for text in (a, b))
            if high <= low * (1 + fact.tolerance):
                continue
        found.append(f"{fact.name}: {b}, not {a}")
    return found


def _series(line: Line, gate: float) -> Iterator[Series]:
    every = dict.fromkeys(what for point in line.points for one in point for what in one.values)
    layers = sum(what.quantity == "layer" for what in every)
    for what in sorted(every, key=lambda what: list(QUANTITIES).index(what.quantity)):
        held = [
            (at, known)
            for at, point in enumerate(line.points)
            if (known := [one.values[what] for one in point if what in one.values])
        ]
        values = [statistics.median(known) for _, known in held]
        exact = what.quantity in EXACT and _is_exact(what, [known for _, known in held], values)
        if exact:
            changes = exact_changes(values)
        elif what.quantity == "throughput":  # the step's, the other way round
            changes = []
        else:
            changes = noisy_changes(
                values, series=layers if what.quantity == "layer" else 1, gate=gate
            )
        yield Series(what, tuple(at for at, _ in held), tuple(values), exact, tuple(changes))


def _is_exact(what: What, known: Sequence[Sequence[float]], values: Sequence[float]) -> bool:
    """All repeats agree; what is not counted by definition also keeps each of its levels for two
    points or has repeats."""
    if any(len(set(one)) > 1 for one in known):
        return False
    if what.quantity == "flops" or all(len(one) > 1 for one in known):
        return True
    return all(
        min(change.before_points, change.after_points) >= 2 for change in exact_changes(values)
    )
