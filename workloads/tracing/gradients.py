"""Find the autograd nodes that each module's forward created, and the gradients each computes.
Imports torch.

Seen with torch 2.4 to 2.15: sequence numbers, ``metadata`` and ``next_functions`` of a node. A
node's number is larger than those of the nodes whose results it uses; every thread has its
own count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Callable, Tuple

from torch import Tensor, nn

from perfctl.workloads.tracing.versions import next_number, register_prehook

LEAF = 2**64 - 1
"""Sequence number of AccumulateGrad, the node that adds to a parameter's gradient."""

_MARK = "perfctl"
"""Key in a node's metadata, set when a layer claimed the node; its value: whether the node leads
only to parameters."""
_PRODUCTS = {
    "AddmmBackward0": (1, 2),
    "BaddbmmBackward0": (1, 2),
    "AddbmmBackward0": (1, 2),
    "MmBackward0": (0, 1),
    "BmmBackward0": (0, 1),
    "MvBackward0": (0, 1),
    "ConvolutionBackward0": (0, 1),
}
"""Nodes of a matrix product or a convolution, and which of their inputs are multiplied with
each other."""
_CHECKPOINT = "CheckpointFunctionBackward"
"""Runs part of the model forward and backward: both gradients, whatever its edges are."""
_COMPILED = "CompiledFunctionBackward"
"""The backward pass of all layers that torch.compile joined: both gradients if it has parameters,
because all layers but the first have input gradients."""

Hooks = Callable[[str, str], Tuple[Callable[..., None], Callable[..., None]]]
"""From a layer and a direction to the prehook and the hook of its nodes."""


class NodeLayers:
    """Maps a thread's nodes to layers: the layer that was running when a node got its number
    created it."""

    __slots__ = ("layers", "starts")

    def __init__(self, layer: str | None = None, first: int | None = None) -> None:
        """With ``first``, all nodes from that number on belong to ``layer``."""
        self.starts: list[int] = [] if first is None else [first]
        """First numbers in ascending order; of equal ones the last counts."""
        self.layers: list[str | None] = [] if first is None else [layer]
        """The layer for the nodes from the start at the same index; None: no layer."""

    def set_next_autograd_nodes_layer(self, layer: str | None) -> None:
        self.starts.append(next_number())
        self.layers.append(layer)

    def clear(self) -> None:
        self.starts.clear()
        self.layers.clear()


def hook_unclaimed_autograd_nodes(
    outputs: Iterable[Tensor],
    layers_by_node_number: NodeLayers,
    find_parameter_layer: Callable[[Tensor], str | None],
    make_hooks: Hooks,
) -> None:
    """Register hooks on the unclaimed nodes that led to ``outputs``, for the layer that
    created each.

    A parameter's node belongs to the layer that ``find_parameter_layer`` returns. One flat loop:
    after a step on the CPU the caches are cold, so the cost is the amount of code and memory
    touched.
    """
    starts, layers = layers_by_node_number.starts, layers_by_node_number.layers
    first = starts[0]
    waiting: list[Any] = [node for tensor in outputs if (node := tensor.grad_fn) is not None]
    queued: set[Any] = set(waiting)
    unclaimed: list[tuple[int, Any, dict[str, Any], Any]] = []
    for node in waiting:  # grows meanwhile
        number = node._sequence_nr()
        if number == LEAF:
            _hook_leaf_node(node, layers[0], find_parameter_layer, make_hooks)
        elif number >= first:
            metadata, below = node.metadata, node.next_functions
            if _MARK not in metadata:
                unclaimed.append((number, node, metadata, below))
            for edge, _ in below:
                if edge is not None and edge not in queued:
                    queued.add(edge)
                    waiting.append(edge)
    unclaimed.sort(key=itemgetter(0))
    index, last = 0, len(starts) - 1
    for number, node, metadata, below in unclaimed:
        while index < last and starts[index + 1] <= number:
            index += 1
        layer = layers[index]
        if layer is not None:
            direction, metadata[_MARK] = _classify_direction_and_parameter_only(node, below)
            _register_node_hooks(node, make_hooks(layer, direction))


