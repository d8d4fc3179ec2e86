"""A sweep, or the parts of a study, as an array of jobs: write the scripts, submit them, say how
far they are, cancel, and take what the tasks left into one store.

Each run is one transaction and is recognised by its report, so a gather that was killed, or that
runs twice, gives the same rows. A task that left no run becomes a failed run, which a later whole
run replaces.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shlex
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from perfctl.orchestrator import memory
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.ingest import array
from perfctl.orchestrator.ingest.context import Failed, Settings
from perfctl.orchestrator.ingest.context import Task as IngestTask
from perfctl.orchestrator.ingest.find import Source
from perfctl.orchestrator.ingest.ingest import take_runs
from perfctl.orchestrator.launch.cluster import script
from perfctl.orchestrator.launch.cluster import status as cluster_status
from perfctl.orchestrator.launch.cluster.plan import (
    Plan,
    Site,
    SweepRuns,
    Task,
    is_plan,
    read_plan,
    sweep_task,
)
from perfctl.orchestrator.launch.cluster.status import Cancelled, Queued, TaskState
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.folders import file_name, read_json, read_run_record
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, write_run
from perfctl.redact import clean_row
from perfctl.version import __version__

_RUN = re.compile(r"b(\d+)(?:\.(\d+))?(\.part)?")
_SAME = """SELECT 1 FROM run JOIN sweep ON sweep.id = run.sweep_id
WHERE sweep.name = :sweep AND sweep.kind = 'sweep'
AND profiler = :profiler AND batch_size = :batch_size AND """
_KNOWN = f"{_SAME} started_at IS :started_at AND status = :status AND reason IS :reason"
"""Query for a run of the sweep that is this very attempt, by its start, status and reason."""
_BETTER = f"{_SAME} (status <> 'failed' OR reason IS :reason)"
"""Query for a run of the sweep that is whole or partial, or that failed for the same reason."""


@dataclass(slots=True)
class Gathered:
    """What has been done so far."""

    new: int = 0
    """Runs that the store did not have."""
    known: int = 0
    """Runs that it had."""
    wrong: list[str] = field(default_factory=list)
    """One line a run that failed, is partial, missing or cannot be read."""
    parts: list[str] = field(default_factory=list)
    """One line for each task of an ingest that did not take in all of its reports."""
    lacking: list[str] = field(default_factory=list)
    """One line for each part of a study that is missing or not complete."""
    under_way: int = 0
    """Tasks that are still queued or running."""
    finish: list[tuple[str, ...]] = field(default_factory=list)
    """Words after perfctl of what makes the page of each study."""
    in_store: bool = True
    """Whether anything was gathered into the store; the parts of a study have stores of
    their own."""
    repeat_in: Path | None = None
    """An array whose status says how to repeat what is not whole; None where sweeps were gathered
    without one."""

    def check(self) -> None:
        """Raises PartlyDone when something is missing or not whole."""
        if self.parts and not self.wrong:
            tasks = f"{len(self.parts)} {'task' if len(self.parts) == 1 else 'tasks'}"
            raise PartlyDone(f"{tasks} did not take in all reports; the others are in the store")
        folder = self.repeat_in
        again = (
            f"perfctl slurm status {shlex.quote(str(folder))} says how to repeat it"
            if folder
            else None
        )
        if self.wrong:
            runs = f"{len(self.wrong)} runs are" if len(self.wrong) > 1 else "1 run is"
            raise PartlyDone(f"{runs} missing or incomplete; the report names them", again)
        if self.lacking:
            parts = f"{len(self.lacking)} parts are" if len(self.lacking) > 1 else "1 part is"
            raise PartlyDone(f"{parts} missing or incomplete", again)


def gather(
    folders: Iterable[Path],
    store: Path,
    messages: Messages = SILENT,
    *,
    memory_limit: str | int | None = None,
) -> Gathered:
    """Take every run below ``folders`` into ``store``: folders of arrays, of sweeps, or that
    hold some.

    ``memory_limit``: as in ``ingest``; a run whose report takes more is a failed one.

    Raises UsageError when a folder holds nothing of perfctl's; what is missing or not whole is in
    the answer.
    """
    folders, limit = list(folders), memory.bytes_of(memory_limit)
    arrays = [folder for folder in folders if array.is_array(folder)]
    plans, sweeps = _found(folder for folder in folders if folder not in arrays)
    done = Gathered(in_store=bool(arrays or sweeps or any(plan.sweeps() for plan in plans)))
    done.finish = [plan.finish for plan in plans if plan.finish]
    done.repeat_in = plans[0].folder if plans else None
    states = {plan.folder: _states(plan, done, messages) for plan in plans}
    if not done.in_store:
        return done
    with database.writing(store) as connection:
        for folder in arrays:
            new, known, wrong = array.merge_parts(connection, folder, store)
            done.new += new
            done.known += known
            done.parts += wrong
    stand_ins = _take_runs([run for folder in sweeps for run in _runs(folder)], store, done, limit)
    with database.writing(store) as connection:
        for facts, failed in stand_ins:
            _put_in_place_of(connection, facts, failed, done)
        for plan in plans:
            _name_missing(connection, plan, states[plan.folder], done)
    return done


def _found(folders: Iterable[Path]) -> tuple[list[Plan], list[Path]]:
    """The plans at ``folders``, and the folders of all sweeps, those of the plans too;
    each once."""
    plans: dict[Path, Plan] = {}
    sweeps: dict[Path, Path] = {}
    for given in folders:
        places = list(_places(given)) if given.is_dir() else []
        if not places:
            raise UsageError(
                f"{given}: nothing of a sweep is there", "Name perfctl-runs, or a folder in it"
            )
        for place in places:
            inside = [place]
            if is_plan(place):
                plan = plans[place.resolve()] = read_plan(place)
                inside = [plan.sweep_folder(name) for name in plan.sweeps()]
            sweeps |= {sweep.resolve(): sweep for sweep in inside if sweep.is_dir()}
    return list(plans.values()), list(sweeps.values())


def _places(folder: Path) -> Iterator[Path]:
    one = is_plan(folder) or _runs(folder)
    for place in [folder] if one else sorted(folder.iterdir()):
        if one or (place.is_dir() and (is_plan(place) or _runs(place))):
            yield place


def _runs(sweep: Path) -> list[Path]:
    """Folders of runs that have a record, by batch size, the oldest attempt first, what was cut
    off last."""
    named = [(match, path) for path in sweep.iterdir() if (match := _RUN.fullmatch(path.name))]
    kept = [(match, path) for match, path in named if read_run_record(path) is not None]
    return [
        path
        for _, path in sorted(
            kept, key=lambda one: (int(one[0][1]), bool(one[0][3]), int(one[0][2] or 1))
        )
    ]


def _take_runs(
    runs: Sequence[Path], store: Path, done: Gathered, limit: int
) -> list[tuple[SweepFacts, RunFacts]]:
    """Take runs into the store, in a child; a failed run to put in the place of each that cannot
    be read."""
    records = {run: read_run_record(run) or {} for run in runs}
    tasks = []
    with database.writing(store) as connection:
        for run, record in records.items():
            facts = _task_facts(run.parent)
            if record.get("status") == "ok" or not _is_stored(connection, _KNOWN, facts, record):
                tasks.append(IngestTask(Source(run, run), facts))
    outcomes = {
        task.source.path: outcome
        for task, outcome in take_runs(tasks, Settings(store, limit=limit))
    }
    stand_ins: list[tuple[SweepFacts, RunFacts]] = []
    for run, record in records.items():
        label = f"{record.get('profiler')} at batch {record.get('batch_size')}"
        if record.get("status") != "ok":
            done.wrong.append(f"{label} is {record.get('status')}: {record.get('reason')}")
        outcome = outcomes.get(run)
        if not isinstance(outcome, Failed):
            is_new = outcome is not None and outcome.written.new
            done.new += is_new
            done.known += not is_new
            continue
        done.wrong.append(f"{label}: {outcome.text}")
        failed = RunFacts(
            profiler=str(record.get("profiler") or "unknown"),
            status="failed",
            origin=str(record.get("origin") or "measured"),
            workload=record.get("workload"),
            batch_size=record.get("batch_size"),
            reason=outcome.text,
        )
        stand_ins.append((_task_facts(run.parent), failed))
    return stand_ins


def _task_facts(sweep: Path) -> SweepFacts:
    said = read_json(sweep / "sweep.json") or {}
    return SweepFacts(
        str(said.get("name") or sweep.name), "sweep", said.get("command"), said.get("host")
    )


def _is_stored(
    connection: sqlite3.Connection, query: str, sweep: SweepFacts, run: Mapping[str, Any]
) -> bool:
    asked = dict.fromkeys(("profiler", "batch_size", "started_at", "status", "reason")) | clean_row(
        run
    )
    return connection.execute(query, {**asked, "sweep": sweep.name}).fetchone() is not None


def _states(plan: Plan, done: Gathered, messages: Messages) -> list[cluster_status.TaskState]:
    """How far the plan's tasks are. Parts of a study that are not complete are named, what is under
    way is counted."""
    found = cluster_status.states(plan, ask_queue(plan, messages))
    done.under_way += sum(
        state.state in (cluster_status.WAITING, cluster_status.RUNNING) for state in found
    )
    done.lacking += [
        f"{state.task}: {state.said}"
        for state in found
        if state.task.runs is None and state.state != cluster_status.WHOLE
    ]
    return found


def _name_missing(
    connection: sqlite3.Connection,
    plan: Plan,
    states: Sequence[cluster_status.TaskState],
    done: Gathered,
) -> None:
    """A failed run for each task of a sweep that left none, with the reason; none where the store
    has something better."""
    for task, reason in cluster_status.reasons(states).items():
        runs = task.runs
        if runs is None or any(read_run_record(run) is not None for run in plan.runs(task)):
            continue
        done.wrong.append(reason)
        folder = plan.sweep_folder(runs.sweep)
        said = read_json(folder / "sweep.json") or {}
        profiler = str(said.get("profiler") or runs.profiler)
        origin = "recorded" if runs.profiler == "replay" else "measured"
        run = RunFacts(profiler, "failed", origin, plan.workload, runs.batch_size, reason=reason)
        _put_in_place_of(connection, _task_facts(folder), run, done)


def _put_in_place_of(
    connection: sqlite3.Connection, facts: SweepFacts, run: RunFacts, done: Gathered
) -> None:
    """A failed run that only says why there is no other, unless the store has something better."""
    if not _is_stored(connection, _BETTER, facts, asdict(run)):
        write_run(connection, facts, run, None)
        done.new += 1


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
    """A study, or any other list of perfctl commands, as an array: each part is a task, and one
    command ends it."""

    name: str
    """Names the folder and the jobs: "study-flops"."""
    parts: Sequence[tuple[str, Sequence[str]]]
    """(label for people, words after ``perfctl``) of each part, in the order of the
    array's indices."""
    finish: Sequence[str]
    """Words after ``perfctl`` of what makes one page of the parts: study flops --from OUT
    --out OUT."""
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
    """The job scripts of a sweep, one batch size (and profiler) a task. Needs no Slurm.
    Raises UsageError."""
    requests = tuple(asked.sweeps.values())
    # What an image must see of the nodes beside the working folder and the sweeps: a script's
    # folder, a recording.
    seen = [folder for request in requests for folder in request.other_folders]
    seen += [
        request.profiler.folder for request in requests if isinstance(request.profiler, Replay)
    ]
    facts = _facts(asked.site, asked.device, seen, store=asked.store, page=asked.page)
    folders = (asked.store.parent, asked.page.parent)
    return Rendered(plan := _plan(asked), _texts(plan, asked.site, facts), folders, requests)


