"""perfctl ncu"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.profiler import Profiler


def ncu(
    metrics: Annotated[
        str, typer.Option(help="flops (all that FLOPs need), fadd (one counter, the study's), or NAME,NAME,...")
    ] = "flops",
) -> Profiler:
    """Sweep under Nsight Compute: what every kernel executed, by hardware counters.

    FLOPs count 1 multiply-add as 2. Options that are not listed here go to the workload.
    """
    from perfctl.orchestrator.launch.ncu import Ncu

    return Ncu(metrics=metrics)
