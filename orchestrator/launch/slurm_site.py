"""Job settings of a site and its users: from the call, then ./perfctl.toml, then the one in the home folder."""

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
    template: str | None = None
    gather_template: str | None = None


def with_defaults(asked: Site, folders: tuple[Path, ...]) -> Site:
    """``asked``, with unset fields from [slurm] in the perfctl.toml of each of ``folders``; earlier ones win.

    Raises UsageError for a file that cannot be read, an unknown key, or a value of the wrong type.
    """
    for folder in folders:
        path = folder / CONFIG
        if path.is_file():
            table = _read(path)
            asked = replace(asked, **{name: value for name, value in table.items() if getattr(asked, name) is None})
    return asked


def _read(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", "Correct it, or move it away") from error
    table = content.get("slurm", {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: slurm must be a table", "Begin it with a line [slurm]")
    return {_known(path, key): _checked(path, key, value) for key, value in table.items()}


def _known(path: Path, key: str) -> str:
    names = [field.name for field in fields(Site)]
    name = key.replace("-", "_")
    if name not in names:
        known = ", ".join(known.replace("_", "-") for known in names)
        raise UsageError(f"{path}: unknown key '{key}' in [slurm]", f"Known: {known}")
    return name


def _checked(path: Path, key: str, value: Any) -> Any:
    name = key.replace("-", "_")
    if name in _LISTS:
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list) and all(isinstance(one, str) for one in values):
            return tuple(values)
        wanted = 'a list of strings, such as ["one", "two"]'
    elif name in _FLAGS:
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    elif name in (*_NUMBERS, "cpus"):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        wanted = "a whole number above 0"
    else:
        if isinstance(value, str):  # a template's path is relative to the file that names it
            return str(path.parent / value) if name.endswith("template") else value
        wanted = 'a string, such as "gpu"'
    raise UsageError(f"{path}: {key} must be {wanted}, got {value!r}")
