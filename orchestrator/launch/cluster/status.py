"""The state of every task of an array, from Slurm's queue and the files in its folders."""

from __future__ import annotations

import getpass
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.launch.cluster.plan import Plan, Task
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.outcome import tail
from perfctl.orchestrator.launch.sweep.folders import is_whole, read_run_record

_FORMAT = "%F|%K|%A|%T|%r|%M|%N|%o"
"""Array job, task, job, state, reason, time used, nodes, script; the script last, because its path
may contain |."""


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
    def name(self) -> str:
        """As scancel takes it."""
        return self.array if self.task is None else f"{self.array}_{self.task}"

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def queued(plan: Plan) -> list[Queued]:
    """The plan's jobs, found by the script that they run. Raises ToolMissing without squeue,
    PerfctlError when it fails."""
    found = []
    for line in _ask(
        "squeue", "--noheader", "--array", f"--user={getpass.getuser()}", f"--format={_FORMAT}"
    ):
        cells = line.split("|", 7)
        script = Path(cells[-1])
        own = script.parent.name == plan.folder.name and script.name in (
            plan.array.name,
            plan.gather.name,
        )
        if len(cells) == 8 and own:
            task = int(cells[1]) if cells[1].isdecimal() else None
            found.append(Queued(cells[0], task, *cells[2:7]))
    return found


@dataclass(frozen=True, slots=True)
class Submitted:
    """What is in the queue now."""

    folder: Path
    tasks: int
    array: str
    gather: str
    """Number of the job that gathers after any outcome of the array."""


def submit(plan: Plan, tasks: Sequence[int] | None = None) -> Submitted:
    """Submit the array, or only some ``tasks`` of it, and the gather job after it.

    Raises UsageError for a task that does not exist or is in the queue already, or for an image
    that does not exist; ToolMissing without Slurm; PerfctlError if sbatch refuses: its message says
    whether the array was submitted.
    """
    count = len(plan.tasks)
    for number in tasks or ():
        if not 0 <= number < count:
            raise UsageError(
                f"`tasks`: task '{number}' not found", f"Tasks are numbered 0 to {count - 1}"
            )
    check_is_array(plan, has_tasks=tasks is not None)
    check_image(plan)
    numbers = list(range(count)) if tasks is None else sorted(set(tasks))
    if waiting := sorted({job.task for job in queued(plan) if job.task in numbers}):
        remedy = f"perfctl slurm cancel {shlex.quote(str(plan.folder))} removes it"
        raise UsageError(f"already in the queue: task {', '.join(map(str, waiting))}", remedy)
    some = () if tasks is None else (f"--array={','.join(map(str, numbers))}{_limit(plan)}",)
    array = _sbatch(*some, str(plan.array.absolute()))
    try:
        gather = _sbatch(f"--dependency=afterany:{array}", str(plan.gather.absolute()))
    except PerfctlError as error:
        remedy = f"When the array has ended, run perfctl slurm gather {plan.folder}"
        raise PerfctlError(
            f"submitted the array as job {array}, but not its gather job: {error}", remedy
        ) from error
    return Submitted(plan.folder, len(numbers), array, gather)


def check_is_array(plan: Plan, *, has_tasks: bool) -> None:
    """Raises UsageError for a script without --array (unless ``has_tasks``), which sbatch would
    take for a single job."""
    try:
        text = plan.array.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        said = f"{plan.array} cannot be read: {error.strerror}"
        raise UsageError(
            said, "Render the array again: perfctl slurm render with `force`"
        ) from error
    if not has_tasks and not re.search(r"^#SBATCH\s+(?:--array[= ]|-a)", text, re.MULTILINE):
        remedy = (
            "Put one back (--array=0-N), render it again with `force`, or name the tasks in `tasks`"
        )
        raise UsageError(
            f"{plan.array} has no #SBATCH --array line: it is one job, not an array", remedy
        )


