"""The worked sheet of one layer: formula, numbers put in, result, line by line, for time and for space.

Time is operations, space is values and bytes: weights, biases, output map. The lines are for reading; the figures
behind them are the layer's :class:`LayerCall` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from perfctl.orchestrator.analyse.estimate import estimate
from perfctl.orchestrator.analyse.worked import Shape, flag, integers, number, shape_of, tensors_of, times
from perfctl.parsers.records import LayerCall, OpShape

CONVOLUTIONS = ("aten.convolution", "aten._convolution")
LINEAR = ("aten.addmm", "aten.mm", "aten.linear")
DIRECTIONS_SAID = {
    "forward": "forward",
    "grad_input": "gradient of the input",
    "grad_weight": "gradient of the weights",
    "grad_bias": "gradient of the bias",
    "backward": "backward",
    "recompute": "computed again in backward",
    "optimizer": "optimizer step",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what, the formula in letters, the numbers put in, the result with its unit."""

    what: str
    formula: str
    numbers: str
    result: str


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
    """Factors of its forward pass, for checking a hand value; None where the layer has no single product."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a hand value can be put together from."""

    batch: int
    out_channels: int
    """K, or the outputs of a Linear."""
    inner: tuple[int, ...]
    """C/g, R, S ...: multiply-adds behind one output value."""
    positions: tuple[int, ...]
    """P, Q ...; empty for a Linear."""
    map_in: tuple[int, ...]
    """H, W ...; empty for a Linear."""
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    bias: bool

    @property
    def macs(self) -> int:
        return self.batch * self.out_channels * prod(self.inner) * prod(self.positions)


