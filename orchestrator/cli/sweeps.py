"""The commands that sweep over batch sizes under a profiler, here and as tasks of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perfctl.orchestrator.cli import dlprof, ncu, nsys, torch_profiler

if TYPE_CHECKING:
    from perfctl.orchestrator.cli.ncu_cost import CostEstimate
    from perfctl.orchestrator.launch.profiler import Profiler

SWEEPS: dict[str, Callable[..., Profiler | CostEstimate]] = {
    "nsys": nsys.nsys,
    "ncu": ncu.ncu,
    "torch": torch_profiler.torch,
    "dlprof": dlprof.dlprof,
}
"""Name of the profiler -> what takes its own options and makes it."""
