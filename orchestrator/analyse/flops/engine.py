"""FLOPs on paper: shapes in, one row for each layer and direction out.

All operations of a torch.nn layer form one row per direction. A functional operation is a row of its parent module, with
its own name as kind. An operation without a formula is a row whose ``macs`` is None and whose formula says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from perfctl.orchestrator.analyse.flops import plain, products, rnn
from perfctl.orchestrator.analyse.flops.products import FUSED
from perfctl.orchestrator.analyse.flops.terms import Formula, Part, number, shape_of, tensors_of
from perfctl.records.paper import LayerCall, OpShape


def _aten(formula: Formula, names: str) -> dict[str, Formula]:
    return {f"aten.{name}": formula for name in names.split()}


_FUSED_ATTENTION = tuple(f"_scaled_dot_product_{name}" for name in (
    "flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention",
))  # fmt: skip

PRODUCTS: dict[str, Formula] = {
    **dict.fromkeys(products.CONVOLUTIONS, products.convolution),
    **_aten(products.convolution_backward, "convolution_backward convolution_backward_overrideable"),
    **_aten(products.matrix_product, "mm bmm mv dot vdot _int_mm _scaled_mm"),
    **dict.fromkeys(products.ADDED, products.added_product),
    "aten.linear": products.linear,
    **dict.fromkeys(("perfctl.lstm", "perfctl.gru", "perfctl.rnn"), rnn.recurrent),
    **dict.fromkeys(("perfctl.lstm_backward", "perfctl.gru_backward", "perfctl.rnn_backward"), rnn.recurrent_backward),
    "perfctl.scaled_dot_product_attention": products.attention,
    "perfctl.scaled_dot_product_attention_backward": products.attention_backward,
    **_aten(products.attention, " ".join(_FUSED_ATTENTION)),
    **_aten(products.fused_attention_backward, " ".join(f"{name}_backward" for name in _FUSED_ATTENTION)),
}

NORMS: dict[str, Formula] = {
    **_aten(plain.batch_norm, "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit"),
    **_aten(plain.per_output(4), "_native_batch_norm_legit_no_training _softmax_backward_data _log_softmax_backward_data "
            "_weight_norm_interface"),
    **_aten(plain.per_output(8), "_batch_norm_with_update native_layer_norm native_group_norm"),
    **_aten(plain.norm_backward, "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward "
            "batch_norm_backward native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward "
            "_weight_norm_interface_backward"),
    **_aten(plain.per_output(5), "_fused_rms_norm _softmax _safe_softmax _log_softmax"),
    "aten.linalg_vector_norm": plain.per_input(2),
}  # fmt: skip

POOLING: dict[str, Formula] = {
    **_aten(plain.pooling, "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d"),
    **_aten(plain.per_output(1), "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
            "_adaptive_avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward"),
    **_aten(plain.per_input(1), "max_pool2d_with_indices_backward max_pool3d_with_indices_backward _adaptive_avg_pool2d "
            "_adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d"),
}  # fmt: skip

SAMPLING: dict[str, Formula] = {
    **_aten(plain.moved, "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d"),
    **_aten(plain.per_input(1), "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"),
    **_aten(plain.interpolation(2), "upsample_linear1d"),
    **_aten(plain.interpolation(4), "upsample_bilinear2d _upsample_bilinear2d_aa grid_sampler_2d"),
    **_aten(plain.interpolation(8), "upsample_trilinear3d grid_sampler_3d"),
    **_aten(plain.interpolation(16), "upsample_bicubic2d"),
    **_aten(plain.interpolation_backward(2), "upsample_linear1d_backward"),
    **_aten(plain.interpolation_backward(4), "upsample_bilinear2d_backward grid_sampler_2d_backward"),
    **_aten(plain.interpolation_backward(8), "upsample_trilinear3d_backward grid_sampler_3d_backward"),
    **_aten(plain.interpolation_backward(16), "upsample_bicubic2d_backward"),
}

REDUCTIONS = (
    "sum", "mean", "amax", "amin", "max", "min", "prod", "argmax", "argmin", "any", "all", "cumsum", "cumprod",
    "logsumexp", "norm", "count_nonzero", "nansum", "median", "nll_loss_forward", "nll_loss2d_forward",
    "nll_loss_backward", "nll_loss2d_backward", "mse_loss", "mse_loss_backward", "smooth_l1_loss", "huber_loss",
    "smooth_l1_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward", "huber_loss_backward",
    "binary_cross_entropy_with_logits", "_euclidean_dist", "aminmax", "kl_div", "soft_margin_loss",
)  # fmt: skip
"""aten operations with one FLOP for each value of the largest input."""

POINTWISE = (
    "relu", "relu_", "threshold_backward", "gelu", "gelu_backward", "silu", "silu_", "silu_backward", "hardtanh",
    "hardtanh_", "hardtanh_backward", "hardswish", "hardswish_", "hardswish_backward", "hardsigmoid", "hardsigmoid_",
    "hardsigmoid_backward", "leaky_relu", "leaky_relu_", "leaky_relu_backward", "elu", "elu_backward", "mish",
    "sigmoid_backward", "tanh_backward", "glu", "glu_backward", "softplus", "softplus_backward", "celu", "selu",
    "log_sigmoid_forward", "log_sigmoid_backward", "native_dropout", "native_dropout_backward", "_prelu_kernel",
    "_prelu_kernel_backward", "mish_backward", "rrelu_with_noise", "hardshrink", "softshrink", "_thnn_fused_lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward", "logit",
    "fake_quantize_per_tensor_affine_cachemask", "_fused_dropout", "masked_scale", "add", "add_", "addcmul_",
)  # fmt: skip
"""aten operations with one FLOP for each output value, besides those that torch itself tags pointwise."""

MOVES = (
    "cat", "stack", "index", "index_put", "index_put_", "index_select", "gather", "scatter", "scatter_",
    "scatter_add", "embedding", "embedding_dense_backward", "_embedding_bag", "embedding_renorm_",
    "copy_", "_to_copy", "contiguous", "fill_", "zero_", "zeros", "zeros_like", "new_zeros", "ones", "ones_like",
    "new_ones", "full", "full_like", "new_full", "fill", "arange", "linspace", "eye", "scalar_tensor", "tril", "triu",
    "tril_indices", "triu_indices", "roll", "flip", "repeat", "repeat_interleave", "constant_pad_nd",
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "reflection_pad1d_backward", "reflection_pad2d_backward", "replication_pad2d_backward",
    "select_backward", "slice_backward", "index_put_impl_", "_index_put_impl_", "masked_fill", "masked_fill_",
    "masked_select", "index_add", "index_add_", "index_fill", "index_fill_", "index_copy", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "im2col", "col2im", "unfold_backward", "bernoulli", "bernoulli_", "rand",
    "randn", "rand_like", "randn_like", "randint", "randperm", "uniform_", "normal_", "random_", "exponential_",
    "multinomial", "sort", "topk", "where", "nonzero", "unique_consecutive", "_unique2", "select_scatter",
    "slice_scatter", "diagonal_scatter", "as_strided_scatter", "one_hot", "bucketize", "searchsorted", "native_channel_shuffle",
    "split_with_sizes_copy", "unsafe_split", "unsafe_split_with_sizes", "_embedding_bag_backward", "unbind_copy",
    "_pack_padded_sequence", "_pack_padded_sequence_backward", "max_unpool2d",
    "diag_embed", "_pad_packed_sequence", "meshgrid", "lift", "diagonal_backward", "bincount", "_local_scalar_dense",
)  # fmt: skip
"""aten operations that move, draw or choose values: bytes, and no FLOPs."""

TABLE: dict[str, Formula] = {
    **{f"aten.{name}": plain.per_output(1) for name in POINTWISE},
    **{f"aten.{name}": plain.per_input(1) for name in REDUCTIONS},
    **_aten(plain.per_input(3), "var std"),
    "aten.var_mean": plain.per_input(4),
    "aten._cdist_forward": products.pairwise_distance,
    **{f"aten.{name}": plain.moved for name in MOVES},
    **PRODUCTS, **NORMS, **POOLING, **SAMPLING,
    **{f"optim.{name}": plain.step for name in plain.WORK},
}  # fmt: skip


def formula_for(op: OpShape) -> Formula | None:
    """The formula of an operation; None when it has none: its FLOPs are unknown, not 0."""
    if op.op in TABLE:
        return TABLE[op.op]
    if op.op.startswith(("aten._foreach_", "aten._amp_foreach")):
        return plain.each_tensor
    return plain.per_output(1) if op.attributes.get("pointwise") else None


FRIENDLY = {
    "addmm": "linear", "mm": "matmul", "bmm": "matmul", "baddbmm": "matmul", "mv": "matmul", "dot": "matmul",
    "native_batch_norm": "batch_norm", "cudnn_batch_norm": "batch_norm", "_native_batch_norm_legit": "batch_norm",
    "_batch_norm_with_update": "batch_norm", "native_layer_norm": "layer_norm", "native_group_norm": "group_norm",
    "max_pool2d_with_indices": "max_pool2d", "max_pool3d_with_indices": "max_pool3d", "_softmax": "softmax",
    "_log_softmax": "log_softmax", "_safe_softmax": "softmax", "_to_copy": "to", "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss", "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "adaptive_avg_pool3d", "native_dropout": "dropout",
}  # fmt: skip

SHOWN_TERMS = 4
"""How many different calls the worked text of one row spells out."""


_Key = tuple[str, str, str]
"""Layer, kind, direction."""
_Parts = list[tuple[OpShape, Part]]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over layer calls."""

    macs: int
    flops: int
    elementwise_flops: int
    unknown: tuple[tuple[str, int], ...]
    """Operations without a formula, with their number of calls."""


