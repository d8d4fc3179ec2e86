"""The engine: shapes in, pen-and-paper figures out, one row a layer and direction.

``estimate`` groups operations by layer: all operations of a torch.nn layer are one row for each direction; a
functional operation stands under its parent module with its own name as kind. Nothing is guessed: an operation
without a formula is a row whose ``macs`` is None and whose formula says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from perfctl.orchestrator.analyse.flops import plain as elementwise
from perfctl.orchestrator.analyse.flops import plain as optimizer
from perfctl.orchestrator.analyse.flops import products as attention
from perfctl.orchestrator.analyse.flops import products as conv
from perfctl.orchestrator.analyse.flops import products as matmul
from perfctl.orchestrator.analyse.flops import rnn
from perfctl.orchestrator.analyse.flops.products import FUSED
from perfctl.orchestrator.analyse.flops.terms import Formula, Part, number, shape_of, tensors_of
from perfctl.records.paper import LayerCall, OpShape

PRODUCTS: dict[str, Formula] = {
    **dict.fromkeys(conv.CONVOLUTIONS, conv.convolution),
    "aten.convolution_backward": conv.convolution_backward,
    "aten.convolution_backward_overrideable": conv.convolution_backward,
    "aten.mm": matmul.matrix_product,
    "aten.bmm": matmul.matrix_product,
    "aten.mv": matmul.matrix_product,
    "aten.dot": matmul.matrix_product,
    "aten.vdot": matmul.matrix_product,
    "aten._int_mm": matmul.matrix_product,
    "aten._scaled_mm": matmul.matrix_product,
    **dict.fromkeys(matmul.ADDED, matmul.added_product),
    "aten.linear": matmul.linear,
    "perfctl.lstm": rnn.recurrent,
    "perfctl.gru": rnn.recurrent,
    "perfctl.rnn": rnn.recurrent,
    "perfctl.lstm_backward": rnn.recurrent_backward,
    "perfctl.gru_backward": rnn.recurrent_backward,
    "perfctl.rnn_backward": rnn.recurrent_backward,
    "perfctl.scaled_dot_product_attention": attention.attention,
    "perfctl.scaled_dot_product_attention_backward": attention.attention_backward,
    "aten._scaled_dot_product_flash_attention": attention.attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": attention.attention,
    "aten._scaled_dot_product_efficient_attention": attention.attention,
    "aten._scaled_dot_product_cudnn_attention": attention.attention,
    "aten._scaled_dot_product_flash_attention_backward": attention.fused_attention_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": attention.fused_attention_backward,
    "aten._scaled_dot_product_efficient_attention_backward": attention.fused_attention_backward,
    "aten._scaled_dot_product_cudnn_attention_backward": attention.fused_attention_backward,
}
"""Operations with multiply-adds."""

NORMS: dict[str, Formula] = {
    "aten.native_batch_norm": elementwise.batch_norm,
    "aten.cudnn_batch_norm": elementwise.batch_norm,
    "aten.miopen_batch_norm": elementwise.batch_norm,
    "aten._native_batch_norm_legit": elementwise.batch_norm,
    "aten._native_batch_norm_legit_no_training": elementwise.per_output(4),
    "aten._batch_norm_with_update": elementwise.per_output(8),
    "aten.native_batch_norm_backward": elementwise.norm_backward,
    "aten.cudnn_batch_norm_backward": elementwise.norm_backward,
    "aten.miopen_batch_norm_backward": elementwise.norm_backward,
    "aten.batch_norm_backward": elementwise.norm_backward,
    "aten.native_layer_norm": elementwise.per_output(8),
    "aten.native_layer_norm_backward": elementwise.norm_backward,
    "aten.native_group_norm": elementwise.per_output(8),
    "aten.native_group_norm_backward": elementwise.norm_backward,
    "aten._fused_rms_norm": elementwise.per_output(5),
    "aten._fused_rms_norm_backward": elementwise.norm_backward,
    "aten._softmax": elementwise.per_output(5),
    "aten._safe_softmax": elementwise.per_output(5),
    "aten._log_softmax": elementwise.per_output(5),
    "aten._softmax_backward_data": elementwise.per_output(4),
    "aten._log_softmax_backward_data": elementwise.per_output(4),
    "aten.linalg_vector_norm": elementwise.per_input(2),
    "aten._weight_norm_interface": elementwise.per_output(4),
    "aten._weight_norm_interface_backward": elementwise.norm_backward,
}
"""Normalisation and softmax."""

POOLING: dict[str, Formula] = {
    "aten.max_pool2d_with_indices": elementwise.pooling,
    "aten.max_pool3d_with_indices": elementwise.pooling,
    "aten.avg_pool2d": elementwise.pooling,
    "aten.avg_pool3d": elementwise.pooling,
    "aten.avg_pool2d_backward": elementwise.per_output(1),
    "aten.avg_pool3d_backward": elementwise.per_output(1),
    "aten.max_pool2d_with_indices_backward": elementwise.per_input(1),
    "aten.max_pool3d_with_indices_backward": elementwise.per_input(1),
    "aten._adaptive_avg_pool2d": elementwise.per_input(1),
    "aten._adaptive_avg_pool3d": elementwise.per_input(1),
    "aten._adaptive_avg_pool2d_backward": elementwise.per_output(1),
    "aten._adaptive_avg_pool3d_backward": elementwise.per_output(1),
    "aten.adaptive_max_pool2d": elementwise.per_input(1),
    "aten.adaptive_max_pool3d": elementwise.per_input(1),
    "aten.adaptive_max_pool2d_backward": elementwise.per_output(1),
    "aten.adaptive_max_pool3d_backward": elementwise.per_output(1),
}

SAMPLING: dict[str, Formula] = {
    "aten.upsample_nearest1d": elementwise.moved,
    "aten.upsample_nearest2d": elementwise.moved,
    "aten.upsample_nearest3d": elementwise.moved,
    "aten._upsample_nearest_exact2d": elementwise.moved,
    "aten.upsample_linear1d": elementwise.interpolation(2),
    "aten.upsample_bilinear2d": elementwise.interpolation(4),
    "aten._upsample_bilinear2d_aa": elementwise.interpolation(4),
    "aten.upsample_trilinear3d": elementwise.interpolation(8),
    "aten.upsample_bicubic2d": elementwise.interpolation(16),
    "aten.upsample_nearest1d_backward": elementwise.per_input(1),
    "aten.upsample_nearest2d_backward": elementwise.per_input(1),
    "aten.upsample_nearest3d_backward": elementwise.per_input(1),
    "aten.upsample_linear1d_backward": elementwise.interpolation_backward(2),
    "aten.upsample_bilinear2d_backward": elementwise.interpolation_backward(4),
    "aten.upsample_trilinear3d_backward": elementwise.interpolation_backward(8),
    "aten.upsample_bicubic2d_backward": elementwise.interpolation_backward(16),
    "aten.grid_sampler_2d": elementwise.interpolation(4),
    "aten.grid_sampler_3d": elementwise.interpolation(8),
    "aten.grid_sampler_2d_backward": elementwise.interpolation_backward(4),
    "aten.grid_sampler_3d_backward": elementwise.interpolation_backward(8),
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
"""aten operations with one FLOP for each output value, beside those that torch itself tags pointwise."""

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

OPTIMIZERS: dict[str, Formula] = {f"optim.{name}": optimizer.step for name in optimizer.WORK}

TABLE: dict[str, Formula] = {
    **{f"aten.{name}": elementwise.per_output(1) for name in POINTWISE},
    **{f"aten.{name}": elementwise.per_input(1) for name in REDUCTIONS},
    "aten.var": elementwise.per_input(3),
    "aten.std": elementwise.per_input(3),
    "aten.var_mean": elementwise.per_input(4),
    "aten._cdist_forward": matmul.pairwise_distance,
    **{f"aten.{name}": elementwise.moved for name in MOVES},
    **PRODUCTS,
    **NORMS,
    **POOLING,
    **SAMPLING,
    **OPTIMIZERS,
}


def formula_for(op: OpShape) -> Formula | None:
    """The formula of an operation; None when there is none, which is to be said, not counted as 0."""
    found = TABLE.get(op.op)
    if found is not None:
        return found
    if op.op.startswith("aten._foreach_") or op.op.startswith("aten._amp_foreach"):
        return elementwise.each_tensor
    return elementwise.per_output(1) if op.attributes.get("pointwise") else None


FRIENDLY = {
    "addmm": "linear", "mm": "matmul", "bmm": "matmul", "baddbmm": "matmul", "mv": "matmul", "dot": "matmul",
    "native_batch_norm": "batch_norm", "cudnn_batch_norm": "batch_norm", "_native_batch_norm_legit": "batch_norm",
    "_batch_norm_with_update": "batch_norm", "native_layer_norm": "layer_norm", "native_group_norm": "group_norm",
    "max_pool2d_with_indices": "max_pool2d", "max_pool3d_with_indices": "max_pool3d", "_softmax": "softmax",
    "_log_softmax": "log_softmax", "_safe_softmax": "softmax", "_to_copy": "to", "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss", "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "adaptive_avg_pool3d", "native_dropout": "dropout",
}  # fmt: skip
"""Dispatcher names -> what people call them."""

SHOWN_TERMS = 4
"""How many different calls the worked text of one row spells out."""


@dataclass(slots=True)
class _Row:
    """What is known of one (layer, kind, direction) while operations are added up."""

    parts: list[tuple[OpShape, Part]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over layer calls."""

    macs: int
    flops: int
    elementwise_flops: int
    unknown: tuple[tuple[str, int], ...]
    """Operations without a formula, with their number of calls."""


