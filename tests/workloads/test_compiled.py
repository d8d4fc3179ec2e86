"""Compiled and scripted models: one range for the region, a note that says so, and nothing compiled anew."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from perfctl.workloads.annotate import Annotator
from perfctl.workloads.compiled import COMPILED
from perfctl.workloads.names import Names
from perfctl.workloads.shapes import Recorder
from tests.workloads.autograd_truth import Seen

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization", "ignore:.torch.jit:FutureWarning")


def test_a_compiled_model_is_one_range_and_is_compiled_once() -> None:
    compiles: list[int] = []

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> object:
        compiles.append(len(example))
        return graph.forward

    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), backend=backend)
    value, seen, names = torch.ones(3, 2), Seen(), Names()
    annotator = Annotator(seen, names=names)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using .torch.compile")
        with Recorder(names=names) as recorder:
            model(value)
        model(value)
        with annotator:
            model(value)
        model(value)
    assert len(compiles) == 1
    assert seen.events == [">model:forward", "<model:forward"]
    assert [(gap.scope, gap.reason) for gap in annotator.gaps] == [("model", COMPILED)]
    assert [gap.scope for gap in recorder.gaps] == ["model"]


def test_a_scripted_model_is_one_range_with_its_backward() -> None:
    model, seen = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Tanh())), Seen()
    with Annotator(seen) as annotator:
        model(torch.ones(1, 2)).sum().backward()
    assert seen.count()["model:forward"] == 1
    assert {name.partition(":")[0].partition(".")[0] for name in seen.count()} == {"model"}
    assert [gap.scope for gap in annotator.gaps] == ["model"]
    assert seen.open == []
