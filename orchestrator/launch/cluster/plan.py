"""The plan of an array of jobs: what each task runs, what the gather job runs after them, and where
their files are.

The folder slurm-NAME of a sweep's array lies beside the folders of the sweeps that the tasks fill,
as on one machine.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.folders import RunPaths, attempts, read_json, write_json
from perfctl.orchestrator.options import Option, options_of

_VERSION = 2
"""1: tasks were profiler, batch_size, sweep and repeat, and no argument list."""
_RECORD = "tasks.json"

_WANTED = {
    "tuple[str, ...]": 'a list of strings, such as ["one", "two"]',
    "bool": "true or false",
    "int": "a whole number above 0",
    "str": 'a string, such as "gpu"',
}
"""Type of a field of Site -> what its value must be."""
Text = str | None
Number = int | None
Switch = bool | None
Texts = tuple[str, ...] | None
CLUSTER = "Cluster"


@dataclass(frozen=True, slots=True)
class SweepRuns:
    """The runs that a task adds to a sweep: one profiler at one batch size."""

    profiler: str
    batch_size: int
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
    runs: SweepRuns | None = None
    """What it adds to a sweep; None for a task of another kind, which is complete when it ended
    with exit code 0."""

    def __str__(self) -> str:
        return f"task {self.number} ({self.label})"


def sweep_task(number: int, runs: SweepRuns, arguments: tuple[str, ...] = ()) -> Task:
    """A task that runs one batch size of a sweep."""
    return Task(number, f"{runs.profiler}, batch {runs.batch_size}", arguments, runs)


@dataclass(frozen=True, slots=True)
class Plan:
    """All tasks of one array."""

    folder: Path
    workload: str
    tasks: tuple[Task, ...]
    command: str
    """The user's command, quoted for a shell."""
    host: str
    finish: tuple[str, ...] = ()
    """The words after ``perfctl`` of what the gather job runs last, when ``perfctl slurm gather``
    has named what is missing; empty for sweeps, whose store and page that command writes."""

    @property
    def array(self) -> Path:
        """The script of the array's job, to read, edit, keep and submit."""
        return self.folder / "array.sbatch"

    @property
    def gather(self) -> Path:
        return self.folder / "gather.sbatch"

    @property
    def functions(self) -> Path:
        """Shell functions that both scripts use."""
        return self.folder / "job.sh"

    def log(self, task: Task) -> Path:
        """Output of all attempts of a task."""
        return self.folder / f"task-{task.number}.log"

    def state(self, task: Task) -> Path:
        """One line when a task starts, is told to stop, and ends."""
        return self.folder / f"task-{task.number}.state"

    def sweep_folder(self, name: str) -> Path:
        return self.folder.parent / name

    def sweeps(self) -> tuple[str, ...]:
        """Names of the sweeps that its tasks fill, without duplicates."""
        return tuple(dict.fromkeys(task.runs.sweep for task in self.tasks if task.runs))

    def runs(self, task: Task) -> list[Path]:
        """Folders of the task's runs in its sweep, oldest first; the last may be
        incomplete (.part)."""
        if task.runs is None:
            return []
        folder = self.sweep_folder(task.runs.sweep)
        found, part = (
            attempts(folder, task.runs.batch_size),
            RunPaths(folder, task.runs.batch_size).part,
        )
        return [*found, part] if part.is_dir() else found

    def write(self) -> None:
        """Write tasks.json. That of a sweep names no folder, so that it can be moved."""
        facts = {
            "workload": self.workload,
            "command": self.command,
            "host": self.host,
            "finish": self.finish,
        }
        tasks = [asdict(task) for task in self.tasks]
        write_json(self.folder / _RECORD, {"perfctl_slurm": _VERSION, **facts, "tasks": tasks})


def is_plan(folder: Path) -> bool:
    """Whether the folder holds the files of an array."""
    return (folder / _RECORD).is_file()


def read_plan(folder: Path) -> Plan:
    """The plan in ``folder``. Raises UsageError when there is none, it is damaged, or another
    version wrote it."""
    record = read_json(folder / _RECORD)
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
        return msgspec.convert({**record, "folder": folder}, Plan)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{folder / _RECORD} is damaged ({error})", "Render it again with `force`"
        ) from error


