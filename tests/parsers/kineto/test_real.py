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
from perfctl.parsers import find
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.report import Report
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
OLD_RANGES = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.")


@cache
def parse(path: Path) -> Report:
    """Each trace is read once for all tests."""
    return parsers.parse(path)


@lru_cache(maxsize=1)
def load(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        return json.load(file)  # type: ignore[no-any-return]


def is_range(event: dict[str, Any]) -> bool:
    old = event.get("cat") == "Operator" and event["name"].startswith(OLD_RANGES)
    module = event.get("cat") == "python_function" and event["name"].startswith("nn.Module: ")
    return event.get("cat") == "user_annotation" or old or module


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


@pytest.fixture(params=sample(TRACES, 2), scope="module")
def trace(request: pytest.FixtureRequest, reports: Path) -> Path:
    return reports / "kineto" / str(request.param)


def test_every_kernel_copy_and_range_of_the_trace_is_there(trace: Path) -> None:
    events = [event for event in load(trace)["traceEvents"] if event.get("ph") == "X"]
    found = parse(trace)
    kernels = [event for event in events if event.get("cat") in ("kernel", "Kernel")]
    copies = [
        event
        for event in events
        if event.get("cat") in ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
    ]
    ranges = [event for event in events if is_range(event)]
    assert [(k.name, k.duration_ns) for k in found.kernels] == [
        (k["name"], ns(k["dur"])) for k in kernels
    ]
    assert [(k.grid_x, k.registers) for k in found.kernels] == [
        (k.get("args", {}).get("grid", [None])[0], k.get("args", {}).get("registers per thread"))
        for k in kernels
    ]
    assert [(c.bytes, c.duration_ns) for c in found.copies] == [
        (c["args"]["bytes"], ns(c["dur"])) for c in copies
    ]
    assert [(r.name, r.duration_ns) for r in found.ranges] == [
        (r["name"], ns(r["dur"])) for r in ranges
    ]


def test_calls_and_times_are_sums_over_the_events_with_overloads_counted_once(trace: Path) -> None:
    """By a plain stack per thread: an operation whose only child is its namesake is one call
    with it."""
    threads: dict[Any, list[Any]] = defaultdict(list)
    for event in load(trace)["traceEvents"]:
        if event.get("cat") in ("cpu_op", "Operator", "user_annotation"):
            ident = event.get("args", {}).get("External id", 0)
            threads[event["pid"], event["tid"]].append(
                (
                    event["ts"],
                    -event["ts"] - event["dur"],
                    ident,
                    event["name"],
                    is_range(event),
                    [],
                )
            )
    calls: dict[str, int] = defaultdict(int)
    times: dict[str, int] = defaultdict(int)
    for spans in threads.values():
        stack: list[Any] = []
        for span in sorted(spans, key=lambda span: span[:3]):
            while stack and -stack[-1][1] <= span[0]:
                stack.pop()
            if stack:
                stack[-1][5].append(span)
            stack.append(span)
        namesakes = [s[5][0] for s in spans if len(s[5]) == 1 and s[5][0][3] == s[3]]
        skipped = {id(span) for span in namesakes}
        for span in spans:
            if not span[4] and id(span) not in skipped:
                calls[span[3]] += 1
                times[span[3]] += ns(-span[1] - span[0])
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for operation in parse(trace).operations:  # one entry a layer
        assert operation.cpu_ns is not None
        found[operation.name][0] += operation.calls
        found[operation.name][1] += operation.cpu_ns
    assert {name: number for name, (number, _) in found.items()} == dict(calls)
    assert all(abs(took - times[name]) <= number for name, (number, took) in found.items())


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        (TRACES[0], 79),
        (TRACES[1], 0),
        (TRACES[2], 1),
        (TRACES[3], 8772),
        (TRACES[4], 768),
        (TRACES[5], 154),
        (TRACES[6], 562),
    ],
)
def test_kernel_counts_are_those_of_the_collection(reports: Path, name: str, kernels: int) -> None:
    assert len(list(parse(reports / "kineto" / name).kernels)) == kernels


def test_the_folder_of_traces_is_found_whole_by_content(reports: Path) -> None:
    assert set(TRACES) <= {path.name for path in find(reports / "kineto")}


