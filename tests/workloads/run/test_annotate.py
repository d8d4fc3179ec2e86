"""Layer ranges: who gets one, when, on which thread, and that nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perfctl.records.ranges import read_range_name
from perfctl.workloads.models.mnist_cnn import make_model
from perfctl.workloads.run.annotate import Annotator
from tests.workloads.autograd_truth import Seen

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


BACKWARDS = ("backward", "grad_input", "grad_weight")


def backward_of(seen: Counter[str], layer: str) -> int:
    """How many ranges of a layer's backward there are, whichever gradients they computed."""
    return sum(seen[f"{layer}:{direction}"] for direction in BACKWARDS)


def names_of(model: nn.Module, *inputs: Tensor) -> Counter[str]:
    """Ranges of one forward and backward pass."""
    seen = Seen()
    with Annotator(seen, model):
        out = model(*inputs)
        out.sum().backward()
    assert seen.open == []
    return seen.count()


def test_every_layer_of_mnist_has_both_ranges_the_first_one_too() -> None:
    seen = names_of(make_model(), torch.zeros(2, 1, 28, 28))
    for layer, _ in make_model().named_children():
        assert seen[f"{layer}:forward"] == 1
        assert backward_of(seen, layer)
    assert seen["MnistCNN:forward"] == 1
    assert all(read_range_name(name).layer and read_range_name(name).direction for name in seen)


def test_losses_and_gradients_are_the_same_bit_by_bit() -> None:
    def train() -> list[Tensor]:
        torch.manual_seed(0)
        model = make_model()
        optimizer = torch.optim.Adadelta(model.parameters())
        kept = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(model(torch.randn(4, 1, 28, 28)), torch.tensor([1, 2, 3, 4]))
            loss.backward()
            optimizer.step()
            kept += [loss.detach(), *(part.grad.clone() for part in model.parameters() if part.grad is not None)]
        return kept

    plain = train()
    seen = Seen()
    with Annotator(seen):
        marked = train()
    assert seen.count()["model.conv1:forward"] == 2
    assert len(plain) == 2 * (1 + 8)
    assert all(torch.equal(a, b) for a, b in zip(plain, marked, strict=True))


def test_the_same_gradient_memory_is_handed_on() -> None:
    layer = nn.Linear(3, 4)
    with Annotator(Seen(), layer):
        out = layer(torch.ones(2, 3))
        handed: list[int] = []
        out.grad_fn.register_hook(lambda grads, _: handed.extend(g.data_ptr() for g in grads if g is not None))
        out.sum().backward()
    assert layer.bias.grad is not None
    assert layer.bias.grad.data_ptr() in handed


def test_nested_modules_have_dotted_paths() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    seen = names_of(model, torch.ones(1, 3))
    assert {"Sequential:forward", "0:forward", "0.0:forward", "0.1:forward", "1:forward"} <= set(seen)
    assert backward_of(seen, "0.0") >= 1
    assert backward_of(seen, "0.1") == 1


def test_a_backward_range_closes_before_the_layer_below_begins() -> None:
    seen, model = Seen(), nn.Sequential(nn.Tanh(), nn.Sigmoid())
    with Annotator(seen, model):
        out = model(torch.ones(2, requires_grad=True)).sum()
        seen.events.clear()
        out.backward()
        assert seen.events == [">1:grad_input", "<1:grad_input", ">0:grad_input", "<0:grad_input"]


def test_the_gradient_of_a_parameter_is_added_in_the_range_of_the_layer_that_holds_it() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.holder = nn.Linear(3, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.holder.weight.T

    seen = names_of(Tied(), torch.ones(1, 3))
    assert (seen["holder:forward"], seen["holder:grad_weight"]) == (0, 1)
    assert backward_of(seen, "Tied") >= 1


def test_functional_work_of_a_parent_is_the_parents() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            before = x * 2
            return torch.tanh(self.inner(before).sigmoid())

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = Gate()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.gate(x)
            return out

    given = torch.ones(1, 3, requires_grad=True)
    seen = names_of(Outer(), given)
    # tanh and sigmoid above the linear layer, the product below it
    assert backward_of(seen, "gate") == 3
    assert backward_of(seen, "gate.inner") >= 1
    assert backward_of(seen, "Outer") == 0


def test_a_module_that_is_called_twice_is_marked_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.shared(self.shared(x))
            return out

    seen = names_of(Twice(), torch.ones(2, requires_grad=True))
    assert seen["shared:forward"] == 2
    assert backward_of(seen, "shared") == 2


def test_tuples_and_dictionaries_of_tensors_are_looked_into() -> None:
    class Many(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"a": (x.exp(), [x.sin()]), "n": 3, "none": None}

    many = Many()
    seen = Seen()
    with Annotator(seen, many):
        out = many(torch.ones(2, requires_grad=True))
        (out["a"][0] + out["a"][1][0]).sum().backward()
    assert seen.count()["Many:grad_input"] == 2


def test_a_forward_that_changes_its_input_in_place_is_found() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    seen = names_of(model, torch.ones(1, 3))
    assert backward_of(seen, "1") == 1
    assert backward_of(seen, "0") >= 1


def test_a_function_written_in_python_is_marked() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = Double.apply(x)
            return out

    assert names_of(Own(), torch.ones(2, requires_grad=True))["Own:grad_input"] == 1


def test_an_unknown_model_is_marked_from_its_outermost_module() -> None:
    seen, model = Seen(), nn.Sequential(nn.Linear(2, 2))
    with Annotator(seen):
        nn.MSELoss()(model(torch.ones(1, 2)), torch.zeros(1, 2)).backward()
    wanted = {"model:forward", "model.0:forward", "model.0:grad_weight", "MSELoss:forward", "MSELoss:grad_input"}
    assert wanted <= set(seen.count())


def test_a_module_outside_the_tree_counts_for_the_one_around_it() -> None:
    hidden = nn.Tanh()

    class Holds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = hidden(x)
            return out

    seen = names_of(Holds(), torch.ones(2, requires_grad=True))
    assert seen == {"Holds:forward": 1, "Holds:grad_input": 1}


def test_inference_has_forward_ranges_alone() -> None:
    seen, model = Seen(), make_model().eval()
    with torch.inference_mode(), Annotator(seen, model):
        model(torch.zeros(1, 1, 28, 28))
    assert {name.rpartition(":")[2] for name in seen.count()} == {"forward"}


def test_recomputed_layers_are_marked_and_closed() -> None:
    from torch.utils.checkpoint import checkpoint

    class Saves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.fc, x, use_reentrant=False)
            return out

    seen = names_of(Saves(), torch.ones(1, 2))
    assert (seen["fc:forward"], seen["fc:recompute"]) == (1, 1)
    assert backward_of(seen, "fc") >= 1
