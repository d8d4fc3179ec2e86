"""perfctl speedup"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from perfctl.orchestrator.actions import speedup as actions
from perfctl.orchestrator.cli import commands, console, options
from perfctl.orchestrator.cli.commands import CONTEXT
from perfctl.orchestrator.commands.declare import words
from perfctl.orchestrator.launch.sweep.options import PLACEMENT, SweepOptions

_SET_HERE = (
    "mode",
    "precision",
    "device",
    "batch_env",
    "step_marker",
    "sweep_name",
    "no_store",
    *PLACEMENT,
)
"""Options of sweeps that make no sense here, or that this command sets itself."""
_SWEPT = commands.declared_by(SweepOptions, but=_SET_HERE)
_SWEPT["batches"] = replace(_SWEPT["batches"], default=(16,))
_SWEPT["workload"] = replace(
    _SWEPT["workload"],
    default="unet",
    option=replace(_SWEPT["workload"].option, help="Built-in workload that trains."),
)

Ways = Annotated[
    str,
    typer.Option(
        "--devices",
        metavar="LIST",
        help=(
            "What to compare, the others with the first: cpu, cuda, each with :tf32 (cuda), :bf16, "
            ":fp16 (cuda) or :compile. auto: cpu and cuda; without a GPU cpu, cpu:bf16 and "
            "cpu:compile."
        ),
    ),
]
Epochs = Annotated[
    int, typer.Option("--epochs", min=0, help="Whole epochs after the measured steps.")
]
OfRuns = Annotated[
    str | None,
    typer.Option(
        "--runs",
        metavar="A,B,...",
        help="Run nothing: compare these sweeps, runs or reports with A.",
    ),
]
Page = Annotated[
    Path | None, typer.Option("--page", help="The page. Default: WORKLOAD_speedup.html beside OUT.")
]
Charts = Annotated[
    Path | None,
    typer.Option(
        "--charts", metavar="DIR", help="Write the page's charts as PDF for a paper, too."
    ),
]
Allow = Annotated[
    str | None,
    typer.Option(
        "--allow", metavar="LIST", help=f"Facts that may differ: {', '.join(actions.ALLOWED)}."
    ),
]


def _command() -> Callable[..., None]:
    def speedup(
        context: typer.Context,
        devices: str,
        epochs: int,
        runs: str | None,
        page: Path | None,
        allow: str | None,
        charts: Path | None,
        peaks: str,
        as_json: bool,
        **given: Any,
    ) -> None:
        """Train on each device and precision, a process each, and show how many times faster each
        is, and where.

        Options that are not listed here go to the workload: --base-width, --image-size (unet),
        --hidden, --length (lstm), --seed, --data. Runs of other machines are added with --runs, or
        ingested and named there.
        """
        asked = SweepOptions(
            **commands.values_of(_SWEPT, given), command_line=console.command_line()
        )
        if runs is not None:
            if page is None and not as_json:
                console.note("no page is written without --page FILE")
            result = actions.speedup_of(
                words(runs),
                store=actions.store_of(asked),
                allow=words(allow or ""),
                peaks=peaks,
                messages=console,
            )
        else:
            page = page or asked.out.parent / f"{asked.workload}_speedup.html"
            with commands.show_events(context.command) as events:
                result = actions.speedup(
                    devices,
                    asked,
                    arguments=context.args,
                    epochs=epochs,
                    allow=words(allow or ""),
                    peaks=peaks,
                    events=events,
                )
        _show(result, page, charts, as_json=as_json)
        result.check()

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        CONTEXT,
        inspect.Parameter("devices", kind, annotation=Ways, default="auto"),
        inspect.Parameter("epochs", kind, annotation=Epochs, default=5),
        inspect.Parameter("runs", kind, annotation=OfRuns, default=None),
        inspect.Parameter("page", kind, annotation=Page, default=None),
        inspect.Parameter("allow", kind, annotation=Allow, default=None),
        inspect.Parameter("charts", kind, annotation=Charts, default=None),
        inspect.Parameter("peaks", kind, annotation=options.Peaks, default="published"),
        *commands.parameters_of(_SWEPT),
        inspect.Parameter("as_json", kind, annotation=options.Json, default=False),
    ]
    return commands.with_parameters(speedup, parameters, inspect.getdoc(speedup) or "")


speedup = _command()


def _show(
    result: actions.SpeedupResult, page: Path | None, charts: Path | None, *, as_json: bool
) -> None:
    from perfctl.orchestrator.report import speedup as speedup_text

    if as_json:
        console.as_json(result.studies, "speedup")
    else:
        console.view(speedup_text.speedup_view(result.studies), None)
    for path in actions.write_speedup(result, page, charts):
        (console.note if as_json else console.result)(f"Wrote {path}")
