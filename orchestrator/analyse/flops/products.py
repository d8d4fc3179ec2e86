"""Operations with multiply-adds: convolutions, matrix products, attention.

N batch, K output channels, C input channels, g groups, (O x) P x Q output positions, (T x) R x S kernel.
Source: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016, chapters 2 and 4.
"""

from __future__ import annotations

from math import prod

from perfctl.orchestrator.analyse.flops.terms import (
    Part,
    Shape,
    flag,
    integers,
    number,
    output_elements,
    part_of,
    shape_of,
    tensors_of,
    times,
    worked,
)
from perfctl.records.paper import OpShape

CONVOLUTIONS = ("aten.convolution", "aten._convolution", "aten.convolution_overrideable")
"""Every name of the forward operation."""
OUT_LETTERS = {1: ("P",), 2: ("P", "Q"), 3: ("O", "P", "Q")}
IN_LETTERS = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}
KERNEL_LETTERS = {1: ("R",), 2: ("R", "S"), 3: ("T", "R", "S")}


def _count(data: Shape, weight: Shape, result: Shape, transposed: bool) -> tuple[int, str]:
    """Multiply-adds of one pass, and their worked text: every position of the small map meets every weight once.

    For a convolution the positions are the output's, for a transposed one the input's. ``weight`` already has C/g
    (or K/g) in its second place, so groups need no further division.
    """
    positions = (data if transposed else result)[2:]
    rank = len(positions)
    macs = data[0] * prod(positions) * prod(weight)
    letters = (IN_LETTERS if transposed else OUT_LETTERS)[rank]
    channels = ("C", "K/g") if transposed else ("K", "C/g")
    names = " x ".join(("N", *letters, channels[0]))
    inner = " x ".join((channels[1], *KERNEL_LETTERS[rank]))
    left = times(data[0], *positions, weight[0])
    text = f"{names} x ({inner}) = {left} x ({times(*weight[1:])}) = {number(macs)} MAC = {number(2 * macs)} FLOP"
    return macs, text


def batched(shape: Shape, weight: Shape) -> Shape:
    """A map without a batch dimension counts as a batch of one."""
    return shape if len(shape) == len(weight) else (1, *shape)


def convolution(op: OpShape) -> tuple[Part, ...]:
    """Forward. The bias adds one elementwise FLOP for each output value."""
    weight = shape_of(op.inputs, 1)
    data, result = batched(shape_of(op.inputs, 0), weight), batched(shape_of(op.outputs, 0), weight)
    macs, text = _count(data, weight, result, flag(op, "transposed"))
    tensors, values = tensors_of(op), prod(result)
    return (Part("forward", macs, tensors.read(), tensors.write(), values, text, values if flag(op, "bias") else 0),)


def convolution_backward(op: OpShape) -> tuple[Part, ...]:
    """The gradients in output_mask: those of input and weight each cost as much as forward."""
    weight = shape_of(op.inputs, 2)
    grad, data = batched(shape_of(op.inputs, 0), weight), batched(shape_of(op.inputs, 1), weight)
    macs, text = _count(data, weight, grad, flag(op, "transposed"))
    tensors = tensors_of(op)
    mask = integers(op, "output_mask") or tuple(int(shape is not None) for shape in op.outputs)
    parts = []
    note = f"as forward: {text}"
    if mask[0]:
        parts.append(Part("grad_input", macs, tensors.read(0, 2), tensors.write(0), prod(data), note))
    if mask[1]:
        parts.append(Part("grad_weight", macs, tensors.read(0, 1), tensors.write(1), prod(weight), note))
    if len(mask) > 2 and mask[2]:
        values, channels = prod(grad), grad[1]
        note = f"sum of grad_output over batch and positions: {number(values)} additions, no multiply-adds"
        parts.append(Part("grad_bias", 0, tensors.read(0), tensors.write(2), channels, note, values))
    return tuple(parts)


ADDED = ("aten.addmm", "aten.addmm_", "aten._addmm_activation", "aten.baddbmm", "aten.baddbmm_", "aten.addmv")
"""Their first argument is added; the second and third are the factors."""
LINEAR = ("aten.addmm", "aten.mm", "aten.linear", "aten._addmm_activation")
"""What a Linear layer runs in its forward pass."""


