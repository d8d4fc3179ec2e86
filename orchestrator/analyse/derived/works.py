"""What an operation of a traced step computes, in the shapes that derived counts need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from perfctl.orchestrator.analyse.derived.pooling import pool_of
from perfctl.orchestrator.analyse.derived.records import AttentionShape, Rows, Work
from perfctl.orchestrator.analyse.flops.formulas import CONVOLUTIONS, LINEAR, left_factor, shape_of
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape
from perfctl.records.paper import OpShape

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
        work = work_of(op)
        if work is not None:
            products[work] = None
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


def work_of(op: OpShape) -> Work | None:
    """The product of one operation; None where it has none, or several (the gradients of a convolution)."""
    output = shape_of(op.outputs, 0)
    if op.op in CONVOLUTIONS:
        source, weight = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
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
