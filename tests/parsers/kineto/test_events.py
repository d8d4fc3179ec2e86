"""The Kineto parser on odd events and old spellings, and on whatever stands in the fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers.kineto import trace as kineto_trace

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
    repeated = sum(
        int(entry.text.split()[0]) for entry in found.diagnostics if "twice" in entry.text
    )
    kernels = sum(event["cat"] in ("kernel", "Kernel") for event in events)
    assert kernels - repeated <= len(list(found.kernels)) <= kernels
    for entry in found.operations:
        assert entry.cpu_ns is None or entry.self_cpu_ns is None or entry.self_cpu_ns >= 0
    assert [entry.number for entry in found.ranges] == list(range(len(list(found.ranges))))
