"""Sheets of attention, of recurrent networks, and of layers of several products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from perfctl.orchestrator.estimate.flops.engine import PRODUCTS
from perfctl.orchestrator.estimate.flops.formulas import (
    Net,
    flag,
    integer,
    left_factor,
    net_of,
    shape_of,
    tensors_of,
    times,
)
from perfctl.orchestrator.estimate.sheets.layers import (
    Facts,
    Item,
    Line,
    Way,
    WorkedLayer,
    flop_lines,
    items_of,
    product_line,
    shape_line,
)
from perfctl.orchestrator.estimate.sheets.reasons import NO_ATTENTION
from perfctl.records.paper import OpShape

SDPA = "perfctl.scaled_dot_product_attention"

GATES = {4: "input, forget, cell, output", 3: "reset, update, new", 1: "none: one hidden layer"}


def attention(op: OpShape) -> WorkedLayer:
    """Return the sheet of one call of scaled_dot_product_attention."""
    query, key, value = (shape_of(op.inputs, index) for index in range(3))
    batch, heads = (query[0], prod(query[1:-2])) if len(query) > 2 else (1, 1)
    rows, columns, wide, deep = query[-2], key[-2], query[-1], value[-1]
    square = (batch, heads, rows, columns)
    scores, causal = prod(square), flag(op, "is_causal")
    macs = scores * (wide + deep)
    shapes = (
        shape_line("query", query, "B x h x Sq x E"),
        shape_line("key", key, "B x h x Sk x E"),
        shape_line("value", value, "B x h x Sk x V"),
        product_line("scores", "B x h x Sq x Sk", square),
        shape_line("output", shape_of(op.outputs, 0), "B x h x Sq x V"),
    )
    steps = [
        product_line("one score", "E", (wide,), "MAC"),
        product_line("scores Q K^T", "B x h x Sq x Sk x E", (*square, wide), "MAC"),
        product_line("weights x values", "B x h x Sq x Sk x V", (*square, deep), "MAC"),
        Line("whole batch", "sum", f"{scores * wide:,} + {scores * deep:,}", f"{macs:,} MAC"),
        *flop_lines(macs),
        product_line("softmax and scaling, not included", "6 per score", (6, scores), "FLOP"),
    ]
    if causal:
        note = "the full square is counted; a kernel that skips masked blocks does less"
        steps.append(Line("causal mask", note, "", ""))
    tensor_roles = [(name, "in", index) for index, name in enumerate(("query", "key", "value"))]
    items = list(items_of(op, *tensor_roles, ("output map", "out", 0)))
    items.insert(3, Item("scores, if a kernel keeps them", square, items[0].item))
    facts = Facts(batch, 0, 0, False, attention_ways(heads, rows, columns, wide, deep, causal))
    return WorkedLayer(shapes, tuple(steps), tuple(items), facts)


def attention_ways(
    heads: int, rows: int, columns: int, wide: int, deep: int, causal: bool
) -> tuple[Way, ...]:
    """Return the right way; a product, a sequence or the heads left out; the mask counted."""
    scores, values = (heads, rows, columns), heads * rows * deep
    terms = {
        "": ((*scores, wide), (*scores, deep)),
        "the product of weights and values left out": ((*scores, wide),),
        f"one sequence of {rows} instead of {rows} x {columns}": (
            (heads, rows, wide),
            (heads, rows, deep),
        ),
    }
    if heads > 1:
        terms[f"the {heads} heads left out"] = ((rows, columns, wide), (rows, columns, deep))
        terms["the whole width used for each head"] = (
            (*scores, heads * wide),
            (*scores, heads * deep),
        )
    macs = prod(scores) * (wide + deep)
    if causal and macs % 2 == 0:
        terms["halved for the causal mask"] = ((macs // 2,),)
        triangle = (heads * (wide + deep), rows * (rows + 1) // 2)
        terms["only the causal triangle counted"] = (triangle,)
    return tuple(Way((slip,) if slip else (), term, values) for slip, term in terms.items())


def products(ops: Sequence[OpShape], batch: int, parameters: int, multihead: bool) -> WorkedLayer:
    """Return the sheet of a layer of several products (nn.MultiheadAttention: projections and
    attention), one line each."""
    heavy = [op for op in ops if op.op in PRODUCTS]
    names = [f"product {number}" for number in range(1, len(heavy) + 1)]
    if multihead:
        names, batch = _multihead_names(heavy), _multihead_batch(heavy)
    steps: list[Line] = []
    items: list[Item] = []
    macs_of: list[int] = []
    for name, op in zip(names, heavy, strict=True):
        part = PRODUCTS[op.op](op)[0]
        macs_of.append(part.macs * op.calls)
        letters, _, numbers_text = part.text.partition(" = ")
        repeats = f"{op.calls} times " if op.calls > 1 else ""
        numbers = f"{repeats}{numbers_text.partition(' = ')[0]}"
        steps.append(Line(name, letters, numbers, f"{macs_of[-1]:,} MAC"))
        items += items_of(op, (f"result of {name}", "out", 0))
    total, terms = sum(macs_of), " + ".join(f"{macs:,}" for macs in macs_of)
    steps += [Line("whole batch", "sum", terms, f"{total:,} MAC"), *flop_lines(total)]
    if parameters:
        items.insert(0, Item("parameters", (parameters,), items[0].item if items else 4))
    shapes = (
        shape_line("first operand", left_factor(ops[0])),
        shape_line("last result", shape_of(ops[-1].outputs, 0)),
    )
    facts = None
    if macs_of and not any(macs % batch for macs in macs_of):
        ways = products_ways(names, [macs // batch for macs in macs_of])
        facts = Facts(batch, parameters, 0, False, ways)
    return WorkedLayer(shapes, tuple(steps), tuple(items), facts)


def _multihead_batch(heavy: Sequence[OpShape]) -> int:
    core = next((op for op in heavy if op.op == SDPA or "bmm" in op.op), None)
    rows = prod(left_factor(heavy[0])[:-1])
    if core is None or rows == 0:
        return 1
    if core.op == SDPA:
        return shape_of(core.inputs, 0)[0]
    positions = left_factor(core)[-2]
    return rows // positions if rows % positions == 0 else 1


def _multihead_names(heavy: Sequence[OpShape]) -> list[str]:
    """Return a name for each product: attention's own, and the projections before and after."""
    core = [index for index, op in enumerate(heavy) if op.op == SDPA or "bmm" in op.op]
    first, last = (core[0], core[-1]) if core else (len(heavy), -1)
    names = []
    for index, op in enumerate(heavy):
        if index in core:
            part = "scores Q K^T" if index == first else "weights x values"
            names.append("attention" if op.op == SDPA else part)
        elif index > last:
            names.append("projection out")
        else:
            names.append("projection in" if first == 1 else f"projection in {index + 1}")
    return names


