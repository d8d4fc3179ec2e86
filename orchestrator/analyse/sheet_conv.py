"""Sheets of convolutions: plain, grouped, depthwise, dilated, strided, transposed, in 1 to 3 dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from perfctl.orchestrator.analyse.formulas_conv import IN_LETTERS, KERNEL_LETTERS, OUT_LETTERS, batched
from perfctl.orchestrator.analyse.sheet_records import (
    Facts,
    Item,
    Line,
    Way,
    WorkedLayer,
    bias_line,
    by,
    in_flop,
    macs,
    out_size,
)
from perfctl.orchestrator.analyse.worked import Shape, flag, integer, integers, number, shape_of, tensors_of, times
from perfctl.parsers.paper import OpShape

SIDES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
POOLS = (2, 3, 4)


def conv(op: OpShape) -> WorkedLayer:
    """aten.convolution, transposed or not."""
    weight = shape_of(op.inputs, 1)
    data, result = batched(shape_of(op.inputs, 0), weight), batched(shape_of(op.outputs, 0), weight)
    transposed = flag(op, "transposed")
    settings = [_each(op, name, len(weight) - 2) for name in ("stride", "padding", "dilation")]
    shapes = [Line("input", "N x C x ...", "", by(data)), *_groups(op, weight, transposed)]
    sizes = zip(data[2:], weight[2:], *settings, result[2:], strict=True)
    derive = _enlarged if transposed else _reduced
    for side, letter, size in zip(SIDES[len(weight) - 2], OUT_LETTERS[len(weight) - 2], sizes, strict=True):
        shapes.append(derive(f"output {letter} ({side})", *size))
    shapes.append(Line("output", "N x K x ...", "", by(result)))
    bias = flag(op, "bias")
    steps = _transposed_steps(data, weight) if transposed else _steps(weight, result)
    count = data[0] * prod((data if transposed else result)[2:]) * prod(weight)
    steps += [in_flop(count), *([bias_line(prod(result))] if bias else [])]
    ways = transposed_ways(data, weight, result, integer(op, "groups", 1)) if transposed else conv_ways(
        weight, result[2:], data[2:], settings, integer(op, "groups", 1)
    )  # fmt: skip
    facts = Facts(data[0], prod(weight), result[1] if bias else 0, bias, ways)
    return WorkedLayer(tuple(shapes), tuple(steps), _space(op, bias), facts)


def _each(op: OpShape, name: str, rank: int) -> tuple[int, ...]:
    values = integers(op, name)
    return values * rank if len(values) == 1 else values


def _space(op: OpShape, bias: bool) -> tuple[Item, ...]:
    tensors = tensors_of(op)
    named = (
        ("weights", tensors.inputs[1]),
        ("biases", tensors.inputs[2] if bias else None),
        ("output map", tensors.outputs[0]),
    )
    return tuple(Item(what, *tensor) for what, tensor in named if tensor is not None)


def _groups(op: OpShape, weight: Shape, transposed: bool) -> list[Line]:
    groups = integer(op, "groups", 1)
    if groups == 1:
        return []
    inner = weight[1]
    letters = "K/g" if transposed else "C/g, depthwise" if inner == 1 else "C/g"
    return [Line("channels of a group", letters, f"{number(inner * groups)}/{number(groups)}", number(inner))]


def _reduced(what: str, size: int, kernel: int, stride: int, padding: int, dilation: int, result: int) -> Line:
    wide = f"({dilation}x({kernel} - 1) + 1)" if dilation > 1 else str(kernel)
    exact = (size - (dilation * (kernel - 1) + 1) + 2 * padding) % stride == 0
    formula = "(W - K + 2P)/S + 1" + ("" if exact else ", rounded down")
    return Line(what, formula, f"({size} - {wide} + 2x{padding})/{stride} + 1", number(result))


def _enlarged(what: str, size: int, kernel: int, stride: int, padding: int, dilation: int, result: int) -> Line:
    extra = result - ((size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)
    wide = f"({dilation}x({kernel} - 1) + 1)" if dilation > 1 else str(kernel)
    more = f" + {extra}" if extra else ""
    formula = "(W - 1)S + K - 2P" + (" + output padding" if extra else "")
    return Line(what, formula, f"({size} - 1)x{stride} + {wide} - 2x{padding}{more}", number(result))


def _steps(weight: Shape, result: Shape) -> list[Line]:
    """From one output value to the whole batch."""
    return _a_kernel_each(weight, "output", "C/g", "K", result, OUT_LETTERS)


def _transposed_steps(data: Shape, weight: Shape) -> list[Line]:
    """A transposed convolution spreads every input value over a kernel: the input's positions count."""
    return _a_kernel_each(weight, "input", "K/g", "C", data, IN_LETTERS)


