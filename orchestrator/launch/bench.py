"""Measures the points of a design one after the other, each in a process of its own, as long as the budget lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from perfctl.orchestrator.launch import sweep as sweeps
from perfctl.orchestrator.launch.run_folder import is_whole, read_run_record
from perfctl.orchestrator.launch.sweep_records import Listener, RunResult, SweepRequest

_HOPELESS = 3
"""Points in a row that fail for one reason, after which the others are not tried."""
_LEAST_S = 20.0
"""Of time left, below which no process is started with a time limit: torch alone takes seconds to load."""


@dataclass(frozen=True, slots=True)
class Point:
    """One network at one batch size."""

    model: str
    """The specification in full."""
    family: str
    batch: int
    flops: float
    """Of one step, on paper; 1 multiply-add is 2 FLOPs."""


@dataclass(slots=True)
class Budget:
    """Seconds that a bench may take, and what one more point would take, from those measured so far."""

    seconds: float | None
    """None: no limit."""
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _seen: list[tuple[float, float]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def left(self) -> float | None:
        """Seconds; None without a limit."""
        return None if self.seconds is None else self.seconds - (self.clock() - self._began)

    def learn(self, flops: float, seconds: float) -> None:
        """A point of that many FLOPs a step took so long, process and all."""
        self._seen.append((flops, seconds))

    def expected(self, flops: float) -> float | None:
        """Seconds for a point, from a line through what was seen, never below zero effort; None before anything was."""
        if not self._seen:
            return None
        mean_f = sum(one for one, _ in self._seen) / len(self._seen)
        mean_s = sum(one for _, one in self._seen) / len(self._seen)
        spread = sum((one - mean_f) ** 2 for one, _ in self._seen)
        slope = sum((f - mean_f) * (s - mean_s) for f, s in self._seen) / spread if spread else 0.0
        return max(mean_s + max(slope, 0.0) * (flops - mean_f), min(one for _, one in self._seen))

    def allows(self, flops: float) -> bool:
        """Whether one more point is expected to end in time."""
        if self.left is None:
            return True
        return self.left > (self.expected(flops) or 0.0)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of the points."""

    results: tuple[tuple[Point, RunResult], ...]
    """Measured now, or whole already."""
    left: tuple[Point, ...]
    """Not measured: the budget was used up, or every point failed alike."""


def run(
    points: tuple[Point, ...],
    request_of: Callable[[Point], SweepRequest],
    budget: Budget,
    listener: Listener,
    again: frozenset[tuple[str, int]] = frozenset(),
) -> Done:
    """Every point that is not whole yet, while the budget allows; what is whole is told to the listener all the same.

    ``again``: (model, batch) of points that are measured once more although they are whole.

    Raises UsageError when another perfctl works on the same point, Interrupted when asked to stop.
    """
    results: list[tuple[Point, RunResult]] = []
    left: list[Point] = []
    waiting: list[Point] = []
    for point in points:
        request = request_of(point)
        folder = request.run_request(point.batch).paths.folder
        if not is_whole(folder):
            waiting.append(point)
            continue
        record = read_run_record(folder)
        if record and record.get("duration_ns"):
            budget.learn(point.flops, record["duration_ns"] / 1e9)
        results.append((point, sweeps.run(request, listener)[0]))
        if (point.model, point.batch) in again:
            waiting.append(point)
    for place, point in enumerate(waiting):
        if not budget.allows(point.flops):
            left += waiting[place:]
            break
        request = replace(_limited(request_of(point), budget), again=(point.model, point.batch) in again)
        result = sweeps.run(request, listener)[0]
        results.append((point, result))
        if result.duration_ns is not None and result.status == "ok":
            budget.learn(point.flops, result.duration_ns / 1e9)
        elif hopeless([made for _, made in results[-_HOPELESS:]]):
            left += waiting[place + 1 :]
            break
    return Done(tuple(results), tuple(left))


def hopeless(last: Sequence[RunResult]) -> bool:
    """Whether nothing but one and the same failure came of the last points: no GPU, a broken torch."""
    alike = len({result.reason for result in last}) == 1 and all(result.status == "failed" for result in last)
    return alike and len(last) == _HOPELESS


def _limited(request: SweepRequest, budget: Budget) -> SweepRequest:
    """A point that takes far longer than expected is ended with the budget."""
    if budget.left is None:
        return request
    most = max(budget.left, _LEAST_S)
    return replace(request, timeout_s=min(most, request.timeout_s or most))
