"""Results of operators on meta tensors, kept: torch works most of them out in Python, 0.1 to 5
ms each.

What an operator gives on meta follows from the sizes, strides and types of its tensors and from its
other arguments. An operator of the same ones again gets new tensors like those of the first time.
Views, tensors of other layouts or devices, subclasses and results that share memory with an
argument are computed each time.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from perfctl.workloads.tracing.gradients import iterate_tensors
from perfctl.workloads.tracing.versions import Args, Kwargs

KEPT = 50_000
"""Results; then all are forgotten."""
FRESH, IN_PLACE = "fresh", "in place"
_DEPENDS = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
_PLAIN = (Tensor, nn.Parameter)
_SAME = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class TensorRecipe(NamedTuple):
    """A tensor to make."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class ResultRecipe(NamedTuple):
    """A result: "fresh", its tensors (None where there is none) and their sequence's type; "in
    place", the place of its argument."""

    parts: tuple[TensorRecipe | None, ...]
    made: type | None
    """tuple or list; None for one tensor, or for nothing where ``parts`` is empty."""
    argument: int | None = None


_kinds: dict[Any, str] = {}
_results: dict[Hashable, ResultRecipe] = {}
_shapes: dict[TensorRecipe, int] = {}
"""A number for each, so that the key of an optimizer's thousand tensors is short."""


def compute_or_reuse_result(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the operator's result, kept or computed."""
    kind = _kinds.get(func)
    if kind is None:
        kind = _kinds[func] = _classify_reusable_result(func)
    key = _make_cache_key(func, args, kwargs) if kind else None
    if key is None:
        return func(*args, **kwargs)
    recipe = _results.get(key)
    if recipe is not None:
        return _make_result_from_recipe(recipe, args)
    result = func(*args, **kwargs)
    recipe = (
        _describe_fresh_result(result, args)
        if kind == FRESH
        else _describe_in_place_result(result, args)
    )
    if recipe is not None and key == _make_cache_key(
        func, args, kwargs
    ):  # no argument changed its size
        if len(_results) >= KEPT:
            _results.clear()
            _shapes.clear()
            return result
        _results[key] = recipe
    return result


def _classify_reusable_result(func: Any) -> str:
    """ "" for an operator whose result is not kept."""
    if not isinstance(func, torch._ops.OpOverload) or func.is_view or _DEPENDS & set(func.tags):
        return ""
    arguments, returned = func._schema.arguments, func._schema.returns
    aliases = [
        value.alias_info for value in (*arguments, *returned) if value.alias_info is not None
    ]
    if not aliases:
        return FRESH
    in_place = all(alias.is_write for alias in aliases) and len(returned) < 2
    return IN_PLACE if in_place and all(value.alias_info is not None for value in returned) else ""


def _make_cache_key(func: Any, args: Args, kwargs: Kwargs) -> Hashable | None:
    """None where an argument is not known to decide the result by its shape alone."""
    parts: list[Any] = [func, torch.get_default_dtype()]
    met = False
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            described: Hashable = _intern_tensor_description(value)
            met = True
        elif isinstance(value, (list, tuple)):
            items = [
                _intern_tensor_description(item)
                if isinstance(item, Tensor)
                else _make_typed_scalar(item)
                for item in value
            ]
            described = None if None in items else tuple(items)
            met = met or any(isinstance(item, Tensor) for item in value)
        else:
            described = _make_typed_scalar(value)
        if described is None:
            return None
        parts.append(described)
    return (*parts, *kwargs) if met else None


def _intern_tensor_description(tensor: Tensor) -> int | None:
    plain = type(tensor) in _PLAIN and tensor.is_meta and tensor.layout is torch.strided
    if not plain or tensor.dtype.is_complex or tensor.is_neg():
        return None
    return _shapes.setdefault(
        TensorRecipe(tensor.shape, tensor.stride(), tensor.dtype), len(_shapes)
    )


def _make_typed_scalar(value: Any) -> tuple[Any, ...] | None:
    """With its type: 1, 1.0 and True are equal."""
    return (type(value), value) if isinstance(value, _SAME) else None


def _describe_fresh_result(result: Any, args: Args) -> ResultRecipe | None:
    kind = type(result) if type(result) in (tuple, list) else None
    parts = [result] if kind is None else list(result)
    tensors = [part for part in parts if part is not None]
    if not tensors or not all(
        isinstance(tensor, Tensor) and _intern_tensor_description(tensor) is not None
        for tensor in tensors
    ):
        return None
    storages = [tensor.untyped_storage() for tensor in tensors]
    owners = {storage._cdata for storage in storages}
    shared = owners & {tensor.untyped_storage()._cdata for tensor in iterate_tensors(args)}
    likes = tuple(
        None if part is None else TensorRecipe(part.shape, part.stride(), part.dtype)
        for part in parts
    )
    sizes = [
        _make_empty_meta_tensor(like).untyped_storage().nbytes()
        for like in likes
        if like is not None
    ]
    if len(owners) < len(tensors) or shared or sizes != [storage.nbytes() for storage in storages]:
        return None
    return ResultRecipe(likes, kind)


def _describe_in_place_result(result: Any, args: Args) -> ResultRecipe | None:
    if result is None:
        return ResultRecipe((), None)
    index = next((index for index, value in enumerate(args) if value is result), None)
    return ResultRecipe((), None, index) if index is not None else None


def _make_result_from_recipe(recipe: ResultRecipe, args: Args) -> Any:
    if not recipe.parts:
        return None if recipe.argument is None else args[recipe.argument]
    tensors = [None if like is None else _make_empty_meta_tensor(like) for like in recipe.parts]
    return recipe.made(tensors) if recipe.made is not None else tensors[0]


def _make_empty_meta_tensor(like: TensorRecipe) -> Tensor:
    return torch.empty_strided(like.size, like.stride, dtype=like.dtype, device="meta")
