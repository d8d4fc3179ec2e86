"""The sheet of an LSTM, GRU or RNN: every layer and direction, gate by gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from perfctl.orchestrator.analyse.flops.terms import flag, integer, number, shape_of, tensors_of, times
from perfctl.orchestrator.analyse.sheets.lines import Facts, Item, Line, Way, WorkedLayer, by, in_flop, items_of, macs
from perfctl.records.paper import OpShape

GATES = {
    "lstm": (4, "input, forget, cell, output"),
    "gru": (3, "reset, update, new"),
    "rnn": (1, "none: one hidden layer"),
}


@dataclass(frozen=True, slots=True)
class Net:
    """The sizes of a recurrent network. ``steps``: rows of one sample, or of all samples when their lengths differ."""

    steps: int
    inputs: int
    hidden: int
    projection: int
    layers: int
    directions: int
    gates: int

    @property
    def around(self) -> int:
        """Recurrent size: H, or the projection."""
        return self.projection or self.hidden

    def feeds(self, layer: int) -> int:
        """Input size of a layer."""
        return self.inputs if layer == 0 else self.directions * self.around

    def terms(self, steps: int) -> tuple[tuple[int, ...], ...]:
        """Multiply-adds as a sum of products, one or two for each layer."""
        found = []
        for layer in range(self.layers):
            found.append((steps, self.directions, self.gates * self.hidden, self.feeds(layer) + self.around))
            if self.projection:
                found.append((steps, self.directions, self.projection, self.hidden))
        return tuple(found)


def recurrent(op: OpShape) -> WorkedLayer:
    """perfctl.lstm, perfctl.gru, perfctl.rnn."""
    kind = op.op.removeprefix("perfctl.")
    rows, first = integer(op, "rows"), integer(op, "first_rows")
    batch = first if first and rows % first == 0 and not flag(op, "packed") else 1
    net = Net(
        rows // batch, integer(op, "input_size"), integer(op, "hidden_size"), integer(op, "proj_size"),
        integer(op, "num_layers", 1), integer(op, "directions", 1), GATES[kind][0],
    )  # fmt: skip
    bias = flag(op, "bias")
    steps = [line for layer in range(net.layers) for line in _layer_lines(net, layer, rows)]
    whole = sum(prod(term) for term in net.terms(rows))
    steps += [Line("whole batch", "sum of the layers", "", macs(whole)), in_flop(whole)]
    if bias:
        factors = (2, net.gates, net.hidden, rows, net.directions, net.layers)
        letters, adds = "2 x G x H x rows x D x layers", f"{number(prod(factors))} FLOP"
        steps.append(Line("biases, not included", letters, times(*factors), adds))
    wide = net.gates * net.hidden
    each = [wide * (net.feeds(layer) + net.around) + net.projection * net.hidden for layer in range(net.layers)]
    biases = 2 * net.gates * net.hidden * net.directions * net.layers if bias else 0
    facts = Facts(batch, net.directions * sum(each), biases, False, _ways(net))
    return WorkedLayer(_shapes(op, net, kind, rows, batch), tuple(steps), _space(op, net, bias), facts)


def _shapes(op: OpShape, net: Net, kind: str, rows: int, batch: int) -> tuple[Line, ...]:
    if flag(op, "packed"):
        counted = Line("rows", "sum of the lengths", "packed: padding is not computed", number(rows))
    else:
        counted = Line("rows", "N x T", times(batch, net.steps), number(rows))
    return (
        Line("input", "", "", by(shape_of(op.inputs, 0))),
        counted,
        Line("gates", "G", GATES[kind][1], number(net.gates)),
        Line("recurrent size", "R" if net.projection else "R = H", "projection" if net.projection else "", number(net.around)),
        Line("output features", "D x R", times(net.directions, net.around), number(net.directions * net.around)),
        Line("output", "", "", by(shape_of(op.outputs, 0))),
    )  # fmt: skip


def _layer_lines(net: Net, layer: int, rows: int) -> list[Line]:
    wide, feeds = net.gates * net.hidden, net.feeds(layer)
    inputs = "I" if layer == 0 else "D x R"
    per_row, projected = wide * (feeds + net.around), net.projection * net.hidden
    name = f"layer {layer}"
    numbers = f"{times(net.gates, net.hidden)} x ({number(feeds)} + {number(net.around)})"
    lines = [Line(f"{name}, one row", f"G x H x ({inputs} + R)", numbers, macs(per_row))]
    if net.projection:
        lines.append(Line(f"{name}, projection", "R x H", times(net.projection, net.hidden), macs(projected)))
    row = per_row + projected
    lines.append(Line(name, "rows x D x one row", times(rows, net.directions, row), macs(rows * net.directions * row)))
    return lines


def _space(op: OpShape, net: Net, bias: bool) -> tuple[Item, ...]:
    tensors = tensors_of(op)
    output, wide = tensors.outputs[0], net.gates * net.hidden
    sizes: dict[str, tuple[int, int]] = {}
    for layer in range(net.layers):
        sizes[f"input weights, layer {layer}"] = (wide, net.feeds(layer))
        sizes[f"recurrent weights, layer {layer}"] = (wide, net.around)
        if net.projection:
            sizes[f"projection, layer {layer}"] = (net.projection, net.hidden)
        if bias:
            sizes[f"biases, layer {layer}"] = (2, wide)
    item = output[1] if output is not None else 4
    return items_of(*((what, ((net.directions, *two), item)) for what, two in sizes.items()), ("output map", output))


def _ways(net: Net) -> tuple[Way, ...]:
    outputs = net.steps * net.directions * net.around

    def way(slip: str, **changes: int) -> Way:
        changed = replace(net, **changes)
        return Way((slip,) if slip else (), changed.terms(changed.steps), outputs)

    ways = [way("")]
    for gates in (1, 3, 4):
        if gates != net.gates:
            ways.append(way(f"{gates} gate{'s' * (gates > 1)} instead of {net.gates}", gates=gates))
    if net.directions == 2:
        ways.append(way("the second direction left out", directions=1))
        half = tuple((steps, *rest) for steps, _, *rest in net.terms(net.steps))
        ways.append(Way(("one direction counted, with the inputs of two",), half, outputs))
    if net.layers > 1:
        ways.append(way(f"only the first of {net.layers} layers", layers=1))
        alike = replace(net, layers=1).terms(net.steps) * net.layers
        ways.append(Way(("the first layer's input size used for all layers",), alike, outputs))
    if net.projection:
        ways.append(way("the projection left out", projection=0))
    if net.steps > 1:
        ways.append(way(f"the {net.steps} time steps left out", steps=1))
    wide = net.gates * net.hidden
    projected = ((net.steps, net.directions, net.projection, net.hidden),) * net.layers if net.projection else ()
    for slip, sizes in (
        ("the product with the hidden state left out", [net.feeds(layer) for layer in range(net.layers)]),
        ("the product with the input left out", [net.around] * net.layers),
    ):
        left = tuple((net.steps, net.directions, wide, size) for size in sizes)
        ways.append(Way((slip,), (*left, *projected), outputs))
    return tuple(ways)
