"""scaled_dot_product_attention, whatever kernel computes it.

B batch, h query heads, Sq and Sk positions of query and key, E size of a query, V size of a value.
Forward is Q K^T and the weights times V. Backward is dV, dP, dQ and dK: twice forward; a fused (flash) kernel
does not keep the scores and computes Q K^T again, which stands under recompute: 2.5 x forward in all.
A causal mask halves nothing unless the kernel skips masked blocks.
Source: Vaswani et al., 2017, section 3.2.1; Dao et al., "FlashAttention", 2022, algorithm 4.
"""

from __future__ import annotations

from math import prod

from perfctl.orchestrator.analyse.worked import Part, Shape, flag, integers, number, shape_of, tensors_of, worked
from perfctl.parsers.paper import OpShape

FUSED = ", fused kernel"
"""Label of what only a fused kernel computes."""


def _sizes(query: Shape, key: Shape, value: Shape) -> tuple[int, int, int, int, int]:
    """B x h, Sq, Sk, E, V. Grouped-query attention works as if key and value were repeated to the query's heads."""
    return prod(query[:-2]), query[-2], key[-2], query[-1], value[-1]


def _note(op: OpShape) -> str:
    return "; causal: the whole square is counted" if flag(op, "is_causal") else ""


def _shapes(op: OpShape, first: int) -> tuple[int, int, int, int, int]:
    return _sizes(shape_of(op.inputs, first), shape_of(op.inputs, first + 1), shape_of(op.inputs, first + 2))


def attention(op: OpShape) -> tuple[Part, ...]:
    """Forward; softmax and scaling stand under elementwise FLOPs (5 + 1 for each score)."""
    heads, rows, columns, wide, deep = _shapes(op, 0)
    macs = heads * rows * columns * (wide + deep)
    text = worked("B*h x Sq x Sk x (E + V)", (heads, rows, columns, wide + deep), macs) + _note(op)
    tensors = tensors_of(op)
    scores = heads * rows * columns
    values = heads * rows * deep
    return (Part("forward", macs, tensors.read(), tensors.write(0), values, text, 6 * scores),)


def _backward(op: OpShape, first: int, needs: tuple[int, ...], fused: bool) -> tuple[Part, ...]:
    heads, rows, columns, wide, deep = _shapes(op, first)
    scores = heads * rows * columns
    scores_needed = needs[0] or needs[1]
    depth = deep * needs[2] + deep * bool(scores_needed) + wide * needs[0] + wide * needs[1]
    names = [name for name, need in zip(("dQ", "dK", "dV"), needs, strict=True) if need]
    macs = scores * depth
    products = " + ".join((["dP"] if scores_needed else []) + names)
    text = worked(f"{products}: B*h x Sq x Sk x depths", (heads, rows, columns, depth), macs) + _note(op)
    tensors = tensors_of(op)
    kept = tensors.read(first, first + 1, first + 2)
    values = heads * rows * deep
    parts = [Part("grad_input", macs, kept, kept, heads * rows * wide, text, 5 * scores)]
    if fused:
        again = scores * wide
        note = f"Q K^T once more, for its scores were not kept: {number(again)} MAC = {number(2 * again)} FLOP"
        parts.append(Part("recompute", again, 0, 0, values, note, 6 * scores, FUSED))
    return tuple(parts)


def attention_backward(op: OpShape) -> tuple[Part, ...]:
    """Backward of the recorder's own attention record: which of query, key, value need a gradient is known.

    ``backend``: math or flash as a real process ran it; "any" on paper, where the fused kernel's part is shown beside.
    """
    needs = integers(op, "needs") or (1, 1, 1)
    return _backward(op, 0, needs, op.attributes.get("backend") in ("flash", "any"))


def fused_attention_backward(op: OpShape) -> tuple[Part, ...]:
    """A fused kernel's own backward operator, where attention was not called through torch.nn.functional."""
    return _backward(op, 1, (1, 1, 1), True)
