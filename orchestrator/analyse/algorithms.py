"""Which algorithm family a kernel belongs to, read off its name (cuDNN, cuBLAS, CUTLASS, ATen; 2017 to today)."""

from __future__ import annotations

import re
from functools import lru_cache

FAMILIES: tuple[tuple[str, str], ...] = (
    ("collective", r"nccl|rccl|all_?reduce"),
    ("attention", r"flash_?(fwd|bwd|attn|attention)|fmha|attention_kernel|cudnn_generated_fort_native_sdpa|mem_eff"),
    ("winograd", r"winograd"),
    ("fft", r"(^|[^a-z])fft|_fft_|fft[12]d|cf_?gemm.*fft|flip_filter"),
    ("depthwise", r"depthwise|dgrad2d_grouped_direct|conv2d_grouped_direct|dwconv"),
    ("layout", r"nchwtonhwc|nhwctonchw|transpose|permute|im2col|col2im|computeoffsets|tensortransform|nchwaddpadding|"
               r"scalepackedtensor|convert_weights|kern_precompute_indices|reorder"),
    ("optimizer", r"adam|adadelta|adagrad|rmsprop|sgd|multi_tensor_apply|foreach|lamb_stage"),
    ("conv", r"scudnn|hcudnn|icudnn|cudnn.*(conv|dgrad|wgrad|fprop)|implicit_?(con|gemm)|conv(olve|olution|[123]d)"
             r"|(^|[^a-z])(fprop|dgrad|wgrad)|wgrad_alg|dgrad_(engine|alg)|xmma_(fprop|dgrad|wgrad)|conv_?depth"),
    ("gemm", r"gemm|gemv|gemmk1|cutlass.*kernel|cublaslt|splitkreduce|split_?k|(^|_)dot_kernel|nvjet|mat(rix)?mul"),
    ("softmax", r"soft_?max|nll_?loss|cross_?entropy"),
    ("norm", r"batch_?norm|bn_(fw|bw)|layer_?norm|group_?norm|instance_?norm|rms_?norm|_norm_kernel"),
    ("pool", r"pool"),
    ("reduction", r"reduce|reduction|(^|[^a-z])sum_|scan|argmax|argmin|sort"),
    ("rnn", r"lstm|gru|rnn"),
    ("copy", r"memcpy|memset|copy|cat(array)?batched|fill_?kernel|fillfunctor|zero_kernel|index_select|gather|"
             r"scatter|index_(put|fill|elem|copy)|indexing"),
    ("elementwise", r"elem(ent)?_?wise|pointwise|relu|sigmoid|tanh|gelu|silu|dropout|add_tensor|op_?tensor|add_?bias|"
                    r"bias_?add|vectorized|distribution|activation|threshold"),
)  # fmt: skip
"""Family and what its kernels are called, tried in this order: the more special word first."""

_COMPILED = tuple((family, re.compile(pattern)) for family, pattern in FAMILIES)


@lru_cache(maxsize=65536)
def family(name: str) -> str | None:
    """The family of a kernel name; None when no pattern fits.

    The function's own name decides before its template arguments do, so that a copy kernel whose
    functor mentions "add" stays a copy.
    """
    lowered = name[:4000].lower()
    for text in (_own_name(lowered), lowered):
        for word, pattern in _COMPILED:
            if pattern.search(text):
                return word
    return None


def _own_name(name: str) -> str:
    """Up to the first template argument or parameter; CUTLASS's "Kernel<X<...>>" is told by X instead."""
    text = re.sub(r"^(void|static|__global__)\s+", "", name)
    text = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", text)
    pieces = re.split(r"[<(>]", text)
    own = pieces[0].rpartition("::")[2] or text
    if own.startswith(("kernel", "device_kernel")) and len(pieces) > 1:
        return pieces[1]
    return own
