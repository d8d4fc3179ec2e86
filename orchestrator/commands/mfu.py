"""MFU of a training run by every published convention, from the layers of the model and a
measured throughput."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from perfctl.orchestrator.commands.declare import Command, Events, Option, api, word_or_number
from perfctl.orchestrator.counts.hardware.dense_peak import peak_of
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.estimate.decoder import LENGTHS, decoder_of_traces
from perfctl.orchestrator.estimate.mfu import (
    KEYS,
    RECOMPUTE,
    Audit,
    Decoder,
    audit,
    by_hand,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import (
    as_perfctl_error,
    need_torch,
    open_session,
    without_driver_warning,
)
from perfctl.orchestrator.report.mfu import mfu_output, view

if TYPE_CHECKING:
    from perfctl.orchestrator.estimate.step import Estimate

SEQ = 2048
"""Tokens of a sequence where none are given and the config says no fewer."""
TOLERANCE = 0.002
"""A reported MFU is explained by what is within this share of it (throughput and peak are rounded:
312 TFLOP/s for 311.9), or within half a unit of its last digit."""


@dataclass(frozen=True, slots=True)
class MfuOptions:
    """Compute the MFU of a training run by every published formula, and explain the differences. 1
    multiply-add = 2 FLOPs.

    Raises UsageError for a request that makes no sense and for a sparse peak, PerfctlError if even
    the smallest exact count is over 100% of the peak, ToolMissing without torch (a model by name).
    """

    model: Annotated[
        str | None,
        Option(
            "Language model: hf:NAME, config.json, package.module:factory, file.py:factory; or "
            "dimensions.",
            is_argument=True,
        ),
    ] = None
    _: KW_ONLY
    tokens_per_second: Annotated[
        float | None, Option("Measured training throughput of all GPUs together.")
    ] = None
    device: Annotated[
        str | None, Option("GPU whose dense peak is used: H100, 'A100 SXM4 80 GB'.")
    ] = None
    gpus: Annotated[int, Option("Number of GPUs that gave the throughput.")] = 1
    precision: Annotated[
        str, Option("Data type of the matrix multiplications: bf16, fp16, fp8, tf32, fp32, fp64.")
    ] = "bf16"
    seq: Annotated[int | None, Option("Tokens per sequence. Default: 2048.")] = None
    formula: Annotated[
        str | None,
        Option(
            "Only this formula: 6N, palm, megatron, nanogpt, olmo, torchtitan or maxtext. "
            "Default: all."
        ),
    ] = None
    recompute: Annotated[
        str | float,
        Option(
            "Activation checkpointing, for HFU: none, selective (attention), full, or the share "
            "of the forward FLOPs that runs again, such as 0.75.",
            parse=word_or_number,
        ),
    ] = "none"
    reported: Annotated[
        str | None,
        Option(
            "Published MFU in percent: find the formula or mistake that gives it.",
            metavar="PERCENT",
        ),
    ] = None
    peak_tflops: Annotated[
        float | None,
        Option("Dense TFLOP/s of one device, if perfctl's table does not have it."),
    ] = None
    layers: Annotated[int | None, Option("Dimensions instead of a model: layers.")] = None
    hidden: Annotated[int | None, Option("Dimensions: width of the residual stream.")] = None
    heads: Annotated[int | None, Option("Dimensions: attention heads.")] = None
    ffn: Annotated[int | None, Option("Dimensions: width of the feed-forward.")] = None
    vocab: Annotated[int | None, Option("Dimensions: tokens in the vocabulary.")] = None
    head_dim: Annotated[
        int | None, Option("Dimensions: depth of a head. Default: hidden / heads.")
    ] = None
    kv_heads: Annotated[
        int | None, Option("Dimensions: heads of keys and values. Default: heads.")
    ] = None
    gated: Annotated[bool, Option("Dimensions: feed-forward of three matrices (SwiGLU).")] = False
    tied: Annotated[bool, Option("Dimensions: LM head and token embedding share weights.")] = False
    parameters: Annotated[
        float | None, Option("Dimensions: published number of parameters, as in 540.35e9.")
    ] = None


SIZES = ("layers", "hidden", "heads", "ffn", "vocab")
"""The dimensions that a decoder needs."""
OTHER_SIZES = ("head_dim", "kv_heads", "parameters", "gated", "tied")


def run(asked: MfuOptions, events: Events) -> Audit:
    """Return the MFU of training by every convention, with HFU if activations are recomputed."""
    if asked.tokens_per_second is None:
        raise UsageError(
            "`tokens_per_second` is missing",
            "Set the measured throughput of all GPUs, for example `tokens_per_second` 12000",
        )
    is_by_hand = _is_by_hand(asked)
    peak, notes = peak_of(asked.device, asked.precision, asked.peak_tflops)
    _check(asked.tokens_per_second, asked.gpus, asked.formula, asked.recompute, asked.seq)
    found = audit(
        _by_hand(asked) if is_by_hand else trace_decoder(str(asked.model), asked.seq),
        asked.tokens_per_second,
        asked.gpus,
        peak,
        recompute=asked.recompute,
        reported=_reported(asked.reported),
        notes=notes,
    )
    if found.causal.mfu is None:
        raise PerfctlError(
            f"MFU over 100% by the formula with the fewest FLOPs: {found.causal.refused}"
        )
    if asked.formula is not None:
        found = replace(found, rows=(found.row(asked.formula),))
    return found


def _is_by_hand(asked: MfuOptions) -> bool:
    """Whether dimensions are given in place of a model. Raises UsageError for both, or too few."""
    given = [name for name in SIZES if getattr(asked, name) is not None]
    others = [name for name in OTHER_SIZES if getattr(asked, name) not in (None, False)]
    if asked.model is None and len(given) == len(SIZES):
        return True
    if asked.model is None:
        missing = ", ".join(f"`{name}`" for name in SIZES if name not in given)
        raise UsageError(
            f"{missing} missing" if given else "no model",
            "Name one, as in hf:llama, or give `layers`, `hidden`, `heads`, `ffn` and `vocab`",
        )
    if given or others:
        raise UsageError(
            f"`{(given + others)[0]}` and a model exclude each other",
            "Name a model, or set its dimensions",
        )
    return False


def _check(
    tokens_per_second: float,
    devices: int,
    formula: str | None,
    recompute: str | float,
    seq: int | None,
) -> None:
    if not 0 < tokens_per_second < float("inf"):
        raise UsageError(
            f"`tokens_per_second` must be above 0, got {tokens_per_second:g}",
            "Set the throughput of all GPUs",
        )
    if devices < 1:
        raise UsageError(f"`gpus` must be at least 1, got {devices}", "Omit `gpus` for one GPU")
    if seq is not None and seq < 1:
        raise UsageError(f"`seq` must be at least 1, got {seq}", "For example `seq` 4096")
    if formula is not None and formula not in KEYS:
        raise UsageError(f"invalid value '{formula}' for `formula`", f"Choose {', '.join(KEYS)}")
    if recompute not in RECOMPUTE if isinstance(recompute, str) else not 0 <= recompute <= 1:
        remedy = f"Choose {', '.join(RECOMPUTE)}, or a share from 0 to 1"
        raise UsageError(f"invalid value '{recompute}' for `recompute`", remedy)


def _reported(value: str | float | None) -> tuple[float, float] | None:
    """(Share of 1, tolerance): "46.2" is anything that rounds to it, or within TOLERANCE."""
    if value is None:
        return None
    text = str(value).strip().rstrip("%").strip()
    try:
        percent = float(text)
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 1000:
        raise UsageError(
            f"invalid value '{value}' for `reported`", "Use an MFU in percent, for example 46.2"
        )
    digits = len(text.partition(".")[2])
    return percent / 100, max(0.5 * 10**-digits, TOLERANCE * percent) / 100


def _by_hand(asked: MfuOptions) -> Decoder:
    sizes: dict[str, Any] = {name: getattr(asked, name) for name in (*SIZES, *OTHER_SIZES)}
    for field, value in sizes.items():
        if value is not None and value is not False and not 0 < value < float("inf"):
            raise UsageError(
                f"`{field}` must be above 0, got {value:g}",
                "Omit the model and set its dimensions",
            )
    if asked.head_dim is None and sizes["hidden"] % sizes["heads"]:
        raise UsageError(
            f"`hidden` {asked.hidden} is not a multiple of `heads` {asked.heads}", "Give `head_dim`"
        )
    return by_hand(seq=asked.seq or SEQ, **sizes)


def trace_decoder(model: str, seq: int | None) -> Decoder:
    """A language model by name, from its traced layers. Raises UsageError, PerfctlError,
    ToolMissing."""
    need_torch()
    from perfctl.workloads.models.decoder import facts_of, with_head
    from perfctl.workloads.models.libraries import LIBRARIES, config_file, split

    with without_driver_warning(), as_perfctl_error():
        reference = with_head(model)
        library, _, rest = reference.partition(":")
        of_library = (
            library in LIBRARIES
            or config_file(split(rest if library in LIBRARIES else reference)[0]) is not None
        )
        traced: list[Estimate] = []
        for length in LENGTHS:
            request = (
                Request(reference, seq=length)
                if of_library
                else Request(reference, inputs=(f"int64:{length}",))
            )
            session = open_session(request)
            if not traced:
                facts = facts_of(session.source.model, model)
            traced.append(session.at(1))
    problem = next((found.problem for found in traced if found.problem is not None), None)
    unknown = next((found.forward.missing for found in traced if found.forward.missing), ())
    if problem is not None:
        raise PerfctlError(
            f"{model}: the trace stopped: {problem}", f"See 'perfctl estimate {model}'"
        )
    if unknown:
        names = ", ".join(name for name, _ in unknown)
        raise PerfctlError(
            f"{model}: no formula for {names}, so its FLOPs are a lower bound",
            "perfctl therefore computes no MFU",
        )
    notes = [note for note in session.notes if note.startswith("model: ")]
    length = seq or SEQ
    if seq is None:
        notes.append(f"no sequence length was set: {SEQ:,} tokens assumed (`seq`)")
    return decoder_of_traces(model, traced, facts, length, tuple(notes))


COMMAND = Command(MfuOptions, run, view, mfu_output)
mfu = api(MfuOptions, run)
