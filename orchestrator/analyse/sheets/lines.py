"""What a worked sheet is made of, and what a hand value can be put together from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from perfctl.orchestrator.analyse.flops.terms import Shape, number, times


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
class Way:
    """One way to work the layer's forward pass: the right one, or one with a slip."""

    slips: tuple[str, ...]
    """Empty for the right way."""
    terms: tuple[Shape, ...]
    """A sum of products, for one sample; the batch multiplies all of them."""
    outputs: int
    """Output values of one sample: what bias additions and the output map are counted by."""
    names: tuple[tuple[str, int], ...] = ()
    """Factors (or products of neighbours) in which one may slip by one: what it is, its size."""

    @property
    def macs(self) -> int:
        """Of one sample."""
        return sum(prod(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a hand value can be put together from."""

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
    """Something that takes space: its name, its sizes, bytes of one value."""

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
    return f"{number(value)} MAC"


def in_flop(value: int) -> Line:
    """The line that turns multiply-adds into FLOPs."""
    return Line("in FLOP", "2 x MAC", times(2, value), f"{number(2 * value)} FLOP")


def bias_line(values: int) -> Line:
    return Line("bias, beside it", "1 addition a value", number(values), f"{number(values)} FLOP")


def space_lines(items: Sequence[Item]) -> tuple[Line, ...]:
    """Values and bytes of each, and of all."""
    lines, values, size = [], 0, 0
    for item in items:
        count = prod(item.sizes)
        values, size = values + count, size + count * item.item
        product = f"{times(*item.sizes)} = " if len(item.sizes) > 1 else ""
        text = f"{product}{number(count)} values x {item.item} B"
        lines.append(Line(item.what, "values x bytes", text, f"{number(count * item.item)} B"))
    if len(lines) > 1:
        lines.append(Line("in all", "sum", f"{number(values)} values", f"{number(size)} B = {size / 1024:,.1f} KiB"))
    return tuple(lines)
