"""What an operation of a traced step computes, in the shapes that derived counts need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from perfctl.orchestrator.analyse.derived.operators import pool_of
from perfctl.orchestrator.analyse.derived.records import AttentionShape, Rows, Work
from perfctl.orchestrator.analyse.flops.formulas import CONVOLUTIONS, LINEAR, Shape, integers, left_factor, shape_of
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape
from perfctl.records.paper import OpShape

CONVOLUTION_GRADIENTS = ("aten.convolution_backward", "aten.convolution_backward_overrideable")
BATCHED = ("aten.bmm", "aten.baddbmm")
_ATTENTION = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
              "_flash_attention", "_efficient_attention", "scaled_dot_product_attention")  # fmt: skip

_SUMS = ("sum", "mean")
_SOFTMAX = ("_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
_LAYER_NORM = ("native_layer_norm", "native_layer_norm_backward")
_BATCH_NORM = ("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit", "cudnn_batch_norm",
               "cudnn_batch_norm_backward", "_batch_norm_with_update", "batch_norm_backward")  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerWork:
    """All that one layer computes in one direction."""

    products: tuple[Work, ...]
    sizes: frozenset[int]
    """Elements of the tensors that its operations read and write: what an elementwise kernel works on."""
    rows: frozenset[Rows] = frozenset()
    """What its operations sum, normalise or pool."""


def layer_work(ops: Iterable[OpShape]) -> LayerWork:
    """The work of operations of one layer in one direction."""
    products: dict[Work, None] = {}
    sizes = set()
    rows = set()
    for op in ops:
        sizes |= {prod(shape) for shape in (*op.inputs, *op.outputs) if shape}
        products |= dict.fromkeys(works_of(op))
        if (found := rows_of(op) or pool_of(op)) is not None:
            rows.add(found)
    return LayerWork(tuple(products), frozenset(sizes), frozenset(rows))


def rows_of(op: OpShape) -> Rows | None:
    """What one operation sums, normalises or turns into probabilities; None where it does none of these."""
    name = op.op.removeprefix("aten.")
    source, output = shape_of(op.inputs, 0), shape_of(op.outputs, 0)
    if not source or not prod(source):
        return None
    if name in _SUMS and op.outputs and op.outputs[0] is not None:
        outputs = prod(output)
        return Rows("sum", outputs, prod(source) // outputs) if outputs and prod(source) % outputs == 0 else None
    if name in _SOFTMAX:
        return Rows("softmax", prod(source[:-1]), source[-1])
    if name in _LAYER_NORM:
        statistics = shape_of(op.outputs, 1) if name == "native_layer_norm" else shape_of(op.inputs, 2)
        rows = prod(statistics)
        learned = (1, 2) if name == "native_layer_norm" else (4,)  # weight and bias; weight
        affine = all(shape_of(op.inputs, place) for place in learned)
        return Rows("layer_norm", rows, prod(source) // rows, affine=affine) if statistics and rows else None
    if name in _BATCH_NORM and len(source) > 1:
        training = bool(op.attributes.get("training", op.attributes.get("train", True)))
        return Rows("batch_norm", source[1], prod(source) // source[1], training=training)
    return None


def works_of(op: OpShape) -> tuple[Work, ...]:
    """The products of one operation: none, one, or the gradients of a convolution."""
    output = shape_of(op.outputs, 0)
    if op.op in CONVOLUTION_GRADIENTS:
        return _gradients(op)
    if op.op in CONVOLUTIONS:
        source, weight, output = map(in_two_dimensions, (shape_of(op.inputs, 0), shape_of(op.inputs, 1), output))
        shape = conv_shape(op, source, weight, output)
        return (Work(shape, inside=_inside(op, source, weight, output)),) if shape else ()
    if op.op in LINEAR:
        left = left_factor(op)
        if not left or not output:
            return ()
        onto = op.op in ("aten.addmm", "aten._addmm_activation")
        return (Work(GemmShape(prod(output[:-1]), output[-1], left[-1]), onto=onto),)
    if op.op in BATCHED:
        left = left_factor(op)
        if len(left) != 3 or len(output) != 3:
            return ()
        return (Work(GemmShape(output[1], output[2], left[2], output[0]), onto=op.op == "aten.baddbmm"),)
    work = _attention(op)
    return (work,) if work else ()


def in_two_dimensions(shape: Shape) -> Shape:
    """PyTorch runs a 1-D convolution as one of height 1."""
    return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape


def conv_shape(op: OpShape, source: Shape, weight: Shape, output: Shape) -> ConvShape | None:
    """A 2-d convolution, forward; None for others and transposed ones."""
    if op.attributes.get("transposed") or not len(source) == len(weight) == len(output) == 4:
        return None
    groups = int(str(op.attributes.get("groups", 1)))
    same = set(integers(op, "stride")) == {1} and source[2:] == output[2:]
    return ConvShape(output[0], source[1], *output[1:], *weight[2:], groups, same_size=same)


def _inside(op: OpShape, source: Shape, weight: Shape, output: Shape) -> int | None:
    share = share_inside(op, source, weight, output)
    return None if share is None else round(share * output[0] * prod(output[2:]) * prod(weight))


def share_inside(op: OpShape, source: Shape, weight: Shape, output: Shape) -> float | None:
    """Taps of a 2-d convolution's filter that fall on the image, of all that paper counts; None when not known."""
    steps = [integers(op, name) for name in ("stride", "padding", "dilation")]
    whole = len(source) == len(weight) == len(output) == 4 and all(len(step) == 2 for step in steps)
    if op.attributes.get("transposed") or not whole:
        return None
    share = 1.0
    for at in (0, 1):
        stride, pad, dilation = (step[at] for step in steps)
        size, taps, outs = source[2 + at], weight[2 + at], output[2 + at]
        hits = sum(0 <= out * stride - pad + tap * dilation < size for out in range(outs) for tap in range(taps))
        share *= hits / (outs * taps) if outs and taps else 1.0
    return share


def _gradients(op: OpShape) -> tuple[Work, ...]:
    """Of a convolution: inputs are grad_output, input and weight. The gradient of the input, at stride 1, is a convolution
    with the channels exchanged; that of the weight multiplies channels out by filters, summed over all outputs."""
    grad, source, weight = (in_two_dimensions(shape_of(op.inputs, place)) for place in range(3))
    forward, strides = conv_shape(op, source, weight, grad), integers(op, "stride")
    if forward is None:
        return ()
    # where none is stated: an output as large as the input has stride 1
    stride = max(strides) if strides else 1 if source[2:] == grad[2:] else None
    forward = replace(forward, same_size=stride == 1 and source[2:] == grad[2:])
    inside = _inside(op, source, weight, grad)
    mask = integers(op, "output_mask") or tuple(int(shape is not None) for shape in op.outputs) or (1, 1)
    turned = replace(
        forward, in_channels=forward.out_channels, out_channels=forward.in_channels, out_h=source[2], out_w=source[3]
    )
    columns = forward.depth
    filters = GemmShape(forward.out_channels // forward.groups, columns, forward.pixels, forward.groups)
    both = (
        Work(turned, direction="grad_input", forward=forward, stride=stride, inside=inside),
        Work(filters, direction="grad_weight", forward=forward, stride=stride, inside=inside),
    )
    return tuple(work for work, wanted in zip(both, mask, strict=False) if wanted)


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
