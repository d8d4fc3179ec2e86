"""Sheets of attention, of recurrent networks, and of layers of several products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from perfctl.orchestrator.estimate.flops.engine import PRODUCTS
from perfctl.orchestrator.estimate.flops.formulas import (
    RecurrentSizes,
    format_factors,
    get_left_factor_shape,
    get_shape_or_empty,
    pair_shapes_with_item_bytes,
    read_boolean_attribute,
    read_integer_of_attribute,
    read_recurrent_sizes,
)
from perfctl.orchestrator.estimate.sheets.layers import (
    ManualCheckFacts,
    SheetLine,
    SheetTensor,
    WorkedLayer,
    WorkedWay,
    make_flop_and_bias_lines,
    make_product_line,
    make_shape_line,
    select_nonempty_tensors,
)
from perfctl.orchestrator.estimate.sheets.reasons import NO_ATTENTION
from perfctl.records.paper import OpShape

SDPA = "perfctl.scaled_dot_product_attention"
ATTENTION_NAME = "attention"
"""Name of both products of attention where they are one operation."""

GATES = {4: "input, forget, cell, output", 3: "reset, update, new", 1: "none: one hidden layer"}


def build_attention_worksheet(op: OpShape) -> WorkedLayer:
    """Return the sheet of one call of scaled_dot_product_attention."""
    query, key, value = (get_shape_or_empty(op.inputs, index) for index in range(3))
    batch, heads = (query[0], prod(query[1:-2])) if len(query) > 2 else (1, 1)
    rows, columns, wide, deep = query[-2], key[-2], query[-1], value[-1]
    square: tuple[int, ...] = (batch, heads, rows, columns)
    matrix, letters = square, "B x h x Sq x Sk"
    causal, is_masked = read_boolean_attribute(op, "is_causal"), "scores" in op.attributes
    if is_masked:
        square, letters = (read_integer_of_attribute(op, "scores"),), "scores that the mask leaves"
    scores = prod(square)
    macs = scores * (wide + deep)
    shapes = (
        make_shape_line("query", query, "B x h x Sq x E"),
        make_shape_line("key", key, "B x h x Sk x E"),
        make_shape_line("value", value, "B x h x Sk x V"),
        make_product_line("scores", letters, square),
        make_shape_line("output", get_shape_or_empty(op.outputs, 0), "B x h x Sq x V"),
    )
    steps = [
        make_product_line("one score", "E", (wide,), "MAC"),
        make_product_line("scores Q K^T", f"{letters} x E", (*square, wide), "MAC"),
        make_product_line("weights x values", f"{letters} x V", (*square, deep), "MAC"),
        SheetLine("whole batch", "sum", f"{scores * wide:,} + {scores * deep:,}", f"{macs:,} MAC"),
        *make_flop_and_bias_lines(macs),
        make_product_line("softmax and scaling, not included", "6 per score", (6, scores), "FLOP"),
    ]
    if causal:
        note = "the full square is counted; a kernel that skips masked blocks does less"
        steps.append(SheetLine("causal mask", note, "", ""))
    for name in ("mask", "upper_bound"):
        if name in op.attributes:
            steps.append(SheetLine(name.replace("_", " "), str(op.attributes[name]), "", ""))
    tensor_roles = [(name, "in", index) for index, name in enumerate(("query", "key", "value"))]
    items = list(select_nonempty_tensors(op, *tensor_roles, ("output map", "out", 0)))
    items.insert(3, SheetTensor("scores, if a kernel keeps them", matrix, items[0].item))
    sides = (1, scores // batch, 1) if is_masked else (heads, rows, columns)
    facts = ManualCheckFacts(
        batch, 0, 0, False, list_attention_macs_with_mistakes(*sides, wide, deep, causal)
    )
    return WorkedLayer(shapes, tuple(steps), tuple(items), facts)


def list_attention_macs_with_mistakes(
    heads: int, query_length: int, key_length: int, head_size: int, value_size: int, is_causal: bool
) -> tuple[WorkedWay, ...]:
    """Return the right way; a product, a sequence or the heads left out; the mask counted."""
    scores, values = (heads, query_length, key_length), heads * query_length * value_size
    terms = {
        "": ((*scores, head_size), (*scores, value_size)),
        "the product of weights and values left out": ((*scores, head_size),),
        f"one sequence of {query_length} instead of {query_length} x {key_length}": (
            (heads, query_length, head_size),
            (heads, query_length, value_size),
        ),
    }
    if heads > 1:
        terms[f"the {heads} heads left out"] = (
            (query_length, key_length, head_size),
            (query_length, key_length, value_size),
        )
        terms["the whole width used for each head"] = (
            (*scores, heads * head_size),
            (*scores, heads * value_size),
        )
    macs = prod(scores) * (head_size + value_size)
    if is_causal and macs % 2 == 0:
        terms["halved for the causal mask"] = ((macs // 2,),)
        triangle = (heads * (head_size + value_size), query_length * (query_length + 1) // 2)
        terms["only the causal triangle counted"] = (triangle,)
    return tuple(WorkedWay((slip,) if slip else (), term, values) for slip, term in terms.items())


def build_multi_product_worksheet(
    ops: Sequence[OpShape], batch: int, parameters: int, is_multihead_attention: bool
) -> WorkedLayer:
    """Return the sheet of a layer of several products (nn.MultiheadAttention: projections and
    attention), one line each."""
    heavy = [op for op in ops if op.op in PRODUCTS]
    names = [f"product {number}" for number in range(1, len(heavy) + 1)]
    if is_multihead_attention:
        names, batch = _name_multihead_products(heavy), _infer_attention_batch_size(heavy)
    steps: list[SheetLine] = []
    items: list[SheetTensor] = []
    macs_of: list[int] = []
    for name, op in zip(names, heavy, strict=True):
        part = PRODUCTS[op.op](op)[0]
        macs_of.append(part.macs * op.calls)
        letters, _, numbers_text = part.text.partition(" = ")
        repeats = f"{op.calls} times " if op.calls > 1 else ""
        numbers = f"{repeats}{numbers_text.partition(' = ')[0]}"
        steps.append(SheetLine(name, letters, numbers, f"{macs_of[-1]:,} MAC"))
        items += select_nonempty_tensors(op, (f"result of {name}", "out", 0))
    total, terms = sum(macs_of), " + ".join(f"{macs:,}" for macs in macs_of)
    steps += [
        SheetLine("whole batch", "sum", terms, f"{total:,} MAC"),
        *make_flop_and_bias_lines(total),
    ]
    if parameters:
        items.insert(0, SheetTensor("parameters", (parameters,), items[0].item if items else 4))
    shapes = (
        make_shape_line("first operand", get_left_factor_shape(ops[0])),
        make_shape_line("last result", get_shape_or_empty(ops[-1].outputs, 0)),
    )
    facts = None
    if macs_of and not any(macs % batch for macs in macs_of):
        ways = list_product_macs_with_mistakes(names, [macs // batch for macs in macs_of])
        facts = ManualCheckFacts(batch, parameters, 0, False, ways)
    return WorkedLayer(shapes, tuple(steps), tuple(items), facts)


def _infer_attention_batch_size(product_ops: Sequence[OpShape]) -> int:
    core = next((op for op in product_ops if op.op == SDPA or "bmm" in op.op), None)
    rows = prod(get_left_factor_shape(product_ops[0])[:-1])
    if core is None or rows == 0:
        return 1
    if core.op == SDPA:
        return get_shape_or_empty(core.inputs, 0)[0]
    positions = get_left_factor_shape(core)[-2]
    return rows // positions if rows % positions == 0 else 1


def _name_multihead_products(product_ops: Sequence[OpShape]) -> list[str]:
    """Return a name for each product: attention's own, and the projections before and after."""
    core = [index for index, op in enumerate(product_ops) if op.op == SDPA or "bmm" in op.op]
    first, last = (core[0], core[-1]) if core else (len(product_ops), -1)
    names = []
    for index, op in enumerate(product_ops):
        if index in core:
            part = "scores Q K^T" if index == first else "weights x values"
            # two products of equal sizes are one operation with two calls
            is_both = op.op == SDPA or (len(core) == 1 and op.calls > 1)
            names.append(ATTENTION_NAME if is_both else part)
        elif index > last:
            names.append("projection out")
        else:
            names.append("projection in" if first == 1 else f"projection in {index + 1}")
    return names


