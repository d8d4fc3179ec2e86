"""Sheets of convolutions: plain, grouped, depthwise, dilated, strided, transposed, in 1 to 3 dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from perfctl.orchestrator.analyse.flops.engine import PRODUCTS
from perfctl.orchestrator.analyse.flops.products import (
    ADDED,
    IN_LETTERS,
    KERNEL_LETTERS,
    OUT_LETTERS,
    batched,
    left_factor,
)
from perfctl.orchestrator.analyse.flops.terms import Shape, flag, integer, integers, number, shape_of, tensors_of, times
from perfctl.orchestrator.analyse.sheets.lines import (
    Facts,
    Item,
    Line,
    Way,
    WorkedLayer,
    bias_line,
    by,
    in_flop,
    macs,
    out_size,
)
from perfctl.records.paper import OpShape

SIDES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
POOLS = (2, 3, 4)


def conv(op: OpShape) -> WorkedLayer:
    """aten.convolution, transposed or not."""
    weight = shape_of(op.inputs, 1)
    data, result = batched(shape_of(op.inputs, 0), weight), batched(shape_of(op.outputs, 0), weight)
    transposed = flag(op, "transposed")
    settings = [_each(op, name, len(weight) - 2) for name in ("stride", "padding", "dilation")]
    shapes = [Line("input", "N x C x ...", "", by(data)), *_groups(op, weight, transposed)]
    sizes = zip(data[2:], weight[2:], *settings, result[2:], strict=True)
    derive = _enlarged if transposed else _reduced
    for side, letter, size in zip(SIDES[len(weight) - 2], OUT_LETTERS[len(weight) - 2], sizes, strict=True):
        shapes.append(derive(f"output {letter} ({side})", *size))
    shapes.append(Line("output", "N x K x ...", "", by(result)))
    bias = flag(op, "bias")
    steps = _transposed_steps(data, weight) if transposed else _steps(weight, result)
    count = data[0] * prod((data if transposed else result)[2:]) * prod(weight)
    steps += [in_flop(count), *([bias_line(prod(result))] if bias else [])]
    ways = transposed_ways(data, weight, result, integer(op, "groups", 1)) if transposed else conv_ways(
        weight, result[2:], data[2:], settings, integer(op, "groups", 1)
    )  # fmt: skip
    facts = Facts(data[0], prod(weight), result[1] if bias else 0, bias, ways)
    return WorkedLayer(tuple(shapes), tuple(steps), _space(op, bias), facts)


def _each(op: OpShape, name: str, rank: int) -> tuple[int, ...]:
    values = integers(op, name)
    return values * rank if len(values) == 1 else values


def _space(op: OpShape, bias: bool) -> tuple[Item, ...]:
    tensors = tensors_of(op)
    named = (
        ("weights", tensors.inputs[1]),
        ("biases", tensors.inputs[2] if bias else None),
        ("output map", tensors.outputs[0]),
    )
    return tuple(Item(what, *tensor) for what, tensor in named if tensor is not None)


def _groups(op: OpShape, weight: Shape, transposed: bool) -> list[Line]:
    groups = integer(op, "groups", 1)
    if groups == 1:
        return []
    inner = weight[1]
    letters = "K/g" if transposed else "C/g, depthwise" if inner == 1 else "C/g"
    return [Line("channels of a group", letters, f"{number(inner * groups)}/{number(groups)}", number(inner))]


def _reduced(what: str, size: int, kernel: int, stride: int, padding: int, dilation: int, result: int) -> Line:
    wide = f"({dilation}x({kernel} - 1) + 1)" if dilation > 1 else str(kernel)
    exact = (size - (dilation * (kernel - 1) + 1) + 2 * padding) % stride == 0
    formula = "(W - K + 2P)/S + 1" + ("" if exact else ", rounded down")
    return Line(what, formula, f"({size} - {wide} + 2x{padding})/{stride} + 1", number(result))


def _enlarged(what: str, size: int, kernel: int, stride: int, padding: int, dilation: int, result: int) -> Line:
    extra = result - ((size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)
    wide = f"({dilation}x({kernel} - 1) + 1)" if dilation > 1 else str(kernel)
    more = f" + {extra}" if extra else ""
    formula = "(W - 1)S + K - 2P" + (" + output padding" if extra else "")
    return Line(what, formula, f"({size} - 1)x{stride} + {wide} - 2x{padding}{more}", number(result))


def _steps(weight: Shape, result: Shape) -> list[Line]:
    """From one output value to the whole batch."""
    return _a_kernel_each(weight, "output", "C/g", "K", result, OUT_LETTERS)


def _transposed_steps(data: Shape, weight: Shape) -> list[Line]:
    """A transposed convolution spreads every input value over a kernel: the input's positions count."""
    return _a_kernel_each(weight, "input", "K/g", "C", data, IN_LETTERS)


