"""Sheets of layers without multiply-adds: embedding, normalisation, pooling, elementwise operations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from perfctl.orchestrator.analyse.flops.engine import formula_for
from perfctl.orchestrator.analyse.flops.terms import Shape, flag, integer, integers, shape_of, tensors_of, times
from perfctl.orchestrator.analyse.sheets.lines import (
    Item,
    Line,
    WorkedLayer,
    by,
    each_side,
    items_of,
    macs,
    window_line,
)
from perfctl.orchestrator.analyse.sheets.products import SIDES
from perfctl.records.paper import OpShape


def _items(op: OpShape, *named: tuple[str, str, int]) -> tuple[Item, ...]:
    """(name, "in" or "out", place) of the tensors that are there."""
    tensors = tensors_of(op)
    groups = {"in": tensors.inputs, "out": tensors.outputs}
    found = [(what, groups[side][place]) for what, side, place in named if place < len(groups[side])]
    return items_of(*((what, tensor) for what, tensor in found if tensor is not None and 0 not in tensor[0]))


def embedding(op: OpShape) -> WorkedLayer:
    """aten.embedding(table, indices): a lookup."""
    table, indices, result = shape_of(op.inputs, 0), shape_of(op.inputs, 1), shape_of(op.outputs, 0)
    shapes = (
        Line("indices", "", "", by(indices)),
        Line("table", "entries x E", "", by(table)),
        Line("output", "indices x E", f"{by(indices)} x {table[-1]:,}", by(result)),
    )
    read = prod(indices)
    steps = (
        Line("rows looked up", "product of the indices' sizes", by(indices), f"{read:,}"),
        Line("values copied", "rows x E", times(read, table[-1]), f"{read * table[-1]:,}"),
        Line("operations", "a lookup multiplies nothing", "", "0 MAC"),
    )
    return WorkedLayer(shapes, steps, _items(op, ("table", "in", 0), ("output map", "out", 0)))


NORMS = {
    "aten.native_batch_norm": "batch", "aten.cudnn_batch_norm": "batch", "aten.miopen_batch_norm": "batch",
    "aten._batch_norm_with_update": "batch", "aten._native_batch_norm_legit": "batch",
    "aten._native_batch_norm_legit_no_training": "batch",
    "aten.native_layer_norm": "layer", "aten.native_group_norm": "group",
}  # fmt: skip


def norm(op: OpShape) -> WorkedLayer:
    """Batch, instance, layer and group norm: which values share a mean, and the work on each value."""
    data = shape_of(op.inputs, 0)
    kind = NORMS[op.op]
    formula, factors, means = _shared(op, kind, data)
    training = kind != "batch" or flag(op, "training") or op.op == "aten._batch_norm_with_update"
    shapes = (
        Line("input", "", "", by(data)),
        Line("values that share a mean", formula, times(*factors), f"{prod(factors):,}"),
        Line("means and variances", "values / those that share", f"{prod(data):,}/{prod(factors):,}", f"{means:,}"),
        Line("output", "as the input", "", by(shape_of(op.outputs, 0))),
    )  # fmt: skip
    first = {"mean": 1, "variance": 3, "normalise": 2} if training else {"normalise with the running statistics": 2}
    parts, values = {**first, "scale and shift": 2}, prod(data)
    lines = [
        Line(what, f"{each} for each value", times(each, values), f"{each * values:,} FLOP")
        for what, each in parts.items()
    ]
    whole = sum(parts.values()) * values
    lines.append(Line("total, elementwise", "no multiply-adds", "", f"{whole:,} FLOP"))
    return WorkedLayer(shapes, tuple(lines), _norm_space(op, kind, training))


def _shared(op: OpShape, kind: str, data: Shape) -> tuple[str, Shape, int]:
    if kind == "layer":
        own = integers(op, "normalized_shape") or data[-1:]
        return "normalised sizes", own, prod(data) // prod(own)
    if kind == "group":
        groups = integer(op, "group", 1)
        own = (data[1] // groups, *data[2:])
        return "C/g x positions", own, data[0] * groups
    return "N x positions of a channel", (data[0], *data[2:]), data[1]


def _norm_space(op: OpShape, kind: str, training: bool) -> tuple[Item, ...]:
    if kind == "batch":
        named = [("weights", "in", 1), ("biases", "in", 2), ("running mean", "in", 3), ("running variance", "in", 4)]
    else:
        first = 2 if kind == "layer" else 1
        named = [("weights", "in", first), ("biases", "in", first + 1)]
    kept = [("mean, kept for backward", "out", 1), ("1/deviation, kept for backward", "out", 2)] if training else []
    return _items(op, *named, ("output map", "out", 0), *kept)


POOLS = ("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices", "aten.avg_pool2d", "aten.avg_pool3d")


def pooling(op: OpShape) -> WorkedLayer:
    """Max and average pooling: a window for each output value."""
    rank = 3 if "3d" in op.op else 2
    data, result = shape_of(op.inputs, 0), shape_of(op.outputs, 0)
    kernel = each_side(op, "kernel_size", rank, (1,))
    strides = [stride or size for stride, size in zip(each_side(op, "stride", rank, (0,)), kernel, strict=True)]
    settings = (kernel, strides, each_side(op, "padding", rank, (0,)), each_side(op, "dilation", rank, (1,)))
    shapes = [Line("input", "", "", by(data))]
    for side, *sizes, given in zip(SIDES[rank], data[-rank:], *settings, result[-rank:], strict=True):
        shapes.append(window_line(f"output {side}", sizes, given, flag(op, "ceil_mode")))
    shapes.append(Line("output", "", "", by(result)))
    window, values = prod(kernel), prod(result)
    word = "comparisons" if "max" in op.op else "additions"
    steps = (
        Line("for one output value", f"window, {word}", times(*kernel), f"{window:,}"),
        Line("output values", "product of the sizes", by(result), f"{values:,}"),
        Line("total, elementwise", "values x window", times(values, window), f"{values * window:,} FLOP"),
        Line("operations", "no multiply-adds, no weights", "", "0 MAC"),
    )
    named = [("output map", "out", 0), ("places of the largest, kept for backward", "out", 1)]
    return WorkedLayer(tuple(shapes), steps, _items(op, *named))


def plain(ops: Sequence[OpShape]) -> WorkedLayer:
    """Anything else: one line for each operation."""
    shapes = (
        Line("input", "", "", by(shape_of(ops[0].inputs, 0))),
        Line("output", "", "", by(shape_of(ops[-1].outputs, 0))),
    )
    steps = []
    for op in ops:
        formula = formula_for(op)
        name = op.op.removeprefix("aten.").removeprefix("perfctl.").rstrip("_")
        if formula is None:
            steps.append(Line(name, f"no formula for {op.op}", "", "not counted"))
            continue
        part = formula(op)[0]
        steps.append(Line(name, part.text, "", macs(part.macs) if part.macs else f"{part.elementwise:,} FLOP"))
    return WorkedLayer(shapes, tuple(steps), _items(ops[-1], ("output map", "out", 0)))