def products_ways(names: Sequence[str], macs_of: Sequence[int]) -> tuple[Way, ...]:
    """Return the right way; each product left out or alone; projections or attention left out."""
    terms = [(macs,) for macs in macs_of]
    ways = [Way((), tuple(terms), 0)]
    if len(terms) > 1:
        for index, name in enumerate(names):
            other_terms = (*terms[:index], *terms[index + 1 :])
            ways += [
                Way((f"{name} left out",), other_terms, 0),
                Way((f"{name} alone",), (terms[index],), 0),
            ]
    named_terms = list(zip(names, terms, strict=True))
    inner = tuple(term for name, term in named_terms if not name.startswith("projection"))
    outer = tuple(term for name, term in named_terms if name.startswith("projection"))
    if inner and outer:
        ways.append(Way(("the projections left out",), inner, 0))
        ways.append(Way((f"{NO_ATTENTION}, projections alone",), outer, 0))
    return tuple(ways)


def recurrent(op: OpShape) -> WorkedLayer:
    """Return the sheet of perfctl.lstm, perfctl.gru or perfctl.rnn."""
    rows, first, packed = integer(op, "rows"), integer(op, "first_rows"), flag(op, "packed")
    batch = first if first and rows % first == 0 and not packed else 1
    net, bias = net_of(op, batch), flag(op, "bias")
    shapes = (
        shape_line("input", shape_of(op.inputs, 0)),
        Line("rows", "sum of the lengths", "packed: padding is not computed", f"{rows:,}")
        if packed
        else Line("rows", "N x T", times(batch, net.steps), f"{rows:,}"),
        Line("gates", "G", GATES[net.gates], f"{net.gates:,}"),
        Line(
            "recurrent size",
            "R" if net.projection else "R = H",
            "projection" if net.projection else "",
            f"{net.recurrent_size:,}",
        ),
        product_line("output features", "D x R", (net.directions, net.recurrent_size)),
        shape_line("output", shape_of(op.outputs, 0)),
    )
    output = tensors_of(op).outputs[0]
    steps: list[Line] = []
    items: list[Item] = []
    for layer in range(net.layers):
        steps += _layer_lines(net, layer, rows)
        sizes = {
            "input weights": (net.wide, net.feeds(layer)),
            "recurrent weights": (net.wide, net.recurrent_size),
            "projection": (net.projection, net.hidden),
            "biases": (2 * bias, net.wide),
        }
        items += [
            Item(f"{caption}, layer {layer}", (net.directions, *size), output[1] if output else 4)
            for caption, size in sizes.items()
            if size[0]
        ]
    macs = batch * sum(map(prod, net.terms))
    steps += [Line("whole batch", "sum of the layers", "", f"{macs:,} MAC"), *flop_lines(macs)]
    if bias:
        factors = (2, net.gates, net.hidden, rows, net.directions, net.layers)
        letters = "2 x G x H x rows x D x layers"
        steps.append(product_line("biases, not included", letters, factors, "FLOP"))
    items += items_of(op, ("output map", "out", 0))
    biases = 2 * net.wide * net.directions * net.layers if bias else 0
    facts = Facts(batch, net.weights, biases, False, recurrent_ways(net))
    return WorkedLayer(shapes, tuple(steps), tuple(items), facts)


