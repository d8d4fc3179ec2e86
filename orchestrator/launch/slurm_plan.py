"""What an array of Slurm tasks runs, and where each of its files lies.

::

    perfctl-runs/
        slurm-mnist_cnn-1a2b3c4d/
            array.sbatch gather.sbatch      the two jobs, to read, edit, keep and submit
            tasks.json                      which task runs what
            task-0.log                      what task 0 said, of all its attempts
            task-0.state                    one line when it starts, is told to stop, and ends
        nsys-mnist_cnn-5e6f7a8b/            the sweeps that it fills, as on one machine
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.run_folder import read_json, write_json

_VERSION = 1
_RECORD = "tasks.json"


@dataclass(frozen=True, slots=True)
class Task:
    """One profiler at one batch size."""

    number: int
    """SLURM_ARRAY_TASK_ID."""
    profiler: str
    batch_size: int
    sweep: str
    """Name of the sweep's folder, beside the plan's."""
    repeat: int = 1
    """Whole runs wanted."""

    def __str__(self) -> str:
        return f"task {self.number} ({self.profiler}, batch {self.batch_size})"


@dataclass(frozen=True, slots=True)
class Plan:
    """All tasks of one array."""

    folder: Path
    workload: str
    tasks: tuple[Task, ...]
    command: str
    """What the user typed, ready to paste."""
    host: str

    @property
    def array(self) -> Path:
        return self.folder / "array.sbatch"

    @property
    def gather(self) -> Path:
        return self.folder / "gather.sbatch"

    def log(self, task: Task) -> Path:
        return self.folder / f"task-{task.number}.log"

    def state(self, task: Task) -> Path:
        return self.folder / f"task-{task.number}.state"

    def sweep_folder(self, name: str) -> Path:
        return self.folder.parent / name

    def sweeps(self) -> tuple[str, ...]:
        """Names of the sweeps it fills, each once."""
        return tuple(dict.fromkeys(task.sweep for task in self.tasks))

    def runs(self, task: Task) -> list[Path]:
        """Folders of the task's runs, oldest first; the last may be one that is under way or was cut off (.part)."""
        folder = self.sweep_folder(task.sweep)
        first = folder / f"b{task.batch_size}"
        found, attempt = [], 1
        while (path := first if attempt == 1 else first.with_name(f"{first.name}.{attempt}")).is_dir():
            found.append(path)
            attempt += 1
        part = first.with_name(f"{first.name}.part")
        return [*found, part] if part.is_dir() else found

    def write(self) -> None:
        write_json(self.folder / _RECORD, self.record())

    def record(self) -> dict[str, Any]:
        """What tasks.json says; no path in it, so that the folder can be copied elsewhere."""
        return {
            "perfctl_slurm": _VERSION,
            "workload": self.workload,
            "command": self.command,
            "host": self.host,
            "tasks": [asdict(task) for task in self.tasks],
        }


def is_plan(folder: Path) -> bool:
    """Does the folder hold an array's files?"""
    return (folder / _RECORD).is_file()


def read_plan(folder: Path) -> Plan:
    """Raises UsageError when ``folder`` holds no plan, or one of a newer perfctl."""
    record = read_json(folder / _RECORD)
    if record is None:
        raise UsageError(f"{folder} has no {_RECORD}", "Name the folder that perfctl slurm render wrote")
    if record.get("perfctl_slurm") != _VERSION:
        raise UsageError(f"{folder / _RECORD} is of another version of perfctl", "Use the perfctl that rendered it")
    try:
        tasks = tuple(Task(**task) for task in record["tasks"])
        return Plan(folder, record["workload"], tasks, record["command"], record["host"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder / _RECORD} is damaged ({error})", "Render it again with --force") from error
