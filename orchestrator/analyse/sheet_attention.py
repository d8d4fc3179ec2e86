"""Sheets of scaled dot-product attention, of nn.MultiheadAttention, and of any layer made of several products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from perfctl.orchestrator.analyse.formulas import PRODUCTS
from perfctl.orchestrator.analyse.formulas_matmul import left_factor
from perfctl.orchestrator.analyse.sheet_records import Facts, Item, Line, Way, WorkedLayer, by, in_flop, macs
from perfctl.orchestrator.analyse.worked import flag, number, shape_of, tensors_of, times
from perfctl.parsers.paper import OpShape

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
    steps = _steps(batch, heads, rows, columns, wide, deep)
    if flag(op, "is_causal"):
        said = "the whole square is counted; a kernel that skips masked blocks does less"
        steps.append(Line("causal mask", said, "", ""))
    tensors = tensors_of(op)
    named = [*zip(("query", "key", "value"), tensors.inputs, strict=False), ("output map", tensors.outputs[0])]
    items = [Item(name, *tensor) for name, tensor in named if tensor is not None]
    items.insert(3, Item("scores, where a kernel keeps them", (batch, heads, rows, columns), items[0].item))
    facts = Facts(batch, 0, 0, False, _ways(heads, rows, columns, wide, deep, flag(op, "is_causal")))
    return WorkedLayer(tuple(shapes), tuple(steps), tuple(items), facts)


def _steps(batch: int, heads: int, rows: int, columns: int, wide: int, deep: int) -> list[Line]:
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
