"""The Kineto parser on small traces made here: nesting, odd events, old spellings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.parsers.kineto.events import KINDS
from tests.parsers.kineto_found import operation, the_kernel

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(events, **metadata) -> a trace of these events."""

    def to_file(events: list[Any], **metadata: Any) -> Path:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **metadata}))
        return path

    return to_file


def span(
    name: str, ts: float, dur: float | None, external: int, *, tid: object = 1, cat: str = "cpu_op"
) -> dict[str, Any]:
    event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "args": {"External id": external}}
    return event if dur is None else {**event, "dur": dur}


def note(name: str, ts: float, dur: float | None, external: int, *, tid: object = 1) -> dict[str, Any]:
    return span(name, ts, dur, external, tid=tid, cat="user_annotation")


def kernel(name: str, ts: float, dur: float, external: int, correlation: int) -> dict[str, Any]:
    args = {"External id": external, "correlation": correlation, "device": 0, "stream": 7}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def launch(ts: float, correlation: int, *, tid: object = 1) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 1, "tid": tid, "ts": ts, "dur": 1, "args": args}


def test_a_cpu_only_trace_has_no_device_time_and_says_why(write: Write) -> None:
    found = kineto_trace.parse(write([span("aten::mm", 1, 2, 1)]))
    assert operation(found, "aten::mm").device_ns is None
    assert operation(found, "aten::mm").memory_bytes is None
    assert {"kernel", "operation.device_ns", "operation.memory_bytes"} <= {gap.quantity for gap in found.gaps}
    assert [device.kind for device in found.devices] == ["cpu"]


def test_an_external_id_is_not_believed_when_the_launch_call_lies_elsewhere(write: Write) -> None:
    events = [
        note("a:forward", 0, 10, 1), note("b:forward", 20, 10, 2), span("in a", 1, 8, 3), span("in b", 21, 8, 4),
        launch(22, 90), kernel("k", 30, 1, 3, 90),
    ]  # fmt: skip
    assert the_kernel(kineto_trace.parse(write(events)), "k").layer == "b"


def test_the_innermost_of_two_layer_ranges_wins(write: Write) -> None:
    events = [note("block:forward", 0, 100, 1), note("block.conv:forward", 10, 50, 2), span("op", 20, 5, 3)]
    assert operation(kineto_trace.parse(write(events)), "op").layer == "block.conv"


def test_spans_of_equal_times_nest_in_the_order_of_their_external_ids(write: Write) -> None:
    found = kineto_trace.parse(write([span("child", 5, 10, 2), span("parent", 5, 10, 1)]))
    assert operation(found, "parent").self_cpu_ns == 0
    assert operation(found, "child").self_cpu_ns == 10000


def test_ranges_that_overlap_in_part_do_not_enclose_each_other(write: Write) -> None:
    events = [
        note("a:forward", 0, 100, 1), note("b:forward", 50, 100, 2), span("in both", 60, 10, 3),
        span("in b alone", 120, 10, 4),
    ]  # fmt: skip
    found = kineto_trace.parse(write(events))
    assert [(entry.depth, entry.parent) for entry in found.ranges] == [(0, None), (0, None)]
    assert operation(found, "in both").layer == "b"
    assert operation(found, "in b alone").layer == "b"


def test_a_span_around_an_ended_overlapping_range_is_still_found(write: Write) -> None:
    events = [
        note("a:forward", 0, 100, 1), note("plain", 50, 100, 2), span("in a", 60, 10, 3), span("after a", 120, 10, 4),
    ]  # fmt: skip
    found = kineto_trace.parse(write(events))
    assert operation(found, "in a").layer == "a"
    assert operation(found, "after a").layer is None


def test_zero_duration_operations_count_as_calls_of_no_time(write: Write) -> None:
    found = operation(kineto_trace.parse(write([span("op", 5, 0, 1), span("op", 5, 0, 2), span("op", 9, 3, 3)])), "op")
    assert (found.calls, found.cpu_ns, found.self_cpu_ns) == (3, 3000, 3000)


def test_an_operation_without_an_end_makes_its_sum_unknown(write: Write) -> None:
    found = kineto_trace.parse(write([span("op", 5, None, 1), span("op", 9, 3, 2), span("other", 20, -1, 3)]))
    assert (operation(found, "op").calls, operation(found, "op").cpu_ns) == (2, None)
    assert operation(found, "other").cpu_ns is None
    assert "operation.cpu_ns" in {gap.quantity for gap in found.gaps}


def test_a_range_without_an_end_has_no_duration(write: Write) -> None:
    (found,) = kineto_trace.parse(write([note("open", 5, None, 1)])).ranges
    assert found.duration_ns is None


def test_events_that_stand_twice_count_once(write: Write) -> None:
    events = [span("op", 5, 10, 1), launch(6, 50), kernel("k", 8, 1, 1, 50)]
    found = kineto_trace.parse(write(events + events))
    assert [entry.name for entry in found.kernels] == ["k"]
    assert operation(found, "op").calls == 1
    assert any("twice" in entry.text for entry in found.diagnostics)


def test_launches_of_one_graph_share_a_correlation_and_are_all_kept(write: Write) -> None:
    events = [launch(6, 50), kernel("k", 8, 1, 0, 50), kernel("k", 10, 1, 0, 50)]
    assert len(list(kineto_trace.parse(write(events)).kernels)) == 2