def _layer_lines(net: Net, layer: int, rows: int) -> list[Line]:
    feeds, inputs = net.feeds(layer), "I" if layer == 0 else "D x R"
    per_row, projected = net.wide * (feeds + net.recurrent_size), net.projection * net.hidden
    numbers = f"{times(net.gates, net.hidden)} x ({feeds:,} + {net.recurrent_size:,})"
    letters = f"G x H x ({inputs} + R)"
    lines = [Line(f"layer {layer}, one row", letters, numbers, f"{per_row:,} MAC")]
    if net.projection:
        factors = (net.projection, net.hidden)
        lines.append(product_line(f"layer {layer}, projection", "R x H", factors, "MAC"))
    total = (rows, net.directions, per_row + projected)
    return [*lines, product_line(f"layer {layer}", "rows x D x one row", total, "MAC")]


def recurrent_ways(net: Net) -> tuple[Way, ...]:
    """Return the right way; other gates; a direction, layers, the projection, time steps or one
    of the two products of a step left out."""
    terms = {"": net.terms}
    for gates in (1, 3, 4):
        if gates != net.gates:
            slip = f"{gates} gate{'s' * (gates > 1)} instead of {net.gates}"
            terms[slip] = replace(net, gates=gates).terms
    if net.directions == 2:
        terms["the second direction left out"] = replace(net, directions=1).terms
        half = tuple((steps, *factors) for steps, _, *factors in net.terms)
        terms["one direction counted, with the inputs of two"] = half
    if net.layers > 1:
        one_layer = replace(net, layers=1).terms
        terms[f"only the first of {net.layers} layers"] = one_layer
        terms["the first layer's input size used for all layers"] = one_layer * net.layers
    if net.projection:
        terms["the projection left out"] = replace(net, projection=0).terms
    if net.steps > 1:
        terms[f"the {net.steps} time steps left out"] = replace(net, steps=1).terms
    projection = (net.steps, net.directions, net.projection, net.hidden)
    projections = (projection,) * net.layers if net.projection else ()
    for slip, sizes in (
        ("the product with the hidden state left out", map(net.feeds, range(net.layers))),
        ("the product with the input left out", [net.recurrent_size] * net.layers),
    ):
        gate_terms = ((net.steps, net.directions, net.wide, size) for size in sizes)
        terms[slip] = (*gate_terms, *projections)
    outputs = net.steps * net.directions * net.recurrent_size
    return tuple(Way((slip,) if slip else (), term, outputs) for slip, term in terms.items())
