"""perfctl study cost"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.measure.bench import Budget, Device, Threads, listening
from perfctl.orchestrator.cli.study.shared import DryRun, Out, Quick, Recorded, show_parts, write_and_show

Design = Annotated[
    Path | None,
    typer.Option("--design", metavar="FILE", help="Networks to measure, as of perfctl bench. Default: four families."),
]
Models = Annotated[
    str, typer.Option(metavar="NAMES", help="torchvision models in the calculator: all, none, or resnet50,vgg16.")
]
Prices = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Price table (CSV) of the calculator; default: the one of 'perfctl prices'."),
]


def cost(
    design: Design = None,
    device: Device = None,
    threads: Threads = None,
    budget: Budget = None,
    models: Models = "none",
    prices: Prices = None,
    quick: Quick = False,
    dry_run: DryRun = False,
    source: Recorded = None,
    out: Out = Path("study-cost"),
) -> None:
    """Measure VGG, ResNet, Inception and fully connected networks, and write what their time, memory and FLOPs go with.

    Fits a predictor, shows its error for networks left out, and writes the calculator's page. 1 multiply-add = 2 FLOPs.
    """
    from perfctl.orchestrator.actions.bench import seconds
    from perfctl.orchestrator.actions.study import cost as actions
    from perfctl.orchestrator.actions.study.folder import StudyFolder
    from perfctl.orchestrator.report.studies import cost as page

    request = actions.CostRequest(
        StudyFolder(out), design, quick, device, threads, seconds(budget) if budget is not None else None, models,
        source, console.command_line(), prices,
    )  # fmt: skip
    if dry_run:
        show_parts(actions.parts(request))
        return
    done = actions.study_cost(request, listening, console)
    write_and_show(
        lambda: page.study_page(
            done.points, done.observations, done.fits, calculator=done.calculator, missing=done.missing,
            origin=f"recorded in {source}" if source else None, command=console.command_line(),
        ),
        request.folder,
    )  # fmt: skip
    if done.calculator:
        console.result(f"Wrote {request.folder.path / done.calculator}")
    done.check()
