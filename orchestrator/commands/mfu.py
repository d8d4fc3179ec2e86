"""MFU of a training run by every published convention, from the layers of the model and a
measured throughput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from perfctl.orchestrator.actions.estimate import (
    as_perfctl_error,
    need_torch,
    open_session,
    without_driver_warning,
)
from perfctl.orchestrator.actions.estimate_request import Request
from perfctl.orchestrator.commands.declare import Command, Events, Option, api, word_or_number
from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.estimate.mfu import (
    KEYS,
    RECOMPUTE,
    AttentionLayer,
    Audit,
    Decoder,
    Peak,
    audit,
    by_hand,
)
from perfctl.orchestrator.report.mfu import mfu_output, view

if TYPE_CHECKING:
    from perfctl.orchestrator.estimate.step import Estimate
    from perfctl.records.decoder import DecoderFacts

PATHS = {**PATH_OF, "fp8": "tensor fp8"}
"""Precision -> path of its dense peak."""
LENGTHS = (32, 64, 96)
"""Sequence lengths that are traced: work of one token is a line of the length, and the third
checks it."""
SEQ = 2048
"""Tokens of a sequence where none are given and the config says no fewer."""
NOTED = 0.01
"""Share of the parameters from which those without a product are noted."""
SPARSE = 0.005
"""How near to twice a dense peak a figure is taken for the sparse one."""
TOLERANCE = 0.002
"""A reported MFU is explained by what is within this share of it (throughput and peak are rounded:
312 TFLOP/s for 311.9), or within half a unit of its last digit."""
A100 = 312e12
"""Dense bf16 of the A100: torchtitan takes it for every device that it does not know
(get_peak_flops)."""

_INNER = ("", ".linear", ".layer", ".classifier")


@dataclass(frozen=True, slots=True)
class MfuOptions:
    """Work out the MFU of a training run by every published formula, and say why they differ. 1
    multiply-add is 2 FLOPs.

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
        float | None, Option("Measured throughput in training, of all GPUs together.")
    ] = None
    device: Annotated[
        str | None, Option("GPU whose dense peak counts: H100, 'A100 SXM4 80 GB'.")
    ] = None
    gpus: Annotated[int, Option("Number of GPUs that the throughput is of.")] = 1
    precision: Annotated[str, Option("Of the products: bf16, fp16, fp8, tf32, fp32, fp64.")] = (
        "bf16"
    )
    seq: Annotated[int | None, Option("Tokens in a sequence. Default: 2048.")] = None
    formula: Annotated[
        str | None,
        Option("6N, palm, megatron, nanogpt, olmo, torchtitan or maxtext alone. Default: all."),
    ] = None
    recompute: Annotated[
        str | float,
        Option(
            "Activation checkpointing, for HFU: none, selective (attention), full, or the share of "
            "the layers' forward products that runs again, as in 0.75.",
            parse=word_or_number,
        ),
    ] = "none"
    reported: Annotated[
        str | None,
        Option("A published MFU: which formula or mistake gives it?", metavar="PERCENT"),
    ] = None
    peak_tflops: Annotated[
        float | None,
        Option("Dense TFLOP/s of one device, for one that the table does not have."),
    ] = None
    layers: Annotated[int | None, Option("Dimensions in place of a model: layers.")] = None
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
            "`tokens_per_second` is needed",
            "Give the measured throughput of all GPUs, as in `tokens_per_second` 12000",
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
        raise PerfctlError(f"MFU over 100% by the least count of FLOPs: {found.causal.refused}")
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
            f"`{(given + others)[0]}` and a model together", "Name a model, or give its dimensions"
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
            "Give that of all GPUs",
        )
    if devices < 1:
        raise UsageError(f"`gpus` must be at least 1, got {devices}", "Leave `gpus` out for one")
    if seq is not None and seq < 1:
        raise UsageError(f"`seq` must be at least 1, got {seq}", "For example `seq` 4096")
    if formula is not None and formula not in KEYS:
        raise UsageError(f"`formula`: '{formula}' is not known", f"Use {', '.join(KEYS)}")
    if recompute not in RECOMPUTE if isinstance(recompute, str) else not 0 <= recompute <= 1:
        remedy = f"Use {', '.join(RECOMPUTE)}, or a share from 0 to 1"
        raise UsageError(f"`recompute`: '{recompute}' is not known", remedy)


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
            f"`reported`: '{value}' is not an MFU in percent", "Write for instance 46.2"
        )
    digits = len(text.partition(".")[2])
    return percent / 100, max(0.5 * 10**-digits, TOLERANCE * percent) / 100