def check_image(plan: Plan) -> None:
    """Raises UsageError when the image that the array's script names is not there."""
    found = re.search(
        r"^image=(.+)$", plan.array.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
    )
    try:
        words = shlex.split(found[1], comments=True) if found else []
    except ValueError:  # an edited line, which only a shell can read
        return
    if (
        len(words) == 1
        and "$" not in words[0]
        and "://" not in words[0]
        and not Path(words[0]).exists()
    ):
        remedy = (
            "perfctl image render writes a definition to build one. If only the nodes have it: "
            "sbatch array.sbatch"
        )
        raise UsageError(f"{plan.array} needs the image {words[0]}, which does not exist", remedy)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancellation did."""

    folder: Path
    tasks: int
    """Tasks that are gone: they waited, had not begun to profile, or had been told to
    stop before."""
    told: int
    """Tasks whose profiler was told to stop: they write their reports and end by themselves."""
    gathers: int


def cancel(plan: Plan) -> Cancelled:
    """Take the plan's jobs out of the queue. A running profiler is told to stop by a signal to the
    job script alone: a plain scancel signals every process of the job, and the report is lost. One
    that was told before is ended at once. Raises PerfctlError when scancel fails."""
    jobs = queued(plan)
    by_number = {task.number: task for task in plan.tasks}
    told = [
        job
        for job in jobs
        if job.state == "RUNNING" and job.task in by_number and _profiles(plan, by_number[job.task])
    ]
    rest = [job for job in jobs if job not in told]
    if rest:
        _ask("scancel", *dict.fromkeys(job.name for job in rest))
    if told:
        _ask("scancel", "--batch", "--signal=USR1", *(job.name for job in told))
    gathers = sum(job.task is None for job in rest)
    return Cancelled(plan.folder, len(rest) - gathers, len(told), gathers)


def _profiles(plan: Plan, task: Task) -> bool:
    """Whether its profiler was started, and not told to stop yet."""
    events = _events(plan, task)
    return bool(_stages(plan, task)) and bool(events) and "started on" in events[-1]


def _stages(plan: Plan, task: Task) -> list[str]:
    """What perfctl has begun since the task's last start, such as profile and export."""
    return _STAGE.findall(tail(plan.log(task)).rpartition("started on ")[2])


def _limit(plan: Plan) -> str:
    """The script's current limit of tasks at once, such as "%2"; empty without one."""
    text = plan.array.read_text(errors="replace")
    found = re.search(r"^#SBATCH\s+(?:--array[= ]|-a ?)\S*?(%\d+)", text, re.MULTILINE)
    return found[1] if found else ""


def _sbatch(*words: str) -> str:
    """The number of the submitted job, in output such as "12;cluster"."""
    return _ask("sbatch", "--parsable", *words)[-1].partition(";")[0]


def _ask(*argv: str) -> list[str]:
    """The lines that a tool of Slurm prints."""
    if tools.find(argv[0]) is None:
        raise ToolMissing(
            f"{argv[0]} is not installed here", "Run this on a machine of the cluster"
        )
    try:
        code, out, err = tools.run(argv, 60.0)
    except subprocess.TimeoutExpired as error:
        raise PerfctlError(f"{argv[0]} did not respond within 60 s", "Try again later") from error
    if code != 0:
        raise PerfctlError(
            f"{argv[0]} failed: {' '.join(' '.join(err or out).split()) or f'exit code {code}'}"
        )
    return out


WHOLE, PARTIAL, FAILED = "whole", "partial", "failed"
WAITING, RUNNING, MISSING = "waiting", "running", "missing"
UNKNOWN = "unknown"
"""State of a task that started and did not end: without the queue, no one knows whether it
still runs."""

REPEAT = (PARTIAL, FAILED, MISSING)
"""States of tasks that are worth repeating."""

