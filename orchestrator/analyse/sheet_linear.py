"""The sheet of a Linear layer on any rank."""

from __future__ import annotations

from math import prod

from perfctl.orchestrator.analyse.formulas_matmul import ADDED, left_factor
from perfctl.orchestrator.analyse.sheet_records import Facts, Item, Line, Way, WorkedLayer, bias_line, by, in_flop, macs
from perfctl.orchestrator.analyse.worked import Shape, number, shape_of, tensors_of, times
from perfctl.parsers.paper import OpShape


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
