"""perfctl mfu"""

from __future__ import annotations

from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, flags, options
from perfctl.orchestrator.errors import UsageError


def mfu(
    model: Annotated[
        str | None,
        typer.Argument(
            help=(
                "Language model: hf:NAME, config.json, package.module:factory, file.py:factory; or "
                "dimensions."
            )
        ),
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(help="Measured throughput in training, of all GPUs together.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="GPU whose dense peak counts: H100, 'A100 SXM4 80 GB'.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="Number of GPUs that the throughput is of.")] = 1,
    precision: Annotated[
        str, typer.Option(help="Of the products: bf16, fp16, fp8, tf32, fp32, fp64.")
    ] = "bf16",
    seq: Annotated[int | None, typer.Option(help="Tokens in a sequence. Default: 2048.")] = None,
    formula: Annotated[
        str | None,
        typer.Option(
            help="6N, palm, megatron, nanogpt, olmo, torchtitan or maxtext alone. Default: all."
        ),
    ] = None,
    recompute: Annotated[
        str,
        typer.Option(
            help=(
                "Activation checkpointing, for HFU: none, selective (attention), full, or the "
                "share of the layers' forward products that runs again, as in 0.75."
            )
        ),
    ] = "none",
    reported: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="A published MFU: which formula or mistake gives it?"),
    ] = None,
    peak_tflops: Annotated[
        float | None,
        typer.Option(help="Dense TFLOP/s of one device, for one that the table does not have."),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Dimensions in place of a model: layers.")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Dimensions: width of the residual stream.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Dimensions: attention heads.")] = None,
    ffn: Annotated[int | None, typer.Option(help="Dimensions: width of the feed-forward.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Dimensions: tokens in the vocabulary.")] = None,
    head_dim: Annotated[
        int | None, typer.Option(help="Dimensions: depth of a head. Default: hidden / heads.")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Dimensions: heads of keys and values. Default: heads.")
    ] = None,
    gated: Annotated[
        bool, typer.Option("--gated", help="Dimensions: feed-forward of three matrices (SwiGLU).")
    ] = False,
    tied: Annotated[
        bool, typer.Option("--tied", help="Dimensions: LM head and token embedding share weights.")
    ] = False,
    parameters: Annotated[
        float | None,
        typer.Option(help="Dimensions: published number of parameters, as in 540.35e9."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Work out the MFU of a training run by every published formula, and say why they differ. 1
    multiply-add is 2 FLOPs."""
    from perfctl.orchestrator.actions.mfu import Dimensions
    from perfctl.orchestrator.actions.mfu import mfu as work_out
    from perfctl.orchestrator.report import mfu as view

    if tokens_per_second is None:
        raise UsageError(
            "--tokens-per-second is needed",
            "Give the measured throughput of all GPUs, as in --tokens-per-second 12000",
        )
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": vocab}
    given = {name: size for name, size in sizes.items() if size is not None}
    others = {"head_dim": head_dim, "kv_heads": kv_heads, "parameters": parameters}
    extra = (
        [name for name, value in others.items() if value is not None]
        + ["gated"] * gated
        + ["tied"] * tied
    )
    if model is not None and (given or extra):
        name = next(iter([*given, *extra])).replace("_", "-")
        raise UsageError(f"--{name} and a model together", "Name a model, or give its dimensions")
    what: str | Dimensions
    if model is not None:
        what = model
    elif len(given) == len(sizes):
        what = Dimensions(
            **given,
            gated=gated,
            tied=tied,
            head_dim=head_dim,
            kv_heads=kv_heads,
            parameters=parameters,
        )
    else:
        missing = ", ".join(f"--{name}" for name in sizes if name not in given)
        said = f"{missing} missing" if given else "no model"
        raise UsageError(
            said, "Name one, as in hf:llama, or give --layers, --hidden, --heads, --ffn and --vocab"
        )
    found = work_out(
        what,
        tokens_per_second=tokens_per_second,
        device=device,
        gpus=gpus,
        precision=precision,
        peak_tflops=peak_tflops,
        seq=seq,
        formula=formula,
        recompute=_share(recompute),
        reported=reported,
    )
    if as_json:
        console.as_json(view.mfu_output(found), "mfu")
    else:
        console.result(flags.with_flags("\n".join(view.lines(found))))


def _share(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
