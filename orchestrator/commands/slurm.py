"""Run a sweep as an array of Slurm jobs: write the scripts, submit them, say how far they are, and
bring what they left into one store and page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfctl.orchestrator.commands import report, study
from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    CommandLine,
    Events,
    Group,
    MemoryLimit,
    Option,
    ProgramWords,
    Store,
    WorkloadWords,
    list_declared_options,
)
from perfctl.orchestrator.commands.profile import SWEEPS
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.ingest.context import UserHints
from perfctl.orchestrator.launch.cluster import render, status
from perfctl.orchestrator.launch.cluster.plan import (
    CLUSTER,
    JobArrayPlan,
    SlurmSiteSettings,
    fill_unset_settings_from_config,
    read_job_array_plan,
)
from perfctl.orchestrator.launch.profilers.dlprof import DLProf
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep.options import MEASURE, OUTPUT, SweepOptions
from perfctl.orchestrator.launch.sweep.plan import plan_sweep, split_image_interpreter
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.orchestrator.launch.sweep.study import RUNS, SEEDS, read_study_definition
from perfctl.orchestrator.options import (
    Expect,
    extract_base_class_fields,
    format_command_line_arguments,
    parse_comma_separated_integers,
)
from perfctl.orchestrator.report.tables import Column, build_complete_table
from perfctl.orchestrator.report.view import RawLines, View

if TYPE_CHECKING:
    from perfctl.orchestrator.ingest.gather import Gathered

PROFILERS = (*SWEEPS, "replay")
OF_ARRAY = ("batches", "sweep", "zip", "store", "device", "workload")
"""Options of sweeps that the words of a task have once for all, or not at all."""
NODE_DEVICES = {"devices": "cpu,cuda", "device": "cuda"}
"""Option of a study -> what the nodes have, where it is not told: this machine need not have a
GPU."""
Folder = Annotated[
    Path,
    Option(
        "Folder that perfctl slurm render wrote: perfctl-runs/slurm-...",
        metavar="FOLDER",
        is_argument=True,
    ),
]
PageOf = Annotated[
    Path | None, Option("HTML report to write. Default: next to the results database.", OUTPUT)
]
ForceScripts = Annotated[bool, Option("Overwrite scripts that you edited.", OUTPUT, is_common=True)]
DryRun = Annotated[bool, Option("Print the scripts without writing them.", OUTPUT, is_common=True)]


@dataclass(frozen=True, kw_only=True)
class RenderOptions(SlurmSiteSettings, SweepOptions, DLProf, TorchProfiler, Ncu, Nsys):
    """Write the job scripts of a sweep.

    Each batch size and profiler is one task of a job array. Slurm is not needed for this. Put your
    own script after --, with {batch} in place of the batch size. Put defaults of your site under
    [slurm] into perfctl.toml, here or in your home folder.
    """

    profilers: Annotated[
        str,
        Option(
            "Profilers, separated by commas: nsys, ncu, torch, dlprof, or replay alone.",
            metavar="PROFILERS",
            is_argument=True,
        ),
    ]
    device: Annotated[
        str,
        Option(
            "Device of the nodes: cpu or cuda; auto means cuda.",
            MEASURE,
            metavar="DEVICE",
            is_common=True,
        ),
    ] = "auto"
    recording: Annotated[
        Path | None, Option("Recorded sweep to replay (with replay).", metavar="FOLDER")
    ] = None
    expect: Expect = ()
    page: PageOf = None
    force: ForceScripts = False
    dry_run: DryRun = False
    arguments: WorkloadWords = ()
    program: ProgramWords = None


@dataclass(frozen=True)
class Scripts:
    """Job scripts of an array."""

    JSON_KEYS = ("folder", "array", "gather", "tasks")

    plan: JobArrayPlan
    texts: Mapping[Path, str]
    is_written: bool

    @property
    def folder(self) -> Path:
        """Folder of the scripts, which the other commands take."""
        return self.plan.folder

    @property
    def array(self) -> Path:
        """The script of the array's job."""
        return self.plan.array_script

    @property
    def gather(self) -> Path:
        """The script of the job that runs after it."""
        return self.plan.gather_script

    @property
    def tasks(self) -> int:
        """Tasks of the array."""
        return len(self.plan.tasks)