def estimate(ops: Iterable[OpShape]) -> tuple[LayerCall, ...]:
    """The rows of all operations, in the order of the network, forward before backward."""
    rows: dict[_Key, _Parts] = {}
    unknown: dict[_Key, list[OpShape]] = {}
    for op in ops:
        recompute = bool(op.attributes.get("recompute"))
        formula = formula_for(op)
        if formula is None:
            direction = "recompute" if recompute and op.direction == "forward" else op.direction
            unknown.setdefault((op.layer, friendly(op.op, op), direction), []).append(op)
            continue
        for part in formula(op):
            direction = "recompute" if recompute and part.direction == "forward" else part.direction
            rows.setdefault((op.layer, kind_of(op) + part.label, direction), []).append((op, part))
    owners = _owners(rows)
    calls = [_layer_call(key, parts, owners) for key, parts in rows.items()]
    calls += [_unknown_call(key, group) for key, group in unknown.items()]
    return tuple(sorted(calls, key=lambda call: call.position if call.position is not None else 0))


def on_paper(op: OpShape) -> OpShape:
    """The operation with its attention backend left open: the device chooses it, not the model."""
    return replace(op, attributes={**op.attributes, "backend": "any"}) if "backend" in op.attributes else op


def fused_only(call: LayerCall) -> bool:
    """True for work that only a fused kernel does: attention's scores, computed again in backward."""
    return call.kind.endswith(FUSED)