def left_factor(op: OpShape) -> Shape:
    """Rows of a product; of addmm and its like the second argument."""
    return shape_of(op.inputs, 1 if op.op in ADDED else 0)


def _product(op: OpShape, first: int, second: int, elementwise: int = 0) -> tuple[Part, ...]:
    left, right = shape_of(op.inputs, first), shape_of(op.inputs, second)
    letters, factors = _factors(left, right)
    macs = prod(factors)
    return part_of(op, worked(letters, factors, macs), macs=macs, elementwise=elementwise)


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
    """linear(input, weight, bias) on devices that do not decompose it: rows x numel(weight)."""
    data, weight = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
    factors = (prod(data[:-1]), weight[-1], prod(weight[:-1]))
    macs, values, tensors = prod(factors), output_elements(op), tensors_of(op)
    bias = len(op.inputs) > 2 and op.inputs[2] is not None
    text = worked("rows x in x out", factors, macs)
    return (Part("forward", macs, tensors.read(), tensors.write(), values, text, values if bias else 0),)


def pairwise_distance(op: OpShape) -> tuple[Part, ...]:
    """cdist: B x P x R x M differences, squares and sums; no multiply-adds by convention."""
    left, right = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
    work = 3 * prod(left) * right[-2]
    return part_of(op, f"3 for each pair and coordinate: {work:,}", elementwise=work)


FUSED = ", fused kernel"


def _sizes(op: OpShape, first: int) -> tuple[int, int, int, int, int]:
    """B x h, Sq, Sk, E, V. Grouped-query attention works as if key and value were repeated to the query's heads."""
    query, key, value = (shape_of(op.inputs, first + place) for place in range(3))
    return prod(query[:-2]), query[-2], key[-2], query[-1], value[-1]


def _note(op: OpShape) -> str:
    return "; causal: the whole square is counted" if flag(op, "is_causal") else ""


def attention(op: OpShape) -> tuple[Part, ...]:
    """Forward; softmax and scaling count 5 + 1 elementwise FLOPs for each score."""
    heads, rows, columns, wide, deep = _sizes(op, 0)
    scores = heads * rows * columns
    macs = scores * (wide + deep)
    text = worked("B*h x Sq x Sk x (E + V)", (heads, rows, columns, wide + deep), macs) + _note(op)
    tensors = tensors_of(op)
    return (Part("forward", macs, tensors.read(), tensors.write(0), heads * rows * deep, text, 6 * scores),)


def _backward(op: OpShape, first: int, needs: tuple[int, ...], fused: bool) -> tuple[Part, ...]:
    heads, rows, columns, wide, deep = _sizes(op, first)
    scores = heads * rows * columns
    of_scores = bool(needs[0] or needs[1])
    depth = deep * (needs[2] + of_scores) + wide * (needs[0] + needs[1])
    macs = scores * depth
    names = " + ".join(name for name, need in zip(("dP", "dQ", "dK", "dV"), (of_scores, *needs), strict=True) if need)
    text = worked(f"{names}: B*h x Sq x Sk x depths", (heads, rows, columns, depth), macs) + _note(op)
    kept = tensors_of(op).read(first, first + 1, first + 2)
    parts = [Part("grad_input", macs, kept, kept, heads * rows * wide, text, 5 * scores)]
    if fused:
        again = scores * wide
        note = f"Q K^T again, because its scores were not kept: {number(again)} MAC = {number(2 * again)} FLOP"
        parts.append(Part("recompute", again, 0, 0, heads * rows * deep, note, 6 * scores, FUSED))
    return tuple(parts)


def attention_backward(op: OpShape) -> tuple[Part, ...]:
    """Backward as the recorder noted it, with the gradients that are needed.

    ``backend``: math or flash as a process ran it; "any" on paper, with the fused kernel's extra work in its own row.
    """
    return _backward(op, 0, integers(op, "needs") or (1, 1, 1), op.attributes.get("backend") in ("flash", "any"))


def fused_attention_backward(op: OpShape) -> tuple[Part, ...]:
    """A fused kernel's own backward operator: attention that was not called through torch.nn.functional."""
    return _backward(op, 1, (1, 1, 1), True)
