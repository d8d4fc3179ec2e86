"""Synthetic steps: networks of a few layers, and times made of known costs. Nothing here
was measured."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.predict.efficiency import FitSettings
from perfctl.orchestrator.predict.fit import StepFit, fit_step_time_model
from perfctl.orchestrator.predict.grid import GridNetwork
from perfctl.orchestrator.predict.operations import (
    Operation,
    StepMeasurement,
    StepSpec,
    list_plan_forward_operations,
)
from perfctl.orchestrator.predict.step_parts import CLASS_OF, EXTRA, PARTS, sum_step_part_seconds
from perfctl.workloads.models.plan import plan_model
from tests.make.works import moving, product

CPU = Machine("Test CPU", "cpu", {"fp32": 100e9}, 20e9, sms=1)
GPU = Machine("Test GPU", "gpu", {"fp32": 10e12, "tensor fp16": 80e12}, 800e9)
QUICK = FitSettings(power=8, rounds=12, leaves=4, least=6, folds=4)
COSTS = {"arithmetic": 1.5, "bytes": 3.0, "operations": 10.0, "step": 0.5}
"""What one second at the peaks takes in the made-up times, by class of part."""


def conv(
    layer: str, channels: int, out: int, image: int, kernel: int = 3, first: bool = False
) -> Operation:
    positions, area = image**2, kernel**2
    return product(
        "conv",
        positions,
        out,
        channels * area,
        channels * positions,
        out * positions,
        out * channels * area,
        layer=layer,
        kernel=area,
        first=first,
    )


def plain(layer: str, kind: str, elements: int) -> Operation:
    return moving(kind, elements, elements, layer=layer)


def linear(layer: str, inputs: int, outputs: int) -> Operation:
    return product("linear", 1, outputs, inputs, inputs, outputs, inputs * outputs, layer=layer)


def network(
    width: int,
    depth: int,
    batch: int,
    family: str = "plain",
    image: int = 16,
    optimizer: str = "sgd",
) -> StepSpec:
    """``depth`` convolutions with an activation each, and a linear layer."""
    works = [
        conv("conv0", 3, width, image, first=True),
        plain("act0", "activation", width * image * image),
    ]
    for place in range(1, depth):
        works += [
            conv(f"conv{place}", width, width, image),
            plain(f"act{place}", "activation", width * image * image),
        ]
    works.append(linear("fc", width, 10))
    parameters = int(sum(work.weights for work in works))
    return StepSpec(
        f"{family}:{width},{depth},{image}",
        family,
        tuple(works),
        batch,
        True,
        "fp32",
        optimizer,
        parameters,
    )


def costs() -> list[float]:
    return [0.0 if name.split(" ")[0] in EXTRA else COSTS[CLASS_OF[name]] for name in PARTS]


def seconds_of(case: StepSpec, machine: Machine = CPU) -> float:
    return sum(
        cost * part
        for cost, part in zip(costs(), sum_step_part_seconds(case, machine), strict=True)
    )


def measured(case: StepSpec, machine: Machine = CPU, factor: float = 1.0) -> StepMeasurement:
    seconds = seconds_of(case, machine) * factor
    found = sum_step_part_seconds(case, machine)
    phases = {
        phase: sum(
            c * p for name, c, p in zip(PARTS, costs(), found, strict=True) if name.endswith(phase)
        )
        for phase in ("forward", "backward", "optimizer")
    }
    return StepMeasurement(case, machine.name, seconds, seconds * 0.98, seconds * 1.03, **phases)


def cases(family: str = "plain") -> list[StepSpec]:
    return [
        network(width, depth, batch, family, image)
        for width, depth, image in (
            (8, 2, 16),
            (16, 3, 16),
            (32, 4, 24),
            (24, 2, 32),
            (48, 5, 16),
            (64, 3, 8),
        )
        for batch in (1, 4, 16, 64)
    ]


@cache
def fitted() -> StepFit:
    """A fit of the made-up times, with a spread of a few percent that no feature explains."""
    where = CPU
    rows = [
        measured(case, where, 1.0 + 0.04 * ((place * 7) % 5 - 2) / 2)
        for place, case in enumerate(cases())
    ]
    return fit_step_time_model(f"{len(rows)} steps made up for {where.name}", rows, where, QUICK)


def with_batch(case: StepSpec, batch: int) -> StepSpec:
    return replace(case, batch=batch)


def plan_step(
    spec: str, precision: str = "fp32", batch: int = 64, *, training: bool = True, **changes: Any
) -> StepSpec:
    """A step of a planned network."""
    planned = plan_model(spec)
    return StepSpec(
        planned.spec,
        planned.family,
        list_plan_forward_operations(planned),
        batch,
        training,
        precision,
        "momentum" if training else "",
        planned.parameters,
        **changes,
    )


def plan_network(spec: str) -> GridNetwork:
    step = plan_step(spec)
    return GridNetwork(step.model, step.family, step.works, step.parameters)
