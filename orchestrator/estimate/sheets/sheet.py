"""The worked sheet of one layer, line by line: formula, numbers, result; an LSTM, GRU or RNN layer
by layer and gate by gate.

Time is operations; space is values and bytes of weights, biases and output. ``Sheet.quantities``
lists every figure that a hand value may be: operations, values, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    CAST,
    PRODUCTS,
    UNSEEN,
    casts_of,
    estimate,
    fused_only,
    work_by_type,
)
from perfctl.orchestrator.estimate.flops.formulas import (
    ADDED,
    CONVOLUTIONS,
    LINEAR,
    Net,
    Shape,
    flag,
    integer,
    left_factor,
    net_of,
    shape_of,
    tensors_of,
    times,
)
from perfctl.orchestrator.estimate.sheets import layers
from perfctl.orchestrator.estimate.sheets.layers import (
    Facts,
    Item,
    Line,
    Way,
    WorkedLayer,
    by,
    in_flop,
    items_of,
    macs,
    space_lines,
)
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.precision import PRECISIONS

GATES = {4: "input, forget, cell, output", 3: "reset, update, new", 1: "none: one hidden layer"}

DIRECTIONS_SAID = {
    "grad_input": "gradient of the input",
    "grad_weight": "gradient of the weights",
    "grad_bias": "gradient of the bias",
    "recompute": "computed again in backward",
    "optimizer": "optimizer step",
}

PARAMETERS = ("weights", "biases", "input weights", "recurrent weights", "projection", "parameters")
"""How the names of a layer's own values begin, under "Space"."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure of a layer."""

    what: str
    """output map, gradient of the input, ..."""
    value: int
    unit: str
    """MAC, FLOP, elementwise FLOP, values, B"""
    worked: str
    """The arithmetic, up to the value and its unit."""


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
    """What usual slips are worked out from; None for a layer without multiply-adds."""
    quantities: tuple[Quantity, ...] = ()
    """Every figure of the layer, the likeliest to be asked for first."""


def layers_of(ops: Sequence[OpShape]) -> tuple[str, ...]:
    """Layers that have a sheet, in order."""
    return tuple(dict.fromkeys(op.layer for op in ops if op.layer or op.kind))


def sheet_for(
    ops: Sequence[OpShape], layer: str, output: Shape | None = None, precision: str = "fp32"
) -> Sheet | None:
    """The sheet of ``layer``; None when it ran no operation. ``output``: shape of the module's
    output. ``precision``: of the trace; its types are shown where it is not fp32."""
    mine = [op for op in ops if op.layer == layer and (layer or op.kind)]
    if not mine:
        return None
    forward = [op for op in mine if op.direction == "forward" and not flag(op, "recompute")]
    forward = [op for op in forward if op.op != CAST] or forward  # what the layer itself does
    calls = estimate(mine)
    kind = mine[0].kind
    work = _work(forward or mine, kind, output)
    facts = work.facts
    if facts is not None:
        step = sum(call.macs or 0 for call in calls if call.direction in ("forward", *BACKWARD))
        seen = sum(call.macs or 0 for call in calls if call.direction == "forward")
        # With several calls, or products besides the main one, the sheet's single call is not the
        # whole layer.
        item = next((one.item for one in work.space if one.what == "output map"), 0)
        facts = replace(facts, step=step if step > seen == facts.macs else 0, item=item)
    heavy = [op for op in forward if op.op in PRODUCTS]
    main = max(
        heavy, key=lambda op: PRODUCTS[op.op](op)[0].macs, default=forward[0] if forward else None
    )
    again = f" (one of {main.calls:,} calls)" if main is not None and main.calls > 1 else ""
    kept = tuple(_kept(mine, precision))
    sections = [
        Section("Shapes", work.shapes),
        Section(f"Forward, step by step{again}", work.steps),
        Section("Time: operations", _time_lines(calls)),
        Section("Space: values and bytes", space_lines(work.space)),
        Section("Types", tuple(_types(mine, precision, kept))),
    ]
    shown = tuple(section for section in sections if section.lines)
    figures = (
        *_operations(calls),
        *_space(forward or mine, work.space),
        *kept,
        *_elementwise(calls),
    )
    return Sheet(layer, kind, shown, facts, figures)


def _kept(ops: Sequence[OpShape], precision: str) -> Iterator[Quantity]:
    """The parameters themselves, where autocast computes with copies of them."""
    count = ops[0].parameters
    if (
        PRECISIONS[precision].autocast
        and count
        and any(op.op == CAST and op.dtypes[0] == "float32" for op in ops)
    ):
        yield Quantity(
            "parameters kept in fp32", 4 * count, "B", f"{count:,} values x 4 B = {4 * count:,} B"
        )


