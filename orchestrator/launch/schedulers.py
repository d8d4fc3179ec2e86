"""Built-in job templates for PBS and LSF, and the values that only they need."""

from __future__ import annotations

import re
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.slurm_site import Site

BUILT_IN = ("pbs", "lsf")
"""Names of built-in templates. A file with such a name is given as ./pbs."""

_ONLY_SLURM = ("srun", "disable_dcgm", "qos", "constraint")


def template(asked: str | None) -> tuple[str | None, str]:
    """(the user's template or None, the name of perfctl's) for the array."""
    return (None, f"{asked}.sh.j2") if asked in BUILT_IN else (asked, "slurm.sh.j2")


def gather_template(array: str | None, asked: str | None) -> tuple[str | None, str]:
    """The same for the gather job, which uses the array's scheduler by default."""
    name = asked or (array if array in BUILT_IN else None)
    return (None, f"{name}_gather.sh.j2") if name in BUILT_IN else (asked, "slurm_gather.sh.j2")


def facts(site: Site, device: str) -> dict[str, Any]:
    """Values for the PBS and LSF templates. Raises UsageError for options that only Slurm has."""
    if site.template not in BUILT_IN:
        return {}
    for name in _ONLY_SLURM:
        if getattr(site, name):
            raise UsageError(
                f"`{name}` works with Slurm only; `template` is {site.template}",
                "Put the scheduler's own option into `sbatch`",
            )
    minutes = None if site.time is None else _minutes(site.time)
    return {
        "site": site,
        "gpus": _gpus(site, device),
        "minutes": minutes,
        "walltime": None if minutes is None else f"{minutes // 60:02d}:{minutes % 60:02d}:00",
        "memory": None if site.mem is None else _memory(site.mem),
        "more": [line.removeprefix("#PBS").removeprefix("#BSUB").strip() for line in site.sbatch or ()],
    }


def _gpus(site: Site, device: str) -> int:
    """GPUs of a task: the number at the end of ``gres``, or 1."""
    if site.gres:
        last = site.gres.rpartition(":")[2]
        return int(last) if last.isdecimal() else 1
    return 1 if device == "cuda" else 0


def _minutes(text: str) -> int:
    """Slurm's time limits (MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS) in minutes, seconds rounded up."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        raise UsageError(f"`time`: '{text}' is not a time limit", "For example 00:30:00")
    days, *rest = (int(part) if part else None for part in found.groups())
    first, second, third = rest
    if days is not None or third is not None:
        hours, minutes, seconds = first or 0, second or 0, third or 0
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    return (days or 0) * 1440 + hours * 60 + minutes + (seconds > 0)


def _memory(text: str) -> int:
    """Slurm's memory size (MiB, or with K, M, G, T) in MiB."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if found is None:
        raise UsageError(f"`mem`: '{text}' is not a memory size", "For example 16G")
    kib: int = int(found[1]) * 1024 ** "KMGT".index(found[2] or "M")
    return -(-kib // 1024)
