"""Write one offline page that predicts a training for any choice."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Option,
    api,
)
from perfctl.orchestrator.files import check_free, replacing
from perfctl.orchestrator.report.view import View
from perfctl.version import __version__

if TYPE_CHECKING:
    from perfctl.orchestrator.report.calculator import Known


@dataclass(frozen=True, slots=True)
class CalculatorPage:
    """The page that was written."""

    path: Path
    bytes: int
    models: int
    """Models of torchvision on it."""
    devices: int


@dataclass(frozen=True, slots=True)
class CalculatorOptions:
    """Write one offline page that predicts time, cost and memory of a training, for any choice at
    once.

    Its times are those of 'perfctl predict', computed ahead, to within 1%. Opened through 'perfctl
    serve' it also takes the families' parameters. 1 multiply-add is 2 FLOPs.

    Raises UsageError for a model that torchvision does not have and if the page exists,
    PerfctlError for a store or price table that cannot be read.
    """

    out: Annotated[Path, Option("The page.", "Output", names=("--out", "-o"))] = Path(
        "calculator.html"
    )
    _: KW_ONLY
    models: Annotated[
        str,
        Option("torchvision models in it: all, none, or resnet50,vgg16.", metavar="NAMES"),
    ] = "all"
    store: Annotated[Path, Option("The store whose runs are used, if it exists.")] = DEFAULT_STORE
    prices: Annotated[
        Path | None, Option("A price table (CSV). Default: your own, else perfctl's.")
    ] = None
    force: Force = False


def run(asked: CalculatorOptions, events: Events) -> CalculatorPage:
    """Write the page."""
    known = write_page(asked, events)
    traced = sum(model.network.family == "torchvision" for model in known.models)
    return CalculatorPage(asked.out, asked.out.stat().st_size, traced, len(known.places))


def write_page(asked: CalculatorOptions, events: Events) -> Known:
    """Write the page and return what is in it."""
    check_free(asked.out, force=asked.force)
    from perfctl.orchestrator.actions.predict.calculator import gather, kept_models
    from perfctl.orchestrator.actions.predict.traced_models import libraries
    from perfctl.orchestrator.report.calculator import page_view
    from perfctl.orchestrator.report.page.page import render_calculator

    kept = kept_models()
    known = gather(asked.store, asked.models, events.progress, asked.prices, kept)
    if kept.from_table:
        versions = " and ".join(f"{name} {version}" for name, version in libraries().items())
        events.note(
            f"{len(kept.from_table)} models are from the table that comes with perfctl, traced "
            f"with {versions}, as installed here"
        )
    for sentence in known.left_out:
        events.warning(sentence)
    events.progress("writing the page", 0, 1)
    today = datetime.now(UTC).date().isoformat()
    text = render_calculator(page_view(known, date=today, version=__version__))
    with replacing(asked.out, force=asked.force) as partial:
        partial.write_text(text, encoding="utf-8")
    return known


def view(page: CalculatorPage) -> View:
    """Return what was written."""
    return View(
        f"Wrote {page.path} ({page.bytes / 1e6:.1f} MB, {page.models} torchvision models, "
        f"{page.devices} devices)"
    )


COMMAND = Command(CalculatorOptions, run, view, has_document=False)
calculator = api(CalculatorOptions, run)
