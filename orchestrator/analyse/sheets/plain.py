"""Sheets of layers without multiply-adds: embedding, normalisation, pooling, and what goes value by value."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from perfctl.orchestrator.analyse.flops.engine import formula_for
from perfctl.orchestrator.analyse.flops.terms import Shape, flag, integer, integers, number, shape_of, tensors_of, times
from perfctl.orchestrator.analyse.sheets.lines import Item, Line, WorkedLayer, by
from perfctl.orchestrator.analyse.sheets.products import SIDES
from perfctl.records.paper import OpShape


def _items(op: OpShape, *named: tuple[str, str, int]) -> tuple[Item, ...]:
    """(name, "in" or "out", place) of the tensors that are there."""
    tensors = tensors_of(op)
    found: list[Item] = []
    for what, side, place in named:
        group = tensors.inputs if side == "in" else tensors.outputs
        tensor = group[place] if place < len(group) else None
        if tensor is not None and 0 not in tensor[0]:
            found.append(Item(what, *tensor))
    return tuple(found)


def embedding(op: OpShape) -> WorkedLayer:
    """aten.embedding(table, indices): a lookup."""
    table, indices, result = shape_of(op.inputs, 0), shape_of(op.inputs, 1), shape_of(op.outputs, 0)
    shapes = (
        Line("indices", "", "", by(indices)),
        Line("table", "entries x E", "", by(table)),
        Line("output", "indices x E", f"{by(indices)} x {number(table[-1])}", by(result)),
    )
    read = prod(indices)
    steps = (
        Line("rows looked up", "product of the indices' sizes", by(indices), number(read)),
        Line("values copied", "rows x E", times(read, table[-1]), number(read * table[-1])),
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
        Line("values that share a mean", formula, times(*factors), number(prod(factors))),
        Line("means and variances", "values / those that share", f"{number(prod(data))}/{number(prod(factors))}", number(means)),
        Line("output", "as the input", "", by(shape_of(op.outputs, 0))),
    )  # fmt: skip
    parts = (("mean", 1), ("variance", 3), ("normalise", 2), ("scale and shift", 2)) if training else (
        ("normalise with the running statistics", 2), ("scale and shift", 2),
    )  # fmt: skip
    values = prod(data)
    lines = [
        Line(what, f"{each} for each value", times(each, values), f"{number(each * values)} FLOP")
        for what, each in parts
    ]
    whole = sum(each for _, each in parts) * values
    lines.append(Line("in all, elementwise", "no multiply-adds", "", f"{number(whole)} FLOP"))
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
    each = [
        _each(op, name, rank, default)
        for name, default in (("kernel_size", 1), ("stride", 0), ("padding", 0), ("dilation", 1))
    ]
    kernel = each[0]
    each[1] = tuple(stride or size for stride, size in zip(each[1], kernel, strict=True))
    shapes = [Line("input", "", "", by(data))]
    for place, side in enumerate(SIDES[rank]):
        sizes = (data[place - rank], *(values[place] for values in each), result[place - rank])
        shapes.append(_window(side, sizes, flag(op, "ceil_mode")))
    shapes.append(Line("output", "", "", by(result)))
    window, values = prod(kernel), prod(result)
    word = "comparisons" if "max" in op.op else "additions"
    steps = (
        Line("for one output value", f"window, {word}", times(*kernel), number(window)),
        Line("output values", "product of the sizes", by(result), number(values)),
        Line("in all, elementwise", "values x window", times(values, window), f"{number(values * window)} FLOP"),
        Line("operations", "no multiply-adds, no weights", "", "0 MAC"),
    )
    named = [("output map", "out", 0), ("places of the largest, kept for backward", "out", 1)]
    return WorkedLayer(tuple(shapes), steps, _items(op, *named))


def _each(op: OpShape, name: str, rank: int, default: int) -> tuple[int, ...]:
    values = integers(op, name) or (default,)
    return values * rank if len(values) == 1 else values


def _window(side: str, sizes: Shape, up: bool) -> Line:
    size, kernel, stride, padding, dilation, result = sizes
    wide = f"({dilation}x({kernel} - 1) + 1)" if dilation > 1 else str(kernel)
    exact = (size - (dilation * (kernel - 1) + 1) + 2 * padding) % stride == 0
    formula = "(W - K + 2P)/S + 1" + ("" if exact else ", rounded up" if up else ", rounded down")
    return Line(f"output {side}", formula, f"({size} - {wide} + 2x{padding})/{stride} + 1", number(result))


def plain(ops: Sequence[OpShape]) -> WorkedLayer:
    """Anything else: what each operation does to how many values."""
    first, last = ops[0], ops[-1]
    shapes = (
        Line("input", "", "", by(shape_of(first.inputs, 0))),
        Line("output", "", "", by(shape_of(last.outputs, 0))),
    )
    steps = []
    for op in ops:
        formula = formula_for(op)
        name = op.op.removeprefix("aten.").removeprefix("perfctl.").rstrip("_")
        if formula is None:
            steps.append(Line(name, f"no formula for {op.op}", "", "not counted"))
            continue
        part = formula(op)[0]
        result = macs(part.macs) if part.macs else f"{number(part.elementwise)} FLOP" if part.elementwise else "0 FLOP"
        steps.append(Line(name, part.text, "", result))
    return WorkedLayer(shapes, tuple(steps), _items(last, ("output map", "out", 0)))


def macs(value: int) -> str:
    return f"{number(value)} MAC"
