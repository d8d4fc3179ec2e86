"""Op shapes made by hand for the formulas' tests."""

from __future__ import annotations

from typing import Any

from perfctl.records.paper import OpShape

Shape = tuple[int, ...]


def op(
    name: str,
    inputs: tuple[Shape | None, ...],
    outputs: tuple[Shape | None, ...],
    *,
    direction: str = "forward",
    layer: str = "layer",
    kind: str = "Layer",
    dtype: str = "float32",
    **attributes: Any,
) -> OpShape:
    count = sum(shape is not None for shape in (*inputs, *outputs))
    return OpShape(
        layer, kind, name, direction, inputs, outputs, (dtype,) * count, attributes, 0, 1, 0
    )
