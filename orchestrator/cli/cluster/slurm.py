"""perfctl slurm: a sweep as an array of Slurm jobs."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import commands, console, options
from perfctl.orchestrator.cli.cluster import studies
from perfctl.orchestrator.cli.commands import CommandList
from perfctl.orchestrator.cli.measure.profilers import (
    AFTER,
    CONTEXT,
    PASS_ON_CONTEXT,
    SWEEPS,
    SweepCommand,
    sweep_options,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.cluster.plan import Site, with_defaults
from perfctl.orchestrator.launch.sweep.options import PLACEMENT, SweepOptions
from perfctl.orchestrator.options import Field, Option

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.sweep.slurm import Words
    from perfctl.orchestrator.launch.cluster.plan import Plan
    from perfctl.orchestrator.launch.cluster.status import TaskState
    from perfctl.orchestrator.launch.sweep.request import SweepRequest

_NOT_HERE = (
    "estimate_cost",
    "again",
    "grace",
    "no_store",
    "sweep_name",
    "scratch",
    "devices",
    "as_json",
)
"""Options that make no sense in an array, or that each task gets from its script."""
_SITE = commands.declared_by(Site)
"""Options of which the cluster's meaning counts: perfctl itself runs inside --image."""
_NOT_TASKS = ("batches", "store", "dry_run", "device", "workload")

RENDER_STUDY = "render-study"


RECORDING = {
    "recording": Field(
        "folder",
        Path | None,
        None,
        Option("With replay: the recorded sweep to stand in.", names=("--recording",)),
    )
}
PROFILERS: dict[str, dict[str, Field]] = {
    **{name: commands.declared_by(profiler, but=_NOT_HERE) for name, profiler in SWEEPS.items()},
    "replay": RECORDING,
}
"""Name of each profiler that may be rendered -> its options."""


class TaskStatus(NamedTuple):
    """One task of an array. profiler, batch and sweep are null for one that is not a run of
    a sweep."""

    task: int
    """Its number in the array."""
    label: str
    profiler: str | None
    batch: int | None
    sweep: str | None
    state: Annotated[
        str, ("whole", "partial", "running", "waiting", "failed", "missing", "unknown")
    ]
    said: str | None
    """Stage and time of a running task, reason of a waiting or failed one; null: nothing."""
    log: tuple[str, ...]
    """Last lines of the log of a failed task."""


class SlurmStatus(NamedTuple):
    """How far an array is."""

    asked_squeue: bool
    """false: there is no Slurm here, and only files were read."""
    tasks: list[TaskStatus]
    summary: str
    repeat: list[int]
    """Tasks that --tasks can repeat."""


@dataclass(frozen=True, slots=True)
class Rendering(studies.Rendering):
    """Options of render itself."""

    page: Annotated[
        Path | None, Option("The page to write. Default: beside the store.", "Output")
    ] = None


_SWEPT = commands.declared_by(SweepOptions, but={*_NOT_HERE, *_SITE, *PLACEMENT})
_SWEPT["device"] = replace(
    _SWEPT["device"],
    option=replace(_SWEPT["device"].option, help="cuda or cpu, of the nodes; auto is cuda."),
)
_RENDERING = commands.declared_by(Rendering)
_OF_TASKS = {name: one for name, one in _SWEPT.items() if name not in _NOT_TASKS}


def render_command() -> Callable[..., None]:
    """A typer command that takes what the profilers' own commands take, and the
    cluster's options."""

    def command(context: typer.Context, profilers: str, **given: Any) -> None:
        """Write the job scripts of a sweep, one batch size (and profiler) a task. Needs no Slurm.

        The options of a sweep are those of perfctl PROFILER; a program of your own follows --, with
        {batch} where the batch size goes. Defaults of your site go into perfctl.toml, here or in
        the home folder, under [slurm].
        """
        _render(profilers, given, tuple(context.args), context.meta.get(AFTER))

    argument = Annotated[
        str, typer.Argument(metavar="PROFILER[,PROFILER]", help="nsys, ncu, torch, dlprof.")
    ]
    own = {name: one for options in PROFILERS.values() for name, one in options.items()}
    parameters = [
        CONTEXT,
        inspect.Parameter("profilers", inspect.Parameter.KEYWORD_ONLY, annotation=argument),
        *commands.parameters_of(own | _SWEPT | _SITE | _RENDERING),
    ]
    return commands.with_parameters(command, parameters, inspect.getdoc(command) or "")


def site_of(given: dict[str, Any]) -> Site:
    """Return the site that was typed, completed from perfctl.toml here and at home."""
    declared = {name: one for name, one in _SITE.items() if name in given}
    typed = Site(**commands.values_of(declared, given))
    return with_defaults(typed, (Path.cwd(), Path.home()))


