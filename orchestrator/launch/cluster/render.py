"""The job scripts of an array: of a sweep, a batch size (and profiler) a task, or of a study, a
part a task. Needs no Slurm."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import raise_if_output_not_replaceable, write_text
from perfctl.orchestrator.launch.cluster import script
from perfctl.orchestrator.launch.cluster.plan import (
    JobArrayPlan,
    SlurmSiteSettings,
    Task,
    TaskSweepRuns,
    make_sweep_task,
)
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.folders import SweepSetting, make_safe_file_name
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.orchestrator.launch.sweep.study import StudyParts


@dataclass(frozen=True, slots=True)
class ProfilerTaskCommand:
    """The command line of one profiler, without the values of parameters."""

    options: tuple[str, ...]
    program: tuple[str, ...]
    """The words after --; empty for a built-in workload."""

    def build_perfctl_arguments(self, setting: SweepSetting) -> tuple[str, ...]:
        """Return the words after perfctl that run one setting into its own folder, without a
        store."""
        program = ("--", *self.program) if self.program else ()
        return (*self.options, *setting.command_line_options, "--no-store", *program)


@dataclass(frozen=True, slots=True)
class RenderedJobScripts:
    """The job scripts, not written yet."""

    plan: JobArrayPlan
    texts: Mapping[Path, str]
    folders: tuple[Path, ...]
    """Folders that must exist before a job starts: an image can be shown only what is there."""
    sweeps: tuple[SweepRequest, ...] = ()
    """Sweeps that the tasks fill."""


def render_sweep_job_scripts(
    sweeps: Mapping[str, SweepRequest],
    commands: Mapping[str, ProfilerTaskCommand],
    site: SlurmSiteSettings,
    device: str,
    store_and_report_paths: tuple[Path, Path],
    kernel_formulas: tuple[str, ...] = (),
) -> RenderedJobScripts:
    """Return the job scripts of sweeps: each setting of each profiler is a task.

    ``sweeps``, ``commands``: profiler -> its sweep, and the command line of a task without
    setting; ``device``: cuda or cpu, which the nodes have; ``store_and_report_paths``: store and
    page. Raises UsageError.
    """
    requests = tuple(sweeps.values())
    # What an image must see of the nodes beside the working folder and the sweeps: a script's
    # folder, a recording.
    folders = [folder for request in requests for folder in request.folders_to_bind]
    folders += [
        request.profiler.folder for request in requests if isinstance(request.profiler, Replay)
    ]
    first = requests[0]
    pairs = [
        (name, point, request.name)
        for name, request in sweeps.items()
        for point in request.settings
    ]
    tasks = tuple(
        make_sweep_task(
            number,
            TaskSweepRuns(*pair, repeat=first.repeat),
            commands[pair[0]].build_perfctl_arguments(pair[1]),
        )
        for number, pair in enumerate(pairs)
    )
    workload, runs_folder = first.workload, first.out.absolute()
    # the digest of batch sizes is older than other parameters
    names = [
        (name, point if point.others else point.batch, sweep_name)
        for name, point, sweep_name in pairs
    ]
    folder = (
        runs_folder / f"slurm-{make_safe_file_name(workload)}-{_hash_tasks(runs_folder, names)}"
    )
    plan = JobArrayPlan(
        folder, workload, tasks, first.command_line, first.host, expect=kernel_formulas
    )
    setting = script.JobScriptContext(device, tuple(folders), store_and_report_paths)
    parents = tuple(path.parent for path in store_and_report_paths)
    return RenderedJobScripts(plan, _render_job_scripts(plan, site, setting), parents, requests)


def render_study_job_scripts(
    study: StudyParts,
    site: SlurmSiteSettings,
    command: str,
    image_folders: Sequence[Path] = (),
    runs_folder: str = "",
) -> RenderedJobScripts:
    """Return the job scripts of a study: each part is a task, and a gather job ends it.

    ``command``: the user's, quoted for a shell; ``image_folders``: other folders that an image must
    see; ``runs_folder``: name of the folder in ``study.out`` in which the parts leave sweeps. What
    a part must keep to:

    - It names its device: ``auto`` would be resolved on the node.
    - Parts run at the same time on several nodes: each writes into its own database or folder below
      ``out``. Only ``finish`` may open the database of the study.
    - The same words again skip what is complete, because a task is requeued, and submitted again.
    - Exit code 0 is complete, 4 is partial, all others are failures. It ends soon after SIGTERM
      and keeps its report.
    - A profiler stands first in its words: ``script.choose_stop_before_seconds`` gives it minutes
      to write its report.

    After the array, whatever its outcome, the gather job runs ``perfctl slurm gather FOLDER`` and
    then ``finish``, which must take what exists. Raises UsageError if there is no part, a part has
    no words, or a value cannot be in a job script.
    """
    name, out_folder = f"study-{study.kind}", study.out.absolute()
    if not study.parts or not all(arguments for _, arguments in study.parts):
        raise UsageError(f"{name} has no part, or a part without a command")
    tasks = tuple(Task(number, *part) for number, part in enumerate(study.parts))
    folder = (
        out_folder / f"slurm-{make_safe_file_name(name)}-"
        f"{_hash_tasks(out_folder, [task.arguments for task in tasks])}"
    )
    plan = JobArrayPlan(folder, name, tasks, command, platform.node(), runs_folder, study.finish)
    setting = script.JobScriptContext(study.device, (out_folder, *image_folders))
    return RenderedJobScripts(plan, _render_job_scripts(plan, site, setting), (out_folder,))


def _hash_tasks(folder: Path, tasks: object) -> str:
    """Return what tells arrays of different tasks apart."""
    return hashlib.sha256(f"{folder}\n{tasks}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _render_job_scripts(
    plan: JobArrayPlan, site: SlurmSiteSettings, setting: script.JobScriptContext
) -> dict[Path, str]:
    if site.image and "://" not in site.image:  # submit looks whether it is there
        site = replace(site, image=str(Path(site.image).absolute()))
    return {
        plan.array_script: script.render_array_script(plan, site, setting),
        plan.gather_script: script.render_gather_script(plan, site, setting),
        plan.functions_script: script.render_shell_functions(plan, site, setting),
    }


def write_job_scripts(rendered: RenderedJobScripts, *, force: bool = False) -> None:
    """Write the scripts, the list of tasks, and the folders that the tasks write to.

    Raises UsageError if a script is there, differs, and ``force`` is not given.
    """
    plan = rendered.plan
    for path, text in rendered.texts.items():
        if path.is_file() and path.read_bytes() != text.encode("utf-8", "surrogateescape"):
            raise_if_output_not_replaceable(path, force=force)
    plan.folder.mkdir(parents=True, exist_ok=True)
    for path, text in rendered.texts.items():
        write_text(path, text, force=True)
        path.chmod(0o644 if path == plan.functions_script else 0o755)
    plan.write_tasks_json()
    for folder in rendered.folders:
        folder.mkdir(parents=True, exist_ok=True)
    for request in rendered.sweeps:
        sweep.create_or_verify_sweep_record(request)
