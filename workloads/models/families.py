"""Workload: parametric VGG, ResNet, Inception and fully connected models, built from a plan."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

from perfctl.records.paper import Plan, PlanLayer
from perfctl.workloads.spec import Options, Parts, SpecError

NAME = "families"
ABOUT = (
    "VGG, ResNet, Inception and fully connected models by depth, width, kernel, image, ...: "
    "--model resnet:depth=26,width=32,image=64; random images."
)
MODEL = "resnet:depth=10,width=16,image=32"
SAME_NETWORK = ("samples",)
"""Own options that change the amount of data, not the model."""

SAMPLES = 64
LEARNING_RATES = {"sgd": 0.01, "momentum": 0.01, "adam": 0.001}


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--model`` and ``--samples``."""
    from perfctl.workloads.run.options import at_least

    add = parser.add_argument_group(NAME).add_argument
    add("--model", default=MODEL, metavar="SPEC", help="FAMILY:NAME=VALUE,... (default: %(default)s)")
    add("--samples", type=at_least(1), default=SAMPLES, metavar="N", help="random images, reused as needed (64)")


def check(options: Options, own: argparse.Namespace) -> Options:
    """The options, with ``own.model`` as full specification. Raises SpecError for an impossible model."""
    if options.data != "synthetic":
        raise SpecError(f"{NAME} uses random images: `data` must be synthetic, got {options.data}")
    from perfctl.workloads.models.plan import plan

    own.model = plan(own.model).spec
    return options


def build(options: Options, own: argparse.Namespace) -> Parts:
    """Model, loss, optimizer and data on the CPU. Raises SpecError for an impossible model."""
    import torch
    from torch.nn.functional import cross_entropy

    from perfctl.workloads.models.plan import plan

    planned = plan(own.model)
    model = make_model(planned)
    generator = torch.Generator().manual_seed(options.seed)
    return Parts(
        model=model,
        loss=cross_entropy,
        optimizer=make_optimizer(planned, model),
        scheduler=None,
        train_data=_draw(planned, own.samples, generator),
        test_data=_draw(planned, max(own.samples // 4, 1), generator),
    )


def make_optimizer(planned: Plan, model: nn.Module) -> torch.optim.Optimizer:
    """The plan's optimizer; momentum is SGD with momentum 0.9."""
    import torch

    rate = LEARNING_RATES[planned.optimizer]
    if planned.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9 if planned.optimizer == "momentum" else 0.0)


def make_model(planned: Plan) -> nn.Module:
    """Input: batch x channels x height x width; output: batch x classes. Modules have the names of the plan's layers."""

    return Planned(planned)


def _draw(planned: Plan, count: int, generator: torch.Generator) -> Any:
    """Noise whose mean depends on the class, so that there is something to learn."""
    import torch
    from torch.utils.data import TensorDataset

    labels = torch.arange(count) % planned.classes
    light = (labels / planned.classes).view(-1, 1, 1, 1)
    return TensorDataset(torch.randn((count, *planned.given), generator=generator) + light, labels)


_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


class Add(nn.Module):
    """The sum of two tensors of one shape."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


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
            module = _make(layer, str(plan.settings["activation"]))
            _place(self, layer.name, module)
            done = tuple(source for source in dict.fromkeys(layer.of) if last[source] == number)
            self._order.append((module, layer.of, done))

    def forward(self, images: Tensor) -> Tensor:
        """Input: batch x channels x height x width; output: batch x classes, before softmax."""
        kept = {-1: images}
        for number, (module, sources, done) in enumerate(self._order):
            kept[number] = module(*[kept[source] for source in sources])
            for source in done:
                del kept[source]
        return kept[len(self._order) - 1]


def _make(layer: PlanLayer, activation: str) -> nn.Module:
    one: dict[str, Any] = {
        "conv": lambda: nn.Conv2d(
            layer.given[0], layer.gives[0], layer.kernel, layer.stride, layer.padding, bias=layer.bias
        ),
        "linear": lambda: nn.Linear(layer.given[0], layer.gives[0], bias=layer.bias),
        "norm": lambda: nn.BatchNorm2d(layer.given[0]),
        "activation": _ACTIVATIONS[activation],
        "max_pool": lambda: nn.MaxPool2d(layer.kernel, layer.stride, layer.padding),
        "mean_pool": lambda: nn.AdaptiveAvgPool2d(1),
        "add": Add,
        "concat": Concat,
        "flatten": nn.Flatten,
    }
    module: nn.Module = one[layer.kind]()
    return module


def _place(root: nn.Module, name: str, module: nn.Module) -> None:
    *path, last = name.split(".")
    parent = root
    for piece in path:
        if piece not in dict(parent.named_children()):
            parent.add_module(piece, Group())
        parent = parent.get_submodule(piece)
    parent.add_module(last, module)
