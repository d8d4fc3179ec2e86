"""Where ranges go: NVTX, torch.profiler, nowhere."""

from __future__ import annotations

import pytest
import torch

from perfctl.records.ranges import read_range_name
from perfctl.workloads.models.mnist_cnn import make_model
from perfctl.workloads.run.annotate import Annotator
from perfctl.workloads.run.clock import NvtxRanges, RecordFunctionRanges, make_backend, span

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


def test_under_torch_profiler_backward_operations_lie_in_their_layers_range() -> None:
    model = make_model()
    ranges = make_backend("record_function")
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
        Annotator(ranges, model),
    ):
        model(torch.zeros(2, 1, 28, 28)).sum().backward()
    events = list(profiler.events())
    above = []
    for event in events:
        if event.name == "aten::convolution_backward":
            while read_range_name(event.name).layer is None:
                event = event.cpu_parent
            above.append(event.name)
    assert sorted(above) == ["conv1:grad_weight", "conv2:backward"]


def test_nvtx_ranges_need_a_torch_that_has_them() -> None:
    if not hasattr(torch._C, "_nvtx"):
        pytest.skip("this torch was built without CUDA")
    with span(NvtxRanges(), "perfctl:test"):
        pass


def test_a_torch_without_nvtx_says_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_nvtx", raising=False)
    with pytest.raises(RuntimeError, match="set `annotate` to record_function"):
        make_backend("nvtx")


def test_record_function_ranges_nest() -> None:
    ranges = RecordFunctionRanges()
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profile as profiler, span(ranges, "outer"), span(ranges, "inner"):
        torch.ones(1).add_(1)
    events = {event.name: event for event in profiler.events()}
    assert events["inner"].cpu_parent.name == "outer"
