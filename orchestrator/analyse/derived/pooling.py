"""PyTorch's kernels for pooling and dropout, whose work follows from the shapes of one operation.

Instructions of an output, a pair of an output and an input of its window, or an element, from the loops of their machine code in torch
2.14.1 (sm_80). None is verified on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import prod
from typing import NamedTuple

from perfctl.orchestrator.analyse.derived.records import Derived, Launch, Rows
from perfctl.orchestrator.analyse.flops.formulas import shape_of
from perfctl.records.paper import OpShape


class _Pool(NamedTuple):
    """(FFMA, FMUL, FADD) for each output and for each pair of an output and an input; what the operation is."""

    kind: str
    output: tuple[int, int, int]
    pair: tuple[int, int, int]


_TYPE = r"(?:float|c10::Half|c10::BFloat16)"
_KERNELS: tuple[tuple[re.Pattern[str], _Pool], ...] = (
    (re.compile(rf"avg_pool2d_out_cuda_frame<{_TYPE}"), _Pool("average_pool", (5, 0, 0), (0, 0, 1))),
    (re.compile(rf"avg_pool2d_backward_out_cuda_frame<{_TYPE}"), _Pool("average_pool", (0, 0, 0), (5, 0, 1))),
    (re.compile(rf"adaptive_average_pool<{_TYPE}"), _Pool("adaptive_pool", (10, 0, 0), (0, 0, 1))),
    (re.compile(rf"max_pool_backward_nchw<{_TYPE}"), _Pool("max_pool", (0, 0, 1), (0, 0, 0))),
)
_DROPOUT = re.compile(rf"fused_dropout_kernel_vec<{_TYPE}, ?float, ")
_AVERAGE = ("avg_pool2d", "avg_pool2d_backward")
_MAX = ("max_pool2d_with_indices", "max_pool2d_with_indices_backward")


def pooled(launch: Launch, shapes: Collection[Rows]) -> Derived | None:
    """The instructions of a pooling or dropout kernel; None where it is another, or its layer has no shape for it, or several."""
    if not shapes:
        return None
    pool = next((pool for pattern, pool in _KERNELS if pattern.search(launch.name)), None)
    kind = "dropout" if _DROPOUT.search(launch.name) else pool.kind if pool is not None else None
    mine = [shape for shape in shapes if shape.kind == kind]
    if kind is None or len(mine) != 1:
        return None
    outputs, window = mine[0].rows, mine[0].columns
    if pool is None:
        return _dropout(launch, outputs)
    ffma, fmul, fadd = (outputs * (one + window * pair) for one, pair in zip(pool.output, pool.pair, strict=True))
    rule = f"{outputs:,} outputs of {window:,} inputs, from the machine code of torch 2.14.1"
    return Derived(kind.replace("_", " "), rule, ffma, fmul, fadd)


def _dropout(launch: Launch, elements: int) -> Derived | None:
    """A random number and two products for each element, a reciprocal in each thread."""
    if launch.grid is None or launch.block is None:
        return None
    threads = launch.grid[0] * launch.block[0]
    rule = f"1 FFMA and 2 FMUL for each of {elements:,} elements, from the machine code of torch 2.14.1"
    return Derived("dropout", rule, elements + 2 * threads, 2 * elements, threads)


def pool_of(op: OpShape) -> Rows | None:
    """Outputs and inputs of a window of a pooling operation, elements of a dropout; None where windows differ in size."""
    name = op.op.removeprefix("aten.")
    output = shape_of(op.outputs, 0)
    if name == "native_dropout" and output:
        return Rows("dropout", prod(output), 1)
    if name == "_adaptive_avg_pool2d":
        source = shape_of(op.inputs, 0)
        if len(source) < 3 or any(whole % part for whole, part in zip(source[-2:], output[-2:], strict=True)):
            return None
        return Rows("adaptive_pool", prod(output), prod(source) // prod(output))
    if name in _MAX:  # an output's gradient goes to one input
        return Rows("max_pool", prod(shape_of(op.inputs, 0) if name.endswith("_backward") else output), 1)
    return _average(op, name.endswith("_backward")) if name in _AVERAGE else None


def _average(op: OpShape, backward: bool) -> Rows | None:
    """Without padding and where no window leaves the image: all are of the same size."""
    outputs, inputs = (shape_of(op.inputs, place) for place in (0, 1)) if backward else (op.outputs[0], op.inputs[0])
    window = _pair(op.attributes, "kernel_size")
    stride = _pair(op.attributes, "stride") or window
    if not outputs or not inputs or len(window) != 2 or any(_pair(op.attributes, "padding")):
        return None
    ends = ((count - 1) * step + size for count, step, size in zip(outputs[-2:], stride, window, strict=True))
    inside = all(end <= whole for end, whole in zip(ends, inputs[-2:], strict=True))
    return Rows("average_pool", prod(outputs), prod(window)) if inside else None


def _pair(attributes: Mapping[str, object], name: str) -> tuple[int, ...]:
    found = attributes.get(name)
    if isinstance(found, int):
        return (found, found)
    return (
        tuple(int(str(size)) for size in found) * (2 // len(found)) if isinstance(found, list | tuple) and found else ()
    )
