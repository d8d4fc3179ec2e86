"""Autograd's nodes: which ones a module's forward made, and which gradients each computes. Imports torch.

Seen with torch 2.4 to 2.15: sequence numbers, ``metadata`` and ``next_functions`` of a node. A node's number is larger
than the numbers of the nodes whose results it was made from; each thread counts for itself.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

LEAF = 2**64 - 1
"""Sequence number of AccumulateGrad, the node that adds to a parameter's gradient: it has none of its own."""
next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The sequence number that this thread's next autograd node will get."""
current_task: Callable[[], int] = torch._C._current_graph_task_id
"""Number of the backward pass that this thread works for; -1 outside of backward."""

_MARK = "perfctl"
"""Key in a node's own metadata: there when a layer has the node; its value says whether it leads to parameters alone."""
_PRODUCTS = {
    "AddmmBackward0": (1, 2),
    "BaddbmmBackward0": (1, 2),
    "AddbmmBackward0": (1, 2),
    "MmBackward0": (0, 1),
    "BmmBackward0": (0, 1),
    "MvBackward0": (0, 1),
    "ConvolutionBackward0": (0, 1),
}
"""Nodes of a matrix product or a convolution, and which of their inputs are multiplied with each other."""
_CHECKPOINT = "CheckpointFunctionBackward"
"""Runs a piece of the model forwards and backwards: both gradients, whatever its own edges are."""

Given = Callable[[Any, str, str], None]
"""Takes a node, the layer that it belongs to, and its direction."""


class Makers:
    """Which layer's forward made which of a thread's nodes: the layer that ran when their numbers were given out."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._layers: list[str | None] = []

    def mark(self, layer: str | None) -> None:
        """Nodes from here on are ``layer``'s."""
        now = next_number()
        if self._starts and self._starts[-1] == now:
            self._layers[-1] = layer
        else:
            self._starts.append(now)
            self._layers.append(layer)

    @property
    def first(self) -> int:
        """Number of the first node; the next one's where there is none yet."""
        return self._starts[0] if self._starts else next_number()

    def of(self, number: int) -> str | None:
        """The layer that made a node; None: no layer."""
        place = bisect_right(self._starts, number) - 1
        return self._layers[place] if place >= 0 else None

    def clear(self) -> None:
        """Forget all."""
        self._starts.clear()
        self._layers.clear()


def claim(
    outputs: Iterable[Tensor],
    first: int,
    maker: Callable[[int], str | None],
    holder: Callable[[Tensor], str | None],
    give: Given,
) -> None:
    """Give the nodes that led to ``outputs`` since number ``first`` to their makers, where no layer has them.

    A parameter's own node goes to the ``holder`` of the parameter. All in one go: each look at a node costs ten times as
    much between two layers, whose data have just pushed everything else out of the processor's caches.
    """
    waiting: list[Any] = [tensor.grad_fn for tensor in outputs]
    seen: set[Any] = set()
    leaves: list[Any] = []
    found: list[tuple[int, Any, dict[str, Any], Any]] = []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        number = node._sequence_nr()
        if number == LEAF:
            leaves.append(node)
        elif number >= first:
            metadata, below = node.metadata, node.next_functions
            if _MARK not in metadata:
                found.append((number, node, metadata, below))
            waiting.extend(edge[0] for edge in below)
    marks: dict[Any, bool] = {}
    for leaf in leaves:
        marks[leaf] = _give_leaf(leaf, maker(first), holder, give)
    found.sort(key=itemgetter(0))
    for number, node, metadata, below in found:
        layer = maker(number)
        if layer is not None:
            direction, marks[node] = _judge(node, below, marks)
            metadata[_MARK] = marks[node]
            give(node, layer, direction)


def _give_leaf(node: Any, otherwise: str | None, holder: Callable[[Tensor], str | None], give: Given) -> bool:
    """Give a leaf's node to the layer that holds it, once; whether the leaf is a parameter."""
    metadata = node.metadata
    if _MARK not in metadata:
        variable = node.variable
        metadata[_MARK] = isinstance(variable, nn.Parameter)
        layer = (holder(variable) or otherwise) if metadata[_MARK] else None
        if layer is not None:
            give(node, layer, "grad_weight")
    return bool(metadata[_MARK])


def _judge(node: Any, below: Any, marks: Mapping[Any, bool]) -> tuple[str, bool]:
    """(direction, whether the node's result was made of parameters alone).

    grad_weight: its gradients go to parameters alone; grad_input: to none; backward: to both. A parameter that was cast,
    viewed or normalised on its way is still one. No edge stands for an input without a gradient: data, or a number.
    ``marks`` says of nodes just judged what others' metadata say.
    """
    edges = [edge[0] for edge in below]
    weights = [
        edge is not None and (marks[edge] if edge in marks else edge.metadata.get(_MARK, False)) for edge in edges
    ]
    if not any(weights):
        return "backward" if node.name() == _CHECKPOINT else "grad_input", False
    operands = _PRODUCTS.get(node.name())
    if operands is not None:
        both = all(index < len(edges) and edges[index] is not None for index in operands)
        return "backward" if both or not _all_weights(edges, weights) else "grad_weight", False
    return "grad_weight" if _all_weights(edges, weights) else "backward", all(weights)


def _all_weights(edges: list[Any], weights: list[bool]) -> bool:
    return all(weight for edge, weight in zip(edges, weights, strict=True) if edge is not None)


def tensors(value: Any, deep: bool = True) -> Iterator[Tensor]:
    """The tensors in what a module returned: tuples, lists, dictionaries, dataclasses and plain objects of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item, deep)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item, deep)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None), deep)
    elif deep and type(value).__module__ != "builtins" and not isinstance(value, (type, nn.Module)):
        for item in getattr(value, "__dict__", {}).values():
            yield from tensors(item, deep=False)
