"""Networks to draw: layers, the matrix products that each direction is made of, and the shapes
on paper.

A multiply-add is 2 FLOPs. A product is ``count`` times M x N x K; what a kernel makes of it is in
``kernels``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from perfctl.records.paper import OpShape

FORWARD, BACKWARD = "forward", "backward"
Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """``count`` matrix products of M rows, N columns and depth K."""

    part: str
    """forward, dgrad or wgrad; scores and values for the two products of attention."""
    m: int
    n: int
    k: int
    count: int = 1

    @property
    def macs(self) -> int:
        return self.count * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Layer:
    """What all kinds share. ``first``: its input needs no gradient."""

    name: str
    first: bool
    bias: bool

    def forward(self, batch: int) -> list[Product]:
        raise NotImplementedError

    def gradients(self, batch: int) -> list[Product]:
        """All products of backward, the input's gradient too where the layer is the first."""
        raise NotImplementedError

    def ops(self, batch: int, position: int, train: bool, fused: bool) -> tuple[OpShape, ...]:
        raise NotImplementedError

    def outputs(self, batch: int) -> int:
        raise NotImplementedError

    def inputs(self, batch: int) -> int:
        raise NotImplementedError

    def wanted(self, batch: int) -> list[Product]:
        """The products of backward on paper."""
        return [
            product
            for product in self.gradients(batch)
            if not (self.first and product.part == "dgrad")
        ]


