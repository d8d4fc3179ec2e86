"""perfctl study speedup"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.measure.speedup import Allow, Ways
from perfctl.orchestrator.cli.study.shared import DryRun, Out, Quick, Recorded, show_parts, write_and_show

Unet = Annotated[
    str | None,
    typer.Option(metavar="WORDS", help="Options of U-Net, in quotation marks: '--base-width 32 --samples 512'."),
]
Lstm = Annotated[
    str | None, typer.Option(metavar="WORDS", help="Options of the BiLSTM: '--hidden 64 --length 32 --samples 512'.")
]
Epochs = Annotated[int | None, typer.Option(min=0, help="Whole epochs after the measured steps. Default: 5; quick: 3.")]


def speedup(
    devices: Ways = "auto",
    batches: options.Batches = "16",
    steps: options.Steps = None,
    epochs: Epochs = None,
    unet: Unet = None,
    lstm: Lstm = None,
    repeat: options.Repeat = 1,
    timeout: options.Timeout = None,
    allow: Allow = None,
    peaks: options.Peaks = "published",
    quick: Quick = False,
    dry_run: DryRun = False,
    source: Recorded = None,
    out: Out = Path("study-speedup"),
) -> None:
    """Train U-Net and BiLSTM on each device, and write one page: how many times faster, how sure, and why.

    Without a GPU it compares ways of the CPU. Runs of another machine come in with --from. 1 multiply-add = 2 FLOPs.
    """
    from perfctl.orchestrator.actions.study import speedup as actions
    from perfctl.orchestrator.actions.study.folder import StudyFolder
    from perfctl.orchestrator.actions.sweep.options import SweepOptions
    from perfctl.orchestrator.cli.measure.profilers import listening
    from perfctl.orchestrator.report.studies import speedup as page

    request = actions.SpeedupRequest(
        StudyFolder(out), devices, options.batch_list(batches), steps, epochs,
        SweepOptions(repeat=repeat, timeout=timeout, command_line=console.command_line()),
        {"unet": tuple(shlex.split(unet or "")), "lstm": tuple(shlex.split(lstm or ""))},
        quick, source, tuple(options.names(allow)), peaks,
    )  # fmt: skip
    if dry_run:
        show_parts(actions.parts(request))
        return
    done = actions.study_speedup(request, listening, console)
    origin = f"recorded in {source}" if source else None
    write_and_show(
        lambda: page.study_page(
            done.speedups, done.runs, missing=done.missing, origin=origin,
            command=console.command_line(),
        ),
        request.folder,
    )  # fmt: skip
    done.check()
