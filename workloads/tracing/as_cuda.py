"""Run on any device what a CUDA GPU would run, as far as memory differs: attention, dropout,
recurrent layers, optimizers.

A kernel is replaced by the shapes of what it returns, keeps for backward and takes as scratch.
Rules and sizes: PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (choice of the
kernel), attention.cpp (padding, masks), attention_backward.cu and
mem_eff_attention/kernel_backward.h (scratch), flash_attn/flash_api.cpp (scratch), Dropout.cpp,
cudnn/RNN.cpp, torch/optim/optimizer.py. Imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perfctl.records.paper import GpuChoices, OpShape
from perfctl.workloads.tracing.versions import Args, replace_attribute

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
KINDS = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}

_SCRATCH = frozenset(
    (
        "aten._scaled_dot_product_flash_attention_backward",
        "aten._scaled_dot_product_cudnn_attention_backward",
        "aten._scaled_dot_product_efficient_attention_backward",
    )
)

_GATES = {"lstm": 6, "gru": 5, "rnn_tanh": 2, "rnn_relu": 2}
"""Function -> values that are taken to be kept for backward, for each hidden unit and step: gates
and states."""


def get_dtype_name(tensor: Tensor) -> str:
    return KINDS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def round_up_to_multiple(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class GpuKernelChoices:
    """The kernels of one GPU; ``assumption_lines`` says which were taken."""

    def __init__(self, gpu: GpuChoices) -> None:
        self.gpu = gpu
        self.attention: Counter[str] = Counter()
        self.dropouts = self.recurrent = 0
        self.update = ""

    @property
    def assumption_lines(self) -> tuple[str, ...]:
        """One line for each choice that the step met."""
        lines = [
            f"attention: {text}, {calls:,} call{'s' * (calls > 1)}"
            for text, calls in self.attention.items()
        ]
        if self.dropouts:
            lines.append("dropout: CUDA's own kernel, which keeps a mask of 1 byte per value")
        if self.recurrent:
            lines.append(
                "recurrent layers: cuDNN; what it keeps for backward is not published, assumed to "
                "be gates and states of every step"
            )
        return (*lines, self.update) if self.update else tuple(lines)

    @contextmanager
    def install_gpu_kernels(self) -> Iterator[None]:
        """Within, calls from Python to attention, dropout and recurrent layers take the
        GPU's kernels."""
        functional, vf = torch.nn.functional, torch._VF
        self.attention.clear()
        self.dropouts = self.recurrent = 0
        attention = functional.scaled_dot_product_attention
        dropout = partial(_emulate_gpu_dropout, self, torch.dropout)
        replacements = (
            (
                functional,
                "scaled_dot_product_attention",
                partial(_emulate_gpu_attention, self, attention),
            ),
            (torch, "dropout", dropout),
            (vf, "dropout", dropout),
            *(
                (vf, mode, partial(_emulate_cudnn_recurrent, self, mode, getattr(vf, mode)))
                for mode in _GATES
            ),
        )
        with ExitStack() as stack:
            for replacement in replacements:
                stack.callback(replace_attribute(*replacement))
            yield


def _emulate_gpu_attention(
    kernels: GpuKernelChoices,
    original_function: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """scaled_dot_product_attention; ``original_function``: torch's own."""
    run = partial(
        original_function,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    tensors = [query, key, value, attn_mask]
    if any(isinstance(item, Tensor) and item.is_nested for item in tensors):
        kernels.attention["of nested tensors, as this device runs it"] += 1
        return run(*tensors)
    query, key, value, attn_mask = tensors = _cast_to_autocast_type(*tensors)
    if not query.is_meta:
        kernels.attention["as this device runs it, because it has data"] += 1
        return run(*tensors)
    call = AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kernel, reason = choose_attention_kernel_and_reason(kernels.gpu, call)
    text = f"{kernel} kernel{f' ({reason})' if reason else ''}, {get_dtype_name(query)}"
    kernels.attention[f"{text}, head size {query.shape[-1]}"] += 1
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if kernel == "math":
        return run(*tensors, scale=scale)
    grad = torch.is_grad_enabled() and any(item.requires_grad for item in tensors[:3])
    if kernel == "flash":
        size, padding = query.shape[-1], -query.shape[-1] % 8
        if padding:
            query, key, value = (
                torch.nn.functional.pad(item, (0, padding)) for item in (query, key, value)
            )
        output = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
        return output[..., :size] if padding else output
    mask = attn_mask
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(
            mask.logical_not(), float("-inf"), torch.zeros((), dtype=query.dtype, device="meta")
        )
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, grad, dropout_p, is_causal, False, scale=scale
        )[0]
    if mask is not None:
        if padding := -mask.shape[-1] % 8:
            mask = torch.nn.functional.pad(mask, (0, padding))[..., : mask.shape[-1]]
        mask = mask.expand(*query.shape[:2], query.shape[-2], key.shape[-2])
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, grad, dropout_p, is_causal, scale=scale
    )[0]


