"""The plan of an array of jobs: what each task runs, what the gather job runs after them, and where
their files are.

The folder slurm-NAME of a sweep's array lies beside the folders of the sweeps that the tasks fill,
as on one machine.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.folders import RunPaths, attempts, read_json, write_json

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
            "Use the perfctl that rendered it",
        )
    try:
        return msgspec.convert({**record, "folder": folder}, Plan)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{folder / _RECORD} is damaged ({error})", "Render it again with `force`"
        ) from error


@dataclass(frozen=True, slots=True)
class Site:
    """Settings of the job scripts; None for unset."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    time: str | None = None
    mem: str | None = None
    cpus: int | None = None
    exclusive: bool | None = None
    array_limit: int | None = None
    """Tasks that may run at the same time."""
    stop_before: int | None = None
    """Seconds before the time limit at which the profiler is asked to stop."""
    module: tuple[str, ...] | None = None
    module_purge: bool | None = None
    """False: load modules on top of what the submitting shell had loaded."""
    before: tuple[str, ...] | None = None
    after: tuple[str, ...] | None = None
    sbatch: tuple[str, ...] | None = None
    """More #SBATCH lines, used unchanged."""
    image: str | None = None
    """Apptainer image with perfctl; the profiler runs inside it."""
    bind: tuple[str, ...] | None = None
    srun: bool | None = None
    disable_dcgm: bool | None = None
    dcgm_pause: bool | None = None
    perfctl: str | None = None
    """The command that starts perfctl on a node, as shell words."""
    gather_partition: str | None = None
    gather_time: str | None = None
    gather_mem: str | None = None
    gather_cpus: int | None = None
    gather_module: tuple[str, ...] | None = None
    """None: those of the tasks, without CUDA's."""
    template: str | None = None
    gather_template: str | None = None


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
        raise UsageError(f"{path}: {error}", "Correct it, or move it away") from error
    table = content.get("slurm", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: slurm must be a table", "Begin it with a line [slurm]")
    return dict(_setting(path, key, value) for key, value in table.items())


def _setting(path: Path, key: str, value: Any) -> tuple[str, Any]:
    """(field of Site, its value) for a key of [slurm]."""
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(Site)}
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
