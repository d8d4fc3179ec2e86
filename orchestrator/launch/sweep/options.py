"""What a sweep can be asked: the options of every sweep, declared once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.folders import SweepSetting
from perfctl.orchestrator.options import Option, parse_batch_sizes

MEASURE, PROFILER, OUTPUT, CLUSTER = "What to measure", "Profiler", "Output", "Cluster"
DEFAULT_BATCHES = (16, 32, 64, 128, 256)
"""Of a built-in workload, and of a program that takes a batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSweepOptions:
    """What every sweep can be asked, also one that was recorded."""

    out: Annotated[
        Path,
        Option(
            "Folder for all sweeps.",
            OUTPUT,
            names=("--out", "-o"),
            metavar="FOLDER",
            is_common=True,
        ),
    ] = Path("perfctl-runs")
    store: Annotated[
        Path | None,
        Option("Results database. Default: perfctl.db next to --out.", OUTPUT, is_common=True),
    ] = None
    timeout: Annotated[
        float | None,
        Option("Stop a batch size after this many seconds.", MEASURE, metavar="SECONDS", least=1),
    ] = None
    grace: Annotated[
        float | None,
        Option(
            "Seconds to wait for the profiler to write its report after a stop signal. Default: 3 "
            "(nsys and ncu: at least 15, longer for large reports).",
            PROFILER,
            metavar="SECONDS",
            least=0,
        ),
    ] = None
    no_store: Annotated[
        bool,
        Option(
            "Do not write the results database; 'perfctl slurm gather' can do so later.",
            OUTPUT,
        ),
    ] = False
    sweep_name: Annotated[
        str | None,
        Option(
            "Folder name of the sweep. Default: derived from the options.", OUTPUT, metavar="NAME"
        ),
    ] = None
    scratch: Annotated[
        Path | None,
        Option(
            "Parent folder for the TMPDIR of each run. Default: the run's folder.",
            OUTPUT,
            metavar="FOLDER",
        ),
    ] = None
    again: Annotated[bool, Option("Rerun batch sizes that are already complete.", MEASURE)] = False
    command_line: Annotated[
        str, Option("Command line to store, ready to paste.", filled_from="line")
    ] = ""

    @property
    def store_path(self) -> Path:
        """The store that was named, else perfctl.db beside ``out``."""
        return self.store or self.out.parent / "perfctl.db"


@dataclass(frozen=True, slots=True)
class SweepOptions(StoredSweepOptions):
    """Options of every sweep, for all profilers. None: the default of the workload or script."""

    batches: Annotated[
        tuple[int, ...],
        Option(
            "Batch sizes, one process each. Default: 16,32,64,128,256, if the program takes one.",
            names=("--batches", "-b"),
            metavar="LIST",
            parse=parse_batch_sizes,
            is_common=True,
        ),
    ] = ()
    sweep: Annotated[
        tuple[str, ...],
        Option(
            "A parameter and its values, one process each: N=256,512 (repeatable: all "
            "combinations). Put {N} in the command.",
            metavar="NAME=LIST",
            is_common=True,
        ),
    ] = ()
    zip: Annotated[
        bool,
        Option("Pair the values of the parameters in order, instead of all combinations."),
    ] = False
    workload: Annotated[
        str | None,
        Option(
            "Built-in workload, if no script follows --. Default: mnist_cnn.",
            names=("--workload", "-w"),
            metavar="NAME",
            is_common=True,
        ),
    ] = None
    mode: Annotated[
        str | None, Option("train or infer; built-in workloads only.", MEASURE, metavar="MODE")
    ] = None
    steps: Annotated[
        int | None,
        Option(
            "Steps to measure. Default: 10 (1 with ncu).",
            MEASURE,
            is_common=True,
        ),
    ] = None
    warmup: Annotated[
        int | None,
        Option("Warm-up steps before the measured steps. Default: 3.", MEASURE, is_common=True),
    ] = None
    precision: Annotated[
        str | None,
        Option(
            "fp32 (TF32 off), tf32, bf16 or fp16; built-in workloads only.",
            MEASURE,
            metavar="TYPE",
            is_common=True,
        ),
    ] = None
    device: Annotated[
        str,
        Option(
            "cpu, cuda, or auto (cuda if there is a GPU).",
            MEASURE,
            metavar="DEVICE",
            is_common=True,
        ),
    ] = "auto"
    batch_env: Annotated[
        str | None,
        Option(
            "Environment variable with the batch size for your script after --.", metavar="NAME"
        ),
    ] = None
    sweep_env: Annotated[
        tuple[str, ...],
        Option(
            "Environment variable with a parameter's value for your program (repeatable).",
            metavar="NAME=VARIABLE",
        ),
    ] = ()
    step_marker: Annotated[
        str | None,
        Option(
            "Event that ends a step of your script: optimizer, forward, backward, "
            "optimizer:CLASS, forward:MODULECLASS. Default: detected.",
            metavar="WHAT",
        ),
    ] = None
    to_end: Annotated[
        bool | None,
        Option(
            "Run your script to its end. Default: nsys and ncu stop it after the measured steps.",
            MEASURE,
        ),
    ] = None
    as_is: Annotated[
        bool | None,
        Option(
            "Run your program as it is, without layers and steps (nsys and ncu only). Default: "
            "programs that are not Python.",
            MEASURE,
        ),
    ] = None
    stall: Annotated[
        float | None,
        Option(
            "Stop a run that has produced no output for this many seconds; 0 disables. Default: "
            "600 with ncu (after the first launch), otherwise disabled.",
            PROFILER,
            metavar="SECONDS",
            least=0,
        ),
    ] = None
    sample: Annotated[
        str,
        Option(
            "Sampling interval of devices and processes; off disables.",
            MEASURE,
            metavar="TIME",
        ),
    ] = "50ms"
    repeat: Annotated[
        int,
        Option(
            "Runs per batch size, one process each; compare uses their spread.",
            MEASURE,
            least=1,
            most=1000,
        ),
    ] = 1
    devices: Annotated[
        str | None,
        Option(
            "GPUs to use in parallel, one batch size on each: 0,1,2,3. On a CPU, sets of cores: "
            "cpu:0-3,cpu:4-7.",
            CLUSTER,
            metavar="LIST",
        ),
    ] = None
    image: Annotated[
        str | None,
        Option("Run profiler and program inside this Apptainer image.", CLUSTER, metavar="IMAGE"),
    ] = None
    bind: Annotated[
        tuple[str, ...],
        Option(
            "Additional folder to bind into the image, FOLDER[:TARGET[:ro]] (repeatable).",
            CLUSTER,
            metavar="FOLDER",
        ),
    ] = ()
    container_runtime: Annotated[
        str | None,
        Option("apptainer or singularity. Default: either.", CLUSTER, metavar="PROGRAM"),
    ] = None


