"""Lines of a history: runs of one study, batch size, profiler, device and clocks, in order of time
or commits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple

from perfctl.orchestrator.compare.changes import Change, exact_changes, noisy_changes
from perfctl.orchestrator.compare.quantities import (
    COUNTED_FLOPS,
    LAUNCHES,
    PEAK_MEMORY,
    SAMPLE_RATE,
    STEP_TIME,
    observe,
)
from perfctl.orchestrator.compare.sides import FACTS, busy_with_others, commit_of
from perfctl.orchestrator.ledger.prepared import PreparedRun, heading, parted, studies
from perfctl.records.run import Run

QUANTITIES = {
    "step": "ns",
    "throughput": "samples/s",
    "flops": "FLOP",
    "launches": "launches per step",
    "memory": "B",
    "layer": "ns",
}
"""Quantity -> its unit. FLOPs are counted: 1 multiply-add = 2."""
REPEATS_APART_MAX_S = 6 * 3600.0
"""Repeats of a sweep that started this long apart at most are one point; a sweep that is taken up
again later makes another."""
TIMES = ("step", "throughput", "layer")
"""Quantities that say nothing where other programs kept the CPU busy."""
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


WHOLE_STEP = {
    STEP_TIME: What("step"),
    SAMPLE_RATE: What("throughput"),
    COUNTED_FLOPS: What("flops"),
    LAUNCHES: What("launches"),
    PEAK_MEMORY: What("memory"),
}
"""Quantities of a complete step that a history shows."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a history keeps of one run."""

    JSON_KEYS = ("run", "store", "started_at", "commit", "commit_time")

    run: int
    store: int
    """Index of its results database."""
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
    busy: str | None = None
    """Why its times are those of other programs, too."""


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of a line."""

    JSON_KEYS = ("what", "unit", "exact", "points", "values", "changes", "judged")
    JSON_INLINED = ("what",)

    what: What
    points: tuple[int, ...]
    """Indexes of the line's points that have a value."""
    values: tuple[float, ...]
    """Median of the repeats of each point."""
    exact: bool
    changes: tuple[Change, ...]
    judged: bool = True
    """False: other programs kept the CPU busy in every point, so no change is looked for."""

    @property
    def unit(self) -> str:
        return QUANTITIES[self.what.quantity]

    def points_around(self, change: Change) -> tuple[int, int]:
        """Return the line's last point before a change, and its first one after it."""
        return self.points[change.after - 1], self.points[change.after]


@dataclass(slots=True)
class Line:
    """Points that may be compared with each other, oldest first; each is a list of repeats."""

    JSON_KEYS = (
        "name",
        "batch",
        "profiler",
        "separation_reason",
        "device",
        "points",
        "series",
    )
    JSON_NAMES: ClassVar = {"name": "heading"}

    name: str
    batch: int | None
    profiler: str
    facts: dict[str, str]
    points: list[list[Seen]] = field(default_factory=list)
    separation_reason: str | None = None
    """Why it is not part of an earlier line of the same workload and batch size; None for
    the first."""
    series: tuple[Series, ...] = ()

    @property
    def busy(self) -> dict[int, str]:
        """Return point -> why the time of one of its runs is not judged."""
        return {
            index: run.busy
            for index, point in enumerate(self.points)
            for run in point
            if run.busy is not None
        }

    @property
    def device(self) -> str | None:
        """None: not recorded."""
        return self.facts.get("device")


@dataclass(frozen=True, slots=True)
class History:
    """The runs of results databases as lines over time. Times in ns, memory in bytes; FLOPs: 1
    multiply-add = 2."""

    stores: tuple[str, ...]
    gate: float
    """Smaller changes are not reported; 0.05 is 5%."""
    lines: tuple[Line, ...]


def read_run(run: Run, store: int) -> Seen:
    """Return a run, reduced to its quantities."""
    values: dict[What, float] = {}
    for key, observed in observe(parted(PreparedRun(run))).items():
        series_key = WHOLE_STEP.get(key)
        if key[:2] == ("layer", "time"):
            series_key = What("layer", key.layer, key.direction)
        if series_key is not None and observed.trusted and not observed.is_bound:
            values[series_key] = statistics.median(observed.values)
    (study,) = studies([run])
    return Seen(
        run=run.id,
        store=store,
        sweep=run.sweep_id,
        name=heading(study),
        batch=run.batch_size,
        profiler=run.profiler,
        started_at=run.started_at,
        commit=commit_of(run),
        commit_time=run.report.environment.get("commit_time"),
        facts={fact.name: text for fact in FACTS if (text := fact.read(run)) is not None},
        values=values,
        busy=busy_with_others([run]),
    )


