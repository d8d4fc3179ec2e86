"""A sweep, or the parts of a study, as an array of jobs: write the scripts, submit them, say how far they are, cancel."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.launch.cluster import script
from perfctl.orchestrator.launch.cluster import status as cluster_status
from perfctl.orchestrator.launch.cluster.plan import Plan, Site, SweepRuns, Task, read_plan, sweep_task
from perfctl.orchestrator.launch.cluster.status import Cancelled, Queued, TaskState
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.folders import file_name
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.version import __version__


@dataclass(frozen=True, slots=True)
class Words:
    """The command line of one profiler, without the batch size."""

    options: tuple[str, ...]
    program: tuple[str, ...]
    """The words after --; empty for a built-in workload."""

    def at(self, batch_size: int) -> tuple[str, ...]:
        """The words after perfctl that run one batch size into its own folder, without a store."""
        program = ("--", *self.program) if self.program else ()
        return (*self.options, "--batches", str(batch_size), "--no-store", *program)


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
class PartsRequest:
    """A study, or any other list of perfctl commands, as an array: each part is a task, and one command ends it."""

    name: str
    """Names the folder and the jobs: "study-flops"."""
    parts: Sequence[tuple[str, Sequence[str]]]
    """(label for people, words after ``perfctl``) of each part, in the order of the array's indices."""
    finish: Sequence[str]
    """Words after ``perfctl`` of what makes one page of the parts: study flops --from OUT --out OUT."""
    out: Path
    """Folder of the study; the job scripts go into OUT/slurm-NAME-..., and an image sees OUT."""
    site: Site
    device: str
    """cuda or cpu; the nodes have it, this machine need not."""
    command: str
    """The user's command, quoted for a shell."""
    sees: Sequence[Path] = ()
    """Other folders that an image must see, such as that of a script."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The job scripts, not written yet."""

    plan: Plan
    texts: Mapping[Path, str]
    folders: tuple[Path, ...]
    """Folders that must exist before a job starts: an image can be shown only what is there."""
    sweeps: tuple[SweepRequest, ...] = ()
    """Sweeps that the tasks fill."""


def render(asked: ArrayRequest) -> Rendered:
    """The job scripts of a sweep, one batch size (and profiler) a task. Needs no Slurm. Raises UsageError."""
    requests = tuple(asked.sweeps.values())
    # What an image must see of the nodes beside the working folder and the sweeps: a script's folder, a recording.
    seen = [folder for request in requests for folder in request.other_folders]
    seen += [request.profiler.folder for request in requests if isinstance(request.profiler, Replay)]
    facts = _facts(asked.site, asked.device, seen, store=asked.store, page=asked.page)
    folders = (asked.store.parent, asked.page.parent)
    return Rendered(plan := _plan(asked), _texts(plan, asked.site, facts), folders, requests)


def render_parts(asked: PartsRequest) -> Rendered:
    """The job scripts of a study: each part a task, and a gather job that makes one page. Needs no Slurm.

    How a command ``perfctl slurm render study NAME ...`` connects (as ``cli/cluster/slurm.py`` does for sweeps)::

        site = with_defaults(SiteOptions(...).site(), (Path.cwd(), Path.home()))
        parts = NAME.parts(options)  # list of (label, words)
        again = ("study", "NAME", "--from", str(out))
        asked = PartsRequest("study-NAME", parts, again, out, site, "cuda", command)
        rendered = render_parts(asked)
        write(rendered, force=force)  # or, for --dry-run, print rendered.texts

    and from then on ``perfctl slurm submit, status, cancel, gather`` take the folder ``rendered.plan.folder``.

    What a part must keep to:

    - its words are those after ``perfctl``, without shell syntax (they are quoted): torch --batches 16 --out OUT/runs.
      Relative paths are relative to the folder in which render was called. It names its device (``--device cuda``):
      ``auto`` would be resolved on the node.
    - tasks run at the same time on several nodes: each writes into a store (or, with ``--no-store``, a folder) of its
      own below OUT. Only ``finish`` may open the store of the study.
    - the same words again skip what is complete: a task is requeued, and submitted again, with the same words.
    - exit code 0 is complete, 4 is partial, all others are failures; ``perfctl slurm status`` shows which, and repeats
      what is not complete. It ends soon after SIGTERM, as every sweep does, and keeps its report; where its command
      takes ``--grace``, :func:`limits.grace` says for how long it may write.
    - what it measures with a profiler stands first in its words (nsys, ncu, dlprof), for :func:`limits.stop_before` gives
      these minutes to write their reports.

    After the array, whatever its outcome, the gather job runs ``perfctl slurm gather FOLDER`` (which names the parts that
    are missing, and ends with 4) and then ``finish``, which must take what there is. Its exit code counts, else 4 when a
    part was missing.

    Raises UsageError when there is no part, a part has no words, or a value cannot be in a job script.
    """
    if not asked.parts or not all(words for _, words in asked.parts):
        raise UsageError(f"`parts` of {asked.name} lack a command", "Each part is a label and the words of a command")
    tasks = tuple(Task(number, label, tuple(words)) for number, (label, words) in enumerate(asked.parts))
    out = asked.out.absolute()
    folder = out / f"slurm-{file_name(asked.name)}-{_digest(out, [task.arguments for task in tasks])}"
    plan = Plan(folder, asked.name, tasks, asked.command, platform.node(), tuple(asked.finish))
    facts = _facts(asked.site, asked.device, (out, *asked.sees))
    return Rendered(plan, _texts(plan, asked.site, facts), (out,))


