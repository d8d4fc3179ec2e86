"""Select the dispatcher operations that matter, and extract what formulas need beyond shapes. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from perfctl.records.paper import OpShape

Attributes = tuple[tuple[str, Any], ...]
"""(name, JSON value) pairs, with tuples for lists, so that they are hashable."""
Extractor = Callable[[tuple[Any, ...], dict[str, Any]], Attributes]
"""From the arguments of an operator to what its formula needs."""

BOOKKEEPING = frozenset({"profiler", "prim", "prims_internal", "c10d_internal"})
"""Namespaces without arithmetic."""

FREE = frozenset((
    "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided",
    "aten._unsafe_view", "aten._reshape_alias", "aten.lift_fresh", "aten.detach_", "aten.resize_", "aten.set_",
    "aten.sym_size", "aten.sym_stride", "aten.sym_numel", "aten.is_same_size", "aten.result_type", "aten.view",
    "aten.record_stream", "aten._has_same_storage_numel", "aten.expand", "aten.as_strided_", "aten.t_",
    "aten.transpose_", "aten.clone", "aten.squeeze_", "aten.unsqueeze_", "aten.requires_grad_", "aten._nested_tensor_from_mask",
))  # fmt: skip
"""Operations that compute nothing, besides those that the dispatcher marks as views.

clone is one of them: reshape and contiguous call it depending on the memory layout that a device's kernels prefer, not on
the model.
"""


@dataclass(frozen=True, slots=True)
class ModuleSeen:
    path: str
    """Dotted; "" for the model itself."""
    kind: str
    depth: int
    output: tuple[int, ...] | None
    """Shape of the first output tensor of its first call; None when it was not called or returned no tensor."""
    parameters: int
    """Elements of its own parameters, without its children's; a shared tensor counts at its first owner."""
    trainable: int
    parameter_bytes: int
    buffer_bytes: int
    called: bool


class OpPlan(NamedTuple):
    name: str
    """Namespace and name without overload: aten.convolution."""
    free: bool
    """Not recorded: a view or an allocation."""
    composite: bool
    """Consists of other operators, which are recorded instead (it appears like this under inference_mode)."""
    attributes: Extractor | None
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
    return OpPlan(name, free, composite, attributes, not _DYNAMIC.isdisjoint(func.tags) or name == "torchvision.nms")


def _at(args: tuple[Any, ...], index: int) -> Any:
    return args[index] if len(args) > index else None


def _hashable(value: Any) -> Any:
    """Lists become tuples; symbolic and tensor values become None."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return value if isinstance(value, (bool, int, float, str)) else None


def _pointwise(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attributes:
    return (("pointwise", True),)


def _named(*names: str) -> Extractor:
    """An extractor of arguments with plain values, named in positional order; "" skips one."""

    def extract(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attributes:
        found = ((name, kwargs.get(name, _at(args, index))) for index, name in enumerate(names) if name)
        return tuple((name, _hashable(value)) for name, value in found if value is not None)

    return extract


_WINDOW = _named("", "", "", "stride", "padding", "dilation", "transposed", "", "groups")
_CONVOLUTION_BACKWARD = _named(
    "", "", "", "", "stride", "padding", "dilation", "transposed", "", "groups", "output_mask"
)
_MAX_POOL = _named("", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
_FLASH = _named("", "", "", "dropout_p", "is_causal")
_EFFICIENT = _named("", "", "", "", "", "dropout_p", "is_causal")


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attributes:
    return ("bias", _at(args, 2) is not None), *_WINDOW(args, kwargs)


ATTRIBUTES: dict[str, Extractor] = {
    f"aten.{name}": extractor
    for names, extractor in (
        ("convolution _convolution convolution_overrideable", _convolution),
        ("convolution_backward convolution_backward_overrideable", _CONVOLUTION_BACKWARD),
        ("max_pool2d_with_indices max_pool3d_with_indices", _MAX_POOL),
        ("avg_pool2d avg_pool3d", _named("", "kernel_size", "stride", "padding", "ceil_mode")),
        ("avg_pool2d_backward avg_pool3d_backward", _named("", "", "kernel_size", "stride", "padding")),
        ("native_batch_norm cudnn_batch_norm miopen_batch_norm", _named("", "", "", "", "", "training")),
        ("_batch_norm_with_update", _named()),
        ("native_batch_norm_backward", _named("", "", "", "", "", "", "", "train", "eps", "output_mask")),
        ("native_layer_norm", _named("", "normalized_shape")),
        ("native_group_norm", _named("", "", "", "N", "C", "HxW", "group")),
        ("embedding_dense_backward", _named("", "", "num_weights")),
        ("_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu", _FLASH),
        ("_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention", _EFFICIENT),
    )
    for name in names.split()
}
"""Operation -> extractor, where the formula needs more than shapes."""

Note = tuple[Any, ...]
"""layer, kind, functional, op, direction, role, recompute, inputs, outputs, dtypes, attributes: hashable."""


def op_shapes(seen: Mapping[Note, list[int]], parameters: Mapping[str, int]) -> tuple[OpShape, ...]:
    """``seen``: note -> [order of the first, calls]; ``parameters``: dotted path -> elements of its own.

    Parameters of modules that did not run count for the nearest module above that did.
    """
    ran = {note[0] for note in seen}
    own: dict[str, int] = {}
    for path, count in parameters.items():
        while path and path not in ran:
            path = path.rpartition(".")[0]
        own[path] = own.get(path, 0) + count
    return tuple(_op_shape(note, entry, own) for note, entry in seen.items())


def _op_shape(note: Note, entry: list[int], own: dict[str, int]) -> OpShape:
    layer, kind, functional, op, direction, role, recompute, inputs, outputs, types, attributes = note
    marks = {"functional": functional, "role": role, "recompute": recompute or None}
    extra: dict[str, object] = {name: _json(value) for name, value in attributes}
    extra |= {name: value for name, value in marks.items() if value is not None}
    dtypes = tuple(str(dtype).removeprefix("torch.") for dtype in types)
    return OpShape(
        layer, kind, op, direction, inputs, outputs, dtypes, extra,
        parameters=own.get(layer, 0) if kind else 0, calls=entry[1], position=entry[0],
    )  # fmt: skip


def _json(value: Any) -> Any:
    return [_json(item) for item in value] if isinstance(value, tuple) else value


def modules_seen(
    modules: Iterable[tuple[str, torch.nn.Module]], outputs: Mapping[str, tuple[int, ...] | None]
) -> tuple[ModuleSeen, ...]:
    """A row per named module; ``outputs``: output shapes of those that ran."""
    seen: set[int] = set()
    found = []
    for path, module in modules:
        own = [tensor for tensor in module.parameters(recurse=False) if id(tensor) not in seen]
        seen.update(map(id, own))
        row = ModuleSeen(
            path, type(module).__name__, depth=path.count(".") + 1 if path else 0, output=outputs.get(path),
            parameters=sum(tensor.numel() for tensor in own),
            trainable=sum(tensor.numel() for tensor in own if tensor.requires_grad),
            parameter_bytes=sum(tensor.numel() * tensor.element_size() for tensor in own),
            buffer_bytes=sum(tensor.numel() * tensor.element_size() for tensor in module.buffers(recurse=False)),
            called=path in outputs,
        )  # fmt: skip
        found.append(row)
    return tuple(found)