def _cast_to_autocast_type(*tensors: Any) -> list[Any]:
    """CUDA's autocast runs attention and recurrent layers in its lower type; what is no number with
    a fraction stays."""
    if not torch.is_autocast_enabled("cuda"):
        return list(tensors)
    to = torch.get_autocast_dtype("cuda")
    return [
        item.to(to)
        if isinstance(item, Tensor) and item.is_floating_point() and item.dtype != torch.float64
        else item
        for item in tensors
    ]


class AttentionCall(NamedTuple):
    """What a kernel of attention must take: dense tensors and settings."""

    query: Any
    key: Any
    value: Any
    mask: Any
    dropout: float
    causal: bool
    grouped: bool
    """Whether several heads of queries share one of keys."""


def choose_attention_kernel_and_reason(gpu: GpuChoices, call: AttentionCall) -> tuple[str, str]:
    """Return (kernel that a GPU takes for dense tensors, why not an earlier one; "" for the first
    one that PyTorch tries)."""
    refused = {
        "cudnn": _explain_no_cudnn(gpu, call),
        "flash": _explain_no_flash(gpu, call),
        "efficient": _explain_no_efficient(gpu, call),
        "math": "",
    }
    if gpu.attention != "auto":
        if reason := refused[gpu.attention]:
            return "math", f"{gpu.attention} {reason}"
        return gpu.attention, "as requested"
    reasons: list[str] = []
    order = (
        ("cudnn", "flash", "efficient", "math")
        if gpu.capability[0] in (9, 10)
        else ("flash", "efficient", "math")
    )
    for name in order:
        if not refused[name]:
            return name, "; ".join(reasons)
        reasons.append(f"{name} {refused[name]}")
    raise AssertionError("math always runs")


def _explain_no_fused_kernel(call: AttentionCall, types: tuple[Any, ...]) -> str:
    """Return what keeps every fused kernel from running."""
    query, key, value, *_, grouped = call
    if not query.dim() == key.dim() == value.dim() == 4:
        return "needs 4 dimensions"
    if not query.dtype == key.dtype == value.dtype or query.dtype not in types:
        return f"takes no {get_dtype_name(query)} here"
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return "needs equal batch sizes"
    heads, keys = query.shape[1], key.shape[1]
    if keys != value.shape[1] or (heads % max(keys, 1) if grouped else heads != keys):
        return "needs equal numbers of heads"
    if 0 in (query.shape[2], key.shape[2]):
        return "takes no empty sequence"
    if any(item.stride(-1) != 1 and item.shape[-1] != 1 for item in (query, key, value)):
        return "needs a contiguous last dimension"
    return ""


def _explain_no_flash(gpu: GpuChoices, call: AttentionCall) -> str:
    query, key, value, mask, dropout, causal, _ = call
    size = query.shape[-1]
    if mask is not None:
        return "takes no mask"
    if gpu.capability < (8, 0):
        return "needs sm_80"
    if refused := _explain_no_fused_kernel(call, HALF):
        return refused
    if not size == key.shape[-1] == value.shape[-1] or size > 256:
        return f"takes no head size {size}"
    trained = torch.is_grad_enabled() and any(item.requires_grad for item in (query, key, value))
    few = (8, 6) <= gpu.capability <= (8, 9) or gpu.capability[0] == 12
    if trained and few and size > 192 and not (size > 224 and not dropout):
        return f"has no backward for head size {size}"
    return (
        "takes no causal mask for unequal lengths"
        if causal and query.shape[2] != key.shape[2]
        else ""
    )


