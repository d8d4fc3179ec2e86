"""perfctl replay"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options


def replay(
    folder: Annotated[
        Path, typer.Argument(help="A recorded sweep: a folder with b16, b32, ... in it.")
    ],
    batches: Annotated[
        str | None, typer.Option("--batches", "-b", help="Default: all that were recorded.")
    ] = None,
    out: options.Out = Path("perfctl-runs"),
    store: options.Store = None,
    timeout: options.Timeout = None,
    grace: options.Grace = None,
    no_store: options.NoStore = False,
    sweep_name: options.SweepName = None,
    scratch: options.Scratch = None,
    again: options.Again = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Replay a recorded sweep of any profiler, without a GPU or the tool. Its runs are marked as
    recorded everywhere."""
    from perfctl.orchestrator.actions.sweep.options import SweepOptions
    from perfctl.orchestrator.actions.sweep.sweep import replay_request
    from perfctl.orchestrator.cli.measure.profilers import run_and_print

    asked = SweepOptions(
        out=out,
        timeout=timeout,
        grace=grace,
        no_store=no_store,
        sweep_name=sweep_name,
        scratch=scratch,
        again=again,
        command_line=console.command_line(),
    )
    if batches:
        asked = replace(asked, batches=options.batch_list(batches))
    request = replay_request(folder, asked, all_batches=not batches)
    run_and_print(request, store, options.SweepOutput(dry_run, as_json))
