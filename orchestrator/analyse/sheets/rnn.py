"""The sheet of an LSTM, GRU or RNN: every layer and direction, gate by gate."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from perfctl.orchestrator.analyse.flops.formulas import Net, flag, integer, net_of, shape_of, tensors_of, times
from perfctl.orchestrator.analyse.sheets.layers import Facts, Line, Way, WorkedLayer, by, in_flop, items_of, macs
from perfctl.records.paper import OpShape

GATES = {4: "input, forget, cell, output", 3: "reset, update, new", 1: "none: one hidden layer"}


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
    space = items_of(*((what, ((net.directions, *two), item)) for what, two in sizes.items()), ("output map", output))
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
        Line("output features", "D x R", times(net.directions, net.around), f"{net.directions * net.around:,}"),
        Line("output", "", "", by(shape_of(op.outputs, 0))),
    )


def _layer_lines(net: Net, layer: int, rows: int) -> list[Line]:
    feeds, inputs = net.feeds(layer), "I" if layer == 0 else "D x R"
    per_row, projected = net.wide * (feeds + net.around), net.projection * net.hidden
    numbers = f"{times(net.gates, net.hidden)} x ({feeds:,} + {net.around:,})"
    lines = [Line(f"layer {layer}, one row", f"G x H x ({inputs} + R)", numbers, macs(per_row))]
    if net.projection:
        lines.append(Line(f"layer {layer}, projection", "R x H", times(net.projection, net.hidden), macs(projected)))
    factors = (rows, net.directions, per_row + projected)
    return [*lines, Line(f"layer {layer}", "rows x D x one row", times(*factors), macs(prod(factors)))]


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
    projected = ((net.steps, net.directions, net.projection, net.hidden),) * net.layers if net.projection else ()
    for slip, sizes in (
        ("the product with the hidden state left out", [net.feeds(layer) for layer in range(net.layers)]),
        ("the product with the input left out", [net.around] * net.layers),
    ):
        left = tuple((net.steps, net.directions, net.wide, size) for size in sizes)
        ways.append(Way((slip,), (*left, *projected), outputs))
    return tuple(ways)
