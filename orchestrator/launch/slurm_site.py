"""What a site and its users want in every job: from the command line, then perfctl.toml here, then that of the home."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError

CONFIG = "perfctl.toml"
_LISTS = ("module", "before", "after", "sbatch", "bind")
_FLAGS = ("exclusive", "srun", "disable_dcgm", "dcgm_pause")
_NUMBERS = ("array_limit", "stop_before")


@dataclass(frozen=True, slots=True)
class Site:
    """Slots of the job scripts. None where nothing was said."""

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
    """Seconds before the time limit at which the profiler is told to stop."""
    module: tuple[str, ...] | None = None
    before: tuple[str, ...] | None = None
    after: tuple[str, ...] | None = None
    sbatch: tuple[str, ...] | None = None
    """Further #SBATCH lines, as they are."""
    image: str | None = None
    """Apptainer image that holds perfctl; the profiler runs inside it."""
    bind: tuple[str, ...] | None = None
    srun: bool | None = None
    disable_dcgm: bool | None = None
    dcgm_pause: bool | None = None
    perfctl: str | None = None
    """How perfctl is called on a node, in shell words."""
    gather_partition: str | None = None
    template: str | None = None
    gather_template: str | None = None


def with_defaults(asked: Site, folders: tuple[Path, ...]) -> Site:
    """``asked`` completed by [slurm] of the perfctl.toml in each of ``folders``, the first that says something counts.

    Raises UsageError for a file that cannot be read, a word it does not know, and a value of another kind.
    """
    for folder in folders:
        path = folder / CONFIG
        if path.is_file():
            said = _read(path)
            asked = replace(asked, **{name: value for name, value in said.items() if getattr(asked, name) is None})
    return asked


def _read(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", "Correct it, or move it away") from error
    table = content.get("slurm", {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: slurm is no table", "Begin it with a line [slurm]")
    return {_known(path, key): _checked(path, key, value) for key, value in table.items()}


def _known(path: Path, key: str) -> str:
    names = [field.name for field in fields(Site)]
    name = key.replace("-", "_")
    if name not in names:
        known = ", ".join(known.replace("_", "-") for known in names)
        raise UsageError(f"{path}: [slurm] has no '{key}'", f"Known: {known}")
    return name


def _checked(path: Path, key: str, value: Any) -> Any:
    name = key.replace("-", "_")
    if name in _LISTS:
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list) and all(isinstance(one, str) for one in values):
            return tuple(values)
        wanted = 'a list of texts, as in ["one", "two"]'
    elif name in _FLAGS:
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    elif name in (*_NUMBERS, "cpus"):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        wanted = "a number above 0"
    else:
        if isinstance(value, str):  # a template lies beside the file that names it
            return str(path.parent / value) if name.endswith("template") else value
        wanted = 'a text, as in "gpu"'
    raise UsageError(f"{path}: {key} = {value!r} is not understood", f"It must be {wanted}")
