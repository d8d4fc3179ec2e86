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
from perfctl.orchestrator.launch.cluster.plan import JobArrayPlan, Task
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.outcome import read_log_tail
from perfctl.orchestrator.launch.sweep.folders import (
    SweepSetting,
    is_run_complete,
    list_run_folders,
    read_json_object,
    read_run_record,
)

_FORMAT = "%F|%K|%A|%T|%r|%M|%N|%o"
"""Array job, task, job, state, reason, time used, nodes, script; the script last, because its path
may contain |."""
COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"
WAITING, RUNNING, MISSING = "waiting", "running", "missing"
UNKNOWN = "unknown"
"""State of a task that started and did not end: without the queue, no one knows whether it
still runs."""
ORDER = (COMPLETE, PARTIAL, RUNNING, WAITING, FAILED, MISSING, UNKNOWN)
REPEAT = (PARTIAL, FAILED, MISSING)
"""States of tasks that are worth repeating."""
_STAGE = re.compile(r"^batch \d+: ([a-z-]+)\r?$", re.MULTILINE)
_ENDED = re.compile(r"ended with exit code (\d+)")
_PARTLY_DONE = "4"
"""Exit code of a perfctl that did a part of its work, as ``cli.main`` maps it."""
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class QueuedJob:
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
    def is_waiting(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def list_queued_jobs(plan: JobArrayPlan) -> list[QueuedJob]:
    """Return the plan's jobs, found by the script that they run. Raises ToolMissing without squeue,
    PerfctlError if it fails."""
    jobs = []
    names = (plan.array_script.name, plan.gather_script.name)
    for line in _run_slurm_tool(
        "squeue", "--noheader", "--array", f"--user={getpass.getuser()}", f"--format={_FORMAT}"
    ):
        cells = line.split("|", 7)
        script = Path(cells[-1])
        is_own = script.parent.name == plan.folder.name and script.name in names
        if len(cells) == 8 and is_own:
            task = int(cells[1]) if cells[1].isdecimal() else None
            jobs.append(QueuedJob(cells[0], task, *cells[2:7]))
    return jobs


@dataclass(frozen=True, slots=True)
class Submitted:
    """What is in the queue now."""

    folder: Path
    tasks: int
    array: str
    gather: str
    """Number of the job that gathers after any outcome of the array."""


def submit_job_array(plan: JobArrayPlan, tasks: Sequence[int] | None = None) -> Submitted:
    """Submit the array, or only some ``tasks`` of it, and the gather job after it.

    Raises UsageError for a task that does not exist or is in the queue already, or for an image
    that does not exist; ToolMissing without Slurm; PerfctlError if sbatch refuses: its message says
    whether the array was submitted.
    """
    count = len(plan.tasks)
    numbers = list(range(count)) if tasks is None else sorted(set(tasks))
    for number in numbers:
        if not 0 <= number < count:
            raise UsageError(
                f"`tasks`: task '{number}' not found", f"Tasks are numbered 0 to {count - 1}"
            )
    try:
        text = plan.array_script.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        problem = f"{plan.array_script} cannot be read: {error.strerror}"
        raise UsageError(problem, f"Render the array again: {plan.command}") from error
    limit = _read_concurrent_task_limit_suffix(plan, text, has_tasks=tasks is not None)
    raise_if_script_image_missing(plan, text)
    if waiting := sorted({job.task for job in list_queued_jobs(plan) if job.task in numbers}):
        remedy = f"perfctl slurm cancel {shlex.quote(str(plan.folder))} removes it"
        raise UsageError(f"already in the queue: task {', '.join(map(str, waiting))}", remedy)
    selection = () if tasks is None else (f"--array={','.join(map(str, numbers))}{limit}",)
    array = _submit_with_sbatch(*selection, str(plan.array_script.absolute()))
    try:
        gather = _submit_with_sbatch(
            f"--dependency=afterany:{array}", str(plan.gather_script.absolute())
        )
    except PerfctlError as error:
        remedy = f"When the array has ended, run perfctl slurm gather {plan.folder}"
        raise PerfctlError(
            f"submitted the array as job {array}, but not its gather job: {error}", remedy
        ) from error
    return Submitted(plan.folder, len(numbers), array, gather)


def _read_concurrent_task_limit_suffix(
    plan: JobArrayPlan, script_text: str, *, has_tasks: bool
) -> str:
    """Return the script's limit of tasks at once, such as "%2"; empty without one. Raises
    UsageError for a script without --array (unless ``has_tasks``), which sbatch would take for a
    single job."""
    line = re.search(r"^#SBATCH\s+(?:--array[= ]|-a ?)[^\s%]*(%\d+)?", script_text, re.MULTILINE)
    if line is None and not has_tasks:
        raise UsageError(
            f"{plan.array_script} has no #SBATCH --array line: it is one job, not an array",
            "Put one back (--array=0-N), or name the tasks in `tasks`",
        )
    return (line[1] or "") if line else ""


def raise_if_script_image_missing(plan: JobArrayPlan, script_text: str) -> None:
    """Raise UsageError if the image that the array's script names does not exist."""
    line = re.search(r"^image=(.+)$", script_text, re.MULTILINE)
    try:
        arguments = shlex.split(line[1], comments=True) if line else []
    except ValueError:  # an edited line, which only a shell can read
        return
    is_path = len(arguments) == 1 and "$" not in arguments[0] and "://" not in arguments[0]
    if is_path and not Path(arguments[0]).exists():
        raise UsageError(
            f"{plan.array_script} needs the image {arguments[0]}, which does not exist",
            "perfctl image render writes a definition to build one. If only the nodes have it: "
            "sbatch array.sbatch",
        )


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancellation did."""

    folder: Path
    tasks: int
    """Tasks that are gone: they waited, had not begun to profile, or had been asked to stop
    before."""
    stopping: int
    """Tasks whose profiler was asked to stop: they write their reports and end by themselves."""
    gathers: int


def cancel_job_array(plan: JobArrayPlan) -> Cancelled:
    """Take the plan's jobs out of the queue. A running profiler is asked to stop by a signal to the
    job script alone: a plain scancel signals every process of the job, and the report is lost. One
    that was asked before is ended at once. Raises PerfctlError if scancel fails."""
    jobs = list_queued_jobs(plan)
    tasks = {task.number: task for task in plan.tasks}
    stopping = [
        job
        for job in jobs
        if job.state == "RUNNING"
        and job.task in tasks
        and is_profiler_started_not_stopping(plan, tasks[job.task])
    ]
    others_jobs = [job for job in jobs if job not in stopping]
    if others_jobs:
        _run_slurm_tool("scancel", *dict.fromkeys(job.name for job in others_jobs))
    if stopping:
        _run_slurm_tool("scancel", "--batch", "--signal=USR1", *(job.name for job in stopping))
    gathers = sum(job.task is None for job in others_jobs)
    return Cancelled(plan.folder, len(others_jobs) - gathers, len(stopping), gathers)


def is_profiler_started_not_stopping(plan: JobArrayPlan, task: Task) -> bool:
    """Return whether its profiler was started, and not asked to stop yet."""
    last_event = "".join(_read_task_events(plan, task)[-1:])
    return bool(_list_stages_since_last_start(plan, task)) and "started on" in last_event


def _list_stages_since_last_start(plan: JobArrayPlan, task: Task) -> list[str]:
    """Return what perfctl has begun since the task's last start, such as profile and export."""
    return _STAGE.findall(read_log_tail(plan.get_log_path(task)).rpartition("started on ")[2])


def _submit_with_sbatch(*arguments: str) -> str:
    """Return the number of the submitted job, in output such as "12;cluster"."""
    return _run_slurm_tool("sbatch", "--parsable", *arguments)[-1].partition(";")[0]


def _run_slurm_tool(*argv: str) -> list[str]:
    """Return the lines that a tool of Slurm prints."""
    if tools.find_program(argv[0]) is None:
        raise ToolMissing(
            f"{argv[0]} is not installed here", "Run this on a machine of the cluster"
        )
    try:
        code, output, err = tools.run_with_time_limit(argv, 60.0)
    except subprocess.TimeoutExpired as error:
        raise PerfctlError(f"{argv[0]} did not respond within 60 s", "Try again later") from error
    if code != 0:
        text = " ".join(" ".join(err or output).split())
        if "configuration source" in text or "Unable to contact" in text:
            raise PerfctlError(
                f"{argv[0]} did not reach a Slurm controller",
                "Run this on a machine of the cluster",
            )
        remedy = "sinfo lists partitions. Correct array.sbatch, or render it again"
        raise PerfctlError(
            f"{argv[0]} failed: {text or f'exit code {code}'}",
            remedy if argv[0] == "sbatch" else None,
        )
    return output


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task of an array. profiler, batch and sweep are null for one that is not a run of
    a sweep."""

    JSON_KEYS = (
        *("number", "label", "profiler", "batch", "parameters", "sweep", "state", "reason", "log"),
    )
    JSON_NAMES: ClassVar = {"number": "task"}

    task: Task
    state: Annotated[str, ORDER]
    reason: str | None
    """Stage and time of a running task, reason of a waiting or failed one; null: nothing."""
    log: tuple[str, ...] = ()
    """Last lines of the log of a failed task."""

    @property
    def number(self) -> int:
        """Its number in the array."""
        return self.task.number

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.task.label

    @property
    def profiler(self) -> str | None:
        return self.task.runs.profiler if self.task.runs else None

    @property
    def batch(self) -> int | None:
        return self.task.runs.setting.batch if self.task.runs else None

    @property
    def parameters(self) -> dict[str, str] | None:
        """Name -> value of each parameter of the sweep, batch among them."""
        return self.task.runs.setting.parameters if self.task.runs else None

    @property
    def sweep(self) -> str | None:
        return self.task.runs.sweep if self.task.runs else None


@dataclass(frozen=True, slots=True)
class ArrayStatus:
    """How far an array is."""

    JSON_KEYS = ("asked_squeue", "tasks", "summary", "repeat", "gather")

    plan: JobArrayPlan
    tasks: tuple[TaskState, ...]
    gather: str | None
    """State of the gather job in the queue, what it wrote, or how it failed; null: not started."""
    asked_squeue: bool
    """false: there is no Slurm here, and only files were read."""

    @property
    def summary(self) -> str:
        """How many tasks there are, and in which state: "6 tasks: 4 complete, 2 failed"."""
        counts = Counter(state.state for state in self.tasks)
        parts = ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
        return f"{len(self.tasks)} {'task' if len(self.tasks) == 1 else 'tasks'}: {parts}"

    @property
    def repeat(self) -> list[int]:
        """Tasks that --tasks can repeat."""
        return [state.task.number for state in self.tasks if state.state in REPEAT]


def collect_array_status(
    plan: JobArrayPlan, note: Callable[[str], None] = lambda text: None
) -> ArrayStatus:
    """Return how far each task is, and why one failed. Asks squeue, never sacct; calls ``note`` if
    it cannot be asked."""
    jobs: list[QueuedJob] | None = None
    try:
        jobs = list_queued_jobs(plan)
    except PerfctlError as error:
        note(f"{error.message}: the status comes from the folders only")
    states = tuple(_get_task_state(plan, task, jobs) for task in plan.tasks)
    return ArrayStatus(plan, states, _describe_gather_job_state(plan, jobs), jobs is not None)


def _describe_gather_job_state(plan: JobArrayPlan, jobs: Sequence[QueuedJob] | None) -> str | None:
    """Return the state of the gather job in the queue, or how its last start ended."""
    if job := next((job for job in jobs or () if job.task is None), None):
        return f"the gather job {job.job} is {job.state.lower()} ({job.reason.lower()})"
    events = _read_task_events(plan, None)
    if not events or (jobs is None and not _find_last_exit_code(events)):
        return None
    code = _find_last_exit_code(events)
    if code == "0":
        lines = read_log_tail(plan.get_log_path(None)).splitlines()
        written = [line.removeprefix("Wrote ") for line in lines if line.startswith("Wrote ")]
        return f"the gather job wrote {written[-1]}" if written else "the gather job is complete"
    end = f"failed with exit code {code}" if code else f"ended unexpectedly: {events[-1]}"
    return f"the gather job {end}; see {plan.get_log_path(None)}"


def _get_task_state(plan: JobArrayPlan, task: Task, jobs: Sequence[QueuedJob] | None) -> TaskState:
    own_jobs = [job for job in jobs or () if job.task == task.number]
    runs, events = _list_task_run_folders(plan, task), _read_task_events(plan, task)
    if _are_task_runs_complete(plan, task, runs, events):
        reason = None
        if own_jobs:
            queue = own_jobs[0].state.lower()
            reason = f"its job is still in the queue ({queue}) and will skip complete runs"
        return TaskState(task, COMPLETE, reason)
    if job := next((job for job in own_jobs if not job.is_waiting), None):
        stage = next(reversed(_list_stages_since_last_start(plan, task)), "starting")
        return TaskState(task, RUNNING, f"{stage}, {job.used} on {job.nodes or 'a node'}")
    if own_jobs:
        reason = (
            own_jobs[0].reason
            if own_jobs[0].reason not in ("None", "")
            else own_jobs[0].state.lower()
        )
        starts = sum("started on" in event for event in events)
        before = f", after {starts} earlier {'start' if starts == 1 else 'starts'}" * bool(starts)
        return TaskState(task, WAITING, reason + before)
    lines = (line.strip() for line in read_log_tail(plan.get_log_path(task)).splitlines())
    log = tuple(filter(None, lines))[-_LAST_LINES:]
    return TaskState(
        task, *_explain_ended_task(task, runs, events, log, has_queue=jobs is not None), log
    )


def _list_task_run_folders(plan: JobArrayPlan, task: Task) -> list[Path]:
    """Return the folders of the runs that a task left; of a study's part also those that its sweeps
    should have."""
    if task.runs is not None or not plan.runs_folder:
        return plan.runs(task)
    command = shlex.join(["perfctl", *task.arguments])
    runs: list[Path] = []
    for record in plan.get_sweep_folder(plan.runs_folder).glob("*/sweep.json"):
        sweep = read_json_object(record) or {}
        for batch_size in sweep.get("batches", ()) if sweep.get("command") == command else ():
            setting = SweepSetting(batch_size)
            runs += list_run_folders(record.parent, setting) or [record.parent / setting.file_name]
    return runs


def _are_task_runs_complete(
    plan: JobArrayPlan, task: Task, runs: Sequence[Path], events: Sequence[str]
) -> bool:
    """Return whether the runs that it adds to its sweep are complete; of a task of another kind,
    whether it ended with 0, and all runs that it left are complete."""
    if task.runs:
        return sum(map(is_run_complete, runs)) >= task.runs.repeat
    has_runs = not plan.runs_folder or (bool(runs) and all(map(is_run_complete, runs)))
    return _find_last_exit_code(events) == "0" and has_runs


def _explain_ended_task(
    task: Task, runs: Sequence[Path], events: Sequence[str], log: Sequence[str], *, has_queue: bool
) -> tuple[str, str]:
    """Return (state, reason) of a task that is neither complete nor in the queue."""
    code = _find_last_exit_code(events)
    if not has_queue and events and not code:
        return UNKNOWN, f"{events[-1]}; run squeue to see whether it still runs"
    complete = sum(map(is_run_complete, runs))
    record = next(filter(None, map(read_run_record, reversed(runs))), None)
    if complete and task.runs:
        return PARTIAL, f"{complete} of {task.runs.repeat} repetitions are complete"
    if record and task.runs:
        state = PARTIAL if record.get("status") == "partial" else FAILED
        return state, str(record.get("reason") or "its report changed after it was written")
    if not events and log:
        return FAILED, "its job script ended before it started perfctl"
    if not events:
        never = "it never started: not submitted yet, or canceled in the queue"
        return MISSING, never if has_queue else f"its folders show no start ({never})"
    if code == "0":
        return PARTIAL if complete else MISSING, "it ended, but run folders were removed or changed"
    if code == _PARTLY_DONE and task.runs is None:
        return PARTIAL, "some of its runs are missing or incomplete"
    if code:
        return FAILED, f"it ended with exit code {code}" + " and left no run" * bool(task.runs)
    stopped = ", was asked to stop" * ("told to stop" in events[-1])
    return FAILED, f"it ended unexpectedly: {events[-1]}{stopped} (killed, or the node failed)"


def _find_last_exit_code(events: Sequence[str]) -> str:
    """Return the exit code with which the last start ended; empty if it did not end."""
    ended = _ENDED.search(events[-1]) if events else None
    return ended[1] if ended else ""


def _read_task_events(plan: JobArrayPlan, task: Task | None) -> list[str]:
    """Return the events that the job script noted, without times, oldest first."""
    try:
        lines = (
            plan.get_event_log_path(task).read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except OSError:
        return []
    return [line.partition(" ")[2] for line in lines if line.strip()]


def explain_failed_and_missing_tasks(states: Sequence[TaskState]) -> dict[Task, str]:
    """Return why each task without a run has none, for the database."""
    return {
        state.task: f"{state.task}: {state.reason}"
        for state in states
        if state.state in (MISSING, FAILED, UNKNOWN)
    }