def list_product_macs_with_mistakes(
    names: Sequence[str], macs_by_product: Sequence[int]
) -> tuple[WorkedWay, ...]:
    """Return the right way; each product left out or alone; projections or attention left out."""
    terms = [(macs,) for macs in macs_by_product]
    ways = [WorkedWay((), tuple(terms), 0)]
    if len(terms) > 1:
        for index, name in enumerate(names):
            if name == ATTENTION_NAME:
                continue  # the ways below say the same of the projections
            other_terms = (*terms[:index], *terms[index + 1 :])
            ways += [
                WorkedWay((f"{name} left out",), other_terms, 0),
                WorkedWay((f"{name} alone",), (terms[index],), 0),
            ]
    named_terms = list(zip(names, terms, strict=True))
    inner = tuple(term for name, term in named_terms if not name.startswith("projection"))
    outer = tuple(term for name, term in named_terms if name.startswith("projection"))
    if inner and outer:
        ways.append(WorkedWay(("the projections left out",), inner, 0))
        ways.append(WorkedWay((f"{NO_ATTENTION}, projections alone",), outer, 0))
    return tuple(ways)


def build_recurrent_worksheet(op: OpShape) -> WorkedLayer:
    """Return the sheet of perfctl.lstm, perfctl.gru or perfctl.rnn."""
    rows, first, packed = (
        read_integer_of_attribute(op, "rows"),
        read_integer_of_attribute(op, "first_rows"),
        read_boolean_attribute(op, "packed"),
    )
    batch = first if first and rows % first == 0 and not packed else 1
    net, bias = read_recurrent_sizes(op, batch), read_boolean_attribute(op, "bias")
    shapes = (
        make_shape_line("input", get_shape_or_empty(op.inputs, 0)),
        SheetLine("rows", "sum of the lengths", "packed: padding is not computed", f"{rows:,}")
        if packed
        else SheetLine("rows", "N x T", format_factors(batch, net.steps), f"{rows:,}"),
        SheetLine("gates", "G", GATES[net.gates], f"{net.gates:,}"),
        SheetLine(
            "recurrent size",
            "R" if net.projection else "R = H",
            "projection" if net.projection else "",
            f"{net.recurrent_size:,}",
        ),
        make_product_line("output features", "D x R", (net.directions, net.recurrent_size)),
        make_shape_line("output", get_shape_or_empty(op.outputs, 0)),
    )
    output = pair_shapes_with_item_bytes(op).outputs[0]
    steps: list[SheetLine] = []
    items: list[SheetTensor] = []
    for layer in range(net.layers):
        steps += _make_recurrent_layer_mac_lines(net, layer, rows)
        sizes = {
            "input weights": (net.gate_outputs, net.get_input_size(layer)),
            "recurrent weights": (net.gate_outputs, net.recurrent_size),
            "projection": (net.projection, net.hidden),
            "biases": (2 * bias, net.gate_outputs),
        }
        items += [
            SheetTensor(
                f"{caption}, layer {layer}", (net.directions, *size), output[1] if output else 4
            )
            for caption, size in sizes.items()
            if size[0]
        ]
    macs = batch * sum(map(prod, net.mac_terms))
    steps += [
        SheetLine("whole batch", "sum of the layers", "", f"{macs:,} MAC"),
        *make_flop_and_bias_lines(macs),
    ]
    if bias:
        factors = (2, net.gates, net.hidden, rows, net.directions, net.layers)
        letters = "2 x G x H x rows x D x layers"
        steps.append(make_product_line("biases, not included", letters, factors, "FLOP"))
    items += select_nonempty_tensors(op, ("output map", "out", 0))
    biases = 2 * net.gate_outputs * net.directions * net.layers if bias else 0
    facts = ManualCheckFacts(
        batch, net.weight_count, biases, False, list_recurrent_macs_with_mistakes(net)
    )
    return WorkedLayer(shapes, tuple(steps), tuple(items), facts)


