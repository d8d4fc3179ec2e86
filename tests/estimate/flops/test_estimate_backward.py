"""Backward on paper: the same on every device, custom functions, recomputation, fused kernels
beside it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfctl.orchestrator.estimate import session as estimation
from perfctl.workloads.tracing import watch

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

DEVICES = ("meta", "cpu")


class Attend(nn.Module):
    """A projection and causal attention of 4 heads, 8 wide."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x):
        query, key, value = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Checkpointed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.first, self.block = nn.Linear(32, 32), block

    def forward(self, x):
        return checkpoint(self.block, self.first(x), use_reentrant=False)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(32, 8, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]  # type: ignore[no-any-return]


class Product(torch.autograd.Function):
    """x @ w with a backward of its own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.relu() @ w

    @staticmethod
    def backward(ctx, *grads):
        x, w = ctx.saved_tensors
        return grads[0] @ w.t(), x.t() @ grads[0]


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.weight = nn.Linear(6, 6), nn.Parameter(torch.zeros(6, 4))

    def forward(self, x):
        return Product.apply(self.first(x), self.weight)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("device", DEVICES)
def test_a_fused_kernels_work_stands_beside_every_total(device):
    found = estimation.estimate(Attend(), (2, 5, 32), device=device)
    scores = 2 * 4 * 5 * 5
    assert found.recompute.macs == 0
    assert found.fused.macs == scores * 8
    assert found.backward.macs == 2 * 5 * 32 * 96 + 4 * scores * 8


@pytest.mark.parametrize("block", [Attend(), Recurrent()], ids=["attention", "gru"])
def test_checkpointing_counts_the_same_on_every_device(block):
    found = [
        estimation.estimate(Checkpointed(block), (2, 5, 32), device=device) for device in DEVICES
    ]
    assert found[0].recompute == found[1].recompute
    assert found[0].recompute.macs == sum(
        call.macs or 0
        for call in found[0].calls
        if call.direction == "forward" and call.layer.startswith("block")
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_function_with_its_own_backward_belongs_to_its_caller(device):
    found = estimation.estimate(Own(), (3, 6), device=device)
    macs = {call.direction: call.macs for call in found.calls if call.layer == "" and call.macs}
    assert macs == {"forward": 3 * 6 * 4, "grad_input": 3 * 6 * 4, "grad_weight": 3 * 6 * 4}
    assert {call.kind for call in found.calls if call.macs} == {"Linear", "matmul"}


def test_a_fault_of_the_recorder_costs_that_operation_only_and_is_named(monkeypatch):
    note = watch.Recorder.record_operator

    def broken(self, plan, *rest):
        if plan.name == "aten.relu":
            raise KeyError("recorder")
        note(self, plan, *rest)

    monkeypatch.setattr(watch.Recorder, "record_operator", broken)
    found = estimation.estimate(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (2, 3))
    assert found.problem is None
    assert (found.forward.macs, found.forward.is_lower_bound) == (2 * 3 * 4, True)
    assert dict(found.forward.missing) == {"relu": 1}
    assert [call.formula for call in found.calls if call.macs is None] == [
        "perfctl did not read aten.relu: KeyError: 'recorder' (1 call)"
    ]


def test_a_models_own_exception_is_its_problem():
    class Trouble(Exception):
        pass

    class Net(nn.Module):
        def forward(self, x):
            raise Trouble("no\nsecond line")

    found = estimation.estimate(Net(), (1, 2))
    assert found.problem == "the model: Trouble: no"
