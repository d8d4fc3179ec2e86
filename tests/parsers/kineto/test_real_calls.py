"""Single operators, calls, collectives and the allocator's curve of real traces, each against plain
JSON read here."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers
from perfctl.records.report import WAITS, Report

TRACES = (
    "harryjmoss_forward_batch_size_16.json",
    "hazyresearch_zoology_trace.json",
    "hta_alexnet_critical_path_2023.json.gz",
    "hta_cpu_only_rank-34.pt.trace.json.gz",
    "tracelens_b200_eager_trace.json.gz",
    "tracelens_h100_Falconsai_vit.json.gz",
    "tracelens_mi210_gpu_only.json.gz",
    "llm/nanovllm_decode_gpu_10.json.gz",
    "llm/sglang_qwen3_decode/execution.json.gz",
    "llm/deepseek_v3_train_ep64_rank0.json.gz",
    "ranks/param_dlrm_8rank/worker3_step_12.1694128201557.pt.trace.json.gz",
)
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime")


@cache
def parse(path: Path) -> Report:
    """Each trace is read once for all tests."""
    return parsers.parse(path)


@cache
def load(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    events = json.loads(data, strict=False)["traceEvents"]
    return [{"args": {}, **event} for event in events if isinstance(event, dict)]


@pytest.fixture(params=TRACES, scope="module")
def trace(request: pytest.FixtureRequest, reports: Path) -> Path:
    return reports / "kineto" / str(request.param)


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def test_every_operator_is_there_with_its_time_and_the_shapes_of_its_inputs(trace: Path) -> None:
    wanted = [event for event in load(trace) if event.get("cat") == "cpu_op"]
    found = [call for call in parse(trace).op_calls if call.name not in WAITS]
    assert [(call.name, call.duration_ns) for call in found] == [
        (one["name"], ns(one["dur"])) for one in wanted
    ]
    shapes = [None if call.shapes is None else json.loads(call.shapes) for call in found]
    types = [None if call.dtypes is None else json.loads(call.dtypes) for call in found]
    assert shapes == [one["args"].get("Input Dims") for one in wanted]
    assert types == [one["args"].get("Input type") for one in wanted]


def test_single_waits_for_the_gpu_are_there_and_add_up_to_their_sums(trace: Path) -> None:
    times: dict[str, int] = defaultdict(int)
    for call in parse(trace).op_calls:
        if call.name in WAITS:
            times[call.name] += call.duration_ns or 0
    sums = {
        row.name: row.total_ns
        for row in parse(trace).api_calls
        if row.domain in ("cuda", "hip") and row.name in WAITS
    }
    assert times == sums


def test_calls_of_the_runtime_waits_and_functions_are_the_sums_over_their_events(
    trace: Path,
) -> None:
    sums: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in load(trace):
        category, name = event.get("cat"), event.get("name")
        if category in CALLS:
            sums["hip" if name.startswith("hip") else "cuda", name].append(ns(event["dur"]))
        elif category == "cuda_sync":
            sums["sync", name].append(ns(event["dur"]))
        elif category == "python_function" and not name.startswith("nn.Module: "):
            sums["python", name].append(ns(event["dur"]))
    found = {
        (row.domain, row.name): (row.calls, row.total_ns, row.min_ns, row.max_ns)
        for row in parse(trace).api_calls
    }
    assert found == {
        key: (len(times), sum(times), min(times), max(times)) for key, times in sums.items()
    }


def test_every_kernel_that_talks_to_other_gpus_is_a_collective_with_its_size_where_the_trace_has_it(
    trace: Path,
) -> None:
    words = ("ncclKernel", "ncclDevKernel", "::ep::internode")
    wanted = [
        e
        for e in load(trace)
        if e.get("cat") == "kernel" and any(word in e["name"] for word in words)
    ]
    found = list(parse(trace).collectives)
    assert [one.duration_ns for one in found] == [ns(one["dur"]) for one in wanted]
    assert [one.group_size for one in found] == [one["args"].get("Group size") for one in wanted]
    widths = {"BFloat16": 2}
    assert [one.bytes for one in found] == [
        one["args"]["In msg nelems"] * widths[one["args"]["dtype"]]
        if "dtype" in one["args"]
        else None
        for one in wanted
    ]


def test_the_curve_has_every_reading_of_the_gpus_allocator(trace: Path) -> None:
    readings = [
        e["args"]
        for e in sorted(load(trace), key=lambda event: event.get("ts", 0))
        if e.get("name") == "[memory]"
    ]
    wanted = [
        (one["Total Allocated"], one["Total Reserved"])
        for one in readings
        if one["Device Type"] == 1
    ]
    found = [(one.allocated_bytes, one.reserved_bytes) for one in parse(trace).samples]
    assert sorted(found) == sorted(wanted)
    assert found[:20] == wanted[:20]


def test_graph_launches_share_the_correlation_of_their_call(reports: Path) -> None:
    """FORMATS: 544 of 555 kernels carry the correlation of one hipGraphLaunch."""
    path = reports / "kineto/llm/sglang_qwen3_decode/execution.json.gz"
    (call,) = [event for event in load(path) if event.get("name") == "hipGraphLaunch"]
    kernels = list(parse(path).kernels)
    assert sum(kernel.correlation == call["args"]["correlation"] for kernel in kernels) == 544
    assert len(kernels) == 555


def test_compiled_kernels_are_told_apart_by_hash(reports: Path) -> None:
    path = reports / "kineto/llm/nanovllm_decode_gpu_10.json.gz"
    wanted: dict[tuple[str, str], int] = defaultdict(int)
    for event in load(path):
        if "kernel_hash" in event["args"]:
            wanted[event["name"], event["args"]["kernel_hash"]] += 1
    found: dict[tuple[str, str | None], int] = defaultdict(int)
    for one in parse(path).compiled_kernels:  # a row for each size that it was called with
        found[one.name, one.hash] += one.calls
    assert found == wanted
    assert len(wanted) == 5
