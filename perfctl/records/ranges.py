"""Names of perfctl's ranges and how to read them: layers, directions, steps, phases."""

from __future__ import annotations

from typing import NamedTuple

DIRECTIONS = (
    "forward",
    "grad_input",
    "grad_weight",
    "grad_bias",
    "backward",
    "optimizer",
    "recompute",
)
"""``backward`` is grad_input and grad_weight together; ``recompute`` is forward work done again
during backward."""

RANGE_PREFIX = "perfctl:"
"""Ranges of the loop itself: perfctl:window, perfctl:step:3, perfctl:phase:forward. Layer ranges
are "<layer>:<direction>"."""


class RangeName(NamedTuple):
    """Contents of a perfctl range name; all None for other ranges."""

    layer: str | None = None
    direction: str | None = None
    step: int | None = None
    phase: str | None = None


def parse_range_name(name: str) -> RangeName:
    """ "conv2:backward" -> layer and direction; "perfctl:step:3" -> step; "perfctl:phase:forward"
    -> phase."""
    if name.startswith(RANGE_PREFIX):
        key, _, value = name[len(RANGE_PREFIX) :].partition(":")
        if key == "step" and value.isdecimal() and len(value) < 19:
            return RangeName(step=int(value))
        if key == "phase" and value:
            return RangeName(phase=value)
        return RangeName()
    layer, colon, direction = name.rpartition(":")
    # "Conv2d::forward" is a C++ name
    if colon and layer and direction in DIRECTIONS and not layer.endswith(":"):
        return RangeName(layer=layer, direction=direction)
    return RangeName()
