"""Options that several commands share, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.errors import UsageError

SWEEP = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context of sweep commands: what perfctl does not know goes to the workload, which checks it before anything runs."""

SLURM_HELP = "Run a sweep as an array of Slurm jobs, and bring what it left into one store and page."
"""Here, because the list of commands shows it without loading what the commands below it need."""

BENCH_HELP = (
    "Measure families of networks, and show what their time goes with. perfctl bench FILE is short for bench run FILE."
)

Batches = Annotated[str, typer.Option("--batches", "-b", help="Batch sizes, one process each: 16,32,64.")]
Workload = Annotated[
    str | None,
    typer.Option("--workload", "-w", help="Built-in workload, where no program follows --. Default: mnist_cnn."),
]
BatchEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="Environment variable in which the program after -- finds the size.")
]
StepMarker = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What ends a step of the program after --: optimizer, forward, backward, optimizer:CLASS, "
        "forward:MODULECLASS. Default: found out.",
    ),
]
Mode = Annotated[str | None, typer.Option(help="train or infer.")]
Steps = Annotated[int | None, typer.Option(help="Measured steps.")]
Warmup = Annotated[int | None, typer.Option(help="Steps before the measured ones.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU.")]
Precision = Annotated[str | None, typer.Option(help="fp32 (TF32 off), tf32, bf16 or fp16.")]
Out = Annotated[Path, typer.Option(help="Folder that holds all sweeps.")]
Timeout = Annotated[float | None, typer.Option(min=1, help="Seconds after which a batch size is ended.")]
Again = Annotated[bool, typer.Option("--again", help="Repeat what is whole already.")]
Repeat = Annotated[
    int, typer.Option(min=1, max=1000, help="Runs of each batch size, a process each; compare takes their spread.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the commands, ready to paste, and start nothing.")]
Grace = Annotated[
    float, typer.Option(min=0, help="Seconds that a profiler gets to write its report when it is stopped.")
]
NoStore = Annotated[
    bool,
    typer.Option(
        "--no-store",
        help="Leave the folders and touch no store, beside others that run the same sweep; perfctl slurm gather takes "
        "them in. A run that is stopped keeps its partial report.",
    ),
]
Sample = Annotated[
    str,
    typer.Option(
        metavar="TIME|off",
        help="Time from one reading of the device and of the run's processes to the next, as in 50ms.",
    ),
]
SweepName = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the sweep's folder. Default: made up.")]
Scratch = Annotated[
    Path | None, typer.Option(help="Folder below which runs get their TMPDIR. Default: the run's own folder.")
]
Store = Annotated[Path | None, typer.Option(help="The store. Default: perfctl.db here; for sweeps, beside --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def batch_list(text: str) -> tuple[int, ...]:
    """ "16,32" as numbers. Raises UsageError naming the piece that is none."""
    numbers = []
    for piece in text.split(","):
        if not piece.strip().isdecimal():
            raise UsageError(f"--batches: '{piece.strip()}' is no batch size", "Say for instance --batches 16,32,64")
        numbers.append(int(piece))
    return tuple(numbers)


def device(asked: str) -> str:
    """cpu or cuda; ``auto`` looks whether an NVIDIA GPU is there, without loading anything."""
    if asked == "auto":
        gpus = Path("/proc/driver/nvidia/gpus")
        return "cuda" if gpus.is_dir() and any(gpus.iterdir()) else "cpu"
    if asked not in ("cpu", "cuda"):
        raise UsageError(f"--device: '{asked}' is not known", "Say cpu, cuda or auto")
    return asked
