"""The layers of a language model as MFU's formulas need them, from traces at several lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops as layer_calls
from perfctl.orchestrator.estimate.mfu import AttentionSizes, DecoderSizes
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.records.decoder import DecoderFacts
from perfctl.records.paper import LayerCall, OpShape

LENGTHS = (32, 64, 96)
"""Sequence lengths that are traced: work of one token is a line of the length, and the third
checks it."""
UNUSED_SHARE_MIN = 0.01
"""Share of the parameters from which those without a product are noted."""
UNEXPLAINED_SHARE_MAX = 0.05
"""Share of the parameters without a product above which a step is not that of a dense decoder."""
ROUTER_PARTS = ("", ".linear", ".layer", ".classifier")


def build_decoder_from_traces(
    name: str, traced: Sequence[Estimate], facts: DecoderFacts, seq: int, notes: tuple[str, ...]
) -> DecoderSizes:
    """From traces at LENGTHS, all of one sequence."""
    forward = _fit_token_macs_to_length(
        [_sum_unmasked_macs_by_layer(trace, ("forward",)) for trace in traced], name
    )
    fitted = _fit_token_macs_to_length(
        [_sum_unmasked_macs_by_layer(trace, ("forward", *BACKWARD)) for trace in traced], name
    )
    routers = _find_router_layers(traced[0])
    owned = {module.path for module in traced[0].modules if module.parameters}
    fixed = {layer: each for layer, (each, _) in forward.items() if each}
    head = fixed.pop(facts.head, 0) if facts.head is not None else 0
    router = sum(fixed.pop(layer, 0) for layer in routers)
    products = sum(each for layer, each in fixed.items() if layer in owned)
    pairs = [by for _, by in forward.values() if by]
    windows, window_notes = _match_attention_windows(facts, pairs)
    model = traced[0]
    idle = sum(expert.idle_parameters_per_token for expert in model.experts)
    counted_parameters = (
        products + router + (0 if facts.tied else head) + facts.embedding + facts.positions + idle
    )
    all_flops = 2 * (
        sum(each for each, _ in fitted.values()) + seq * sum(by for _, by in fitted.values())
    )
    decoder = DecoderSizes(
        name=name,
        seq=seq,
        products=products,
        router=router,
        head=head,
        attention=tuple(
            AttentionSizes(by, window) for by, window in zip(pairs, windows, strict=True)
        ),
        embedding=facts.embedding,
        positions=facts.positions,
        tied=facts.tied,
        others=model.parameters - counted_parameters,
        idle=idle,
        hidden=facts.hidden,
        kv_share=facts.kv_heads / facts.heads if facts.kv_heads and facts.heads else None,
        notes=(*notes, *facts.notes, *window_notes),
    )
    if abs(decoder.others) > UNUSED_SHARE_MIN * decoder.active:
        reason = (
            "are not in a matrix multiplication of a text token: norms, biases, parts for images "
            "or an encoder"
            if decoder.others > 0
            else "are used more than once"
        )
        counted = "formulas with N count each of them once"
        note = f"{abs(decoder.others):,} parameters {reason}; {counted}"
        decoder = replace(decoder, notes=(*decoder.notes, note))
    return replace(
        decoder, unweighted=all_flops - sum(decoder.compute_exact_token_flops().values())
    )


def build_decoder_from_recorded_step(
    name: str, calls: Sequence[LayerCall], ops: Sequence[OpShape]
) -> tuple[DecoderSizes, int, str | float] | None:
    """Return the model of one recorded training step, the step's tokens and what it recomputes;
    None unless every token meets every weight, and every weight learns."""
    lookups = [
        (op.calls * prod(indices), weight, indices)
        for op in ops
        for weight, indices in [(*op.inputs, None, None)[:2]]
        if op.op == "aten.embedding" and weight and indices and len(weight) == 2 and prod(indices)
    ]
    if not lookups:
        return None
    tokens, (vocabulary, hidden), indices = max(lookups, key=lambda lookup: prod(lookup[1]))
    seq, embedding = indices[-1], vocabulary * hidden
    products = head = learned = recomputed = Fraction(0)
    unweighted = Fraction(0)
    pairs: defaultdict[str, Fraction] = defaultdict(Fraction)
    heads = (
        call
        for call in calls
        if call.direction == "forward"
        and (call.macs, call.output_elements) == (tokens * embedding, tokens * vocabulary)
    )
    head_call = max(heads, key=lambda call: call.position or 0, default=None)
    tied = head_call is not None and not head_call.parameters
    for call in sorted(calls, key=lambda call: call.direction != "forward"):
        macs = Fraction(call.macs or 0, tokens)
        is_product = call.kind[:1].isupper() or call.kind == "linear"
        if call.direction in BACKWARD:
            learned += macs if is_product else 0
            unweighted += 0 if is_product or call.layer in pairs else 2 * macs
        elif call.direction != "forward":
            recomputed += macs if is_product and call.direction == "recompute" else 0
        elif call is head_call:
            head = macs
        elif is_product:
            products += macs
        elif macs and (macs / seq).denominator == 1:
            pairs[call.layer] += macs / seq
        else:
            unweighted += 2 * macs
    parameters = sum(call.parameters or 0 for call in calls if call.direction == "forward")
    positions = sum({shape: prod(shape) for _, shape, _ in lookups}.values()) - embedding
    unused = parameters - products - embedding - positions - (0 if tied else head)
    is_dense = 0 <= unused <= UNEXPLAINED_SHARE_MAX * parameters and learned == 2 * (
        products + head
    )
    if not pairs or not is_dense:
        return None
    attention = tuple(AttentionSizes(int(macs)) for macs in pairs.values())
    note = "a run does not record windows of attention: every query counts all keys"
    decoder = DecoderSizes(
        name=name,
        seq=seq,
        products=int(products),
        router=0,
        head=int(head),
        attention=attention,
        embedding=embedding,
        positions=positions,
        tied=tied,
        others=int(unused),
        unweighted=float(unweighted),
        hidden=hidden,
        notes=(note,),
    )
    share = float(recomputed / products) if products else 0.0
    return decoder, tokens, {0.0: "none", 1.0: "full"}.get(share, share)


def _sum_unmasked_macs_by_layer(estimate: Estimate, directions: tuple[str, ...]) -> dict[str, int]:
    """Multiply-adds by layer, with attention as the complete square."""
    by_layer: dict[str, int] = {}
    unmasked = (
        replace(
            op,
            attributes={name: value for name, value in op.attributes.items() if name != "scores"},
        )
        for op in estimate.ops
    )
    for call in layer_calls(unmasked):
        if call.direction in directions:
            by_layer[call.layer] = by_layer.get(call.layer, 0) + (call.macs or 0)
    return by_layer


def _fit_token_macs_to_length(
    traces: Sequence[dict[str, int]], name: str
) -> dict[str, tuple[int, int]]:
    """Layer -> (multiply-adds of one token, of one query and one key): one token's work is a line
    of the length."""
    lines = {}
    first, second, third = LENGTHS
    for layer in traces[0]:
        macs_first, two, check = (
            Fraction(trace.get(layer, 0), length)
            for trace, length in zip(traces, LENGTHS, strict=True)
        )
        by = (two - macs_first) / (second - first)
        each = macs_first - by * first
        if each + by * third != check or each.denominator != 1 or by.denominator != 1 or by < 0:
            raise PerfctlError(
                f"{name}: work of {layer or 'the model'} for one token is not linear in the "
                "sequence length, unlike in the MFU formulas",
                "Use perfctl estimate with `seq` to count it at one length",
            )
        lines[layer] = (int(each), int(by))
    return lines


def _find_router_layers(estimate: Estimate) -> set[str]:
    """Return the layers that choose experts: beside them, named gate or router."""
    beside = {expert.layer.rpartition(".")[0] for expert in estimate.experts}
    router_paths = {
        f"{path}.{part_name}{inner}"
        for path in beside
        for part_name in ("gate", "router")
        for inner in ROUTER_PARTS
    }
    return {module.path for module in estimate.modules} & router_paths


def _match_attention_windows(
    facts: DecoderFacts, pairs: list[int]
) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
    if facts.windows is None:
        return (None,) * len(pairs), ()
    if len(facts.windows) == len(pairs):
        return facts.windows, ()
    note = (
        f"windows ignored: the config has {len(facts.windows)} attention layers, the trace "
        f"{len(pairs)}"
    )
    return (None,) * len(pairs), (note,)
