"""The plan of an array of jobs: what each task runs, what the gather job runs after them, and where
their files are.

The folder slurm-NAME of a sweep's array lies beside the folders of the sweeps that the tasks fill,
as on one machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.folders import (
    RunPaths,
    SweepSetting,
    list_run_folders,
    read_json_object,
    write_json_atomically,
)
from perfctl.orchestrator.options import Option, list_declared_options

_VERSION = 3
"""1: tasks were profiler, batch_size, sweep and repeat, and no argument list. 2: their runs had a
batch_size and no setting."""
_RECORD = "tasks.json"

Text = str | None
Number = int | None
Switch = bool | None
Texts = tuple[str, ...] | None
_WANTED: Mapping[Any, str] = {
    Texts: 'a list of strings, such as ["one", "two"]',
    Switch: "true or false",
    Number: "a whole number above 0",
    Text: 'a string, such as "gpu"',
}
"""Type of a field of SlurmSiteSettings -> what its value must be."""
CLUSTER = "Cluster"
"""Heading of these options in ``--help``."""


@dataclass(frozen=True, slots=True)
class TaskSweepRuns:
    """The runs that a task adds to a sweep: one profiler at one setting."""

    profiler: str
    setting: SweepSetting
    sweep: str
    """Name of the sweep's folder, next to the plan's."""
    repeat: int = 1
    """Complete runs wanted."""


@dataclass(frozen=True, slots=True)
class Task:
    """One call of perfctl."""

    number: int
    """SLURM_ARRAY_TASK_ID."""
    label: str
    """What it is, for people: "ncu, batch 16"."""
    arguments: tuple[str, ...]
    """The words after ``perfctl``. The call must be safe to repeat: it skips what is complete."""
    runs: TaskSweepRuns | None = None
    """What it adds to a sweep; None for a task of another kind, which is complete when it ended
    with exit code 0."""

    def __str__(self) -> str:
        return f"task {self.number} ({self.label})"


def make_sweep_task(number: int, runs: TaskSweepRuns, arguments: tuple[str, ...] = ()) -> Task:
    """Return a task that runs one setting of a sweep."""
    return Task(number, f"{runs.profiler}, {runs.setting}", arguments, runs)


@dataclass(frozen=True, slots=True)
class JobArrayPlan:
    """All tasks of one array."""

    folder: Path
    workload: str
    tasks: tuple[Task, ...]
    command: str
    """The user's command, quoted for a shell."""
    host: str
    runs_folder: str = ""
    """Name of the folder next to the plan's in which the parts of a study leave their sweeps; empty
    if they leave none, and for sweeps, whose tasks name theirs."""
    finish: tuple[str, ...] = ()
    """The words after ``perfctl`` of what the gather job runs last, when ``perfctl slurm gather``
    has named what is missing; empty for sweeps, whose store and page that command writes."""

    expect: tuple[str, ...] = ()
    """The user's formulas of kernels, which gathering stores with the runs."""

    @property
    def array_script(self) -> Path:
        """The script of the array's job, to read, edit, keep and submit."""
        return self.folder / "array.sbatch"

    @property
    def gather_script(self) -> Path:
        return self.folder / "gather.sbatch"

    @property
    def functions_script(self) -> Path:
        """Shell functions that both scripts use."""
        return self.folder / "job.sh"

    def get_log_path(self, task: Task | None) -> Path:
        """Output of all attempts of a task; of the gather job without one."""
        return self.folder / (f"task-{task.number}.log" if task else "gather.log")

    def get_event_log_path(self, task: Task | None) -> Path:
        """One line when a task starts, is asked to stop, and ends; of the gather job without
        one."""
        return self.folder / (f"task-{task.number}.state" if task else "gather.state")

    def get_sweep_folder(self, name: str) -> Path:
        return self.folder.parent / name

    def sweeps(self) -> tuple[str, ...]:
        """Return names of the sweeps that its tasks fill, without duplicates."""
        return tuple(dict.fromkeys(task.runs.sweep for task in self.tasks if task.runs))

    def runs(self, task: Task) -> list[Path]:
        """Folders of the task's runs in its sweep, oldest first; the last may be
        incomplete (.part)."""
        if task.runs is None:
            return []
        folder, setting = self.get_sweep_folder(task.runs.sweep), task.runs.setting
        part = RunPaths(folder, setting).partial_folder
        return [*list_run_folders(folder, setting), *([part] if part.is_dir() else [])]

    def write_tasks_json(self) -> None:
        """Write tasks.json. That of a sweep names no folder, so that it can be moved."""
        facts = asdict(self)
        del facts["folder"]
        write_json_atomically(self.folder / _RECORD, {"perfctl_slurm": _VERSION, **facts})


