"""Write one offline page that predicts a training for any choice."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Option,
    make_api_function,
)
from perfctl.orchestrator.estimate.session import silence_driver_warning
from perfctl.orchestrator.evidence import build_evidence_for_all_devices
from perfctl.orchestrator.files import (
    get_perfctl_user_folder,
    raise_if_output_not_replaceable,
    replace_when_done,
)
from perfctl.orchestrator.predict.models.calculator import (
    CalculatorModel,
    ModelCache,
    build_family_calculator_model,
    get_library_versions,
    load_shipped_model_table,
    parse_torchvision_model_names,
    trace_calculator_model,
)
from perfctl.orchestrator.report.calculator import (
    CalculatorContents,
    ListedDevice,
    build_calculator_page,
)
from perfctl.orchestrator.report.view import View
from perfctl.version import __version__
from perfctl.workloads.models.plan import PARAMETERS

if TYPE_CHECKING:
    from perfctl.orchestrator import pool
    from perfctl.orchestrator.counts.hardware.machines import Device
    from perfctl.orchestrator.predict.predict import Evidence
    from perfctl.orchestrator.predict.prices import Price

Progress = Callable[[str, int, int], None]
"""Takes what is being done now, the parts done before it, and how many there are."""
PARALLEL_MODELS_MIN = 8
"""Number of models from which several processes trace them: each takes seconds to import torch."""
TRACE_SECONDS_MAX = 300.0
"""Seconds after which the process that traces a model is ended."""


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
    """Write an offline HTML calculator for training time, cost and memory.

    Its times are within 0.5% of those of 'perfctl predict'. Through 'perfctl serve', it also
    accepts the parameters of the families. 1 multiply-add = 2 FLOPs.

    Raises UsageError for a model that torchvision does not have and if the page exists,
    PerfctlError for a store or price table that cannot be read.
    """

    out: Annotated[Path, Option("HTML file.", "Output")] = Path("calculator.html")
    _: KW_ONLY
    models: Annotated[
        str,
        Option(
            "torchvision models to include: all, none, or names such as resnet50,vgg16.",
            metavar="NAMES",
        ),
    ] = "all"
    store: Annotated[
        Path, Option("Results database whose runs are used for predictions, if it exists.")
    ] = DEFAULT_STORE
    prices: Annotated[
        Path | None,
        Option("Price table (CSV). Default: your table if you set one, otherwise perfctl's."),
    ] = None
    force: Force = False


def write_calculator(options: CalculatorOptions, events: Events) -> CalculatorPage:
    """Write the page."""
    contents = write_calculator_page(options, events)
    traced = sum(model.network.family == "torchvision" for model in contents.models)
    return CalculatorPage(options.out, options.out.stat().st_size, traced, len(contents.devices))


def write_calculator_page(options: CalculatorOptions, events: Events) -> CalculatorContents:
    """Write the page and return what is in it."""
    raise_if_output_not_replaceable(options.out, force=options.force)
    from perfctl.orchestrator.report.page.page import render_view_as_html

    cache = get_perfctl_user_folder("XDG_CACHE_HOME", "~/.cache") / "traces"
    cached_models = ModelCache(cache, load_shipped_model_table())
    contents = _gather_calculator_contents(options, cached_models, events.progress)
    if cached_models.from_table:
        versions = " and ".join(
            f"{name} {version}" for name, version in get_library_versions().items()
        )
        events.note(
            f"{len(cached_models.from_table)} models come from perfctl's table, traced with "
            f"{versions}, the "
            "installed versions"
        )
    for sentence in contents.omitted:
        events.warning(sentence)
    events.progress("writing the page", 0, 1)
    today = datetime.now(UTC).date().isoformat()
    text = render_view_as_html(
        build_calculator_page(contents, date=today, version=__version__), "calculator.html"
    )
    with replace_when_done(options.out, force=options.force) as partial:
        partial.write_text(text, encoding="utf-8")
    return contents


def _gather_calculator_contents(
    options: CalculatorOptions, cached_models: ModelCache, progress: Progress
) -> CalculatorContents:
    """Return everything that a page shows; the families are always part of it."""
    from perfctl.orchestrator.predict import prices, published

    names, missing = parse_torchvision_model_names(options.models, cached_models)
    table = prices.load_price_table(options.prices).without_doubtful_prices
    evidence, devices = build_evidence_for_all_devices(options.store)
    planned = [build_family_calculator_model(family) for family in PARAMETERS]
    traced, failed = load_or_trace_models(names, progress, cached_models)
    offers = tuple(price for price in table.prices if price.board is not None)
    return CalculatorContents(
        models=(*planned, *traced),
        devices=tuple(
            _list_device_offers_and_power(evidence, device, offers, table.prices)
            for device in devices
        ),
        fits=evidence.fits,
        measured=tuple(step for step in evidence.measured if step.case.training),
        prices=offers,
        published=published.load_shipped_fit("gpu"),
        price_source=table.name,
        notes=evidence.notes,
        omitted=(*missing, *failed),
    )


def _list_device_offers_and_power(
    evidence: Evidence, device: Device, offers: Sequence[Price], all_prices: tuple[Price, ...]
) -> ListedDevice:
    """Return a device with its link, its offers, and the power it draws: by model if that was
    measured, and "" for every other. ``all_prices``: also those that do not state their GPU
    model."""
    from perfctl.orchestrator.counts.hardware.machines import classify_gpu
    from perfctl.orchestrator.predict.prices import select_ambiguous_offers
    from perfctl.orchestrator.predict.training import choose_gpu_watts_and_source

    general = choose_gpu_watts_and_source(evidence, device, "", None)
    watts = {"": general} if general is not None else {}
    for model in sorted({draw.model for draw in evidence.power if draw.model}):
        power = choose_gpu_watts_and_source(evidence, device, model, None)
        if power is not None and power != general:
            watts[model] = power
    board = device.board
    if board is None:
        return ListedDevice(device.machine, device.source, None, "", (), watts)
    return ListedDevice(
        device.machine,
        device.source,
        board.gpu.link_gbs,
        f"{board.gpu.link}, data sheet",
        tuple(index for index, price in enumerate(offers) if price.board == board),
        watts,
        classify_gpu(board.gpu),
        len(select_ambiguous_offers(all_prices, board)),
    )


def load_or_trace_models(
    names: Sequence[str], progress: Progress, cached_models: ModelCache
) -> tuple[tuple[CalculatorModel, ...], tuple[str, ...]]:
    """Return the models, and why others are not among them. New ones go into the cache."""
    missing = [name for name in names if cached_models.find_cached_model(name) is None]
    failed: dict[str, str] = {}
    for number, (name, model) in enumerate(_trace_models_in_workers(missing, progress), 1):
        progress(f"traced {name}", number, len(missing))
        if isinstance(model, str):
            failed[name] = model
        else:
            cached_models.add_model(name, model)
    models = tuple(filter(None, map(cached_models.find_cached_model, names)))
    return models, tuple(f"{name} is not included: {reason}." for name, reason in failed.items())


def _trace_models_in_workers(
    names: Sequence[str], progress: Progress
) -> Iterator[tuple[str, CalculatorModel | str]]:
    """Yield each name with its model, or why there is none, as they are done; by one process per
    core if there are PARALLEL_MODELS_MIN."""
    from perfctl.orchestrator import pool

    jobs = len(os.sched_getaffinity(0)) if len(names) >= PARALLEL_MODELS_MIN else 1
    if jobs == 1:
        with silence_driver_warning():
            for number, name in enumerate(names):
                progress(f"tracing {name}", number, len(names))
                yield name, trace_calculator_model(f"torchvision:{name}")
        return
    # Models of one name have layers in common, and a process computes the results of equal
    # operators once.
    families = groupby(sorted(names), lambda name: re.split(r"[\d_]", name)[0])
    groups = sorted((list(group) for _, group in families), key=len, reverse=True)
    running = pool.run_in_workers(
        groups,
        _open_tracing_worker,
        processes=min(jobs, len(groups)),
        get_time_limit_s=lambda group: TRACE_SECONDS_MAX * len(group),
        may_fork=False,  # autograd does not stand being forked once it has run
    )
    with closing(running):
        for group, events in running:
            missing = list(group)
            for event in events:
                if isinstance(event, pool.WorkerLost):
                    yield from ((name, event.why) for name in missing)
                elif not isinstance(event, pool.WorkDone):
                    missing.remove(event[0])
                    yield event


@contextmanager
def _open_tracing_worker() -> Iterator[Callable[[Sequence[str], pool.Tell], None]]:
    """Yield the function that traces names in a worker, and reports each with its model or why
    there is none."""

    def trace_torchvision_models(names: Sequence[str], tell: pool.Tell) -> None:
        for name in names:
            tell((name, trace_calculator_model(f"torchvision:{name}")))

    with silence_driver_warning():
        yield trace_torchvision_models


def build_calculator_view(page: CalculatorPage) -> View:
    """Return what was written."""
    return View(
        f"Wrote {page.path} ({page.bytes / 1e6:.1f} MB, {page.models} torchvision models, "
        f"{page.devices} devices)"
    )


COMMAND = Command(CalculatorOptions, write_calculator, build_calculator_view, has_document=False)
calculator = make_api_function(CalculatorOptions, write_calculator)