@pytest.mark.parametrize("name", [TRACES[3], TRACES[5]])
def test_device_time_inside_an_operation_agrees_with_its_children_by_time(
    reports: Path, name: str
) -> None:
    """Independent of the parser: every launch call by time and thread, every enclosing operation by
    brute force."""
    events = [
        event for event in load(reports / "kineto" / name)["traceEvents"] if event.get("ph") == "X"
    ]
    wanted = "aten::linear" if name == TRACES[5] else "aten::addmm"
    spans = [(str(e["tid"]), e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == wanted]
    calls = {
        e["args"]["correlation"]: (str(e["tid"]), e["ts"])
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver", "Runtime")
        and "correlation" in e.get("args", {})
    }
    total = 0
    for event in events:
        if event.get("cat") in ("kernel", "Kernel"):
            thread, at = calls[event["args"]["correlation"]]
            total += sum(
                ns(event["dur"]) for tid, start, end in spans if tid == thread and start <= at < end
            )
    found = [entry for entry in parse(reports / "kineto" / name).operations if entry.name == wanted]
    assert sum(entry.device_ns or 0 for entry in found) == total > 0


def test_external_ids_that_mean_something_else_are_not_believed(reports: Path) -> None:
    """In this 2023 trace GPU events number theirs by correlation: 14 is a kernel and an
    unrelated operation."""
    path = reports / "kineto" / TRACES[0]
    events = load(path)["traceEvents"]
    calls = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") == "cuda_runtime"}
    ranges = [e for e in events if e.get("cat") == "user_annotation"]
    found = kineto_trace.parse(path)
    names = [entry.name for entry in found.ranges]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    for record, event in zip(found.kernels, kernels, strict=True):
        at = calls[event["args"]["correlation"]]
        around = [r for r in ranges if r["ts"] <= at <= r["ts"] + r["dur"]]
        innermost = min(around, key=lambda r: r["dur"])
        assert record.range_number is not None
        assert names[record.range_number] == innermost["name"]


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
    events = [
        event for event in load(reports / "kineto" / name)["traceEvents"] if event.get("ph") == "X"
    ]
    modules = [
        (
            event["tid"],
            event["ts"],
            event["ts"] + event["dur"],
            event["name"].removeprefix("nn.Module: "),
        )
        for event in events
        if event.get("cat") == "python_function" and event["name"].startswith("nn.Module: ")
    ]
    calls = {
        event["args"]["correlation"]: (event["tid"], event["ts"])
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and "correlation" in event.get("args", {})
    }
    expected = []
    for event in events:
        if event.get("cat") == "kernel":
            thread, at = calls[event["args"]["correlation"]]
            around = [
                (start, module)
                for tid, start, end, module in modules
                if tid == thread and start <= at < end
            ]
            expected.append(max(around)[1] if around else None)
    kernels = list(parse(reports / "kineto" / name).kernels)
    assert [kernel.layer and kernel.layer.rpartition(".")[2] for kernel in kernels] == expected
    assert {(k.layer_source, k.direction) for k in kernels if k.layer} == {("operation", "forward")}
    assert len({kernel.layer for kernel in kernels if kernel.layer}) == layers
    placed = sum(kernel.duration_ns or 0 for kernel in kernels if kernel.layer)
    assert placed / sum(kernel.duration_ns or 0 for kernel in kernels) > share - 1e-9


@pytest.mark.parametrize(
    "name",
    [
        "tracelens_mi210_gpu_only.json.gz",
        "llm/sglang_qwen3_decode/execution.json.gz",
        "llm/sglang_qwen3_decode/capture_bs_32_rank0.json.gz",
        "llm/sglang_qwen3_prefilldecode.json.gz",
        "llm/vllm_prefilldecode_piecewise/execution.json.gz",
    ],
)
def test_kernels_and_copies_of_real_traces_agree_with_a_reading_of_their_events(
    name: str, shared: Path
) -> None:
    path = shared / "reports/kineto" / name
    with gzip.open(path) as file:
        trace = json.load(file)
    events = [
        one
        for one in trace["traceEvents"]
        if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    kernels = [one for one in events if one["cat"] == "kernel"]
    found = parsers.parse(path)
    mine = list(found.kernels)
    assert Counter(one.name for one in mine) == Counter(one["name"] for one in kernels)
    assert sum(one.duration_ns or 0 for one in mine) == round(
        sum(round(one["dur"] * 1000) for one in kernels)
    )
    grids = Counter(tuple(one["args"].get("grid") or [None] * 3) for one in kernels)
    assert Counter((one.grid_x, one.grid_y, one.grid_z) for one in mine) == grids
    copies = Counter(
        (one["args"].get("kind"), one["args"].get("bytes"))
        for one in events
        if one["cat"] != "kernel"
    )
    assert Counter((one.kind, one.bytes) for one in found.copies) == copies
    assert [
        (one.index, one.sm_count) for one in sorted(found.devices, key=lambda one: one.index)
    ] == [(one["id"], one["numSms"]) for one in trace["deviceProperties"]]
