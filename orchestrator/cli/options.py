"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.actions.sweep.options import LocalPlacement, SweepOptions
from perfctl.orchestrator.commands.declare import read_batches

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.cluster.plan import Site

Batches = Annotated[
    str, typer.Option("--batches", "-b", help="Batch sizes, one process each: 16,32,64.")
]
Workload = Annotated[
    str | None,
    typer.Option(
        "--workload",
        "-w",
        help="Built-in workload, where no program follows --. Default: mnist_cnn.",
    ),
]
BatchEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Environment variable that tells the program after -- its batch size."
    ),
]
StepMarker = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help=(
            "What ends a step of the program after --: optimizer, forward, backward, "
            "optimizer:CLASS, forward:MODULECLASS. Default: detected."
        ),
    ),
]
Mode = Annotated[str | None, typer.Option(help="train or infer.")]
Steps = Annotated[
    int | None,
    typer.Option(help="Measured steps. Default: 10; under ncu 1, because counts repeat."),
]
Warmup = Annotated[int | None, typer.Option(help="Steps before the measured ones. Default: 3.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU.")]
Precision = Annotated[str | None, typer.Option(help="fp32 (TF32 off), tf32, bf16 or fp16.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder that holds all sweeps.")]
Timeout = Annotated[
    float | None, typer.Option(min=1, help="Seconds after which a batch size is ended.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Run batch sizes again that are complete already.")
]
Repeat = Annotated[
    int,
    typer.Option(
        min=1,
        max=1000,
        help="Runs of each batch size, one process each; compare uses their spread.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the commands, ready to paste, and start nothing.")
]
Grace = Annotated[
    float | None,
    typer.Option(
        min=0,
        help=(
            "Seconds that a profiler gets to write its report when it is stopped. Default: 3; nsys "
            "and ncu 15 and more, by how much they have recorded, and as long as they write."
        ),
    ),
]
Stall = Annotated[
    float | None,
    typer.Option(
        min=0,
        help=(
            "Stop a run whose output and files have not changed for so many seconds; 0: never. "
            "Default: 600 under ncu, from its first launch on; otherwise never."
        ),
    ),
]
ToolArgs = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="More options for the profiler, in quotation marks, split as a shell does.",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help=(
            "Memory that the reading of a report may take: 4G; 0 is no limit. Default: "
            "PERFCTL_MEMORY_LIMIT, else 2G, or a quarter of the machine's."
        ),
    ),
]
NoStore = Annotated[
    bool,
    typer.Option(
        "--no-store",
        help=(
            "Do not write the store (for parallel tasks of one sweep); perfctl slurm gather takes "
            "the folders in. A run that is stopped keeps its partial report."
        ),
    ),
]
Sample = Annotated[
    str,
    typer.Option(
        metavar="TIME|off",
        help="Time between two readings of the device and of the run's processes, as in 50ms.",
    ),
]
SweepName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Name of the sweep's folder. Default: made from the request."
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(help="Folder below which runs get their TMPDIR. Default: the run's own folder."),
]
Store = Annotated[
    Path | None, typer.Option(help="The store. Default: perfctl.db here; for sweeps, beside --out.")
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        help="md (Markdown) or tex (LaTeX, booktabs) instead of text, with whole tables.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Peaks = Annotated[
    str,
    typer.Option(
        "--peaks",
        help=(
            "Peaks of the roofline: published, or measured (once on this machine, then kept by the "
            "store)."
        ),
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help=(
            "GPUs to use in parallel, one batch size on each: 0,1,2,3. On a CPU, sets of cores: "
            "cpu:0-3,cpu:4-7."
        ),
    ),
]
ImagePath = Annotated[
    str | None,
    typer.Option(
        "--image", metavar="IMAGE", help="Run profiler and program inside this Apptainer image."
    ),
]
Binds = Annotated[
    list[str] | None,
    typer.Option(
        "--bind", metavar="A[:B[:ro]]", help="Folder that the image sees, too (repeatable)."
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(
        "--container-runtime", metavar="PROGRAM", help="apptainer or singularity. Default: either."
    ),
]

_SWEEP_FLAGS: dict[str, Any] = {
    "batches": Batches,
    "workload": Workload,
    "mode": Mode,
    "steps": Steps,
    "warmup": Warmup,
    "precision": Precision,
    "device": Device,
    "out": Out,
    "store": Store,
    "timeout": Timeout,
    "batch_env": BatchEnv,
    "step_marker": StepMarker,
    "grace": Grace,
    "stall": Stall,
    "no_store": NoStore,
    "sweep_name": SweepName,
    "scratch": Scratch,
    "sample": Sample,
    "again": Again,
    "repeat": Repeat,
}
"""Field of SweepOptions -> its option; command_line has none."""
_PLACEMENT_FLAGS: dict[str, Any] = {
    "devices": Devices,
    "image": ImagePath,
    "bind": Binds,
    "container_runtime": Runtime,
}
_OUTPUT_FLAGS: dict[str, Any] = {"dry_run": DryRun, "as_json": Json}

Text = str | None
Texts = list[str] | None
Switch = bool | None


@dataclass(frozen=True, slots=True)
class SweepOutput:
    """What a sweep prints."""

    dry_run: bool = False
    as_json: bool = False


def sweep_parameters(*, placement: bool = True) -> tuple[inspect.Parameter, ...]:
    """The parameters of a sweep's command, in the order of its help; their defaults are those of
    the records."""
    found = [*_parameters(SweepOptions, _SWEEP_FLAGS), *_parameters(SweepOutput, _OUTPUT_FLAGS)]
    if placement:
        found += _parameters(LocalPlacement, _PLACEMENT_FLAGS)
    return tuple(found)


def _parameters(record: type[Any], flags: Mapping[str, Any]) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    defaults = {field.name: _typed(field.default) for field in fields(record)}
    return [
        inspect.Parameter(name, kind, annotation=flag, default=defaults[name])
        for name, flag in flags.items()
    ]


def _typed(default: Any) -> Any:
    """A default as one would type it: (16, 32) is "16,32"; nothing is None."""
    return (",".join(map(str, default)) or None) if isinstance(default, tuple) else default


def sweep_options(given: dict[str, Any]) -> tuple[SweepOptions, SweepOutput, LocalPlacement]:
    """Take what was typed for a sweep out of ``given``. Raises UsageError for batch sizes that
    are none."""
    from perfctl.orchestrator.cli import console

    asked = {name: given.pop(name) for name in _SWEEP_FLAGS if name in given}
    if "batches" in asked:
        asked["batches"] = batch_list(asked["batches"])
    output = SweepOutput(**{name: given.pop(name) for name in _OUTPUT_FLAGS if name in given})
    placed = {name: given.pop(name) for name in _PLACEMENT_FLAGS if name in given}
    placed["bind"] = tuple(placed.get("bind") or ())
    options = SweepOptions(**asked, command_line=console.command_line())
    return options, output, LocalPlacement(**placed)


batch_list = read_batches


def names(text: str | None) -> list[str]:
    """ "a, b" as a list; empty for None."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """Options of a cluster's jobs, as typed; the fields are those of Site. What is left out comes
    from perfctl.toml."""

    partition: Annotated[Text, typer.Option(help="Partition of the tasks.")] = None
    account: Annotated[Text, typer.Option(help="Account to charge.")] = None
    qos: Annotated[Text, typer.Option(help="Quality of service.")] = None
    constraint: Annotated[Text, typer.Option(help="Features a node must have.")] = None
    gres: Annotated[
        Text,
        typer.Option(help="Generic resources of a task. Default: gpu:1; with --device cpu none."),
    ] = None
    time: Annotated[
        Text, typer.Option(help="Time limit of a task, as Slurm writes it: 00:30:00.")
    ] = None
    mem: Annotated[Text, typer.Option(help="Memory of a task: 16G.")] = None
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores of a task.")] = None
    exclusive: Annotated[Switch, typer.Option(help="Do not share nodes.")] = None
    array_limit: Annotated[
        int | None, typer.Option(min=1, help="Tasks that may run at the same time.")
    ] = None
    stop_before: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=(
                "Seconds before the time limit at which the profiler is told to stop and write its "
                "report. Default: 300 for nsys, ncu and dlprof, 60 for others, at most a quarter "
                "of --time."
            ),
        ),
    ] = None
    module: Annotated[Texts, typer.Option(help="Module to load; may be repeated.")] = None
    module_purge: Annotated[
        Switch,
        typer.Option(
            help="module purge before the first module. Default: on, where a module is loaded."
        ),
    ] = None
    before: Annotated[
        Texts, typer.Option(help="Shell line before the profiler; may be repeated.")
    ] = None
    after: Annotated[
        Texts,
        typer.Option(help="Shell line after the profiler, also when it fails; may be repeated."),
    ] = None
    sbatch: Annotated[Texts, typer.Option(help="Further #SBATCH line; may be repeated.")] = None
    image: Annotated[
        Text, typer.Option(help="Apptainer image that holds perfctl and the profiler.")
    ] = None
    bind: Annotated[Texts, typer.Option(help="Folder to bind into the image; may be repeated.")] = (
        None
    )
    srun: Annotated[Switch, typer.Option(help="Start each task by srun.")] = None
    disable_dcgm: Annotated[
        Switch, typer.Option(help="Add #SBATCH --disable-dcgm, which some sites offer.")
    ] = None
    dcgm_pause: Annotated[
        Switch, typer.Option(help="dcgmi profile --pause before each task, and --resume after it.")
    ] = None
    perfctl: Annotated[
        Text,
        typer.Option(
            help="How nodes call perfctl. Default: this one; in an image, python3 -m perfctl."
        ),
    ] = None
    gather_partition: Annotated[
        Text, typer.Option(help="Partition of the gather job. Default: --partition.")
    ] = None
    gather_time: Annotated[
        Text, typer.Option(help="Time limit of the gather job. Default: --time.")
    ] = None
    gather_mem: Annotated[
        Text, typer.Option(help="Memory of the gather job. Default: the partition's.")
    ] = None
    gather_cpus: Annotated[
        int | None, typer.Option(min=1, help="Cores of the gather job. Default: 1.")
    ] = None
    gather_module: Annotated[
        Texts,
        typer.Option(
            help=(
                "Module of the gather job; may be repeated. Default: those of --module, without "
                "CUDA's."
            )
        ),
    ] = None
    template: Annotated[Text, typer.Option(help="Your site's template of the array script.")] = None
    gather_template: Annotated[
        Text, typer.Option(help="Your site's template of the gather script.")
    ] = None

    def site(self) -> Site:
        """The same, repeated options as tuples."""
        from perfctl.orchestrator.launch.cluster.plan import Site

        typed: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: tuple(value) for name, value in typed.items() if isinstance(value, list)}
        return Site(**(typed | lists))
