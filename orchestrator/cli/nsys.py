"""perfctl nsys"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.profiler import Profiler


def nsys() -> Profiler:
    """Sweep under Nsight Systems: time of every range, kernel and copy.

    A program of your own follows --, with {batch} where the batch size goes: -- python train.py --batch-size {batch}.
    Without one, options that are not listed here go to the built-in workload (python -m perfctl.workloads WORKLOAD
    --help lists them).
    """
    from perfctl.orchestrator.launch.nsys import Nsys

    return Nsys()