@dataclass(frozen=True, slots=True)
class Conv(Layer):
    """A 2-d convolution of square images."""

    cin: int
    cout: int
    kernel: int
    size: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def out(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def depthwise(self) -> bool:
        return self.groups == self.cin > 1

    def outputs(self, batch: int) -> int:
        return batch * self.cout * self.out**2

    def inputs(self, batch: int) -> int:
        return batch * self.cin * self.size**2

    def forward(self, batch: int) -> list[Product]:
        rows, depth = batch * self.out**2, self.cin // self.groups * self.kernel**2
        return [Product("forward", rows, self.cout // self.groups, depth, self.groups)]

    def gradients(self, batch: int) -> list[Product]:
        rows, each = batch * self.out**2, self.cout // self.groups
        inside, window = self.cin // self.groups, self.kernel**2
        taps = inside * window
        wide, deep = (inside, each * window) if self.out == self.size else (taps, each)
        return [
            Product("dgrad", rows, wide, deep, self.groups),
            Product("wgrad", each, taps, rows, self.groups),
        ]

    def ops(self, batch: int, position: int, train: bool, fused: bool) -> tuple[OpShape, ...]:
        inside = (batch, self.cin, self.size, self.size)
        weight = (self.cout, self.cin // self.groups, self.kernel, self.kernel)
        outside = (batch, self.cout, self.out, self.out)
        facts: dict[str, Any] = {
            "stride": [self.stride] * 2,
            "padding": [self.padding] * 2,
            "dilation": [1, 1],
            "transposed": False,
            "groups": self.groups,
        }
        biases = (self.cout,) if self.bias else None
        count = prod(weight) + (self.cout if self.bias else 0)
        found = [
            OpShape(
                self.name,
                "Conv2d",
                "aten.convolution",
                FORWARD,
                (inside, weight, biases),
                (outside,),
                ("float32",) * (4 if self.bias else 3),
                {**facts, "bias": self.bias},
                count,
                1,
                position,
            )
        ]
        if train:
            gradients = (None if self.first else inside, weight, biases)
            found.append(
                OpShape(
                    self.name,
                    "Conv2d",
                    "aten.convolution_backward",
                    BACKWARD,
                    (outside, inside, weight),
                    gradients,
                    ("float32",) * (3 + sum(shape is not None for shape in gradients)),
                    {
                        **facts,
                        "output_mask": [not self.first, True, self.bias],
                        "role": "grad_input",
                    },
                    count,
                    1,
                    1000 - position,
                )
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """A fully connected layer over ``rows`` rows a sample."""

    cin: int
    cout: int
    rows: int = 1

    def outputs(self, batch: int) -> int:
        return batch * self.rows * self.cout

    def inputs(self, batch: int) -> int:
        return batch * self.rows * self.cin

    def forward(self, batch: int) -> list[Product]:
        return [Product("forward", batch * self.rows, self.cout, self.cin)]

    def gradients(self, batch: int) -> list[Product]:
        rows = batch * self.rows
        return [
            Product("dgrad", rows, self.cin, self.cout),
            Product("wgrad", self.cout, self.cin, rows),
        ]

    def ops(self, batch: int, position: int, train: bool, fused: bool) -> tuple[OpShape, ...]:
        rows = batch * self.rows
        x, y, back = (rows, self.cin), (rows, self.cout), (self.cout, self.cin)
        count = self.cin * self.cout + (self.cout if self.bias else 0)
        w = (self.cin, self.cout)
        op, inputs = ("aten.addmm", ((self.cout,), x, w)) if self.bias else ("aten.mm", (x, w))
        found = [
            OpShape(
                self.name,
                "Linear",
                op,
                FORWARD,
                inputs,
                (y,),
                ("float32",) * (len(inputs) + 1),
                {},
                count,
                1,
                position,
            )
        ]
        if train and not self.first:
            found.append(
                OpShape(
                    self.name,
                    "Linear",
                    "aten.mm",
                    BACKWARD,
                    (y, back),
                    (x,),
                    ("float32",) * 3,
                    {"role": "grad_input"},
                    count,
                    1,
                    1000 - position,
                )
            )
        if train:
            found.append(
                OpShape(
                    self.name,
                    "Linear",
                    "aten.mm",
                    BACKWARD,
                    ((self.cout, rows), x),
                    (back,),
                    ("float32",) * 3,
                    {"role": "grad_weight"},
                    count,
                    1,
                    1001 - position,
                )
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Lstm(Layer):
    """One layer, one direction, ``steps`` long. The initial state needs no gradient."""

    width: int
    hidden: int
    steps: int

    def outputs(self, batch: int) -> int:
        return batch * self.steps * self.hidden

    def inputs(self, batch: int) -> int:
        return batch * self.steps * self.width

    def forward(self, batch: int) -> list[Product]:
        wide = 4 * self.hidden
        return [
            Product("forward", self.steps * batch, wide, self.width),
            *[Product("forward", batch, wide, self.hidden)] * self.steps,
        ]

    def gradients(self, batch: int) -> list[Product]:
        wide, rows = 4 * self.hidden, self.steps * batch
        inside = [] if self.first else [Product("dgrad", rows, self.width, wide)]
        return [
            *[Product("hidden", batch, self.hidden, wide)] * (self.steps - 1),
            *inside,
            Product("wgrad", wide, self.width, rows),
            Product("wgrad", wide, self.hidden, rows),
        ]

    def ops(self, batch: int, position: int, train: bool, fused: bool) -> tuple[OpShape, ...]:
        x, y = (self.steps, batch, self.width), (self.steps, batch, self.hidden)
        facts: dict[str, Any] = {
            "rows": self.steps * batch,
            "first_rows": batch,
            "input_size": self.width,
            "hidden_size": self.hidden,
            "proj_size": 0,
            "num_layers": 1,
            "directions": 1,
            "bias": self.bias,
        }
        count = 4 * self.hidden * (self.width + self.hidden + (2 if self.bias else 0))
        found = [
            OpShape(
                self.name,
                "LSTM",
                "perfctl.lstm",
                FORWARD,
                (x,),
                (y,),
                ("float32",) * 2,
                facts,
                count,
                1,
                position,
            )
        ]
        if train:
            needs = {"needs_input": not self.first, "needs_hidden": False, "needs_weight": True}
            found.append(
                OpShape(
                    self.name,
                    "LSTM",
                    "perfctl.lstm_backward",
                    BACKWARD,
                    (x,),
                    (y,),
                    ("float32",) * 2,
                    {**facts, **needs},
                    count,
                    1,
                    1000 - position,
                )
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Attention(Layer):
    """Scaled dot-product attention of ``heads`` heads, ``length`` positions and ``depth``
    channels each."""

    heads: int
    length: int
    depth: int
    causal: bool = False

    def outputs(self, batch: int) -> int:
        return batch * self.heads * self.length * self.depth

    def inputs(self, batch: int) -> int:
        return 3 * self.outputs(batch)

    def forward(self, batch: int) -> list[Product]:
        count = batch * self.heads
        return [
            Product("scores", self.length, self.length, self.depth, count),
            Product("values", self.length, self.depth, self.length, count),
        ]

    def gradients(self, batch: int) -> list[Product]:
        count = batch * self.heads
        wide = Product("scores", self.length, self.length, self.depth, count)
        deep = Product("values", self.length, self.depth, self.length, count)
        return [wide, deep, deep, deep]

    def ops(self, batch: int, position: int, train: bool, fused: bool) -> tuple[OpShape, ...]:
        shape = (batch, self.heads, self.length, self.depth)
        facts: dict[str, Any] = {
            "functional": "scaled_dot_product_attention",
            "is_causal": self.causal,
        }
        how = {"needs": [1, 1, 1], "backend": "flash" if fused else "math"}
        name = "perfctl.scaled_dot_product_attention"
        found = [
            OpShape(
                self.name,
                "Attention",
                name,
                FORWARD,
                (shape,) * 3,
                (shape,),
                ("float32",) * 4,
                facts,
                0,
                1,
                position,
            )
        ]
        if train:
            found.append(
                OpShape(
                    self.name,
                    "Attention",
                    f"{name}_backward",
                    BACKWARD,
                    (shape,) * 3,
                    (shape,) * 3,
                    ("float32",) * 6,
                    {**facts, **how},
                    0,
                    1,
                    1000 - position,
                )
            )
        return tuple(found)


Network = tuple[Layer, ...]


def paper(network: Network, batch: int, train: bool) -> dict[tuple[str, str], int]:
    """(layer, direction) -> FLOPs on paper."""
    found: dict[tuple[str, str], int] = {}
    for layer in network:
        found[layer.name, FORWARD] = 2 * sum(product.macs for product in layer.forward(batch))
        if train:
            found[layer.name, BACKWARD] = 2 * sum(product.macs for product in layer.wanted(batch))
    return found
