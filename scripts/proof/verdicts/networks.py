"""Networks to draw: layers, the matrix products that each direction is made of, and the shapes that
a formula needs.

A multiply-add is 2 FLOPs. A product is ``count`` times M x N x K; what a kernel makes of it is in
``kernels``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

from perfctl.records.paper import OpShape

FORWARD, BACKWARD = "forward", "backward"
Claim = tuple[str, str]
"""Layer and part: forward, dgrad (of recurrent layers and attention: all gradients of
data), wgrad."""
Shape = tuple[int, ...] | None


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
        """Return all products of backward, the input's gradient too where the layer is first."""
        raise NotImplementedError

    def ops(self, batch: int, position: int, fused: bool) -> tuple[OpShape, ...]:
        """Return the operations of forward and backward; ``fused`` asks for fused attention."""
        raise NotImplementedError

    @property
    def parameters(self) -> int:
        return 0

    def shape(self, batch: int) -> tuple[int, ...]:
        """Return the shape of the layer's output."""
        raise NotImplementedError

    def outputs(self, batch: int) -> int:
        return prod(self.shape(batch))

    def macs(self, batch: int) -> int:
        return sum(product.macs for product in self.forward(batch))

    def products(self, part: str, batch: int) -> list[Product]:
        """Return the products of one part of the layer."""
        if part == FORWARD:
            return self.forward(batch)
        gradients = self.gradients(batch)
        return [product for product in gradients if (product.part == "wgrad") == (part == "wgrad")]

    def parts(self, train: bool) -> list[str]:
        """Return the parts that a formula has of the layer."""
        if not train:
            return [FORWARD]
        has_dgrad = not self.first or isinstance(self, Lstm | Attention)
        has_wgrad = not isinstance(self, Attention)
        return [FORWARD] + ["dgrad"] * has_dgrad + ["wgrad"] * has_wgrad

    def estimate(self, batch: int, direction: str) -> int:
        """Return the FLOPs that the formula requires."""
        if direction == FORWARD:
            return 2 * self.macs(batch)
        products = self.gradients(batch)
        return 2 * sum(
            product.macs for product in products if not (self.first and product.part == "dgrad")
        )

    def _op(
        self,
        function: str,
        direction: str,
        inputs: tuple[Shape, ...],
        outputs: tuple[Shape, ...],
        facts: dict[str, Any],
        position: int,
    ) -> OpShape:
        kinds = {"Conv": "Conv2d", "Lstm": "LSTM"}
        kind = kinds.get(type(self).__name__, type(self).__name__)
        types = ("float32",) * sum(shape is not None for shape in inputs + outputs)
        count = self.parameters
        return OpShape(
            self.name, kind, function, direction, inputs, outputs, types, facts, count, 1, position
        )


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

    @property
    def weight(self) -> tuple[int, ...]:
        return (self.cout, self.cin // self.groups, self.kernel, self.kernel)

    @property
    def parameters(self) -> int:
        return prod(self.weight) + self.bias * self.cout

    def shape(self, batch: int) -> tuple[int, ...]:
        return (batch, self.cout, self.out, self.out)

    def inputs(self, batch: int) -> int:
        return batch * self.cin * self.size**2

    def forward(self, batch: int) -> list[Product]:
        rows, depth = batch * self.out**2, prod(self.weight[1:])
        return [Product(FORWARD, rows, self.cout // self.groups, depth, self.groups)]

    def gradients(self, batch: int) -> list[Product]:
        rows, each = batch * self.out**2, self.cout // self.groups
        inside, window = self.cin // self.groups, self.kernel**2
        taps = inside * window
        wide, deep = (inside, each * window) if self.out == self.size else (taps, each)
        return [
            Product("dgrad", rows, wide, deep, self.groups),
            Product("wgrad", each, taps, rows, self.groups),
        ]

    def ops(self, batch: int, position: int, fused: bool) -> tuple[OpShape, ...]:
        inside, outside = (batch, self.cin, self.size, self.size), self.shape(batch)
        facts: dict[str, Any] = {
            "stride": [self.stride] * 2,
            "padding": [self.padding] * 2,
            "dilation": [1, 1],
            "transposed": False,
            "groups": self.groups,
        }
        mask = {"output_mask": [not self.first, True, self.bias], "role": "grad_input"}
        shapes = (inside, self.weight, (self.cout,) if self.bias else None)
        gradients = (None if self.first else inside, *shapes[1:])
        name, back = "aten.convolution", (outside, inside, self.weight)
        return (
            self._op(name, FORWARD, shapes, (outside,), {**facts, "bias": self.bias}, position),
            self._op(f"{name}_backward", BACKWARD, back, gradients, facts | mask, 1000 - position),
        )


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """A fully connected layer over ``rows`` rows a sample."""

    cin: int
    cout: int
    rows: int = 1

    @property
    def parameters(self) -> int:
        return (self.cin + self.bias) * self.cout

    def shape(self, batch: int) -> tuple[int, ...]:
        return (batch * self.rows, self.cout)

    def forward(self, batch: int) -> list[Product]:
        return [Product(FORWARD, batch * self.rows, self.cout, self.cin)]

    def gradients(self, batch: int) -> list[Product]:
        rows = batch * self.rows
        return [
            Product("dgrad", rows, self.cin, self.cout),
            Product("wgrad", self.cout, self.cin, rows),
        ]

    def ops(self, batch: int, position: int, fused: bool) -> tuple[OpShape, ...]:
        x, y = (batch * self.rows, self.cin), self.shape(batch)
        weight = (self.cout, self.cin)
        operands = (x, weight[::-1])
        name, inputs = (
            ("aten.addmm", ((self.cout,), *operands)) if self.bias else ("aten.mm", operands)
        )
        data = self._op(
            "aten.mm", BACKWARD, (y, weight), (x,), {"role": "grad_input"}, 1000 - position
        )
        weights = self._op(
            "aten.mm", BACKWARD, (y[::-1], x), (weight,), {"role": "grad_weight"}, 1001 - position
        )
        return (
            self._op(name, FORWARD, inputs, (y,), {}, position),
            *([] if self.first else [data]),
            weights,
        )


@dataclass(frozen=True, slots=True)
class Lstm(Layer):
    """One layer, one direction, ``steps`` long. The initial state needs no gradient."""

    width: int
    hidden: int
    steps: int

    @property
    def parameters(self) -> int:
        return 4 * self.hidden * (self.width + self.hidden + 2 * self.bias)

    def shape(self, batch: int) -> tuple[int, ...]:
        return (self.steps, batch, self.hidden)

    def forward(self, batch: int) -> list[Product]:
        wide = 4 * self.hidden
        return [
            Product(FORWARD, self.steps * batch, wide, self.width),
            *[Product(FORWARD, batch, wide, self.hidden)] * self.steps,
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

    def ops(self, batch: int, position: int, fused: bool) -> tuple[OpShape, ...]:
        shapes = ((self.steps, batch, self.width),), (self.shape(batch),)
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
        needs = {"needs_input": not self.first, "needs_hidden": False, "needs_weight": True}
        return (
            self._op("perfctl.lstm", FORWARD, *shapes, facts, position),
            self._op("perfctl.lstm_backward", BACKWARD, *shapes, facts | needs, 1000 - position),
        )


@dataclass(frozen=True, slots=True)
class Attention(Layer):
    """Scaled dot-product attention of ``heads`` heads, ``length`` positions and ``depth``
    channels each."""

    heads: int
    length: int
    depth: int
    causal: bool = False

    def shape(self, batch: int) -> tuple[int, ...]:
        return (batch, self.heads, self.length, self.depth)

    def forward(self, batch: int) -> list[Product]:
        count = batch * self.heads
        return [
            Product("scores", self.length, self.length, self.depth, count),
            Product("values", self.length, self.depth, self.length, count),
        ]

    def gradients(self, batch: int) -> list[Product]:
        scores, values = self.forward(batch)
        return [scores, values, values, values]

    def ops(self, batch: int, position: int, fused: bool) -> tuple[OpShape, ...]:
        shape, name = self.shape(batch), "scaled_dot_product_attention"
        facts: dict[str, Any] = {"functional": name, "is_causal": self.causal}
        how = {"needs": [1, 1, 1], "backend": "flash" if fused else "math"}
        back, threes = f"perfctl.{name}_backward", (shape,) * 3
        return (
            self._op(f"perfctl.{name}", FORWARD, threes, (shape,), facts, position),
            self._op(back, BACKWARD, threes, threes, facts | how, 1000 - position),
        )


Network = tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything of a draw but its effects."""

    seed: int
    network: Network
    batches: tuple[int, ...]
    chip: str
    """Compute capability without the point."""
    precision: str
    train: bool
    ncu: str
    cutting: bool
    """Which half of the parameters is drawn: the second one is kept for a last check."""

    def random(self, *words: object) -> Random:
        """Return the generator for one purpose of this draw."""
        # reproducible draws, no secrets
        return Random(":".join(map(str, (self.seed, *words))))  # noqa: S311

    @property
    def path(self) -> str:
        """Return what the libraries compute in: fp32, tf32, fp16 or bf16."""
        return self.precision if self.precision != "tf32" or self.is_ampere else "fp32"

    @property
    def is_ampere(self) -> bool:
        """Return whether the chip is an Ampere or a newer one."""
        return int(self.chip) >= 80

    def layer(self, name: str) -> Any:
        return next(layer for layer in self.network if layer.name == name)

    def claims(self) -> list[Claim]:
        """Return all parts of all layers."""
        return [(layer.name, part) for layer in self.network for part in layer.parts(self.train)]
