"""perfctl ncu"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfctl.orchestrator.cli.ncu_cost import CostEstimate
    from perfctl.orchestrator.launch.profiler import Profiler


def ncu(
    metrics: Annotated[
        str, typer.Option(help="flops (all that FLOPs need), fadd (one counter, the study's), or NAME,NAME,...")
    ] = "flops",
    layer: Annotated[
        list[str] | None, typer.Option(help="Count in this layer, and the layers inside it, only; may be repeated.")
    ] = None,
    estimate_cost: Annotated[
        bool, typer.Option("--estimate-cost", help="Run one plain step and say what ncu would replay; count nothing.")
    ] = False,
) -> Profiler | CostEstimate:
    """Sweep under Nsight Compute: what every kernel executed, by hardware counters.

    FLOPs count 1 multiply-add as 2. A program of your own follows --, with {batch} where the batch size goes; without
    one, options that are not listed here go to the built-in workload.
    """
    from perfctl.orchestrator.launch.ncu import Ncu

    asked = Ncu(metrics=metrics, layers=tuple(layer or ()))
    if not estimate_cost:
        return asked
    from perfctl.orchestrator.cli.ncu_cost import CostEstimate

    return CostEstimate(asked)
