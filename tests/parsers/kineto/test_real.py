"""The Kineto parser on real traces, each against a count of its plain JSON made here."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers
from perfctl.records.report import WAITS, Report
from tests.sample import sample

TRACES = (
    "hta_alexnet_critical_path_2023.json.gz",
    "hta_cpu_only_rank-34.pt.trace.json.gz",
    "hta_large_integer.pt.trace.json.gz",
    "kineto2021_resnet50_nw0_worker0.1623143089861.pt.trace.json.gz",
    "tracelens_b200_eager_trace.json.gz",
    "tracelens_h100_Falconsai_vit.json.gz",
    "tracelens_mi210_gpu_only.json.gz",
)
SERVERS = (
    "llm/sglang_qwen3_decode/execution.json.gz",
    "llm/sglang_qwen3_decode/capture_bs_32_rank0.json.gz",
    "llm/sglang_qwen3_prefilldecode.json.gz",
    "llm/vllm_prefilldecode_piecewise/execution.json.gz",
)
WITH_CALLS = (
    "harryjmoss_forward_batch_size_16.json",
    "hazyresearch_zoology_trace.json",
    *(TRACES[index] for index in (0, 1, 4, 5, 6)),
    "llm/nanovllm_decode_gpu_10.json.gz",
    SERVERS[0],
    "llm/deepseek_v3_train_ep64_rank0.json.gz",
    "ranks/param_dlrm_8rank/worker3_step_12.1694128201557.pt.trace.json.gz",
)
OLD_RANGES = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.")
MODULE = "nn.Module: "
KERNELS = ("kernel", "Kernel")
COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
RUNTIMES = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")
Event = dict[str, Any]


@cache
def parse(path: Path) -> Report:
    """Each trace is read once for all tests."""
    return parsers.parse(path)


@lru_cache(maxsize=1)
def load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    return json.loads(data, strict=False)  # type: ignore[no-any-return]


def events_of(path: Path, *categories: str) -> list[Event]:
    """The events of a trace, of these categories if any are named."""
    events = ({"args": {}, **event} for event in load(path)["traceEvents"])
    return [event for event in events if not categories or event.get("cat") in categories]


def is_range(event: Event) -> bool:
    old = event.get("cat") == "Operator" and event["name"].startswith(OLD_RANGES)
    is_module = event.get("cat") == "python_function" and event["name"].startswith(MODULE)
    return event.get("cat") == "user_annotation" or old or is_module


def launch_calls(path: Path) -> dict[int, tuple[str, float]]:
    """Correlation -> thread and time of its call."""
    return {
        call["args"]["correlation"]: (str(call["tid"]), call["ts"])
        for call in events_of(path, *RUNTIMES)
        if "correlation" in call["args"]
    }


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


@pytest.fixture(params=sample(TRACES, 2), scope="module")
def trace(request: pytest.FixtureRequest, reports: Path) -> Path:
    return reports / "kineto" / str(request.param)


@pytest.fixture(params=WITH_CALLS, scope="module")
def with_calls(request: pytest.FixtureRequest, reports: Path) -> Path:
    return reports / "kineto" / str(request.param)


@pytest.mark.parametrize("name", sample((*TRACES, *SERVERS), 4))
def test_every_kernel_copy_range_and_device_of_the_trace_is_there(name: str, reports: Path) -> None:
    path = reports / "kineto" / name
    found, events = parse(path), events_of(path)
    kernels, copies = events_of(path, *KERNELS), events_of(path, *COPIES)
    ranges = [event for event in events if event.get("ph") == "X" and is_range(event)]
    assert [(k.name, k.duration_ns, k.grid_x, k.registers) for k in found.kernels] == [
        (
            kernel["name"],
            ns(kernel["dur"]),
            kernel["args"].get("grid", [None])[0],
            kernel["args"].get("registers per thread"),
        )
        for kernel in kernels
    ]
    assert [(c.bytes, c.duration_ns) for c in found.copies] == [
        (copy["args"]["bytes"], ns(copy["dur"])) for copy in copies
    ]
    assert [(r.name, r.duration_ns) for r in found.ranges] == [
        (event["name"], ns(event["dur"])) for event in ranges
    ]
    gpus = sorted((gpu.index, gpu.sm_count) for gpu in found.devices if gpu.kind == "gpu")
    listed = load(path).get("deviceProperties", ())
    assert gpus == [(gpu["id"], gpu.get("numSms")) for gpu in listed]


def test_calls_and_times_are_sums_over_the_events_with_overloads_counted_once(trace: Path) -> None:
    """By a plain stack per thread: an operation whose only child is its namesake is one call
    with it."""
    threads: dict[Any, list[Any]] = defaultdict(list)
    for event in events_of(trace, "cpu_op", "Operator", "user_annotation"):
        begin, end = event["ts"], event["ts"] + event["dur"]
        order = (begin, -end, event["args"].get("External id", 0))
        threads[event["pid"], event["tid"]].append((order, event, []))
    calls, times = Counter[str](), Counter[str]()
    for spans in threads.values():
        stack: list[Any] = []
        for span in sorted(spans, key=lambda span: span[0]):
            while stack and -stack[-1][0][1] <= span[0][0]:
                stack.pop()
            if stack:
                stack[-1][2].append(span[1])
            stack.append(span)
        overloads = {
            id(inside[0])
            for _, event, inside in spans
            if len(inside) == 1 and inside[0]["name"] == event["name"]
        }
        for (begin, minus_end, _), event, _ in spans:
            if not is_range(event) and id(event) not in overloads:
                calls[event["name"]] += 1
                times[event["name"]] += ns(-minus_end - begin)
    found_calls, found_times = Counter[str](), Counter[str]()
    for operation in parse(trace).operations:  # one entry a layer
        assert operation.cpu_ns is not None
        found_calls[operation.name] += operation.calls
        found_times[operation.name] += operation.cpu_ns
    assert found_calls == calls
    assert all(abs(found_times[name] - times[name]) <= count for name, count in calls.items())


def test_the_folder_of_traces_is_found_whole_by_content(reports: Path) -> None:
    assert set(TRACES) <= {path.name for path in parsers.find(reports / "kineto")}


@pytest.mark.parametrize(
    ("name", "operation"), [(TRACES[3], "aten::addmm"), (TRACES[5], "aten::linear")]
)
def test_device_time_inside_an_operation_agrees_with_its_children_by_time(
    reports: Path, name: str, operation: str
) -> None:
    """Independent of the parser: every launch call by time and thread, every enclosing operation by
    brute force."""
    path = reports / "kineto" / name
    spans = [
        (str(event["tid"]), event["ts"], event["ts"] + event["dur"])
        for event in events_of(path)
        if event.get("ph") == "X" and event["name"] == operation
    ]
    calls, total = launch_calls(path), 0
    for kernel in events_of(path, *KERNELS):
        thread, at = calls[kernel["args"]["correlation"]]
        around = [tid for tid, start, end in spans if tid == thread and start <= at < end]
        total += ns(kernel["dur"]) * len(around)
    found = [entry for entry in parse(path).operations if entry.name == operation]
    assert sum(entry.device_ns or 0 for entry in found) == total > 0


def test_the_v100_trace_gives_every_kernel_its_step_also_in_the_backward_pass(
    reports: Path,
) -> None:
    found = parse(reports / "kineto" / TRACES[3])
    assert Counter(kernel.step for kernel in found.kernels) == dict.fromkeys(
        range(5, 11), 8772 // 6
    )
    assert len(found.steps) == 6


def test_no_job_metadata_comes_along(reports: Path) -> None:
    found = parse(reports / "kineto" / TRACES[1])
    text = repr((found.environment, found.devices, found.diagnostics))
    assert found.environment["distributed_rank"] == "34"
    assert all(word not in text for word in ("mojif", "TrainingApplication", "facebook", "mast"))


@pytest.mark.parametrize(
    ("name", "layers", "share"), [(TRACES[4], 328, 0.998), (TRACES[5], 149, 1.0)]
)
def test_traces_with_stacks_say_which_module_launched_each_kernel(
    reports: Path, name: str, layers: int, share: float
) -> None:
    """Against the module calls of the trace: the innermost one around the launch call, by
    brute force."""
    path = reports / "kineto" / name
    calls = launch_calls(path)
    modules = [
        (str(call["tid"]), call["ts"], call["ts"] + call["dur"], call["name"].removeprefix(MODULE))
        for call in events_of(path, "python_function")
        if call["name"].startswith(MODULE)
    ]
    expected = []
    for kernel in events_of(path, *KERNELS):
        thread, at = calls[kernel["args"]["correlation"]]
        around = [
            (start, module)
            for tid, start, end, module in modules
            if tid == thread and start <= at < end
        ]
        expected.append(max(around)[1] if around else None)
    kernels = list(parse(path).kernels)
    assert [kernel.layer and kernel.layer.rpartition(".")[2] for kernel in kernels] == expected
    assert {(k.layer_source, k.direction) for k in kernels if k.layer} == {("operation", "forward")}
    assert len({kernel.layer for kernel in kernels if kernel.layer}) == layers
    placed = sum(kernel.duration_ns or 0 for kernel in kernels if kernel.layer)
    assert placed / sum(kernel.duration_ns or 0 for kernel in kernels) > share - 1e-9


def test_every_operator_is_there_with_its_time_and_the_shapes_of_its_inputs(
    with_calls: Path,
) -> None:
    found = [
        (
            call.name,
            call.duration_ns,
            None if call.shapes is None else json.loads(call.shapes),
            None if call.dtypes is None else json.loads(call.dtypes),
        )
        for call in parse(with_calls).op_calls
        if call.name not in WAITS
    ]
    assert found == [
        (
            event["name"],
            ns(event["dur"]),
            event["args"].get("Input Dims"),
            event["args"].get("Input type"),
        )
        for event in events_of(with_calls, "cpu_op")
    ]


def test_calls_of_the_runtime_waits_and_functions_are_the_sums_over_their_events(
    with_calls: Path,
) -> None:
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events_of(with_calls, *RUNTIMES, "cuda_sync", "python_function"):
        name = event["name"]
        domain = "hip" if name.startswith("hip") else "cuda"
        domain = {"cuda_sync": "sync", "python_function": "python"}.get(event["cat"], domain)
        if not name.startswith(MODULE):
            times[domain, name].append(ns(event["dur"]))
    found = {
        (row.domain, row.name): (row.calls, row.total_ns, row.min_ns, row.max_ns)
        for row in parse(with_calls).api_calls
    }
    assert found == {
        key: (len(each), sum(each), min(each), max(each)) for key, each in times.items()
    }
    waits = Counter[str]()
    for call in parse(with_calls).op_calls:
        if call.name in WAITS:
            waits[call.name] += call.duration_ns or 0
    assert waits == {
        name: sum(each)
        for (domain, name), each in times.items()
        if domain in ("cuda", "hip") and name in WAITS
    }


def test_every_kernel_that_talks_to_other_gpus_is_a_collective_with_its_size_where_the_trace_has_it(
    with_calls: Path,
) -> None:
    words, widths = ("ncclKernel", "ncclDevKernel", "::ep::internode"), {"BFloat16": 2}
    kernels = [
        event
        for event in events_of(with_calls, "kernel")
        if any(word in event["name"] for word in words)
    ]
    found = [(c.duration_ns, c.group_size, c.bytes) for c in parse(with_calls).collectives]
    assert found == [
        (
            ns(kernel["dur"]),
            kernel["args"].get("Group size"),
            kernel["args"]["In msg nelems"] * widths[kernel["args"]["dtype"]]
            if "dtype" in kernel["args"]
            else None,
        )
        for kernel in kernels
    ]


def test_the_curve_has_every_reading_of_the_gpus_allocator(with_calls: Path) -> None:
    events = sorted(events_of(with_calls), key=lambda event: event.get("ts", 0))
    readings = [
        (event["args"]["Total Allocated"], event["args"]["Total Reserved"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 1
    ]
    found = [(one.allocated_bytes, one.reserved_bytes) for one in parse(with_calls).samples]
    assert sorted(found) == sorted(readings)
    assert found[:20] == readings[:20]
