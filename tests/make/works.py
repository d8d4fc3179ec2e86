"""Operations of one sample, made from their sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfctl.orchestrator.predict.operations import Operation
from perfctl.orchestrator.predict.step_parts import PARTS


def product(
    kind: str,
    rows: float,
    columns: float,
    depth: float,
    inputs: float,
    outputs: float,
    weights: float = 0,
    *,
    layer: str = "l",
    calls: int = 1,
    groups: float = 1,
    **window: Any,
) -> Operation:
    """rows x columns x depth multiply-adds for each group."""
    macs = groups * rows * columns * depth
    sizes = rows, columns, depth, groups
    return Operation(layer, kind, calls, macs, inputs, outputs, weights, *sizes, **window)


def moving(kind: str, inputs: float, outputs: float, weights: float = 0, **more: Any) -> Operation:
    """No product."""
    return product(kind, 0, 0, 0, inputs, outputs, weights, **more)


def by_part(figures: Iterable[float]) -> dict[str, float]:
    """A figure for each part of a step, under its name."""
    return dict(zip(PARTS, figures, strict=True))
