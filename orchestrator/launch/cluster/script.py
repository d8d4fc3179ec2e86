"""Write the job scripts of an array from templates, which a site can replace.

Printed values are quoted for the shell unless they pass a filter: ``words`` (several words, each quoted), ``comment``
(one line without control characters) or ``asis`` (a line from the user, or an option quoted here).
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.cluster import limits
from perfctl.orchestrator.launch.cluster.plan import Plan, Site
from perfctl.orchestrator.launch.images import run

BUILT_IN = ("pbs", "lsf")
"""Names of built-in templates. A file with such a name is given as ./pbs."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _template(asked: str | None, job: str = "") -> tuple[str | None, str]:
    """(the user's template or None, the name of perfctl's)."""
    return (None, f"{asked}{job}.sh.j2") if asked in BUILT_IN else (asked, f"slurm{job}.sh.j2")


def scheduler_facts(site: Site, device: str) -> dict[str, Any]:
    """Values for the PBS and LSF templates. Raises UsageError for options that only Slurm has."""
    if site.template not in BUILT_IN:
        return {"scheduler": "slurm"}
    for name in ("srun", "disable_dcgm", "qos", "constraint"):
        if getattr(site, name):
            said = f"`{name}` works with Slurm only; `template` is {site.template}"
            raise UsageError(said, "Put the scheduler's own option into `sbatch`")
    gpus = site.gres.rpartition(":")[2] if site.gres else str(int(device == "cuda"))
    gather_time, gather_mem = site.gather_time or site.time, site.gather_mem
    return {
        "scheduler": site.template,
        "site": site,
        "gpus": int(gpus) if gpus.isdecimal() else 1,
        "memory": None if site.mem is None else limits.memory(site.mem),
        "gather_memory": None if gather_mem is None else limits.memory(gather_mem, "gather_mem"),
        "more": [line.removeprefix("#PBS").removeprefix("#BSUB").strip() for line in site.sbatch or ()],
        **_limit("", site.time, "time"),
        **_limit("gather_", gather_time, "gather_time" if site.gather_time else "time"),
    }


def _limit(job: str, time: str | None, field: str) -> dict[str, Any]:
    """A job's time limit in minutes and as HH:MM:SS."""
    minutes = None if time is None else limits.minutes(time, field)
    walltime = None if minutes is None else f"{minutes // 60:02d}:{minutes % 60:02d}:00"
    return {f"{job}minutes": minutes, f"{job}walltime": walltime}


_CORES = "${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}"
"""srun does not take over --cpus-per-task of the job (since Slurm 22.05)."""
_STEP = (
    f'srun --ntasks=1 --nodes=1 --cpus-per-task="{_CORES}" '
    """bash -c 'echo $$ >"$1"; shift; exec "$@"' task "$TMPDIR/.pid\""""
)
"""A job step on the job script's node. The script signals this process to stop, because srun would kill it at once."""


@dataclass(frozen=True, slots=True)
class Words:
    """The command line of one profiler, without the batch size."""

    options: tuple[str, ...]
    program: tuple[str, ...]
    """The words after --; empty for a built-in workload."""


class _AsIs(str):
    """Text that is already shell code."""


