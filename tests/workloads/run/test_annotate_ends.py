"""Every layer range is closed, and nothing of the annotator stays behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from perfctl.workloads.run.annotate import Annotator
from tests.workloads.autograd_truth import Made, Seen

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_forward_closes_every_range(error: type[BaseException]) -> None:
    def breaks(self: nn.Module, x: Tensor) -> Tensor:
        raise error

    seen = Seen()
    model = nn.Sequential(nn.Identity(), Made(breaks))
    with Annotator(seen, model):
        with pytest.raises(error):
            model(torch.ones(1))
        assert seen.open == [] or error is KeyboardInterrupt
    assert seen.open == []
    assert seen.events[-2:] == ["<1:forward", "<Sequential:forward"]


def test_an_exception_in_backward_leaves_no_range_open() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ValueError("broken gradient")

    seen, model = Seen(), Made(lambda self, x: Breaks.apply(x))
    with Annotator(seen, model):
        with pytest.raises(ValueError, match="broken gradient"):
            model(torch.ones(1, requires_grad=True)).backward()
        assert seen.open == ["Made:grad_input"]
    assert seen.open == []


def test_nothing_is_marked_outside_of_it() -> None:
    seen, layer = Seen(), nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    with Annotator(seen, layer):
        late = layer(torch.ones(1, 2)).sum()
    before = list(seen.events)
    late.backward()
    layer(torch.ones(1, 2)).sum().backward()
    assert seen.events == before


def test_its_hooks_are_gone_afterwards() -> None:
    before = (len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks))
    with Annotator(Seen(), nn.Linear(2, 2)):
        assert len(module_hooks._global_forward_hooks) == before[0] + 1
    assert (
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
    ) == before
