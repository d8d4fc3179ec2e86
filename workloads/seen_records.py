"""Turn a watch's notes into records. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from perfctl.parsers.paper import OpShape
from perfctl.workloads.shapes import ModuleSeen

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