def out_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """(W - K + 2P)/S + 1 with K the dilated kernel; 0 where the kernel does not fit."""
    return max(0, (size - (dilation * (kernel - 1) + 1) + 2 * padding) // stride + 1)


def layers_of(ops: Sequence[OpShape]) -> tuple[str, ...]:
    """Layers that have a sheet, in order."""
    return tuple(dict.fromkeys(op.layer for op in ops if op.layer))


def sheet_for(ops: Sequence[OpShape], layer: str) -> Sheet | None:
    """The sheet of ``layer``; None when nothing of it was seen."""
    mine = [op for op in ops if op.layer == layer]
    if not mine:
        return None
    forward = [op for op in mine if op.direction == "forward" and not flag(op, "recompute")]
    main = next((op for op in forward if op.op in (*CONVOLUTIONS, *LINEAR)), forward[0] if forward else mine[0])
    calls = estimate(mine)
    convolution = main.op in CONVOLUTIONS and not flag(main, "transposed")
    linear = main.op in LINEAR and main.kind == "Linear"
    facts = _conv_facts(main) if convolution else _linear_facts(main) if linear else None
    sections = [_shape_section(main, facts)]
    if convolution and facts is not None:
        sections.append(_count_section(facts))
    sections += [_time_section(calls), _space_section(main, calls)]
    return Sheet(layer, main.kind, tuple(section for section in sections if section.lines), facts)


def _batched(op: OpShape, place: int, weight: Shape) -> Shape:
    shape = shape_of(op.inputs if place >= 0 else op.outputs, max(place, 0))
    return shape if len(shape) == len(weight) else (1, *shape)


def _conv_facts(op: OpShape) -> Facts:
    weight = shape_of(op.inputs, 1)
    data, result = _batched(op, 0, weight), _batched(op, -1, weight)
    rank = len(weight) - 2
    settings = {name: _per_dimension(op, name, rank) for name in ("stride", "padding", "dilation")}
    return Facts(
        data[0], weight[0], weight[1:], result[2:], data[2:], weight[2:],
        settings["stride"], settings["padding"], settings["dilation"], flag(op, "bias"),
    )  # fmt: skip


def _per_dimension(op: OpShape, name: str, rank: int) -> tuple[int, ...]:
    values = integers(op, name)
    return values * rank if len(values) == 1 else values


def _linear_facts(op: OpShape) -> Facts:
    left, right = (1, 2) if op.op == "aten.addmm" else (0, 1)
    rows = shape_of(op.inputs, left)
    weight = shape_of(op.inputs, right)
    out = weight[0] if op.op == "aten.linear" else weight[-1]
    return Facts(prod(rows[:-1]), out, (rows[-1],), (), (), (), (), (), (), op.op != "aten.mm")


def _shape_section(op: OpShape, facts: Facts | None) -> Section:
    lines = [
        Line(
            "input", "", "", " x ".join(number(size) for size in shape_of(op.inputs, 0 if op.op != "aten.addmm" else 1))
        )
    ]
    if facts is not None and facts.positions:
        for letter, size, kernel, stride, padding, dilation, result in zip(
            ("P (height)", "Q (width)", "O (depth)") if len(facts.positions) > 1 else ("P (length)",),
            facts.map_in, facts.kernel, facts.stride, facts.padding, facts.dilation, facts.positions, strict=False,
        ):  # fmt: skip
            wide = f"{dilation}x({kernel} - 1) + 1" if dilation > 1 else str(kernel)
            text = f"({size} - {wide} + 2x{padding})/{stride} + 1"
            lines.append(Line(f"output {letter}", "(W - K + 2P)/S + 1", text, number(result)))
    lines.append(Line("output", "", "", " x ".join(number(size) for size in shape_of(op.outputs, 0))))
    return Section("Shapes", tuple(lines))


def _count_section(facts: Facts) -> Section:
    """From one output value to the whole layer."""
    inner, positions = prod(facts.inner), prod(facts.positions)
    values = facts.batch * facts.out_channels * positions
    one_image = inner * facts.out_channels * positions
    lines = [
        Line("for one output value", "C/g x R x S", times(*facts.inner), f"{number(inner)} MAC"),
        Line("output values, one sample", "K x P x Q", times(facts.out_channels, *facts.positions),
             number(facts.out_channels * positions)),
        Line("one sample", "values x MAC", times(facts.out_channels * positions, inner), f"{number(one_image)} MAC"),
        Line("output values, whole batch", "N x K x P x Q", times(facts.batch, facts.out_channels, *facts.positions),
             number(values)),
        Line("whole batch", "values x MAC", times(values, inner), f"{number(values * inner)} MAC"),
        Line("in FLOP", "2 x MAC", times(2, values * inner), f"{number(2 * values * inner)} FLOP"),
    ]  # fmt: skip
    if facts.bias:
        lines.append(Line("bias, beside it", "1 addition a value", number(values), f"{number(values)} FLOP"))
    return Section("Forward, step by step", tuple(lines))


def _time_section(calls: Sequence[LayerCall]) -> Section:
    lines = []
    for call in calls:
        said = DIRECTIONS_SAID.get(call.direction, call.direction)
        if call.macs is None:
            lines.append(Line(said, call.formula or "", "", "no formula"))
        elif call.macs:
            letters, _, rest = (call.formula or "").partition(" = ")
            lines.append(Line(said, letters, rest.partition(" = ")[0], f"{number(call.flops or 0)} FLOP"))
        else:
            work = call.elementwise_flops or 0
            result = f"{number(work)} elementwise FLOP" if work else "no arithmetic"
            lines.append(Line(said, call.formula or "", "", result))
    heavy = [call for call in calls if call.macs]
    if not any(call.direction == "grad_input" for call in calls) and any(
        call.direction == "grad_weight" for call in calls
    ):
        lines.append(Line("gradient of the input", "the layer's input needs none", "", "0 FLOP"))
    if len(heavy) > 1:
        total = sum(call.flops or 0 for call in heavy)
        lines.append(Line("in all", "sum of the multiply-adds above", "", f"{number(total)} FLOP"))
    return Section("Time: operations", tuple(lines))


def _space_section(op: OpShape, calls: Sequence[LayerCall]) -> Section:
    tensors = tensors_of(op)
    lines: list[Line] = []
    total_values = total_bytes = 0
    weight = {"aten.addmm": 2, "aten.mm": 1}.get(op.op, 1) if op.op in (*CONVOLUTIONS, *LINEAR) else None
    bias = {"aten.addmm": 0}.get(op.op, 2 if op.op in (*CONVOLUTIONS, "aten.linear") else -1)
    for what, tensor in (
        ("weights", tensors.inputs[weight] if weight is not None else None),
        ("biases", tensors.inputs[bias] if weight is not None and 0 <= bias < len(tensors.inputs) else None),
        ("output map", tensors.outputs[0] if tensors.outputs else None),
    ):
        if tensor is None:
            continue
        values = prod(tensor[0])
        total_values, total_bytes = total_values + values, total_bytes + values * tensor[1]
        sizes = f"{times(*tensor[0])} = " if len(tensor[0]) > 1 else ""
        product = f"{sizes}{number(values)} values x {tensor[1]} B"
        lines.append(Line(what, "product of its sizes", product, f"{number(values * tensor[1])} B"))
    if len(lines) > 1:
        kib = total_bytes / 1024
        lines.append(Line("in all", "", f"{number(total_values)} values", f"{number(total_bytes)} B = {kib:,.1f} KiB"))
    if weight is None and calls and calls[0].parameters:
        count = calls[0].parameters
        lines.insert(0, Line("parameters", "", "", f"{number(count)} values"))
    return Section("Space: values and bytes", tuple(lines))
