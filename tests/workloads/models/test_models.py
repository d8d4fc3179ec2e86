"""From a name to a model without data."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from perfctl.workloads.models.find import build_referenced_model
from perfctl.workloads.models.mnist_cnn import build_mnist_cnn, compute_pooled_width
from perfctl.workloads.models.source import ModelError, build_model
from perfctl.workloads.run.setup import count_direct_parameters_by_module


def test_a_torchvision_model_needs_no_prefix_and_takes_no_memory():
    pytest.importorskip("torchvision")
    found = build_referenced_model("resnet18")
    assert (
        found.name == build_referenced_model("torchvision:resnet18").name == "torchvision:resnet18"
    )
    assert {tensor.device.type for tensor in found.model.parameters()} == {"meta"}
    assert found.inputs.shapes == ((3, 224, 224),)
    assert build_referenced_model("unet").name == "unet", "a built-in workload comes first"


def test_a_factory_that_computes_with_tensors_still_ends_on_meta():
    def factory():
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


def test_a_workload_brings_its_input_target_and_optimizer():
    found = build_referenced_model("mnist_cnn")
    assert (found.inputs.shapes, found.inputs.dtypes, found.target) == (
        ((1, 28, 28),),
        ("float32",),
        ((), "int64"),
    )
    assert found.optimizer is not None
    assert found.optimizer[0] == "Adadelta"


def test_a_workload_that_only_infers_has_an_input_and_no_optimizer():
    pytest.importorskip("torchvision")
    found = build_referenced_model("torchvision_infer:model=squeezenet1_1,weights=none")
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
    reference, problem, remedy, tmp_path, monkeypatch
):
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ModelError, match=problem) as caught:
        build_referenced_model(reference)
    assert remedy in caught.value.remedy


# The network that the study began with: its shapes, worked out from its dimensions


@pytest.mark.parametrize(
    ("conv2", "total"), [((32, 64, 3, 1), 1_199_882), ((32, 128, 5, 1), 2_086_730)]
)
def test_parameters_follow_from_the_dimensions(conv2, total):
    """Two convolutions without padding, a pool of 2, two linear layers."""
    _, out, kernel, _ = conv2
    pooled = ((28 - 3 + 1) - kernel + 1) // 2
    assert compute_pooled_width(conv2) == pooled
    found = count_direct_parameters_by_module(build_mnist_cnn(conv2))
    assert found == {
        "conv1": 32 * 1 * 3 * 3 + 32,
        "conv2": out * 32 * kernel * kernel + out,
        "fc1": 128 * out * pooled * pooled + 128,
        "fc2": 10 * 128 + 10,
    }
    assert sum(found.values()) == total


@pytest.mark.parametrize("conv2", [(32, 64, 3, 1), (32, 128, 5, 1), (32, 8, 4, 3), (32, 8, 25, 1)])
def test_every_accepted_shape_runs(conv2):
    out = build_mnist_cnn(conv2)(torch.zeros(2, 1, 28, 28))
    assert out.shape == (2, 10)
    assert torch.allclose(out.exp().sum(dim=1), torch.ones(2))


def test_every_step_of_the_network_is_a_named_submodule():
    names = "conv1 relu1 conv2 relu2 pool dropout1 flatten fc1 relu3 dropout2 fc2 log_softmax"
    assert [name for name, _ in build_mnist_cnn().named_children()] == names.split()


def test_a_shared_parameter_counts_once():
    first, second = torch.nn.Linear(3, 5), torch.nn.Linear(3, 5)
    second.weight = first.weight
    assert count_direct_parameters_by_module(torch.nn.Sequential(first, second)) == {
        "0": 3 * 5 + 5,
        "1": 5,
    }


def test_its_second_convolution_may_be_part_of_its_name():
    model = build_referenced_model("mnist_cnn:conv2=32,128,5,1").model
    assert model.get_parameter("conv2.weight").shape == (128, 32, 5, 5)
    assert sum(count_direct_parameters_by_module(model).values()) == 2_086_730
