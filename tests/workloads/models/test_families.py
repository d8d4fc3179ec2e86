"""The networks built from a plan are the plan: on random points of each family, traced."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import Session
from perfctl.orchestrator.predict.operations import (
    list_forward_operations_per_sample,
    list_plan_forward_operations,
)
from perfctl.workloads.models.plan import PARAMETERS, plan_model
from perfctl.workloads.models.planned import Planned
from perfctl.workloads.run.options import parse_workload_arguments
from perfctl.workloads.spec import SpecError

POINTS = 4
"""Of each family; each is built without data and traced for one step."""
BATCH = 2

_SMALL: dict[str, dict[str, tuple[object, ...]]] = {
    "vgg": {
        "depth": (6, 9, 12),
        "width": (3, 8),
        "stages": (1, 2, 3),
        "kernel": (1, 3, 5),
        "hidden": (7, 20),
        "batchnorm": ("no", "yes"),
    },
    "resnet": {
        "depth": (8, 14, 20),
        "width": (4, 7),
        "stages": (1, 2),
        "block": ("basic", "bottleneck"),
        "kernel": (1, 3, 5),
        "stem": ("small", "large"),
    },
    "inception": {
        "blocks": (3, 4),
        "width": (4, 12),
        "stages": (1, 2, 3),
        "kernel": (1, 3),
        "stem": ("small", "large"),
    },
    "mlp": {"depth": (1, 2, 5), "width": (5, 33)},
}
_SHARED: dict[str, tuple[object, ...]] = {
    "image": (16, 25, 32),
    "channels": (1, 3),
    "classes": (2, 11),
    "activation": ("relu", "gelu", "silu", "tanh"),
    "optimizer": ("sgd", "momentum", "adam"),
}


def random_points(family):
    chance, found = random.Random(family), list[str]()
    while len(found) < POINTS:
        choices = {**_SMALL[family], **_SHARED}
        spec = (
            f"{family}:"
            f"{','.join(f'{name}={chance.choice(values)}' for name, values in choices.items())}"
        )
        try:
            found.append(plan_model(spec).spec)
        except SpecError:
            continue
    return found


@pytest.mark.parametrize("spec", [spec for family in PARAMETERS for spec in random_points(family)])
def test_the_traced_model_has_the_plans_layers_parameters_and_multiply_adds(spec):
    planned = plan_model(spec)
    traced = Session(Request(spec)).estimate_batch(BATCH)

    assert traced.problem is None
    assert traced.parameters == planned.parameters
    assert traced.forward.macs == BATCH * planned.forward_macs_per_sample
    calls = {
        call.layer: call
        for call in traced.calls
        if call.direction == "forward" and call.layer and call.macs
    }
    assert {name: (call.macs, call.output_elements) for name, call in calls.items()} == {
        layer.name: (BATCH * layer.forward_macs_per_sample, BATCH * layer.output_elements)
        for layer in planned.layers
        if layer.forward_macs_per_sample
    }
    seen = {module.path: module for module in traced.modules}
    for layer in planned.layers:
        found = seen[layer.name]
        assert (layer.name, math.prod(found.output[1:])) == (layer.name, layer.output_elements)
        assert found.parameters == layer.parameters


@pytest.mark.parametrize(
    "spec", [spec for family in PARAMETERS for spec in random_points(family)[:2]]
)
def test_work_from_the_plan_is_work_from_the_trace(spec):
    traced = list_forward_operations_per_sample(
        Session(Request(spec)).estimate_batch(BATCH).ops, BATCH
    )
    whole = [work for work in traced if max(work.inputs, work.outputs) >= 1]
    assert Counter(map(_plain, list_plan_forward_operations(plan_model(spec)))) == Counter(
        map(_plain, whole)
    )


def _plain(work):
    return work._replace(
        **{
            name: float(getattr(work, name))
            for name in ("macs", "weights", "rows", "columns", "depth")
        },
        groups=float(work.groups),
        kernel=float(work.kernel),
        stride=float(work.stride),
    )


def test_the_optimizer_is_the_one_the_specification_names():
    assert Session(Request("mlp:optimizer=adam")).source.optimizer[0] == "Adam"  # type: ignore[index]
    name, settings = Session(Request("mlp:optimizer=momentum")).source.optimizer
    assert (name, settings["momentum"]) == ("SGD", 0.9)


def test_the_workload_takes_the_model_by_its_full_name():
    _, own = parse_workload_arguments(
        "families", ["--batch", "2", "--model", "mlp:width=64,depth=3"]
    )
    assert own.model == "mlp:width=64"


def test_a_deep_branching_network_lets_go_of_what_no_later_layer_takes():
    planned = plan_model("inception:blocks=1,stages=1,width=4,image=8")
    order = Planned(planned)._order
    dropped = [source for _, _, done in order for source in done]
    assert sorted(dropped) == list(range(-1, len(planned.layers) - 1))
