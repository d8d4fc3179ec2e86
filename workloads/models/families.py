"""Workload: parametric VGG, ResNet, Inception and fully connected models, built from a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfctl.records.paper import Plan
from perfctl.workloads.interface import WorkloadParts
from perfctl.workloads.models.plan import plan_model
from perfctl.workloads.spec import SpecError, WorkloadOptions, declare_number_option, declare_option

if TYPE_CHECKING:
    import torch
    from torch import nn

NAME = "families"
ABOUT = (
    "VGG, ResNet, Inception and fully connected models by depth, width, kernel, image, ...: "
    "--model resnet:depth=26,width=32,image=64; random images."
)
MODEL = "resnet:depth=10,width=16,image=32"
SAME_NETWORK = ("samples",)
"""Own options that change the amount of data, not the model."""


@dataclass
class Own:
    model: str = declare_option(
        MODEL, "FAMILY:NAME=VALUE,... (default: %(default)s)", heading=NAME, metavar="SPEC"
    )
    samples: int = declare_number_option(1, 64, "random images, reused as needed (64)")


def check(options: WorkloadOptions, model_options: Own) -> WorkloadOptions:
    """Return the options, with ``model_options.model`` as full specification. Raises SpecError for
    an impossible model."""
    if options.data != "synthetic":
        raise SpecError(f"{NAME} uses random images: `data` must be synthetic, got {options.data}")
    model_options.model = plan_model(model_options.model).spec
    return options


def build(options: WorkloadOptions, model_options: Own) -> WorkloadParts:
    """Model, loss, optimizer and data on the CPU. Raises SpecError for an impossible model."""
    import torch
    from torch.nn.functional import cross_entropy

    planned = plan_model(model_options.model)
    model = build_planned_model(planned)
    generator = torch.Generator().manual_seed(options.seed)
    train, test = (
        _generate_noise_samples_by_class(planned, count, generator)
        for count in (model_options.samples, max(model_options.samples // 4, 1))
    )
    return WorkloadParts(model, cross_entropy, make_optimizer(planned, model), train, test)


def make_optimizer(planned: Plan, model: nn.Module) -> torch.optim.Optimizer:
    """Return the plan's optimizer; momentum is SGD with momentum 0.9."""
    import torch

    if planned.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.001)
    return torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9 if planned.optimizer == "momentum" else 0.0
    )


def build_planned_model(planned: Plan) -> nn.Module:
    """Input: batch x channels x height x width; output: batch x classes. Modules have the names of
    the plan's layers."""
    from perfctl.workloads.models.planned import Planned

    return Planned(planned)


def _generate_noise_samples_by_class(planned: Plan, count: int, generator: torch.Generator) -> Any:
    """Noise whose mean depends on the class, so that there is something to learn."""
    import torch
    from torch.utils.data import TensorDataset

    labels = torch.arange(count) % planned.classes
    light = (labels / planned.classes).view(-1, 1, 1, 1)
    return TensorDataset(
        torch.randn((count, *planned.input_shape), generator=generator) + light, labels
    )
