"""The ways in which a training can be compared: devices and precisions, a sweep each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.launch.catalog import require_tools_and_write_annotator
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep.folders import read_json_object
from perfctl.orchestrator.launch.sweep.options import SweepOptions, choose_cpu_or_cuda
from perfctl.orchestrator.launch.sweep.plan import plan_sweep
from perfctl.orchestrator.launch.sweep.request import SweepRequest

_WITH = {"cpu": ("bf16", "compile"), "cuda": ("tf32", "bf16", "fp16", "compile")}
RECORD = "request.json"
"""What a sweep's folder holds the runs of."""


@dataclass(frozen=True, slots=True)
class TrainingWay:
    """One entry of a list of devices."""

    device: str
    """cpu or cuda."""
    also: str | None = None
    """tf32, bf16, fp16, compile, or None for plain fp32."""

    @property
    def label(self) -> str:
        """Return "cuda:bf16"."""
        return f"{self.device}:{self.also}" if self.also else self.device

    @property
    def precision(self) -> str:
        """Return fp32 for what is compiled, too."""
        return self.also if self.also and self.also != "compile" else "fp32"


def parse_device_precision_variants(text: str) -> tuple[TrainingWay, ...]:
    """Return the ways of "cpu,cuda:bf16". Raises UsageError naming what makes no sense."""
    ways = []
    for piece in (piece.strip() for piece in text.split(",")):
        device, colon, also = piece.partition(":")
        if device not in _WITH or (colon and also not in _WITH[device]):
            choices = ", ".join(
                f"{name}[:{'|'.join(suffixes)}]" for name, suffixes in _WITH.items()
            )
            raise UsageError(f"invalid value '{piece}' for `devices`", f"Use {choices}")
        ways.append(TrainingWay(device, also or None))
    if len(ways) < 2:
        problem = "`devices` needs at least two entries; perfctl compares the others with the first"
        raise UsageError(problem, "For example `devices` cpu,cuda")
    if len(set(ways)) < len(ways):
        remedy = "Name each once; `repeat` runs each several times"
        raise UsageError(f"`devices`: {text} repeats a device", remedy)
    return tuple(ways)


def choose_default_device_variants(events: Events = SILENT) -> tuple[TrainingWay, ...]:
    """Return CPU and GPU; without a GPU the CPU in several ways, with a note that says so."""
    if choose_cpu_or_cuda("auto") == "cuda":
        return (TrainingWay("cpu"), TrainingWay("cuda"))
    if _has_cpp_compiler():
        events.note("no GPU here: comparing cpu with cpu:bf16 and cpu:compile")
        return (TrainingWay("cpu"), TrainingWay("cpu", "bf16"), TrainingWay("cpu", "compile"))
    events.note(
        "no GPU and no C++ compiler (which cpu:compile needs) here: comparing cpu with cpu:bf16"
    )
    return (TrainingWay("cpu"), TrainingWay("cpu", "bf16"))


def _has_cpp_compiler() -> bool:
    """Return whether torch.compile finds a C++ compiler."""
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))


def plan_training_sweep_of_variant(
    way: TrainingWay, epochs: int, options: SweepOptions, arguments: Sequence[str]
) -> SweepRequest:
    """Return the sweep of one way, called WORKLOAD_DEVICE[_PRECISION]. Raises UsageError."""
    name = f"{options.workload}_{way.label.replace(':', '_')}"
    way_options = replace(
        options, device=way.device, precision=way.precision, mode="train", sweep_name=name
    )
    way_arguments = (
        "--epochs",
        str(epochs),
        *(("--compile",) if way.also == "compile" else ()),
        *arguments,
    )
    return plan_sweep(TorchProfiler(), way_options, way_arguments)


def raise_if_variant_cannot_run(way: TrainingWay, request: SweepRequest) -> None:
    """Raise UsageError for what cannot run here, and for a folder that holds runs of
    another request."""
    if way.device == "cuda" and choose_cpu_or_cuda("auto") != "cuda":
        remedy = "Omit it, or run it on a machine with a GPU and compare both with `runs`"
        raise UsageError(f"{way.label}: no NVIDIA GPU found", remedy)
    if way.label == "cpu:compile" and not _has_cpp_compiler():
        problem = "cpu:compile needs a C++ compiler, and neither g++ nor clang++ is on PATH"
        raise UsageError(problem, "Install one (Debian: apt-get install g++), or omit it")
    if find_spec("torch") is None:
        require_tools_and_write_annotator(request)
    record = read_json_object(request.folder / RECORD)
    if record is not None and record.get("request") != compute_default_sweep_name(request):
        problem = f"{request.folder} holds runs of another request ({record.get('command')})"
        raise UsageError(problem, "Choose another `out`, or remove that folder")


def compute_default_sweep_name(request: SweepRequest) -> str:
    """Return what tells requests apart that have the same folder."""
    return replace(request, sweep_name=None).name
