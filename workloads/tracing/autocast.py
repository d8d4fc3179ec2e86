"""What ``torch.autocast("cuda")`` does, on tensors of any device: a trace on meta sees the casts
that a GPU would run.

torch's own CUDA autocast leaves tensors of other devices alone, and autocast for CPUs has other
lists. So CUDA's lists are registered at a dispatch key of autocast that no device uses, and only
while a :class:`TracedAutocast` is entered. The key sits above autograd, as autocast does: casts
have gradients, and composites written in C++ are cast where they are in torch.

Lists: ``aten/src/ATen/autocast_mode.h`` and "Autocast Op Reference" of PyTorch's documentation. Of
the lists, only what the installed torch registers for CUDA is used. Imports torch.

Linear layers in FP8 are those of torchao (``Float8Linear``, one scale a tensor) and Transformer
Engine (hybrid recipe): forward casts the input and the weight to e4m3, backward casts the gradient
to e5m2. Products take two FP8 matrices and write the type of autocast. cuBLASLt wants sizes that
are multiples of 16, and Hopper both matrices with the summed dimension contiguous: so every matrix
is also cast transposed for backward, as Transformer Engine does. Scales are taken as known: finding
them costs nothing here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from torch import Tensor

from perfctl.workloads.tracing.gradients import iterate_tensors
from perfctl.workloads.tracing.versions import Args, Kwargs

MULTIPLE = 16
"""Of rows, inputs and outputs of a layer; others are left in the type of autocast."""
FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
LOWER = (
    "_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution "
    "cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear "
    "addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell "
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention "
    "scaled_dot_product_attention"
)
"""Run in the type of autocast."""
FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm "
    "group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div "
    "l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist "
    "pdist cdist renorm logsumexp linalg_matrix_sqrth upsample_nearest1d _upsample_nearest_exact1d "
    "upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d "
    "upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
    "upsample_bicubic2d _upsample_bicubic2d_aa"
)
"""Run in float32."""
FLOAT32_RESULT = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
    "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList norm.Scalar "
    "norm.ScalarOpt_dim"
)
"""Get float32 as their ``dtype``, where none was asked for."""
WIDEST = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)
"""Run in the widest type among their arguments."""
RECURRENT = (
    "lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input "
    "rnn_relu.data"
)
"""Whole layers: CUDA runs them as ``_cudnn_rnn``, which runs in the type of autocast and casts its
weights in each call."""
REFUSED = "binary_cross_entropy"
"""Raises an error under autocast."""
IN_FLOAT32_AND_BACK = "roi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d"
"""torchvision's: run in float32, and give the type of their first argument."""

_KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
_KEYS = torch._C.DispatchKeySet(_KEY)
_Op = Callable[..., Any]
_Kernel = Callable[[_Op, Args, Kwargs], Any]