def _types(ops: Sequence[OpShape], precision: str, kept: Sequence[Quantity]) -> Iterator[Line]:
    """What is computed in which type, and what the casts cost; nothing for fp32."""
    if precision == "fp32":
        return
    for row in work_by_type(ops, precision):
        for said, number in (
            ("forward", row.forward_macs),
            ("backward", row.backward_macs),
            ("computed again", row.recompute_macs),
        ):
            if number:
                yield Line(
                    f"{said} in {row.type}", "2 x MAC", f"2 x {number:,}", f"{2 * number:,} FLOP"
                )
        if row.elementwise_flops:
            yield Line(
                f"other arithmetic in {row.type}",
                "forward",
                "",
                f"{row.elementwise_flops:,} elementwise FLOP",
            )
    casts = casts_of(ops)
    if casts.calls:
        read, written = casts.read_bytes, casts.write_bytes
        yield Line(
            f"casts, {casts.calls:,}",
            "read + written",
            f"{read:,} + {written:,}",
            f"{read + written:,} B",
        )
    for one in kept:
        yield Line(
            one.what, "besides the copies above", one.worked.partition(" = ")[0], f"{one.value:,} B"
        )


def _operations(calls: Sequence[LayerCall]) -> Iterator[Quantity]:
    """Of every direction, of backward and of the whole step."""
    counted = [call for call in calls if not fused_only(call)]
    for direction in dict.fromkeys(call.direction for call in counted):
        yield from _sums(
            DIRECTIONS_SAID.get(direction, direction),
            [call for call in counted if call.direction == direction],
        )
    backward = [call for call in counted if call.direction in BACKWARD]
    forward = [call for call in counted if call.direction == "forward"]
    if backward and forward:
        yield from _sums("backward", backward)
        yield from _sums("forward and backward together", [*forward, *backward])


def _sums(what: str, calls: Sequence[LayerCall]) -> Iterator[Quantity]:
    """Multiply-adds and FLOPs; nothing where an operation has no formula: the sum is not
    known then."""
    if any(call.macs is None for call in calls):
        return
    heavy = [call for call in calls if call.macs]
    macs = sum(call.macs or 0 for call in heavy)
    if macs:
        text = (heavy[0].formula or "").rpartition(" MAC = ")[0] if len(heavy) == 1 else ""
        # a sum of products has no short form
        if text.count(" MAC = ") or not text.endswith(f" = {macs:,}"):
            text = (
                f"{' + '.join(f'{call.macs:,}' for call in heavy)} = {macs:,}"
                if len(heavy) > 1
                else f"{macs:,}"
            )
        yield Quantity(what, macs, "MAC", f"{text} MAC")
        yield Quantity(what, 2 * macs, "FLOP", f"2 x {macs:,} MAC = {2 * macs:,} FLOP")


def _elementwise(calls: Sequence[LayerCall]) -> Iterator[Quantity]:
    for call in calls:
        if work := call.elementwise_flops:
            what = f"{DIRECTIONS_SAID.get(call.direction, call.direction)} ({call.kind})"
            worked = (
                call.formula
                if call.formula and not call.macs
                else f"beside the multiply-adds: {work:,} elementwise FLOP"
            )
            yield Quantity(what, work, "elementwise FLOP", worked)


def _space(ops: Sequence[OpShape], items: Sequence[Item]) -> Iterator[Quantity]:
    """Values and bytes of the input and of every line under "Space", of the parameters, and of all
    these lines together."""
    first = tensors_of(ops[0]).inputs
    place = 1 if ops[0].op in ADDED else 0
    given = items_of(("input", first[place] if place < len(first) else None))
    for item in (*reversed(items), *given):
        count, size = prod(item.sizes), prod(item.sizes) * item.item
        text = (
            f"{times(*item.sizes)} = {count:,} values"
            if len(item.sizes) > 1
            else f"{count:,} values"
        )
        yield Quantity(item.what, count, "values", text)
        yield Quantity(item.what, size, "B", f"{text} x {item.item} B = {size:,} B")
    parameters = [item for item in items if item.what.startswith(PARAMETERS)]
    for what, parts in (("parameters", parameters), ("total", items)):
        if len(parts) > 1:
            counts, sizes = (
                [prod(item.sizes) for item in parts],
                [prod(item.sizes) * item.item for item in parts],
            )
            for unit, of, each in (("values", "", counts), ("B", "B of ", sizes)):
                terms = " + ".join(
                    f"{one:,} {of}{item.what}" for one, item in zip(each, parts, strict=True)
                )
                yield Quantity(what, sum(each), unit, f"{terms} = {sum(each):,} {unit}")


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
    kinds = {
        call.kind for call in calls if not fused_only(call) and not call.kind.startswith(UNSEEN)
    }
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
    """ "letters = numbers = result" without its result; a sum of several products stays
    one text."""
    if formula.count(" MAC = ") != 1:
        return formula, ""
    letters, _, rest = formula.partition(" = ")
    return letters, rest.rpartition(" = ")[0].rpartition(" = ")[0]


