"""From a name to a model without data."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from perfctl.workloads.models.find import find
from perfctl.workloads.models.source import ModelError, build_model


def test_a_torchvision_model_needs_no_prefix_and_takes_no_memory() -> None:
    pytest.importorskip("torchvision")
    found = find("resnet18")
    assert found.name == find("torchvision:resnet18").name == "torchvision:resnet18"
    assert {tensor.device.type for tensor in found.model.parameters()} == {"meta"}
    assert found.inputs.shapes == ((3, 224, 224),)
    assert find("unet").name == "unet", "a built-in workload comes first"


def test_a_factory_that_computes_with_tensors_still_ends_on_meta() -> None:
    def factory() -> nn.Module:
        sizes = torch.linspace(2, 8, 4).int().tolist()
        return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))

    model = build_model(factory, "own", "meta")
    assert [tuple(tensor.shape) for tensor in model.parameters() if tensor.dim() == 2] == [
        (4, 2),
        (6, 4),
        (8, 6),
    ]
    assert {tensor.device.type for tensor in model.parameters()} == {"meta"}
    assert nn.Linear(2, 2).weight.device.type == "cpu", "nothing stays patched"


def test_a_workload_brings_its_input_target_and_optimizer() -> None:
    found = find("mnist_cnn")
    assert (found.inputs.shapes, found.inputs.dtypes, found.target) == (
        ((1, 28, 28),),
        ("float32",),
        ((), "int64"),
    )
    assert found.optimizer is not None
    assert found.optimizer[0] == "Adadelta"


def test_a_workload_that_only_infers_has_an_input_and_no_optimizer() -> None:
    pytest.importorskip("torchvision")
    found = find("torchvision_infer:model=squeezenet1_1,weights=none")
    assert (found.inputs.shapes, found.optimizer) == (((3, 224, 224),), None)


@pytest.mark.parametrize(
    ("reference", "problem", "remedy"),
    [
        ("resnet51", "unknown model 'resnet51'", "torchvision:NAME"),
        ("torchvision:resnet19", "torchvision has no model 'resnet19'", "resnet18"),
        ("bad.py:net", "nothing_of_that_name", "Run it with python"),
        ("mnist_cnn:conv3=1", "mnist_cnn has no parameter 'conv3'", "It has conv2"),
    ],
)
def test_a_model_that_cannot_be_found_says_what_and_what_to_do(
    reference: str, problem: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ModelError, match=problem) as caught:
        find(reference)
    assert remedy in caught.value.remedy
