"""RNN, LSTM, GRU: several layers, two directions, projections, packed sequences.

rows = time steps summed over the batch (N x T, or the sum of the lengths when packed), I input size of a layer,
H hidden size, R recurrent size (H, or the projection), G gates (LSTM 4, GRU 3, RNN 1).
Source: the equations in the documentation of torch.nn.LSTM, GRU and RNN; Sak, Senior, Beaufays, 2014 (projections).
"""

from __future__ import annotations

from collections.abc import Iterator

from perfctl.orchestrator.analyse.flops.terms import Part, flag, integer, number, output_elements, tensors_of, times
from perfctl.records.paper import OpShape

CELL = {"lstm": 9, "gru": 8, "rnn": 1}
"""Elementwise FLOPs of one hidden unit in one step, without bias adds: activations, products and sums."""


def _layers(op: OpShape) -> Iterator[tuple[int, int]]:
    """(layer number, its input size), once for each layer and direction."""
    around = integer(op, "proj_size") or integer(op, "hidden_size")
    directions = integer(op, "directions", 1)
    for layer in range(integer(op, "num_layers", 1)):
        for _ in range(directions):
            yield layer, integer(op, "input_size") if layer == 0 else around * directions


def _sizes(op: OpShape) -> tuple[int, int, int, int, int]:
    """rows, rows of the first step, G x H, R, projection weights."""
    hidden, projection = integer(op, "hidden_size"), integer(op, "proj_size")
    wide = {"perfctl.lstm": 4, "perfctl.gru": 3}.get(op.op.removesuffix("_backward"), 1) * hidden
    return integer(op, "rows"), integer(op, "first_rows"), wide, projection or hidden, projection * hidden


def _forward(op: OpShape) -> tuple[int, str]:
    rows, _, wide, around, projection = _sizes(op)
    terms, macs = [], 0
    for layer, inputs in _layers(op):
        extra = f" + {times(rows, projection)}" if projection else ""
        terms.append(f"l{layer}: {times(rows, wide)} x ({number(inputs)} + {number(around)}){extra}")
        macs += rows * wide * (inputs + around) + rows * projection
    letters = "rows x G*H x (I + R)" + (" + rows x R x H" if projection else "")
    total = f"{number(macs)} MAC = {number(2 * macs)} FLOP"
    return macs, f"{letters}, per layer and direction: {'; '.join(terms)} = {total}"


def _weights(op: OpShape) -> int:
    _, _, wide, around, projection = _sizes(op)
    biases = 2 * wide if flag(op, "bias") else 0
    return sum(wide * (inputs + around) + projection + biases for _, inputs in _layers(op))


def recurrent(op: OpShape) -> tuple[Part, ...]:
    """Forward of a whole nn.LSTM, GRU or RNN."""
    macs, text = _forward(op)
    tensors = tensors_of(op)
    item = tensors.outputs[0][1] if tensors.outputs and tensors.outputs[0] else 4
    rows, _, wide, _, _ = _sizes(op)
    cells = CELL[op.op.removeprefix("perfctl.")] * integer(op, "hidden_size") + (2 * wide if flag(op, "bias") else 0)
    work = sum(rows * cells for _ in _layers(op))
    reads = tensors.read() + _weights(op) * item
    return (Part("forward", macs, reads, tensors.write(), output_elements(op), text, work),)


def recurrent_backward(op: OpShape) -> tuple[Part, ...]:
    """grad_weight as forward; grad_input without the gradients of input and initial state where none are needed."""
    forward, text = _forward(op)
    rows, first, wide, around, projection = _sizes(op)
    tensors = tensors_of(op)
    item = tensors.outputs[0][1] if tensors.outputs and tensors.outputs[0] else 4
    weights = _weights(op)
    grads, left_out = 0, []
    for layer, inputs in _layers(op):
        through_input = rows * wide * inputs if layer or flag(op, "needs_input") else 0
        steps = rows if flag(op, "needs_hidden") else rows - first
        grads += through_input + steps * wide * around + rows * projection
    if not flag(op, "needs_input"):
        left_out.append("the input needs no gradient")
    if not flag(op, "needs_hidden"):
        left_out.append(f"the initial state needs none (- {times(first, wide, around)} per layer and direction)")
    note = f"as forward, but {' and '.join(left_out)}" if left_out else "as forward"
    total = f"{note} = {number(grads)} MAC = {number(2 * grads)} FLOP"
    values = output_elements(op)
    parts = [Part("grad_input", grads, tensors.write() + weights * item, tensors.read(), values, total)]
    if flag(op, "needs_weight"):
        reads = tensors.read() + tensors.write()
        parts.append(Part("grad_weight", forward, reads, weights * item, weights, f"as forward: {text}"))
    return tuple(parts)
