"""Select the dispatcher operations that matter, and extract what formulas need beyond shapes.

Imports torch: only :mod:`perfctl.workloads.tracing.watch` needs it, inside the process that runs the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from perfctl.records.paper import OpShape
from perfctl.workloads.tracing.recorder import ModuleSeen

Attributes = tuple[tuple[str, Any], ...]
"""(name, JSON value) pairs, with tuples for lists, so that they are hashable."""

BOOKKEEPING = frozenset({"profiler", "prim", "prims_internal", "c10d_internal"})
"""Namespaces without arithmetic."""

FREE = frozenset(
    {
        "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided",
        "aten._unsafe_view", "aten._reshape_alias", "aten.lift_fresh", "aten.detach_", "aten.resize_", "aten.set_",
        "aten.sym_size", "aten.sym_stride", "aten.sym_numel", "aten.is_same_size", "aten.result_type", "aten.view",
        "aten.record_stream", "aten._has_same_storage_numel", "aten.expand", "aten.as_strided_", "aten.t_",
        "aten.transpose_", "aten.clone", "aten.squeeze_", "aten.unsqueeze_", "aten.requires_grad_", "aten._nested_tensor_from_mask",
    }
)  # fmt: skip
"""Operations that compute nothing, besides those that the dispatcher marks as views.

clone is one of them: reshape and contiguous call it depending on the memory layout that a device's kernels prefer, not on
the model.
"""


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How to record one operator overload."""

    name: str
    """Namespace and name without overload: aten.convolution."""
    free: bool
    """Not recorded: a view or an allocation."""
    composite: bool
    """Consists of other operators, which are recorded instead (it appears like this under inference_mode)."""
    attributes: Callable[[tuple[Any, ...], dict[str, Any]], Attributes] | None
    dynamic: bool
    """Its result (a size, a number on the host) depends on data, not only on shapes."""


_DYNAMIC = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


def plan_for(func: Any) -> OpPlan:
    """The plan for a ``torch._ops.OpOverload``; callers cache it."""
    namespace = func.namespace
    name = f"{namespace}.{func._schema.name.partition('::')[2]}"
    free = namespace in BOOKKEEPING or name in FREE or bool(func.is_view)
    composite = bool(func._can_decompose()) and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )
    attributes = ATTRIBUTES.get(name)
    if attributes is None and torch.Tag.pointwise in func.tags:
        attributes = _pointwise
    dynamic = not _DYNAMIC.isdisjoint(func.tags) or name == "torchvision.nms"
    return OpPlan(name, free, composite, attributes, dynamic)


def _at(args: tuple[Any, ...], index: int, default: Any = None) -> Any:
    return args[index] if len(args) > index else default


def _hashable(value: Any) -> Any:
    """Lists become tuples; symbolic and tensor values become None."""
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(item) for item in value)
    return value if isinstance(value, (bool, int, float, str)) else None


def _pointwise(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attributes:
    return (("pointwise", True),)


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attributes:
    return (
        ("bias", _at(args, 2) is not None),
        ("stride", _hashable(args[3])),
        ("padding", _hashable(args[4])),
        ("dilation", _hashable(args[5])),
        ("transposed", args[6]),
        ("groups", args[8]),
    )


def _convolution_backward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attributes:
    return (
        ("stride", _hashable(args[4])),
        ("padding", _hashable(args[5])),
        ("dilation", _hashable(args[6])),
        ("transposed", args[7]),
        ("groups", args[9]),
        ("output_mask", _hashable(args[10])),
    )


def _named(*names: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Attributes]:
    """An extractor of arguments with plain values, named in positional order; "" skips one."""

    def extract(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attributes:
        found = []
        for index, name in enumerate(names):
            value = kwargs.get(name, _at(args, index))
            if name and value is not None:
                found.append((name, _hashable(value)))
        return tuple(found)

    return extract


_POOL = _named("", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVERAGE = _named("", "kernel_size", "stride", "padding", "ceil_mode")
_POOL_BACKWARD = _named("", "", "kernel_size", "stride", "padding")
_NORM_BACKWARD = _named("", "", "", "", "", "", "", "train", "eps", "output_mask")

ATTRIBUTES: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], Attributes]] = {
    "aten.convolution": _convolution,
    "aten._convolution": _convolution,
    "aten.convolution_overrideable": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten.convolution_backward_overrideable": _convolution_backward,
    "aten.max_pool2d_with_indices": _POOL,
    "aten.max_pool3d_with_indices": _POOL,
    "aten.avg_pool2d": _AVERAGE,
    "aten.avg_pool3d": _AVERAGE,
    "aten.avg_pool2d_backward": _POOL_BACKWARD,
    "aten.avg_pool3d_backward": _POOL_BACKWARD,
    "aten.native_batch_norm": _named("", "", "", "", "", "training"),
    "aten.cudnn_batch_norm": _named("", "", "", "", "", "training"),
    "aten.miopen_batch_norm": _named("", "", "", "", "", "training"),
    "aten._batch_norm_with_update": _named(),
    "aten.native_batch_norm_backward": _NORM_BACKWARD,
    "aten.native_layer_norm": _named("", "normalized_shape"),
    "aten.native_group_norm": _named("", "", "", "N", "C", "HxW", "group"),
    "aten.embedding_dense_backward": _named("", "", "num_weights"),
    "aten._scaled_dot_product_flash_attention": _named("", "", "", "dropout_p", "is_causal"),
    "aten._scaled_dot_product_flash_attention_for_cpu": _named("", "", "", "dropout_p", "is_causal"),
    "aten._scaled_dot_product_efficient_attention": _named("", "", "", "", "", "dropout_p", "is_causal"),
    "aten._scaled_dot_product_cudnn_attention": _named("", "", "", "", "", "dropout_p", "is_causal"),
}
"""Operation -> extractor, where the formula needs more than shapes."""

