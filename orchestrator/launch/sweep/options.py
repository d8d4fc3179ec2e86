"""What a sweep can be asked: the options of every sweep, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.options import Option, read_batches

MEASURE, PROFILER, OUTPUT, CLUSTER = "What to measure", "Profiler", "Output", "Cluster"

PLACEMENT = ("devices", "image", "bind", "container_runtime")
"""Options of the GPUs or cores of this machine, and of the image: job scripts have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSweep:
    """What every sweep can be asked, also one that was recorded."""

    out: Annotated[
        Path,
        Option(
            "Folder that holds all sweeps.",
            OUTPUT,
            names=("--out", "-o"),
            metavar="FOLDER",
            is_common=True,
        ),
    ] = Path("perfctl-runs")
    store: Annotated[
        Path | None, Option("The store. Default: perfctl.db next to --out.", OUTPUT, is_common=True)
    ] = None
    timeout: Annotated[
        float | None,
        Option("Stop a batch size after this many seconds.", MEASURE, metavar="SECONDS", least=1),
    ] = None
    grace: Annotated[
        float | None,
        Option(
            "Seconds that a profiler gets to write its report when it is stopped. Default: 3; nsys "
            "and ncu 15 and more, by how much they have recorded, and as long as they write.",
            PROFILER,
            metavar="SECONDS",
            least=0,
        ),
    ] = None
    no_store: Annotated[
        bool,
        Option(
            "Do not write the store (for parallel tasks of one sweep); perfctl slurm gather takes "
            "the folders in. A run that is stopped keeps its partial report.",
            OUTPUT,
        ),
    ] = False
    sweep_name: Annotated[
        str | None,
        Option(
            "Name of the sweep's folder. Default: made from the request.", OUTPUT, metavar="NAME"
        ),
    ] = None
    scratch: Annotated[
        Path | None,
        Option(
            "Folder below which runs get their TMPDIR. Default: the run's own folder.",
            OUTPUT,
            metavar="FOLDER",
        ),
    ] = None
    again: Annotated[bool, Option("Run batch sizes again that are complete already.", MEASURE)] = (
        False
    )
    command_line: Annotated[
        str, Option("What was typed, ready to paste; it is stored.", filled_from="line")
    ] = ""

    @property
    def store_path(self) -> Path:
        """The store that was named, else perfctl.db beside ``out``."""
        return self.store or self.out.parent / "perfctl.db"


@dataclass(frozen=True, slots=True)
class SweepOptions(StoredSweep):
    """What every sweep can be asked, whatever profiler it runs under. None: the default of the
    workload or program."""

    batches: Annotated[
        tuple[int, ...],
        Option(
            "Batch sizes, one process each: 16,32,64.",
            names=("--batches", "-b"),
            metavar="LIST",
            parse=read_batches,
            is_common=True,
        ),
    ] = (16, 32, 64, 128, 256)
    workload: Annotated[
        str | None,
        Option(
            "Built-in workload, if no program follows --. Default: mnist_cnn.",
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
            "Measured steps. Default: 10; under ncu 1, because counts repeat.",
            MEASURE,
            is_common=True,
        ),
    ] = None
    warmup: Annotated[
        int | None, Option("Steps before the measured ones. Default: 3.", MEASURE, is_common=True)
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
        Option("auto is cuda if there is a GPU.", MEASURE, metavar="cpu|cuda|auto", is_common=True),
    ] = "auto"
    batch_env: Annotated[
        str | None,
        Option(
            "Environment variable that tells the program after -- its batch size.", metavar="NAME"
        ),
    ] = None
    step_marker: Annotated[
        str | None,
        Option(
            "What ends a step of the program after --: optimizer, forward, backward, "
            "optimizer:CLASS, forward:MODULECLASS. Default: detected.",
            metavar="WHAT",
        ),
    ] = None
    stall: Annotated[
        float | None,
        Option(
            "Stop a run whose output and files have not changed for this many seconds; 0: never. "
            "Default: 600 under ncu, from its first launch on; otherwise never.",
            PROFILER,
            metavar="SECONDS",
            least=0,
        ),
    ] = None
    sample: Annotated[
        str,
        Option(
            "Time between two samples of the device and of the run's processes, as in 50ms.",
            MEASURE,
            metavar="TIME|off",
        ),
    ] = "50ms"
    repeat: Annotated[
        int,
        Option(
            "Runs of each batch size, one process each; compare uses their spread.",
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
        Option("Folder that the image sees, too (repeatable).", CLUSTER, metavar="A[:B[:ro]]"),
    ] = ()
    container_runtime: Annotated[
        str | None,
        Option("apptainer or singularity. Default: either.", CLUSTER, metavar="PROGRAM"),
    ] = None


DEFAULTS = SweepOptions()


def reject_placement(options: SweepOptions, what: str) -> None:
    """Raises UsageError when any of PLACEMENT was asked for, where ``what`` cannot have it."""
    if options.devices or options.image or options.bind or options.container_runtime:
        raise UsageError(
            f"{what} takes no `devices`, `image`, `bind` or `container_runtime`", "Leave them out"
        )


def resolve_device(asked: str) -> str:
    """Return cpu or cuda; ``auto`` looks for an NVIDIA GPU without loading anything. Raises
    UsageError for another word."""
    if asked == "auto":
        gpus = Path("/proc/driver/nvidia/gpus")
        return "cuda" if gpus.is_dir() and any(gpus.iterdir()) else "cpu"
    if asked not in ("cpu", "cuda"):
        raise UsageError(f"`device`: '{asked}' is not known", "Say cpu, cuda or auto")
    return asked