def estimate(ops: Iterable[OpShape]) -> tuple[LayerCall, ...]:
    """Pen and paper for everything that was seen, in the order of the network, forward before backward."""
    rows: dict[tuple[str, str, str], _Row] = {}
    unknown: dict[tuple[str, str, str], list[OpShape]] = {}
    seen = tuple(ops)
    for op in seen:
        formula = formula_for(op)
        if formula is None:
            unknown.setdefault((op.layer, friendly(op.op, op), direction_when_unknown(op)), []).append(op)
            continue
        for part in formula(op):
            direction = part.direction
            if op.attributes.get("recompute") and direction == "forward":
                direction = "recompute"
            rows.setdefault((op.layer, kind_of(op) + part.label, direction), _Row()).parts.append((op, part))
    owners = _owners(seen, rows)
    calls = [_layer_call(key, row.parts, owners) for key, row in rows.items()]
    calls += [_unknown_call(key, group) for key, group in unknown.items()]
    return tuple(sorted(calls, key=lambda call: call.position if call.position is not None else 0))


def on_paper(op: OpShape) -> OpShape:
    """Which kernel a device chose for attention is no property of the model: on paper it is left open."""
    if "backend" not in op.attributes:
        return op
    return replace(op, attributes={**op.attributes, "backend": "any"})