def holds_job_array(folder: Path) -> bool:
    """Return whether the folder holds the files of an array."""
    return (folder / _RECORD).is_file()


def read_job_array_plan(folder: Path) -> JobArrayPlan:
    """Return the plan in a folder. Raises UsageError if there is none, it is damaged, or another
    version wrote it."""
    record = read_json_object(folder / _RECORD)
    if record is None:
        raise UsageError(
            f"{folder} has no {_RECORD}", "Use a folder written by perfctl slurm render"
        )
    if record.get("perfctl_slurm") != _VERSION:
        raise UsageError(
            f"another version of perfctl wrote {folder / _RECORD}",
            "Use the perfctl version that rendered it",
        )
    try:
        return msgspec.convert({**record, "folder": folder}, JobArrayPlan)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{folder / _RECORD} is damaged ({error})", f"Render it again: {record.get('command')}"
        ) from error


def declare_site_option(
    help_text: str,
    metavar: str | None = None,
    *,
    minimum: float | None = None,
    is_common: bool = False,
) -> Option:
    """Return the declaration of a setting of the job scripts."""
    return Option(help_text, CLUSTER, metavar=metavar, least=minimum, is_common=is_common)


@dataclass(frozen=True)
class SlurmSiteSettings:
    """Settings of the job scripts; None for unset."""

    partition: Annotated[
        Text, declare_site_option("Slurm partition of the tasks.", "NAME", is_common=True)
    ] = None
    account: Annotated[Text, declare_site_option("Account to charge.", "NAME", is_common=True)] = (
        None
    )
    qos: Annotated[Text, declare_site_option("Quality of service.", "NAME")] = None
    constraint: Annotated[Text, declare_site_option("Required node features.", "FEATURES")] = None
    gres: Annotated[
        Text,
        declare_site_option(
            "Generic resources per task. Default: gpu:1 (none with --device cpu).", "GRES"
        ),
    ] = None
    time: Annotated[
        Text,
        declare_site_option(
            "Time limit per task in Slurm's format: 00:30:00.", "TIME", is_common=True
        ),
    ] = None
    mem: Annotated[Text, declare_site_option("Memory per task: 16G.", "SIZE", is_common=True)] = (
        None
    )
    cpus: Annotated[Number, declare_site_option("Cores per task.", minimum=1)] = None
    exclusive: Annotated[Switch, declare_site_option("Do not share nodes with other jobs.")] = None
    array_limit: Annotated[
        Number, declare_site_option("Maximum number of tasks that run at the same time.", minimum=1)
    ] = None
    stop_before: Annotated[
        Number,
        declare_site_option(
            "Stop the profiler this many seconds before the time limit, so that it writes its "
            "report. Default: 300 (nsys, ncu, dlprof) or 60, at most a quarter of --time.",
            "SECONDS",
            minimum=1,
        ),
    ] = None
    module: Annotated[
        Texts,
        declare_site_option("Environment module to load (repeatable).", "NAME", is_common=True),
    ] = None
    module_purge: Annotated[
        Switch,
        declare_site_option(
            "Run module purge before the first module. Default: on, if a module is loaded."
        ),
    ] = None
    """False: load modules on top of what the submitting shell had loaded."""
    before: Annotated[
        Texts,
        declare_site_option("Shell line to run before perfctl, in all jobs (repeatable).", "LINE"),
    ] = None
    after: Annotated[
        Texts,
        declare_site_option(
            "Shell line to run after the profiler, even if it fails (repeatable).", "LINE"
        ),
    ] = None
    sbatch: Annotated[
        Texts, declare_site_option("Additional #SBATCH line (repeatable).", "LINE")
    ] = None
    image: Annotated[
        Text,
        declare_site_option(
            "Apptainer image that contains perfctl and the profiler.", "IMAGE", is_common=True
        ),
    ] = None
    bind: Annotated[
        Texts,
        declare_site_option(
            "Folder to bind into the image, FOLDER[:TARGET[:ro]] (repeatable).", "FOLDER"
        ),
    ] = None
    srun: Annotated[Switch, declare_site_option("Start each task with srun.")] = None
    disable_dcgm: Annotated[
        Switch, declare_site_option("Add #SBATCH --disable-dcgm, if the site supports it.")
    ] = None
    dcgm_pause: Annotated[
        Switch,
        declare_site_option("Run dcgmi profile --pause before each task and --resume after it."),
    ] = None
    perfctl: Annotated[
        Text,
        declare_site_option(
            "Command that runs perfctl on the nodes. Default: this perfctl (in an image: python3 "
            "-m perfctl).",
            "WORDS",
        ),
    ] = None
    """Shell words."""
    gather_partition: Annotated[
        Text, declare_site_option("Partition of the gather job. Default: --partition.", "NAME")
    ] = None
    gather_time: Annotated[
        Text, declare_site_option("Time limit of the gather job. Default: --time.", "TIME")
    ] = None
    gather_mem: Annotated[
        Text, declare_site_option("Memory of the gather job. Default: the partition's.", "SIZE")
    ] = None
    gather_cpus: Annotated[
        Number, declare_site_option("Cores of the gather job. Default: 1.", minimum=1)
    ] = None
    gather_module: Annotated[
        Texts,
        declare_site_option(
            "Module of the gather job (repeatable). Default: those of --module, without CUDA's.",
            "NAME",
        ),
    ] = None
    template: Annotated[
        Text, declare_site_option("Template of your site for the array script.", "FILE")
    ] = None
    gather_template: Annotated[
        Text, declare_site_option("Template of your site for the gather script.", "FILE")
    ] = None


