"""The worked sheet of one layer, line by line: formula, numbers, result.

Time is operations; space is values and bytes of weights, biases and output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.analyse.flops.engine import BACKWARD, PRODUCTS, UNSEEN, estimate, fused_only
from perfctl.orchestrator.analyse.flops.formulas import CONVOLUTIONS, LINEAR, Shape, flag, left_factor
from perfctl.orchestrator.analyse.sheets import layers
from perfctl.orchestrator.analyse.sheets.layers import Facts, Line, WorkedLayer, space_lines
from perfctl.orchestrator.analyse.sheets.rnn import recurrent
from perfctl.records.paper import LayerCall, OpShape

DIRECTIONS_SAID = {
    "grad_input": "gradient of the input", "grad_weight": "gradient of the weights", "grad_bias": "gradient of the bias",
    "recompute": "computed again in backward", "optimizer": "optimizer step",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under one head."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """One layer, worked."""

    layer: str
    kind: str
    sections: tuple[Section, ...]
    facts: Facts | None


def layers_of(ops: Sequence[OpShape]) -> tuple[str, ...]:
    """Layers that have a sheet, in order."""
    return tuple(dict.fromkeys(op.layer for op in ops if op.layer or op.kind))


def sheet_for(ops: Sequence[OpShape], layer: str, output: Shape | None = None) -> Sheet | None:
    """The sheet of ``layer``; None when it ran no operation. ``output``: shape of the module's output."""
    mine = [op for op in ops if op.layer == layer and (layer or op.kind)]
    if not mine:
        return None
    forward = [op for op in mine if op.direction == "forward" and not flag(op, "recompute")]
    calls = estimate(mine)
    kind = mine[0].kind
    work = _work(forward or mine, kind, output)
    facts = work.facts
    if facts is not None:
        step = sum(call.macs or 0 for call in calls if call.direction in ("forward", *BACKWARD))
        seen = sum(call.macs or 0 for call in calls if call.direction == "forward")
        # With several calls, or products besides the main one, the sheet's single call is not the whole layer.
        facts = replace(facts, step=step if step > seen == facts.macs else 0)
    heavy = [op for op in forward if op.op in PRODUCTS]
    main = max(heavy, key=lambda op: PRODUCTS[op.op](op)[0].macs, default=forward[0] if forward else None)
    again = f" (one of {main.calls:,} calls)" if main is not None and main.calls > 1 else ""
    sections = [
        Section("Shapes", work.shapes),
        Section(f"Forward, step by step{again}", work.steps),
        Section("Time: operations", _time_lines(calls)),
        Section("Space: values and bytes", space_lines(work.space)),
    ]
    return Sheet(layer, kind, tuple(section for section in sections if section.lines), facts)


def _work(ops: Sequence[OpShape], kind: str, output: Shape | None) -> WorkedLayer:
    heavy = [op for op in ops if op.op in PRODUCTS]
    if len(heavy) > 1 or (heavy and kind == "MultiheadAttention"):
        samples = next(iter(output or left_factor(ops[0])), 1)
        return layers.products(ops, samples, ops[0].parameters, kind == "MultiheadAttention")
    if heavy:
        main = heavy[0]
        if main.op in CONVOLUTIONS:
            return layers.conv(main)
        if main.op in LINEAR:
            return layers.linear(main, output)
        if main.op in ("perfctl.lstm", "perfctl.gru", "perfctl.rnn"):
            return recurrent(main)
        if main.op == layers.SDPA:
            return layers.attention(main)
        return layers.products(ops, 1, ops[0].parameters, False)
    for op in ops:
        if op.op == "aten.embedding":
            return layers.embedding(op)
        if op.op in layers.NORMS:
            return layers.norm(op)
        if op.op in layers.POOLS:
            return layers.pooling(op)
    return layers.plain(ops)


def _time_lines(calls: Sequence[LayerCall]) -> tuple[Line, ...]:
    lines = []
    kinds = {call.kind for call in calls if not fused_only(call) and not call.kind.startswith(UNSEEN)}
    for call in calls:
        said = DIRECTIONS_SAID.get(call.direction, call.direction)
        if fused_only(call):
            said = "with a fused kernel"
        elif len(kinds) > 1:
            said = f"{said} ({call.kind})"
        if call.macs is None:
            lines.append(Line(said, call.formula or "", "", "not counted"))
        elif call.macs:
            lines.append(Line(said, *_split(call.formula or ""), f"{call.flops or 0:,} FLOP"))
        else:
            work = call.elementwise_flops or 0
            result = f"{work:,} elementwise FLOP" if work else "no arithmetic"
            lines.append(Line(said, call.formula or "", "", result))
    heavy = [call for call in calls if call.macs and not fused_only(call)]
    directions = {call.direction for call in calls}
    if heavy and "grad_input" not in directions and "grad_weight" in directions:
        lines.append(Line("gradient of the input", "the layer's input needs none", "", "0 FLOP"))
    if len(heavy) > 1:
        total = sum(call.flops or 0 for call in heavy)
        mark = "at least " if any(call.macs is None for call in calls) else ""
        lines.append(Line("total", "sum of the multiply-adds above", "", f"{mark}{total:,} FLOP"))
    return tuple(lines)


def _split(formula: str) -> tuple[str, str]:
    """ "letters = numbers = result" without its result; a sum of several products stays one text."""
    if formula.count(" MAC = ") != 1:
        return formula, ""
    letters, _, rest = formula.partition(" = ")
    return letters, rest.rpartition(" = ")[0].rpartition(" = ")[0]
