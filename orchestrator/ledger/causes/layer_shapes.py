"""What a forward pass says about a layer's product: its shape, and what a kernel may skip."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

from perfctl.orchestrator.counts.derived.records import AttentionShape
from perfctl.orchestrator.counts.derived.run import (
    compute_macs_share_inside_image,
    list_gemm_conv_attention_work,
    read_forward_conv2d_shape,
)
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.estimate.flops.formulas import (
    CONVOLUTIONS,
    LINEAR,
    get_left_factor_shape,
    get_shape_or_empty,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import OpShape

Shape = ConvShape | GemmShape


@dataclass(frozen=True, kw_only=True)
class LayerShapes:
    """What a layer's forward pass says about its product."""

    forward: Shape | None = None
    """Shape of the product."""
    calls: int = 1
    """How often the step runs the product."""
    causal: tuple[int, int] | None = None
    """(queries, keys) of attention with a causal mask, whose estimate is the full square; None for
    other layers."""
    upsampled: float | None = None
    """FLOPs of a strided convolution's input gradient as a product over every input, zeros
    inserted; None for others."""
    inside: float | None = None
    """Share of a convolution's multiply-adds that do not fall on its padding; None if not known."""
    image: tuple[int, int] | None = None
    """Height and width of what a convolution of stride 1 reads, which the gradient of its input
    has; None for others."""
    transposed: ConvShape | None = None
    """Convolution that computes the gradient of a transposed one's input; None for others."""
    attention: tuple[AttentionShape, ...] = ()
    """Of a layer that calls attention once: forward, and backward."""


def read_single_product_layer_shapes(ops: Collection[OpShape]) -> dict[str, LayerShapes]:
    """Return layer -> facts of its product in the forward pass, for layers that run exactly one,
    however often."""
    products = (
        op
        for op in ops
        if op.direction == "forward"
        and (op.op in (*CONVOLUTIONS, *LINEAR) or op.attributes.get("is_causal"))
    )
    by_layer = group_by(products, lambda op: op.layer)
    facts = {
        layer: _read_operator_shapes(op)
        for layer, (op, *other_ops) in by_layer.items()
        if not other_ops
    }
    shapes = [
        (op.layer, work.shape)
        for op in ops
        for work in list_gemm_conv_attention_work(op)
        if isinstance(work.shape, AttentionShape) and op.calls == 1
    ]
    for layer, pairs in group_by(shapes, lambda pair: pair[0]).items():
        attention = tuple(shape for _, shape in pairs)
        if len({shape.backward for shape in attention}) == len(attention):
            facts[layer] = replace(facts.get(layer, LayerShapes()), attention=attention)
    return facts


def _read_operator_shapes(op: OpShape) -> LayerShapes:
    """Return the facts of a convolution, a Linear layer, or attention with a causal mask."""
    source, weight, output = (
        get_shape_or_empty(op.inputs, 0),
        get_shape_or_empty(op.inputs, 1),
        get_shape_or_empty(op.outputs, 0),
    )
    if op.op in LINEAR:
        left_shape = get_left_factor_shape(op)
        is_known = bool(left_shape and output)
        product = GemmShape(prod(output[:-1]), output[-1], left_shape[-1]) if is_known else None
        return LayerShapes(forward=product, calls=op.calls)
    if op.op not in CONVOLUTIONS:
        # of attention: queries and keys
        is_known = len(source) > 2 and len(weight) > 2 and "scores" not in op.attributes
        return LayerShapes(causal=(source[-2], weight[-2]) if is_known else None)
    forward, stride = (
        read_forward_conv2d_shape(op, source, weight, output),
        op.attributes.get("stride"),
    )
    strides = set(stride) if isinstance(stride, (list, tuple)) else set()
    upsampled = None
    is_transposed, transposed = op.attributes.get("transposed"), None
    is_plain = not is_transposed and len(source) == len(weight) == 4
    if is_transposed:
        plain_op = replace(op, attributes={**op.attributes, "transposed": False})
        transposed = read_forward_conv2d_shape(plain_op, output, weight, source)
    if is_plain and strides and strides != {1}:
        upsampled = 2.0 * op.calls * source[0] * prod(source[2:]) * prod(weight)
    return LayerShapes(
        forward=forward,
        calls=op.calls,
        inside=compute_macs_share_inside_image(op, source, weight, output),
        upsampled=upsampled,
        transposed=transposed,
        image=(source[2], source[3]) if forward is not None and strides == {1} else None,
    )