def render_sweep_scripts(options: RenderOptions, events: Events) -> Scripts:
    """Write the job scripts of a sweep, or only make them. Raises UsageError."""
    from perfctl.orchestrator.ingest.expect import parse_formulas_and_formula_files

    names = [name.strip() for name in options.profilers.split(",")]
    for name in names:
        if name not in PROFILERS:
            raise UsageError(
                f"invalid profiler '{name}'", f"Choose one or more of {','.join(PROFILERS)}"
            )
    if len(set(names)) < len(names):
        raise UsageError(f"a profiler is repeated in {options.profilers}", "Name each once")
    if options.extra and len(names) > 1:
        raise UsageError(
            f"`tool_args` needs exactly one profiler, got {options.profilers}",
            "Render each profiler separately",
        )
    site = _merge_typed_and_site_settings(options)
    device = "cuda" if options.device == "auto" else options.device
    sweep_options = replace(
        extract_base_class_fields(options, SweepOptions), device=device, image=None, bind=()
    )
    sweeps = {name: _plan_task_sweep(name, options, sweep_options, site) for name in names}
    formulas = parse_formulas_and_formula_files(options.expect)
    for formula in formulas:
        formula.raise_if_unknown_parameter([*next(iter(sweeps.values())).setting.parameters])
    task_words = {
        name: _build_task_command(name, options, request) for name, request in sweeps.items()
    }
    store = options.store_path
    page = options.page or store.with_name("perfctl-report.html")
    texts = tuple(formula.text for formula in formulas)
    rendered = render.render_sweep_job_scripts(
        sweeps, task_words, site, device, (store, page), texts
    )
    return write_scripts(
        rendered, site, events, force=options.force, should_write=not options.dry_run
    )


def _merge_typed_and_site_settings(options: SlurmSiteSettings) -> SlurmSiteSettings:
    """Return the settings that were typed, and the defaults of the site."""
    return fill_unset_settings_from_config(
        extract_base_class_fields(options, SlurmSiteSettings), (Path.cwd(), Path.home())
    )


def _plan_task_sweep(
    profiler_name: str, options: RenderOptions, sweep_options: SweepOptions, site: SlurmSiteSettings
) -> SweepRequest:
    """Return the sweep of a profiler, checked as on one machine; what is on the nodes, only they
    can check."""
    if profiler_name == "replay":
        if options.recording is None:
            raise UsageError(
                "replay needs the folder of a recorded sweep", "Set it with `recording`"
            )
        recorded = Replay(options.recording)
        sweep_options = replace(
            sweep_options,
            workload=recorded.read_recorded_workload_name(),
            device=recorded.read_recorded_device(),
        )
        planned = plan_sweep(recorded, sweep_options, origin="recorded")
        return replace(planned, chosen=recorded.list_recorded_settings(sweep_options.batches))
    program = options.program
    if site.image:  # its interpreter need not be on this machine
        python, program_arguments = split_image_interpreter(tuple(program or ()))
        program = (sys.executable, *program_arguments) if python else program
    return plan_sweep(
        extract_base_class_fields(options, SWEEPS[profiler_name]),
        sweep_options,
        options.arguments,
        program,
    )


def _build_task_command(
    profiler_name: str, options: RenderOptions, request: SweepRequest
) -> render.ProfilerTaskCommand:
    """Return the command line of a task, made from what was asked."""
    sweep_name = f"--sweep-name={request.name}"
    swept = [field for field in list_declared_options(SweepOptions) if field.name not in OF_ARRAY]
    if profiler_name == "replay":
        shared = [field for field in swept if field.name in ("out", "timeout")]
        command_words = (
            "replay",
            str(options.recording),
            *format_command_line_arguments(options, shared),
            sweep_name,
        )
        return render.ProfilerTaskCommand(command_words, ())
    names = {field.name for field in RENDER.declared_options} - {
        field.name for field in list_declared_options(SlurmSiteSettings)
    }
    profiler: Any = SWEEPS[profiler_name]
    fields = (*list_declared_options(profiler), *(field for field in swept if field.name in names))
    workload = [] if options.workload is None else [f"--workload={options.workload}"]
    first = (profiler_name, f"--device={request.device}", *workload)
    command_words = (
        *first,
        *format_command_line_arguments(options, fields),
        sweep_name,
        *options.arguments,
    )
    return render.ProfilerTaskCommand(command_words, tuple(options.program or ()))