Note = tuple[Any, ...]
"""layer, kind, functional, op, direction, role, recompute, inputs, outputs, dtypes, attributes: hashable."""


def op_shapes(seen: Mapping[Note, list[int]], parameters: Mapping[str, int]) -> tuple[OpShape, ...]:
    """``seen``: note -> [order of the first, calls]; ``parameters``: dotted path -> elements of its own."""
    own = _own_parameters(seen, parameters)
    return tuple(_op_shape(note, entry, own) for note, entry in seen.items())


def _own_parameters(seen: Mapping[Note, list[int]], parameters: Mapping[str, int]) -> dict[str, int]:
    """Parameters per layer that ran; those of modules that did not run count for the nearest module above that did."""
    ran = {note[0] for note in seen}
    own: dict[str, int] = {}
    for path, count in parameters.items():
        while path and path not in ran:
            path = path.rpartition(".")[0]
        own[path] = own.get(path, 0) + count
    return own


def modules_seen(
    modules: Iterable[tuple[str, torch.nn.Module]], outputs: Mapping[str, tuple[int, ...] | None]
) -> tuple[ModuleSeen, ...]:
    """A row per named module; ``outputs``: output shapes of those that ran."""
    seen: set[int] = set()
    found = []
    for path, module in modules:
        own = [tensor for tensor in module.parameters(recurse=False) if id(tensor) not in seen]
        seen.update(id(tensor) for tensor in own)
        buffers = list(module.buffers(recurse=False))
        found.append(
            ModuleSeen(
                path=path,
                kind=type(module).__name__,
                depth=path.count(".") + 1 if path else 0,
                output=outputs.get(path),
                parameters=sum(tensor.numel() for tensor in own),
                trainable=sum(tensor.numel() for tensor in own if tensor.requires_grad),
                parameter_bytes=sum(tensor.numel() * tensor.element_size() for tensor in own),
                buffer_bytes=sum(tensor.numel() * tensor.element_size() for tensor in buffers),
                called=path in outputs,
            )
        )
    return tuple(found)


def first_shape(output: Any) -> tuple[int, ...] | None:
    """Shape of the first tensor in a module's output."""
    if isinstance(output, torch.Tensor):
        return tuple(output.shape)
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((shape for shape in map(first_shape, output) if shape is not None), None)
    data = getattr(output, "data", None)
    return tuple(data.shape) if isinstance(data, torch.Tensor) else None


def _json(value: Any) -> Any:
    return [_json(item) for item in value] if isinstance(value, tuple) else value


def _op_shape(record: tuple[Any, ...], entry: list[int], own: dict[str, int]) -> OpShape:
    layer, kind, functional, op, direction, role, recompute, inputs, outputs, types, attributes = record
    extra: dict[str, object] = {name: _json(value) for name, value in attributes}
    if functional is not None:
        extra["functional"] = functional
    if role is not None:
        extra["role"] = role
    if recompute:
        extra["recompute"] = True
    return OpShape(
        layer=layer,
        kind=kind,
        op=op,
        direction=direction,
        inputs=inputs,
        outputs=outputs,
        dtypes=tuple(str(dtype).removeprefix("torch.") for dtype in types),
        attributes=extra,
        parameters=own.get(layer, 0) if kind else 0,
        calls=entry[1],
        position=entry[0],
    )