def can_multiply_in_fp8(data: Tensor, weight: Tensor) -> bool:
    """Return whether the product can run in FP8."""
    width = data.shape[-1] if data.dim() else 0
    sizes = (*weight.shape, width, data.numel() // max(width, 1))
    return weight.dim() == 2 and all(size and size % MULTIPLE == 0 for size in sizes)


def cast_and_transpose(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a cast copy whose columns became rows."""
    return matrix.t().to(dtype, memory_format=torch.contiguous_format)


class Fp8Linear(torch.autograd.Function):
    """rows @ weight.T + bias; ``weight8``: the weight in e4m3, ``weight8_t``: also transposed, None
    where there is no backward."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight8: Tensor,
        weight8_t: Tensor | None,
        scale: Tensor,
    ) -> Tensor:
        result: Tensor = torch._scaled_mm(
            rows.to(FORWARD), weight8.t(), scale, scale, bias, None, rows.dtype
        )
        ctx.save_for_backward(
            cast_and_transpose(rows, FORWARD) if ctx.needs_input_grad[1] else None, weight8_t, scale
        )
        ctx.type = weight.dtype
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows8_t, weight8_t, scale = ctx.saved_tensors
        rows = weight = bias = None
        if ctx.needs_input_grad[0]:
            rows = torch._scaled_mm(
                grad.to(GRADIENT), weight8_t.t(), scale, scale, None, None, grad.dtype
            )
        if ctx.needs_input_grad[1]:
            product = torch._scaled_mm(
                cast_and_transpose(grad, GRADIENT),
                rows8_t.t(),
                scale,
                scale,
                None,
                None,
                grad.dtype,
            )
            weight = product.to(ctx.type)
        if ctx.needs_input_grad[2]:
            bias = grad.sum(0)
        return rows, weight, bias, None, None, None


class AutocastRefused(RuntimeError):
    """The model does what autocast raises an error for, on a GPU too."""


class TracedAutocast:
    """Autocast of one traced step. Enter it around the whole step, and ``make_autocast_region``
    around forward and loss.

    Regions that the model opens itself (``torch.autocast(..., enabled=False)``), for whatever
    device, count as CUDA's.
    """

    def __init__(self, device: str, dtype: torch.dtype, fp8: bool = False) -> None:
        """``device``: type of the traced tensors' device, which stands for the GPU. ``fp8``:
        nn.Linear multiplies in FP8."""
        self.device, self.dtype = device, dtype
        self._scale = torch.ones((), device=device) if fp8 else None
        self.in_linear: Callable[[], bool] = lambda: False
        """Whether an nn.Linear is running; set by the recorder."""
        self.casting = False
        """Whether a cast of autocast is running."""
        self._cache: dict[tuple[int, object], tuple[Tensor, Tensor]] = {}
        """Id of a weight and kind of copy -> (the weight, its cast): alive until the region ends,
        as in torch."""
        self._open = ExitStack()

    def __enter__(self) -> TracedAutocast:
        with ExitStack() as stack:
            for name, owner, changed in self._list_torch_patches():
                stack.enter_context(patch.object(owner, name, changed))
            self._register_autocast_kernels(stack)
            stack.enter_context(_include_autocast_dispatch_key())
            stack.callback(self._cache.clear)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def make_autocast_region(self) -> torch.autocast:
        """``with torch.autocast("cuda", dtype=...)``."""
        return torch.autocast("cuda", dtype=self.dtype)

    @property
    def is_enabled(self) -> bool:
        return bool(torch.is_autocast_enabled("cuda"))

    def convert_dtypes_to_autocast(self, dtypes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the types of the tensors of an operation that runs in the type of autocast, after
        the casts."""
        if not self.is_enabled:
            return dtypes
        lower = str(self.dtype).removeprefix("torch.")
        return tuple(
            lower if name in ("float32", "float16", "bfloat16") else name for name in dtypes
        )

    def _register_autocast_kernels(self, stack: ExitStack) -> None:
        fallthrough = torch.library.Library("_", "IMPL", _KEY.name)
        stack.callback(fallthrough._destroy)
        fallthrough.fallback(torch.library.fallthrough_kernel)
        kernels: tuple[tuple[str, str, _Kernel], ...] = (
            ("aten", LOWER, self._run_in_lower_type),
            ("aten", FLOAT32, self._run_in_float32),
            ("aten", FLOAT32_RESULT, self._run_with_float32_result),
            ("aten", WIDEST, self._run_in_widest_type),
            ("aten", RECURRENT, self._run_recurrent_layer),
            ("aten", REFUSED, self._raise_autocast_refused),
            ("torchvision", IN_FLOAT32_AND_BACK, self._run_in_float32_and_cast_back),
        )
        for space, names, kernel in kernels:
            library = torch.library.Library(space, "IMPL", _KEY.name)
            stack.callback(library._destroy)
            for name in names.split():
                if names is RECURRENT or _has_cuda_autocast_kernel(f"{space}::{name}"):
                    library.impl(
                        name,
                        self._make_operator_kernel(_get_operator_overload(space, name), kernel),
                    )

    def _make_operator_kernel(self, op: _Op, kernel: _Kernel) -> _Op:
        """Return the kernel of one operator; what it calls passes no autocast again."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                return kernel(op, args, kwargs) if self.is_enabled else op(*args, **kwargs)

        return run

    def _run_in_lower_type(self, op: _Op, args: Args, kwargs: Kwargs) -> Any:
        if self._scale is not None and op is torch.ops.aten.linear.default and self.in_linear():
            data, weight = args[:2]
            bias = args[2] if len(args) > 2 else kwargs.get("bias")
            if can_multiply_in_fp8(data, weight):
                return self._multiply_in_fp8(data, weight, bias, self._scale)
        return op(
            *self._cast_tensors_in(args, self._get_autocast_dtype()),
            **self._cast_tensors_in(kwargs, self._get_autocast_dtype()),
        )

    def _run_in_float32(self, op: _Op, args: Args, kwargs: Kwargs) -> Any:
        return op(
            *self._cast_tensors_in(args, torch.float32),
            **self._cast_tensors_in(kwargs, torch.float32),
        )

    def _run_with_float32_result(self, op: _Op, args: Args, kwargs: Kwargs) -> Any:
        if not self._is_castable(args[0]):
            return op(*args, **kwargs)
        name = op.name()  # type: ignore[attr-defined]
        if name in ("aten::softmax.int", "aten::log_softmax.int"):
            dtype = kwargs.get("dtype") or (args[2] if len(args) > 2 else None)
            if (
                dtype in (None, torch.float32)
                and args[0].dtype == torch.float16
                and self.device != "cpu"
            ):
                # one kernel, no cast, on CUDA alone
                half_to_float = getattr(torch.ops.aten, f"_{name[6:-4]}").default
                return half_to_float(args[0], args[1] % max(args[0].dim(), 1), True)
        if name.startswith("aten::norm."):
            exponent, *dimensions = args[1:] or (2,)
            typed = (
                torch.ops.aten.norm.ScalarOpt_dim_dtype
                if dimensions
                else torch.ops.aten.norm.ScalarOpt_dtype
            )
            last = (*dimensions, *([False] if len(dimensions) == 1 else []))
            return typed(args[0], exponent, *last, dtype=torch.float32)
        index = [argument.name for argument in op._schema.arguments].index("dtype")  # type: ignore[attr-defined]
        if len(args) > index:
            args = (
                *args[:index],
                torch.float32 if args[index] is None else args[index],
                *args[index + 1 :],
            )
        elif kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": torch.float32}
        return op(*args, **kwargs)

    def _run_in_widest_type(self, op: _Op, args: Args, kwargs: Kwargs) -> Any:
        lower = self._get_autocast_dtype()
        types = {
            tensor.dtype
            for tensor in iterate_tensors((*args, *kwargs.values()))
            if self._is_castable(tensor)
        }
        if types - {lower, torch.float32}:
            raise AutocastRefused("Unexpected floating ScalarType in at::autocast::prioritize")
        to = torch.float32 if torch.float32 in types else lower
        return op(*self._cast_tensors_in(args, to), **self._cast_tensors_in(kwargs, to))

    def _run_recurrent_layer(self, op: _Op, args: Args, kwargs: Kwargs) -> Any:
        return op(
            *self._cast_tensors_in(args, self._get_autocast_dtype(), cache=False),
            **self._cast_tensors_in(kwargs, self._get_autocast_dtype(), cache=False),
        )

    def _run_in_float32_and_cast_back(self, op: _Op, args: Args, kwargs: Kwargs) -> Any:
        return self._cast_tensor(self._run_in_float32(op, args, kwargs), args[0].dtype, cache=False)

    def _raise_autocast_refused(self, op: _Op, args: Args, kwargs: Kwargs) -> Any:
        raise AutocastRefused(
            "binary_cross_entropy is unsafe under autocast and raises an error there; "
            "use binary_cross_entropy_with_logits (BCEWithLogitsLoss)"
        )

    def _multiply_in_fp8(
        self, data: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor
    ) -> Tensor:
        """Return a product in FP8: the weight is cast once per step, the input each time."""
        rows = self._cast_tensor(data, self._get_autocast_dtype(), cache=True).reshape(
            -1, data.shape[-1]
        )
        bias = (
            None
            if bias is None
            else self._cast_tensor(bias, self._get_autocast_dtype(), cache=True)
        )
        backward = torch.is_grad_enabled() and rows.requires_grad
        weight8, weight8_t = (
            self._get_fp8_weight(weight, False),
            self._get_fp8_weight(weight, True) if backward else None,
        )
        product: Tensor = Fp8Linear.apply(rows, weight, bias, weight8, weight8_t, scale)
        return product.reshape(*data.shape[:-1], weight.shape[0])

    def _get_fp8_weight(self, weight: Tensor, is_transposed: bool) -> Tensor:
        key = id(weight), "transposed" if is_transposed else FORWARD
        if key not in self._cache:
            with torch.no_grad():
                cast = cast_and_transpose(weight, FORWARD) if is_transposed else weight.to(FORWARD)
            self._cache[key] = weight, cast
        return self._cache[key][1]

    def _get_autocast_dtype(self) -> torch.dtype:
        return torch.get_autocast_dtype("cuda")

    def _is_castable(self, value: Any) -> bool:
        if not isinstance(value, Tensor) or value.device.type != self.device:
            return False
        return value.is_floating_point() and value.dtype != torch.float64

    def _cast_tensors_in(self, value: Any, dtype: torch.dtype, cache: bool = True) -> Any:
        """Every tensor in tuples, lists and dictionaries."""
        if isinstance(value, Tensor):
            return self._cast_tensor(value, dtype, cache)
        if isinstance(value, dict):
            return {name: self._cast_tensors_in(item, dtype, cache) for name, item in value.items()}
        return (
            type(value)(self._cast_tensors_in(item, dtype, cache) for item in value)
            if isinstance(value, (tuple, list))
            else value
        )

    def _cast_tensor(self, tensor: Tensor, dtype: torch.dtype, cache: bool) -> Tensor:
        """Return the tensor in this type. Weights that need a gradient are cast once in a region
        (cached_cast of autocast_mode.cpp)."""
        if not self._is_castable(tensor) or tensor.dtype == dtype:
            return tensor
        cacheable = (
            cache
            and dtype == self._get_autocast_dtype()
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        key = id(tensor), dtype
        if cacheable and key in self._cache:
            return self._cache[key][1]
        self.casting = True
        try:
            cast_tensor = tensor.to(dtype)
        finally:
            self.casting = False
        if cacheable:
            self._cache[key] = tensor, cast_tensor
        return cast_tensor

    def _list_torch_patches(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield (name, owner, replacement): regions of every device are regions of CUDA, with or
        without a GPU."""
        enter, enabled_on, dtype_on = (
            torch.autocast.__init__,
            torch.is_autocast_enabled,
            torch.get_autocast_dtype,
        )

        def init_region(
            region: Any,
            device_type: str,
            dtype: torch.dtype | None = None,
            enabled: bool = True,
            cache_enabled: bool | None = None,
        ) -> None:
            enter(region, "cuda", dtype, False, cache_enabled)
            region._enabled = enabled

        def get_autocast_state(
            device_type: str = "cuda",
        ) -> tuple[dict[str, Any] | None, dict[str, Any]]:
            settings = {
                "enabled": self.is_enabled,
                "dtype": self._get_autocast_dtype(),
                "cache_enabled": torch.is_autocast_cache_enabled(),
            }
            return settings if torch.amp.is_autocast_available(device_type) else None, settings

        def clear_cache() -> None:
            self._cache.clear()

        yield "__init__", torch.autocast, init_region
        yield "clear_autocast_cache", torch, clear_cache
        yield "is_autocast_enabled", torch, lambda device_type="cuda": enabled_on("cuda")
        yield "get_autocast_dtype", torch, lambda device_type="cuda": dtype_on("cuda")
        # a recomputation runs as the forward did
        if hasattr(torch.utils.checkpoint, "_get_autocast_kwargs"):
            yield "_get_autocast_kwargs", torch.utils.checkpoint, get_autocast_state
        ours = getattr(sys.modules.get("transformers.utils.generic"), "maybe_autocast", None)
        if ours is not None:  # leaves autocast alone on meta

            def make_region_like_cuda(
                device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
            ) -> Any:
                return torch.autocast(device_type, dtype, enabled, cache_enabled)

            for module in list(sys.modules.values()):
                if vars(module).get("maybe_autocast") is ours:
                    yield "maybe_autocast", module, make_region_like_cuda


def _has_cuda_autocast_kernel(name: str) -> bool:
    """Return whether the installed torch registers the operator for CUDA's autocast."""
    try:
        return bool(
            torch._C._dispatch_has_kernel_for_dispatch_key(name, torch._C.DispatchKey.AutocastCUDA)
        )
    except RuntimeError:  # there is no such operator: torchvision is not loaded
        return False


def _get_operator_overload(space: str, name: str) -> _Op:
    packet, _, overload = name.partition(".")
    operator: _Op = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
    return operator


@contextmanager
def _include_autocast_dispatch_key() -> Iterator[None]:
    """Operators of this thread pass the key."""
    excluded, included = (
        torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY),
        torch._C._dispatch_tls_is_dispatch_key_included(_KEY),
    )
    torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, included)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, excluded)
