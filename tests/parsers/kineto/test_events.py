"""What is a Kineto trace: plain and gzipped, known by its content, whatever its fields hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError
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


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (b'\n {"schemaVersion": 1, "traceEvents": [', True),
        (b'{"traceEvents": [', True),
        (b'{"schemaVersion": 1, "job": "...', False),
        (b'\xef\xbb\xbf{"schemaVersion": 1, "deviceProperties": [], "job": "...', True),
        (b'{"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {}, "job": "...', True),
        (b'["traceEvents", "schemaVersion", "deviceProperties"]', False),
        (b'{"format": "perfctl workload"}', False),
        (b"\x1f\x8b broken", False),
        (b"", False),
    ],
)
def test_a_trace_is_recognised_by_content(head: bytes, is_one: bool) -> None:
    assert kineto_trace.sniff(Path("x"), head) is is_one


def test_a_chrome_trace_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "v8", "ts": 1, "dur": 1}]}')
    with pytest.raises(ReportError, match=r"without torch\.profiler events"):
        kineto_trace.parse(path)
