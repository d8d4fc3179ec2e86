"""Write the job scripts of an array from templates, which a site can replace.

Printed values are quoted for the shell unless they pass a filter: ``words`` (several words, each
quoted), ``comment`` (one line without control characters) or ``asis`` (a line from the user, or an
option quoted here).

Time limits are read as Slurm writes them; a profiler is told to stop some time before the limit.
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.cluster.plan import JobArrayPlan, SlurmSiteSettings, TaskSweepRuns
from perfctl.orchestrator.launch.images import run
from perfctl.version import __version__

SLOW_WRITERS = ("nsys", "ncu", "dlprof")
"""Profilers that need minutes to write a large report."""
STOP_BEFORE_S = 300
"""Seconds before the time limit at which one of SLOW_WRITERS is told to stop."""
STOP_BEFORE_QUICK_S = 60
"""Seconds before the time limit at which any other profiler is told to stop. Slurm checks about
twice a minute: its signal comes up to a minute early, never late."""
_SHORTEST_S = 10
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_GPU_MODULE = re.compile(r"(?i)(?:.*/)?(?:cuda|cudnn|nccl|nvhpc|nsight|nvidia)")

_LINE = 112
"""Characters of a line of a script before a command goes on in the next."""

_WHY = {
    "partition": "queue of the nodes with GPUs",
    "account": "account to charge",
    "gres": "one GPU per task; a GPU model: --gres=gpu:a100:1",
    "time": "time limit of one task",
    "mem": "memory of one task",
    "cpus_per_task": "cores of one task",
    "array": "the tasks; two at the same time: --array={array}%2",
    "output": "the log of each task",
    "open_mode": "a repeated task appends to its log",
    "requeue": "after a node failure, start again; complete runs are skipped",
    "signal": "{seconds} s before the time limit, the profiler writes its report",
}
"""Option of sbatch -> comment beside it."""
_EXAMPLES = {
    "partition": "gpu",
    "account": "project",
    "time": "01:00:00",
    "mem": "16G",
    "cpus_per_task": "8",
}
"""Options that most sites want -> a value for the line that is off."""


def parse_slurm_time_minutes(text: str) -> int:
    """Return one of Slurm's time limits (MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS) in
    minutes, seconds rounded up. Raises UsageError."""
    limit = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if limit is None:
        raise UsageError(f"invalid value '{text}' for `time`", "Use a time limit such as 00:30:00")
    days, hours, mins, seconds = (int(part or 0) for part in limit.groups())
    if limit[1] is None and limit[4] is None:
        hours, mins, seconds = 0, hours, mins
    return days * 1440 + hours * 60 + mins + (seconds > 0)


def choose_stop_before_seconds(
    stop_before: int | None, time: str | None, profilers: Iterable[str]
) -> int:
    """Return the seconds before the time limit ``time`` at which the profiler is asked to stop; by
    default what the slowest of ``profilers`` needs to write, and at most a quarter of the limit.

    Raises UsageError if ``stop_before`` is not shorter than the limit: the scheduler would stop
    each task at its start.
    """
    limit = (
        None if time is None or not re.match(r"\d", time) else parse_slurm_time_minutes(time) * 60
    )
    if stop_before is None:
        usual = STOP_BEFORE_S if set(profilers) & set(SLOW_WRITERS) else STOP_BEFORE_QUICK_S
        return usual if limit is None else max(min(usual, limit // 4), _SHORTEST_S)
    if limit is not None and stop_before >= limit:
        problem = f"`stop_before`: {stop_before} s is not shorter than the time limit of {limit} s"
        raise UsageError(problem, "Use a longer `time`, or a smaller `stop_before`")
    return stop_before


def compute_report_grace_seconds(stop_before_s: int) -> int:
    """Return the seconds of these for the profiler to write its report; the rest, at least 10 s, is
    for exporting it."""
    return max(stop_before_s - max(stop_before_s // 4, 10), 3)


class _ShellCode(str):
    """Text that is already shell code."""


@dataclass(frozen=True, slots=True)
class JobScriptContext:
    """What job scripts must know beside their plan and the site."""

    device: str = "cpu"
    """cuda or cpu, which the nodes have."""
    folders: tuple[Path, ...] = ()
    """Folders that tasks in an image must see."""
    outputs: tuple[Path, Path] | None = None
    """Store and page that the gather job of sweeps and ingests writes; None for other arrays."""
    version: str = __version__
    cwd: Path = field(default_factory=Path.cwd)
    python: str = sys.executable
    """Interpreter that runs perfctl outside of images."""


def render_array_script(
    plan: JobArrayPlan, site: SlurmSiteSettings, setting: JobScriptContext
) -> str:
    """Return the text of array.sbatch. Raises UsageError for values that a job script cannot
    contain, and for a template that fails to render."""
    tools = [task.arguments[0] for task in plan.tasks]
    stop_before = choose_stop_before_seconds(site.stop_before, site.time, tools)
    site_lines, unset = _build_set_and_unset_site_directives(site, setting.device)
    job_lines = _build_array_directives(plan, site, stop_before)
    start = _build_container_launch_prefix(
        site, plan, setting.cwd, setting.folders, setting.device == "cuda", '"$TMPDIR"'
    )
    context = {
        **_build_common_template_context(plan, site, setting),
        **_build_task_template_variables(plan, compute_report_grace_seconds(stop_before)),
        "modules": _require_single_lines("`module`", site.module),
        "tasks": plan.tasks,
        "site_directives": site_lines,
        "unset": unset,
        "job_directives": job_lines,
        "directives": [*job_lines, *site_lines],
        "before": _require_single_lines("`before`", site.before),
        "after": _require_single_lines("`after`", site.after),
        "dcgm_pause": bool(site.dcgm_pause),
        "stop_before": stop_before,
        "start": _ShellCode(f"{'srun_step ' if site.srun else ''}{start}"),
    }
    return render_template(site.template, "slurm.sh.j2", context)


def render_gather_script(
    plan: JobArrayPlan, site: SlurmSiteSettings, setting: JobScriptContext
) -> str:
    """Return the text of gather.sbatch. Raises UsageError like ``render_array_script``."""
    gather, folders = _quote_and_wrap(("slurm", "gather", str(plan.folder))), setting.folders
    if setting.outputs is not None:
        store, page = setting.outputs
        options = _quote_and_wrap(("--store", str(store), "--page", str(page)))
        gather = _ShellCode(f"{gather} \\\n    {options}")
        folders = (store.parent, page.parent)
    modules = site.gather_module
    if modules is None:  # CUDA's fail on nodes without GPUs
        modules = tuple(name for name in site.module or () if not _GPU_MODULE.match(name))
    context = {
        **_build_common_template_context(plan, site, setting),
        "modules": _require_single_lines("`module`", modules),
        "before": _require_single_lines("`before`", site.before),
        "directives": [
            *_build_job_directives("gather-", plan, "gather.log"),
            *_format_sbatch_options(
                ntasks=1,
                partition=site.gather_partition or site.partition,
                account=site.account,
                qos=site.qos,
                time=site.gather_time or site.time,
                mem=site.gather_mem,
                cpus_per_task=site.gather_cpus,
            ),
        ],
        "gather": gather,
        "finish": _quote_and_wrap(plan.finish),
        "start": _build_container_launch_prefix(
            site, plan, setting.cwd, folders, False, '"${TMPDIR:-/tmp}"'
        ),
    }
    return render_template(site.gather_template, "slurm_gather.sh.j2", context)


def render_shell_functions(
    plan: JobArrayPlan, site: SlurmSiteSettings, setting: JobScriptContext
) -> str:
    """Return the text of job.sh, the shell functions of both scripts."""
    return render_template(
        None, "job_functions.sh.j2", _build_common_template_context(plan, site, setting)
    )


def render_ingest_array_script(
    plan: JobArrayPlan, site: SlurmSiteSettings, setting: JobScriptContext, options: Sequence[str]
) -> str:
    """Return the text of array.sbatch of an array of ingests. ``options``: words of each. Raises
    UsageError like ``render_array_script``."""
    job_lines = _build_array_directives(plan, site, 60)
    context = {
        **_build_common_template_context(plan, site, setting),
        "modules": _require_single_lines("`module`", site.module),
        "tasks": plan.tasks,
        "directives": [
            *(line for line in job_lines if not line.startswith("--signal")),
            *_build_set_and_unset_site_directives(site, "cpu")[0],
        ],
        "before": _require_single_lines("`before`", site.before),
        "options": options,
    }
    return render_template(None, "slurm_ingest.sh.j2", context)


def _build_common_template_context(
    plan: JobArrayPlan, site: SlurmSiteSettings, setting: JobScriptContext
) -> dict[str, Any]:
    folder, cwd = plan.folder, setting.cwd
    # Of an image python3, as for everything else there: perfctl itself need not be on its PATH.
    python = setting.python if site.image is None else run.PYTHON
    return {
        "version": _ShellCode(setting.version),
        "workload": plan.workload,
        "command": plan.command,
        "title": _describe_array(plan, site),
        "gathers": _describe_gather_job(plan, setting),
        "folder": require_one_line("the folder", str(folder)),
        "shown": shlex.quote(
            str(folder.relative_to(cwd) if folder.is_relative_to(cwd) else folder)
        ),
        "functions": str(plan.functions_script),
        "cwd": require_one_line("the working folder", str(cwd)),
        "perfctl": shlex.split(site.perfctl) if site.perfctl else [python, "-m", "perfctl"],
        "module_purge": site.module_purge is not False,
        "srun": bool(site.srun),
        "image": site.image,
        "passed": " \\\n            ".join(textwrap.wrap(" | ".join(run.PASSED), 100)),
        "scratch": " ".join(f'"${{{name}:-}}"' for name in run.SCRATCH),
    }


def _describe_array(plan: JobArrayPlan, site: SlurmSiteSettings) -> str:
    """Return what the array runs, in one line."""
    count, runs = len(plan.tasks), [task.runs for task in plan.tasks if task.runs]
    inside = f", in {Path(site.image).name}" if site.image else ""
    if len(runs) < count:
        return f"{plan.workload} in {count} {'part' if count == 1 else 'parts'}{inside}"
    profilers = " and ".join(dict.fromkeys(run.profiler for run in runs))
    settings = list(dict.fromkeys(run.setting for run in runs))
    names = ", ".join(map(str, settings))
    if not any(setting.others for setting in settings):
        names = f"batch {', '.join(str(setting.batch) for setting in settings)}"
    return f"{profilers} on {plan.workload} at {names}{inside}"


def _describe_gather_job(plan: JobArrayPlan, setting: JobScriptContext) -> str:
    """Return what the gather job does, in one line."""
    if setting.outputs is None:
        ends = f", and ends with perfctl {shlex.join(plan.finish)}" if plan.finish else ""
        return f"gather.sbatch names what is missing{ends}"
    store, page = setting.outputs
    return f"gather.sbatch brings all runs into {store} and {page}; so does perfctl slurm gather"


def _quote_and_wrap(arguments: Iterable[str], indent: int = 4) -> _ShellCode:
    """Return words of a command, quoted, over as many lines as they need."""
    lines = [""]
    for argument in map(shlex.quote, arguments):
        if lines[-1] and len(lines[-1]) + len(argument) > _LINE - indent:
            lines.append("")
        lines[-1] += f" {argument}" if lines[-1] else argument
    return _ShellCode(f" \\\n{' ' * indent}".join(lines))


def _build_task_template_variables(plan: JobArrayPlan, grace_s: int) -> dict[str, Any]:
    """Return what the tasks run, for the template: ``choices``, the line of ``case`` for each;
    ``call``, the words after perfctl, where tasks of one profiler differ in nothing but $batch, or
    "${values[@]}" of other parameters; else these are "${arguments[@]}", set by ``choices`` or (of
    ``several`` profilers) by a second ``case``."""
    runs = [task.runs for task in plan.tasks if task.runs]
    if len(runs) < len(plan.tasks):
        choices = [
            f"{task.number})  # {_CONTROL.sub(' ', task.label)}\n        "
            f"arguments=({_quote_and_wrap(task.arguments, 8)}) ;;"
            for task in plan.tasks
        ]
        return {"choices": choices, "sweeps": False, "several": {}, "call": '"${arguments[@]}"'}
    pairs = list(zip(runs, plan.tasks, strict=True))
    has_others = any(run.setting.others for run in runs)
    calls = {
        run.profiler: _build_sweep_call_lines(run, task.arguments, grace_s, has_others)
        for run, task in pairs
    }
    is_one = len(calls) == 1
    choices = [
        f"{task.number}) {'' if is_one else f'profiler={shlex.quote(run.profiler)} '}"
        + (
            f"values=({_quote_and_wrap(run.setting.command_line_options)})"
            if has_others
            else f"batch={run.setting.batch}"
        )
        + " ;;"
        for run, task in pairs
    ]
    several = {} if is_one else calls
    return {
        "choices": choices,
        "sweeps": True,
        "several": {name: " \\\n            ".join(lines) for name, lines in several.items()},
        "call": " \\\n    ".join(*calls.values()) if is_one else '"${arguments[@]}"',
    }


def _build_sweep_call_lines(
    runs: TaskSweepRuns, arguments: Sequence[str], grace_s: int, has_other_parameters: bool
) -> list[str]:
    """Return the lines of a task's call, with a variable for its setting, and what only its job
    script knows."""
    index = arguments.index("--no-store")
    program = arguments[index + 1 :]
    values = '"${values[@]}"' if has_other_parameters else '--batches "$batch"'
    return [
        _quote_and_wrap(arguments[: index - len(runs.setting.command_line_options)]),
        f'{values} --no-store --scratch "$TMPDIR" --grace {grace_s}',
        *([_quote_and_wrap(program)] if program else []),
    ]


def _append_explanatory_comments(
    lines: Iterable[str], width: int = 34, **values: object
) -> list[str]:
    """Return lines of options, each with its comment in _WHY. (sbatch reads no further
    than #.)"""
    explained = []
    for line in lines:
        comment = _WHY.get(line.partition("=")[0].removeprefix("--").replace("-", "_"))
        if line.startswith("--gres=") and line != "--gres=gpu:1":
            comment = "GPUs of one task"
        explained.append(f"{line:<{width}}  # {comment.format_map(values)}" if comment else line)
    return explained


def _build_set_and_unset_site_directives(
    site: SlurmSiteSettings, device: str
) -> tuple[list[str], list[str]]:
    """Return (Slurm's options that depend on the site, those that are unset with an example)."""
    has_gpu = any(re.search(r"--gpu|--gres|--tres", line) for line in site.sbatch or ())
    set_lines = _format_sbatch_options(
        partition=site.partition,
        account=site.account,
        qos=site.qos,
        constraint=site.constraint,
        gres=site.gres or ("gpu:1" if device == "cuda" and not has_gpu else None),
        time=site.time,
        mem=site.mem,
        cpus_per_task=site.cpus,
    )
    user_lines = [
        line.removeprefix("#SBATCH").strip()
        for line in _require_single_lines("`sbatch`", site.sbatch)
    ]
    names = {line.partition("=")[0] for line in (*set_lines, *user_lines)}
    unset = [
        line for line in _format_sbatch_options(**_EXAMPLES) if line.partition("=")[0] not in names
    ]
    flags = [
        *(("--exclusive",) if site.exclusive else ()),
        *(("--disable-dcgm",) if site.disable_dcgm else ()),
    ]
    return [
        *_append_explanatory_comments(set_lines),
        *flags,
        *user_lines,
    ], _append_explanatory_comments(unset, 33)


def _build_array_directives(
    plan: JobArrayPlan, site: SlurmSiteSettings, stop_before: int
) -> list[str]:
    numbers = f"0-{len(plan.tasks) - 1}"
    limited = numbers + (f"%{site.array_limit}" if site.array_limit else "")
    lines = [
        *_build_job_directives("", plan, "task-%a.log", array=limited),
        *_format_sbatch_options(signal=f"B:USR1@{stop_before}", ntasks=1),
    ]
    return _append_explanatory_comments(lines, array=numbers, seconds=stop_before)


def _build_job_directives(kind: str, plan: JobArrayPlan, log: str, **array: str) -> list[str]:
    """Return the options of a job. The output's path is absolute, because jobs may start anywhere;
    % is doubled, because sbatch expands it."""
    output = str(plan.folder).replace("%", "%%") + f"/{log}"
    options = _format_sbatch_options(
        job_name=f"perfctl-{kind}{plan.folder.name}", **array, output=output
    )
    return [*options, "--open-mode=append", "--requeue"]


def _format_sbatch_options(**values: object) -> list[str]:
    """Return --name=value for every value that is not None, quoted for sbatch."""
    lines = []
    for name, value in values.items():
        if value is None:
            continue
        text = require_one_line(f"`{name}`", str(value))
        if "\\" in text:  # sbatch 22.05 drops it, quoted or not
            problem = f"`{name}`: sbatch cannot read a backslash, but {text} contains one"
            raise UsageError(problem, "Choose another name")
        lines.append(f"--{name.replace('_', '-')}={shlex.quote(text)}")
    return lines


def _build_container_launch_prefix(
    site: SlurmSiteSettings,
    plan: JobArrayPlan,
    cwd: Path,
    folders: Iterable[Path],
    has_gpu: bool,
    tmpdir: str,
) -> _ShellCode:
    """Return the words before perfctl on a node: the container that perfctl and the profiler run
    in."""
    if site.image is None:
        return _ShellCode("")
    image_binds = run.build_bind_values(
        (cwd, plan.folder.parent, *(cwd / folder for folder in folders))
    )
    lines = [
        f'"$container" exec{" --nv" if has_gpu else ""} --cleanenv',
        *(
            f"--bind {shlex.quote(bind)}"
            for bind in dict.fromkeys((*image_binds, *(site.bind or ())))
        ),
        f"--bind {tmpdir} --pwd {shlex.quote(str(cwd))}",
        '"$image"',
        "",
    ]
    return _ShellCode(" \\\n    ".join(lines))


def require_one_line(name: str, text: str, remedy: str = "Choose another name") -> str:
    """Return ``text``. Raises UsageError if it has a line break or another control character."""
    if _CONTROL.search(text):
        raise UsageError(f"{name} contains a line break or control character: {text!r}", remedy)
    return text


def _require_single_lines(field: str, lines: Iterable[str] | None) -> list[str]:
    return [require_one_line(field, line) for line in lines or ()]


def render_template(path: str | None, name: str, context: Mapping[str, Any]) -> str:
    """Return the rendered template ``path``, or perfctl's template ``name``. Raises UsageError if
    it cannot be rendered."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError

    environment = Environment(  # noqa: S701  shell, not HTML: see the docstring above  # nosec B701
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, _ShellCode) else shlex.quote(str(value)),
        loader=FunctionLoader(_read_own_template),
    )
    environment.filters |= {
        "words": lambda values: _ShellCode(shlex.join(map(str, values))),
        "comment": lambda text: _ShellCode(_CONTROL.sub(" ", str(text))),
        "asis": _ShellCode,
    }
    try:
        source = Path(path).read_text(encoding="utf-8") if path else _read_own_template(name)
        return environment.from_string(source).render(context)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})", "Use another `template`") from error
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        location = f"{path or name}{f', line {line}' if line else ''}"
        raise UsageError(
            f"{location}: {error}", f"Compare perfctl's own template, templates/{name}"
        ) from error


def _read_own_template(name: str) -> str:
    return resources.files("perfctl.templates").joinpath(name).read_text(encoding="utf-8")
