"""The table: operation -> formula. An operation that is not here, and is not pointwise, is listed and never 0."""

from __future__ import annotations

from perfctl.orchestrator.analyse import formulas_attention as attention
from perfctl.orchestrator.analyse import formulas_conv as conv
from perfctl.orchestrator.analyse import formulas_elementwise as elementwise
from perfctl.orchestrator.analyse import formulas_matmul as matmul
from perfctl.orchestrator.analyse import formulas_optimizer as optimizer
from perfctl.orchestrator.analyse import formulas_rnn as rnn
from perfctl.orchestrator.analyse.worked import Formula
from perfctl.parsers.paper import OpShape

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
