"""perfctl dlprof"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.profiler import Profiler


def dlprof(
    dlprof_mode: Annotated[
        str, typer.Option(help="simple, or pytorch (the program must enable DLProf's NVTX plugin).")
    ] = "simple",
) -> Profiler:
    """Sweep under DLProf (its last release is of 2021): utilisation, tensor core use, time by operation.

    A program of your own follows --, with {batch} where the batch size goes; without one, options that are not listed
    here go to the built-in workload.
    """
    from perfctl.orchestrator.launch.dlprof import DLProf

    return DLProf(mode=dlprof_mode)