def _facts(site: Site, device: str, sees: Sequence[Path], **paths: Path) -> dict[str, Any]:
    # Of an image python3, as for everything else there: perfctl itself need not be on its PATH.
    own = ["python3" if site.image is not None else sys.executable, "-m", "perfctl"]
    return {
        "version": __version__,
        "cwd": Path.cwd(),
        "device": device,
        "sees": sees,
        "perfctl": shlex.split(site.perfctl) if site.perfctl else own,
        **paths,
    }


def _texts(plan: Plan, site: Site, facts: Mapping[str, Any]) -> dict[Path, str]:
    if site.image and "://" not in site.image:  # submit looks whether it is there
        site = replace(site, image=str(Path(site.image).absolute()))
    return {
        plan.array: script.array_script(plan, site, facts),
        plan.gather: script.gather_script(plan, site, facts),
        plan.functions: script.functions(plan, site, facts),
    }


def write(rendered: Rendered, *, force: bool = False) -> None:
    """Write the scripts, the list of tasks, and the folders that the tasks write to.

    Raises UsageError where a script is there, differs, and ``force`` is not given.
    """
    plan = rendered.plan
    for path, text in rendered.texts.items():
        if not force and path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise UsageError(f"{path} is there already, and differs", "Replace it with `force`, or move it away")
    plan.folder.mkdir(parents=True, exist_ok=True)
    for path, text in rendered.texts.items():
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o644 if path == plan.functions else 0o755)
    plan.write()
    for folder in rendered.folders:
        folder.mkdir(parents=True, exist_ok=True)
    for request in rendered.sweeps:
        sweep.join(request)


def _plan(asked: ArrayRequest) -> Plan:
    requests = asked.sweeps
    first = next(iter(requests.values()))
    pairs = [(name, batch, request.name) for name, request in requests.items() for batch in request.batches]
    tasks = tuple(
        sweep_task(number, SweepRuns(*pair, repeat=first.repeat), asked.commands[pair[0]].at(pair[1]))
        for number, pair in enumerate(pairs)
    )
    out = first.out.absolute()
    folder = out / f"slurm-{file_name(first.workload)}-{_digest(out, pairs)}"
    return Plan(folder, first.workload, tasks, first.command_line, first.host)


def _digest(out: Path, tasks: object) -> str:
    """Tells arrays of different tasks apart."""
    return hashlib.sha256(f"{out}\n{tasks}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


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
    ToolMissing without Slurm; UsageError for an image that is not there; PerfctlError when sbatch refuses.
    """
    plan = read_plan(folder)
    count = len(plan.tasks)
    for number in tasks or ():
        if not 0 <= number < count:
            raise UsageError(f"`tasks`: there is no task '{number}'", f"They are numbered 0 to {count - 1}")
    cluster_status.check_is_array(plan, has_tasks=tasks is not None)
    cluster_status.check_image(plan)
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
