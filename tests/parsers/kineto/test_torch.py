"""The Kineto parser on a trace that torch.profiler writes here, on the CPU, against torch's
own tables."""

from __future__ import annotations

import warnings
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    build_layer_calls_with_flops,
    sum_layer_call_work,
)
from perfctl.parsers import parse
from perfctl.records.report import Report

torch = pytest.importorskip("torch")

STEPS = 3


class Profiled(NamedTuple):
    report: Report
    averages: dict[str, Any]
    path: Path


def run_steps():
    torch.manual_seed(0)
    conv, linear = torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(144, 3)
    images = torch.randn(8, 1, 8, 8)
    record = torch.profiler.record_function
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=cpu, profile_memory=True, record_shapes=True
    ) as profiler:
        for step in range(STEPS):
            with record(f"perfctl:step:{step}"):
                with record("perfctl:phase:forward"):
                    with record("conv1:forward"):
                        hidden = conv(images)
                    flat = torch.relu(hidden).flatten(1)
                    with record("fc:forward"):
                        loss = linear(flat).sum()
                with record("perfctl:phase:backward"):
                    loss.backward()
    return profiler


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch speaks of drivers where there is no GPU
        profiler = run_steps()
    profiler.export_chrome_trace(str(path))
    return Profiled(parse(path), {entry.key: entry for entry in profiler.key_averages()}, path)


def by_name(report):
    found = defaultdict(list)
    for operation in report.operations:
        found[operation.name].append(operation)
    return found


def test_calls_are_those_of_key_averages(profiled):
    found = {name: sum(op.calls for op in ops) for name, ops in by_name(profiled.report).items()}
    names = {entry.name for entry in profiled.report.ranges} | {"[memory]"}
    wanted = {name: entry.count for name, entry in profiled.averages.items() if name not in names}
    assert found == wanted
    assert found["aten::conv2d"] == STEPS


def test_total_and_own_times_are_those_of_key_averages(profiled):
    for name, ops in by_name(profiled.report).items():
        entry, calls = profiled.averages[name], sum(op.calls for op in ops)
        assert sum(op.cpu_ns for op in ops) == pytest.approx(
            entry.cpu_time_total * 1000, abs=2 * calls
        )
        assert sum(op.self_cpu_ns for op in ops) == pytest.approx(
            entry.self_cpu_time_total * 1000, abs=20 * calls
        )


def test_memory_is_that_of_key_averages(profiled):
    for name, ops in by_name(profiled.report).items():
        entry = profiled.averages[name]
        wanted = getattr(entry, "cpu_memory_usage", None)
        assert sum(op.memory_bytes for op in ops) == wanted, name


def test_the_clock_base_gives_the_hour_it_really_was(profiled):
    assert profiled.report.started_at is not None
    written = profiled.path.stat().st_mtime
    assert abs(datetime.fromisoformat(profiled.report.started_at).timestamp() - written) < 120


# Paper FLOPs of a trace that torch.profiler writes here, of a network that perfctl has not run,


BATCH, NET_STEPS = 4, 2
CONV1, CONV2, FC1, FC2 = 26 * 26 * 32 * 9, 24 * 24 * 64 * 32 * 9, 9216 * 128, 128 * 10
FORWARD = BATCH * (CONV1 + CONV2 + FC1 + FC2)


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """The CNN of PyTorch's MNIST example."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 32, 3), torch.nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = torch.nn.Linear(9216, 128), torch.nn.Linear(128, 10)

    def forward(self, images):
        hidden = torch.max_pool2d(torch.relu(self.conv2(torch.relu(self.conv1(images)))), 2)
        return self.fc2(torch.relu(self.fc1(hidden.flatten(1))))


def profile_net(path, **options):
    torch.manual_seed(0)
    net, images = Net(), torch.randn(BATCH, 1, 28, 28)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=cpu, record_shapes=True, **options) as profiler:
            for _ in range(NET_STEPS):
                net(images).sum().backward()
                profiler.step()
        profiler.export_chrome_trace(str(path))
    return parse(path)


@pytest.mark.parametrize("modules", [False, True], ids=["operators", "modules"])
def test_paper_of_a_foreign_trace_is_that_of_the_network(tmp_path, modules):
    found = profile_net(tmp_path / "t.pt.trace.json", with_stack=modules)
    calls, times = (
        build_layer_calls_with_flops(found.ops),
        len({step.number for step in found.steps}) or NET_STEPS,
    )
    each = NET_STEPS if "ledger_covers" in found.environment else NET_STEPS / times
    assert sum_layer_call_work(calls, ("forward",)).macs == each * FORWARD
    # conv1's input needs no gradient
    assert sum_layer_call_work(calls, BACKWARD).macs == each * (2 * FORWARD - BATCH * CONV1)
    assert not sum_layer_call_work(calls, (*BACKWARD, "forward")).missing
    rows = {call.layer for call in calls}
    if modules:
        assert rows == {"Conv2d_0", "Conv2d_1", "Linear_0", "Linear_1"}
    else:
        assert f"aten::addmm {BATCH}x9216x128" in rows and all(
            row.startswith("aten::") for row in rows
        )