def write_scripts(
    rendered: render.RenderedJobScripts,
    site: SlurmSiteSettings,
    events: Events,
    *,
    force: bool,
    should_write: bool,
) -> Scripts:
    """Write scripts if they are to be written, and say if their image does not exist yet."""
    if should_write:
        render.write_job_scripts(rendered, force=force)
        if site.image and "://" not in site.image and not Path(site.image).exists():
            events.note(f"{site.image} does not exist yet; perfctl slurm submit checks again")
    return Scripts(rendered.plan, rendered.texts, should_write)


def build_scripts_view(scripts: Scripts) -> View | RawLines:
    """Return what was written and what to type next, or the scripts."""
    if not scripts.is_written:
        return RawLines((f"{text}\n" for text in scripts.texts.values()), "--dry-run")
    wrote = (
        f"Wrote {_make_relative_to_current_folder(scripts.array)} "
        f"({_format_count(scripts.tasks, 'task')})"
    )
    folder = shlex.quote(_make_relative_to_current_folder(scripts.folder))
    return View(
        "", lines=(f"{wrote} and {scripts.gather.name}", f"Next: perfctl slurm submit {folder}")
    )


def _make_relative_to_current_folder(path: Path) -> str:
    """Return a path below this folder without it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)
class StudyScriptOptions(SlurmSiteSettings, study.StudyOptions):
    """Write the job scripts of a study: one task per part, and a gather job that writes the report.

    The options are those of the study and of your site. Slurm is not needed for this.
    """

    force: ForceScripts = False
    dry_run: DryRun = False


def declare_study_scripts_command(name: str) -> Command[StudyScriptOptions, Scripts]:
    """Return the command that writes the job scripts of a study."""
    declared = read_study_definition(name)

    def render_study_scripts(options: StudyScriptOptions, events: Events) -> Scripts:
        site, request = (
            _merge_typed_and_site_settings(options),
            study.build_study_request(declared, options),
        )
        study.raise_if_layer_missing(request)
        parts = study.plan_study_parts(request)
        arguments = [*map(str, request.typed.values()), *request.words, str(request.out)]
        folders = [
            Path(argument).resolve()
            for argument in arguments
            if argument and Path(argument).is_dir()
        ]
        rendered = render.render_study_job_scripts(parts, site, request.command_line, folders, RUNS)
        is_written = not options.dry_run
        if is_written:
            study.create_or_reuse_study_folder(request)
        return write_scripts(rendered, site, events, force=options.force, should_write=is_written)

    own_options = study.list_study_options(declared)
    option = next((option for option in NODE_DEVICES if option in own_options), None)
    if option is not None:
        own_options[option] = replace(own_options[option], default=NODE_DEVICES[option])
    return Command(
        StudyScriptOptions,
        render_study_scripts,
        build_scripts_view,
        has_document=False,
        line=declared.content.get("line", ""),
        own=own_options,
        without=("part", "source"),  # the scripts set the part of each task, which runs something
    )


STUDIES = Group(
    "Write the job scripts of a study: one task per part, and a gather job that writes the report.",
    {name: declare_study_scripts_command(name) for name in SEEDS},
    find=lambda word: declare_study_scripts_command(word) if word.endswith(".toml") else None,
)


@dataclass(frozen=True, kw_only=True)
class IngestArrayOptions(UserHints, SlurmSiteSettings):
    """Write the job scripts of an array that ingests reports.

    Each task ingests a part of the reports into a separate database, with --cpus processes. The
    gather job merges the databases into --store. Slurm is not needed.
    """

    paths: Annotated[
        tuple[Path, ...],
        Option(
            "Profiler report files, or folders and archives that contain them.",
            metavar="PATHS",
            is_argument=True,
        ),
    ]
    tasks: Annotated[
        int | None,
        Option("Tasks of the array. Default: one per 64 files, at most 32.", CLUSTER, least=1),
    ] = None
    submit: Annotated[
        bool, Option("Submit the array and the job that merges the databases.", CLUSTER)
    ] = False
    store: Annotated[Path, Option("Results database.", OUTPUT)] = DEFAULT_STORE
    command_line: CommandLine = ""


@dataclass(frozen=True)
class IngestScripts(Scripts):
    """An array that ingests reports."""

    JSON_KEYS = ("folder", "tasks", "files", "submitted")

    files: int
    """Reports that its tasks ingest."""
    submitted: status.Submitted | None
    """null: it was not asked to be submitted."""


def write_ingest_scripts_maybe_submit(options: IngestArrayOptions, events: Events) -> IngestScripts:
    """Write the job scripts of an array of ingests, and submit them if asked."""
    from perfctl.orchestrator.ingest import array

    rendered = array.write_ingest_job_array(
        options.paths,
        options.store,
        _merge_typed_and_site_settings(options),
        options.command_line,
        events.warning,
        task_count=options.tasks,
        ingest_options=format_command_line_arguments(options, list_declared_options(UserHints)),
        hints=extract_base_class_fields(options, UserHints),
    )
    submitted = status.submit_job_array(rendered.plan) if options.submit else None
    return IngestScripts(rendered.plan, {}, True, rendered.files, submitted)


def build_ingest_scripts_view(scripts: IngestScripts) -> View:
    """Return what was written, and what to type next."""
    plan, jobs = scripts.plan, scripts.submitted
    tasks = _format_count(scripts.tasks, "task")
    wrote = (
        f"Wrote {_make_relative_to_current_folder(plan.array_script)} ({tasks}, "
        f"{scripts.files:,} reports) and gather.sbatch"
    )
    if jobs:
        done = (
            f"Submitted the array as job {jobs.array}, and job {jobs.gather} to merge the databases"
        )
        return View("", lines=(wrote, done))
    first, last = (
        shlex.quote(_make_relative_to_current_folder(path))
        for path in (plan.array_script, plan.gather_script)
    )
    submit = f"sbatch --dependency=afterany:$(sbatch --parsable {first}) {last}"
    return View("", lines=(wrote, f"Next: {submit}"))


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """Submit the array and its gather job.

    The gather job runs after the array, even if tasks fail.
    """

    folder: Folder
    _: KW_ONLY
    tasks: Annotated[
        tuple[int, ...] | None,
        Option(
            "Submit only these tasks, by number: 1,3. Default: all.",
            metavar="LIST",
            parse=partial(parse_comma_separated_integers, field="tasks", example="1,3"),
        ),
    ] = None


def submit_array(options: SubmitOptions, events: Events) -> status.Submitted:
    """Submit an array."""
    return status.submit_job_array(read_job_array_plan(options.folder), options.tasks)


def build_submitted_view(jobs: status.Submitted) -> View:
    """Return the numbers of the jobs, and what to type next."""
    tasks, folder = _format_count(jobs.tasks, "task"), shlex.quote(str(jobs.folder))
    done = f"Submitted {tasks} as job {jobs.array}, and job {jobs.gather} to gather them"
    return View("", lines=(done, f"Next: perfctl slurm status {folder}"))


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """Show the progress of each task, and the reason of a failure.

    It also shows how to repeat incomplete tasks. It calls squeue, never sacct.
    """

    folder: Folder


def read_array_status(options: StatusOptions, events: Events) -> status.ArrayStatus:
    """Return how far each task is."""
    return status.collect_array_status(read_job_array_plan(options.folder), events.note)


def build_status_view(array: status.ArrayStatus) -> View:
    """Return the count of states, a row for each task, logs of what failed, and how to repeat
    it."""
    is_swept = all(state.task.runs for state in array.tasks)
    names = ("profiler", "runs") if is_swept else ("part",)
    rows: list[tuple[str, ...]] = []
    lines: list[str] = []
    for state in array.tasks:
        runs = state.task.runs
        cells = (runs.profiler, str(runs.setting)) if runs and is_swept else (state.label,)
        rows.append((str(state.number), *cells, state.state, state.reason or "–"))
        if state.log and state.state in (*status.REPEAT, status.UNKNOWN):
            lines.append(f"Last lines of {array.plan.get_log_path(state.task)}:")
            lines += [f"    {line}" for line in state.log]
    heads = [Column(name, style="text") for name in ("task", *names, "state", "reason")]
    if array.gather:
        lines.append(f"{array.gather[:1].upper()}{array.gather[1:]}")
    if array.repeat:
        folder, numbers = shlex.quote(str(array.plan.folder)), ",".join(map(str, array.repeat))
        command = f"perfctl slurm submit {folder} --tasks {numbers}"
        lines.append(f"To repeat only incomplete tasks: {command}")
    table = build_complete_table("", heads, rows, is_dense=True)
    return View(array.summary, tables=(table,), lines=tuple(lines))


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """Ingest the runs of the tasks, and write the report.

    perfctl lists missing runs and then exits with code 4.
    """

    folders: Annotated[
        Sequence[Path],
        Option(
            "Folders of arrays, sweeps or ingests, or parent folders; copies are allowed.",
            metavar="FOLDERS",
            is_argument=True,
        ),
    ]
    _: KW_ONLY
    store: Store = DEFAULT_STORE
    page: PageOf = None
    memory_limit: MemoryLimit = None


def ingest_arrays_and_write_report(options: GatherOptions, events: Events) -> Gathered:
    """Gather arrays, and write the page of the store."""
    from perfctl.orchestrator.ingest import gather as arrays

    store = options.store
    done = arrays.gather_runs_into_store(
        options.folders, store, events.note, memory_limit=options.memory_limit
    )
    for line in (*done.incomplete_ingests, *done.problems, *done.incomplete_parts):
        events.note(line)
    if done.is_stored:
        done.report = options.page or store.with_name("perfctl-report.html")
        report.write_html_report(report.ReportOptions(store, done.report), events)
    if done.unfinished:
        events.note(
            f"{done.unfinished} tasks are still queued or running. "
            "Gather again when they have ended"
        )
    return done


def build_gathered_view(done: Gathered) -> View:
    """Return what is new, and what was written."""
    lines = [
        f"Report of all parts: perfctl {shlex.join(command_words)}" for command_words in done.finish
    ]
    if done.is_stored:
        new = f"added {done.new_runs} runs to {done.store}; {done.existing_runs} already existed"
        lines[:0] = [new, f"Wrote {done.report}"]
    return View("", lines=tuple(lines))


@dataclass(frozen=True, slots=True)
class CancelOptions:
    """Cancel the array and its gather job.

    perfctl asks running profilers to stop and write their reports. A second cancel kills them.
    """

    folder: Folder


def cancel_array(options: CancelOptions, events: Events) -> status.Cancelled:
    """Cancel an array."""
    return status.cancel_job_array(read_job_array_plan(options.folder))


def build_cancelled_view(jobs: status.Cancelled) -> View:
    """Return what was asked to stop, what was cancelled, and what to type next."""
    lines = []
    if jobs.stopping:
        tasks = _format_count(jobs.stopping, "task")
        lines.append(
            f"Asked {tasks} to stop; each writes its report and ends. Repeat the command to kill "
            "them"
        )
    if jobs.tasks or jobs.gathers:
        gathers = _format_count(jobs.gathers, "gather job")
        lines.append(f"Canceled {_format_count(jobs.tasks, 'task')} and {gathers}")
    folder = shlex.quote(str(jobs.folder))
    next_step = f"Complete runs are kept. Next: perfctl slurm gather {folder}"
    return View("", lines=(*lines, next_step) if lines else ("No task is queued",))


RENDER = Command(
    RenderOptions,
    render_sweep_scripts,
    build_scripts_view,
    has_document=False,
    common=(
        *("batches", "workload", "steps", "device", "partition", "account", "time"),
        *("mem", "module", "image", "out", "dry_run"),
    ),
    examples=(
        "perfctl slurm render nsys,ncu --batches 16,64 --partition gpu --time 30:00",
        "perfctl slurm render nsys --batches 16,32 -- python train.py {batch}",
        "perfctl slurm render study speedup --partition gpu",
    ),
    # the scripts set them for each task, or they make no sense in an array
    without=(
        *("again", "grace", "no_store", "sweep_name", "scratch", "devices", "container_runtime"),
        "delay",
    ),
)
GROUP = Group(
    "Run a sweep as a Slurm job array, and gather its runs into one database and report.",
    {
        "render": RENDER,
        "render study": STUDIES,
        "ingest": Command(
            IngestArrayOptions,
            write_ingest_scripts_maybe_submit,
            build_ingest_scripts_view,
            has_document=False,
            without=(  # they are for profilers
                *("image", "bind", "template", "gather_template", "srun", "after"),
                *("stop_before", "disable_dcgm", "dcgm_pause"),
            ),
        ),
        "submit": Command(SubmitOptions, submit_array, build_submitted_view, has_document=False),
        "status": Command(StatusOptions, read_array_status, build_status_view),
        "gather": Command(
            GatherOptions,
            ingest_arrays_and_write_report,
            build_gathered_view,
            outputs=("slurm-gather",),
            has_document=False,
        ),
        "cancel": Command(CancelOptions, cancel_array, build_cancelled_view, has_document=False),
    },
    lambda words: ["render study", *words[2:]] if words[:2] == ["render", "study"] else words,
)
