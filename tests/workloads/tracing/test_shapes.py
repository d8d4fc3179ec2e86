"""What a Recorder sees of a real step, on CPU and meta."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfctl.workloads.tracing.recorder import Recorder
from tests.workloads.autograd_truth import Made

# A CUDA build of torch on a machine without a fitting driver warns in the first backward.
pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

DEVICES = ("cpu", "meta")


def record(model, *inputs, optimizer=None, grad=True):
    with Recorder(model) as recorder:
        with torch.set_grad_enabled(grad):
            output = model(*inputs)
        output = output[0] if isinstance(output, tuple) else output
        if grad:
            output.sum().backward()
        if optimizer is not None:
            optimizer.step()
    return recorder.ops, recorder


def of(ops, layer, direction):
    return [op for op in ops if op.layer == layer and op.direction == direction and op.kind]


def two(device="cpu"):
    """Two linear layers and a functional product between them."""
    parts = {"a": nn.Linear(6, 5), "b": nn.Linear(5, 4), "own": nn.Parameter(torch.ones(5, 5))}
    return Made(lambda self, x: self.b(torch.relu(self.a(x)) @ self.own), **parts).to(device)


@pytest.mark.parametrize("device", DEVICES)
def test_the_first_layer_has_a_weight_gradient_and_no_input_gradient(device):
    ops, _ = record(two(device), torch.zeros(3, 6, device=device))
    roles = {op.attributes["role"] for op in of(ops, "a", "backward")}
    assert roles == {"grad_weight", "grad_bias"}
    assert {op.attributes["role"] for op in of(ops, "b", "backward")} == {
        "grad_input",
        "grad_weight",
        "grad_bias",
    }


@pytest.mark.parametrize("device", DEVICES)
def test_a_functional_product_stands_under_its_parent_in_both_directions(device):
    ops, _ = record(two(device), torch.zeros(3, 6, device=device))
    products = [op for op in ops if op.op == "aten.mm" and op.layer == ""]
    assert [op.attributes.get("functional") for op in products] == ["aten.mm"] * 3
    assert sorted(str(op.attributes.get("role")) for op in products) == [
        "None",
        "grad_input",
        "grad_weight",
    ]


def test_the_same_is_seen_on_cpu_and_on_meta():
    seen = [record(two(device), torch.zeros(3, 6, device=device))[0] for device in DEVICES]
    assert seen[0] == seen[1]


def test_an_exception_names_the_innermost_module_and_leaves_nothing_hooked_in():
    before = (F.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled())
    hooks = len(nn.modules.module._global_forward_hooks)
    model, wrong = two(), torch.zeros(3, 7)
    with pytest.raises(RuntimeError), Recorder(model) as recorder:
        model(wrong)
    assert (F.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled()) == before
    assert len(nn.modules.module._global_forward_hooks) == hooks
    assert recorder.ops == ()
    assert recorder.failed_in == "a"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_is_one_operation_in_each_direction(device, make):
    ops, _ = record(
        make(4, 3, 2, bidirectional=True).to(device), torch.zeros(7, 2, 4, device=device)
    )
    mine = [op for op in ops if op.kind == make.__name__]
    assert [op.direction for op in mine] == ["forward", "backward"]
    assert (mine[0].attributes["rows"], mine[0].attributes["first_rows"]) == (14, 2)
    assert mine[1].attributes["needs_input"] is False


def test_a_packed_sequence_counts_its_lengths_and_not_its_padding():
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(5, 3, 4), torch.tensor([5, 3, 1]))
    model = nn.LSTM(4, 3)
    with Recorder(model) as recorder:
        model(packed)
    lstm = next(op for op in recorder.ops if op.op == "perfctl.lstm")
    assert (lstm.attributes["rows"], lstm.attributes["first_rows"]) == (5 + 3 + 1, 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad", "inference_mode"])
def test_attention_is_one_operation_in_every_mode(device, mode):
    model = nn.MultiheadAttention(8, 2, batch_first=True).to(device).train(mode == "train")
    x = torch.zeros(2, 5, 8, device=device)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(
        mode, torch.enable_grad
    )
    with Recorder(model) as recorder, context():
        model(x, x, x, need_weights=False)
    forward = [op for op in recorder.ops if op.op == "perfctl.scaled_dot_product_attention"]
    assert [op.inputs[0] for op in forward] == [(2, 2, 5, 4)]
    assert forward[0].parameters == 4 * 8 * 8 + 4 * 8


def test_parameters_of_a_module_that_never_runs_go_to_the_one_above():
    model = nn.MultiheadAttention(8, 2)
    x = torch.zeros(5, 1, 8)
    with Recorder(model) as recorder:
        model(x, x, x)
    assert {op.parameters for op in recorder.ops if op.kind} == {
        sum(p.numel() for p in model.parameters())
    }


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_marks_what_runs_again(reentrant):
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model = Made(lambda self, x: checkpoint(self.block, x, use_reentrant=reentrant), block=block)
    ops, _ = record(model, torch.zeros(2, 4, requires_grad=True))
    first = [op for op in ops if op.op == "aten.addmm" and op.layer == "block.0"]
    assert [bool(op.attributes.get("recompute")) for op in first] == [False, True]
    assert {op.layer for op in ops if op.op == "aten.mm"} == {"block.0", "block.2"}


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adadelta"])
def test_an_optimizer_step_is_one_record_a_parameter(name):
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    ops, _ = record(model, torch.zeros(1, 3), optimizer=optimizer)
    steps = [op for op in ops if op.direction == "optimizer"]
    assert [(op.layer, op.op, op.inputs) for op in steps] == [
        ("0", f"optim.{name}", ((2, 3),)),
        ("0", f"optim.{name}", ((2,),)),
    ]


def test_a_cast_under_autocast_is_still_the_weight():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    with Recorder(model) as recorder:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(torch.zeros(8, 8))
        output.float().sum().backward()
    roles = [
        op.attributes["role"]
        for op in recorder.ops
        if op.op == "aten.mm" and op.direction == "backward"
    ]
    assert sorted(str(role) for role in roles) == ["grad_input", "grad_weight", "grad_weight"]


def test_identical_calls_are_one_record_with_their_number():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, layer, layer)
    ops, _ = record(model, torch.zeros(1, 4), grad=False)
    assert [(op.layer, op.calls) for op in ops if op.op == "aten.addmm"] == [("0", 3)]


def test_modules_are_listed_with_shapes_and_parameters():
    _, recorder = record(two(), torch.zeros(3, 6))
    assert [(seen.path, seen.output, seen.parameters) for seen in recorder.modules] == [
        ("", (3, 4), 25),
        ("a", (3, 5), 6 * 5 + 5),
        ("b", (3, 4), 5 * 4 + 4),
    ]


def test_what_depends_on_data_is_named():
    model = Made(lambda self, x: x[x > 0].sum() + float(x.sum().item()))
    with Recorder(model) as recorder:
        model(torch.ones(3))
    assert "aten._local_scalar_dense" in recorder.data_dependent_operators
