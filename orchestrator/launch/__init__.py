"""Start a profiler over a workload and keep what it leaves on disk."""

from __future__ import annotations

import shlex

from perfctl.orchestrator.launch import container, in_image
from perfctl.orchestrator.launch.dlprof import DLProf
from perfctl.orchestrator.launch.ncu import Ncu
from perfctl.orchestrator.launch.nsys import Nsys
from perfctl.orchestrator.launch.plain import Plain
from perfctl.orchestrator.launch.profiler import Command, Profiler
from perfctl.orchestrator.launch.replay import Replay
from perfctl.orchestrator.launch.torch_profiler import TorchProfiler

PROFILERS: dict[str, type[Nsys] | type[Ncu] | type[DLProf] | type[TorchProfiler] | type[Plain] | type[Replay]] = {
    "nsys": Nsys,
    "ncu": Ncu,
    "dlprof": DLProf,
    "torch": TorchProfiler,
    "none": Plain,
    "replay": Replay,
}
"""Name on the command line -> class, whose fields are the profiler's own options."""


def check_tools(profiler: Profiler, device: str = "cpu", *, but: tuple[str, ...] = ()) -> None:
    """Raises ToolMissing when something that ``profiler`` needs is not on this machine: what, why, how to get it.

    Inside a container that is more than the tools: images leave out nsys's importer, and the driver's library has to
    come in. ``but`` names what need not be here, because the program runs under an interpreter of its own.
    """
    around = container.inside()
    missing = in_image.lacking(profiler, device) if around else profiler.missing()
    lacks = tuple(tool for tool in missing if tool.name not in but)
    in_image.refuse(lacks, f"here, inside {around}" if around else "here")


def printable(command: Command) -> str:
    """One shell line, ready to paste: environment first, then the quoted arguments."""
    assignments = (f"{name}={shlex.quote(value)}" for name, value in sorted(command.environment.items()))
    return " ".join((*assignments, shlex.join(command.argv)))
