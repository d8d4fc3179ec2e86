"""Work other than multiply-adds: bytes, and elementwise FLOPs, which are never added to multiply-adds.

By convention a pointwise operation counts one FLOP for each output value, whatever the function; the docstrings state the
other factors. docs/formulas.md lists them.
"""

from __future__ import annotations

from math import prod

from perfctl.orchestrator.analyse.flops.terms import (
    Formula,
    Part,
    direction_of,
    flag,
    input_elements,
    integers,
    number,
    output_elements,
    part_of,
    shape_of,
    tensors_of,
)
from perfctl.records.paper import OpShape


def per_output(factor: int) -> Formula:
    """``factor`` FLOPs for each output value."""

    def formula(op: OpShape) -> tuple[Part, ...]:
        values = output_elements(op)
        return part_of(op, f"{factor} x {number(values)} output values, elementwise", elementwise=factor * values)

    return formula


def per_input(factor: int) -> Formula:
    """``factor`` FLOPs for each value of the largest input."""

    def formula(op: OpShape) -> tuple[Part, ...]:
        values = input_elements(op)
        return part_of(op, f"{factor} x {number(values)} input values, elementwise", elementwise=factor * values)

    return formula


def moved(op: OpShape) -> tuple[Part, ...]:
    """Values are copied, looked up, drawn or set: bytes, no arithmetic."""
    return part_of(op, f"{number(output_elements(op))} values moved, no arithmetic")


def each_tensor(op: OpShape) -> tuple[Part, ...]:
    """_foreach_ operations on lists: one FLOP for each value of the first list."""
    values = sum(prod(shape) for shape in (op.outputs or op.inputs) if shape is not None)
    return part_of(op, f"1 x {number(values)} values of a list of tensors, elementwise", elementwise=values)


def pooling(op: OpShape) -> tuple[Part, ...]:
    """Each output value takes one comparison or addition for each value of its window."""
    kernel = integers(op, "kernel_size") or (1,)
    rank = 3 if "3d" in op.op else 2 if "2d" in op.op else 1
    window = prod(kernel * rank if len(kernel) == 1 else kernel)
    values = output_elements(op)
    return part_of(op, f"window {window} x {number(values)} output values, elementwise", elementwise=window * values)


def batch_norm(op: OpShape) -> tuple[Part, ...]:
    """Train 8 a value (mean 1, variance 3, normalise 2, scale and shift 2); eval 4."""
    factor = 8 if flag(op, "training") else 4
    values = output_elements(op)
    tensors = tensors_of(op)
    # Eval keeps no batch statistics: devices return them empty, or as tensors that nobody fills.
    written = tensors.write() if flag(op, "training") else tensors.write(0)
    text = f"{factor} x {number(values)} output values, elementwise"
    return (Part(direction_of(op), 0, tensors.read(), written, values, text, factor * values),)


def norm_backward(op: OpShape) -> tuple[Part, ...]:
    """One operator makes the gradients of input, weight and bias: 11 a value, direction backward.

    In eval it does not read the batch statistics (places 5 and 6 of batch norm), which are then empty or unfilled.
    """
    values = input_elements(op)
    tensors = tensors_of(op)
    kept = [place for place in range(len(op.inputs)) if op.attributes.get("train") is not False or place not in (5, 6)]
    text = f"11 x {number(values)} values, elementwise"
    return (Part("backward", 0, tensors.read(*kept), tensors.write(), output_elements(op), text, 11 * values),)


def interpolation_backward(taps: int) -> Formula:
    """For each value of the gradient that comes in, a multiplication and an addition for each of ``taps`` neighbours."""

    def formula(op: OpShape) -> tuple[Part, ...]:
        values = prod(shape_of(op.inputs, 0))
        return part_of(op, f"{2 * taps} x {number(values)} gradient values, elementwise", elementwise=2 * taps * values)

    return formula


def state_values(op: OpShape) -> int:
    """State tensors of the parameter's size: SGD 0, momentum 1, Adam 2 (amsgrad 3), Adadelta 2, RMSprop 1 to 3."""
    name = op.op.removeprefix("optim.")
    momentum = bool(op.attributes.get("momentum"))
    if name == "SGD":
        return int(momentum)
    if name == "RMSprop":
        return 1 + momentum + flag(op, "centered")
    return (1 if name == "Adagrad" else 2) + flag(op, "amsgrad")


WORK = {"SGD": 2, "Adam": 12, "AdamW": 12, "Adadelta": 13, "RMSprop": 7, "Adagrad": 6, "NAdam": 15, "RAdam": 15,
        "Adamax": 10}  # fmt: skip
"""FLOPs for each value, by the rule without options."""


def step(op: OpShape) -> tuple[Part, ...]:
    """Read parameter, gradient and state; write parameter and state. No multiply-adds by convention."""
    name, values = op.op.removeprefix("optim."), output_elements(op)
    factor = WORK[name] + 2 * sum(flag(op, option) for option in ("momentum", "weight_decay", "nesterov"))
    state = state_values(op)
    size = tensors_of(op).write()
    text = f"{factor} x {number(values)} values, {state} of state each, elementwise"
    return (Part("optimizer", 0, (2 + state) * size, (1 + state) * size, values, text, factor * values),)