def _a_kernel_each(
    weight: Shape, side: str, inner_letters: str, channels: str, values: Shape, letters: Mapping[int, Sequence[str]]
) -> list[Line]:
    """From one of the ``values`` of a ``side``, each of which costs one kernel, to the whole batch."""
    inner, rank = prod(weight[1:]), len(weight) - 2
    sample = prod(values[1:])
    kernel, places = " x ".join(KERNEL_LETTERS[rank]), " x ".join(letters[rank])
    return [
        Line(f"for one {side} value", f"{inner_letters} x {kernel}", times(*weight[1:]), macs(inner)),
        Line(f"{side} values, one sample", f"{channels} x {places}", times(*values[1:]), number(sample)),
        Line("one sample", "values x MAC", times(sample, inner), macs(sample * inner)),
        Line(f"{side} values, whole batch", f"N x {channels} x {places}", times(*values), number(prod(values))),
        Line("whole batch", "values x MAC", times(prod(values), inner), macs(prod(values) * inner)),
    ]


def conv_ways(
    weight: Shape, positions: Shape, given: Shape, settings: list[tuple[int, ...]], groups: int = 1
) -> tuple[Way, ...]:
    """As it is; input taken after or before a pooling that is not there; groups left out.

    ``weight`` K, C/g, R, S ...; ``positions`` P, Q ...; ``given`` H, W ...; ``settings`` stride, padding, dilation.
    """
    ways = [_way((), weight, positions)]
    for pool, (name, sizes) in _pooled(given):
        found = tuple(
            out_size(size, kernel, *each) for size, kernel, *each in zip(sizes, weight[2:], *settings, strict=True)
        )
        if all(found):
            said = f"input taken {name} a pooling by {pool} ({_map(sizes)}, not {_map(given)})"
            ways.append(_way((said,), weight, found))
    if groups > 1:
        said = f"the division by {groups} groups left out"
        ways.append(_way((said,), (weight[0], weight[1] * groups, *weight[2:]), positions))
    if any(stride > 1 for stride in settings[0]):
        dense = tuple(
            out_size(size, kernel, 1, padding, dilation)
            for size, kernel, _, padding, dilation in zip(given, weight[2:], *settings, strict=True)
        )
        ways.append(_way((f"stride left out ({_map(dense)} positions, not {_map(positions)})",), weight, dense))
    if positions != given:
        said = f"size of the input taken for the output's ({_map(given)}, not {_map(positions)})"
        ways.append(_way((said,), weight, given))
    return tuple(ways)


def _pooled(given: Shape) -> Iterator[tuple[int, tuple[str, Shape]]]:
    for pool in POOLS:
        yield pool, ("after", tuple(size // pool for size in given))
        yield pool, ("before", tuple(size * pool for size in given))


def _map(sizes: Shape) -> str:
    return "x".join(str(size) for size in sizes)


def _way(slips: tuple[str, ...], weight: Shape, positions: Shape) -> Way:
    kernel, inner = " x ".join(map(str, weight[2:])), " x ".join(map(str, weight[1:]))
    names = (
        ("the number of output channels", weight[0]),
        (f"the map {' x '.join(map(str, positions))}", prod(positions)),
        (f"the kernel {kernel}", prod(weight[2:])),
        ("the number of input channels", weight[1]),
        ("one side of the map", positions[0]),
        (f"one output value's {inner}", prod(weight[1:])),
    )
    return Way(slips, ((weight[0], *weight[1:], *positions),), weight[0] * prod(positions), names)


def transposed_ways(data: Shape, weight: Shape, result: Shape, groups: int) -> tuple[Way, ...]:
    """As it is; the output's positions taken instead of the input's; groups left out."""
    outputs = prod(result[1:])
    names = (
        ("the number of input channels", weight[0]),
        (f"the map {' x '.join(map(str, data[2:]))}", prod(data[2:])),
        (f"the kernel {' x '.join(map(str, weight[2:]))}", prod(weight[2:])),
        ("the number of output channels", weight[1]),
    )
    said = f"positions of the output taken ({_map(result[2:])}); a transposed convolution's are the input's ({_map(data[2:])})"
    ways = [
        Way((), ((*weight, *data[2:]),), outputs, names),
        Way((said,), ((*weight, *result[2:]),), outputs, names),
    ]
    if groups > 1:
        whole = (weight[0], weight[1] * groups, *weight[2:], *data[2:])
        ways.append(Way((f"the division by {groups} groups left out",), (whole,), outputs))
    return tuple(ways)
