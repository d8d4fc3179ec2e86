"""What kind of work an operation or a kernel is: one table of rules, tried in order.

Dispatcher names decide for operations, families for kernels; time that no rule knows counts as "other".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from perfctl.orchestrator.analyse.kernels.names import family
from perfctl.records.run import Run

CATEGORIES = (
    "convolution", "GEMM", "RNN", "normalisation", "elementwise", "reduction", "memory", "copy", "optimizer", "other",
)  # fmt: skip

OPERATIONS: tuple[tuple[str, str], ...] = (
    ("optimizer", r"^optimizer\.|_foreach_|_fused_(adam|sgd|adagrad)|^zero_grad|adam|adadelta|accumulategrad"),
    ("convolution", r"conv(?!ert)|mkldnn_reorder_conv"),
    ("RNN", r"lstm|(^|[:_])gru|(^|[:_])rnn|mkldnn_?rnn|cudnn_?rnn|miopen_?rnn"),
    ("normalisation", r"batch_?norm|layer_?norm|group_?norm|instance_?norm|rms_?norm|weight_norm"),
    ("GEMM", r"(^|[:_])(addmm|mm|bmm|matmul|baddbmm|addbmm|mv|addmv|addr|dot|vdot|outer|ger|linear|einsum|bilinear)"
             r"(_backward|backward)?\d*_?$|^(t?addmm|mm|bmm|linear|matmul|baddbmm|mv|dot|bilinear)backward"
             r"|attention|moe_|mkl_linear|scaled_mm|flash|cdist|tensordot"),
    ("reduction", r"soft_?max|nll_?loss|cross_?entropy|(^|[:_])(sum|mean|prod|max|min|amax|amin|argmax|argmin|var|std"
                  r"|norm|linalg_vector_norm|logsumexp|all|any|topk|sort|argsort|cumsum|cumprod|count_nonzero|bincount"
                  r"|unique|unique2|median|aminmax|var_mean|std_mean|nonzero|histc|searchsorted|trace)"
                  r"(_backward|backward)?\d*_?(_dim)?$|pool|^(sum|mean|max|min|norm|logsumexp|prod|std|var)backward"
                  r"|max_unpool|_loss"),
    ("copy", r"(^|[:_])(to|copy|_to_copy|item|_local_scalar_dense|pin_memory|_pin_memory|cpu|cuda|record_stream|float"
             r"|half|double|type_as|is_pinned)_?$|tocopybackward|copybackwards|copyslices|memcpy|broadcast_coalesced"
             r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|nccl|gloo|c10d|wait_tensor|scatter_tensors"
             r"|^record_param_comms"),
    ("memory", r"(^|[:_])(empty|empty_strided|empty_like|zeros|zeros_like|ones|ones_like|full|full_like|fill|zero|new_.*"
               r"|clone|contiguous|view|view_as|_unsafe_view|reshape|_reshape_alias|_reshape_copy|reshape_as|t|transpose|permute|expand"
               r"|expand_as|as_strided|cat|_cat|stack|hstack|vstack|slice|select|index|index_select|index_put|_index_put_impl|index_add"
               r"|index_copy|gather|scatter|scatter_add|embedding|embedding_dense|embedding_backward|embedding_dense_backward|resize|resize_as|detach|alias"
               r"|narrow|split|split_with_sizes|chunk|unbind|unsqueeze|squeeze|flatten|unflatten|pad|constant_pad_nd|roll|flip|repeat"
               r"|repeat_interleave|tile|arange|linspace|eye|tril|triu|lift_fresh|lift|set|movedim|swapaxes|diagonal|unfold|fold|im2col|col2im"
               r"|slice_backward|select_backward|concat|concatenate|masked_select|one_hot|scalar_tensor|tensor|numpy_t"
               r"|adjoint|mt|mh|h|take|meshgrid|broadcast_to|broadcast_tensors|ravel|pixel_shuffle|channel_shuffle|upsample_nearest.*"
               r"|is_nonzero|result_type|can_cast|size|stride|_cudnn_init_dropout_state|_cudnn_rnn_flatten_weight|output_nr|_version"
               r"|retain_grad|requires_grad|_has_compatible_shallow_copy_type|resolve_conj|resolve_neg|data|feature_alpha_dropout_shape)"
               r"_?$|^(view|unsafeview|reshapealias|t|transpose|permute|expand|asstrided|cat|stack|slice|select|index|indexselect|gather|scatter"
               r"|embedding|unsqueeze|squeeze|clone|split|splitwithsizes|unbind|repeat|alias|constantpadnd|roll|detach|fill|zero|indexput"
               r"|diagonal|unfold|flip|narrow)backward|^\[memory\]$"),
    ("elementwise", r"(^|[:_])(r?add|r?sub|mul|r?div|pow|sqrt|rsqrt|exp|log|log2|log10|log1p|expm1|neg|abs"
                    r"|sign|sin|cos|tan|tanh|erf|erfinv"
                    r"|relu|relu6|gelu|silu|mish|elu|selu|celu|leaky_relu|prelu|sigmoid|logsigmoid|hardtanh|hardswish|hardsigmoid"
                    r"|softplus|threshold|clamp|clamp_min|clamp_max|clip|where|maximum|minimum|eq|ne|lt|le|gt|ge|logical_.*|bitwise_.*"
                    r"|__.*__|floor|ceil|round|trunc|frac|fmod|remainder|floor_divide|true_divide|reciprocal|square|lerp|addcmul|addcdiv|masked_fill"
                    r"|dropout|feature_dropout|alpha_dropout|native_dropout|_fused_dropout|_masked_scale|bernoulli|normal|uniform|rand|randn|randint|randperm"
                    r"|random|exponential|isnan|isinf|isfinite|nan_to_num|ceil|atan2?|asin|acos|sinh|cosh|glu|rad2deg|mse|smooth_l1|upsample.*"
                    r"|_upsample.*|grid_sampler.*|interpolate|affine_grid.*|real|imag|conj|complex|polar|view_as_complex|view_as_real|quantize.*|dequantize|fake_quantize.*"
                    r"|_weight_int.*|.*_quant|isclose|allclose|equal|sgn|heaviside|hypot|copysign|_amp_.*|_thnn_fused.*|rotary.*)(_backward|backward)?\d*_?(_scalar|_tensor)?$"
                    r"|^(add|sub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|tanh|relu|gelu|silu|sigmoid|leakyrelu|hardtanh|hardswish|hardsigmoid|threshold|clamp"
                    r"|clampmin|where|maskedfill|dropout|nativedropout|fuseddropout|upsample.*|sin|cos|erf|elu|softplus|maximum|minimum|lerp|addcmul|addcdiv|rsub|reciprocal|mse.*|glu)"
                    r"backward|cpp_fused|compiledfunction|compiled region|compiledfxgraph|triton_"
                    r"|fusedlayer|torchscript|prim::|(threshold|sigmoid|tanh|gelu|silu|relu|dropout)_backward"),
)  # fmt: skip
"""Kind of work and what its operations are called; the more special word first. What torch.compile fuses (pointwise work,
normalisation and reductions in one loop) counts as elementwise: products and convolutions stay operations of their own."""

FAMILIES = {
    "conv": "convolution", "winograd": "convolution", "fft": "convolution", "depthwise": "convolution",
    "gemm": "GEMM", "attention": "GEMM", "rnn": "RNN", "norm": "normalisation", "elementwise": "elementwise",
    "softmax": "reduction", "pool": "reduction", "reduction": "reduction", "layout": "memory", "copy": "memory",
    "collective": "copy", "optimizer": "optimizer",
}  # fmt: skip
"""Family of a kernel -> kind of work. "copy" kernels move memory on the device; transfers are no kernels."""

_RULES = tuple((kind, re.compile(pattern)) for kind, pattern in OPERATIONS)
_AROUND = re.compile(
    r"^(autograd::engine::evaluate_function: |torch::autograd::|aten::|torchvision::|c10::|autograd::)+"
)
"""Prefixes of the names of operations and autograd nodes."""


@lru_cache(maxsize=65536)
def operation(name: str) -> str:
    """Kind of work of a framework operation ("aten::addmm", "autograd::engine::evaluate_function: AddmmBackward0")."""
    bare = _AROUND.sub("", name).lower()
    return next((kind for kind, pattern in _RULES if pattern.search(bare)), "other")


def kernel(name: str) -> str:
    """Kind of work of a kernel, by its family."""
    return FAMILIES.get(family(name) or "", "other")


def times(run: Run) -> Mapping[str, float] | None:
    """Kind of work -> ns over the whole report: kernels and copies of a GPU, else self time of operations on the CPU.

    None where the report times neither.
    """
    found = dict.fromkeys(CATEGORIES, 0.0)
    if run.report.kernels:
        for one in run.report.kernels:
            found["optimizer" if one.direction == "optimizer" else kernel(one.name)] += one.duration_ns or 0
        for moved in run.report.copies:
            found["memory" if moved.kind == "memset" else "copy"] += moved.duration_ns or 0
        return found
    for item in run.report.operations:
        kind = "optimizer" if item.direction == "optimizer" else operation(item.name)
        found[kind] += item.self_cpu_ns or 0
    return found if any(found.values()) else None