def _explain_no_efficient(gpu: GpuChoices, call: AttentionCall) -> str:
    query, key, value, *_ = call
    ampere = gpu.capability >= (8, 0)
    if refused := _explain_no_fused_kernel(
        call, (*HALF, torch.float32) if ampere else (HALF[0], torch.float32)
    ):
        return refused
    half = query.dtype in HALF
    to = (8 if half else 4) if ampere else 8 if half and gpu.capability >= (7, 0) else 1
    if query.shape[-1] != key.shape[-1] or query.shape[-1] % to or value.shape[-1] % to:
        return f"takes head sizes in multiples of {to}"
    if ampere and any(item.storage_offset() % to for item in (query, key, value)):
        return "needs aligned tensors"
    return ""


def _explain_no_cudnn(gpu: GpuChoices, call: AttentionCall) -> str:
    query, key, value, mask, dropout, *_ = call
    if gpu.capability < (8, 0):
        return "needs sm_80"
    if refused := _explain_no_fused_kernel(call, HALF):
        return refused
    sizes = query.shape[-1], value.shape[-1]
    if mask is not None and mask.requires_grad:
        return "gives a mask no gradient"
    if mask is not None and mask.dim() not in (2, 4):
        return "takes masks of 2 or 4 dimensions"
    if dropout * 16 != int(dropout * 16):
        return "takes dropout in multiples of 1/16"
    large = gpu.capability[0] in (9, 10) and sizes == (192, 128)
    if (max(sizes) > 128 and not large) or any(size % 8 for size in sizes):
        return f"takes no head size {max(sizes)}"
    return (
        "takes no sequence of length 1"
        if key.shape[2] == 1 or (dropout and query.shape[2] == 1)
        else ""
    )


def estimate_attention_backward_scratch_bytes(name: str, args: Args) -> int:
    """Return bytes that a kernel takes while it runs, beside what it returns; 0 for all others.

    cuDNN's attention does not publish its own; it also adds up the queries' gradient in fp32, so
    flash's is taken.
    """
    if name not in _SCRATCH:
        return 0
    query, key = args[1], args[2]
    batch, heads, length, size = map(int, query.shape)
    value_size = int(args[3].shape[-1])
    if name == "aten._scaled_dot_product_efficient_attention_backward":
        # delta; the sum of the queries' gradient in tiles; before that, for fp32, the product of
        # the output with its gradient
        delta = 4 * batch * heads * length
        sums = 4 * batch * heads * round_up_to_multiple(length, 64) * round_up_to_multiple(size, 64)
        product = 0 if query.dtype in HALF else 4 * batch * heads * length * value_size
        return delta + max(sums, product)
    rows = round_up_to_multiple(length, 128)
    sums = 4 * batch * heads * rows * (1 + round_up_to_multiple(size, 32))
    # grouped queries: gradients of keys and values for every query head first
    expanded = key.shape[1] != heads
    return sums + (
        2 * batch * heads * int(key.shape[2]) * size * int(query.element_size()) if expanded else 0
    )


def _emulate_gpu_dropout(
    kernels: GpuKernelChoices, original_function: Any, input: Any, p: float, train: bool
) -> Any:
    """CUDA runs native_dropout, which keeps a mask of booleans, where the CPU keeps the noise
    as numbers."""
    if not train or not 0 < p < 1 or not input.numel() or input.is_nested:
        return original_function(input, p, train)
    kernels.dropouts += 1
    return torch.native_dropout(input, p, True)[0]