def hook_autograd_nodes_between(
    outputs: Iterable[Tensor],
    inputs: set[Any],
    layer: str,
    find_parameter_layer: Callable[[Tensor], str | None],
    make_hooks: Hooks,
) -> None:
    """Register hooks on the unclaimed nodes of ``outputs`` down to those in ``inputs``, all of
    which belong to ``layer``.

    For torch before 2.1, whose nodes have no numbers. Called when a layer ends, the
    innermost first.
    """
    visited = set(inputs)
    waiting: list[Any] = [node for tensor in outputs if (node := tensor.grad_fn) is not None]
    ordered: list[Any] = []
    while waiting:  # depth first: a node comes after all below it
        node = waiting.pop()
        if isinstance(node, tuple):
            ordered.append(node[0])
        elif node not in visited and _MARK not in node.metadata:
            visited.add(node)
            waiting.append((node,))
            waiting += [edge for edge, _ in node.next_functions if edge is not None]
    for node in ordered:
        if hasattr(node, "variable"):
            _hook_leaf_node(node, layer, find_parameter_layer, make_hooks)
        else:
            direction, node.metadata[_MARK] = _classify_direction_and_parameter_only(
                node, node.next_functions
            )
            _register_node_hooks(node, make_hooks(layer, direction))


def _register_node_hooks(node: Any, hooks: tuple[Callable[..., None], Callable[..., None]]) -> None:
    before, after = hooks
    register_prehook(node, before)
    node.register_hook(after)


def _hook_leaf_node(
    node: Any,
    default_layer: str | None,
    find_parameter_layer: Callable[[Tensor], str | None],
    make_hooks: Hooks,
) -> None:
    metadata = node.metadata
    if _MARK in metadata:
        return
    variable = node.variable
    metadata[_MARK] = is_parameter = isinstance(variable, nn.Parameter)
    layer = (find_parameter_layer(variable) or default_layer) if is_parameter else None
    if layer is not None:
        _register_node_hooks(node, make_hooks(layer, "grad_weight"))


def _classify_direction_and_parameter_only(node: Any, next_functions: Any) -> tuple[str, bool]:
    """Return (direction, whether the node's result depends only on parameters).

    grad_weight: its gradients go only to parameters; grad_input: to none; backward: to both. A
    cast, viewed or normalised parameter still counts as one. A missing edge is an input without
    gradient: data or a number.
    """
    parameters, data, absent = False, False, False
    for edge, _ in next_functions:
        if edge is None:
            absent = True
        elif edge.metadata.get(_MARK):
            parameters = True
        else:
            data = True
    if not parameters:
        return ("backward" if node.name() == _CHECKPOINT else "grad_input"), False
    if node.name() == _COMPILED:
        return "backward", False
    operands = _PRODUCTS.get(node.name())
    if operands is not None:
        both = all(
            index < len(next_functions) and next_functions[index][0] is not None
            for index in operands
        )
        return ("backward" if both or data else "grad_weight"), False
    return ("backward" if data else "grad_weight"), not (data or absent)


def iterate_output_tensors(value: Any, deep: bool = True) -> Iterator[Tensor]:
    """Yield the tensors in a module's output, inside tuples, lists, dictionaries, dataclasses and
    other objects."""
    parts: Iterable[Any] = ()
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    elif deep and type(value).__module__ != "builtins" and not isinstance(value, (type, nn.Module)):
        parts, deep = getattr(value, "__dict__", {}).values(), False
    for part in parts:
        yield from iterate_output_tensors(part, deep)


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in tuples, lists and dictionaries, in order; of another object, its
    ``data``."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from iterate_tensors(part)
    elif isinstance(data := getattr(value, "data", None), Tensor):
        yield data