def build_lines(runs: Iterable[Seen], *, by_commit: bool = False, gate: float = 0.05) -> list[Line]:
    """Return every line, with the changes of its series that are larger than ``gate`` (0.05 is
    5%)."""
    lines: list[Line] = []
    for run in sorted(runs, key=lambda run: (_time_of(run, by_commit), run.store, run.run)):
        line = _find_line(lines, run)
        line.facts = run.facts | line.facts
        for point in line.points:
            first = point[0]
            is_repeat = (first.store, first.sweep, first.commit) == (
                run.store,
                run.sweep,
                run.commit,
            )
            if by_commit and first.commit and "+" not in first.commit:  # of one clean commit
                is_repeat = first.commit == run.commit
            elif abs(_time_of(first, False) - _time_of(run, False)) > REPEATS_APART_MAX_S:
                is_repeat = False
            if is_repeat:
                point.append(run)
                break
        else:
            line.points.append([run])
    for line in lines:
        line.series = tuple(_series(line, gate))
    return lines


def _find_line(lines: list[Line], run: Seen) -> Line:
    """Return the line that the run may be compared with; a new one if there is none."""
    why_apart = None
    for line in lines:
        if (line.facts.get("workload"), line.batch, line.profiler) == (
            run.facts.get("workload"),
            run.batch,
            run.profiler,
        ):
            why_apart = "; ".join(_differences(line, run))
            if not why_apart:
                return line
    line = Line(run.name, run.batch, run.profiler, dict(run.facts), separation_reason=why_apart)
    lines.append(line)
    return line


def _time_of(run: Seen, by_commit: bool) -> float:
    """Return seconds since 1970: of the commit where it is asked for and known, else of the run; 0
    where neither is known. An ISO 8601 text without an offset is UTC."""
    text = (run.commit_time if by_commit else None) or run.started_at
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return 0.0
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _differences(line: Line, run: Seen) -> list[str]:
    """Return the facts that make a run not comparable with a line; one that a side did not record
    does not."""
    return [
        f"{fact.name}: {run.facts[fact.name]}, not {line.facts[fact.name]}"
        for fact in FACTS
        if fact.blocks
        and fact.name in line.facts
        and fact.name in run.facts
        and not fact.is_same((line.facts[fact.name],), (run.facts[fact.name],))
    ]


def _series(line: Line, gate: float) -> Iterator[Series]:
    series = dict.fromkeys(
        series_key for point in line.points for run in point for series_key in run.values
    )
    layers = sum(series_key.quantity == "layer" for series_key in series)
    for series_key in sorted(
        series, key=lambda series_key: list(QUANTITIES).index(series_key.quantity)
    ):
        quiet = [
            [run for run in point if run.busy is None or series_key.quantity not in TIMES]
            for point in line.points
        ]
        judged = any(series_key in run.values for point in quiet for run in point)
        repeats = {
            index: values
            for index, point in enumerate(quiet if judged else line.points)
            if (values := [run.values[series_key] for run in point if series_key in run.values])
        }
        medians = [statistics.median(values) for values in repeats.values()]
        changes = exact_changes(medians)
        # every change counts if all repeats agree; what is not counted by definition also keeps
        # each of its levels for two points, or has repeats
        is_exact = series_key.quantity in EXACT and all(
            len(set(values)) == 1 for values in repeats.values()
        )
        if series_key.quantity != "flops" and min(map(len, repeats.values())) < 2:
            levels = ((change.before_points, change.after_points) for change in changes)
            is_exact = is_exact and all(min(points) >= 2 for points in levels)
        if (
            series_key.quantity == "throughput" or not judged
        ):  # that of the step, the other way round
            changes = []
        elif not is_exact:
            count = layers if series_key.quantity == "layer" else 1
            changes = noisy_changes(medians, series=count, gate=gate)
        yield Series(series_key, tuple(repeats), tuple(medians), is_exact, tuple(changes), judged)
