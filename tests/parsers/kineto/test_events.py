"""The Kineto parser on odd events and old spellings, and on whatever stands in the fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers.kineto import trace as kineto_trace
from tests.parsers.kineto_trace import (
    annotation,
    event,
    kernel,
    operation,
    read,
    the_kernel,
    the_operation,
)


def test_a_cpu_only_trace_has_neither_device_time_nor_memory_and_operations_may_take_no_time(
    tmp_path: Path,
) -> None:
    found = the_operation(
        read(tmp_path, operation("op", 5, 0, 1), operation("op", 5, 0, 2), operation("op", 9, 3)),
        "op",
    )
    assert (found.calls, found.cpu_ns, found.self_cpu_ns) == (3, 3000, 3000)
    assert (found.device_ns, found.memory_bytes) == (None, None)


def test_old_capitalised_categories_and_text_thread_ids_are_read(tmp_path: Path) -> None:
    args = {"external id": 2, "correlation": 7, "stream": 7, "grid": [1, 2, 3], "block": [4, 5, 6]}
    on_gpu = {"ph": "X", "pid": 0, "tid": "stream 7"}
    found = read(
        tmp_path,
        event("Operator", "ProfilerStep#5", 0, 100, thread="25", External_id=1),
        event("Operator", "aten::mm", 10, 20, thread="25", External_id=2),
        event("Runtime", "x", 12, 1, correlation=7, thread="25"),
        {**on_gpu, "cat": "Kernel", "name": "k", "ts": 40, "dur": 2, "args": args},
        {**on_gpu, "cat": "Memset", "name": "Memset (Device)", "ts": 1, "dur": 1},
    )
    k = the_kernel(found, "k")
    assert (k.stream, k.step, k.grid_z, k.block_z) == (7, 5, 3, 6)
    assert the_operation(found, "aten::mm").device_ns == 2000
    assert [(entry.name, entry.thread) for entry in found.ranges] == [("ProfilerStep#5", 25)]
    assert [copy.kind for copy in found.copies] == ["memset"]


def test_names_are_data(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>'); DROP TABLE kernel; -- \u202e\u0000"
    found = read(
        tmp_path,
        kernel(hostile, 1, 1, 0, 1),
        operation("Conv2d::forward", 1, 1, 1),
        annotation(hostile, 0, 1),
    )
    assert the_kernel(found, hostile).layer is None
    assert the_operation(found, "Conv2d::forward").layer is None


def test_odd_events_are_passed_over(tmp_path: Path) -> None:
    events: list[Any] = [
        {},
        {"ph": "X"},
        {"ph": "X", "cat": ["kernel"]},
        {"ph": "X", "cat": "cpu_op"},
    ]
    odd = {"ph": "X", "cat": "kernel", "name": 5, "ts": "soon", "dur": {}, "args": [1]}
    found = read(tmp_path, *events, odd, operation("op", 1, 1, 1))
    assert [(k.name, k.start_ns, k.duration_ns) for k in found.kernels] == [("", None, None)]
    assert the_operation(found, "op").calls == 1


@pytest.mark.parametrize(
    ("inner", "calls", "cpu_ns"),
    [([("sum", 1, 8), ("fill", 2, 3)], 1, 10_000), ([("sum", 1, 2), ("fill", 5, 3)], 2, 12_000)],
)
def test_an_overload_that_only_calls_its_namesake_is_one_call_with_it_and_two_where_it_calls_more(
    inner: list[tuple[str, int, int]], calls: int, cpu_ns: int, tmp_path: Path
) -> None:
    found = the_operation(
        read(tmp_path, operation("sum", 0, 10, 1), *(operation(*one) for one in inner)), "sum"
    )
    assert (found.calls, found.cpu_ns, found.self_cpu_ns) == (calls, cpu_ns, 7000)


VALUE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.just([1, 2, 3])
    | st.just({})
)
CATEGORIES = (
    *("cpu_op", "Operator", "user_annotation", "cuda_runtime", "cuda_driver", "hip_runtime"),
    *("xpu_runtime", "Runtime", "kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset"),
    *("Memset", "cuda_profiler_range", "Trace", "python_function", "cuda_sync"),
)
FIELD = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from([*CATEGORIES, "cpu_instant_event"]),
        "name": VALUE | st.just("[memory]"),
    },
    optional={
        "pid": VALUE,
        "tid": VALUE,
        "ts": VALUE | st.integers(0, 50),
        "dur": VALUE | st.integers(0, 50),
        "args": st.dictionaries(
            st.sampled_from(
                ["External id", "correlation", "grid", "device", "stream", "bytes", "Bytes"]
            ),
            VALUE | st.integers(0, 5),
        ),
    },
)


@given(st.lists(FIELD, min_size=1, max_size=12))
@settings(max_examples=80)
def test_whatever_stands_in_the_fields_every_kernel_is_kept_and_ranges_are_numbered(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = kineto_trace.parse(path)
    kernels = sum(event["cat"] in ("kernel", "Kernel") for event in events)
    assert len(list(found.kernels)) == kernels
    for entry in found.operations:
        assert entry.cpu_ns is None or entry.self_cpu_ns is None or entry.self_cpu_ns >= 0
    assert [entry.number for entry in found.ranges] == list(range(len(list(found.ranges))))