def _make_recurrent_layer_mac_lines(net: RecurrentSizes, layer: int, rows: int) -> list[SheetLine]:
    feeds, inputs = net.get_input_size(layer), "I" if layer == 0 else "D x R"
    per_row, projected = (
        net.gate_outputs * (feeds + net.recurrent_size),
        net.projection * net.hidden,
    )
    numbers = f"{format_factors(net.gates, net.hidden)} x ({feeds:,} + {net.recurrent_size:,})"
    letters = f"G x H x ({inputs} + R)"
    lines = [SheetLine(f"layer {layer}, one row", letters, numbers, f"{per_row:,} MAC")]
    if net.projection:
        factors = (net.projection, net.hidden)
        lines.append(make_product_line(f"layer {layer}, projection", "R x H", factors, "MAC"))
    total = (rows, net.directions, per_row + projected)
    return [*lines, make_product_line(f"layer {layer}", "rows x D x one row", total, "MAC")]


def list_recurrent_macs_with_mistakes(net: RecurrentSizes) -> tuple[WorkedWay, ...]:
    """Return the right way; other gates; a direction, layers, the projection, time steps or one
    of the two products of a step left out."""
    terms = {"": net.mac_terms}
    for gates in (1, 3, 4):
        if gates != net.gates:
            slip = f"{gates} gate{'s' * (gates > 1)} instead of {net.gates}"
            terms[slip] = replace(net, gates=gates).mac_terms
    if net.directions == 2:
        terms["the second direction left out"] = replace(net, directions=1).mac_terms
        half = tuple((steps, *factors) for steps, _, *factors in net.mac_terms)
        terms["one direction counted, with the inputs of two"] = half
    if net.layers > 1:
        one_layer = replace(net, layers=1).mac_terms
        terms[f"only the first of {net.layers} layers"] = one_layer
        terms["the first layer's input size used for all layers"] = one_layer * net.layers
    if net.projection:
        terms["the projection left out"] = replace(net, projection=0).mac_terms
    if net.steps > 1:
        terms[f"the {net.steps} time steps left out"] = replace(net, steps=1).mac_terms
    projection = (net.steps, net.directions, net.projection, net.hidden)
    projections = (projection,) * net.layers if net.projection else ()
    for slip, sizes in (
        ("the product with the hidden state left out", map(net.get_input_size, range(net.layers))),
        ("the product with the input left out", [net.recurrent_size] * net.layers),
    ):
        gate_terms = ((net.steps, net.directions, net.gate_outputs, size) for size in sizes)
        terms[slip] = (*gate_terms, *projections)
    outputs = net.steps * net.directions * net.recurrent_size
    return tuple(WorkedWay((slip,) if slip else (), term, outputs) for slip, term in terms.items())
