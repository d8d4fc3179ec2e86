"""Memory of traced steps: against torch's own tracker."""

import pytest
import torch

from perfctl.orchestrator.estimate import session as estimation
from perfctl.orchestrator.estimate.memory import find_memory_peak
from perfctl.workloads.tracing.recorder import trace_step

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

MIB = 1 << 20


@pytest.mark.parametrize(
    ("batch", "wanted"), [(16, 18_037_080), (64, 43_576_920), (256, 145_736_280)]
)
def test_mnist_cnn_with_sgd_is_what_torch_tracks(batch, wanted):
    found = estimation.Session(
        estimation.Request("mnist_cnn", optimizer="sgd", memory=True)
    ).estimate_batch(batch)
    assert found.memory is not None
    assert found.memory.peak.bytes == wanted


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_peak_equals_mem_trackers_byte_for_byte(optimizer):
    from torch import nn
    from torch.distributed._tools.mem_tracker import MemTracker

    from perfctl.workloads.tracing.recorder import make_optimizer

    def make():
        with torch.device("meta"):
            return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))

    inputs = torch.zeros((4, 3, 8, 8), device="meta")
    model = make()
    stepper, tracker = make_optimizer(model, optimizer), MemTracker()
    tracker.track_external(model, stepper, inputs)
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            stepper.zero_grad()
            output = model(inputs)
            output.backward(torch.ones_like(output))
            del output
            stepper.step()
            wanted = next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]
    traced = trace_step(make(), (inputs,), optimizer=optimizer, memory=True)
    assert traced.memory is not None
    assert find_memory_peak(traced.memory).bytes == wanted


class Summed(torch.nn.Module):
    """Its input's gradient is the sum of those of both branches."""

    def __init__(self, branches):
        super().__init__()
        self.start, self.branches = torch.nn.Parameter(torch.zeros(6, 4, device="meta")), branches

    def forward(self, inputs):
        start = inputs * self.start
        first, second = self.branches
        return (first(start) + second(start)).exp()


@pytest.mark.parametrize(
    ("branches", "sums"),
    [
        ((torch.sin, torch.cos), 0),
        ((lambda start: start, torch.cos), 0),  # a residual connection
        ((lambda start: start, lambda start: start), 1),  # both gradients are one tensor
        # a view's base holds the first gradient's storage, too
        ((torch.sin, lambda start: start.t().exp().t()), 1),
    ],
)
def test_autograd_sums_gradients_in_place_unless_the_first_is_held(branches, sums):
    # torch.profiler sees on the CPU what a trace on meta claims
    model = Summed(branches)
    traced = trace_step(model, (torch.zeros(6, 4, device="meta"),), memory=True).memory
    assert traced is not None
    added = [one for one in traced.allocations if one.direction == "backward" and "add" in one.op]
    assert [one.bytes for one in added] == [4 * 6 * 4] * sums
    real = Summed(branches)
    real.start = torch.nn.Parameter(torch.zeros(6, 4))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        output = real(torch.zeros(6, 4))
        with torch.profiler.record_function("backward"):
            output.backward(torch.ones_like(output))
    names = [
        event.name for event in sorted(profiler.events(), key=lambda one: one.time_range.start)
    ]
    names = names[names.index("backward") :]
    assert (names.count("aten::add"), names.count("aten::add_")) == (sums, 1 - sums)


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2), ("adadelta", 2), ("rmsprop", 1)],
)
def test_optimizer_state_is_so_many_copies_of_the_parameters(optimizer, copies):
    found = estimation.Session(
        estimation.Request("mnist_cnn", optimizer=optimizer, memory=True)
    ).estimate_batch(1)
    assert found.memory is not None
    assert found.memory.parameters == found.memory.gradients == 4 * 1_199_882
    assert found.memory.optimizer == copies * 4 * 1_199_882


def test_hopper_has_the_larger_workspaces_and_a_smaller_largest_batch():
    small, large = 4096 * 1024 * 2 + 16 * 1024 * 8, 32 * MIB
    found = {}
    for gpu, workspace in ((None, small), ((8, 0), small), ((9, 0), large)):
        session = estimation.Session(estimation.Request("mnist_cnn", memory=True, gpu=gpu))
        memory = session.estimate_batch(1).memory
        assert memory is not None
        assert memory.cublas_workspace == 2 * workspace + MIB  # forward, backward, and cuBLASLt's
        assert memory.allocated == memory.rounded_peak + memory.cublas_workspace
        assert memory.reserved >= memory.allocated
        found[gpu] = session.find_largest_fitting_batch(200 * MIB, 10 * MIB)
    hopper, ampere = found[9, 0].batch, found[8, 0].batch
    assert hopper is not None and ampere is not None
    assert hopper < ampere == found[None].batch
    assert found[9, 0].margin == 190 * MIB - found[9, 0].needed
    assert found[9, 0].reserve == 10 * MIB