@dataclass(frozen=True)
class Site:
    """Settings of the job scripts; None for unset."""

    partition: Annotated[
        Text, Option("Slurm partition of the tasks.", CLUSTER, metavar="NAME", is_common=True)
    ] = None
    account: Annotated[
        Text, Option("Account to charge.", CLUSTER, metavar="NAME", is_common=True)
    ] = None
    qos: Annotated[Text, Option("Quality of service.", CLUSTER, metavar="NAME")] = None
    constraint: Annotated[Text, Option("Required node features.", CLUSTER, metavar="FEATURES")] = (
        None
    )
    gres: Annotated[
        Text,
        Option(
            "Generic resources per task. Default: gpu:1 (none with --device cpu).",
            CLUSTER,
            metavar="GRES",
        ),
    ] = None
    time: Annotated[
        Text,
        Option(
            "Time limit per task in Slurm's format: 00:30:00.",
            CLUSTER,
            metavar="TIME",
            is_common=True,
        ),
    ] = None
    mem: Annotated[
        Text, Option("Memory per task: 16G.", CLUSTER, metavar="SIZE", is_common=True)
    ] = None
    cpus: Annotated[Number, Option("Cores per task.", CLUSTER, least=1)] = None
    exclusive: Annotated[Switch, Option("Do not share nodes with other jobs.", CLUSTER)] = None
    array_limit: Annotated[
        Number, Option("Maximum number of tasks that run at the same time.", CLUSTER, least=1)
    ] = None
    stop_before: Annotated[
        Number,
        Option(
            "Stop the profiler this many seconds before the time limit, so that it writes its "
            "report. Default: 300 (nsys, ncu, dlprof) or 60, at most a quarter of --time.",
            CLUSTER,
            metavar="SECONDS",
            least=1,
        ),
    ] = None
    module: Annotated[
        Texts,
        Option("Environment module to load (repeatable).", CLUSTER, metavar="NAME", is_common=True),
    ] = None
    module_purge: Annotated[
        Switch,
        Option(
            "Run module purge before the first module. Default: on, if a module is loaded.", CLUSTER
        ),
    ] = None
    """False: load modules on top of what the submitting shell had loaded."""
    before: Annotated[
        Texts,
        Option("Shell line to run before the profiler (repeatable).", CLUSTER, metavar="LINE"),
    ] = None
    after: Annotated[
        Texts,
        Option(
            "Shell line to run after the profiler, even if it fails (repeatable).",
            CLUSTER,
            metavar="LINE",
        ),
    ] = None
    sbatch: Annotated[
        Texts, Option("Additional #SBATCH line (repeatable).", CLUSTER, metavar="LINE")
    ] = None
    image: Annotated[
        Text,
        Option(
            "Apptainer image that contains perfctl and the profiler.",
            CLUSTER,
            metavar="IMAGE",
            is_common=True,
        ),
    ] = None
    bind: Annotated[
        Texts,
        Option(
            "Folder to bind into the image, FOLDER[:TARGET[:ro]] (repeatable).",
            CLUSTER,
            metavar="FOLDER",
        ),
    ] = None
    srun: Annotated[Switch, Option("Start each task with srun.", CLUSTER)] = None
    disable_dcgm: Annotated[
        Switch, Option("Add #SBATCH --disable-dcgm, if the site supports it.", CLUSTER)
    ] = None
    dcgm_pause: Annotated[
        Switch,
        Option("Run dcgmi profile --pause before each task and --resume after it.", CLUSTER),
    ] = None
    perfctl: Annotated[
        Text,
        Option(
            "Command that runs perfctl on the nodes. Default: this perfctl (in an image: python3 "
            "-m perfctl).",
            CLUSTER,
            metavar="WORDS",
        ),
    ] = None
    """Shell words."""
    gather_partition: Annotated[
        Text, Option("Partition of the gather job. Default: --partition.", CLUSTER, metavar="NAME")
    ] = None
    gather_time: Annotated[
        Text, Option("Time limit of the gather job. Default: --time.", CLUSTER, metavar="TIME")
    ] = None
    gather_mem: Annotated[
        Text,
        Option("Memory of the gather job. Default: the partition's.", CLUSTER, metavar="SIZE"),
    ] = None
    gather_cpus: Annotated[
        Number, Option("Cores of the gather job. Default: 1.", CLUSTER, least=1)
    ] = None
    gather_module: Annotated[
        Texts,
        Option(
            "Module of the gather job (repeatable). Default: those of --module, without CUDA's.",
            CLUSTER,
            metavar="NAME",
        ),
    ] = None
    template: Annotated[
        Text, Option("Template of your site for the array script.", CLUSTER, metavar="FILE")
    ] = None
    gather_template: Annotated[
        Text, Option("Template of your site for the gather script.", CLUSTER, metavar="FILE")
    ] = None


def with_defaults(asked: Site, folders: tuple[Path, ...]) -> Site:
    """``asked``, with unset fields from [slurm] in the perfctl.toml of each of ``folders``; earlier
    ones win. Raises UsageError for a file that cannot be read, an unknown key, or a value of the
    wrong type."""
    for folder in folders:
        path = folder / "perfctl.toml"
        if path.is_file():
            table = _read(path)
            asked = replace(
                asked,
                **{name: value for name, value in table.items() if getattr(asked, name) is None},
            )
    return asked


def _read(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", "Correct the file, or move it away") from error
    table = content.get("slurm", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: slurm must be a table", "Begin it with a line [slurm]")
    return dict(_setting(path, key, value) for key, value in table.items())


def _setting(path: Path, key: str, value: Any) -> tuple[str, Any]:
    """(field of Site, its value) for a key of [slurm]."""
    kinds = {one.name: str(one.hint).removesuffix(" | None") for one in options_of(Site)}
    name = key.replace("-", "_")
    if name not in kinds:
        known = ", ".join(known.replace("_", "-") for known in kinds)
        raise UsageError(f"{path}: unknown key '{key}' in [slurm]", f"Known: {known}")
    match kinds[name], value:
        case "tuple[str, ...]", str():
            return name, (value,)
        case "tuple[str, ...]", list() if all(isinstance(one, str) for one in value):
            return name, tuple(value)
        case "bool", bool():
            return name, value
        case "int", int() if value > 0 and value is not True:
            return name, value
        case "str", str():  # a template's path is relative to the file that names it
            return name, str(path.parent / value) if name.endswith("template") else value
    raise UsageError(f"{path}: {key} must be {_WANTED[kinds[name]]}, got {value!r}")