def _a_kernel_each(
    weight: Shape, side: str, inner_letters: str, channels: str, values: Shape, letters: Mapping[int, Sequence[str]]
) -> list[Line]:
    """From one of the ``values`` of a ``side``, each of which costs one kernel, to the whole batch."""
    inner, rank = prod(weight[1:]), len(weight) - 2
    sample = prod(values[1:])
    kernel, places = " x ".join(KERNEL_LETTERS[rank]), " x ".join(letters[rank])
    return [
        Line(f"for one {side} value", f"{inner_letters} x {kernel}", times(*weight[1:]), macs(inner)),
        Line(f"{side} values, one sample", f"{channels} x {places}", times(*values[1:]), number(sample)),
        Line("one sample", "values x MAC", times(sample, inner), macs(sample * inner)),
        Line(f"{side} values, whole batch", f"N x {channels} x {places}", times(*values), number(prod(values))),
        Line("whole batch", "values x MAC", times(prod(values), inner), macs(prod(values) * inner)),
    ]


def conv_ways(
    weight: Shape, positions: Shape, given: Shape, settings: list[tuple[int, ...]], groups: int = 1
) -> tuple[Way, ...]:
    """As it is; input taken after or before a pooling that is not there; groups left out.

    ``weight`` K, C/g, R, S ...; ``positions`` P, Q ...; ``given`` H, W ...; ``settings`` stride, padding, dilation.
    """
    ways = [_way((), weight, positions)]
    for pool, (name, sizes) in _pooled(given):
        found = tuple(
            out_size(size, kernel, *each) for size, kernel, *each in zip(sizes, weight[2:], *settings, strict=True)
        )
        if all(found):
            said = f"input taken {name} a pooling by {pool} ({_map(sizes)}, not {_map(given)})"
            ways.append(_way((said,), weight, found))
    if groups > 1:
        said = f"the division by {groups} groups left out"
        ways.append(_way((said,), (weight[0], weight[1] * groups, *weight[2:]), positions))
    if any(stride > 1 for stride in settings[0]):
        dense = tuple(
            out_size(size, kernel, 1, padding, dilation)
            for size, kernel, _, padding, dilation in zip(given, weight[2:], *settings, strict=True)
        )
        ways.append(_way((f"stride left out ({_map(dense)} positions, not {_map(positions)})",), weight, dense))
    if positions != given:
        said = f"size of the input taken for the output's ({_map(given)}, not {_map(positions)})"
        ways.append(_way((said,), weight, given))
    return tuple(ways)


