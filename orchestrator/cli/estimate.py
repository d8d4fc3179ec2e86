"""perfctl estimate"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.estimation import Estimate, Request
    from perfctl.orchestrator.analyse.memory import Fit


def estimate(
    model: Annotated[str, typer.Argument(help="mnist_cnn, torchvision:NAME, package.module:factory, file.py:factory.")],
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
    layer: Annotated[str | None, typer.Option(help="Dotted path of one layer.")] = None,
    sheet: Annotated[bool, typer.Option("--sheet", help="Work the layer out, line by line.")] = False,
    form: Annotated[str, typer.Option("--format", help="Of the sheet: text, markdown or html.")] = "text",
    check: Annotated[int | None, typer.Option(help="A hand value: which slip explains it?")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Device memory (8GiB): what a step needs, and the largest batch that fits.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="meta (no data, no memory) or cpu, for models that look at data.")
    ] = "meta",
    as_json: options.Json = False,
) -> None:
    """Work out FLOPs, bytes and memory of any model from its shapes alone. 1 multiply-add is 2 FLOPs."""
    from perfctl.estimation import Request, need_torch

    sizes = options.batch_list(batches) if batches else (batch,)
    request = Request(model, tuple(given or ()), mode, optimizer, device, memory is not None)
    limit = _check(request, layer, sheet or check is not None, form, memory)
    need_torch()
    session = _open(request)
    found = {size: session.at(size) for size in sizes}
    first = found[sizes[0]]
    if layer is not None and (sheet or check is not None):
        _layer(first, layer, sheet, form, check)
    elif as_json:
        fit = session.largest(limit) if limit is not None and first.problem is None else None
        console.as_json(_whole_json(request, found, fit))
    else:
        _print(found, layer)
        if limit is not None and first.problem is None:
            from perfctl.orchestrator.report import model_table

            console.result("\n" + model_table.fit_text(session.largest(limit), limit))
    problems = [f"batch {size}: {one.problem}" for size, one in found.items() if one.problem is not None]
    if problems:
        raise PartlyDone(f"{problems[0]}. What is shown is what came before", None)


def _check(request: Request, layer: str | None, one_layer: bool, form: str, memory: str | None) -> int | None:
    """Everything that can be wrong before anything is built; the memory limit in bytes."""
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
    if one_layer and layer is None:
        raise UsageError("--sheet and --check work on one layer", "Name it: --layer conv2")
    return options_bytes(memory) if memory is not None else None


def options_bytes(text: str) -> int:
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


def _open(request: Request) -> Any:
    from perfctl.estimation import Session
    from perfctl.workloads.models import ModelError

    try:
        return Session(request)
    except ModelError as error:
        kind = PerfctlError if error.raised else UsageError
        raise kind(error.message, error.remedy) from error


def _layer(found: Estimate, layer: str, sheet: bool, form: str, check: int | None) -> None:
    from perfctl.orchestrator.analyse import check as checking
    from perfctl.orchestrator.analyse.sheet import layers_of, sheet_for
    from perfctl.orchestrator.report.sheet_text import FORMS

    worked = sheet_for(found.ops, layer)
    if worked is None:
        raise UsageError(f"--layer: '{layer}' computes nothing here", f"Layers: {', '.join(layers_of(found.ops)[:20])}")
    if sheet:
        console.result(FORMS[form](worked).rstrip("\n"))
    if check is not None:
        if worked.facts is None:
            raise UsageError(f"--check: {layer} ({worked.kind}) is no single product", "It works on Conv and Linear")
        console.result(checking.explain(checking.check(check, worked.facts)))


def _print(found: dict[int, Estimate], layer: str | None) -> None:
    from perfctl.orchestrator.report import model_table

    first = next(iter(found.values()))
    calls = [call for call in first.calls if layer is None or call.layer == layer]
    modules = [module for module in first.modules if layer is None or module.path == layer]
    if layer is not None and not calls and not modules:
        raise UsageError(f"--layer: the model has no '{layer}'", "Leave --layer out to see them all")
    parts = [model_table.model_table(modules, calls)]
    if first.backward.macs or first.recompute.macs:
        parts.append(model_table.directions_table(calls, bool(first.recompute.macs)))
    parts.append(model_table.totals_text(first))
    if first.memory is not None:
        parts.append(model_table.memory_text(first.memory))
    if len(found) > 1:
        rows = [
            (size, one.forward, one.backward, one.memory.peak.bytes if one.memory else None)
            for size, one in found.items()
        ]
        parts.append(model_table.batches_table(rows))
    console.result("\n\n".join(part for part in parts if part))


def _whole_json(request: Request, found: dict[int, Estimate], fit: Fit | None) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "model": request.model,
        "mode": request.mode,
        "batches": {size: _json(one) for size, one in found.items()},
        "largest_batch": asdict(fit) if fit is not None else None,
    }


def _json(found: Estimate) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "parameters": found.parameters,
        "trainable": found.trainable,
        "forward": asdict(found.forward),
        "backward": asdict(found.backward),
        "recompute": asdict(found.recompute),
        "layers": [call._asdict() for call in found.calls],
        "modules": [asdict(module) for module in found.modules],
        "memory": asdict(found.memory) if found.memory is not None else None,
        "data_dependent": found.data_dependent,
        "problem": found.problem,
    }
