"""One optimizer step of one parameter: FLOPs for each value, and how many values of state it reads and writes.

Counted from the update rules as torch.optim documents them: SGD (Sutskever et al., 2013), Adam (Kingma and Ba, 2015),
AdamW (Loshchilov and Hutter, 2019), Adadelta (Zeiler, 2012), RMSprop (Hinton, 2012), Adagrad (Duchi et al., 2011).
"""

from __future__ import annotations

from perfctl.orchestrator.analyse.worked import Part, flag, number, output_elements, tensors_of
from perfctl.parsers.paper import OpShape


def state_values(op: OpShape) -> int:
    """State tensors of the parameter's size: SGD 0, momentum 1, Adam 2 (amsgrad 3), Adadelta 2, RMSprop 1 to 3."""
    name = op.op.removeprefix("optim.")
    momentum = bool(op.attributes.get("momentum"))
    if name == "SGD":
        return int(momentum)
    if name == "RMSprop":
        return 1 + momentum + flag(op, "centered")
    return {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Adagrad": 1}[name] + flag(
        op, "amsgrad"
    )


WORK = {"SGD": 2, "Adam": 12, "AdamW": 12, "Adadelta": 13, "RMSprop": 7, "Adagrad": 6, "NAdam": 15, "RAdam": 15,
        "Adamax": 10}  # fmt: skip
"""FLOPs for each value of the plain rule."""


def step(op: OpShape) -> tuple[Part, ...]:
    """Read parameter, gradient and state; write parameter and state. No multiply-adds by convention."""
    name = op.op.removeprefix("optim.")
    values = output_elements(op)
    factor = WORK[name]
    factor += 2 if op.attributes.get("momentum") else 0
    factor += 2 if op.attributes.get("weight_decay") else 0
    factor += 2 if flag(op, "nesterov") else 0
    state = state_values(op)
    size = tensors_of(op).write()
    text = f"{factor} x {number(values)} values, {state} of state each, elementwise"
    return (Part("optimizer", 0, (2 + state) * size, (1 + state) * size, values, text, factor * values),)