def render_parts(asked: PartsRequest) -> Rendered:
    """The job scripts of a study: each part a task, and a gather job that makes one page. Needs
    no Slurm.

    How a command ``perfctl slurm render study NAME ...`` connects (as ``cli/cluster/slurm.py`` does
    for sweeps)::

        site = with_defaults(SiteOptions(...).site(), (Path.cwd(), Path.home()))
        parts = NAME.parts(options)  # list of (label, words)
        again = ("study", "NAME", "--from", str(out))
        asked = PartsRequest("study-NAME", parts, again, out, site, "cuda", command)
        rendered = render_parts(asked)
        write(rendered, force=force)  # or, for --dry-run, print rendered.texts

    and from then on ``perfctl slurm submit, status, cancel, gather`` take the folder
    ``rendered.plan.folder``.

    What a part must keep to:

    - its words are those after ``perfctl``, without shell syntax (they are quoted): torch --batches
      16 --out OUT/runs. Relative paths are relative to the folder in which render was called. It
      names its device (``--device cuda``): ``auto`` would be resolved on the node.
    - tasks run at the same time on several nodes: each writes into a store (or, with
      ``--no-store``, a folder) of its own below OUT. Only ``finish`` may open the store of
      the study.
    - the same words again skip what is complete: a task is requeued, and submitted again, with the
      same words.
    - exit code 0 is complete, 4 is partial, all others are failures; ``perfctl slurm status`` shows
      which, and repeats what is not complete. It ends soon after SIGTERM, as every sweep does, and
      keeps its report; if its command takes ``--grace``, ``launch.cluster.script.grace`` returns
      the seconds in which it may write.
    - what it measures with a profiler stands first in its words (nsys, ncu, dlprof), for
      ``launch.cluster.script.seconds_to_stop_before`` gives these minutes to write their reports.

    After the array, whatever its outcome, the gather job runs ``perfctl slurm gather FOLDER``
    (which names the parts that are missing, and ends with 4) and then ``finish``, which must take
    what there is. Its exit code counts, else 4 when a part was missing.

    Raises UsageError when there is no part, a part has no words, or a value cannot be in a
    job script.
    """
    if not asked.parts or not all(words for _, words in asked.parts):
        raise UsageError(
            f"`parts` of {asked.name} lack a command",
            "Each part is a label and the words of a command",
        )
    tasks = tuple(
        Task(number, label, tuple(words)) for number, (label, words) in enumerate(asked.parts)
    )
    out = asked.out.absolute()
    folder = (
        out / f"slurm-{file_name(asked.name)}-{_digest(out, [task.arguments for task in tasks])}"
    )
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
        if (
            not force
            and path.exists()
            and path.read_text(encoding="utf-8", errors="replace") != text
        ):
            raise UsageError(
                f"{path} is there already, and differs", "Replace it with `force`, or move it away"
            )
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
    pairs = [
        (name, batch, request.name)
        for name, request in requests.items()
        for batch in request.options.batches
    ]
    repeat = first.options.repeat
    tasks = tuple(
        sweep_task(number, SweepRuns(*pair, repeat=repeat), asked.commands[pair[0]].at(pair[1]))
        for number, pair in enumerate(pairs)
    )
    out = first.options.out.absolute()
    folder = out / f"slurm-{file_name(first.workload)}-{_digest(out, pairs)}"
    return Plan(folder, first.workload, tasks, first.options.command_line, first.host)


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

    Raises UsageError for a task that does not exist or is in the queue already, or for an image
    that does not exist; ToolMissing without Slurm; PerfctlError if sbatch refuses.
    """
    plan = read_plan(folder)
    count = len(plan.tasks)
    for number in tasks or ():
        if not 0 <= number < count:
            raise UsageError(
                f"`tasks`: there is no task '{number}'", f"They are numbered 0 to {count - 1}"
            )
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
    """How far each task is, and why one failed. Asks squeue, never sacct. Raises UsageError for a
    folder without a plan."""
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
    """Take an array out of the queue. A running profiler is told to stop, and ended at once when
    this is called again."""
    plan = read_plan(folder)
    return cluster_status.cancel(plan, cluster_status.queued(plan))
