"""The state of every task of an array, from Slurm's queue and the files in its folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.launch.evidence import tail
from perfctl.orchestrator.launch.run_folder import is_whole, read_run_record
from perfctl.orchestrator.launch.slurm_plan import Plan, Task
from perfctl.orchestrator.launch.slurm_queue import Queued

WHOLE, PARTIAL, FAILED = "whole", "partial", "failed"
WAITING, RUNNING, MISSING = "waiting", "running", "missing"
UNKNOWN = "unknown"
"""It started and did not end; without the queue it is unknown whether it still runs."""

REPEAT = (PARTIAL, FAILED, MISSING)
"""States of tasks that are worth repeating."""

_STAGE = re.compile(r"^batch \d+: ([a-z-]+)\r?$", re.MULTILINE)
_ENDED = re.compile(r"ended with exit code (\d+)")
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task."""

    task: Task
    state: str
    """whole, partial, failed, waiting, running, missing or unknown."""
    said: str | None
    """Stage and time of a running task, reason of a waiting or failed one; None for nothing."""
    log: tuple[str, ...] = ()
    """Last lines of the log of a failed task."""


def states(plan: Plan, jobs: Sequence[Queued] | None) -> list[TaskState]:
    """The states of all tasks. ``jobs``: the queue; None when it cannot be queried."""
    return [_state(plan, task, jobs) for task in plan.tasks]


def _state(plan: Plan, task: Task, jobs: Sequence[Queued] | None) -> TaskState:
    own = [job for job in jobs or () if job.task == task.number]
    runs = plan.runs(task)
    if sum(map(is_whole, runs)) >= task.repeat:
        left = f"its job is still in the queue ({own[0].state.lower()}) and will skip complete runs" if own else None
        return TaskState(task, WHOLE, left)
    if job := next((job for job in own if not job.waits), None):
        return TaskState(task, RUNNING, f"{_stage(plan, task)}, {job.used} on {job.nodes or 'a node'}")
    if own:
        said = own[0].reason if own[0].reason not in ("None", "") else own[0].state.lower()
        return TaskState(task, WAITING, f"{said}{_before(plan, task)}")
    return _ended(plan, task, runs, asked=jobs is not None)


def _ended(plan: Plan, task: Task, runs: Sequence[Path], *, asked: bool) -> TaskState:
    """The state of a task that is neither complete nor in the queue."""
    events = _events(plan, task)
    log = last_lines(plan.log(task))
    if not asked and events and not _ENDED.search(events[-1]):
        return TaskState(task, UNKNOWN, f"{events[-1]}; only squeue can tell whether it still runs", log)
    if record := next((record for run in reversed(runs) if (record := read_run_record(run)) is not None), None):
        if whole := sum(map(is_whole, runs)):
            return TaskState(task, PARTIAL, f"{whole} of {task.repeat} repetitions are complete", log)
        state = PARTIAL if record.get("status") == "partial" else FAILED
        return TaskState(task, state, str(record.get("reason") or "its report was changed since it was written"), log)
    return TaskState(task, *_without_record(events, log, asked), log)


def _without_record(events: Sequence[str], log: Sequence[str], asked: bool) -> tuple[str, str]:
    if not events:
        if log:
            return FAILED, "its job script ended before it started perfctl"
        never = "it never started: not submitted yet, or cancelled in the queue"
        return MISSING, never if asked else f"its folders show no start ({never})"
    if ended := _ENDED.search(events[-1]):
        return FAILED, f"it ended with exit code {ended[1]} and left no run"
    stopped = ", was told to stop" if "told to stop" in events[-1] else ""
    return FAILED, f"it was cut off: {events[-1]}{stopped}, and did not end by itself (killed, or the node failed)"


def _before(plan: Plan, task: Task) -> str:
    began = sum("started on" in event for event in _events(plan, task))
    return f", after {began} earlier {'start' if began == 1 else 'starts'}" if began else ""


def _stage(plan: Plan, task: Task) -> str:
    """The last stage that perfctl printed (profile, export); "starting" before the first."""
    stages = _STAGE.findall(tail(plan.log(task)).rpartition("started on ")[2])
    return str(stages[-1]) if stages else "starting"


def _events(plan: Plan, task: Task) -> list[str]:
    """The events that the job script noted, without times, oldest first."""
    try:
        lines = plan.state(task).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition(" ")[2] for line in lines if line.strip()]


def last_lines(path: Path) -> tuple[str, ...]:
    """The last non-empty lines of a log; none when it does not exist."""
    lines = [line.strip() for line in tail(path).splitlines()]
    return tuple(line for line in lines if line)[-_LAST_LINES:]


def reasons(found: Sequence[TaskState]) -> dict[Task, str]:
    """Why each task without a run has none, for the store."""
    return {state.task: f"{state.task}: {state.said}" for state in found if state.state in (MISSING, FAILED, UNKNOWN)}
