"""The layers of a language model as MFU's formulas need them, from traces at several lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.estimate.flops.engine import estimate as layer_calls
from perfctl.orchestrator.estimate.mfu import AttentionLayer, Decoder
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.records.decoder import DecoderFacts
from perfctl.records.paper import OpShape

LENGTHS = (32, 64, 96)
"""Sequence lengths that are traced: work of one token is a line of the length, and the third
checks it."""
UNUSED_SHARE_MIN = 0.01
"""Share of the parameters from which those without a product are noted."""
ROUTER_PARTS = ("", ".linear", ".layer", ".classifier")


def decoder_of_traces(
    name: str, traced: Sequence[Estimate], facts: DecoderFacts, seq: int, notes: tuple[str, ...]
) -> Decoder:
    """From traces at LENGTHS, all of one sequence."""
    forward = _fit_lines([_macs_by_layer(trace, ("forward",)) for trace in traced], name)
    fitted = _fit_lines([_macs_by_layer(trace, ("forward", *BACKWARD)) for trace in traced], name)
    routers = _routers(traced[0])
    owned = {module.path for module in traced[0].modules if module.parameters}
    fixed = {layer: each for layer, (each, _) in forward.items() if each}
    head = fixed.pop(facts.head, 0) if facts.head is not None else 0
    router = sum(fixed.pop(layer, 0) for layer in routers)
    products = sum(each for layer, each in fixed.items() if layer in owned)
    pairs = [by for _, by in forward.values() if by]
    windows, window_notes = _windows(facts, pairs)
    model = traced[0]
    idle = sum(expert.idle for expert in model.experts)
    counted_parameters = (
        products + router + (0 if facts.tied else head) + facts.embedding + facts.positions + idle
    )
    all_flops = 2 * (
        sum(each for each, _ in fitted.values()) + seq * sum(by for _, by in fitted.values())
    )
    decoder = Decoder(
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
    return replace(decoder, unweighted=all_flops - sum(decoder.exact().values()))


def _macs_by_layer(estimate: Estimate, directions: tuple[str, ...]) -> dict[str, int]:
    """Multiply-adds by layer, with attention as the complete square."""
    by_layer: dict[str, int] = {}
    for call in layer_calls(replace(op, attributes=_without_mask(op)) for op in estimate.ops):
        if call.direction in directions:
            by_layer[call.layer] = by_layer.get(call.layer, 0) + (call.macs or 0)
    return by_layer


def _without_mask(op: OpShape) -> dict[str, object]:
    return {name: value for name, value in op.attributes.items() if name != "scores"}


def _fit_lines(traces: Sequence[dict[str, int]], name: str) -> dict[str, tuple[int, int]]:
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


def _routers(estimate: Estimate) -> set[str]:
    """The layers that choose experts: beside them, named gate or router."""
    beside = {expert.layer.rpartition(".")[0] for expert in estimate.experts}
    router_paths = {
        f"{path}.{part_name}{inner}"
        for path in beside
        for part_name in ("gate", "router")
        for inner in ROUTER_PARTS
    }
    return {module.path for module in estimate.modules} & router_paths


def _windows(
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
