"""perfctl estimate"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.cli import console, flags, options
from perfctl.orchestrator.cli.progress import working
from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.options import read_batches

if TYPE_CHECKING:
    from perfctl.orchestrator.estimate.request import Request
    from perfctl.orchestrator.estimate.sheets.sheet import Sheet
    from perfctl.orchestrator.estimate.sheets.slips import Finding


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            help=(
                "mnist_cnn, mnist_cnn:conv2=32,128,5,1, unet, lstm, torchvision:NAME, timm:NAME, "
                "hf:NAME, torchaudio:NAME, diffusers:CLASS, config.json, resnet:depth=26,width=32, "
                "package.module:factory, file.py:factory."
            )
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Shape of one sample: 3x224x224, int64:128, 100xNx8 (N: batch). Once an input.",
        ),
    ] = None,
    seq: Annotated[
        int | None,
        typer.Option(
            help="Sequence length of a library's model: tokens, or samples of a waveform."
        ),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(help="Generation: tokens that go in at once (prefill), forward only."),
    ] = None,
    generate: Annotated[
        int | None, typer.Option(help="Generation: steps of one token after the prompt (decode).")
    ] = None,
    kv_cache: Annotated[
        str | None,
        typer.Option(
            help="Generation: type of the cache: fp32, bf16, fp16, fp8, int8; none: no cache."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    batches: Annotated[
        str | None, typer.Option("--batches", "-b", help="Several batch sizes: 16,32,64.")
    ] = None,
    mode: Annotated[str, typer.Option(help="train (with backward) or infer.")] = "train",
    optimizer: Annotated[
        str | None,
        typer.Option(
            help=(
                "sgd, momentum, adam, adamw, adadelta, rmsprop, none; default: the workload's own, "
                "with --memory else momentum."
            )
        ),
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="Dotted path of one layer; (model) for the model itself.")
    ] = None,
    sheet: Annotated[
        bool,
        typer.Option("--sheet", help="Work out --layer line by line; without it, a line a layer."),
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="text, md (Markdown), tex (LaTeX) or html: the layers as one table.",
        ),
    ] = "text",
    check: Annotated[
        int | None, typer.Option(help="Your own value for the layer: which slip explains it?")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Device memory (8GiB): show what a step needs and the largest batch that fits."
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU that --memory is for: sm_90, 9.0 or h100.")
    ] = None,
    reserve: Annotated[
        str,
        typer.Option(help="What the largest batch leaves free: CUDA context, cuDNN; 0 for none."),
    ] = "1GiB",
    attention: Annotated[
        str,
        typer.Option(
            help=(
                "Attention kernel for --memory: auto (as PyTorch chooses), flash, efficient, "
                "cudnn, math."
            )
        ),
    ] = "auto",
    update: Annotated[
        str,
        typer.Option(
            help=(
                "Optimizer's update for --memory: auto (as PyTorch chooses), foreach, fused, "
                "for-loop."
            )
        ),
    ] = "auto",
    device: Annotated[
        str, typer.Option(help="meta (no data, no memory) or cpu, for models that look at data.")
    ] = "meta",
    precision: Annotated[
        str,
        typer.Option(
            help=(
                "fp32; tf32 (allowed for products, Ampere+); bf16, fp16: torch.autocast of CUDA; "
                "bf16-true, fp16-true: model.to(dtype); fp8: Linear layers, the rest bf16 "
                "(assumed). Shows FLOPs by type."
            )
        ),
    ] = "fp32",
    all_rows: Annotated[
        bool, typer.Option("--all", help="A row for every operation and direction, with bytes.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Work out FLOPs, bytes and memory of any model from its shapes alone. 1 multiply-add is
    2 FLOPs."""
    from perfctl.orchestrator.estimate.request import Request
    from perfctl.orchestrator.estimate.session import check_value, estimate_model
    from perfctl.orchestrator.report import estimate as estimate_view
    from perfctl.orchestrator.report.estimate import FORMS
    from perfctl.orchestrator.report.network_sheet import FORMS as NETWORK_FORMS

    if form not in FORMS:
        raise UsageError(f"--format: '{form}' is not known", f"Use {', '.join(FORMS)}")
    if as_json and form != "text":
        raise UsageError("--format and --json together", "Choose one")
    sheet = sheet or form != "text"  # a document is the sheet
    if sheet and memory is not None and form != "text":
        raise UsageError("--format and --memory together", "The memory figures are text or --json")
    sizes = read_batches(batches) if batches else (batch,)
    limit = _bytes("memory", memory) if memory is not None else None
    free = _bytes("reserve", reserve, least=0)
    request = Request(
        model,
        tuple(inputs or ()),
        mode,
        optimizer,
        device,
        memory is not None,
        _capability(gpu),
        seq=seq,
        prompt=prompt,
        generate=generate,
        kv_cache=kv_cache,
        precision=precision,
        attention=attention,
        update=update,
    )
    if prompt is not None:
        _generation(request, sizes, layer, sheet, form, check, all_rows, as_json)
        return
    one_layer = sheet or check is not None
    with working() as steps:
        found = estimate_model(
            request, sizes, limit=None if one_layer else limit, reserve=free, progress=steps
        )
    if sheet and layer is None and check is None:
        networks = found.network_sheets()
        if as_json:
            console.as_json(
                estimate_view.NetworkSheets(model, networks, found.problems), "estimate-sheet"
            )
        else:
            console.result(NETWORK_FORMS[form](model, networks).rstrip("\n"))
    elif one_layer:
        sheets = found.sheets(layer)
        findings = check_value(check, sheets) if check is not None else {}
        if as_json:
            layers = estimate_view.sheet_output(model, sheets, findings, found.problems)
            console.as_json(layers, "estimate-layer")
        else:
            console.result(_sheets_text(sheets, findings, form if sheet else None))
    else:
        shown = found.batches if layer is None else found.part(layer)
        if as_json:
            console.as_json(
                estimate_view.EstimateOutput(model, mode, shown, found.fit, found.notes), "estimate"
            )
        else:
            text = estimate_view.as_text(shown, all_rows, tuple(map(flags.with_flags, found.notes)))
            fit = found.fit
            console.result(
                text
                + (f"\n\n{estimate_view.fit_text(fit, limit)}" if fit is not None and limit else "")
            )
    if found.problems:
        raise PartlyDone(f"{found.problems[0]}. What is shown is what came before", None)