def _pooled(given: Shape) -> Iterator[tuple[int, tuple[str, Shape]]]:
    for pool in POOLS:
        yield pool, ("after", tuple(size // pool for size in given))
        yield pool, ("before", tuple(size * pool for size in given))


def _map(sizes: Shape) -> str:
    return "x".join(str(size) for size in sizes)


def _way(slips: tuple[str, ...], weight: Shape, positions: Shape) -> Way:
    kernel, inner = " x ".join(map(str, weight[2:])), " x ".join(map(str, weight[1:]))
    names = (
        ("the number of output channels", weight[0]),
        (f"the map {' x '.join(map(str, positions))}", prod(positions)),
        (f"the kernel {kernel}", prod(weight[2:])),
        ("the number of input channels", weight[1]),
        ("one side of the map", positions[0]),
        (f"one output value's {inner}", prod(weight[1:])),
    )
    return Way(slips, ((weight[0], *weight[1:], *positions),), weight[0] * prod(positions), names)


def transposed_ways(data: Shape, weight: Shape, result: Shape, groups: int) -> tuple[Way, ...]:
    """As it is; the output's positions taken instead of the input's; groups left out."""
    outputs = prod(result[1:])
    names = (
        ("the number of input channels", weight[0]),
        (f"the map {' x '.join(map(str, data[2:]))}", prod(data[2:])),
        (f"the kernel {' x '.join(map(str, weight[2:]))}", prod(weight[2:])),
        ("the number of output channels", weight[1]),
    )
    said = f"positions of the output taken ({_map(result[2:])}); a transposed convolution's are the input's ({_map(data[2:])})"
    ways = [Way((), ((*weight, *data[2:]),), outputs, names), Way((said,), ((*weight, *result[2:]),), outputs, names)]
    if groups > 1:
        whole = (weight[0], weight[1] * groups, *weight[2:], *data[2:])
        ways.append(Way((f"the division by {groups} groups left out",), (whole,), outputs))
    return tuple(ways)


def linear(op: OpShape, module_output: Shape | None = None) -> WorkedLayer:
    """aten.addmm(bias, rows, weight), aten.mm(rows, weight) or aten.linear(data, weight, bias).

    The dispatcher sees the leading dimensions flattened to rows; ``module_output`` says what they were.
    """
    first = 1 if op.op in ADDED else 0
    tensors = tensors_of(op)
    data, weight = left_factor(op), shape_of(op.inputs, first + 1)
    ins, outs = (weight[-1], weight[0]) if op.op == "aten.linear" else (weight[0], weight[1])
    rows = prod(data[:-1])
    leading = _leading(data, rows, module_output)
    given = 0 if op.op in ADDED else 2 if op.op == "aten.linear" else -1
    bias = given >= 0 and given < len(op.inputs) and op.inputs[given] is not None
    shapes = [
        Line("input", "... x in", "", by((*leading, ins))),
        Line("rows", "product of the leading sizes", by(leading), number(rows)),
        Line("output", "... x out", "", by((*leading, outs))),
    ]
    count = rows * ins * outs
    steps = [
        Line("for one output value", "in", number(ins), macs(ins)),
        Line("one row", "in x out", times(ins, outs), macs(ins * outs)),
        Line("output values", "rows x out", times(rows, outs), number(rows * outs)),
        Line("whole batch", "rows x in x out", times(rows, ins, outs), macs(count)),
        in_flop(count),
        *([bias_line(rows * outs)] if bias else []),
    ]
    named = [("weights", tensors.inputs[first + 1]), ("biases", tensors.inputs[given] if bias else None)]
    items = [Item(what, *tensor) for what, tensor in (*named, ("output map", tensors.outputs[0])) if tensor is not None]
    facts = Facts(leading[0], ins * outs, outs if bias else 0, bias, linear_ways(leading[1:], ins, outs))
    return WorkedLayer(tuple(shapes), tuple(steps), tuple(items), facts)


def _leading(data: Shape, rows: int, module_output: Shape | None) -> Shape:
    if module_output is not None and len(module_output) > 1 and prod(module_output[:-1]) == rows:
        return module_output[:-1]
    return data[:-1] or (1,)


def linear_ways(inner: Shape, ins: int, outs: int) -> tuple[Way, ...]:
    """As it is; sizes of input or output taken twice; the other leading sizes left out. ``inner``: without the batch."""
    names = (("the number of inputs", ins), ("the number of outputs", outs))
    values = prod(inner) * outs
    ways = [Way((), ((*inner, ins, outs),), values, names)]
    if prod(inner) > 1:
        ways.append(Way((f"the {by(inner)} rows of each sample left out",), ((ins, outs),), outs, names))
    if ins != outs:
        for size, said in ((ins, "inputs"), (outs, "outputs")):
            slip = f"the number of {said} taken twice ({size} x {size}, not {ins} x {outs})"
            ways.append(Way((slip,), ((*inner, size, size),), values))
    slip = f"sizes added instead of multiplied ({ins} + {outs})"
    ways.append(Way((slip,), ((*inner, ins + outs),), values))
    return tuple(ways)


SDPA = "perfctl.scaled_dot_product_attention"


def attention(op: OpShape) -> WorkedLayer:
    """One call of scaled_dot_product_attention."""
    query, key, value = (shape_of(op.inputs, place) for place in range(3))
    batch, heads = (query[0], prod(query[1:-2])) if len(query) > 2 else (1, 1)
    rows, columns, wide, deep = query[-2], key[-2], query[-1], value[-1]
    shapes = [
        Line("query", "B x h x Sq x E", "", by(query)),
        Line("key", "B x h x Sk x E", "", by(key)),
        Line("value", "B x h x Sk x V", "", by(value)),
        Line("scores", "B x h x Sq x Sk", times(batch, heads, rows, columns), number(batch * heads * rows * columns)),
        Line("output", "B x h x Sq x V", "", by(shape_of(op.outputs, 0))),
    ]
    steps = _attention_steps(batch, heads, rows, columns, wide, deep)
    if flag(op, "is_causal"):
        said = "the whole square is counted; a kernel that skips masked blocks does less"
        steps.append(Line("causal mask", said, "", ""))
    tensors = tensors_of(op)
    named = [*zip(("query", "key", "value"), tensors.inputs, strict=False), ("output map", tensors.outputs[0])]
    items = [Item(name, *tensor) for name, tensor in named if tensor is not None]
    items.insert(3, Item("scores, where a kernel keeps them", (batch, heads, rows, columns), items[0].item))
    facts = Facts(batch, 0, 0, False, _ways(heads, rows, columns, wide, deep, flag(op, "is_causal")))
    return WorkedLayer(tuple(shapes), tuple(steps), tuple(items), facts)


def _attention_steps(batch: int, heads: int, rows: int, columns: int, wide: int, deep: int) -> list[Line]:
    scores = batch * heads * rows * columns
    return [
        Line("one score", "E", number(wide), macs(wide)),
        Line("scores Q K^T", "B x h x Sq x Sk x E", times(batch, heads, rows, columns, wide), macs(scores * wide)),
        Line("weights x values", "B x h x Sq x Sk x V", times(batch, heads, rows, columns, deep), macs(scores * deep)),
        Line("whole batch", "sum", f"{number(scores * wide)} + {number(scores * deep)}", macs(scores * (wide + deep))),
        in_flop(scores * (wide + deep)),
        Line("softmax and scaling, beside it", "6 for each score", times(6, scores), f"{number(6 * scores)} FLOP"),
    ]


def _ways(heads: int, rows: int, columns: int, wide: int, deep: int, causal: bool) -> tuple[Way, ...]:
    values = heads * rows * deep
    first, second = (heads, rows, columns, wide), (heads, rows, columns, deep)
    ways = [
        Way((), (first, second), values),
        Way(("the product of weights and values left out",), (first,), values),
        Way(
            (f"one sequence of {rows} taken where {rows} x {columns} meet",),
            ((heads, rows, wide), (heads, rows, deep)),
            values,
        ),
    ]
    if heads > 1:
        ways.append(Way((f"the {heads} heads left out",), (first[1:], second[1:]), values))
        whole = ((heads, rows, columns, heads * wide), (heads, rows, columns, heads * deep))
        ways.append(Way(("the whole width taken for each head",), whole, values))
    if causal and heads * rows * columns * (wide + deep) % 2 == 0:
        half = heads * rows * columns * (wide + deep) // 2
        ways.append(Way(("halved for the causal mask",), ((half,),), values))
        triangle = heads * (wide + deep), rows * (rows + 1) // 2
        ways.append(Way(("only the causal triangle counted",), (triangle,), values))
    return tuple(ways)


def products(ops: Sequence[OpShape], batch: int, parameters: int, multihead: bool) -> WorkedLayer:
    """A layer of several products (nn.MultiheadAttention: projections and attention), one line each."""
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
    steps += [Line("whole batch", "sum", " + ".join(number(count) for count in macs_of), macs(whole)), in_flop(whole)]
    shapes = (
        Line("first operand", "", "", by(left_factor(ops[0]))),
        Line("last result", "", "", by(shape_of(ops[-1].outputs, 0))),
    )
    tensors = [tensors_of(op).outputs[0] for op in heavy]
    items = [
        Item(f"result of {name}", *tensor) for name, tensor in zip(names, tensors, strict=True) if tensor is not None
    ]
    size = items[0].item if items else 4
    if parameters:
        items.insert(0, Item("parameters", (parameters,), size))
    return WorkedLayer(shapes, tuple(steps), tuple(items), _facts(batch, parameters, names, macs_of))


def _batch(heavy: Sequence[OpShape]) -> int:
    """Of nn.MultiheadAttention, whichever of its dimensions that is: rows of the projection / positions."""
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
            name = "attention" if op.op == SDPA else "scores Q K^T" if place == first else "weights x values"
        else:
            name = "projection out" if place > last else "projection in" if first == 1 else f"projection in {place + 1}"
        names.append(name)
    return names


def _facts(batch: int, parameters: int, names: Sequence[str], counts: Sequence[int]) -> Facts | None:
    if not counts or any(count % batch for count in counts):
        return None
    each = [count // batch for count in counts]
    ways = [Way((), tuple((count,) for count in each), 0)]
    for place, name in enumerate(names):
        rest = tuple((count,) for other, count in enumerate(each) if other != place)
        if rest:
            ways.append(Way((f"{name} left out",), rest, 0))
            ways.append(Way((f"{name} alone",), ((each[place],),), 0))
    inner = tuple((count,) for name, count in zip(names, each, strict=True) if not name.startswith("projection"))
    if inner and len(inner) < len(each):
        ways.append(Way(("the projections left out",), inner, 0))
        outer = tuple((count,) for name, count in zip(names, each, strict=True) if name.startswith("projection"))
        ways.append(Way(("attention itself left out, projections alone",), outer, 0))
    return Facts(batch, parameters, 0, False, tuple(ways))
