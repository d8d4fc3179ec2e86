"""Autograd's nodes: which ones a module's forward made, and which gradients each computes. Imports torch.

Seen with torch 2.4 to 2.15: sequence numbers, ``metadata`` and ``next_functions`` of a node. A node's number is larger
than the numbers of the nodes whose results it was made from; each thread counts for itself.
"""

from __future__ import annotations

import dataclasses
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

Hooks = Callable[[str, str], tuple[Callable[..., None], Callable[..., None]]]
"""From a layer and a direction to the prehook and the hook of its nodes."""


class Makers:
    """Which layer's forward made which of a thread's nodes: the layer that ran when their numbers were given out."""

    __slots__ = ("layers", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        """Numbers in rising order; one may come several times, of which the last counts."""
        self.layers: list[str | None] = []
        """Who made the nodes from the start of the same place on; None: no layer."""

    def mark(self, layer: str | None) -> None:
        """Nodes from here on are ``layer``'s."""
        self.starts.append(next_number())
        self.layers.append(layer)

    @property
    def first(self) -> int:
        """Number of the first node; the next one's where there is none yet."""
        return self.starts[0] if self.starts else next_number()

    @classmethod
    def only(cls, layer: str, first: int) -> Makers:
        """One layer made all of them."""
        makers = cls()
        makers.starts.append(first)
        makers.layers.append(layer)
        return makers

    def clear(self) -> None:
        """Forget all."""
        self.starts.clear()
        self.layers.clear()


def claim(outputs: Iterable[Tensor], makers: Makers, holder: Callable[[Tensor], str | None], hooks: Hooks) -> None:
    """Give hooks to the nodes that led to ``outputs``: those of the layer that made each, where no layer has it yet.

    A parameter's own node goes to the ``holder`` of the parameter. All in one go, and flat: a step on the CPU pushes all
    else out of the processor's caches, so that what counts here is how much code and memory is touched.
    """
    starts, layers = makers.starts, makers.layers
    first = starts[0]
    waiting: list[Any] = [node for tensor in outputs if (node := tensor.grad_fn) is not None]
    seen: set[Any] = set(waiting)
    found: list[tuple[int, Any, dict[str, Any], Any]] = []
    for node in waiting:  # grows meanwhile
        number = node._sequence_nr()
        if number == LEAF:
            _claim_leaf(node, layers[0], holder, hooks)
        elif number >= first:
            metadata, below = node.metadata, node.next_functions
            if _MARK not in metadata:
                found.append((number, node, metadata, below))
            for edge, _ in below:
                if edge is not None and edge not in seen:
                    seen.add(edge)
                    waiting.append(edge)
    found.sort(key=itemgetter(0))
    place, last = 0, len(starts) - 1
    for number, node, metadata, below in found:
        while place < last and starts[place + 1] <= number:
            place += 1
        layer = layers[place]
        if layer is not None:
            direction, metadata[_MARK] = _judge(node, below)
            before, after = hooks(layer, direction)
            node.register_prehook(before)
            node.register_hook(after)


def _claim_leaf(node: Any, otherwise: str | None, holder: Callable[[Tensor], str | None], hooks: Hooks) -> None:
    """Give a leaf's node to the layer that holds it, once, and note whether the leaf is a parameter."""
    metadata = node.metadata
    if _MARK in metadata:
        return
    variable = node.variable
    metadata[_MARK] = is_parameter = isinstance(variable, nn.Parameter)
    layer = (holder(variable) or otherwise) if is_parameter else None
    if layer is not None:
        before, after = hooks(layer, "grad_weight")
        node.register_prehook(before)
        node.register_hook(after)


def _judge(node: Any, below: Any) -> tuple[str, bool]:
    """(direction, whether the node's result was made of parameters alone).

    grad_weight: its gradients go to parameters alone; grad_input: to none; backward: to both. A parameter that was cast,
    viewed or normalised on its way is still one. No edge stands for an input without a gradient: data, or a number.
    """
    some, data, absent = False, False, False
    for edge, _ in below:
        if edge is None:
            absent = True
        elif edge.metadata.get(_MARK):
            some = True
        else:
            data = True
    if not some:
        return ("backward" if node.name() == _CHECKPOINT else "grad_input"), False
    operands = _PRODUCTS.get(node.name())
    if operands is not None:
        both = all(index < len(below) and below[index][0] is not None for index in operands)
        return ("backward" if both or data else "grad_weight"), False
    return ("backward" if data else "grad_weight"), not (data or absent)


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