def peak_of(
    device: str | None, precision: str, peak_tflops: float | None
) -> tuple[Peak, tuple[str, ...]]:
    """The dense peak of a device, and what was assumed. Raises UsageError; for a sparse
    peak always."""
    path = PATHS.get(precision)
    if path is None:
        raise UsageError(f"`precision`: '{precision}' is not known", f"Use {', '.join(PATHS)}")
    if peak_tflops is not None and not 0 < peak_tflops < float("inf"):
        raise UsageError(
            f"`peak_tflops` must be above 0, got {peak_tflops:g}",
            "Give the dense TFLOP/s of one device",
        )
    given = peak_tflops * 1e12 if peak_tflops is not None else None
    if device is None:
        if given is None:
            raise UsageError(
                "`device` or `peak_tflops` is needed",
                "For example `device` H100, or `peak_tflops` 275 for a TPU v4",
            )
        _refuse_sparse(given, precision, path)
        return Peak(given, f"{given / 1e12:,.1f} TFLOP/s, as given", _slips(given, path, None)), ()
    try:
        found = machines.named(device)
    except machines.DeviceError as error:
        raise UsageError(
            str(error), f"{error.remedy.partition('Or give')[0]}Or give `peak_tflops`"
        ) from error
    table = found.machine.flops_per_second
    dense = table.get(path)
    if dense is None and given is None:
        has = ", ".join(name for name, known in PATHS.items() if known in table)
        raise UsageError(
            f"`precision`: no dense {precision} peak of {found.machine.name} is known",
            f"It has {has}",
        )
    name, notes = found.machine.name, [found.note] if found.note else []
    if dense is not None and given is not None:
        _refuse_twice(given, dense, name, precision, "Leave `peak_tflops` out")
        if abs(given / dense - 1) > SPARSE:
            notes.append(
                f"peak: {given / 1e12:,.1f} TFLOP/s as given; the table has {dense / 1e12:,.1f} "
                f"for {name} in {precision}"
            )
    used = given or dense or 0.0
    source = f"{used / 1e12:,.1f} TFLOP/s dense {precision}" + (
        "" if given is None else ", as given"
    )
    return Peak(used, f"{name}, {source}", _slips(used, path, table)), tuple(notes)


def _refuse_sparse(given: float, precision: str, path: str) -> None:
    """A peak without a device that is the sparse one of an NVIDIA data centre GPU, and the dense
    peak of none."""
    dense = {
        gpu: peak for gpu in machines.GPUS if (peak := machines.flops_per_second(gpu).get(path))
    }
    if any(abs(given / peak - 1) < SPARSE for peak in dense.values()):
        return
    for gpu, peak in dense.items():
        # a consumer GPU's could be another accelerator's dense peak
        if machines.class_of(gpu).startswith("data centre"):
            _refuse_twice(
                given,
                peak,
                gpu.name,
                precision,
                f"Use `device` '{gpu.name}', or give its dense peak",
            )


def _refuse_twice(given: float, dense: float, name: str, precision: str, remedy: str) -> None:
    times = next((times for times in (2, 4) if abs(given / dense / times - 1) < SPARSE), None)
    if times is not None:
        what = (
            f"twice its dense {precision} peak"
            if times == 2
            else f"in FP8, four times its dense {precision} peak"
        )
        said = (
            f"`peak_tflops`: {given / 1e12:,g} TFLOP/s is the sparse peak of {name}, {what} of "
            f"{dense / 1e12:,.1f}"
        )
        raise UsageError(f"{said}; training multiplies dense matrices", remedy)


def _slips(
    peak: float, path: str, table: Mapping[str, float] | None
) -> tuple[tuple[str, float], ...]:
    tf32 = (table or {}).get("tensor tf32")
    found = [
        ("the sparse peak, twice the dense one", 2 * peak),
        ("half of the dense peak (OLMo-core on the A100 before pull request 614)", peak / 2),
    ]
    if tf32 and path in ("tensor bf16", "tensor fp16") and abs(tf32 / peak * 2 - 1) > SPARSE:
        found.append(("the TF32 peak (torchtitan issue 668)", tf32))
    elif tf32 and path in ("tensor bf16", "tensor fp16"):
        found[1] = (f"{found[1][0]}, or the TF32 peak (torchtitan issue 668)", peak / 2)
    if abs(A100 / peak - 1) > SPARSE:
        found.append(
            ("312 TFLOP/s of the A100 (torchtitan on a device that it does not know)", A100)
        )
    return tuple(found)


