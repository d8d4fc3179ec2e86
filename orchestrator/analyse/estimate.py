"""The engine: shapes in, pen-and-paper figures out, one row a layer and direction.

``estimate`` groups operations by layer: all operations of a torch.nn layer are one row for each direction; a
functional operation stands under its parent module with its own name as kind. Nothing is guessed: an operation
without a formula is a row whose ``macs`` is None and whose formula says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from perfctl.orchestrator.analyse.formulas import formula_for
from perfctl.orchestrator.analyse.formulas_attention import FUSED
from perfctl.orchestrator.analyse.worked import Part, number, shape_of, tensors_of
from perfctl.parsers.paper import LayerCall, OpShape

FRIENDLY = {
    "addmm": "linear", "mm": "matmul", "bmm": "matmul", "baddbmm": "matmul", "mv": "matmul", "dot": "matmul",
    "native_batch_norm": "batch_norm", "cudnn_batch_norm": "batch_norm", "_native_batch_norm_legit": "batch_norm",
    "_batch_norm_with_update": "batch_norm", "native_layer_norm": "layer_norm", "native_group_norm": "group_norm",
    "max_pool2d_with_indices": "max_pool2d", "max_pool3d_with_indices": "max_pool3d", "_softmax": "softmax",
    "_log_softmax": "log_softmax", "_safe_softmax": "softmax", "_to_copy": "to", "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss", "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "adaptive_avg_pool3d", "native_dropout": "dropout",
}  # fmt: skip
"""Dispatcher names -> what people call them."""

SHOWN_TERMS = 4
"""How many different calls the worked text of one row spells out."""


@dataclass(slots=True)
class _Row:
    """What is known of one (layer, kind, direction) while operations are added up."""

    parts: list[tuple[OpShape, Part]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over layer calls."""

    macs: int
    flops: int
    elementwise_flops: int
    unknown: tuple[tuple[str, int], ...]
    """Operations without a formula, with their number of calls."""


def estimate(ops: Iterable[OpShape]) -> tuple[LayerCall, ...]:
    """Pen and paper for everything that was seen, in the order of the network, forward before backward."""
    rows: dict[tuple[str, str, str], _Row] = {}
    unknown: dict[tuple[str, str, str], list[OpShape]] = {}
    seen = tuple(ops)
    for op in seen:
        formula = formula_for(op)
        if formula is None:
            unknown.setdefault((op.layer, friendly(op.op, op), direction_when_unknown(op)), []).append(op)
            continue
        for part in formula(op):
            direction = part.direction
            if op.attributes.get("recompute") and direction == "forward":
                direction = "recompute"
            rows.setdefault((op.layer, kind_of(op) + part.label, direction), _Row()).parts.append((op, part))
    owners = _owners(seen, rows)
    calls = [_layer_call(key, row.parts, owners) for key, row in rows.items()]
    calls += [_unknown_call(key, group) for key, group in unknown.items()]
    return tuple(sorted(calls, key=lambda call: call.position if call.position is not None else 0))


def on_paper(op: OpShape) -> OpShape:
    """Which kernel a device chose for attention is no property of the model: on paper it is left open."""
    if "backend" not in op.attributes:
        return op
    return replace(op, attributes={**op.attributes, "backend": "any"})


def fused_only(call: LayerCall) -> bool:
    """Whether the row is work that only a fused kernel does (attention's scores, computed again in backward)."""
    return call.kind.endswith(FUSED)


def totals(calls: Iterable[LayerCall], directions: Sequence[str]) -> Totals:
    """Sums over the rows in these directions; what has no formula is named, not counted."""
    macs = elementwise = 0
    unknown: dict[str, int] = {}
    for call in calls:
        if call.direction not in directions:
            continue
        if call.macs is None:
            unknown[call.kind] = unknown.get(call.kind, 0) + call.calls
        macs += call.macs or 0
        elementwise += call.elementwise_flops or 0
    return Totals(macs, 2 * macs, elementwise, tuple(sorted(unknown.items())))


BACKWARD = ("grad_input", "grad_weight", "grad_bias", "backward")
"""Directions that make up the backward pass; recomputation is counted apart."""