def _render(
    profilers: str, given: dict[str, Any], rest: tuple[str, ...], after: tuple[str, ...] | None
) -> None:
    from perfctl.orchestrator.actions.sweep import slurm as actions

    if given.get("tool_args") and len(_names(profilers)) > 1:
        raise UsageError(
            f"`tool_args` are of one profiler, and {profilers} are several", "Render each by itself"
        )
    site = site_of(given)
    rendering = Rendering(**commands.values_of(_RENDERING, given))
    asked = sweep_options(_SWEPT, given)
    asked = replace(asked, device="cuda" if asked.device == "auto" else asked.device)
    for_checks = _with_own_python(after) if site.image else after
    requests = {name: _request(name, given, asked, rest, for_checks) for name in _names(profilers)}
    words = {
        name: _words(name, given, asked, request, rest, after) for name, request in requests.items()
    }
    store = asked.store or asked.out.parent / DEFAULT
    page = rendering.page or store.with_name("perfctl-report.html")
    array = actions.ArrayRequest(requests, words, site, asked.device, store, page)
    rendered = actions.render(array)
    if rendering.dry_run:
        for text in rendered.texts.values():
            console.result(text)
        return
    actions.write(rendered, force=rendering.force)
    _print_written(rendered.plan, site)


def _print_written(plan: Plan, site: Site) -> None:
    console.result(
        f"Wrote {_shown(plan.array)} ({_count(len(plan.tasks), 'task')}) and {plan.gather.name}"
    )
    if site.image and "://" not in site.image and not Path(site.image).exists():
        console.note(f"{site.image} does not exist here yet: perfctl slurm submit will look for it")
    console.result(f"Next: perfctl slurm submit {shlex.quote(_shown(plan.folder))}")


def _names(profilers: str) -> list[str]:
    names = [name.strip() for name in profilers.split(",")]
    for name in names:
        if name not in PROFILERS:
            raise UsageError(
                f"'{name}' is not a profiler", f"Say one or more of {','.join(PROFILERS)}"
            )
    if len(set(names)) < len(names):
        raise UsageError(f"a profiler stands twice in {profilers}", "Name each once")
    return names


