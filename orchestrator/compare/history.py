"""Lines of a history: runs of one study, batch size, profiler, device and clocks, in order of time
or commits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple

from perfctl.orchestrator.compare.changes import (
    LevelChange,
    find_every_value_change,
    find_significant_changes,
)
from perfctl.orchestrator.compare.quantities import (
    COUNTED_FLOPS,
    LAUNCHES,
    PEAK_MEMORY,
    SAMPLE_RATE,
    STEP_TIME,
    observe_all_quantities,
)
from perfctl.orchestrator.compare.sides import (
    FACTS,
    explain_cpu_contention,
    format_commit_and_changes,
)
from perfctl.orchestrator.ledger.prepared import (
    PreparedRun,
    format_study_heading,
    group_into_studies,
    split_fused_kernels_between_layers,
)
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


class SeriesKey(NamedTuple):
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
    STEP_TIME: SeriesKey("step"),
    SAMPLE_RATE: SeriesKey("throughput"),
    COUNTED_FLOPS: SeriesKey("flops"),
    LAUNCHES: SeriesKey("launches"),
    PEAK_MEMORY: SeriesKey("memory"),
}
"""Quantities of a complete step that a history shows."""


@dataclass(frozen=True, slots=True)
class HistoryRun:
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
    values: dict[SeriesKey, float]
    busy: str | None = None
    """Why its times are those of other programs, too."""


@dataclass(frozen=True, slots=True)
class HistorySeries:
    """One quantity of a line."""

    JSON_KEYS = ("what", "unit", "exact", "points", "values", "changes", "judged")
    JSON_INLINED = ("what",)

    what: SeriesKey
    points: tuple[int, ...]
    """Indexes of the line's points that have a value."""
    values: tuple[float, ...]
    """Median of the repeats of each point."""
    repeats: tuple[tuple[float, ...], ...]
    """Values of the repeats of each point."""
    exact: bool
    changes: tuple[LevelChange, ...]
    judged: bool = True
    """False: other programs kept the CPU busy in every point, so no change is looked for."""

    @property
    def unit(self) -> str:
        return QUANTITIES[self.what.quantity]

    def get_points_before_and_after(self, change: LevelChange) -> tuple[int, int]:
        """Return the line's last point before a change, and its first one after it."""
        return self.points[change.after - 1], self.points[change.after]


@dataclass(slots=True)
class HistoryLine:
    """Points that may be compared with each other, oldest first; each is a list of repeats."""

    JSON_KEYS = ("name", "batch", "profiler", "separation_reason", "device", "points", "series")
    JSON_NAMES: ClassVar = {"name": "heading"}

    name: str
    batch: int | None
    profiler: str
    facts: dict[str, str]
    points: list[list[HistoryRun]] = field(default_factory=list)
    separation_reason: str | None = None
    """Why it is not part of an earlier line of the same workload and batch size; None for
    the first."""
    series: tuple[HistorySeries, ...] = ()

    @property
    def busy_reason_by_point(self) -> dict[int, str]:
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
    lines: tuple[HistoryLine, ...]


def extract_history_run(run: Run, store_index: int) -> HistoryRun:
    """Return a run, reduced to its quantities."""
    values: dict[SeriesKey, float] = {}
    for key, observed in observe_all_quantities(
        split_fused_kernels_between_layers(PreparedRun(run))
    ).items():
        series_key = WHOLE_STEP.get(key)
        if key[:2] == ("layer", "time"):
            series_key = SeriesKey("layer", key.layer, key.direction)
        if series_key is not None and observed.trusted and not observed.is_bound:
            values[series_key] = statistics.median(observed.values)
    (study,) = group_into_studies([run])
    return HistoryRun(
        run=run.id,
        store=store_index,
        sweep=run.sweep_id,
        name=format_study_heading(study),
        batch=run.batch_size,
        profiler=run.profiler,
        started_at=run.started_at,
        commit=format_commit_and_changes(run),
        commit_time=run.report.environment.get("commit_time"),
        facts={fact.name: text for fact in FACTS if (text := fact.read(run)) is not None},
        values=values,
        busy=explain_cpu_contention([run]),
    )


def build_history_lines(
    runs: Iterable[HistoryRun], *, by_commit: bool = False, gate: float = 0.05
) -> list[HistoryLine]:
    """Return every line, with the changes of its series that are larger than ``gate`` (0.05 is
    5%)."""
    lines: list[HistoryLine] = []
    for run in sorted(
        runs, key=lambda run: (_parse_run_timestamp(run, by_commit), run.store, run.run)
    ):
        line = _find_or_add_line(lines, run)
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
            elif (
                abs(_parse_run_timestamp(first, False) - _parse_run_timestamp(run, False))
                > REPEATS_APART_MAX_S
            ):
                is_repeat = False
            if is_repeat:
                point.append(run)
                break
        else:
            line.points.append([run])
    for line in lines:
        line.series = tuple(_build_series_of_line(line, gate))
    return lines


def _find_or_add_line(lines: list[HistoryLine], run: HistoryRun) -> HistoryLine:
    """Return the line that the run may be compared with; a new one if there is none. A fact that
    one of both did not record does not separate them."""
    why_apart = None
    for line in lines:
        if (line.facts.get("workload"), line.batch, line.profiler) == (
            run.facts.get("workload"),
            run.batch,
            run.profiler,
        ):
            why_apart = "; ".join(
                f"{fact.name}: {new}, not {old}"
                for fact in FACTS
                if fact.blocks
                and (old := line.facts.get(fact.name)) is not None
                and (new := run.facts.get(fact.name)) is not None
                and not fact.is_same_on_both_sides((old,), (new,))
            )
            if not why_apart:
                return line
    line = HistoryLine(
        run.name, run.batch, run.profiler, dict(run.facts), separation_reason=why_apart
    )
    lines.append(line)
    return line


def _parse_run_timestamp(run: HistoryRun, by_commit: bool) -> float:
    """Return seconds since 1970: of the commit where it is asked for and known, else of the run; 0
    where neither is known. An ISO 8601 text without an offset is UTC."""
    text = (run.commit_time if by_commit else None) or run.started_at
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return 0.0
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _build_series_of_line(line: HistoryLine, gate: float) -> Iterator[HistorySeries]:
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
        changes = find_every_value_change(medians)
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
            changes = find_significant_changes(
                medians, series_count=count, min_relative_change=gate
            )
        yield HistorySeries(
            what=series_key,
            points=tuple(repeats),
            values=tuple(medians),
            repeats=tuple(map(tuple, repeats.values())),
            exact=is_exact,
            changes=tuple(changes),
            judged=judged,
        )
