"""Records of a worked sheet; sheets of convolutions, products, attention, and layers without
multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from math import prod
from operator import floordiv, mul

from perfctl.orchestrator.estimate.flops.engine import PRODUCTS, formula_for
from perfctl.orchestrator.estimate.flops.formulas import (
    ADDED,
    BIAS_AT,
    IN_LETTERS,
    KERNEL_LETTERS,
    OUT_LETTERS,
    Shape,
    batched,
    flag,
    integer,
    integers,
    left_factor,
    shape_of,
    tensors_of,
    times,
)
from perfctl.records.paper import OpShape

SIDES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}

SDPA = "perfctl.scaled_dot_product_attention"

NORMS = {
    "aten.native_batch_norm": "batch",
    "aten.cudnn_batch_norm": "batch",
    "aten.miopen_batch_norm": "batch",
    "aten._batch_norm_with_update": "batch",
    "aten._native_batch_norm_legit": "batch",
    "aten._native_batch_norm_legit_no_training": "batch",
    "aten.native_layer_norm": "layer",
    "aten.native_group_norm": "group",
}

POOLS = (
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
    "aten.avg_pool2d",
    "aten.avg_pool3d",
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what, the formula in letters, the numbers put in, the result with its unit."""

    what: str
    formula: str
    numbers: str
    result: str