def recurrent(op: OpShape) -> WorkedLayer:
    """perfctl.lstm, perfctl.gru, perfctl.rnn."""
    rows, first = integer(op, "rows"), integer(op, "first_rows")
    batch = first if first and rows % first == 0 and not flag(op, "packed") else 1
    net, bias = net_of(op, batch), flag(op, "bias")
    sizes: dict[str, tuple[int, int]] = {}
    steps = []
    for layer in range(net.layers):
        steps += _layer_lines(net, layer, rows)
        sizes[f"input weights, layer {layer}"] = (net.wide, net.feeds(layer))
        sizes[f"recurrent weights, layer {layer}"] = (net.wide, net.around)
        if net.projection:
            sizes[f"projection, layer {layer}"] = (net.projection, net.hidden)
        if bias:
            sizes[f"biases, layer {layer}"] = (2, net.wide)
    whole = batch * sum(map(prod, net.terms))
    steps += [Line("whole batch", "sum of the layers", "", macs(whole)), in_flop(whole)]
    if bias:
        factors = (2, net.gates, net.hidden, rows, net.directions, net.layers)
        letters, adds = "2 x G x H x rows x D x layers", f"{prod(factors):,} FLOP"
        steps.append(Line("biases, not included", letters, times(*factors), adds))
    output = tensors_of(op).outputs[0]
    item = output[1] if output is not None else 4
    space = items_of(
        *((what, ((net.directions, *two), item)) for what, two in sizes.items()),
        ("output map", output),
    )
    biases = 2 * net.wide * net.directions * net.layers if bias else 0
    facts = Facts(batch, net.weights, biases, False, _ways(net))
    return WorkedLayer(_shapes(op, net, rows, batch), tuple(steps), space, facts)


def _shapes(op: OpShape, net: Net, rows: int, batch: int) -> tuple[Line, ...]:
    how = ("N x T", times(batch, net.steps))
    if flag(op, "packed"):
        how = ("sum of the lengths", "packed: padding is not computed")
    recurrent_size = ("R", "projection") if net.projection else ("R = H", "")
    return (
        Line("input", "", "", by(shape_of(op.inputs, 0))),
        Line("rows", *how, f"{rows:,}"),
        Line("gates", "G", GATES[net.gates], f"{net.gates:,}"),
        Line("recurrent size", *recurrent_size, f"{net.around:,}"),
        Line(
            "output features",
            "D x R",
            times(net.directions, net.around),
            f"{net.directions * net.around:,}",
        ),
        Line("output", "", "", by(shape_of(op.outputs, 0))),
    )


def _layer_lines(net: Net, layer: int, rows: int) -> list[Line]:
    feeds, inputs = net.feeds(layer), "I" if layer == 0 else "D x R"
    per_row, projected = net.wide * (feeds + net.around), net.projection * net.hidden
    numbers = f"{times(net.gates, net.hidden)} x ({feeds:,} + {net.around:,})"
    lines = [Line(f"layer {layer}, one row", f"G x H x ({inputs} + R)", numbers, macs(per_row))]
    if net.projection:
        lines.append(
            Line(
                f"layer {layer}, projection",
                "R x H",
                times(net.projection, net.hidden),
                macs(projected),
            )
        )
    factors = (rows, net.directions, per_row + projected)
    return [
        *lines,
        Line(f"layer {layer}", "rows x D x one row", times(*factors), macs(prod(factors))),
    ]


def _ways(net: Net) -> tuple[Way, ...]:
    outputs = net.steps * net.directions * net.around

    def way(slip: str, **changes: int) -> Way:
        return Way((slip,) if slip else (), replace(net, **changes).terms, outputs)

    ways = [way("")]
    for gates in (1, 3, 4):
        if gates != net.gates:
            ways.append(way(f"{gates} gate{'s' * (gates > 1)} instead of {net.gates}", gates=gates))
    if net.directions == 2:
        ways.append(way("the second direction left out", directions=1))
        half = tuple((steps, *rest) for steps, _, *rest in net.terms)
        ways.append(Way(("one direction counted, with the inputs of two",), half, outputs))
    if net.layers > 1:
        ways.append(way(f"only the first of {net.layers} layers", layers=1))
        alike = replace(net, layers=1).terms * net.layers
        ways.append(Way(("the first layer's input size used for all layers",), alike, outputs))
    if net.projection:
        ways.append(way("the projection left out", projection=0))
    if net.steps > 1:
        ways.append(way(f"the {net.steps} time steps left out", steps=1))
    projected = (
        ((net.steps, net.directions, net.projection, net.hidden),) * net.layers
        if net.projection
        else ()
    )
    for slip, sizes in (
        (
            "the product with the hidden state left out",
            [net.feeds(layer) for layer in range(net.layers)],
        ),
        ("the product with the input left out", [net.around] * net.layers),
    ):
        left = tuple((net.steps, net.directions, net.wide, size) for size in sizes)
        ways.append(Way((slip,), (*left, *projected), outputs))
    return tuple(ways)
