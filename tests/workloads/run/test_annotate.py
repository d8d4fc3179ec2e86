"""Layer ranges: who gets one, when, on which thread, where they go, and that nothing of the annotator stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils.checkpoint import checkpoint

from perfctl.records.ranges import parse_range_name
from perfctl.workloads.models.mnist_cnn import build_mnist_cnn
from perfctl.workloads.run.annotate import LayerRangeAnnotator
from perfctl.workloads.run.clock import (
    NvtxRanges,
    RecordFunctionRanges,
    make_range_backend,
    mark_range,
)
from tests.workloads.autograd_truth import Made, Seen

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


BACKWARDS = ("backward", "grad_input", "grad_weight")


def backward_of(seen, layer):
    """How many ranges of a layer's backward there are, whichever gradients they computed."""
    return sum(seen[f"{layer}:{direction}"] for direction in BACKWARDS)


def names_of(model, *inputs):
    """Ranges of one forward and backward pass."""
    seen = Seen()
    with LayerRangeAnnotator(seen, model):
        out = model(*inputs)
        out.sum().backward()
    assert seen.open == []
    return seen.count()


def test_the_same_gradient_memory_is_handed_on():
    layer = nn.Linear(3, 4)
    with LayerRangeAnnotator(Seen(), layer):
        out = layer(torch.ones(2, 3))
        handed: list[int] = []
        out.grad_fn.register_hook(
            lambda grads, _: handed.extend(g.data_ptr() for g in grads if g is not None)
        )
        out.sum().backward()
    assert layer.bias.grad is not None
    assert layer.bias.grad.data_ptr() in handed


def test_a_backward_range_closes_before_the_layer_below_begins():
    seen, model = Seen(), nn.Sequential(nn.Tanh(), nn.Sigmoid())
    with LayerRangeAnnotator(seen, model):
        out = model(torch.ones(2, requires_grad=True)).sum()
        seen.events.clear()
        out.backward()
        assert seen.events == [">1:grad_input", "<1:grad_input", ">0:grad_input", "<0:grad_input"]


def test_the_gradient_of_a_parameter_is_added_in_the_range_of_the_layer_that_holds_it():
    tied = Made(
        lambda self, x: x @ self.holder.weight.T,
        holder=nn.Linear(3, 2, bias=False),
    )
    seen = names_of(tied, torch.ones(1, 3))
    assert (seen["holder:forward"], seen["holder:grad_weight"]) == (0, 1)
    assert backward_of(seen, "Made") >= 1


def test_a_function_written_in_python_is_marked():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    own = Made(lambda self, x: Double.apply(x))
    assert names_of(own, torch.ones(2, requires_grad=True))["Made:grad_input"] == 1


def test_an_unknown_model_is_marked_from_its_outermost_module():
    seen, model = Seen(), nn.Sequential(nn.Linear(2, 2))
    with LayerRangeAnnotator(seen):
        nn.MSELoss()(model(torch.ones(1, 2)), torch.zeros(1, 2)).backward()
    wanted = {
        "model:forward",
        "model.0:forward",
        "model.0:grad_weight",
        "MSELoss:forward",
        "MSELoss:grad_input",
    }
    assert wanted <= set(seen.count())


def test_a_module_outside_the_tree_counts_for_the_one_around_it():
    hidden = nn.Tanh()
    seen = names_of(Made(lambda self, x: hidden(x)), torch.ones(2, requires_grad=True))
    assert seen == {"Made:forward": 1, "Made:grad_input": 1}


def test_inference_has_forward_ranges_alone():
    seen, model = Seen(), build_mnist_cnn().eval()
    with torch.inference_mode(), LayerRangeAnnotator(seen, model):
        model(torch.zeros(1, 1, 28, 28))
    assert {name.rpartition(":")[2] for name in seen.count()} == {"forward"}


def test_recomputed_layers_are_marked_and_closed():
    saves = Made(lambda self, x: checkpoint(self.fc, x, use_reentrant=False), fc=nn.Linear(2, 2))
    seen = names_of(saves, torch.ones(1, 2))
    assert (seen["fc:forward"], seen["fc:recompute"]) == (1, 1)
    assert backward_of(seen, "fc") >= 1


# Every layer range is closed, and nothing of the annotator stays behind


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_forward_closes_every_range(error):
    def breaks(self, x):
        raise error

    seen = Seen()
    model = nn.Sequential(nn.Identity(), Made(breaks))
    with LayerRangeAnnotator(seen, model):
        with pytest.raises(error):
            model(torch.ones(1))
        assert seen.open == [] or error is KeyboardInterrupt
    assert seen.open == []
    assert seen.events[-2:] == ["<1:forward", "<Sequential:forward"]


def test_an_exception_in_backward_leaves_no_range_open():
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("broken gradient")

    seen, model = Seen(), Made(lambda self, x: Breaks.apply(x))
    with LayerRangeAnnotator(seen, model):
        with pytest.raises(ValueError, match="broken gradient"):
            model(torch.ones(1, requires_grad=True)).backward()
        assert seen.open == ["Made:grad_input"]
    assert seen.open == []


def test_nothing_is_marked_outside_of_it():
    seen, layer = Seen(), nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    with LayerRangeAnnotator(seen, layer):
        late = layer(torch.ones(1, 2)).sum()
    before = list(seen.events)
    late.backward()
    layer(torch.ones(1, 2)).sum().backward()
    assert seen.events == before


def test_its_hooks_are_gone_afterwards():
    before = (len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks))
    with LayerRangeAnnotator(Seen(), nn.Linear(2, 2)):
        assert len(module_hooks._global_forward_hooks) == before[0] + 1
    assert (
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
    ) == before


# Where ranges go: NVTX, torch.profiler, nowhere


def test_under_torch_profiler_backward_operations_lie_in_their_layers_range():
    model = build_mnist_cnn()
    ranges = make_range_backend("record_function")
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
        LayerRangeAnnotator(ranges, model),
    ):
        model(torch.zeros(2, 1, 28, 28)).sum().backward()
    events = list(profiler.events())
    above = []
    for event in events:
        if event.name == "aten::convolution_backward":
            while parse_range_name(event.name).layer is None:
                event = event.cpu_parent
            above.append(event.name)
    assert sorted(above) == ["conv1:grad_weight", "conv2:backward"]


def test_nvtx_ranges_need_a_torch_that_has_them():
    if not hasattr(torch._C, "_nvtx"):
        pytest.skip("this torch was built without CUDA")
    with mark_range(NvtxRanges(), "perfctl:test"):
        pass


def test_a_torch_without_nvtx_says_what_to_use_instead(monkeypatch):
    monkeypatch.delattr(torch._C, "_nvtx", raising=False)
    with pytest.raises(RuntimeError, match="set `annotate` to record_function"):
        make_range_backend("nvtx")


def test_record_function_ranges_nest():
    ranges = RecordFunctionRanges()
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profile as profiler, mark_range(ranges, "outer"), mark_range(ranges, "inner"):
        torch.ones(1).add_(1)
    events = {event.name: event for event in profiler.events()}
    assert events["inner"].cpu_parent.name == "outer"
