"""How well a launch fits a layer in one direction: by family, stated direction, and the blocks its shape asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

from perfctl.orchestrator.analyse.algorithms import Algorithm
from perfctl.parsers.paper import LayerCall
from perfctl.parsers.records import Kernel

GRADIENTS = ("grad_input", "grad_weight")
_BAD, _FITS, _SURE = -4.0, 1.0, 2.0
_HINT = 0.5
_LOOSE, _PADDED = 4.0, 16.0
"""How much larger a grid, and the area under all tiles, may be than the shape asks for."""
_LETTERS = {"forward": "tn", "grad_input": "nn", "grad_weight": "nt"}
"""Which operands BLAS is told to transpose in the products of a Linear layer, as torch calls it."""


class LayerItem(NamedTuple):
    """One layer in one direction, as the step should come to it."""

    layer: str
    direction: str
    families: frozenset[str]
    outputs: int | None
    product: tuple[int, int] | None
    """Rows and columns of the product that it is; None when its shape does not follow."""


def items_of(calls: Sequence[LayerCall], first: str) -> list[LayerItem]:
    """What one step comes to, in order; of a layer's two gradients ``first`` is first."""
    last = {call.layer: call.position or 0 for call in calls if call.direction == GRADIENTS[0]}

    def place(call: LayerCall) -> tuple[int, bool]:
        own = call.position or 0
        return last.get(call.layer, own) if call.direction in GRADIENTS else own, call.direction != first

    wanted = ("forward", "recompute", *GRADIENTS, "backward")
    return [
        LayerItem(call.layer, call.direction, _families(call.kind), _each(call), _product(call))
        for call in sorted(calls, key=place)
        if call.macs and call.layer and call.direction in wanted
        for _ in range(call.calls)
    ]


def _each(call: LayerCall) -> int | None:
    return call.output_elements // call.calls if call.output_elements else None


def _product(call: LayerCall) -> tuple[int, int] | None:
    """Of a product with a weight: its two sides without the one that is summed over, where the parameters tell them."""
    if not (call.macs and call.output_elements and call.parameters):
        return None
    outputs, depth = call.output_elements // call.calls, call.macs // call.output_elements
    linear = _families(call.kind) == {"gemm"}
    if call.direction == "forward":
        columns = _whole(call.parameters, depth + 1) or _whole(call.parameters, depth)  # with a bias, without
        return (outputs // columns, columns) if columns and not outputs % columns else None
    if call.direction == "grad_input" and linear:
        with_bias = _whole(call.parameters, depth)
        columns = next((c for c in ((with_bias or 0) - 1, with_bias or 0) if c > 0 and not outputs % c), None)
        return (outputs // columns, columns) if columns else None
    if call.direction == "grad_weight" and linear:
        rows = call.parameters - outputs
        return (rows, outputs // rows) if rows > 0 and not outputs % rows else None
    return None


def _whole(number: int, divisor: int) -> int | None:
    return number // divisor if divisor > 0 and not number % divisor else None


def _families(kind: str) -> frozenset[str]:
    lowered = kind.lower()
    if "conv" in lowered:
        return frozenset({"conv", "winograd", "fft", "depthwise", "gemm"})
    if any(word in lowered for word in ("lstm", "gru", "rnn")):
        return frozenset({"rnn", "gemm"})
    if "attention" in lowered:
        return frozenset({"attention", "gemm"})
    return frozenset({"gemm"})


def fits(launches: Sequence[Kernel], items: Sequence[LayerItem], known: Mapping[str, Algorithm]) -> list[list[float]]:
    """How well each launch fits each item; launches alike share a row."""
    rows: dict[tuple[object, ...], list[float]] = {}
    found = []
    for kernel in launches:
        key = (kernel.name, kernel.grid_x, kernel.grid_y, kernel.grid_z)
        if key not in rows:
            rows[key] = [_fit(kernel, known[kernel.name], item) for item in items]
        found.append(rows[key])
    return found


def _fit(kernel: Kernel, algorithm: Algorithm, item: LayerItem) -> float:
    if algorithm.family not in item.families:
        return _BAD
    score = _FITS
    if algorithm.direction is not None and item.direction in ("forward", *GRADIENTS):
        score += _SURE if algorithm.direction == item.direction else _BAD
    if item.families == {"gemm"} and (letters := _ending(kernel.name)) and item.direction in _LETTERS:
        score += _HINT if letters == _LETTERS[item.direction] else -2 * _HINT
    return score + _shape(kernel, algorithm, item)


def _shape(kernel: Kernel, algorithm: Algorithm, item: LayerItem) -> float:
    """By the blocks that tiles of the kernel's name ask for; by the outputs that all tiles cover where sides are unknown.

    The grid's third side may be split-K or a batch: it is taken both ways.
    """
    if algorithm.tile is None or kernel.grid_x is None or not item.outputs:
        return 0.0
    m, n, _ = algorithm.tile
    flat = kernel.grid_x * (kernel.grid_y or 1)
    blocks = {flat, flat * (kernel.grid_z or 1)}
    if item.product is not None:
        wanted = {ceil(item.product[0] / a) * ceil(item.product[1] / b) for a, b in ((m, n), (n, m))}
        if wanted & blocks:
            return _SURE
        return 0.0 if any(w / _LOOSE <= block <= w * _LOOSE for w in wanted for block in blocks) else _BAD
    ratios = [block * m * n / item.outputs for block in blocks]
    if any(0.99 <= ratio <= 1.5 for ratio in ratios):
        return _FITS
    return 0.0 if any(0.99 <= ratio <= _PADDED for ratio in ratios) or flat <= 2 else _BAD


def _ending(name: str) -> str:
    found = re.search(r"_(nn|nt|tn|tt)(?![a-z])", name)
    return found[1] if found else ""
