"""What a formula returns, and the arithmetic that all formulas share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from perfctl.records.paper import OpShape

Shape = tuple[int, ...]

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "quint8": 1,
    "qint8": 1, "qint32": 4, "uint16": 2, "uint32": 4, "uint64": 8, "complex32": 4,
}  # fmt: skip
"""Bytes of one element; torch's names."""


@dataclass(frozen=True, slots=True)
class Part:
    """One operation in one direction, for one call."""

    direction: str
    macs: int
    read_bytes: int
    write_bytes: int
    output_elements: int
    text: str
    elementwise: int = 0
    """FLOPs other than multiply-adds."""
    label: str = ""
    """Added to the layer's kind, for a row of its own: work that only some kernels do."""


Formula = Callable[[OpShape], tuple[Part, ...]]
"""One operation's shapes in, what it computes out; several parts when it works in several directions."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """Shapes of one operation with the bytes of an element, in the order of its arguments."""

    inputs: tuple[tuple[Shape, int] | None, ...]
    outputs: tuple[tuple[Shape, int] | None, ...]

    def read(self, *indices: int) -> int:
        """Bytes of these inputs, of all without ``indices``. A missing tensor counts 0."""
        return _total_bytes([self.inputs[index] for index in indices] if indices else self.inputs)

    def write(self, *indices: int) -> int:
        """Bytes of these outputs, of all without ``indices``."""
        return _total_bytes([self.outputs[index] for index in indices] if indices else self.outputs)


def _total_bytes(tensors: Iterable[tuple[Shape, int] | None]) -> int:
    return sum(prod(tensor[0]) * tensor[1] for tensor in tensors if tensor is not None)


def tensors_of(op: OpShape) -> Tensors:
    """Shapes joined with dtypes. An unknown dtype counts 4 bytes."""
    sizes = iter([ITEM_BYTES.get(name, 4) for name in op.dtypes])
    inputs, outputs = (
        tuple(None if shape is None else (tuple(shape), next(sizes, 4)) for shape in shapes)
        for shapes in (op.inputs, op.outputs)
    )
    return Tensors(inputs, outputs)


def shape_of(shapes: tuple[Shape | None, ...], index: int) -> Shape:
    """The shape at ``index``; () when there is no tensor there."""
    shape = shapes[index] if index < len(shapes) else None
    return tuple(shape) if shape is not None else ()


def output_elements(op: OpShape) -> int:
    return prod(shape_of(op.outputs, 0)) if op.outputs else 0


def input_elements(op: OpShape) -> int:
    """Elements of the largest input."""
    return max((prod(shape) for shape in op.inputs if shape is not None), default=0)


def direction_of(op: OpShape) -> str:
    """forward, optimizer, or what the recorder said about a backward operation."""
    if op.direction == "forward":
        return "forward"
    role = op.attributes.get("role")
    return str(role) if role else ("grad_input" if op.direction == "backward" else op.direction)


def part_of(op: OpShape, text: str, *, macs: int = 0, elementwise: int = 0) -> tuple[Part, ...]:
    """The one part of an operation that reads all its inputs and writes all its outputs."""
    tensors = tensors_of(op)
    return (Part(direction_of(op), macs, tensors.read(), tensors.write(), output_elements(op), text, elementwise),)


def times(*factors: int) -> str:
    """(64, 24, 24) -> "64 x 24 x 24"."""
    return " x ".join(f"{factor:,}" for factor in factors)


def worked(letters: str, factors: tuple[int, ...], macs: int) -> str:
    """One line: letters = numbers = result in MAC and FLOP."""
    return f"{letters} = {times(*factors)} = {macs:,} MAC = {2 * macs:,} FLOP"


def flag(op: OpShape, name: str) -> bool:
    return bool(op.attributes.get(name, False))


def integer(op: OpShape, name: str, default: int = 0) -> int:
    value = op.attributes.get(name, default)
    return int(value) if isinstance(value, (int, float)) else default


def integers(op: OpShape, name: str) -> tuple[int, ...]:
    value = op.attributes.get(name)
    if isinstance(value, (list, tuple)):
        return tuple(int(item) if item is not None else 0 for item in value)
    return (int(value),) if isinstance(value, (int, float)) else ()
