"""perfctl replay"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import options


def replay(
    folder: Annotated[Path, typer.Argument(help="A recorded sweep: a folder with b16, b32, ... in it.")],
    batches: Annotated[str | None, typer.Option("--batches", "-b", help="Default: all that were recorded.")] = None,
    out: options.Out = Path("perfctl-runs"),
    store: options.Store = None,
    timeout: options.Timeout = None,
    grace: options.Grace = 3.0,
    no_store: options.NoStore = False,
    sweep_name: options.SweepName = None,
    scratch: options.Scratch = None,
    again: options.Again = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Replay a recorded sweep of any profiler: needs no GPU and no tool, and is marked as recorded everywhere."""
    from perfctl.orchestrator.cli.run_sweep import run_sweep
    from perfctl.orchestrator.cli.sweep_command import Asked
    from perfctl.orchestrator.launch.replay import Replay

    recorded = Replay(folder)
    sizes = options.batch_list(batches) if batches else recorded.batches()
    asked = Asked(
        batches=",".join(map(str, sizes)),
        repeat=recorded.repeats(sizes),
        workload=recorded.workload(),
        device=recorded.device(),
        out=out,
        store=store,
        timeout=timeout,
        grace=grace,
        no_store=no_store,
        sweep_name=sweep_name,
        scratch=scratch,
        again=again,
        dry_run=dry_run,
        as_json=as_json,
    )
    run_sweep(recorded, asked, origin="recorded")
