"""perfctl dlprof"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import options


def dlprof(
    context: typer.Context,
    dlprof_mode: Annotated[str, typer.Option(help="simple or pytorch.")] = "simple",
    batches: options.Batches = "16,32,64,128,256",
    workload: options.Workload = "mnist_cnn",
    mode: options.Mode = None,
    steps: options.Steps = None,
    warmup: options.Warmup = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    out: options.Out = Path("perfctl-runs"),
    store: options.Store = None,
    timeout: options.Timeout = None,
    again: options.Again = False,
    dry_run: options.DryRun = False,
) -> None:
    """Sweep under DLProf (its last release is of 2021): utilisation, tensor core use, time by operation.

    Options that are not listed here go to the workload.
    """
    from perfctl.orchestrator.cli.run_sweep import Asked, run_sweep
    from perfctl.orchestrator.launch.dlprof import DLProf

    asked = Asked(
        batches,
        workload,
        device,
        out,
        store,
        timeout,
        again,
        dry_run,
        mode,
        steps,
        warmup,
        precision,
        tuple(context.args),
    )
    run_sweep(DLProf(mode=dlprof_mode), asked)
