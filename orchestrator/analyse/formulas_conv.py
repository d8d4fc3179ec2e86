"""Convolutions in 1, 2, 3 dimensions: grouped, depthwise, dilated, strided, transposed.

N batch, K output channels, C input channels, g groups, (O x) P x Q output positions, (T x) R x S kernel.
Source: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016, chapters 2 and 4.
"""

from __future__ import annotations

from math import prod

from perfctl.orchestrator.analyse.worked import Part, Shape, flag, integers, number, shape_of, tensors_of, times
from perfctl.parsers.paper import OpShape

CONVOLUTIONS = ("aten.convolution", "aten._convolution", "aten.convolution_overrideable")
"""Every name of the forward operation."""
OUT_LETTERS = {1: ("P",), 2: ("P", "Q"), 3: ("O", "P", "Q")}
IN_LETTERS = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}
KERNEL_LETTERS = {1: ("R",), 2: ("R", "S"), 3: ("T", "R", "S")}
"""By the number of dimensions, in the order in which a tensor has them."""


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
    """Forward. Bias adds, one for each output value, stand under elementwise FLOPs."""
    weight = shape_of(op.inputs, 1)
    data, result = batched(shape_of(op.inputs, 0), weight), batched(shape_of(op.outputs, 0), weight)
    macs, text = _count(data, weight, result, flag(op, "transposed"))
    tensors = tensors_of(op)
    values = prod(result)
    return (Part("forward", macs, tensors.read(), tensors.write(), values, text, values if flag(op, "bias") else 0),)


def convolution_backward(op: OpShape) -> tuple[Part, ...]:
    """The gradients that were asked for (output_mask): each of input and weight costs what forward does."""
    weight = shape_of(op.inputs, 2)
    grad, data = batched(shape_of(op.inputs, 0), weight), batched(shape_of(op.inputs, 1), weight)
    macs, text = _count(data, weight, grad, flag(op, "transposed"))
    tensors = tensors_of(op)
    mask = integers(op, "output_mask") or tuple(int(shape is not None) for shape in op.outputs)
    parts = []
    if mask[0]:
        parts.append(Part("grad_input", macs, tensors.read(0, 2), tensors.write(0), prod(data), f"as forward: {text}"))
    if mask[1]:
        note = f"as forward: {text}"
        parts.append(Part("grad_weight", macs, tensors.read(0, 1), tensors.write(1), prod(weight), note))
    if len(mask) > 2 and mask[2]:
        values, channels = prod(grad), grad[1]
        note = f"sum of grad_output over batch and positions: {number(values)} additions, no multiply-adds"
        parts.append(Part("grad_bias", 0, tensors.read(0), tensors.write(2), channels, note, values))
    return tuple(parts)