_STAGE = re.compile(r"^batch \d+: ([a-z-]+)\r?$", re.MULTILINE)
_ENDED = re.compile(r"ended with exit code (\d+)")
_PARTLY_DONE = "4"
"""Exit code of a perfctl that did a part of its work, as ``cli.main`` maps it."""
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task of an array. profiler, batch and sweep are null for one that is not a run of
    a sweep."""

    JSON_KEYS = ("number", "label", "profiler", "batch", "sweep", "state", "said", "log")
    JSON_NAMES: ClassVar = {"number": "task"}

    task: Task
    state: Annotated[
        str, ("whole", "partial", "running", "waiting", "failed", "missing", "unknown")
    ]
    said: str | None
    """Stage and time of a running task, reason of a waiting or failed one; null: nothing."""
    log: tuple[str, ...] = ()
    """Last lines of the log of a failed task."""

    @property
    def number(self) -> int:
        """Its number in the array."""
        return self.task.number

    @property
    def label(self) -> str:
        return self.task.label

    @property
    def profiler(self) -> str | None:
        return self.task.runs.profiler if self.task.runs else None

    @property
    def batch(self) -> int | None:
        return self.task.runs.batch_size if self.task.runs else None

    @property
    def sweep(self) -> str | None:
        return self.task.runs.sweep if self.task.runs else None


ORDER = (WHOLE, PARTIAL, RUNNING, WAITING, FAILED, MISSING, UNKNOWN)


@dataclass(frozen=True, slots=True)
class ArrayStatus:
    """How far an array is."""

    JSON_KEYS = ("asked_squeue", "tasks", "summary", "repeat")

    plan: Plan
    tasks: tuple[TaskState, ...]
    gather: Queued | None
    """The gather job, if it is in the queue."""
    asked_squeue: bool
    """false: there is no Slurm here, and only files were read."""

    @property
    def summary(self) -> str:
        """How many tasks there are, and in which state: "6 tasks: 4 whole, 2 failed"."""
        counts = Counter(state.state for state in self.tasks)
        parts = ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
        return f"{len(self.tasks)} {'task' if len(self.tasks) == 1 else 'tasks'}: {parts}"

    @property
    def repeat(self) -> list[int]:
        """Tasks that --tasks can repeat."""
        return [state.task.number for state in self.tasks if state.state in REPEAT]


def read_status(plan: Plan, note: Callable[[str], None] = lambda text: None) -> ArrayStatus:
    """Return how far each task is, and why one failed. Asks squeue, never sacct; ``note`` hears if
    it cannot be asked."""
    jobs: list[Queued] | None = None
    try:
        jobs = queued(plan)
    except PerfctlError as error:
        note(f"{error.message}: the status comes from the folders only")
    gather = next((job for job in jobs or () if job.task is None), None)
    states = tuple(_state(plan, task, jobs) for task in plan.tasks)
    return ArrayStatus(plan, states, gather, jobs is not None)


def _state(plan: Plan, task: Task, jobs: Sequence[Queued] | None) -> TaskState:
    own = [job for job in jobs or () if job.task == task.number]
    runs, events = plan.runs(task), _events(plan, task)
    if _is_whole(task, runs, events):
        left = (
            f"its job is still in the queue ({own[0].state.lower()}) and will skip complete runs"
            if own
            else None
        )
        return TaskState(task, WHOLE, left)
    if job := next((job for job in own if not job.waits), None):
        stages = _stages(plan, task)
        return TaskState(
            task,
            RUNNING,
            f"{stages[-1] if stages else 'starting'}, {job.used} on {job.nodes or 'a node'}",
        )
    if own:
        said = own[0].reason if own[0].reason not in ("None", "") else own[0].state.lower()
        began = sum("started on" in event for event in events)
        before = f", after {began} earlier {'start' if began == 1 else 'starts'}" if began else ""
        return TaskState(task, WAITING, said + before)
    lines = (line.strip() for line in tail(plan.log(task)).splitlines())
    log = tuple(filter(None, lines))[-_LAST_LINES:]
    return TaskState(task, *_ended(task, runs, events, log, asked=jobs is not None), log)


def _is_whole(task: Task, runs: Sequence[Path], events: Sequence[str]) -> bool:
    """Whether the runs that it adds to its sweep are complete; of a task of another kind, whether
    it ended with 0."""
    if task.runs:
        return sum(map(is_whole, runs)) >= task.runs.repeat
    ended = _ENDED.search(events[-1]) if events else None
    return ended is not None and ended[1] == "0"


def _ended(
    task: Task, runs: Sequence[Path], events: Sequence[str], log: Sequence[str], *, asked: bool
) -> tuple[str, str]:
    """(state, reason) of a task that is neither complete nor in the queue."""
    ended = _ENDED.search(events[-1]) if events else None
    if not asked and events and not ended:
        return UNKNOWN, f"{events[-1]}; run squeue to see whether it still runs"
    if record := next(
        (record for run in reversed(runs) if (record := read_run_record(run)) is not None), None
    ):
        if (whole := sum(map(is_whole, runs))) and task.runs:
            return PARTIAL, f"{whole} of {task.runs.repeat} repetitions are complete"
        state = PARTIAL if record.get("status") == "partial" else FAILED
        return state, str(record.get("reason") or "its report changed after it was written")
    if not events and log:
        return FAILED, "its job script ended before it started perfctl"
    if not events:
        never = "it never started: not submitted yet, or cancelled in the queue"
        return MISSING, never if asked else f"its folders show no start ({never})"
    if ended and ended[1] == _PARTLY_DONE and task.runs is None:
        return PARTIAL, "some of its runs are missing or incomplete"
    if ended:
        return FAILED, f"it ended with exit code {ended[1]}" + (
            " and left no run" if task.runs else ""
        )
    stopped = ", was asked to stop" if "told to stop" in events[-1] else ""
    return FAILED, f"it ended unexpectedly: {events[-1]}{stopped} (killed, or the node failed)"


def _events(plan: Plan, task: Task) -> list[str]:
    """The events that the job script noted, without times, oldest first."""
    try:
        lines = plan.state(task).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition(" ")[2] for line in lines if line.strip()]


def reasons(found: Sequence[TaskState]) -> dict[Task, str]:
    """Why each task without a run has none, for the store."""
    return {
        state.task: f"{state.task}: {state.said}"
        for state in found
        if state.state in (MISSING, FAILED, UNKNOWN)
    }