def _with_own_python(after: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """A program for an image, to be checked here: the image's interpreter need not be on
    this machine."""
    from perfctl.orchestrator.actions.sweep.request import program_words

    python, words = program_words(after or ())
    return (sys.executable, *words) if python else after


def _request(
    name: str,
    given: dict[str, Any],
    asked: SweepOptions,
    rest: tuple[str, ...],
    after: tuple[str, ...] | None,
) -> SweepRequest:
    """Checked as on one machine; what is on the nodes, only they can check."""
    from perfctl.orchestrator.actions.sweep.request import sweep_request
    from perfctl.orchestrator.launch.profilers.replay import Replay

    values = commands.values_of(PROFILERS[name], given)
    if name in SWEEPS:
        return sweep_request(SWEEPS[name](**values), asked, rest, after)
    if values["folder"] is None:
        raise UsageError("replay needs the folder of a recorded sweep", "Name it with --recording")
    recorded = Replay(**values)
    asked = replace(asked, workload=recorded.workload(), device=recorded.device())
    return sweep_request(recorded, asked, (), None, origin="recorded")


def _words(
    name: str,
    given: dict[str, Any],
    asked: SweepOptions,
    request: SweepRequest,
    rest: tuple[str, ...],
    after: tuple[str, ...] | None,
) -> Words:
    from perfctl.orchestrator.actions.sweep.slurm import Words

    named = f"--sweep-name={request.name}"
    if name == "replay":
        shared = {option: _SWEPT[option] for option in ("out", "timeout")}
        words = ["replay", str(given["recording"]), *commands.words_of(shared, given)]
        return Words((*words, named), ())
    words = [name, f"--device={asked.device}"]
    words += [f"--workload={asked.workload}"] if asked.workload is not None else []
    words += commands.words_of(PROFILERS[name] | _OF_TASKS, given)
    return Words((*words, named, *rest), after or ())


def _shown(folder: Path) -> str:
    """Relative where it lies below this one."""
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


class SlurmGroup(CommandList):
    """The commands of perfctl slurm; "render study NAME" has options of its own, so it is a command
    of its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """``render study`` and the words after it go to that command."""
        found = super().resolve_command(
            ctx, [RENDER_STUDY, *args[2:]] if args[:2] == ["render", "study"] else args
        )
        return found[0], found[1], list(found[2])


slurm = typer.Typer(
    name="slurm",
    cls=SlurmGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run a sweep as an array of Slurm jobs, and bring what it left into one store and page.",
)
slurm.command(
    "render",
    short_help="Write the job scripts of a sweep.",
    cls=SweepCommand,
    context_settings=PASS_ON_CONTEXT,
)(render_command())
slurm.command(RENDER_STUDY, cls=SweepCommand, context_settings=PASS_ON_CONTEXT, hidden=True)(
    studies.command(_print_written)
)

Folder = Annotated[
    Path, typer.Argument(help="The folder that perfctl slurm render wrote: perfctl-runs/slurm-...")
]


@dataclass(frozen=True, slots=True)
class TaskHints:
    """What a task tells perfctl ingest about files that do not say it themselves."""

    batch_size: Annotated[
        int | None,
        Option("Batch size, if the file does not state it.", names=("--batch",), least=1),
    ] = None
    batch_pattern: Annotated[
        str | None, Option("Regular expression for batch sizes in file names.")
    ] = None
    workload: Annotated[
        str | None,
        Option(
            "Name of the workload, if the file does not state it.",
            names=("--workload", "-w"),
            metavar="NAME",
        ),
    ] = None
    device_name: Annotated[
        str | None,
        Option("Name of the GPU or CPU, if the file does not state it.", metavar="NAME"),
    ] = None
    mode: Annotated[str | None, Option("train or infer.", metavar="MODE")] = None
    precision: Annotated[
        str | None, Option("fp32 (TF32 off), tf32, bf16 or fp16.", metavar="TYPE")
    ] = None


@dataclass(frozen=True, slots=True)
class IngestArray:
    """The array that ingests reports."""

    paths: Annotated[
        tuple[Path, ...],
        Option(
            "Report files, and folders and archives that hold some.",
            metavar="PATHS",
            is_argument=True,
        ),
    ]
    tasks: Annotated[
        int | None,
        Option("Tasks of the array. Default: one for 64 files, at most 32.", "Cluster", least=1),
    ] = None
    submit: Annotated[bool, Option("Submit it, and the job that merges the stores.", "Cluster")] = (
        False
    )
    store: Annotated[Path, Option("The store.", "Output")] = DEFAULT


_ARRAY, _HINTS = commands.declared_by(IngestArray), commands.declared_by(TaskHints)
_INGEST_SITE = commands.declared_by(
    Site,
    but=(
        *("image", "bind", "template", "gather_template", "srun", "after", "stop_before"),
        *("disable_dcgm", "dcgm_pause"),
    ),
)


def _ingest(**given: Any) -> None:
    """Write the job scripts of an array that takes in many reports, each task a part of them. Needs
    no Slurm.

    Each task has a store of its own, and --cpus of them read its files. The gather job merges the
    stores into --store.
    """
    from perfctl.orchestrator.actions.sweep import ingest_array as array
    from perfctl.orchestrator.ingest.context import UserHints
    from perfctl.orchestrator.launch.cluster import status

    asked = IngestArray(**commands.values_of(_ARRAY, given))
    hints = TaskHints(**commands.values_of(_HINTS, given))
    made = array.render(
        asked.paths,
        asked.store,
        site_of(given),
        console.command_line(),
        console.warning,
        tasks=asked.tasks,
        options=commands.words_of(_HINTS, given),
        hints=UserHints(batch=hints.batch_size, batch_pattern=hints.batch_pattern),
    )
    plan = made.plan
    console.result(
        f"Wrote {_shown(plan.array)} ({_count(len(plan.tasks), 'task')}, {made.files:,} "
        "reports) and gather.sbatch"
    )
    if asked.submit:
        numbers = status.submit(plan)
        console.result(
            f"Submitted it as job {numbers[0]}, and job {numbers[1]} to merge the stores"
        )
        return
    array_file, gather_file = (shlex.quote(_shown(path)) for path in (plan.array, plan.gather))
    console.result(
        f"Next: sbatch --dependency=afterany:$(sbatch --parsable {array_file}) {gather_file}"
    )


slurm.command(
    "ingest",
    short_help="Write the job scripts of an array that takes in reports.",
    cls=commands.Command,
)(
    commands.with_parameters(
        _ingest,
        commands.parameters_of(_ARRAY | _HINTS | _INGEST_SITE),
        inspect.getdoc(_ingest) or "",
    )
)


@slurm.command(short_help="Submit the array, and the gather job that runs after it.")
def submit(
    folder: Folder,
    tasks: Annotated[
        str | None, typer.Option(help="Only these tasks, by number: 1,3. Default: all.")
    ] = None,
) -> None:
    """Submit the array, and the gather job that runs after it, whatever its outcome."""
    from perfctl.orchestrator.actions.sweep.slurm import submit as run

    done = run(folder, _numbers(tasks) if tasks is not None else None)
    console.result(
        f"Submitted {_count(done.tasks, 'task')} as job {done.array}, and job {done.gather} to "
        "gather them"
    )
    console.result(f"Next: perfctl slurm status {shlex.quote(str(folder))}")


@slurm.command(short_help="Show how far each task is, and why one failed.")
def status(folder: Folder, as_json: options.Json = False) -> None:
    """Show how far each task is, why one failed, and how to repeat what is incomplete. Asks squeue,
    never sacct."""
    from perfctl.orchestrator.actions.sweep.slurm import status as run
    from perfctl.orchestrator.launch.cluster.status import REPEAT, UNKNOWN, summary

    found = run(folder, console)
    if as_json:
        tasks = [_task_status(state) for state in found.tasks]
        console.as_json(
            SlurmStatus(found.asked_squeue, tasks, summary(found.tasks), found.repeat),
            "slurm-status",
        )
        return
    _table(found.tasks)
    console.result(summary(found.tasks))
    for state in found.tasks:
        if state.log and state.state in (*REPEAT, UNKNOWN):
            console.result(f"Last lines of {found.plan.log(state.task)}:")
            for line in state.log:
                console.result(f"    {line}")
    if job := found.gather:
        console.result(f"The gather job {job.job} is {job.state.lower()} ({job.reason.lower()})")
    if found.repeat:
        numbers = ",".join(map(str, found.repeat))
        again = f"perfctl slurm submit {shlex.quote(str(found.plan.folder))} --tasks {numbers}"
        console.result(f"To repeat only what is not whole: {again}")


@slurm.command(short_help="Take what the tasks left into the store, and write the page.")
def gather(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help=(
                "Folders of arrays, of sweeps, of ingests, or that hold some; copied from anywhere."
            )
        ),
    ],
    store: options.Store = None,
    page: Annotated[
        Path | None, typer.Option(help="The page to write. Default: beside the store.")
    ] = None,
    memory_limit: options.MemoryLimit = None,
) -> None:
    """Take what the tasks left into the store, write the page, and name what is missing."""
    from perfctl.orchestrator.actions.sweep.slurm import gather as run
    from perfctl.orchestrator.commands.report import report, view

    store = store or DEFAULT
    done = run(folders, store, console, memory_limit=memory_limit)
    if done.in_store:
        console.result(f"{done.new} runs are new in {store}, {done.known} were there already")
    for line in (*done.parts, *done.wrong, *done.lacking):
        console.note(line)
    if done.in_store:
        written = report(store, page or store.with_name("perfctl-report.html"))
        console.view(view(written), None)
    for words in done.finish:
        console.result(f"The page of all parts: perfctl {shlex.join(words)}")
    if done.under_way:
        console.note(
            f"{done.under_way} tasks are still queued or running: gather again when they have ended"
        )
    done.check()


@slurm.command()
def cancel(folder: Folder) -> None:
    """Cancel the array and its gather job. A running profiler is told to stop and write its report;
    a second cancel ends it at once."""
    from perfctl.orchestrator.actions.sweep.slurm import cancel as run

    done = run(folder)
    if done.told:
        console.result(
            f"Told {_count(done.told, 'task')} to stop: each writes its report and ends. Again "
            "ends them at once"
        )
    if done.tasks or done.gathers:
        console.result(
            f"Cancelled {_count(done.tasks, 'task')} and {_count(done.gathers, 'gather job')}"
        )
    if done.told or done.tasks or done.gathers:
        console.result(
            f"What was whole is kept. Next: perfctl slurm gather {shlex.quote(str(folder))}"
        )
    else:
        console.result("Nothing of it is queued")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdecimal():
            raise UsageError(f"--tasks: there is no task '{word}'", "Say for instance --tasks 1,3")
    return [int(word) for word in words]


def _task_status(state: TaskState) -> TaskStatus:
    task, runs = state.task, state.task.runs
    return TaskStatus(
        task=task.number,
        label=task.label,
        profiler=runs.profiler if runs else None,
        batch=runs.batch_size if runs else None,
        sweep=runs.sweep if runs else None,
        state=state.state,
        said=state.said,
        log=state.log,
    )


def _table(found: Sequence[TaskState]) -> None:
    from rich.table import Table

    swept = all(state.task.runs for state in found)
    table = Table("task", *(("profiler", "batch") if swept else ("part",)), "state", "")
    for state in found:
        runs = state.task.runs
        names = (
            (runs.profiler, str(runs.batch_size))
            if runs and swept
            else (console.safe(state.task.label),)
        )
        table.add_row(str(state.task.number), *names, state.state, console.safe(state.said or ""))
    console.show(table)
