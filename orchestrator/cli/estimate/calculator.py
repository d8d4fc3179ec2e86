"""perfctl calculator"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.files import check_free, replacing
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options

if TYPE_CHECKING:
    from perfctl.orchestrator.report.calculator import Known


def calculator(
    out: Annotated[Path, typer.Option(help="The page.")] = Path("calculator.html"),
    models: Annotated[
        str, typer.Option(metavar="NAMES", help="torchvision models in it: all, none, or resnet50,vgg16.")
    ] = "all",
    store: Annotated[Path, typer.Option("--db", "--store", help="Its runs are used where it is there.")] = DEFAULT,
    force: console.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write one offline page that predicts time, cost and memory of a training, for any choice at once.

    Its times are those of 'perfctl predict', worked out ahead, to within 1 %. Opened through 'perfctl serve' it also takes
    the families' parameters. 1 multiply-add is 2 FLOPs.
    """
    check_free(out, force=force)
    text, known = _page(store, models)
    with replacing(out, force=force) as partial:
        partial.write_text(text, encoding="utf-8")
    size, devices = len(text.encode()), len(known.places)
    traced = sum(model.network.family == "torchvision" for model in known.models)
    if as_json:
        console.as_json({"path": str(out), "bytes": size, "models": traced, "devices": devices})
    else:
        console.result(f"Wrote {out} ({size / 1e6:.1f} MB, {traced} torchvision models, {devices} devices)")


def _page(store: Path, models: str) -> tuple[str, Known]:
    """The page's text and what is in it."""
    from datetime import UTC, datetime

    from perfctl import __version__
    from perfctl.orchestrator.actions.predict.calculator import gather
    from perfctl.orchestrator.report.calculator import page_view
    from perfctl.orchestrator.report.page.page import render_calculator

    known = gather(store, models, _progress)
    for sentence in known.left_out:
        console.warning(sentence)
    view = page_view(known, date=datetime.now(UTC).date().isoformat(), version=__version__)
    return render_calculator(view), known


def _progress(model: str, place: int, total: int) -> None:
    if sys.stderr.isatty() or place % 10 == 1:
        console.note(f"working out {model} ({place} of {total})")