def undo_gpu_dropout_operations(ops: tuple[OpShape, ...]) -> tuple[OpShape, ...]:
    """Return the operations, with dropout as other devices run it: counts do not depend on whether
    memory was asked for."""
    counted: list[OpShape] = []
    for op in ops:
        if op.op == "aten.native_dropout":
            shape, kind = op.inputs[0], op.dtypes[0]
            counted += [
                _rewrite_operation(op, "aten.bernoulli_", (shape, None), (kind, kind), False),
                _rewrite_operation(op, "aten.div_", (shape, None), (kind, kind), True),
                _rewrite_operation(op, "aten.mul", (shape, shape), (kind,) * 3, True),
            ]
        elif op.op == "aten.native_dropout_backward":
            counted.append(
                _rewrite_operation(op, "aten.mul", op.inputs[:2], (op.dtypes[0],) * 3, True)
            )
        else:
            counted.append(op)
    return tuple(replace(op, position=index) for index, op in enumerate(counted))


def _rewrite_operation(
    op: OpShape,
    name: str,
    inputs: tuple[tuple[int, ...] | None, ...],
    dtypes: tuple[str, ...],
    pointwise: bool,
) -> OpShape:
    first: dict[str, object] = {"pointwise": True} if pointwise else {}
    attributes = {
        key: name if key == "functional" else value
        for key, value in op.attributes.items()
        if key != "pointwise"
    }
    return replace(
        op,
        op=name,
        inputs=inputs,
        outputs=op.outputs[:1],
        dtypes=dtypes,
        attributes={**first, **attributes},
    )


def _emulate_cudnn_recurrent(
    kernels: GpuKernelChoices, mode: str, original_function: Any, *args: Any
) -> Any:
    """cuDNN's recurrent layers, for meta tensors: outputs, final states, and a reserve
    for backward."""
    data = args[0]
    if not data.is_meta:
        return original_function(*args)
    kernels.recurrent += 1
    packed = isinstance(args[3], (list, tuple))
    hidden, weights, _, layers, _, _, both = args[2:9] if packed else args[1:8]
    states = tuple(hidden) if isinstance(hidden, (list, tuple)) else (hidden,)
    directions = 2 if both else 1
    units = states[-1].shape[-1] * directions * layers * prod(data.shape[:-1])
    width = states[0].shape[-1] * directions
    tensors = _cast_to_autocast_type(data, *states, *weights)
    return _CudnnRecurrent.apply(_GATES[mode] * units, width, len(states), *tensors)


class _CudnnRecurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, reserved: int, width: int, states: int, data: Any, *states_and_weights: Any
    ) -> Any:
        output = data.new_zeros((*data.shape[:-1], width))
        final = tuple(torch.empty_like(state) for state in states_and_weights[:states])
        reserve = data.new_empty(reserved if any(ctx.needs_input_grad) else 0)
        ctx.save_for_backward(data, *states_and_weights, output, reserve)
        return output, *final

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors[:-2]
        gradients = (
            torch.zeros_like(item) if needed else None
            for item, needed in zip(saved, ctx.needs_input_grad[3:], strict=True)
        )
        return None, None, None, *gradients


def choose_optimizer_implementation(
    kind: type, settings: dict[str, Any], requested_implementation: str
) -> tuple[dict[str, Any], str]:
    """Return (settings of an optimizer, which way they make it update on a GPU).
    ``requested_implementation``: one of UPDATES, as far as it has it."""
    if settings.get("fused") or settings.get("foreach") is not None:
        return settings, "fused" if settings.get("fused") else "foreach" if settings[
            "foreach"
        ] else "for-loop"
    has = signature(kind).parameters
    if requested_implementation == "fused" and "fused" in has:
        return {**settings, "fused": True}, "fused"
    if requested_implementation != "for-loop" and "foreach" in has:
        return {**settings, "foreach": True}, "foreach"
    return ({**settings, "foreach": False} if "foreach" in has else settings), "for-loop"


@contextmanager
def allow_fused_optimizers_on_meta() -> Iterator[None]:
    """Let an optimizer be made with ``fused=True`` for meta tensors."""
    module: Any = import_module("torch.optim.optimizer")
    supported = module._get_fused_kernels_supported_devices
    module._get_fused_kernels_supported_devices = lambda: [*supported(), "meta"]
    try:
        yield
    finally:
        module._get_fused_kernels_supported_devices = supported
