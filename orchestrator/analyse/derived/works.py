"""What an operation of a traced step computes, in the shapes that derived counts need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from perfctl.orchestrator.analyse.derived.records import AttentionShape, ConvGradients, Work
from perfctl.orchestrator.analyse.flops.formulas import CONVOLUTIONS, LINEAR, left_factor, shape_of
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape
from perfctl.records.paper import OpShape

BATCHED = ("aten.bmm", "aten.baddbmm")
_ATTENTION = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
              "_flash_attention", "_efficient_attention", "scaled_dot_product_attention")  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerWork:
    """All that one layer computes in one direction."""

    products: tuple[Work, ...]
    sizes: frozenset[int]
    """Elements of the tensors that its operations read and write: what an elementwise kernel works on."""


def layer_work(ops: Iterable[OpShape]) -> LayerWork:
    """The work of operations of one layer in one direction."""
    products: dict[Work, None] = {}
    sizes = set()
    for op in ops:
        sizes |= {prod(shape) for shape in (*op.inputs, *op.outputs) if shape}
        work = work_of(op)
        if work is not None:
            products[work] = None
    return LayerWork(tuple(products), frozenset(sizes))


def work_of(op: OpShape) -> Work | None:
    """The product of one operation, or both gradients of a convolution; None where it has none."""
    output = shape_of(op.outputs, 0)
    if op.op == "aten.convolution_backward":
        return _gradients(op)
    if op.op in CONVOLUTIONS:
        source, weight = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
        source, weight, output = (in_two_dimensions(shape) for shape in (source, weight, output))
        if op.attributes.get("transposed") or not len(source) == len(weight) == len(output) == 4:
            return None
        groups = int(str(op.attributes.get("groups", 1)))
        return Work(ConvShape(output[0], source[1], *output[1:], *weight[2:], groups))
    if op.op in LINEAR:
        left = left_factor(op)
        if not left or not output:
            return None
        return Work(
            GemmShape(prod(output[:-1]), output[-1], left[-1]), onto=op.op in ("aten.addmm", "aten._addmm_activation")
        )
    if op.op in BATCHED:
        left = left_factor(op)
        if len(left) != 3 or len(output) != 3:
            return None
        return Work(GemmShape(output[1], output[2], left[2], output[0]), onto=op.op == "aten.baddbmm")
    return _attention(op)


def in_two_dimensions(shape: tuple[int, ...]) -> tuple[int, ...]:
    """PyTorch runs a 1-D convolution as one of height 1."""
    return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape


def _gradients(op: OpShape) -> Work | None:
    grad, source, weight = (in_two_dimensions(shape_of(op.inputs, place)) for place in range(3))
    if op.attributes.get("transposed") or not len(grad) == len(source) == len(weight) == 4 or source[1] != weight[1]:
        return None
    return Work(ConvGradients(source[0], source[1], weight[0], *source[2:], *grad[2:], *weight[2:]))


def _attention(op: OpShape) -> Work | None:
    name = op.op.removeprefix("aten.").removesuffix("_backward").removesuffix("_forward")
    if name not in _ATTENTION:
        return None
    backward = op.op.endswith("_backward")
    query, key, value = (shape_of(op.inputs, place + backward) for place in range(3))
    if not len(query) == len(key) == len(value) == 4:
        return None
    return Work(AttentionShape(
        query[0], query[1], query[2], key[2], query[3], value[3], bool(op.attributes.get("is_causal")), backward
    ))  # fmt: skip
