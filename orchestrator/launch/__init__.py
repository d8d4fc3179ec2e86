"""Run workloads under profilers and keep their reports on disk."""

from __future__ import annotations

import shlex

from perfctl.orchestrator.launch import container, in_image
from perfctl.orchestrator.launch.dlprof import DLProf
from perfctl.orchestrator.launch.ncu import Ncu
from perfctl.orchestrator.launch.nsys import Nsys
from perfctl.orchestrator.launch.plain import NoProfiler
from perfctl.orchestrator.launch.profiler import Command, Profiler
from perfctl.orchestrator.launch.replay import Replay
from perfctl.orchestrator.launch.torch_profiler import TorchProfiler

PROFILERS: dict[str, type[Nsys] | type[Ncu] | type[DLProf] | type[TorchProfiler] | type[NoProfiler] | type[Replay]] = {
    "nsys": Nsys,
    "ncu": Ncu,
    "dlprof": DLProf,
    "torch": TorchProfiler,
    "none": NoProfiler,
    "replay": Replay,
}
"""Name of each profiler -> its class, whose fields are its options."""


def check_tools(profiler: Profiler, device: str = "cpu", *, but: tuple[str, ...] = ()) -> None:
    """Raises ToolMissing when this machine lacks something that ``profiler`` needs: what, why, how to get it.

    Inside a container that includes nsys's importer and the driver's library, which images often lack. ``but`` names
    tools that are not needed here, because the program has its own interpreter.
    """
    runs_in = container.inside()
    missing = in_image.lacking(profiler, device) if runs_in else profiler.missing()
    lacks = tuple(tool for tool in missing if tool.name not in but)
    in_image.refuse(lacks, f"here, inside {runs_in}" if runs_in else "here")


def printable(command: Command) -> str:
    """One line for a shell: environment variables, then the quoted arguments."""
    assignments = (f"{name}={shlex.quote(value)}" for name, value in sorted(command.environment.items()))
    return " ".join((*assignments, shlex.join(command.argv)))
