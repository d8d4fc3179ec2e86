"""perfctl calculator"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.progress import working


@dataclass(frozen=True, slots=True)
class CalculatorPage:
    """The page that was written."""

    path: Path
    bytes: int
    models: int
    """Models of torchvision on it."""
    devices: int


def calculator(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("calculator.html"),
    models: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="torchvision models in it: all, none, or resnet50,vgg16."
        ),
    ] = "all",
    store: Annotated[
        Path, typer.Option("--store", help="Its runs are used where it is there.")
    ] = DEFAULT,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A price table (CSV); default: your own, else perfctl's."
        ),
    ] = None,
    force: console.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write one offline page that predicts time, cost and memory of a training, for any choice
    at once.

    Its times are those of 'perfctl predict', worked out ahead, to within 1 %. Opened through
    'perfctl serve' it also takes the families' parameters. 1 multiply-add is 2 FLOPs.
    """
    from perfctl.orchestrator.actions.predict import calculator as actions

    with working() as steps:
        size, known = actions.calculator(
            out, models, store, table=prices, force=force, progress=steps, messages=console
        )
    devices = len(known.places)
    traced = sum(model.network.family == "torchvision" for model in known.models)
    if as_json:
        console.as_json(CalculatorPage(out, size, traced, devices), "calculator")
    else:
        console.result(
            f"Wrote {out} ({size / 1e6:.1f} MB, {traced} torchvision models, {devices} devices)"
        )