def fill_unset_settings_from_config(
    site: SlurmSiteSettings, folders: tuple[Path, ...]
) -> SlurmSiteSettings:
    """Return ``site``, with unset fields from [slurm] in the perfctl.toml of each of ``folders``;
    earlier ones win. Raises UsageError for a file that cannot be read, an unknown key, or a value
    of the wrong type."""
    for path in (folder / "perfctl.toml" for folder in folders):
        settings = _read_slurm_settings(path) if path.is_file() else {}
        unset = {name: value for name, value in settings.items() if getattr(site, name) is None}
        site = replace(site, **unset)
    return site


def _read_slurm_settings(path: Path) -> dict[str, Any]:
    """Return field of SlurmSiteSettings -> its value in a file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", "Correct the file, or move it away") from error
    table = content.get("slurm", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: slurm must be a table", "Begin it with a line [slurm]")
    return {
        key.replace("-", "_"): _convert_slurm_setting(path, key, value)
        for key, value in table.items()
    }


def _convert_slurm_setting(path: Path, key: str, value: Any) -> Any:
    """Return the value of a key of [slurm] as that of its field of SlurmSiteSettings."""
    hints = {field.name: field.hint for field in list_declared_options(SlurmSiteSettings)}
    hint = hints.get(key.replace("-", "_"))
    if hint is None:
        keys = ", ".join(name.replace("_", "-") for name in hints)
        raise UsageError(f"{path}: unknown key '{key}' in [slurm]", f"Known: {keys}")
    try:
        typed = [value] if hint == Texts and isinstance(value, str) else value
        setting = msgspec.convert(typed, hint)
    except msgspec.ValidationError:
        setting = None
    if setting is None or (hint == Number and setting < 1):
        raise UsageError(f"{path}: {key} must be {_WANTED[hint]}, got {value!r}")
    # a template's path is relative to the file that names it
    return str(path.parent / setting) if key.endswith("template") else setting