def _generation(
    request: Request,
    sizes: tuple[int, ...],
    layer: str | None,
    sheet: bool,
    form: str,
    check: int | None,
    all_rows: bool,
    as_json: bool,
) -> None:
    """Prefill and decode of a language model."""
    from perfctl.orchestrator.estimate.generation_steps import estimate_generation, part_of_model
    from perfctl.orchestrator.report import generation as view

    if check is not None:
        raise UsageError(
            "--check does not go with --prompt", "Check one pass: leave --prompt out and give --seq"
        )
    found = dict(estimate_generation(request, sizes))
    whole = {size: one for size, one in found.items() if one.problem is None}
    if layer is not None:
        whole = {size: part_of_model(one, layer) for size, one in whole.items()}
    if as_json:
        console.as_json(
            view.GenerationOutput(request.model, {**found, **whole}), "estimate-generation"
        )
    elif sheet and whole:
        console.result(view.FORMS[form](request.model, whole).rstrip("\n"))
    elif whole:
        notes = tuple(map(flags.with_flags, next(iter(whole.values())).notes))
        console.result(view.as_text(whole, all_rows or layer is not None, notes))
    if problem := next((one.problem for one in found.values() if one.problem is not None), None):
        raise PartlyDone(f"{problem}. Nothing is shown for what was not traced whole", None)


def _sheets_text(
    sheets: Mapping[int, Sheet], findings: Mapping[int, Finding], form: str | None
) -> str:
    """The layer's sheet (where ``form`` is given) and what the hand value is, for every
    batch size."""
    from perfctl.orchestrator.estimate.sheets.slips import explain
    from perfctl.orchestrator.report.estimate import FORMS

    texts = []
    for size, sheet in sheets.items():
        texts.append(f"batch {size}" if len(sheets) > 1 and form in (None, "text") else "")
        texts.append(FORMS[form](sheet).rstrip("\n") if form is not None else "")
        texts.append(explain(findings[size], sheet.layer) if size in findings else "")
    return "\n".join(text for text in texts if text)


def _capability(gpu: str | None) -> tuple[int, int] | None:
    from perfctl.orchestrator.estimate.memory import CAPABILITIES, capability

    found = capability(gpu) if gpu is not None else None
    if gpu is not None and found is None:
        raise UsageError(
            f"--gpu: '{gpu}' is not known", f"Use sm_90, 9.0 or one of {', '.join(CAPABILITIES)}"
        )
    return found


def _bytes(flag: str, text: str, least: int = 1) -> int:
    """ "8GiB", "500MB" or "8589934592" as bytes. Raises UsageError."""
    units = {
        "": 1,
        "B": 1,
        "KB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KIB": 2**10,
        "MIB": 2**20,
        "GIB": 2**30,
        "G": 2**30,
    }
    number = text.strip().rstrip("BGIKMbgikm ")
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * units[unit])
    except (KeyError, ValueError, OverflowError):
        size = -1
    if size < least:
        raise UsageError(f"--{flag}: '{text}' is not a size", "Write for instance 8GiB or 24GB")
    return size