def parse_sweep_parameters(options: SweepOptions) -> dict[str, tuple[str, ...]]:
    """Return parameter -> its values, in the order of ``sweep``. Raises UsageError."""
    parameters: dict[str, tuple[str, ...]] = {}
    for text in options.sweep:
        name, _, typed = text.partition("=")
        values = tuple(value.strip() for value in typed.split(","))
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or not all(values):
            problem = f"`sweep`: '{text}' is not a name and its values"
            raise UsageError(problem, "For example N=256,512")
        if name in parameters or (name == "batch" and options.batches):
            raise UsageError(f"`sweep`: {name} is named twice", "Name all its values at once")
        if len(set(values)) < len(values):
            raise UsageError(f"`sweep` repeats a value: {text}", "Name each value once")
        parameters[name] = values
    return parameters


def list_sweep_settings(options: SweepOptions) -> tuple[SweepSetting, ...]:
    """Return the settings to run: all combinations, or with ``zip`` the first values of all
    parameters, the second ones, and so on. Raises UsageError."""
    parameters = parse_sweep_parameters(options)
    axes = (tuple(map(str, options.batches)) or ("",), *parameters.values())
    count = max(map(len, axes))
    if options.zip and (odd := [values for values in axes if len(values) not in (1, count)]):
        raise UsageError(
            f"`zip` pairs values, but there are {len(odd[0])} of one parameter and {count} of "
            "another",
            "Name as many values of each, or one for all",
        )
    equal = (values * (count // len(values)) for values in axes)
    rows = zip(*equal, strict=True) if options.zip else product(*axes)
    return tuple(
        SweepSetting(
            int(batch) if batch else None, tuple(sorted(zip(parameters, values, strict=True)))
        )
        for batch, *values in rows
    )


def raise_if_placement_options_set(options: SweepOptions, command: str) -> None:
    """Raise UsageError if GPUs, cores or an image were asked for, where ``command`` has none."""
    if options.devices or options.image or options.bind or options.container_runtime:
        raise UsageError(
            f"{command} does not accept `devices`, `image`, `bind` or `container_runtime`",
            "Omit them",
        )


def choose_cpu_or_cuda(device: str) -> str:
    """Return cpu or cuda; ``auto`` looks for an NVIDIA GPU without loading anything. Raises
    UsageError for another word."""
    if device == "auto":
        gpus = Path("/proc/driver/nvidia/gpus")
        return "cuda" if gpus.is_dir() and any(gpus.iterdir()) else "cpu"
    if device not in ("cpu", "cuda"):
        raise UsageError(f"invalid value '{device}' for `device`", "Choose cpu, cuda or auto")
    return device