def array_script(plan: Plan, site: Site, commands: Mapping[str, Words], facts: Mapping[str, Any]) -> str:
    """The text of array.sbatch. ``facts``: version, cwd, perfctl (words), device, sees (folders to bind into an image).
    Raises UsageError for values that a job script cannot contain, and for a template that fails to render."""
    stop_before = limits.stop_before(site.stop_before, site.time, commands)
    context = {
        **_shared(plan, site, facts),
        "modules": _lines("`module`", site.module),
        "tasks": plan.tasks,
        "commands": commands,
        "directives": _array_directives(plan, site, str(facts["device"]), stop_before),
        "before": _lines("`before`", site.before),
        "after": _lines("`after`", site.after),
        "dcgm_pause": bool(site.dcgm_pause),
        "srun": bool(site.srun),
        "stop_before": stop_before,
        "warning_minutes": -(-stop_before // 60),
        "grace": limits.grace(stop_before),
        "prefix": _prefix(site, plan, facts, facts["sees"], gpu=facts["device"] == "cuda", srun=bool(site.srun)),
    }
    return render_template(*_template(site.template), context)


def gather_script(plan: Plan, site: Site, facts: Mapping[str, Any]) -> str:
    """The text of gather.sbatch. ``facts`` and errors as for ``array_script``, plus store and page."""
    context = {
        **_shared(plan, site, facts),
        "modules": _lines("`module`", _gather_modules(site)),
        "directives": [
            *_job_options("gather-", plan, "gather.log"),
            *_options(
                ntasks=1,
                partition=site.gather_partition or site.partition,
                account=site.account,
                qos=site.qos,
                time=site.gather_time or site.time,
                mem=site.gather_mem,
                cpus_per_task=site.gather_cpus,
            ),
        ],
        "store": facts["store"],
        "page": facts["page"],
        "prefix": _prefix(site, plan, facts, (facts["store"].parent, facts["page"].parent), gpu=False, srun=False),
    }
    asked = site.gather_template or (site.template if site.template in BUILT_IN else None)
    return render_template(*_template(asked, "_gather"), context)


def ingest_script(plan: Plan, site: Site, facts: Mapping[str, Any]) -> str:
    """The text of array.sbatch of an array of ingests. ``facts`` and errors as for ``array_script``, plus options (words)."""
    context = {
        **_shared(plan, site, facts),
        "modules": _lines("`module`", site.module),
        "tasks": plan.tasks,
        "directives": [one for one in _array_directives(plan, site, "cpu", 60) if not one.startswith("--signal")],
        "before": _lines("`before`", site.before),
        "options": facts["options"],
    }
    return render_template(None, "slurm_ingest.sh.j2", context)


_GPU_MODULE = re.compile(r"(?i)(?:.*/)?(?:cuda|cudnn|nccl|nvhpc|nsight|nvidia)")


def _gather_modules(site: Site) -> tuple[str, ...]:
    """Modules of the gather job: those of the tasks without CUDA's, which fail on nodes without GPUs."""
    if site.gather_module is not None:
        return site.gather_module
    return tuple(name for name in site.module or () if not _GPU_MODULE.match(name))


def _shared(plan: Plan, site: Site, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "version": _AsIs(facts["version"]),
        "workload": plan.workload,
        "command": plan.command,
        "folder": one_line("the folder", str(plan.folder)),
        "cwd": one_line("the working folder", str(facts["cwd"])),
        "perfctl": facts["perfctl"],
        "module_purge": site.module_purge is not False,
        "image": bool(site.image),
        "passed": " \\\n            ".join(textwrap.wrap(" | ".join(run.PASSED), 100)),
        "scratch": " ".join(f'"${{{name}:-}}"' for name in run.SCRATCH),
        **scheduler_facts(site, str(facts["device"])),
    }


def _array_directives(plan: Plan, site: Site, device: str, stop_before: int) -> list[str]:
    numbers = f"0-{len(plan.tasks) - 1}" + (f"%{site.array_limit}" if site.array_limit else "")
    has_gpu = any(re.search(r"--gpu|--gres|--tres", line) for line in site.sbatch or ())
    gpus = site.gres or ("gpu:1" if device == "cuda" and not has_gpu else None)
    return [
        *_job_options("", plan, "task-%a.log", array=numbers),
        *_options(
            signal=f"B:USR1@{stop_before}", ntasks=1, partition=site.partition,
            account=site.account, qos=site.qos, constraint=site.constraint, gres=gpus, time=site.time, mem=site.mem,
            cpus_per_task=site.cpus,
        ),
        *(("--exclusive",) if site.exclusive else ()),
        *(("--disable-dcgm",) if site.disable_dcgm else ()),
        *(line.removeprefix("#SBATCH").strip() for line in _lines("`sbatch`", site.sbatch)),
    ]  # fmt: skip


def _job_options(kind: str, plan: Plan, log: str, **array: str) -> list[str]:
    """The output's path is absolute, because jobs may start anywhere; % is doubled, because sbatch expands it."""
    output = str(plan.folder).replace("%", "%%") + f"/{log}"
    named = _options(job_name=f"perfctl-{kind}{plan.folder.name}", **array, output=output)
    return [*named, "--open-mode=append", "--requeue"]


def _options(**values: object) -> list[str]:
    """--name=value for every value that is not None, quoted for sbatch."""
    lines = []
    for name, value in values.items():
        if value is None:
            continue
        text = one_line(f"`{name}`", str(value))
        if "\\" in text:  # sbatch 22.05 drops it, quoted or not
            said = f"`{name}`: sbatch cannot read a backslash, but {text} contains one"
            raise UsageError(said, "Choose another name")
        lines.append(f"--{name.replace('_', '-')}={shlex.quote(text)}")
    return lines


def _prefix(site: Site, plan: Plan, facts: Mapping[str, Any], sees: Iterable[Path], *, gpu: bool, srun: bool) -> _AsIs:
    """The words before perfctl on a node: srun, and the container that perfctl and the profiler run in."""
    step = _STEP if srun else ""
    if site.image is None:
        return _AsIs(step)
    cwd = Path(facts["cwd"])
    folders = run.own_binds((cwd, plan.folder.parent, *(cwd / folder for folder in sees)))
    lines = [
        *([step] if step else []),
        '"$container" exec --cleanenv' + (" --nv" if gpu else ""),
        '"${binds[@]}"',
        *(f"--bind {shlex.quote(bind)}" for bind in dict.fromkeys((*folders, *(site.bind or ())))),
        f"--pwd {shlex.quote(str(cwd))}",
        shlex.quote(site.image),
    ]
    return _AsIs("".join(f"\n    {line}" for line in lines) + "\n")


def one_line(what: str, text: str, remedy: str = "Choose another name") -> str:
    """``text``. Raises UsageError when it has a line break or another control character."""
    if _CONTROL.search(text):
        raise UsageError(f"{what} contains a line break or control character: {text!r}", remedy)
    return text


def _lines(field: str, lines: Iterable[str] | None) -> list[str]:
    return [one_line(field, line) for line in lines or ()]


def render_template(own: str | None, name: str, context: Mapping[str, Any]) -> str:
    """The rendered template ``own``, or perfctl's template ``name``. Raises UsageError when it cannot be rendered."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError

    environment = Environment(  # noqa: S701  shell, not HTML: see the docstring above  # nosec B701
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, _AsIs) else shlex.quote(str(value)),
        loader=FunctionLoader(_source),
    )  # fmt: skip
    environment.filters |= {
        "words": lambda values: _AsIs(shlex.join(map(str, values))),
        "comment": lambda text: _AsIs(_CONTROL.sub(" ", str(text))),
        "asis": _AsIs,
    }
    try:
        source = Path(own).read_text(encoding="utf-8") if own else _source(name)
        return environment.from_string(source).render(context)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{own}: cannot be read ({error})", "Use another `template`") from error
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f"{own or name}{f', line {line}' if line else ''}"
        raise UsageError(f"{place}: {error}", f"Compare perfctl's own template, templates/{name}") from error


def _source(name: str) -> str:
    return resources.files("perfctl.templates").joinpath(name).read_text(encoding="utf-8")
