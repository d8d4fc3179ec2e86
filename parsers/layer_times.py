"""Records of a bench beside its steps: times of layers, and figures calculated from shapes."""

from __future__ import annotations

from typing import NamedTuple


class LayerTime(NamedTuple):
    """Time of one layer in one direction in a step; measured in separate steps after the measured ones."""

    layer: str
    """Dotted module path; "(model)" for work of the model itself between its layers."""
    kind: str
    """Class of the module."""
    direction: str
    """forward, backward (one node for both gradients), grad_input, grad_weight, recompute."""
    duration_ns: int
    """Median over the steps, without the layers inside it."""
    low_ns: int
    """Of the fastest step."""
    high_ns: int
    """Of the slowest step."""
    steps: int


class Feature(NamedTuple):
    """One figure of a step calculated from shapes, such as FLOPs: a predictor of its time."""

    name: str
    """ "macs", "macs:Conv2d", "bytes", "layers", "parameters", ..."""
    value: float
    unit: str | None
    """None for a plain count."""
