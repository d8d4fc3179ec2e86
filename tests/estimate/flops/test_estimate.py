"""The engine against hand values, on real traces of small models."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from perfctl.orchestrator.estimate import session as estimation
from perfctl.orchestrator.estimate.flops.engine import BACKWARD, sum_layer_call_work
from perfctl.records.paper import LayerCall
from perfctl.workloads.models.mnist_cnn import build_mnist_cnn

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")


def rows(model, shape, **settings):
    found = estimation.estimate(model, shape, **settings)  # type: ignore[arg-type]
    assert found.problem is None
    return {(call.layer, call.kind, call.direction): call for call in found.calls}


def test_mnist_cnn_is_what_it_is_by_hand():
    found = estimation.estimate(build_mnist_cnn(), (16, 1, 28, 28))
    conv1, conv2 = 16 * 26 * 26 * 32 * 9, 16 * 24 * 24 * 64 * 32 * 9
    fc1, fc2 = 16 * 9216 * 128, 16 * 128 * 10
    assert found.forward.flops == 2 * (conv1 + conv2 + fc1 + fc2) == 383_758_336
    assert found.backward.flops == 2 * (conv1 + 2 * (conv2 + fc1 + fc2)) == 761_286_656
    assert found.parameters == found.trainable == 1_199_882


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("grad", [True, False])
def test_cpu_and_meta_agree_row_by_row(mode, grad):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 2)
    )
    seen = [
        estimation.estimate(model, (2, 3, 6, 6), device=device, mode=mode, grad=grad).calls
        for device in ("cpu", "meta")
    ]
    assert seen[0] == seen[1]


class Functional(nn.Module):
    """Every functional product there is, in one forward."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 3, 3, 3))

    def forward(self, x):
        y = F.conv2d(x, self.weight)
        z = y.flatten(2)
        return torch.einsum("bij,bkj->bik", z, z) @ z


def test_functional_operations_have_rows_of_their_own_name():
    found = rows(Functional(), (2, 3, 6, 6))
    assert found["", "conv2d", "forward"].macs == 2 * 16 * 5 * 27
    assert found["", "conv2d", "grad_weight"].macs == 2 * 16 * 5 * 27
    assert ("", "conv2d", "grad_input") not in found
    assert found["", "matmul", "forward"].macs == 2 * (2 * 5 * 16 * 5)
    assert found["", "matmul", "grad_input"].macs == 2 * 2 * (2 * 5 * 16 * 5)
    assert found["", "conv2d", "forward"].parameters == 5 * 27


def test_totals_add_over_calls_of_a_shared_layer():
    layer = nn.Linear(4, 4)
    found = rows(nn.Sequential(layer, layer), (3, 4), mode="infer")
    assert found["0", "Linear", "forward"].macs == 2 * 3 * 4 * 4
    assert found["0", "Linear", "forward"].calls == 2


def test_the_model_given_is_not_changed():
    model = nn.Linear(3, 2)
    estimation.estimate(model, (1, 3), optimizer="adam")
    assert model.weight.device.type == "cpu"
    assert model.weight.grad is None
    assert model.training


def test_the_frame_has_one_row_a_call():
    found = estimation.estimate(nn.Linear(3, 2), (1, 3))
    assert list(found.frame().columns) == list(LayerCall._fields)
    assert len(found.frame()) == len(found.calls)


def test_backward_counts_gradients_and_not_recomputation():
    call = LayerCall("a", "A", "recompute", 5, 10, 0, 0, 0, 0, "")
    assert sum_layer_call_work([call, call._replace(direction="grad_input")], BACKWARD).macs == 5