def totals(calls: Iterable[LayerCall], directions: Sequence[str]) -> Totals:
    """Sums over the rows in these directions. Rows without a formula are listed, not counted."""
    mine = [call for call in calls if call.direction in directions]
    unknown: Counter[str] = Counter()
    for call in mine:
        if call.macs is None:
            unknown[call.kind] += call.calls
    macs = sum(call.macs or 0 for call in mine)
    return Totals(macs, 2 * macs, sum(call.elementwise_flops or 0 for call in mine), tuple(sorted(unknown.items())))


BACKWARD = ("grad_input", "grad_weight", "grad_bias", "backward")
"""Directions that make up the backward pass; recomputation is counted apart."""


def kind_of(op: OpShape) -> str:
    """Class of the layer, or the name of a functional operation."""
    functional = op.attributes.get("functional")
    return friendly(str(functional), op) if functional else op.kind


def friendly(name: str, op: OpShape) -> str:
    """aten.addmm -> linear, aten.convolution -> conv2d, aten.relu_ -> relu."""
    space, _, bare = name.rpartition(".")
    if space not in ("aten", "perfctl"):
        return name
    if bare.startswith("convolution"):
        rank = len(shape_of(op.inputs, 2 if op.op.startswith("aten.convolution_backward") else 1)) - 2
        return f"conv{rank}d" if rank > 0 else "convolution"
    bare = FRIENDLY.get(bare, bare)
    if bare.startswith(("upsample_", "_upsample_")):
        return "interpolate"
    return bare.rstrip("_") if not bare.startswith("__") else bare


