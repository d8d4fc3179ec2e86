"""What a bench keeps of a run beside its steps: the time of each layer, and figures from pen and paper."""

from __future__ import annotations

from typing import NamedTuple


class LayerTime(NamedTuple):
    """How long one layer took in one direction, in a step; from steps of their own, after the measured ones."""

    layer: str
    """Dotted module path; "(model)" where the model itself works between its layers."""
    kind: str
    """Class of the module."""
    direction: str
    """forward, backward (one node for both gradients), grad_input, grad_weight, recompute."""
    duration_ns: int
    """Median over the steps; what runs in layers within it is not in it."""
    low_ns: int
    """Of the fastest step."""
    high_ns: int
    """Of the slowest step."""
    steps: int


class Feature(NamedTuple):
    """One figure of a step that pen and paper gives: what a time is set against."""

    name: str
    """ "macs", "macs:Conv2d", "bytes", "layers", "parameters", ..."""
    value: float
    unit: str | None
    """None for a plain count."""