def kind_of(op: OpShape) -> str:
    """Class of the layer, or the name of a functional operation."""
    functional = op.attributes.get("functional")
    return friendly(str(functional), op) if functional else op.kind


def friendly(name: str, op: OpShape) -> str:
    """aten.addmm -> linear, aten.convolution -> conv2d, aten.relu_ -> relu."""
    space, _, bare = name.rpartition(".")
    if space not in ("aten", "perfctl"):
        return name
    if bare.startswith("convolution"):
        rank = len(shape_of(op.inputs, 2 if op.op.startswith("aten.convolution_backward") else 1)) - 2
        return f"conv{rank}d" if rank > 0 else "convolution"
    bare = FRIENDLY.get(bare, bare)
    if bare.startswith(("upsample_", "_upsample_")):
        return "interpolate"
    return bare.rstrip("_") if not bare.startswith("__") else bare


def direction_when_unknown(op: OpShape) -> str:
    if op.direction == "forward":
        return "recompute" if op.attributes.get("recompute") else "forward"
    return op.direction


def _owners(ops: Iterable[OpShape], rows: dict[tuple[str, str, str], _Row]) -> dict[str, str]:
    """Layer -> the kind of row that carries its parameters: the layer's own, else the heaviest functional one."""
    best: dict[str, tuple[int, int, str]] = {}
    for (layer, kind, direction), row in rows.items():
        if direction != "forward":
            continue
        leaf = any("functional" not in op.attributes for op, _ in row.parts)
        weight = sum(part.macs * op.calls for op, part in row.parts)
        candidate = (int(leaf), weight, kind)
        if layer not in best or candidate[:2] > best[layer][:2]:
            best[layer] = candidate
    return {layer: chosen[2] for layer, chosen in best.items()}


def _layer_call(key: tuple[str, str, str], parts: list[tuple[OpShape, Part]], owners: dict[str, str]) -> LayerCall:
    layer, kind, direction = key
    macs = sum(part.macs * op.calls for op, part in parts)
    main = max(parts, key=lambda pair: (pair[1].macs, pair[0].position))[0].op
    mains = [(op, part) for op, part in parts if op.op == main]
    return LayerCall(
        layer=layer,
        kind=kind,
        direction=direction,
        macs=macs,
        flops=2 * macs,
        parameters=parts[0][0].parameters if owners.get(layer) == kind else 0,
        read_bytes=sum(part.read_bytes * op.calls for op, part in parts),
        write_bytes=sum(part.write_bytes * op.calls for op, part in parts),
        output_elements=sum(part.output_elements * op.calls for op, part in mains),
        formula=_text(parts),
        elementwise_flops=sum(part.elementwise * op.calls for op, part in parts),
        calls=sum(op.calls for op, _ in mains) if direction != "optimizer" else 1,
        position=min(op.position for op, _ in parts),
    )


def _text(parts: list[tuple[OpShape, Part]]) -> str:
    """The worked text of a row: its multiply-adds, or, when it has none, what the elementwise work is."""
    heavy = [(op, part) for op, part in parts if part.macs] or parts
    lines = [f"{number(op.calls)} times: {part.text}" if op.calls > 1 else part.text for op, part in heavy]
    if len(lines) > SHOWN_TERMS:
        lines = [*lines[:SHOWN_TERMS], f"and {len(lines) - SHOWN_TERMS} more shapes"]
    return "; ".join(lines)


def _unknown_call(key: tuple[str, str, str], ops: list[OpShape]) -> LayerCall:
    layer, kind, direction = key
    count = sum(op.calls for op in ops)
    name = ops[0].op
    return LayerCall(
        layer=layer,
        kind=kind,
        direction=direction,
        macs=None,
        flops=None,
        parameters=0,
        read_bytes=sum(tensors_of(op).read() * op.calls for op in ops),
        write_bytes=sum(tensors_of(op).write() * op.calls for op in ops),
        output_elements=sum(prod(shape_of(op.outputs, 0)) * op.calls for op in ops if op.outputs),
        formula=f"no formula for {name} ({number(count)} {'call' if count == 1 else 'calls'})",
        elementwise_flops=None,
        calls=count,
        position=min(op.position for op in ops),
    )
