"""The profilers that run a program, by name."""

from __future__ import annotations

from perfctl.orchestrator.launch.profilers.dlprof import DLProf
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.torch import NoProfiler, TorchProfiler

Recorder = Nsys | Ncu | DLProf | TorchProfiler | NoProfiler
RECORDERS: dict[str, type[Recorder]] = {
    "nsys": Nsys,
    "ncu": Ncu,
    "dlprof": DLProf,
    "torch": TorchProfiler,
    "none": NoProfiler,
}
"""Name of each -> its class, whose fields are its options."""
