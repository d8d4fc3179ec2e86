"""perfctl estimate"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.estimation import Estimate, Request, Session
    from perfctl.orchestrator.analyse.sheet import Sheet


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            help="mnist_cnn, unet, lstm, torchvision:NAME, resnet:depth=26,width=32, package.module:factory, file.py:factory."
        ),
    ],
    given: Annotated[
        list[str] | None,
        typer.Option("--input", help="Shape of one sample: 3x224x224, int64:128, 100xNx8 (N: batch). Once an input."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    batches: Annotated[str | None, typer.Option("--batches", "-b", help="Several batch sizes: 16,32,64.")] = None,
    mode: Annotated[str, typer.Option(help="train (with backward) or infer.")] = "train",
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, momentum, adam, adamw, adadelta, rmsprop; default: the workload's own.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Dotted path of one layer; (model) for the model itself.")] = None,
    sheet: Annotated[bool, typer.Option("--sheet", help="Work the layer out, line by line.")] = False,
    form: Annotated[str, typer.Option("--format", help="Of the sheet: text, markdown or html.")] = "text",
    check: Annotated[int | None, typer.Option(help="A hand value: which slip explains it?")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Device memory (8GiB): what a step needs, and the largest batch that fits.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="For --memory: sm_90, 9.0 or h100.")] = None,
    device: Annotated[
        str, typer.Option(help="meta (no data, no memory) or cpu, for models that look at data.")
    ] = "meta",
    all_rows: Annotated[
        bool, typer.Option("--all", help="A row for every operation and direction, with bytes.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Work out FLOPs, bytes and memory of any model from its shapes alone. 1 multiply-add is 2 FLOPs."""
    from perfctl.estimation import Request, need_torch
    from perfctl.orchestrator.report import estimate_view, model_table

    sizes = options.batch_list(batches) if batches else (batch,)
    limit = _bytes(memory) if memory is not None else None
    request = Request(model, tuple(given or ()), mode, optimizer, device, memory is not None, _capability(gpu))
    one_layer = sheet or check is not None
    _check(request, sizes, form)
    need_torch()
    with warnings.catch_warnings():
        # A CUDA build of torch beside an old driver library says so in the first backward; nothing here runs on CUDA.
        warnings.filterwarnings("ignore", message="CUDA initialization", category=UserWarning)
        session = _open(request)
        found = {size: session.at(size) for size in sizes}
        whole = all(one.problem is None for one in found.values())
        fit = session.largest(limit) if limit is not None and whole and not one_layer else None
    problems = [f"batch {size}: {one.problem}" for size, one in found.items() if one.problem is not None]
    if one_layer:
        _layer(model, found, layer, form if sheet else None, check, problems, as_json)
    else:
        shown = {size: _part(one, layer) for size, one in found.items()}
        if as_json:
            console.as_json(estimate_view.as_json(model, mode, shown, fit))
        else:
            text = estimate_view.as_text(shown, all_rows)
            console.result(text + (f"\n\n{model_table.fit_text(fit, limit)}" if fit is not None and limit else ""))
    if problems:
        raise PartlyDone(f"{problems[0]}. What is shown is what came before", None)


def _check(request: Request, sizes: tuple[int, ...], form: str) -> None:
    """Everything that can be wrong before anything is built."""
    from perfctl.estimation import MODES, OPTIMIZER_NAMES
    from perfctl.orchestrator.report.sheet_text import FORMS

    for name, value, known in (
        ("--mode", request.mode, MODES),
        ("--optimizer", request.optimizer, (None, *OPTIMIZER_NAMES)),
        ("--format", form, tuple(FORMS)),
        ("--device", request.device, ("meta", "cpu", "cuda")),
    ):
        if value not in known:
            raise UsageError(f"{name}: '{value}' is not known", f"Say {', '.join(word for word in known if word)}")
    if any(size < 1 for size in sizes):
        raise UsageError("--batches: a batch size is 1 or more", "Say for instance --batches 16,32,64")


def _capability(gpu: str | None) -> tuple[int, int] | None:
    from perfctl.orchestrator.analyse.memory import CAPABILITIES, capability

    found = capability(gpu) if gpu is not None else None
    if gpu is not None and found is None:
        raise UsageError(f"--gpu: '{gpu}' is not known", f"Say sm_90, 9.0 or one of {', '.join(CAPABILITIES)}")
    return found


def _bytes(text: str) -> int:
    """ "8GiB", "500MB" or "8589934592" as bytes. Raises UsageError."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "G": 2**30}
    number = text.strip().rstrip("BGIKMbgikm ")
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * units[unit])
    except (KeyError, ValueError, OverflowError):
        raise UsageError(f"--memory: '{text}' is no size", "Say for instance 8GiB or 24GB") from None
    if size <= 0:
        raise UsageError(f"--memory: '{text}' is no size", "Say for instance 8GiB or 24GB")
    return size


def _open(request: Request) -> Session:
    from perfctl.estimation import Session
    from perfctl.workloads.models import ModelError

    try:
        return Session(request)
    except ModelError as error:
        kind = PerfctlError if error.raised else UsageError
        raise kind(error.message, error.remedy) from error


def _part(found: Estimate, layer: str | None) -> Estimate:
    from perfctl.orchestrator.report.estimate_view import part_of

    if layer is None:
        return found
    part = part_of(found, "" if layer == "(model)" else layer)
    if part is None:
        names = [module.path for module in found.modules if module.path]
        raise UsageError(f"--layer: the model has no '{layer}'", _names("It has", names))
    return part


def _names(said: str, names: list[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{said}: {', '.join(name or '(model)' for name in names[:20])}{more}" if names else "Leave --layer out"


def _layer(
    model: str,
    found: dict[int, Estimate],
    layer: str | None,
    form: str | None,
    check: int | None,
    problems: list[str],
    as_json: bool,
) -> None:
    """Print the layer's sheet and what the hand value is, for every batch size."""
    from perfctl.orchestrator.analyse import check as checking
    from perfctl.orchestrator.report.estimate_view import sheet_json
    from perfctl.orchestrator.report.sheet_text import FORMS

    sheets = {size: _sheet(one, layer) for size, one in found.items()}
    findings = {}
    for size, sheet in sheets.items():
        if check is None:
            continue
        if sheet.facts is None:
            raise UsageError(
                f"--check: {layer} ({sheet.kind}) has no multiply-adds", "It works on layers that have some"
            )
        findings[size] = checking.check(check, sheet.facts)
    if as_json:
        console.as_json(sheet_json(model, sheets, findings, problems))
        return
    texts = []
    for size, sheet in sheets.items():
        texts.append(f"batch {size}" if len(sheets) > 1 and form in (None, "text") else "")
        texts.append(FORMS[form](sheet).rstrip("\n") if form is not None else "")
        texts.append(checking.explain(findings[size]) if size in findings else "")
    console.result("\n".join(text for text in texts if text))


def _sheet(found: Estimate, layer: str | None) -> Sheet:
    from perfctl.orchestrator.analyse.sheet import layers_of, sheet_for

    names = list(layers_of(found.ops))
    if layer is None and len(names) != 1:
        raise UsageError("--sheet and --check work on one layer", _names("Name it with --layer; there are", names))
    path = names[0] if layer is None else "" if layer == "(model)" else layer
    output = next((module.output for module in found.modules if module.path == path), None)
    worked = sheet_for(found.ops, path, output)
    if worked is None:
        raise UsageError(f"--layer: '{layer}' computes nothing here", _names("Layers", names))
    return worked
