"""What a sweep can be asked: options as records, without loading what runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.errors import UsageError


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What every sweep can be asked, whatever profiler it runs under. None: the default of the
    workload or program."""

    batches: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Batch sizes; each runs in a process of its own."""
    workload: str | None = None
    """Built-in workload; None for mnist_cnn, or for a program of the user's."""
    mode: str | None = None
    """train or infer; built-in workloads only."""
    steps: int | None = None
    """Measured steps; None for 10, and for 1 under ncu."""
    warmup: int | None = None
    """Steps before the measured ones."""
    precision: str | None = None
    """fp32 (TF32 off), tf32, bf16 or fp16; built-in workloads only."""
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is a GPU."""
    out: Path = Path("perfctl-runs")
    """Folder that holds all sweeps."""
    store: Path | None = None
    """None for perfctl.db beside ``out``."""
    timeout: float | None = None
    """Seconds after which a batch size is ended; None for no limit."""
    batch_env: str | None = None
    """Environment variable in which the user's program finds the batch size."""
    step_marker: str | None = None
    """What ends a step of the user's program: optimizer, forward, backward, optimizer:CLASS,
    forward:CLASS, or auto."""
    grace: float | None = None
    """Seconds that a profiler gets to write its report when it is stopped; None for as long as
    it needs."""
    stall: float | None = None
    """Seconds without output or changed files after which a run is stopped; 0 for never, None for
    the profiler's own."""
    no_store: bool = False
    """Write only the run folders, beside other processes that run the same sweep; ``gather`` takes
    them in later."""
    sweep_name: str | None = None
    """Name of the sweep's folder; None for one made from the request."""
    scratch: Path | None = None
    """Folder below which runs get their TMPDIR; None for the run's own folder."""
    sample: str = "50ms"
    """Time between two readings of the device and of the run's processes, as in 50ms; or off."""
    again: bool = False
    """Repeat what is whole already."""
    repeat: int = 1
    """Runs of each batch size, a process each."""
    command_line: str = ""
    """What the user typed, ready to paste; it is stored with the sweep."""


DEFAULTS = SweepOptions()


@dataclass(frozen=True, slots=True)
class LocalPlacement:
    """Which GPUs or cores of this machine a sweep uses, and inside which image. Job scripts have
    options of their own."""

    devices: str | None = None
    """GPUs to use side by side, one batch size on each: 0,1,2,3. On a CPU sets of cores:
    cpu:0-3,cpu:4-7."""
    image: str | None = None
    """Apptainer image that profiler and program run in."""
    bind: tuple[str, ...] = ()
    """Folders that the image sees beside the usual ones: A[:B[:ro]]."""
    container_runtime: str | None = None
    """apptainer or singularity; None for either."""


NONE = LocalPlacement()
"""Wherever a program goes by itself."""


def reject_placement(placement: LocalPlacement, what: str) -> None:
    """Raises UsageError when any of it was asked for, where ``what`` cannot have it."""
    if placement != NONE:
        raise UsageError(
            f"{what} takes no `devices`, `image`, `bind` or `container_runtime`", "Leave them out"
        )


def resolve_device(asked: str) -> str:
    """cpu or cuda; ``auto`` looks for an NVIDIA GPU without loading anything. Raises UsageError for
    another word."""
    if asked == "auto":
        gpus = Path("/proc/driver/nvidia/gpus")
        return "cuda" if gpus.is_dir() and any(gpus.iterdir()) else "cpu"
    if asked not in ("cpu", "cuda"):
        raise UsageError(f"`device`: '{asked}' is not known", "Say cpu, cuda or auto")
    return asked
