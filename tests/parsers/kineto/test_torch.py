"""The Kineto parser on a trace that torch.profiler writes here, on the CPU, against torch's
own tables."""

from __future__ import annotations

import gzip
import json
import warnings
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfctl.parsers import parse
from perfctl.records.report import Report

torch = pytest.importorskip("torch")

STEPS = 3


class Profiled(NamedTuple):
    report: Report
    averages: dict[str, Any]
    path: Path


def run_steps() -> Any:
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
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch speaks of drivers where there is no GPU
        profiler = run_steps()
    profiler.export_chrome_trace(str(path))
    return Profiled(parse(path), {entry.key: entry for entry in profiler.key_averages()}, path)


def by_name(report: Report) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for operation in report.operations:
        found[operation.name].append(operation)
    return found


def test_calls_are_those_of_key_averages(profiled: Profiled) -> None:
    found = {name: sum(op.calls for op in ops) for name, ops in by_name(profiled.report).items()}
    names = {entry.name for entry in profiled.report.ranges} | {"[memory]"}
    wanted = {name: entry.count for name, entry in profiled.averages.items() if name not in names}
    assert found == wanted
    assert found["aten::conv2d"] == STEPS


def test_total_and_own_times_are_those_of_key_averages(profiled: Profiled) -> None:
    for name, ops in by_name(profiled.report).items():
        entry, calls = profiled.averages[name], sum(op.calls for op in ops)
        assert sum(op.cpu_ns for op in ops) == pytest.approx(
            entry.cpu_time_total * 1000, abs=2 * calls
        )
        assert sum(op.self_cpu_ns for op in ops) == pytest.approx(
            entry.self_cpu_time_total * 1000, abs=20 * calls
        )


def test_memory_is_that_of_key_averages(profiled: Profiled) -> None:
    for name, ops in by_name(profiled.report).items():
        entry = profiled.averages[name]
        wanted = getattr(entry, "cpu_memory_usage", None)
        assert sum(op.memory_bytes for op in ops) == wanted, name


def test_layer_time_by_brute_force_over_the_plain_trace_agrees(profiled: Profiled) -> None:
    """Every call of aten::addmm that lies inside a range fc:forward of its thread, in the
    JSON itself."""
    with gzip.open(profiled.path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    fc = [(e["tid"], e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "fc:forward"]
    inside = [
        round(e["dur"] * 1000)
        for e in events
        if e["name"] == "aten::addmm" and any(t == e["tid"] and a <= e["ts"] <= b for t, a, b in fc)
    ]
    (addmm,) = [op for op in by_name(profiled.report)["aten::addmm"] if op.layer == "fc"]
    assert (addmm.calls, addmm.cpu_ns) == (len(inside), sum(inside))
    assert len(inside) == STEPS


def test_the_clock_base_gives_the_hour_it_really_was(profiled: Profiled) -> None:
    assert profiled.report.started_at is not None
    written = profiled.path.stat().st_mtime
    assert abs(datetime.fromisoformat(profiled.report.started_at).timestamp() - written) < 120
