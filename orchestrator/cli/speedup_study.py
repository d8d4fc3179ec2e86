"""The runs behind a speed-up: one sweep for each device and precision, in folders named after both."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.actions.sweep_options import SweepOptions, resolve_device
from perfctl.orchestrator.errors import UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.speedup_records import Arm
    from perfctl.orchestrator.launch.sweep_records import SweepRequest
    from perfctl.parsers.stored import Run

ALLOWED = ("precision", "seed", "data", "batch", "mode", "variant", "workload", "compile", "samples", "length")
"""Facts that may be allowed to differ."""
_WITH = {"cpu": ("bf16", "compile"), "cuda": ("tf32", "bf16", "fp16", "compile")}
EVERY_WAY = tuple(f"{device}{also}" for device, more in _WITH.items() for also in ("", *(f":{one}" for one in more)))
"""Every entry that ``--devices`` knows."""


@dataclass(frozen=True, slots=True)
class Way:
    """One entry of ``--devices``."""

    device: str
    """cpu or cuda."""
    also: str | None = None
    """tf32, bf16, fp16, compile, or None for plain fp32."""

    @property
    def label(self) -> str:
        return f"{self.device}:{self.also}" if self.also else self.device

    @property
    def precision(self) -> str:
        return self.also if self.also and self.also != "compile" else "fp32"


def ways_of(text: str) -> tuple[Way, ...]:
    """ "cpu,cuda:bf16" read. Raises UsageError naming what makes no sense."""
    found = []
    for piece in (piece.strip() for piece in text.split(",")):
        device, _, also = piece.partition(":")
        if device not in _WITH or (":" in piece and also not in _WITH[device]):
            known = ", ".join(f"{one}[:{'|'.join(more)}]" for one, more in _WITH.items())
            raise UsageError(f"--devices: '{piece}' is not known", f"Say {known}")
        found.append(Way(device, also or None))
    if len(found) < 2:
        raise UsageError("--devices needs two or more: the first is what the others are set against",
                         "Say for instance --devices cpu,cuda")  # fmt: skip
    if len(set(found)) < len(found):
        raise UsageError(f"a device stands twice in {text}", "Name each once; --repeat runs each several times")
    return tuple(found)


def default_ways(told: Callable[[str], None]) -> tuple[Way, ...]:
    """CPU and GPU; without a GPU the CPU in several ways, and it is said."""
    if resolve_device("auto") == "cuda":
        return (Way("cpu"), Way("cuda"))
    if compiler_here():
        told("no GPU here: comparing cpu with cpu:bf16 and cpu:compile")
        return (Way("cpu"), Way("cpu", "bf16"), Way("cpu", "compile"))
    told("no GPU and no C++ compiler (which cpu:compile needs) here: comparing cpu with cpu:bf16")
    return (Way("cpu"), Way("cpu", "bf16"))


def compiler_here() -> bool:
    """Whether torch.compile finds a C++ compiler."""
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))


def request_of(way: Way, epochs: int, asked: SweepOptions, rest: tuple[str, ...]) -> SweepRequest:
    """The sweep of one way, called WORKLOAD_DEVICE[_PRECISION]. Raises UsageError."""
    from perfctl.orchestrator.actions.sweep_request import sweep_request
    from perfctl.orchestrator.launch.torch_profiler import TorchProfiler

    name = f"{asked.workload}_{way.label.replace(':', '_')}"
    own = replace(asked, device=way.device, precision=way.precision, mode="train", sweep_name=name)
    words = ("--epochs", str(epochs), *(("--compile",) if way.also == "compile" else ()), *rest)
    return sweep_request(TorchProfiler(), own, words, None)


def check(way: Way, request: SweepRequest) -> None:
    """Raises UsageError for what cannot run here, and for a folder that holds runs of another request."""
    from perfctl.orchestrator.actions.sweep_request import check_ready
    from perfctl.orchestrator.launch.run_folder import read_json

    if way.device == "cuda" and resolve_device("auto") != "cuda":
        raise UsageError(f"{way.label}: there is no NVIDIA GPU here",
                         "Leave it out, run it where there is one, and name both with --runs")  # fmt: skip
    if way.label == "cpu:compile" and not compiler_here():
        raise UsageError("cpu:compile needs a C++ compiler, and neither g++ nor clang++ is on PATH",
                         "Install one (Debian: apt-get install g++), or leave it out")  # fmt: skip
    if importlib.util.find_spec("torch") is None:
        check_ready(request)
    there = read_json(request.folder / "request.json")
    if there is not None and there.get("request") != _identity(request):
        raise UsageError(
            f"{request.folder} holds runs of another request ({there.get('command')})",
            "Name another folder with --out, or remove that one",
        )


def _identity(request: SweepRequest) -> str:
    return replace(request, given_name=None).name


def run_way(request: SweepRequest, store: Path) -> None:
    """Run it into its folder and the store, and leave results.json beside the runs."""
    from perfctl.orchestrator.actions.sweep import run_request
    from perfctl.orchestrator.launch.run_folder import write_json

    request.folder.mkdir(parents=True, exist_ok=True)
    write_json(request.folder / "request.json", {"request": _identity(request), "command": request.command_line})
    run_request(request, store)
    write_json(request.folder / "results.json", results(request, runs_of(request, store)))


def runs_of(request: SweepRequest, store: Path) -> list[Run]:
    """What the store holds of it, oldest first: of each batch size the newest as many as were asked for."""
    from perfctl.orchestrator.store import database, read

    with database.reading(store) as connection:
        number = next((row["id"] for row in read.sweeps(connection) if row["name"] == request.name), None)
        runs = read.load(connection, read.run_ids(connection, sweep=number)) if number is not None else []
    kept: list[Run] = []
    for batch in request.batches:
        mine = [run for run in runs if run.batch_size == batch]
        whole = [run for run in mine if run.status == "ok"]
        kept += whole[-request.repeat :] or mine[-1:]
    return kept


def results(request: SweepRequest, runs: Sequence[Run]) -> dict[str, Any]:
    """results.json: each run's figures, with units in their names."""
    from perfctl.orchestrator.analyse.speedup_arms import facts_of
    from perfctl.orchestrator.analyse.speedup_records import Arm
    from perfctl.orchestrator.report.speedup_text import plain

    rows = []
    for run in runs:
        about = {"batch_size": run.batch_size, "status": run.status, "reason": run.reason, "trace": run.artifact}
        figures = plain(facts_of(Arm(request.name, (run,)))) if run.status == "ok" else {}
        figures = {key: value for key, value in figures.items() if not key.startswith("paper_")}  # the page has it
        rows.append({**about, **figures})
    return {"perfctl_results": 1, "name": request.name, "workload": request.workload, "runs": rows}


def arms_of(requests: Sequence[tuple[Way, SweepRequest]], store: Path) -> dict[int | None, list[Arm]]:
    """Batch size -> arms, in the order of --devices."""
    from perfctl.orchestrator.analyse.speedup_records import Arm

    found = {way: runs_of(request, store) for way, request in requests}
    return {
        batch: [Arm(way.label, tuple(run for run in runs if run.batch_size == batch)) for way, runs in found.items()]
        for batch in requests[0][1].batches
    }
