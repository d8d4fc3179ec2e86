"""perfctl nsys"""

from __future__ import annotations

from pathlib import Path

import typer

from perfctl.orchestrator.cli import options


def nsys(
    context: typer.Context,
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
    """Sweep under Nsight Systems: time of every range, kernel and copy.

    Options that are not listed here go to the workload (python -m perfctl.workloads WORKLOAD --help lists them).
    """
    from perfctl.orchestrator.cli.run_sweep import Asked, run_sweep
    from perfctl.orchestrator.launch.nsys import Nsys

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
    run_sweep(Nsys(), asked)
