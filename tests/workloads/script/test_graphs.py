"""Ranges of layers while a CUDA graph is captured, before the measured steps. The graph is a
stand-in: no GPU is needed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from perfctl.workloads.run.clock import DeviceClock  # noqa: E402
from perfctl.workloads.script import phases  # noqa: E402
from perfctl.workloads.script.graphs import GraphCaptureWatch  # noqa: E402
from perfctl.workloads.script.options import ScriptCommand, ScriptOptions  # noqa: E402
from perfctl.workloads.tracing.layers import ModuleNames  # noqa: E402
from tests.workloads.autograd_truth import Seen  # noqa: E402


class Graph:
    """In the place of torch.cuda.CUDAGraph."""

    fails = False

    def capture_begin(self, pool=None):
        if self.fails:
            raise RuntimeError("this stream cannot be captured")
        return f"begun {pool}"

    def capture_end(self):
        return "ended"


class Watched:
    def __init__(self, monkeypatch, *, window="cuda", annotate="nvtx"):
        monkeypatch.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (Graph,), dict(vars(Graph))))
        self.started: list[int] = []
        monkeypatch.setattr(torch.cuda.profiler, "start", lambda: self.started.append(1))
        self.ranges, self.is_open = Seen(), False
        options = ScriptOptions(
            ScriptCommand("script", "train.py", ()), (), window=window, annotate=annotate
        )
        self.captures = GraphCaptureWatch(options, self.ranges, ModuleNames(), lambda: self.is_open)
        self.captures.start()
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.graph = torch.cuda.CUDAGraph()

    def call(self):
        with torch.no_grad():
            self.model(torch.ones(2, 4))


@pytest.fixture
def under_nsys(monkeypatch):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")


def test_a_capture_has_the_ranges_of_its_layers_and_nothing_else_has(monkeypatch, under_nsys):
    watched = Watched(monkeypatch)
    watched.call()
    assert watched.ranges.events == []
    for _ in range(2):
        assert watched.graph.capture_begin(pool=3) == "begun 3"
        watched.call()
        assert watched.graph.capture_end() == "ended"
    opened = [event for event in watched.ranges.events if event[0] == ">"]
    assert opened[: len(opened) // 2] == opened[len(opened) // 2 :], "both captures alike"
    assert [name.rpartition(".")[2] for name in opened[1:3]] == ["0:forward", "1:forward"]
    assert watched.ranges.open == []
    watched.call()
    assert [event for event in watched.ranges.events if event[0] == ">"] == opened
    assert watched.started == [1], "nsys records from the first capture on"


def test_gradients_that_are_captured_have_ranges_too(monkeypatch):
    watched = Watched(monkeypatch)
    watched.graph.capture_begin()
    watched.model(torch.ones(2, 4)).sum().backward()
    watched.graph.capture_end()
    directions = {name.partition(":")[2] for name in watched.ranges.count()}
    assert directions & {"backward", "grad_weight"}
    assert watched.ranges.open == []


@pytest.mark.parametrize(("window", "session"), [("none", "7"), ("torch", "7"), ("cuda", None)])
def test_only_nsys_is_told_to_record_early(monkeypatch, window, session):
    """ncu has the same window: it would replay every kernel of the warm-up."""
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    if session is not None:
        monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", session)
    watched = Watched(monkeypatch, window=window)
    watched.graph.capture_begin()
    watched.graph.capture_end()
    assert watched.started == []


def test_a_capture_that_cannot_begin_leaves_no_hooks(monkeypatch):
    watched = Watched(monkeypatch)
    torch.cuda.CUDAGraph.fails = True
    with pytest.raises(RuntimeError, match="cannot be captured"):
        watched.graph.capture_begin()
    watched.call()
    assert watched.ranges.events == []


def test_a_capture_in_the_window_has_the_window_s_own_ranges(monkeypatch, under_nsys):
    watched = Watched(monkeypatch)
    watched.is_open = True
    watched.graph.capture_begin()
    watched.call()
    watched.graph.capture_end()
    assert (watched.ranges.events, watched.started) == ([], [])


def test_afterwards_nothing_is_left(monkeypatch):
    watched = Watched(monkeypatch, annotate="none")
    assert torch.cuda.CUDAGraph.capture_begin is vars(torch.cuda.CUDAGraph)["capture_begin"]
    watched = Watched(monkeypatch)
    kept = torch.cuda.CUDAGraph
    assert kept.capture_begin.__wrapped__ is Graph.capture_begin
    watched.captures.stop()
    assert kept.capture_begin is Graph.capture_begin


def test_a_phase_that_is_captured_has_a_range_and_no_time(monkeypatch):
    """An event that is recorded during the capture is a node of the graph: its time cannot be
    asked for."""
    ranges = Seen()
    watched = phases.PhaseRanges(ranges, DeviceClock())
    watched.open_phase("forward")
    monkeypatch.setattr(phases, "is_capturing_cuda_graph", lambda: True)
    watched.open_phase("backward")
    watched.close_phase()
    monkeypatch.setattr(phases, "is_capturing_cuda_graph", lambda: False)
    watched.close_phase()
    forward, backward = "perfctl:phase:forward", "perfctl:phase:backward"
    assert ranges.events == [f">{forward}", f">{backward}", f"<{backward}", f"<{forward}"]
    assert [row.phase for row in watched.build_phase_rows()] == ["forward"]


@pytest.mark.parametrize("give", [lambda f: ((f,), {}), lambda f: ((), {"closure": f})])
def test_a_closure_is_no_part_of_the_optimizer_s_phase(give):
    """It runs the forward and backward passes, as in each step of Lightning."""
    seen = []
    watch = phases.OptimizerWatch(
        lambda: seen.append("begin"), lambda: seen.append("leave"), lambda *_: seen.append("end")
    )
    watch.start()
    try:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
        words, keywords = give(lambda: seen.append("closure") or 7)
        assert optimizer.step(*words, **keywords) == 7
        assert optimizer.step(None) is None
    finally:
        watch.stop()
    assert seen == ["begin", "leave", "closure", "begin", "leave", "end", "begin", "leave", "end"]
