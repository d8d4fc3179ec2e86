"""The network that the study began with: its shapes, worked out from its dimensions."""

from __future__ import annotations

import pytest
import torch

from perfctl.workloads.models.find import find
from perfctl.workloads.models.mnist_cnn import make_model, pooled_width
from perfctl.workloads.run.setup import count_parameters


@pytest.mark.parametrize(
    ("conv2", "total"), [((32, 64, 3, 1), 1_199_882), ((32, 128, 5, 1), 2_086_730)]
)
def test_parameters_follow_from_the_dimensions(
    conv2: tuple[int, int, int, int], total: int
) -> None:
    """Two convolutions without padding, a pool of 2, two linear layers."""
    _, out, kernel, _ = conv2
    pooled = ((28 - 3 + 1) - kernel + 1) // 2
    assert pooled_width(conv2) == pooled
    found = count_parameters(make_model(conv2))
    assert found == {
        "conv1": 32 * 1 * 3 * 3 + 32,
        "conv2": out * 32 * kernel * kernel + out,
        "fc1": 128 * out * pooled * pooled + 128,
        "fc2": 10 * 128 + 10,
    }
    assert sum(found.values()) == total


@pytest.mark.parametrize("conv2", [(32, 64, 3, 1), (32, 128, 5, 1), (32, 8, 4, 3), (32, 8, 25, 1)])
def test_every_accepted_shape_runs(conv2: tuple[int, int, int, int]) -> None:
    out = make_model(conv2)(torch.zeros(2, 1, 28, 28))
    assert out.shape == (2, 10)
    assert torch.allclose(out.exp().sum(dim=1), torch.ones(2))


def test_every_step_of_the_network_is_a_named_submodule() -> None:
    names = "conv1 relu1 conv2 relu2 pool dropout1 flatten fc1 relu3 dropout2 fc2 log_softmax"
    assert [name for name, _ in make_model().named_children()] == names.split()


def test_a_shared_parameter_counts_once() -> None:
    first, second = torch.nn.Linear(3, 5), torch.nn.Linear(3, 5)
    second.weight = first.weight
    assert count_parameters(torch.nn.Sequential(first, second)) == {"0": 3 * 5 + 5, "1": 5}


def test_its_second_convolution_may_be_part_of_its_name() -> None:
    model = find("mnist_cnn:conv2=32,128,5,1").model
    assert model.get_parameter("conv2.weight").shape == (128, 32, 5, 5)
    assert sum(count_parameters(model).values()) == 2_086_730