def fused_only(call: LayerCall) -> bool:
    """Whether the row is work that only a fused kernel does (attention's scores, computed again in backward)."""
    return call.kind.endswith(FUSED)


def totals(calls: Iterable[LayerCall], directions: Sequence[str]) -> Totals:
    """Sums over the rows in these directions; what has no formula is named, not counted."""
    macs = elementwise = 0
    unknown: dict[str, int] = {}
    for call in calls:
        if call.direction not in directions:
            continue
        if call.macs is None:
            unknown[call.kind] = unknown.get(call.kind, 0) + call.calls
        macs += call.macs or 0
        elementwise += call.elementwise_flops or 0
    return Totals(macs, 2 * macs, elementwise, tuple(sorted(unknown.items())))


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


def direction_when_unknown(op: OpShape) -> str:
    if op.direction == "forward":
        return "recompute" if op.attributes.get("recompute") else "forward"
    return op.direction


def _owners(ops: Iterable[OpShape], rows: dict[tuple[str, str, str], _Row]) -> dict[str, str]:
    """Layer -> the kind of row that carries its parameters: the layer's own, else the heaviest functional one."""
    best: dict[str, tuple[int, int, str]] = {}
    for (layer, kind, direction), row in rows.items():
        if direction != "forward":
            continue
        leaf = any("functional" not in op.attributes for op, _ in row.parts)
        weight = sum(part.macs * op.calls for op, part in row.parts)
        candidate = (int(leaf), weight, kind)
        if layer not in best or candidate[:2] > best[layer][:2]:
            best[layer] = candidate
    return {layer: chosen[2] for layer, chosen in best.items()}


def _layer_call(key: tuple[str, str, str], parts: list[tuple[OpShape, Part]], owners: dict[str, str]) -> LayerCall:
    layer, kind, direction = key
    macs = sum(part.macs * op.calls for op, part in parts)
    main = max(parts, key=lambda pair: (pair[1].macs, pair[0].position))[0].op
    mains = [(op, part) for op, part in parts if op.op == main]
    return LayerCall(
        layer=layer,
        kind=kind,
        direction=direction,
        macs=macs,
        flops=2 * macs,
        parameters=parts[0][0].parameters if owners.get(layer) == kind else 0,
        read_bytes=sum(part.read_bytes * op.calls for op, part in parts),
        write_bytes=sum(part.write_bytes * op.calls for op, part in parts),
        output_elements=sum(part.output_elements * op.calls for op, part in mains),
        formula=_text(parts),
        elementwise_flops=sum(part.elementwise * op.calls for op, part in parts),
        calls=sum(op.calls for op, _ in mains) if direction != "optimizer" else 1,
        position=min(op.position for op, _ in parts),
    )


def _text(parts: list[tuple[OpShape, Part]]) -> str:
    """The worked text of a row: its multiply-adds, or, when it has none, what the elementwise work is."""
    heavy = [(op, part) for op, part in parts if part.macs] or parts
    lines = [f"{number(op.calls)} times: {part.text}" if op.calls > 1 else part.text for op, part in heavy]
    if len(lines) > SHOWN_TERMS:
        lines = [*lines[:SHOWN_TERMS], f"and {len(lines) - SHOWN_TERMS} more shapes"]
    return "; ".join(lines)


def _unknown_call(key: tuple[str, str, str], ops: list[OpShape]) -> LayerCall:
    layer, kind, direction = key
    count = sum(op.calls for op in ops)
    name = ops[0].op
    return LayerCall(
        layer=layer,
        kind=kind,
        direction=direction,
        macs=None,
        flops=None,
        parameters=0,
        read_bytes=sum(tensors_of(op).read() * op.calls for op in ops),
        write_bytes=sum(tensors_of(op).write() * op.calls for op in ops),
        output_elements=sum(prod(shape_of(op.outputs, 0)) * op.calls for op in ops if op.outputs),
        formula=f"no formula for {name} ({number(count)} {'call' if count == 1 else 'calls'})",
        elementwise_flops=None,
        calls=count,
        position=min(op.position for op in ops),
    )
