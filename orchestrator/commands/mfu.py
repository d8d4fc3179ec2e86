"""MFU of a training run by every published convention, from the layers of the model and a
measured throughput."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from perfctl.orchestrator.commands.declare import (
    Command,
    Events,
    Option,
    make_api_function,
    parse_number_or_word,
)
from perfctl.orchestrator.counts.hardware.dense_peak import find_dense_peak
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.estimate.decoder import LENGTHS, build_decoder_from_traces
from perfctl.orchestrator.estimate.mfu import (
    KEYS,
    RECOMPUTE,
    DecoderSizes,
    MfuAudit,
    audit_mfu,
    build_dense_decoder_from_dimensions,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import (
    convert_model_errors,
    open_session,
    require_torch,
    silence_driver_warning,
)
from perfctl.orchestrator.report.mfu import build_mfu_output, build_mfu_view

DIMENSIONS = "Dimensions"
"""Heading of the options that describe a model without its name."""

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
    gpus: Annotated[int, Option("Number of GPUs that gave the throughput.", least=1)] = 1
    precision: Annotated[
        str, Option("Data type of the matrix multiplications: bf16, fp16, fp8, tf32, fp32, fp64.")
    ] = "bf16"
    seq: Annotated[int | None, Option("Tokens per sequence. Default: 2048.", least=1)] = None
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
            parse=parse_number_or_word,
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
    layers: Annotated[int | None, Option("Layers, if you give no MODEL.", DIMENSIONS)] = None
    hidden: Annotated[int | None, Option("Width of the residual stream.", DIMENSIONS)] = None
    heads: Annotated[int | None, Option("Attention heads.", DIMENSIONS)] = None
    ffn: Annotated[int | None, Option("Width of the feed-forward.", DIMENSIONS)] = None
    vocab: Annotated[int | None, Option("Tokens in the vocabulary.", DIMENSIONS)] = None
    head_dim: Annotated[
        int | None, Option("Depth of a head. Default: hidden / heads.", DIMENSIONS)
    ] = None
    kv_heads: Annotated[
        int | None, Option("Heads of keys and values. Default: heads.", DIMENSIONS)
    ] = None
    gated: Annotated[bool, Option("Feed-forward of three matrices (SwiGLU).", DIMENSIONS)] = False
    tied: Annotated[bool, Option("LM head and token embedding share weights.", DIMENSIONS)] = False
    parameters: Annotated[
        float | None, Option("Published number of parameters, such as 540.35e9.", DIMENSIONS)
    ] = None


SIZES = ("layers", "hidden", "heads", "ffn", "vocab")
"""The dimensions that a decoder needs."""
OTHER_SIZES = ("head_dim", "kv_heads", "parameters", "gated", "tied")


def run_mfu_audit(options: MfuOptions, events: Events) -> MfuAudit:
    """Return the MFU of training by every convention, with HFU if activations are recomputed."""
    if options.tokens_per_second is None:
        raise UsageError(
            "`tokens_per_second` is missing",
            "Set the measured throughput of all GPUs, for example `tokens_per_second` 12000",
        )
    has_dimensions = _uses_dimensions_without_model(options)
    peak, notes = find_dense_peak(options.device, options.precision, options.peak_tflops)
    _raise_if_invalid_mfu_options(options, options.tokens_per_second)
    model = (
        _build_decoder_from_dimensions(options)
        if has_dimensions
        else trace_decoder(str(options.model), options.seq)
    )
    result = audit_mfu(
        model,
        options.tokens_per_second,
        options.gpus,
        peak,
        recompute=options.recompute,
        reported=_parse_reported_mfu_and_tolerance(options.reported),
        notes=notes,
    )
    if result.causal.mfu is None:
        raise PerfctlError(
            f"MFU over 100% by the formula with the fewest FLOPs: {result.causal.reason}"
        )
    return (
        result
        if options.formula is None
        else replace(result, rows=(result.get_convention_row(options.formula),))
    )


def _uses_dimensions_without_model(options: MfuOptions) -> bool:
    """Return whether dimensions take the place of a model. Raises UsageError for both, or too
    few."""
    present = list(_collect_dimensions(options))
    missing = [f"`{name}`" for name in SIZES if name not in present]
    if options.model is not None and present:
        raise UsageError(
            f"`{present[0]}` and a model exclude each other", "Name a model, or set its dimensions"
        )
    if options.model is None and missing:
        raise UsageError(
            f"{', '.join(missing)} missing" if present else "no model",
            "Name a model such as hf:llama, or give `layers`, `hidden`, `heads`, `ffn` and `vocab`",
        )
    return options.model is None


def _collect_dimensions(options: MfuOptions) -> dict[str, Any]:
    """Return the dimensions that are set."""
    values = {name: getattr(options, name) for name in (*SIZES, *OTHER_SIZES)}
    return {
        name: value for name, value in values.items() if value is not None and value is not False
    }


def _raise_if_invalid_mfu_options(options: MfuOptions, tokens_per_second: float) -> None:
    formula, recompute = options.formula, options.recompute
    is_mode = recompute in RECOMPUTE if isinstance(recompute, str) else 0 <= recompute <= 1
    checks = (
        (
            0 < tokens_per_second < inf,
            f"`tokens_per_second` must be above 0, got {tokens_per_second:g}",
            "Set the throughput of all GPUs",
        ),
        (
            formula is None or formula in KEYS,
            f"invalid value '{formula}' for `formula`",
            f"Choose {', '.join(KEYS)}",
        ),
        (
            is_mode,
            f"invalid value '{recompute}' for `recompute`",
            f"Choose {', '.join(RECOMPUTE)}, or a share from 0 to 1",
        ),
    )
    for is_valid, problem, remedy in checks:
        if not is_valid:
            raise UsageError(problem, remedy)


def _parse_reported_mfu_and_tolerance(text: str | None) -> tuple[float, float] | None:
    """Return the share of 1 and its tolerance: "46.2" is anything that rounds to it, or within
    TOLERANCE."""
    if text is None:
        return None
    digits = str(text).strip().rstrip("%").strip()
    try:
        percent = float(digits)
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 1000:
        raise UsageError(
            f"invalid value '{text}' for `reported`", "Use an MFU in percent, for example 46.2"
        )
    rounding = 0.5 * 10 ** -len(digits.partition(".")[2])
    return percent / 100, max(rounding, TOLERANCE * percent) / 100


def _build_decoder_from_dimensions(options: MfuOptions) -> DecoderSizes:
    sizes = _collect_dimensions(options)
    for field, value in sizes.items():
        if not 0 < value < inf:
            raise UsageError(
                f"`{field}` must be above 0, got {value:g}",
                "Omit the model and set its dimensions",
            )
    if options.head_dim is None and sizes["hidden"] % sizes["heads"]:
        raise UsageError(
            f"`hidden` {options.hidden} is not a multiple of `heads` {options.heads}",
            "Give `head_dim`",
        )
    return build_dense_decoder_from_dimensions(seq=options.seq or SEQ, **sizes)


def trace_decoder(model: str, seq: int | None) -> DecoderSizes:
    """Return a language model by name, from its traced layers. Raises UsageError, PerfctlError,
    ToolMissing."""
    require_torch()
    from perfctl.workloads.models.decoder import add_lm_head_class, read_decoder_facts
    from perfctl.workloads.models.libraries import parse_library_or_config_reference

    with silence_driver_warning(), convert_model_errors():
        reference = add_lm_head_class(model)
        of_library = parse_library_or_config_reference(reference) is not None
        traced: list[Estimate] = []
        for length in LENGTHS:
            request = (
                Request(reference, seq=length)
                if of_library
                else Request(reference, inputs=(f"int64:{length}",))
            )
            session = open_session(request)
            if not traced:
                facts = read_decoder_facts(session.source.model, model)
            traced.append(session.estimate_batch(1))
    problem = next((estimate.problem for estimate in traced if estimate.problem is not None), None)
    unknown = next(
        (estimate.forward.missing for estimate in traced if estimate.forward.missing), ()
    )
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
    return build_decoder_from_traces(model, traced, facts, length, tuple(notes))


COMMAND = Command(MfuOptions, run_mfu_audit, build_mfu_view, build_mfu_output)
mfu = make_api_function(MfuOptions, run_mfu_audit)
