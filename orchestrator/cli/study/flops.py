"""perfctl study flops"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.study.shared import DryRun, Out, Quick, Recorded, show_parts, write_and_show

Batch = Annotated[int, typer.Option(min=1, help="Batch size of the training, the memory figures and the hand sheet.")]
Epochs = Annotated[int | None, typer.Option(min=0, help="Epochs of the training, each with a test. Default: 14.")]
Conv2 = Annotated[
    str | None,
    typer.Option(
        metavar="IN,OUT,KERNEL,STRIDE", help="A second shape of mnist_cnn's conv2, beside the first: 32,128,5,1."
    ),
]
Layer = Annotated[
    str | None, typer.Option(help="The layer to look at closely. Default: the one with most multiply-adds.")
]
Hand = Annotated[
    list[str] | None,
    typer.Option(metavar="LAYER=N,N", help="Values worked out by hand, to be checked: conv2=141557760,514112."),
]
TimedBy = Annotated[
    str, typer.Option("--profiler", "-p", help="What times the layers: torch or nsys. ncu counts, on a GPU.")
]
PartOf = Annotated[str | None, typer.Option("--part", metavar="LABEL", help="Run this part only (tasks of a cluster).")]


def flops(
    context: typer.Context,
    workload: options.Workload = None,
    batches: Annotated[
        str | None, typer.Option("--batches", "-b", help="Batch sizes. Default: 16,32,64,128,256.")
    ] = None,
    batch: Batch = 64,
    epochs: Epochs = None,
    steps: options.Steps = None,
    conv2: Conv2 = None,
    layer: Layer = None,
    hand: Hand = None,
    device: options.Device = "auto",
    precision: options.Precision = None,
    profiler: TimedBy = "torch",
    out: Out = Path("study-flops"),
    quick: Quick = False,
    recorded: Recorded = None,
    part: PartOf = None,
    dry_run: DryRun = False,
) -> None:
    """Compare the FLOPs of a network with pen and paper: sheet, counts, time by two clocks, memory, training, one page.

    The MNIST CNN by default. Options that are not listed here go to the workload: --model resnet18 (torchvision), --data
    mnist --data-dir DIR, --seed 1. A program of your own follows --: -- python train.py --batch-size {batch}. FLOPs count
    1 multiply-add as 2. The same command again goes on where it stopped. Exit code 4: some parts failed, the rest is there.
    """
    from perfctl.orchestrator.actions.study.flops import FlopsRequest, check, parts, run_part, study_flops
    from perfctl.orchestrator.cli.measure.profilers import AFTER, listening
    from perfctl.orchestrator.cli.read.ingest import listening_to_reports
    from perfctl.orchestrator.report.studies.flops import page

    asked = FlopsRequest(
        out, workload, tuple(context.args), context.meta.get(AFTER), options.batch_list(batches) if batches else None,
        batch, epochs, steps, conv2, layer, tuple(hand or ()), device, precision, profiler, quick, recorded,
        console.command_line(),
    )  # fmt: skip
    if dry_run:
        check(asked)
        show_parts(parts(asked))
        return
    if part is not None:
        run_part(asked, part, listening=listening, messages=console)
        return
    result = study_flops(asked, listening=listening, reading=listening_to_reports, messages=console)
    write_and_show(lambda: page(result.study), asked.folder)
    result.check()
