"""The module of a plan. Apart from ``families``, because it needs torch as soon as it
is imported."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from perfctl.records.paper import Plan, PlanLayer

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class Add(nn.Module):
    """The sum of two tensors of one shape."""

    def forward(self, first: Tensor, other: Tensor) -> Tensor:
        return first + other


class Concat(nn.Module):
    """Concatenates images along their channels."""

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, 1)


class Group(nn.Module):
    """Groups layers under one name; never called itself."""


class Planned(nn.Module):
    """Runs its layers one by one and drops each output after its last use."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        last = {source: number for number, layer in enumerate(plan.layers) for source in layer.of}
        self._order: list[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]] = []
        for number, layer in enumerate(plan.layers):
            module = _make_layer(layer, str(plan.settings["activation"]))
            _add_module(self, layer.name, module)
            done = tuple(source for source in dict.fromkeys(layer.of) if last[source] == number)
            self._order.append((module, layer.of, done))

    def forward(self, images: Tensor) -> Tensor:
        """Input: batch x channels x height x width; output: batch x classes, before softmax."""
        outputs = {-1: images}
        for number, (module, sources, done) in enumerate(self._order):
            outputs[number] = module(*[outputs[source] for source in sources])
            for source in done:
                del outputs[source]
        return outputs[len(self._order) - 1]


def _make_layer(layer: PlanLayer, activation: str) -> nn.Module:
    into, outputs, window = (
        layer.given[0],
        layer.gives[0],
        (layer.kernel, layer.stride, layer.padding),
    )
    make: dict[str, Callable[[], nn.Module]] = {
        "conv": lambda: nn.Conv2d(into, outputs, *window, bias=layer.bias),
        "linear": lambda: nn.Linear(into, outputs, bias=layer.bias),
        "norm": lambda: nn.BatchNorm2d(into),
        "activation": _ACTIVATIONS[activation],
        "max_pool": lambda: nn.MaxPool2d(*window),
        "mean_pool": lambda: nn.AdaptiveAvgPool2d(1),
        "add": Add,
        "concat": Concat,
        "flatten": nn.Flatten,
    }
    return make[layer.kind]()


def _add_module(root: nn.Module, name: str, module: nn.Module) -> None:
    *path, last = name.split(".")
    parent = root
    for piece in path:
        if piece not in dict(parent.named_children()):
            parent.add_module(piece, Group())
        parent = parent.get_submodule(piece)
    parent.add_module(last, module)
