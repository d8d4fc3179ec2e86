"""Matrix products: Linear on any rank, matmul, @, einsum, bmm. M x K times K x N is M x K x N multiply-adds.

Which gradient a product in backward is (of the input or of the weight) the recorder has seen: grad_input has the
weight among its operands. Source: Goodfellow, Bengio, Courville, "Deep Learning", 2016, section 6.5.6.
"""

from __future__ import annotations

from math import prod

from perfctl.orchestrator.analyse.worked import (
    Part,
    Shape,
    direction_of,
    output_elements,
    shape_of,
    tensors_of,
    worked,
)
from perfctl.parsers.paper import OpShape

ADDED = (
    "aten.addmm", "aten.addmm_", "aten._addmm_activation", "aten.baddbmm", "aten.baddbmm_", "aten.addmv",
)  # fmt: skip
"""Their first argument is what is added, the factors are the second and third."""
LINEAR = ("aten.addmm", "aten.mm", "aten.linear", "aten._addmm_activation")
"""What a Linear layer runs in its forward pass."""


def left_factor(op: OpShape) -> Shape:
    """Rows of a product; of addmm and its like the second argument."""
    return shape_of(op.inputs, 1 if op.op in ADDED else 0)


def _product(op: OpShape, first: int, second: int, elementwise: int = 0) -> tuple[Part, ...]:
    left, right = shape_of(op.inputs, first), shape_of(op.inputs, second)
    letters, factors = _factors(left, right)
    macs = prod(factors)
    tensors = tensors_of(op)
    text = worked(letters, factors, macs)
    return (Part(direction_of(op), macs, tensors.read(), tensors.write(), output_elements(op), text, elementwise),)


def _factors(left: Shape, right: Shape) -> tuple[str, tuple[int, ...]]:
    """Letters and numbers for (M,K)(K,N), (B,M,K)(B,K,N), (M,K)(K) and (K)(K)."""
    if len(left) == 1:
        return "K", left
    if len(right) == 1:
        return "M x K", left
    if len(left) == 2:
        return "M x K x N", (left[0], left[1], right[-1])
    return "B x M x K x N", (prod(left[:-2]), left[-2], left[-1], right[-1])


def matrix_product(op: OpShape) -> tuple[Part, ...]:
    """mm, bmm, mv, dot: both factors are the first two arguments."""
    return _product(op, 0, 1)


def added_product(op: OpShape) -> tuple[Part, ...]:
    """addmm, baddbmm, addmv: bias + left @ right; the additions stand under elementwise FLOPs."""
    return _product(op, 1, 2, output_elements(op))


def linear(op: OpShape) -> tuple[Part, ...]:
    """linear(input, weight, bias) where a device keeps it whole: rows x numel(weight)."""
    data, weight = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
    rows = prod(data[:-1])
    factors = (rows, weight[-1], prod(weight[:-1]))
    macs = prod(factors)
    tensors = tensors_of(op)
    bias = len(op.inputs) > 2 and op.inputs[2] is not None
    values = output_elements(op)
    text = worked("rows x in x out", factors, macs)
    return (Part("forward", macs, tensors.read(), tensors.write(), values, text, values if bias else 0),)


def pairwise_distance(op: OpShape) -> tuple[Part, ...]:
    """cdist: B x P x R x M differences, squares and sums; no multiply-adds by convention."""
    left, right = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
    work = 3 * prod(left) * right[-2]
    tensors = tensors_of(op)
    text = f"3 for each pair and coordinate: {work:,}"
    return (Part(direction_of(op), 0, tensors.read(), tensors.write(), output_elements(op), text, work),)
