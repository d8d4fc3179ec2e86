"""Compiled and scripted models: one range for the region, a note that says so, and nothing
compiled anew."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from perfctl.workloads.run.annotate import LayerRangeAnnotator
from perfctl.workloads.tracing.composites import (
    COMPILED,
    INSTALLED,
    patch_compile_to_wrap_regions,
)
from perfctl.workloads.tracing.layers import ModuleNames
from perfctl.workloads.tracing.recorder import Recorder
from tests.workloads.autograd_truth import Made, Seen

pytestmark = pytest.mark.filterwarnings(
    "ignore:CUDA initialization", "ignore:.torch.jit:FutureWarning"
)


def counting():
    """(an entry per compilation, a backend that compiles nothing)."""
    compiles: list[int] = []

    def backend(graph, example):
        compiles.append(len(example))
        return graph.forward

    torch._dynamo.reset()
    return compiles, backend


def test_a_compiled_model_is_one_range_and_is_compiled_once():
    compiles, backend = counting()
    model = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), backend=backend)
    value, seen, names = torch.ones(3, 2), Seen(), ModuleNames()
    annotator = LayerRangeAnnotator(seen, names=names)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using .torch.compile")
        with Recorder(names=names) as recorder:
            model(value)
        model(value)
        with annotator:
            model(value)
        model(value)
    assert len(compiles) == 1
    assert seen.events == [">model:forward", "<model:forward"]
    assert [(gap.scope, gap.reason) for gap in annotator.compiled_region_gaps] == [
        ("model", COMPILED)
    ]
    assert [gap.scope for gap in recorder.unrecorded_part_gaps] == ["model"]


def test_a_scripted_model_is_one_range_with_its_backward():
    model, seen = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Tanh())), Seen()
    with LayerRangeAnnotator(seen) as annotator:
        model(torch.ones(1, 2)).sum().backward()
    assert seen.count()["model:forward"] == 1
    assert {name.partition(":")[0].partition(".")[0] for name in seen.count()} == {"model"}
    assert [gap.scope for gap in annotator.compiled_region_gaps] == ["model"]
    assert seen.open == []


def test_a_wrapper_that_the_script_does_not_name_goes_by_the_model_it_wraps():
    names = ModuleNames()
    model = nn.Sequential(nn.Linear(2, 2))
    seen = Seen()
    with LayerRangeAnnotator(seen, names=names):
        [torch.compile(model, backend="eager")][0](torch.ones(1, 2))  # a call without a name
    assert list(seen.count()) == ["Sequential:forward"]
    assert names.get_registered_name(model[0]) == "Sequential.0"


def test_the_module_inside_a_parallel_wrapper_has_no_path_element_of_its_own():
    parallel = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    holds, names = Made(lambda self, x: x, parallel=parallel, module=nn.Linear(2, 2)), ModuleNames()
    root = names.find_or_assign_name(holds, None)
    assert names.get_registered_name(holds.parallel.module[0]) == f"{root}.parallel.0"
    assert names.get_registered_name(holds.module) == f"{root}.module"


def test_a_name_that_profilers_would_change_is_written_so_that_none_does():
    odd, names = (
        nn.ModuleDict({'gr\u00f6\u00dfe "x"\n': nn.Linear(2, 2), "c:d@[e]": nn.Linear(2, 2)}),
        ModuleNames(),
    )
    root = names.find_or_assign_name(odd, None)
    assert [names.get_registered_name(module) for module in odd.values()] == [
        f"{root}.grU+00F6U+00DFe U+0022xU+0022U+000A",
        f"{root}.c:d@[e]",
    ]


def test_a_module_compiled_in_place_is_one_range_compiled_once_and_others_keep_theirs():
    compiles, backend = counting()
    undo = patch_compile_to_wrap_regions()
    try:
        model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Linear(2, 2))
        model[0].compile(backend=backend)
    finally:
        undo()
    seen, names, value = Seen(), ModuleNames(), torch.ones(3, 2)
    with Recorder(names=names):
        model(value)
    model(value)
    with LayerRangeAnnotator(seen, names=names) as annotator:
        model(value)
    model(value)
    assert len(compiles) == 1
    assert list(seen.count()) == ["model:forward", "model.0:forward", "model.1:forward"]
    assert [gap.scope for gap in annotator.compiled_region_gaps] == ["model.0"]
    assert not INSTALLED


def test_an_exception_in_a_compiled_function_leaves_the_hooks_in_place():
    undo = patch_compile_to_wrap_regions()

    @torch.compile(backend="eager")
    def fails(value: Tensor) -> Tensor:
        raise ValueError("no")

    undo()
    seen = Seen()
    with LayerRangeAnnotator(seen):
        with pytest.raises(ValueError, match="no"):
            fails(torch.ones(1))
        nn.Linear(1, 1)(torch.ones(1))
    assert seen.open == []
    assert seen.count()["fails:forward"] == 1
    assert seen.count()["Linear:forward"] == 1


def test_shapes_that_torch_works_out_without_computing_are_not_recorded():
    """DTensor (FSDP2) asks fake tensors for the shape of a result while a step is recorded."""
    with Recorder() as recorder, FakeTensorMode():
        assert torch.empty(2, 3).add_(torch.empty(2, 3)).shape == (2, 3)
        torch.mm(torch.empty(2, 3), torch.empty(3, 4))
    assert recorder.ops == ()


def test_several_hooks_together_mark_each_forward_once():
    """Steps, shapes and layers are watched at the same time in a script."""
    seen, model, calls = Seen(), nn.Linear(2, 2), nn.Module.__call__
    with LayerRangeAnnotator(seen, model), Recorder(model):
        model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    assert seen.count()["Linear:forward"] == 1
    assert nn.Module.__call__ is calls


def test_a_recorder_may_end_in_another_thread_than_it_began_in():
    model = nn.Linear(2, 2)
    recorder = Recorder(model)
    began, end = threading.Event(), threading.Event()

    def begin():
        with torch.no_grad():
            recorder.__enter__()
            model(torch.ones(1, 2))
            began.set()
            end.wait()
            model(torch.ones(1, 2))  # the mode is still on this thread's stack, and silent

    thread = threading.Thread(target=begin)
    thread.start()
    began.wait()
    recorder.__exit__()
    noted = recorder.ops
    end.set()
    thread.join()
    assert [op.calls for op in noted if op.op == "aten.addmm"] == [1]
    assert recorder.ops == noted
    assert not INSTALLED


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_compiled_function_without_graph_breaks_may_call_what_the_recorder_replaces(is_warm):
    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.work = torch.compile(self.multiply, backend="eager", fullgraph=True)

        def multiply(self, data):
            scores = torch.linalg.vecdot(data[:, :, None], data[:, None])
            mixed = nn.functional.scaled_dot_product_attention(data, data, data)
            return scores.sum() + torch.from_numpy(mixed.numpy() + 1).sum()

        def forward(self, data):
            return self.work(data)

    model, data = Products(), torch.ones(2, 3, 4)
    if is_warm:
        model(data)
    with Recorder():
        recorded = model(data)
    assert torch.equal(recorded, model(data))


def test_a_recorder_without_a_model_names_work_outside_of_torch():
    class Leaves(nn.Linear):
        def forward(self, data):
            output = super().forward(data)
            output.detach().numpy()
            return output

    model = Leaves(4, 3)
    with Recorder() as recorder:
        output = model(torch.ones(2, 4))
        output.detach().numpy()
    missed = [op for op in recorder.ops if "missed" in op.attributes]
    assert [(op.layer, op.op, op.direction, op.calls) for op in missed] == [
        ("model", "Tensor.numpy", "forward", 1)
    ]


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_a_compiled_function_is_unknown_work_and_flex_attention_is_counted():
    flex_attention = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention
    query = torch.ones(2, 3, 16, 8)
    undo = patch_compile_to_wrap_regions()
    try:
        square = torch.compile(lambda x: x @ x.mT, backend="eager")
        models = Made(lambda self, x: square(x)), Made(lambda self, x: flex_attention(x, x, x))
        recorded = []
        for model in models:
            with torch.no_grad(), Recorder() as recorder:
                model(query)
            recorded.append(recorder.ops)
    finally:
        undo()
    (unknown,), attention = recorded
    assert unknown.attributes["missed"] == COMPILED
    assert [op.inputs for op in attention if "attention" in op.op] == [
        (*((2, 3, 16, 8),) * 3, None)
    ]


def test_the_backward_pass_of_a_compiled_model_computes_both_gradients():
    """Its edges lead only to parameters, but its second layer has an input gradient."""
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), backend="aot_eager")
    seen = Seen()
    with LayerRangeAnnotator(seen, names=ModuleNames()):
        model(torch.ones(4, 2)).sum().backward()
    assert ">model:backward" in seen.events
    assert ">model:grad_weight" not in seen.events
