"""A sweep as an array of Slurm jobs: write the job scripts, submit them, say how far they are, cancel them."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfctl import __version__
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.launch.cluster import script
from perfctl.orchestrator.launch.cluster import status as cluster_status
from perfctl.orchestrator.launch.cluster.plan import Plan, Site, Task, read_plan
from perfctl.orchestrator.launch.cluster.script import Words
from perfctl.orchestrator.launch.cluster.status import Cancelled, Queued, TaskState
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.folders import file_name
from perfctl.orchestrator.launch.sweep.request import SweepRequest


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """What the tasks of an array run, and for whom."""

    sweeps: Mapping[str, SweepRequest]
    """Profiler -> its sweep; each batch size of it becomes a task."""
    commands: Mapping[str, Words]
    """Profiler -> the command line of a task, without batch size."""
    site: Site
    device: str
    """cuda or cpu; the nodes have it, this machine need not."""
    store: Path
    page: Path


@dataclass(frozen=True, slots=True)
class Rendered:
    """Both job scripts, not written yet."""

    plan: Plan
    texts: Mapping[Path, str]


def render(asked: ArrayRequest) -> Rendered:
    """The job scripts of a sweep, one batch size (and profiler) a task. Needs no Slurm. Raises UsageError."""
    plan, site, requests = _plan(asked.sweeps), asked.site, asked.sweeps.values()
    # Of an image python3, as for everything else there: perfctl itself need not be on its PATH.
    own = ["python3" if site.image is not None else sys.executable, "-m", "perfctl"]
    # What an image must see of the nodes beside the working folder and the sweeps: a script's folder, a recording.
    seen = [folder for request in requests for folder in request.other_folders]
    seen += [request.profiler.folder for request in requests if isinstance(request.profiler, Replay)]
    facts: dict[str, Any] = {
        "version": __version__,
        "cwd": Path.cwd(),
        "device": asked.device,
        "store": asked.store,
        "page": asked.page,
        "sees": seen,
        "perfctl": shlex.split(site.perfctl) if site.perfctl else own,
    }
    array = script.array_script(plan, site, asked.commands, facts)
    return Rendered(plan, {plan.array: array, plan.gather: script.gather_script(plan, site, facts)})


def write(rendered: Rendered, asked: ArrayRequest, *, force: bool = False) -> None:
    """Write both scripts, the list of tasks, and the folders that the tasks write to.

    Raises UsageError where a script is there, differs, and ``force`` is not given.
    """
    plan = rendered.plan
    for path, text in rendered.texts.items():
        if not force and path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise UsageError(f"{path} is there already, and differs", "Replace it with `force`, or move it away")
    plan.folder.mkdir(parents=True, exist_ok=True)
    for path, text in rendered.texts.items():
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    plan.write()
    for target in (asked.store, asked.page):
        target.parent.mkdir(parents=True, exist_ok=True)  # an image can be shown only what is there
    for request in asked.sweeps.values():
        sweep.join(request)


def _plan(requests: Mapping[str, SweepRequest]) -> Plan:
    first = next(iter(requests.values()))
    pairs = [(name, batch, request.name) for name, request in requests.items() for batch in request.batches]
    tasks = tuple(Task(number, *pair, repeat=first.repeat) for number, pair in enumerate(pairs))
    out = first.out.absolute()
    digest = hashlib.sha256(f"{out}\n{pairs}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
    folder = out / f"slurm-{file_name(first.workload)}-{digest}"
    return Plan(folder, first.workload, tasks, first.command_line, first.host)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What is in the queue now."""

    tasks: int
    array: str
    gather: str
    """Number of the job that gathers after any outcome of the array."""


def submit(folder: Path, tasks: Sequence[int] | None = None) -> Submitted:
    """Submit the array, or only some ``tasks`` of it, and the gather job after it.

    Raises UsageError for scripts of another scheduler, a task that there is not, or one that is in the queue already;
    ToolMissing without Slurm; PerfctlError when sbatch refuses.
    """
    plan = read_plan(folder)
    count = len(plan.tasks)
    for number in tasks or ():
        if not 0 <= number < count:
            raise UsageError(f"`tasks`: there is no task '{number}'", f"They are numbered 0 to {count - 1}")
    cluster_status.check_is_for_slurm(plan, has_tasks=tasks is not None)
    some = sorted(set(tasks)) if tasks is not None else None
    asked = some if some is not None else [task.number for task in plan.tasks]
    if queued := sorted({job.task for job in cluster_status.queued(plan) if job.task in asked}):
        remedy = f"perfctl slurm cancel {shlex.quote(str(folder))} takes it out"
        raise UsageError(f"in the queue already: task {', '.join(map(str, queued))}", remedy)
    return Submitted(len(asked), *cluster_status.submit(plan, some))


@dataclass(frozen=True, slots=True)
class ArrayStatus:
    """How far an array is."""

    plan: Plan
    tasks: tuple[TaskState, ...]
    gather: Queued | None
    """The gather job, where the queue has it."""
    asked_squeue: bool
    """Whether the queue could be asked; else this is what the folders alone say."""

    @property
    def repeat(self) -> list[int]:
        """Numbers of the tasks that a repetition can make whole."""
        return [state.task.number for state in self.tasks if state.state in cluster_status.REPEAT]


def status(folder: Path, messages: Messages = SILENT) -> ArrayStatus:
    """How far each task is, and why one failed. Asks squeue, never sacct. Raises UsageError for a folder without a plan."""
    plan = read_plan(folder)
    jobs = ask_queue(plan, messages)
    gather = next((job for job in jobs or () if job.task is None), None)
    return ArrayStatus(plan, tuple(cluster_status.states(plan, jobs)), gather, jobs is not None)


def ask_queue(plan: Plan, messages: Messages = SILENT) -> list[Queued] | None:
    """The plan's jobs; None, with a note, where squeue cannot be asked."""
    try:
        return cluster_status.queued(plan)
    except PerfctlError as error:
        messages.note(f"{error.message}: this is what the folders alone tell")
        return None


def cancel(folder: Path) -> Cancelled:
    """Take an array out of the queue. A running profiler is told to stop, and ended at once when this is called again."""
    plan = read_plan(folder)
    return cluster_status.cancel(plan, cluster_status.queued(plan))
