"""Start a profiler over a workload and keep what it leaves on disk."""

from __future__ import annotations

import shlex

from perfctl.orchestrator.errors import ToolMissing
from perfctl.orchestrator.launch.dlprof import DLProf
from perfctl.orchestrator.launch.ncu import Ncu
from perfctl.orchestrator.launch.nsys import Nsys
from perfctl.orchestrator.launch.profiler import Command, Profiler
from perfctl.orchestrator.launch.replay import Replay
from perfctl.orchestrator.launch.torch_profiler import TorchProfiler

PROFILERS: dict[str, type[Nsys] | type[Ncu] | type[DLProf] | type[TorchProfiler] | type[Replay]] = {
    "nsys": Nsys,
    "ncu": Ncu,
    "dlprof": DLProf,
    "torch": TorchProfiler,
    "replay": Replay,
}
"""Name on the command line -> class, whose fields are the profiler's own options."""


def check_tools(profiler: Profiler) -> None:
    """Raises ToolMissing when something that ``profiler`` needs is not on this machine: what, why, how to get it."""
    missing = profiler.missing()
    if not missing:
        return
    first = missing[0]
    others = "".join(f"; {tool.name} is missing, too ({tool.install})" for tool in missing[1:])
    remedy = f"To get it: {first.install}{others}. Without it: {first.instead}"
    raise ToolMissing(f"{first.name} is not installed here: {first.why}", remedy)


def printable(command: Command) -> str:
    """One shell line, ready to paste: environment first, then the quoted arguments."""
    assignments = (f"{name}={shlex.quote(value)}" for name, value in sorted(command.environment.items()))
    return " ".join((*assignments, shlex.join(command.argv)))