@dataclass(frozen=True, slots=True)
class Way:
    """One way to work the layer's forward pass: the right one, or one with a slip."""

    slips: tuple[str, ...]
    terms: tuple[Shape, ...]
    """A sum of products, for one sample; the batch multiplies all of them."""
    outputs: int
    names: tuple[tuple[str, int], ...] = ()
    """(name, size) of factors, or products of neighbours, that may be off by one."""
    shape: Shape = ()
    """Sizes whose product is ``outputs``; empty where they are not told apart."""

    @property
    def macs(self) -> int:
        """Of one sample."""
        return sum(prod(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a hand value is checked against."""

    batch: int
    weights: int
    biases: int
    bias: bool
    """Whether every output value gets a bias added."""
    ways: tuple[Way, ...]
    """The right one first."""
    step: int = 0
    """Multiply-adds of forward and backward together; 0 where only forward was seen."""
    item: int = 0
    """Bytes of one output value; 0 where the sheet has no output."""

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass of the whole batch."""
        return self.batch * self.ways[0].macs


@dataclass(frozen=True, slots=True)
class Item:
    """A tensor: its name, its sizes, bytes of one value."""

    what: str
    sizes: Shape
    item: int


@dataclass(frozen=True, slots=True)
class WorkedLayer:
    """One layer's forward pass, worked."""

    shapes: tuple[Line, ...]
    steps: tuple[Line, ...]
    space: tuple[Item, ...]
    facts: Facts | None = None


def out_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """(W - K + 2P)/S + 1 with K the dilated kernel; 0 where the kernel does not fit."""
    return max(0, (size - (dilation * (kernel - 1) + 1) + 2 * padding) // stride + 1)


def by(sizes: Sequence[int]) -> str:
    """(64, 24, 24) -> "64 x 24 x 24"; one value for no sizes."""
    return times(*sizes) if sizes else "1"


def macs(value: int) -> str:
    return f"{value:,} MAC"


def in_flop(value: int) -> Line:
    """The line that turns multiply-adds into FLOPs."""
    return Line("in FLOP", "2 x MAC", times(2, value), f"{2 * value:,} FLOP")


def items_of(*named: tuple[str, tuple[Shape, int] | None]) -> tuple[Item, ...]:
    """(name, (sizes, bytes of a value)) of the tensors that are not None."""
    return tuple(Item(what, *tensor) for what, tensor in named if tensor is not None)


def each_side(op: OpShape, name: str, rank: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """A setting of a window in each of ``rank`` dimensions."""
    values = integers(op, name) or default
    return values * rank if len(values) == 1 else values


def window_line(what: str, sizes: Sequence[int], result: int, up: bool = False) -> Line:
    """The output size of a window. ``sizes``: input, kernel, stride, padding, dilation;
    ``up``: ceil_mode."""
    size, kernel, stride, padding, dilation = sizes
    exact = (size - (dilation * (kernel - 1) + 1) + 2 * padding) % stride == 0
    formula = "(W - K + 2P)/S + 1" + ("" if exact else ", rounded up" if up else ", rounded down")
    return Line(
        what,
        formula,
        f"({size} - {dilated(kernel, dilation)} + 2x{padding})/{stride} + 1",
        f"{result:,}",
    )


def dilated(kernel: int, dilation: int) -> str:
    return f"({dilation}x({kernel} - 1) + 1)" if dilation > 1 else str(kernel)


def bias_line(values: int) -> Line:
    return Line("bias, not included", "1 addition a value", f"{values:,}", f"{values:,} FLOP")


def space_lines(items: Sequence[Item]) -> tuple[Line, ...]:
    """Values and bytes of each, and of all."""
    lines, values, size = [], 0, 0
    for item in items:
        count = prod(item.sizes)
        values, size = values + count, size + count * item.item
        product = f"{times(*item.sizes)} = " if len(item.sizes) > 1 else ""
        text = f"{product}{count:,} values x {item.item} B"
        lines.append(Line(item.what, "values x bytes", text, f"{count * item.item:,} B"))
    if len(lines) > 1:
        lines.append(
            Line("total", "sum", f"{values:,} values", f"{size:,} B = {size / 1024:,.1f} KiB")
        )
    return tuple(lines)


def conv(op: OpShape) -> WorkedLayer:
    """aten.convolution, transposed or not."""
    weight = shape_of(op.inputs, 1)
    data, result = batched(shape_of(op.inputs, 0), weight), batched(shape_of(op.outputs, 0), weight)
    transposed = flag(op, "transposed")
    bias, groups, rank = flag(op, "bias"), integer(op, "groups", 1), len(weight) - 2
    settings = [each_side(op, name, rank) for name in ("stride", "padding", "dilation")]
    shapes = [Line("input", "N x C x ...", "", by(data))]
    if groups > 1:
        letters = "K/g" if transposed else "C/g, depthwise" if weight[1] == 1 else "C/g"
        channels = f"{weight[1] * groups:,}/{groups:,}"
        shapes.append(Line("channels of a group", letters, channels, f"{weight[1]:,}"))
    derive = _enlarged if transposed else window_line
    names = [
        f"output {letter} ({side})"
        for side, letter in zip(SIDES[rank], OUT_LETTERS[rank], strict=True)
    ]
    for name, *sizes, given in zip(names, data[2:], weight[2:], *settings, result[2:], strict=True):
        shapes.append(derive(name, sizes, given))
    shapes.append(Line("output", "N x K x ...", "", by(result)))
    # A transposed convolution spreads every input value over a kernel, so the input's
    # positions count.
    steps = _steps(weight, data if transposed else result, transposed)
    count = data[0] * prod((data if transposed else result)[2:]) * prod(weight)
    steps += [in_flop(count), *([bias_line(prod(result))] if bias else [])]
    ways = (
        transposed_ways(data, weight, result, groups)
        if transposed
        else conv_ways(weight, result[2:], data[2:], settings, groups)
    )
    tensors = tensors_of(op)
    biases = tensors.inputs[2] if bias else None
    space = items_of(
        ("weights", tensors.inputs[1]), ("biases", biases), ("output map", tensors.outputs[0])
    )
    facts = Facts(data[0], prod(weight), result[1] if bias else 0, bias, ways)
    return WorkedLayer(tuple(shapes), tuple(steps), space, facts)


def _enlarged(what: str, sizes: Sequence[int], result: int) -> Line:
    size, kernel, stride, padding, dilation = sizes
    extra = result - ((size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)
    more = f" + {extra}" if extra else ""
    formula = "(W - 1)S + K - 2P" + (" + output padding" if extra else "")
    numbers = f"({size} - 1)x{stride} + {dilated(kernel, dilation)} - 2x{padding}{more}"
    return Line(what, formula, numbers, f"{result:,}")


def _steps(weight: Shape, values: Shape, transposed: bool) -> list[Line]:
    inner, sample, rank = prod(weight[1:]), prod(values[1:]), len(weight) - 2
    side, inner_letters, channels, letters = ("output", "C/g", "K", OUT_LETTERS)
    if transposed:
        side, inner_letters, channels, letters = ("input", "K/g", "C", IN_LETTERS)
    kernel, places = " x ".join(KERNEL_LETTERS[rank]), " x ".join(letters[rank])
    return [
        Line(
            f"for one {side} value", f"{inner_letters} x {kernel}", times(*weight[1:]), macs(inner)
        ),
        Line(
            f"{side} values, one sample",
            f"{channels} x {places}",
            times(*values[1:]),
            f"{sample:,}",
        ),
        Line("one sample", "values x MAC", times(sample, inner), macs(sample * inner)),
        Line(
            f"{side} values, whole batch",
            f"N x {channels} x {places}",
            times(*values),
            f"{prod(values):,}",
        ),
        Line("whole batch", "values x MAC", times(prod(values), inner), macs(prod(values) * inner)),
    ]


def conv_ways(
    weight: Shape, positions: Shape, given: Shape, settings: list[tuple[int, ...]], groups: int = 1
) -> tuple[Way, ...]:
    """The right one; the input after or before a pooling; groups or stride left out; the input's
    size for the output's.

    ``weight`` K, C/g, R, S ...; ``positions`` P, Q ...; ``given`` H, W ...; ``settings`` stride,
    padding, dilation.
    """
    ways = [_way((), weight, positions)]
    pools = [
        [scaled(size, pool) for size in given] for pool in (2, 3, 4) for scaled in (floordiv, mul)
    ]
    for sizes in pools:
        found = tuple(map(out_size, sizes, weight[2:], *settings))
        if all(found):
            ways.append(_way((f"input {_map(sizes)} instead of {_map(given)}",), weight, found))
    if groups > 1:
        whole = (weight[0], weight[1] * groups, *weight[2:])
        ways.append(_way((f"the division by {groups} groups left out",), whole, positions))
    if any(stride > 1 for stride in settings[0]):
        dense = tuple(map(out_size, given, weight[2:], repeat(1), *settings[1:]))
        ways.append(
            _way(
                (f"stride left out ({_map(dense)} positions, not {_map(positions)})",),
                weight,
                dense,
            )
        )
    if positions != given:
        ways.append(_way((f"output {_map(given)} instead of {_map(positions)}",), weight, given))
    return tuple(ways)


def _map(sizes: Sequence[int]) -> str:
    return "x".join(str(size) for size in sizes)


def _way(slips: tuple[str, ...], weight: Shape, positions: Shape) -> Way:
    names = (
        (f"{weight[0]} output channels", weight[0]),
        (_map(positions), prod(positions)),
        (f"the {_map(weight[2:])} kernel", prod(weight[2:])),
        (f"{weight[1]} input channels", weight[1]),
        (f"one side of {positions[0]}", positions[0]),
        (f"one output value's {_map(weight[1:])}", prod(weight[1:])),
    )
    return Way(
        slips,
        ((weight[0], *weight[1:], *positions),),
        weight[0] * prod(positions),
        names,
        (weight[0], *positions),
    )


def transposed_ways(data: Shape, weight: Shape, result: Shape, groups: int) -> tuple[Way, ...]:
    """The right one; the output's positions instead of the input's; groups left out."""
    outputs = prod(result[1:])
    names = (
        (f"{weight[0]} input channels", weight[0]),
        (_map(data[2:]), prod(data[2:])),
        (f"the {_map(weight[2:])} kernel", prod(weight[2:])),
        (f"{weight[1]} output channels", weight[1]),
    )
    slip = f"positions of the output ({_map(result[2:])}) instead of the input's ({_map(data[2:])})"
    ways = [
        Way((), ((*weight, *data[2:]),), outputs, names),
        Way((slip,), ((*weight, *result[2:]),), outputs, names),
    ]
    if groups > 1:
        whole = (weight[0], weight[1] * groups, *weight[2:], *data[2:])
        ways.append(Way((f"the division by {groups} groups left out",), (whole,), outputs))
    return tuple(ways)


def linear(op: OpShape, module_output: Shape | None = None) -> WorkedLayer:
    """aten.addmm(bias, rows, weight), aten.mm(rows, weight) or aten.linear(data, weight, bias).

    The dispatcher sees the leading dimensions flattened to rows; ``module_output`` has them.
    """
    first = 1 if op.op in ADDED else 0
    tensors = tensors_of(op)
    data, weight = left_factor(op), shape_of(op.inputs, first + 1)
    ins, outs = (weight[-1], weight[0]) if op.op == "aten.linear" else (weight[0], weight[1])
    rows = prod(data[:-1])
    of_module = module_output[:-1] if module_output is not None else ()
    leading = of_module if of_module and prod(of_module) == rows else data[:-1] or (1,)
    given = 0 if op.op in ADDED else BIAS_AT.get(op.op, -1)
    bias = given >= 0 and given < len(op.inputs) and op.inputs[given] is not None
    shapes = [
        Line("input", "... x in", "", by((*leading, ins))),
        Line("rows", "product of the leading sizes", by(leading), f"{rows:,}"),
        Line("output", "... x out", "", by((*leading, outs))),
    ]
    count = rows * ins * outs
    steps = [
        Line("for one output value", "in", f"{ins:,}", macs(ins)),
        Line("one row", "in x out", times(ins, outs), macs(ins * outs)),
        Line("output values", "rows x out", times(rows, outs), f"{rows * outs:,}"),
        Line("whole batch", "rows x in x out", times(rows, ins, outs), macs(count)),
        in_flop(count),
        *([bias_line(rows * outs)] if bias else []),
    ]
    biases = tensors.inputs[given] if bias else None
    items = items_of(
        ("weights", tensors.inputs[first + 1]),
        ("biases", biases),
        ("output map", tensors.outputs[0]),
    )
    facts = Facts(
        leading[0], ins * outs, outs if bias else 0, bias, linear_ways(leading[1:], ins, outs)
    )
    return WorkedLayer(tuple(shapes), tuple(steps), items, facts)


def linear_ways(inner: Shape, ins: int, outs: int) -> tuple[Way, ...]:
    """The right one; one size used twice; the leading sizes ``inner`` (without the batch) left out;
    sizes added."""
    names = ((f"{ins} inputs", ins), (f"{outs} outputs", outs))
    values = prod(inner) * outs
    ways = [Way((), ((*inner, ins, outs),), values, names)]
    if prod(inner) > 1:
        ways.append(
            Way((f"the {by(inner)} rows of each sample left out",), ((ins, outs),), outs, names)
        )
    if ins != outs:
        for size, said in ((ins, "inputs"), (outs, "outputs")):
            slip = f"{said} used twice ({size} x {size} instead of {ins} x {outs})"
            ways.append(Way((slip,), ((*inner, size, size),), values))
    slip = f"sizes added instead of multiplied ({ins} + {outs})"
    ways.append(Way((slip,), ((*inner, ins + outs),), values))
    return tuple(ways)


def attention(op: OpShape) -> WorkedLayer:
    """One call of scaled_dot_product_attention."""
    query, key, value = (shape_of(op.inputs, place) for place in range(3))
    batch, heads = (query[0], prod(query[1:-2])) if len(query) > 2 else (1, 1)
    rows, columns, wide, deep = query[-2], key[-2], query[-1], value[-1]
    shapes = [
        Line("query", "B x h x Sq x E", "", by(query)),
        Line("key", "B x h x Sk x E", "", by(key)),
        Line("value", "B x h x Sk x V", "", by(value)),
        Line(
            "scores",
            "B x h x Sq x Sk",
            times(batch, heads, rows, columns),
            f"{batch * heads * rows * columns:,}",
        ),
        Line("output", "B x h x Sq x V", "", by(shape_of(op.outputs, 0))),
    ]
    scores = batch * heads * rows * columns
    steps = [
        Line("one score", "E", f"{wide:,}", macs(wide)),
        Line(
            "scores Q K^T",
            "B x h x Sq x Sk x E",
            times(batch, heads, rows, columns, wide),
            macs(scores * wide),
        ),
        Line(
            "weights x values",
            "B x h x Sq x Sk x V",
            times(batch, heads, rows, columns, deep),
            macs(scores * deep),
        ),
        Line(
            "whole batch",
            "sum",
            f"{scores * wide:,} + {scores * deep:,}",
            macs(scores * (wide + deep)),
        ),
        in_flop(scores * (wide + deep)),
        Line(
            "softmax and scaling, not included",
            "6 for each score",
            times(6, scores),
            f"{6 * scores:,} FLOP",
        ),
    ]
    causal = flag(op, "is_causal")
    if causal:
        said = "the whole square is counted; a kernel that skips masked blocks does less"
        steps.append(Line("causal mask", said, "", ""))
    tensors = tensors_of(op)
    named = zip(("query", "key", "value"), tensors.inputs, strict=False)
    items = list(items_of(*named, ("output map", tensors.outputs[0])))
    items.insert(
        3, Item("scores, if a kernel keeps them", (batch, heads, rows, columns), items[0].item)
    )
    facts = Facts(batch, 0, 0, False, _ways(heads, rows, columns, wide, deep, causal))
    return WorkedLayer(tuple(shapes), tuple(steps), tuple(items), facts)


def _ways(
    heads: int, rows: int, columns: int, wide: int, deep: int, causal: bool
) -> tuple[Way, ...]:
    values = heads * rows * deep
    first, second = (heads, rows, columns, wide), (heads, rows, columns, deep)
    one = ((heads, rows, wide), (heads, rows, deep))
    ways = [
        Way((), (first, second), values),
        Way(("the product of weights and values left out",), (first,), values),
        Way((f"one sequence of {rows} instead of {rows} x {columns}",), one, values),
    ]
    if heads > 1:
        ways.append(Way((f"the {heads} heads left out",), (first[1:], second[1:]), values))
        whole = ((heads, rows, columns, heads * wide), (heads, rows, columns, heads * deep))
        ways.append(Way(("the whole width used for each head",), whole, values))
    whole_square = heads * rows * columns * (wide + deep)
    if causal and whole_square % 2 == 0:
        ways.append(Way(("halved for the causal mask",), ((whole_square // 2,),), values))
        triangle = heads * (wide + deep), rows * (rows + 1) // 2
        ways.append(Way(("only the causal triangle counted",), (triangle,), values))
    return tuple(ways)


def products(ops: Sequence[OpShape], batch: int, parameters: int, multihead: bool) -> WorkedLayer:
    """A layer of several products (nn.MultiheadAttention: projections and attention), one
    line each."""
    heavy = [op for op in ops if op.op in PRODUCTS]
    names = _names(heavy, multihead)
    counts = [PRODUCTS[op.op](op)[0] for op in heavy]
    macs_of = [part.macs * op.calls for op, part in zip(heavy, counts, strict=True)]
    steps = []
    for name, op, part, count in zip(names, heavy, counts, macs_of, strict=True):
        letters, _, rest = part.text.partition(" = ")
        again = f"{op.calls} times " if op.calls > 1 else ""
        steps.append(Line(name, letters, again + rest.partition(" = ")[0], macs(count)))
    batch = _batch(heavy) if multihead else batch
    whole = sum(macs_of)
    steps += [
        Line("whole batch", "sum", " + ".join(f"{count:,}" for count in macs_of), macs(whole)),
        in_flop(whole),
    ]
    shapes = (
        Line("first operand", "", "", by(left_factor(ops[0]))),
        Line("last result", "", "", by(shape_of(ops[-1].outputs, 0))),
    )
    tensors = [tensors_of(op).outputs[0] for op in heavy]
    items = items_of(
        *((f"result of {name}", tensor) for name, tensor in zip(names, tensors, strict=True))
    )
    if parameters:
        items = (Item("parameters", (parameters,), items[0].item if items else 4), *items)
    return WorkedLayer(shapes, tuple(steps), items, _facts(batch, parameters, names, macs_of))


def _batch(heavy: Sequence[OpShape]) -> int:
    core = next((op for op in heavy if op.op == SDPA or "bmm" in op.op), None)
    rows = prod(left_factor(heavy[0])[:-1])
    if core is None or rows == 0:
        return 1
    if core.op == SDPA:
        return shape_of(core.inputs, 0)[0]
    positions = left_factor(core)[-2]
    return rows // positions if rows % positions == 0 else 1


def _names(heavy: Sequence[OpShape], multihead: bool) -> list[str]:
    if not multihead:
        return [f"product {place}" for place in range(1, len(heavy) + 1)]
    core = [place for place, op in enumerate(heavy) if op.op == SDPA or "bmm" in op.op]
    first, last = (core[0], core[-1]) if core else (len(heavy), -1)
    names = []
    for place, op in enumerate(heavy):
        if place in core:
            name = (
                "attention"
                if op.op == SDPA
                else "scores Q K^T"
                if place == first
                else "weights x values"
            )
        else:
            name = (
                "projection out"
                if place > last
                else "projection in"
                if first == 1
                else f"projection in {place + 1}"
            )
        names.append(name)
    return names


def _facts(
    batch: int, parameters: int, names: Sequence[str], counts: Sequence[int]
) -> Facts | None:
    if not counts or any(count % batch for count in counts):
        return None
    terms = [(count // batch,) for count in counts]
    ways = [Way((), tuple(terms), 0)]
    if len(terms) > 1:
        for place, name in enumerate(names):
            ways.append(Way((f"{name} left out",), (*terms[:place], *terms[place + 1 :]), 0))
            ways.append(Way((f"{name} alone",), (terms[place],), 0))
    inner, outer = (
        tuple(
            term
            for name, term in zip(names, terms, strict=True)
            if name.startswith("projection") is projection
        )
        for projection in (False, True)
    )
    if inner and outer:
        ways.append(Way(("the projections left out",), inner, 0))
        ways.append(Way(("attention itself left out, projections alone",), outer, 0))
    return Facts(batch, parameters, 0, False, tuple(ways))


def _items(op: OpShape, *named: tuple[str, str, int]) -> tuple[Item, ...]:
    """(name, "in" or "out", place) of the tensors that are there."""
    tensors = tensors_of(op)
    groups = {"in": tensors.inputs, "out": tensors.outputs}
    found = [
        (what, groups[side][place]) for what, side, place in named if place < len(groups[side])
    ]
    return items_of(
        *((what, tensor) for what, tensor in found if tensor is not None and 0 not in tensor[0])
    )


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


def norm(op: OpShape) -> WorkedLayer:
    """Batch, instance, layer and group norm: which values share a mean, and the work on
    each value."""
    data = shape_of(op.inputs, 0)
    kind = NORMS[op.op]
    formula, factors, means = _shared(op, kind, data)
    training = kind != "batch" or flag(op, "training") or op.op == "aten._batch_norm_with_update"
    shapes = (
        Line("input", "", "", by(data)),
        Line("values that share a mean", formula, times(*factors), f"{prod(factors):,}"),
        Line(
            "means and variances",
            "values / those that share",
            f"{prod(data):,}/{prod(factors):,}",
            f"{means:,}",
        ),
        Line("output", "as the input", "", by(shape_of(op.outputs, 0))),
    )
    first = (
        {"mean": 1, "variance": 3, "normalise": 2}
        if training
        else {"normalise with the running statistics": 2}
    )
    parts, values = {**first, "scale and shift": 2}, prod(data)
    lines = [
        Line(what, f"{each} for each value", times(each, values), f"{each * values:,} FLOP")
        for what, each in parts.items()
    ]
    whole = sum(parts.values()) * values
    lines.append(Line("total, elementwise", "no multiply-adds", "", f"{whole:,} FLOP"))
    at = 2 if kind == "layer" else 1
    named = [("weights", "in", at), ("biases", "in", at + 1)]
    if kind == "batch":
        named += [("running mean", "in", 3), ("running variance", "in", 4)]
    kept = (
        [("mean, kept for backward", "out", 1), ("1/deviation, kept for backward", "out", 2)]
        if training
        else []
    )
    return WorkedLayer(shapes, tuple(lines), _items(op, *named, ("output map", "out", 0), *kept))


def _shared(op: OpShape, kind: str, data: Shape) -> tuple[str, Shape, int]:
    if kind == "layer":
        own = integers(op, "normalized_shape") or data[-1:]
        return "normalised sizes", own, prod(data) // prod(own)
    if kind == "group":
        groups = integer(op, "group", 1)
        own = (data[1] // groups, *data[2:])
        return "C/g x positions", own, data[0] * groups
    return "N x positions of a channel", (data[0], *data[2:]), data[1]


def pooling(op: OpShape) -> WorkedLayer:
    """Max and average pooling: a window for each output value."""
    rank = 3 if "3d" in op.op else 2
    data, result = shape_of(op.inputs, 0), shape_of(op.outputs, 0)
    kernel = each_side(op, "kernel_size", rank, (1,))
    strides = [
        stride or size
        for stride, size in zip(each_side(op, "stride", rank, (0,)), kernel, strict=True)
    ]
    settings = (
        kernel,
        strides,
        each_side(op, "padding", rank, (0,)),
        each_side(op, "dilation", rank, (1,)),
    )
    shapes = [Line("input", "", "", by(data))]
    for side, *sizes, given in zip(
        SIDES[rank], data[-rank:], *settings, result[-rank:], strict=True
    ):
        shapes.append(window_line(f"output {side}", sizes, given, flag(op, "ceil_mode")))
    shapes.append(Line("output", "", "", by(result)))
    window, values = prod(kernel), prod(result)
    word = "comparisons" if "max" in op.op else "additions"
    steps = (
        Line("for one output value", f"window, {word}", times(*kernel), f"{window:,}"),
        Line("output values", "product of the sizes", by(result), f"{values:,}"),
        Line(
            "total, elementwise",
            "values x window",
            times(values, window),
            f"{values * window:,} FLOP",
        ),
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
        steps.append(
            Line(
                name, part.text, "", macs(part.macs) if part.macs else f"{part.elementwise:,} FLOP"
            )
        )
    return WorkedLayer(shapes, tuple(steps), _items(ops[-1], ("output map", "out", 0)))