def _owners(rows: dict[_Key, _Parts]) -> dict[str, str]:
    """Layer -> the kind of row that carries its parameters: the layer's own, else the heaviest functional one."""
    best: dict[str, tuple[bool, int, str]] = {}
    for (layer, kind, direction), parts in rows.items():
        if direction == "forward":
            leaf = any("functional" not in op.attributes for op, _ in parts)
            weight = sum(part.macs * op.calls for op, part in parts)
            if layer not in best or (leaf, weight) > best[layer][:2]:
                best[layer] = (leaf, weight, kind)
    return {layer: kind for layer, (_, _, kind) in best.items()}


def _layer_call(key: _Key, parts: _Parts, owners: dict[str, str]) -> LayerCall:
    layer, kind, direction = key
    macs = sum(part.macs * op.calls for op, part in parts)
    main = max(parts, key=lambda pair: (pair[1].macs, pair[0].position))[0].op
    mains = [(op, part) for op, part in parts if op.op == main]
    return LayerCall(
        layer=layer, kind=kind, direction=direction, macs=macs, flops=2 * macs,
        parameters=parts[0][0].parameters if owners.get(layer) == kind else 0,
        read_bytes=sum(part.read_bytes * op.calls for op, part in parts),
        write_bytes=sum(part.write_bytes * op.calls for op, part in parts),
        output_elements=sum(part.output_elements * op.calls for op, part in mains), formula=_text(parts),
        elementwise_flops=sum(part.elementwise * op.calls for op, part in parts),
        calls=sum(op.calls for op, _ in mains) if direction != "optimizer" else 1,
        position=min(op.position for op, _ in parts),
    )  # fmt: skip


def _text(parts: _Parts) -> str:
    heavy = [(op, part) for op, part in parts if part.macs] or parts
    lines = [f"{number(op.calls)} times: {part.text}" if op.calls > 1 else part.text for op, part in heavy]
    if len(lines) > SHOWN_TERMS:
        lines = [*lines[:SHOWN_TERMS], f"and {len(lines) - SHOWN_TERMS} more shapes"]
    return "; ".join(lines)


def _unknown_call(key: _Key, ops: list[OpShape]) -> LayerCall:
    layer, kind, direction = key
    count = sum(op.calls for op in ops)
    return LayerCall(
        layer=layer, kind=kind, direction=direction, macs=None, flops=None, parameters=0,
        read_bytes=sum(tensors_of(op).read() * op.calls for op in ops),
        write_bytes=sum(tensors_of(op).write() * op.calls for op in ops),
        output_elements=sum(prod(shape_of(op.outputs, 0)) * op.calls for op in ops if op.outputs),
        formula=f"no formula for {ops[0].op} ({number(count)} {'call' if count == 1 else 'calls'})",
        elementwise_flops=None, calls=count, position=min(op.position for op in ops),
    )  # fmt: skip
