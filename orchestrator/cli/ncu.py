"""perfctl ncu"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import options


def ncu(
    context: typer.Context,
    metrics: Annotated[
        str, typer.Option(help="flops (all that FLOPs need), fadd (one counter, the study's), or NAME,NAME,...")
    ] = "flops",
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
    """Sweep under Nsight Compute: what every kernel executed, by hardware counters.

    FLOPs count 1 multiply-add as 2. Options that are not listed here go to the workload.
    """
    from perfctl.orchestrator.cli.run_sweep import Asked, run_sweep
    from perfctl.orchestrator.launch.ncu import Ncu

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
    run_sweep(Ncu(metrics=metrics), asked)
