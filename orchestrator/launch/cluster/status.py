"""The state of every task of an array, from Slurm's queue and the files in its folders."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.errors import PerfctlError, ToolMissing
from perfctl.orchestrator.launch.cluster.plan import Plan, Task
from perfctl.orchestrator.launch.profilers.outcome import tail
from perfctl.orchestrator.launch.sweep.folders import is_whole, read_run_record

_FORMAT = "%F|%K|%A|%T|%r|%M|%N|%o"
"""Array job, task, job, state, reason, time used, nodes, script; the script last, because its path may contain |."""
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Queued:
    """One job or array task in Slurm's queue."""

    array: str
    """Number of the array, or of the job itself."""
    task: int | None
    """None for the gather job."""
    job: str
    state: str
    """PENDING, RUNNING, COMPLETING, ..."""
    reason: str
    """Why it waits; the text "None" when it does not."""
    used: str
    """Run time so far, as D-HH:MM:SS."""
    nodes: str

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def queued(plan: Plan) -> list[Queued]:
    """The plan's jobs, found by the script that they run. Raises ToolMissing without squeue, PerfctlError when it
    fails."""
    argv = ("squeue", "--noheader", "--array", f"--user={getpass.getuser()}", f"--format={_FORMAT}")
    found = []
    for line in _ask(argv).splitlines():
        cells = line.split("|", 7)
        script = Path(cells[-1])
        if len(cells) == 8 and script.parent.name == plan.folder.name and script.name in _names(plan):
            task = int(cells[1]) if cells[1].isdecimal() else None
            found.append(Queued(cells[0], task, *cells[2:7]))
    return found


def submit(plan: Plan, tasks: Sequence[int] | None = None) -> tuple[str, str]:
    """Submit the array (or only some of its ``tasks``) and the gather job that follows it; returns both job numbers.

    Raises PerfctlError when sbatch fails; the message says whether the array was submitted.
    """
    some: tuple[str, ...] = ()
    if tasks is not None:
        some = (f"--array={','.join(map(str, tasks))}{_limit(plan)}",)
    array = _number(_ask(("sbatch", "--parsable", *some, str(plan.array.absolute()))))
    after = (f"--dependency=afterany:{array}",)
    try:
        gather = _number(_ask(("sbatch", "--parsable", *after, str(plan.gather.absolute()))))
    except PerfctlError as error:
        remedy = f"When it has ended, run perfctl slurm gather {plan.folder}"
        raise PerfctlError(f"submitted the array as job {array}, but not its gather job: {error}", remedy) from error
    return array, gather


def cancel(jobs: Sequence[str]) -> None:
    """Raises PerfctlError when scancel fails."""
    if jobs:
        _ask(("scancel", *dict.fromkeys(jobs)))


def _names(plan: Plan) -> tuple[str, str]:
    return plan.array.name, plan.gather.name


def _limit(plan: Plan) -> str:
    """The script's current limit of tasks at once, such as "%2"; empty without one."""
    found = re.search(
        r"^#SBATCH\s+(?:--array[= ]|-a ?)\S*?(%\d+)", plan.array.read_text(errors="replace"), re.MULTILINE
    )
    return found[1] if found else ""


def _number(said: str) -> str:
    """The job number in output such as "12;cluster"."""
    return said.strip().splitlines()[-1].partition(";")[0]


def _ask(argv: Sequence[str]) -> str:
    if shutil.which(argv[0]) is None:
        raise ToolMissing(f"{argv[0]} is not installed here", "Run this on a machine of the cluster")
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PerfctlError(f"{argv[0]} did not answer in {_LIMIT_S:.0f} s", "Try again later") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise PerfctlError(f"{argv[0]} failed: {said}")
    return done.stdout


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