def _by_hand(asked: MfuOptions) -> Decoder:
    sizes: dict[str, Any] = {name: getattr(asked, name) for name in (*SIZES, *OTHER_SIZES)}
    for field, value in sizes.items():
        if value is not None and value is not False and not 0 < value < float("inf"):
            raise UsageError(
                f"`{field}` must be above 0, got {value:g}",
                "Leave the model's name out and give its dimensions",
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
    unknown = next((found.forward.unknown for found in traced if found.forward.unknown), ())
    if problem is not None:
        raise PerfctlError(
            f"{model}: the trace stopped: {problem}", f"See 'perfctl estimate {model}'"
        )
    if unknown:
        names = ", ".join(name for name, _ in unknown)
        raise PerfctlError(
            f"{model}: no formula for {names}, so its FLOPs are a lower bound", "No MFU is given"
        )
    notes = [note for note in session.notes if note.startswith("model: ")]
    length = seq or SEQ
    if seq is None:
        notes.append(f"sequences of {SEQ:,} tokens assumed; `seq` sets it")
    return _decoder(model, traced, facts, length, tuple(notes))


def _decoder(
    name: str, traced: list[Estimate], facts: DecoderFacts, seq: int, notes: tuple[str, ...]
) -> Decoder:
    """From traces at LENGTHS, all of one sequence."""
    forward = _lines([_by_layer(one, ("forward",)) for one in traced], name)
    whole = _lines([_by_layer(one, ("forward", *BACKWARD)) for one in traced], name)
    routers = _routers(traced[0])
    owned = {module.path for module in traced[0].modules if module.parameters}
    fixed = {layer: each for layer, (each, _) in forward.items() if each}
    head = fixed.pop(facts.head, 0) if facts.head is not None else 0
    router = sum(fixed.pop(layer, 0) for layer in routers)
    products = sum(each for layer, each in fixed.items() if layer in owned)
    pairs = [by for _, by in forward.values() if by]
    windows, more = _windows(facts, pairs)
    model = traced[0]
    idle = sum(one.idle for one in model.experts)
    known = (
        products + router + (0 if facts.tied else head) + facts.embedding + facts.positions + idle
    )
    all_flops = 2 * (
        sum(each for each, _ in whole.values()) + seq * sum(by for _, by in whole.values())
    )
    found = Decoder(
        name=name,
        seq=seq,
        products=products,
        router=router,
        head=head,
        attention=tuple(
            AttentionLayer(by, window) for by, window in zip(pairs, windows, strict=True)
        ),
        embedding=facts.embedding,
        positions=facts.positions,
        tied=facts.tied,
        others=model.parameters - known,
        idle=idle,
        hidden=facts.hidden,
        kv_share=facts.kv_heads / facts.heads if facts.kv_heads and facts.heads else None,
        notes=(*notes, *facts.notes, *more),
    )
    if abs(found.others) > NOTED * found.active:
        what = (
            "use no product of a text token: norms, biases, parts for images or an encoder"
            if found.others > 0
            else "are used more than once"
        )
        said = f"{abs(found.others):,} parameters {what}; formulas of N count each once"
        found = replace(found, notes=(*found.notes, said))
    return replace(found, unweighted=all_flops - sum(found.exact().values()))


def _by_layer(found: Estimate, directions: tuple[str, ...]) -> dict[str, int]:
    by_layer: dict[str, int] = {}
    for call in found.calls:
        if call.direction in directions:
            by_layer[call.layer] = by_layer.get(call.layer, 0) + (call.macs or 0)
    return by_layer


def _lines(found: list[dict[str, int]], name: str) -> dict[str, tuple[int, int]]:
    """Layer -> (multiply-adds of one token, of one query and one key): one token's work is a line
    of the length."""
    lines = {}
    first, second, third = LENGTHS
    for layer in found[0]:
        one, two, check = (
            Fraction(trace.get(layer, 0), length)
            for trace, length in zip(found, LENGTHS, strict=True)
        )
        by = (two - one) / (second - first)
        each = one - by * first
        if each + by * third != check or each.denominator != 1 or by.denominator != 1 or by < 0:
            raise PerfctlError(
                f"{name}: work of {layer or 'the model'} for one token is no line of the sequence "
                "length, as it is in MFU's formulas",
                "perfctl estimate counts it at the length that `seq` says",
            )
        lines[layer] = (int(each), int(by))
    return lines


def _routers(found: Estimate) -> set[str]:
    """The layers that choose experts: beside them, named gate or router."""
    beside = {one.layer.rpartition(".")[0] for one in found.experts}
    named = {
        f"{path}.{word}{inner}"
        for path in beside
        for word in ("gate", "router")
        for inner in _INNER
    }
    return {module.path for module in found.modules} & named


def _windows(
    facts: DecoderFacts, pairs: list[int]
) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
    if facts.windows is None:
        return (None,) * len(pairs), ()
    if len(facts.windows) == len(pairs):
        return facts.windows, ()
    said = (
        f"windows left out: the config has {len(facts.windows)} attention layers, the trace "
        f"{len(pairs)}"
    )
    return (None,) * len(pairs), (said,)


COMMAND = Command(MfuOptions, run, view, mfu_output)
mfu = api(MfuOptions, run)
