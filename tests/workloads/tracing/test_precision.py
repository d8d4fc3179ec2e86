"""Steps under a precision, by hand: which casts run, how long they live, which type each
operation has."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfctl.records.paper import TensorAllocation
from perfctl.workloads.tracing.recorder import trace_step

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")


def on_meta(model, *shape, **options):
    found = trace_step(model.to("meta"), (torch.empty(shape, device="meta"),), **options)
    assert found.problem is None
    return found


def kinds(ops, name, direction="forward"):
    return [
        op.dtypes
        for op in ops
        if op.op == f"aten.{name}" and op.direction == direction
        for _ in range(op.calls)
    ]


def test_a_step_by_hand():
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1)
    )
    ops = on_meta(model, 32, 8, precision="bf16").ops
    # x, two weights, two biases, the input of the second Linear; the input of the norm and of the
    # softmax come back.
    assert sorted(kinds(ops, "_to_copy")) == sorted(
        [("float32", "bfloat16")] * 6 + [("bfloat16", "float32")] * 2
    )
    assert kinds(ops, "addmm") == [("bfloat16",) * 4] * 2
    assert kinds(ops, "relu") == [("bfloat16",) * 2]
    assert {name for row in kinds(ops, "native_layer_norm") for name in row} == {"float32"}
    assert kinds(ops, "_softmax") == [("float32",) * 2]
    # two of the second layer, one of the first
    assert kinds(ops, "mm", "backward") == [("bfloat16",) * 3] * 3
    gradients = [
        op for op in ops if op.op == "aten._to_copy" and op.attributes.get("role") == "grad_weight"
    ]
    assert {op.dtypes for op in gradients} == {("bfloat16", "float32")}
    # the norm's never were bfloat16
    assert sum(op.calls for op in gradients) == len(list(model.parameters())) - 2


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_casts_of_weights_live_until_forward_and_loss_end_or_backward_has_used_them(mode):
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
    found = on_meta(model, 32, 8, precision="bf16", mode=mode, memory=True).memory
    assert found is not None
    first, second = (
        next(
            row
            for row in found.allocations
            if row.layer == layer
            and row.bytes == 2 * size
            and row.op == "aten._to_copy"
            and row.direction == "forward"
        )
        for layer, size in (("0", 8 * 16), ("2", 16 * 4))
    )
    kept: list[TensorAllocation] = [row for row in found.allocations if row.category == "gradient"]
    assert first.died is not None and second.died is not None
    if mode == "infer":
        assert found.ends >= first.died > second.born and second.died > second.born
        assert not kept
    else:
        assert second.born < first.died <= found.forward_ends < second.died < found.backward_ends
        # gradients are float32
        assert sorted(row.bytes for row in kept) == [4 * 16 * 4, 4 * 8 * 16]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_repeats_is_cast_again(reentrant):
    class Repeats(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return checkpoint(
                lambda y: self.second(y).relu().exp(), self.first(x), use_reentrant=reentrant
            )

    again = [
        op
        for op in on_meta(Repeats(), 4, 8, precision="fp16").ops
        if op.attributes.get("recompute")
    ]
    assert kinds(tuple(again), "addmm") == [("float16",) * 4]


def test_a_region_of_the_model_that_switches_autocast_off_is_obeyed_on_every_device():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast(x.device.type, enabled=False):
                x = self.layer(x)
            return self.layer(x)

    for device in ("meta", "cpu"):
        found = trace_step(
            Careful().to(device),
            (torch.empty(4, 8, device=device),),
            precision="bf16",
            mode="infer",
        )
        assert kinds(found.ops, "addmm") == [("float32",) * 4, ("bfloat16",) * 4]


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_run_whole_in_the_type_of_autocast_with_their_weights_cast(make):
    layer = make(8, 16)
    ops = on_meta(layer, 5, 2, 8, precision="bf16").ops
    (call,) = (op for op in ops if op.op.startswith("perfctl.") and op.direction == "forward")
    assert set(call.dtypes) == {"bfloat16"}
    cast = sum(
        op.inputs[0][0] * (op.inputs[0][1] if len(op.inputs[0]) > 1 else 1) * op.calls
        for op in ops
        if op.op == "aten._to_copy"
        and op.direction == "forward"
        and op.inputs[0]
        and len(op.inputs[0]) < 3
    )
    assert cast == sum(parameter.numel() for parameter in layer.parameters())


def test_binary_cross_entropy_ends_the_step_as_it_does_on_a_gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trace_step(
            nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()),
            (torch.empty(3, 4),),
            precision="bf16",
            loss=lambda output: F.binary_cross_entropy(output, torch.ones(3, 4)),
        )
    assert found.problem is not None and "binary_cross_entropy_with_logits" in found.problem
