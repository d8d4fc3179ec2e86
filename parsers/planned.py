"""The plan of a network, layer by layer: ``perfctl.workloads.plan`` makes it, the model is built from it, and its
FLOPs are calculated from it. Sizes are of one sample; 1 multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Shape = tuple[int, int, int]
"""Channels, height, width; features, 1, 1 where an image has been flattened."""

KINDS = ("conv", "linear", "norm", "activation", "max_pool", "mean_pool", "add", "concat", "flatten")


class PlanLayer(NamedTuple):
    """One layer of a plan. What it computes follows from these numbers alone."""

    name: str
    """Dotted path of the module."""
    kind: str
    """One of KINDS."""
    of: tuple[int, ...]
    """Numbers of the layers whose outputs it takes, from 0 in the plan's order; -1 is the network's input."""
    given: Shape
    """Of its (first) input."""
    gives: Shape
    kernel: int = 1
    """Width of the window: square."""
    stride: int = 1
    padding: int = 0
    bias: bool = False

    @property
    def inputs(self) -> int:
        """Elements that it reads, of all its inputs. A concatenation and an addition read what they give."""
        if self.kind == "concat":
            return self.outputs
        return _product(self.given) * len(self.of)

    @property
    def outputs(self) -> int:
        return _product(self.gives)

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass; 0 for what multiplies no matrix."""
        if self.kind not in ("conv", "linear"):
            return 0
        return self.outputs * self.given[0] * self.kernel * self.kernel

    @property
    def parameters(self) -> int:
        """Trainable elements."""
        if self.kind == "norm":
            return 2 * self.given[0]
        if self.kind not in ("conv", "linear"):
            return 0
        return self.gives[0] * (self.given[0] * self.kernel * self.kernel + self.bias)


@dataclass(frozen=True, slots=True)
class Plan:
    """One point of a family."""

    spec: str
    """Full specification: family and its parameters that differ from the default, in the family's order."""
    family: str
    settings: dict[str, int | str]
    """Every parameter of the family, defaults too."""
    layers: tuple[PlanLayer, ...]

    @property
    def given(self) -> Shape:
        """The network's input: channels, height, width."""
        return int(self.settings["channels"]), int(self.settings["image"]), int(self.settings["image"])

    @property
    def classes(self) -> int:
        return int(self.settings["classes"])

    @property
    def optimizer(self) -> str:
        """sgd, momentum or adam."""
        return str(self.settings["optimizer"])

    @property
    def macs(self) -> int:
        """Multiply-adds of one sample's forward pass."""
        return sum(layer.macs for layer in self.layers)

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)


def _product(shape: Shape) -> int:
    return shape[0] * shape[1] * shape[2]