def test_old_capitalised_categories_and_text_thread_ids_are_read(write: Write) -> None:
    args = {"external id": 2, "correlation": 7, "device": 0, "grid": [1, 2, 3], "block": [4, 5, 6]}
    events = [
        span("ProfilerStep#5", 0, 100, 1, tid="25", cat="Operator"),
        span("aten::mm", 10, 20, 2, tid="25", cat="Operator"),
        {**launch(12, 7, tid="25"), "cat": "Runtime"},
        {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 40, "dur": 2, "args": args},
        {"ph": "X", "cat": "Memset", "name": "Memset (Device)", "pid": 0, "tid": "stream 7", "ts": 1, "dur": 1},
    ]
    found = kineto_trace.parse(write(events))
    k = the_kernel(found, "k")
    assert (k.stream, k.step, k.grid_z, k.block_z) == (7, 5, 3, 6)
    assert operation(found, "aten::mm").device_ns == 2000
    assert [(entry.name, entry.thread) for entry in found.ranges] == [("ProfilerStep#5", 25)]
    assert [copy.kind for copy in found.copies] == ["memset"]


def test_profiler_steps_give_way_to_perfctls_own(write: Write) -> None:
    found = kineto_trace.parse(write([note("ProfilerStep#9", 0, 100, 1), note("perfctl:step:2", 10, 50, 2)]))
    assert {(step.number, step.phase) for step in found.steps} == {(2, "step")}


def test_names_are_data(write: Write) -> None:
    hostile = "<script>alert(1)</script>'); DROP TABLE kernel; -- \u202e\u0000"
    found = kineto_trace.parse(
        write([kernel(hostile, 1, 1, 0, 1), span("Conv2d::forward", 1, 1, 1), note(hostile, 0, 1, 2)])
    )
    assert the_kernel(found, hostile).layer is None
    assert operation(found, "Conv2d::forward").layer is None


def test_odd_events_are_passed_over(write: Write) -> None:
    events = [None, 1, "x", [], {}, {"ph": "X"}, {"ph": "X", "cat": ["kernel"]}, {"ph": "X", "cat": "cpu_op"}]
    odd = {"ph": "X", "cat": "kernel", "name": 5, "ts": "soon", "dur": {}, "args": [1]}
    found = kineto_trace.parse(write([*events, odd, span("op", 1, 1, 1)]))
    assert [(k.name, k.start_ns, k.duration_ns) for k in found.kernels] == [("", None, None)]
    assert operation(found, "op").calls == 1


def test_integers_beyond_64_bits_are_unknown(write: Write) -> None:
    event = kernel("k", 1, 1, 10**30, 10**30)
    event["args"]["registers per thread"] = 2**64
    assert the_kernel(kineto_trace.parse(write([event])), "k").registers is None


def test_an_amd_gpu_has_no_cuda_compute_capability(write: Write) -> None:
    gpu = {"id": 0, "name": "AMD Instinct MI210", "computeMajor": 9, "computeMinor": 0, "numSms": 104}
    (device,) = kineto_trace.parse(write([kernel("k", 1, 1, 1, 1)], deviceProperties=[gpu])).devices
    assert (device.compute_capability, device.sm_count) == (None, 104)


def test_an_overload_that_only_calls_its_namesake_is_one_call_with_it(write: Write) -> None:
    events = [span("sum", 0, 10, 1), span("sum", 1, 8, 2), span("fill", 2, 3, 3)]
    found = operation(kineto_trace.parse(write(events)), "sum")
    assert (found.calls, found.cpu_ns, found.self_cpu_ns) == (1, 10000, 7000)


def test_an_operation_that_calls_its_namesake_and_more_is_two_calls(write: Write) -> None:
    events = [span("to", 0, 10, 1), span("to", 1, 2, 2), span("fill", 5, 3, 3)]
    found = operation(kineto_trace.parse(write(events)), "to")
    assert (found.calls, found.cpu_ns, found.self_cpu_ns) == (2, 12000, 7000)


VALUE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([1, 2, 3]) | st.just({})
FIELD = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from([*KINDS, "cpu_instant_event"]), "name": VALUE | st.just("[memory]")},
    optional={
        "pid": VALUE,
        "tid": VALUE,
        "ts": VALUE | st.integers(0, 50),
        "dur": VALUE | st.integers(0, 50),
        "args": st.dictionaries(
            st.sampled_from(["External id", "correlation", "grid", "device", "stream", "bytes", "Bytes"]),
            VALUE | st.integers(0, 5),
        ),
    },
)


@given(st.lists(FIELD, min_size=1, max_size=12))
@settings(max_examples=150)
def test_whatever_stands_in_the_fields_every_kernel_is_kept_and_ranges_are_numbered(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = kineto_trace.parse(path)
    repeated = sum(int(entry.text.split()[0]) for entry in found.diagnostics if "twice" in entry.text)
    kernels = sum(event["cat"] in ("kernel", "Kernel") for event in events)
    assert kernels - repeated <= len(list(found.kernels)) <= kernels
    for entry in found.operations:
        assert entry.cpu_ns is None or entry.self_cpu_ns is None or entry.self_cpu_ns >= 0
    assert [entry.number for entry in found.ranges] == list(range(len(list(found.ranges))))
