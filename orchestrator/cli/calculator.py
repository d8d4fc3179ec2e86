"""perfctl calculator"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options, output

if TYPE_CHECKING:
    from perfctl.orchestrator.report.calculator_data import Known


def calculator(
    out: Annotated[Path, typer.Option(help="The page.")] = Path("calculator.html"),
    models: Annotated[
        str, typer.Option(metavar="NAMES", help="torchvision models in it: all, none, or resnet50,vgg16.")
    ] = "all",
    store: Annotated[Path, typer.Option("--db", "--store", help="Its runs are used where it is there.")] = DEFAULT,
    force: output.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write one offline page that predicts time, cost and memory of a training, for any choice at once.

    It has the same models inside as 'perfctl predict' and gives the same numbers. 1 multiply-add is 2 FLOPs.
    """
    output.check_free(out, force=force)
    text, known = _page(store, models)
    with output.replacing(out, force=force) as partial:
        partial.write_text(text, encoding="utf-8")
    size, models_in, devices = len(text.encode()), len(known.models), len(known.places)
    if as_json:
        console.as_json({"path": str(out), "bytes": size, "models": models_in, "devices": devices})
    else:
        console.result(f"Wrote {out} ({size / 1e6:.1f} MB, {models_in} torchvision models, {devices} devices)")


def _page(store: Path, models: str) -> tuple[str, Known]:
    """The page's text and what is in it."""
    from datetime import UTC, datetime

    from perfctl import __version__
    from perfctl.orchestrator.actions.prices import load
    from perfctl.orchestrator.cli.calculator_known import places, store_and_devices
    from perfctl.orchestrator.cli.calculator_models import names_of, trace_all
    from perfctl.orchestrator.report import calculator_data
    from perfctl.orchestrator.report.calculator_view import page_view
    from perfctl.orchestrator.report.page import render_calculator
    from perfctl.workloads.plan import PARAMETERS

    names, prices = names_of(models), load()
    learned, devices = store_and_devices(store)
    traced, left_out = trace_all(names)
    known = calculator_data.Known(
        PARAMETERS,
        traced,
        tuple(places(learned, devices, prices.prices)),
        learned.fits,
        learned.measured,
        prices.prices,
    )
    view = page_view(
        known,
        date=datetime.now(UTC).date().isoformat(),
        version=__version__,
        prices_from=prices.where,
        notes=(*learned.notes, *left_out),
    )
    return render_calculator(view), known
