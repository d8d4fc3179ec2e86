"""Records of a worked sheet, and the lines that several sheets share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from perfctl.orchestrator.analyse.flops.terms import Shape, integers, times
from perfctl.records.paper import OpShape


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what, the formula in letters, the numbers put in, the result with its unit."""

    what: str
    formula: str
    numbers: str
    result: str


@dataclass(frozen=True, slots=True)
class Way:
    """One way to work the layer's forward pass: the right one, or one with a slip."""

    slips: tuple[str, ...]
    terms: tuple[Shape, ...]
    """A sum of products, for one sample; the batch multiplies all of them."""
    outputs: int
    names: tuple[tuple[str, int], ...] = ()
    """(name, size) of factors, or products of neighbours, that may be off by one."""

    @property
    def macs(self) -> int:
        """Of one sample."""
        return sum(prod(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a hand value is checked against."""

    batch: int
    weights: int
    biases: int
    bias: bool
    """Whether every output value gets a bias added."""
    ways: tuple[Way, ...]
    """The right one first."""
    step: int = 0
    """Multiply-adds of forward and backward together; 0 where only forward was seen."""

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass of the whole batch."""
        return self.batch * self.ways[0].macs


@dataclass(frozen=True, slots=True)
class Item:
    """A tensor: its name, its sizes, bytes of one value."""

    what: str
    sizes: Shape
    item: int


@dataclass(frozen=True, slots=True)
class WorkedLayer:
    """One layer's forward pass, worked."""

    shapes: tuple[Line, ...]
    steps: tuple[Line, ...]
    space: tuple[Item, ...]
    facts: Facts | None = None


def out_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """(W - K + 2P)/S + 1 with K the dilated kernel; 0 where the kernel does not fit."""
    return max(0, (size - (dilation * (kernel - 1) + 1) + 2 * padding) // stride + 1)


def by(sizes: Sequence[int]) -> str:
    """(64, 24, 24) -> "64 x 24 x 24"; one value for no sizes."""
    return times(*sizes) if sizes else "1"


def macs(value: int) -> str:
    return f"{value:,} MAC"


def in_flop(value: int) -> Line:
    """The line that turns multiply-adds into FLOPs."""
    return Line("in FLOP", "2 x MAC", times(2, value), f"{2 * value:,} FLOP")


def items_of(*named: tuple[str, tuple[Shape, int] | None]) -> tuple[Item, ...]:
    """(name, (sizes, bytes of a value)) of the tensors that are not None."""
    return tuple(Item(what, *tensor) for what, tensor in named if tensor is not None)


def each_side(op: OpShape, name: str, rank: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """A setting of a window in each of ``rank`` dimensions."""
    values = integers(op, name) or default
    return values * rank if len(values) == 1 else values


def window_line(what: str, sizes: Sequence[int], result: int, up: bool = False) -> Line:
    """The output size of a window. ``sizes``: input, kernel, stride, padding, dilation; ``up``: ceil_mode."""
    size, kernel, stride, padding, dilation = sizes
    exact = (size - (dilation * (kernel - 1) + 1) + 2 * padding) % stride == 0
    formula = "(W - K + 2P)/S + 1" + ("" if exact else ", rounded up" if up else ", rounded down")
    return Line(what, formula, f"({size} - {dilated(kernel, dilation)} + 2x{padding})/{stride} + 1", f"{result:,}")


def dilated(kernel: int, dilation: int) -> str:
    return f"({dilation}x({kernel} - 1) + 1)" if dilation > 1 else str(kernel)


def bias_line(values: int) -> Line:
    return Line("bias, not included", "1 addition a value", f"{values:,}", f"{values:,} FLOP")


def space_lines(items: Sequence[Item]) -> tuple[Line, ...]:
    """Values and bytes of each, and of all."""
    lines, values, size = [], 0, 0
    for item in items:
        count = prod(item.sizes)
        values, size = values + count, size + count * item.item
        product = f"{times(*item.sizes)} = " if len(item.sizes) > 1 else ""
        text = f"{product}{count:,} values x {item.item} B"
        lines.append(Line(item.what, "values x bytes", text, f"{count * item.item:,} B"))
    if len(lines) > 1:
        lines.append(Line("total", "sum", f"{values:,} values", f"{size:,} B = {size / 1024:,.1f} KiB"))
    return tuple(lines)
