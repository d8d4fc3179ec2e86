"""What one pass over the events of a trace leaves: spans, calls, device work, memory, and what
is counted."""

from __future__ import annotations

import pytest

from perfctl.parsers.kineto.events import DeviceArgs, DeviceEvent, Place, Span
from tests.make.kineto import (
    annotation,
    collect,
    event,
    kernel,
    launch,
    module,
    operation,
)


def test_an_external_id_leads_to_its_span_unless_several_share_it() -> None:
    found = collect(
        [
            operation("first", 0, 5, 0),
            operation("a", 10, 5, 7),
            operation("b", 20, 5, 7),
            operation("none", 30, 5),
            operation("none", 30, 5),
            operation("none", 40, 5, -7),
            operation("alone", 50, 4, 9),
            operation("c", 60, 1, 7),
            operation("late", 80, 5, 11),
            operation("early", 70, 5, 11),
        ]
    )
    assert found.by_external == {0: 0, 7: -1, 9: 6, 11: -1}
    assert [span.external for span in found.spans] == [0, 7, 7, -1, -1, -1, 9, 7, 11, 11]


def test_a_span_keeps_its_times_to_the_nanosecond_and_has_no_end_where_none_is_given() -> None:
    events = [
        operation("op", "5.001", "0.999", 1),
        operation("at once", 7, 0, 2),
        operation("open", 8, None, 3),
        operation("never ended", 9, "-0.001", 4),
        operation("lost", None, 1, 5),
        annotation("lost", "soon", 1, 6),
    ]
    found = collect(events)
    assert found.spans == [
        Span(0, 5001, 6000, 1, "op", False),
        Span(0, 7000, 7000, 2, "at once", False),
        Span(0, 8000, None, 3, "open", False),
        Span(0, 9000, None, 4, "never ended", False),
    ]
    assert (found.timeless, found.whole_microseconds) == (2, False)
    assert collect(events[1:3]).whole_microseconds
    assert not collect([kernel("k", "1.5", 1)]).whole_microseconds


@pytest.mark.parametrize(
    ("category", "name", "is_range"),
    [
        ("user_annotation", "anything", True),
        ("cpu_op", "conv1:forward", False),
        ("cpu_op", "ProfilerStep#5", False),
        ("Operator", "aten::mm", False),
        ("Operator", "ProfilerStep#5", True),
        ("Operator", "conv1:forward", True),
        ("Operator", "perfctl:step:3", True),
        ("Operator", "perfctl:phase:data", True),
        ("Operator", "perfctl:x", False),
        ("Operator", "enumerate(DataLoader)#_Iter.__next__", True),
        ("Operator", "Optimizer.step#SGD.step", True),
        ("Operator", "aten::Optimizer.", False),
    ],
)
def test_ranges_are_annotations_and_until_2021_operations_with_a_range_s_name(
    category: str, name: str, is_range: bool
) -> None:
    assert [span.is_range for span in collect([event(category, name, 1, 1)]).spans] == [is_range]


def test_sequence_numbers_are_kept_with_their_span_and_side() -> None:
    found = collect(
        [
            operation("a", 0, 1, number=0),
            operation("b", 1, 1, number=5, forward=0),
            annotation("range", 1, 9),
            operation("c", 2, 1, number="6", forward="3"),
            operation("d", 3, 1, number=-1, forward=2),
            operation("e", 4, 1, number="x"),
            operation("f", 5, 1),
            operation("g", 6, 1, number=8, forward=1),
        ]
    )
    assert found.sequences == [(0, 0, False), (1, 5, False), (3, 6, True), (7, 8, True)]


def test_calls_of_modules_are_ranges_without_an_id_where_they_have_an_end() -> None:
    events = [
        module("Net_0", 1, 5),
        module("Act_0", 2, 0),
        module("Open_0", 3, None),
        module("Lost_0", None, 3),
    ]
    found = collect(
        [
            *events,
            event("python_function", "net.py(5): forward", 1, 5),
            event("python_function", 5, 1, 5),
        ]
    )
    assert found.spans == [
        Span(0, 1000, 6000, -1, "nn.Module: Net_0", True),
        Span(0, 2000, 2000, -1, "nn.Module: Act_0", True),
    ]
    assert (found.known, found.timeless, found.by_external) == (6, 0, {})


@pytest.mark.parametrize(
    "category", ["cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "Runtime"]
)
def test_calls_of_every_runtime_and_driver_are_launches(category: str) -> None:
    assert collect([launch(5, 1, category=category)]).calls == {1: Place(0, 5000)}


def test_kernels_and_copies_keep_their_numbers_in_order() -> None:
    shape = {
        "grid": [2, 3, 4],
        "block": [5, 6, "7"],
        "registers_per_thread": 40,
        "shared_memory": "512",
    }
    copy = event("gpu_memcpy", "Memcpy HtoD", 4, 1, bytes=16, device=1)
    memset = event("gpu_memset", "Memset", 5, 1, bytes=32, stream=3)
    graph = {"context": 2, "graph_id": 11, "graph_node_id": 13, "est._achieved_occupancy_%": 25}
    outside = {"graph_id": 0, "graph_node_id": 0, "est._achieved_occupancy_%": 101}
    found = collect(
        [
            kernel("k", 1, 2, 8, 6, device=1, stream=20, **shape, **graph),
            kernel("k", 9, 2, 8, 7, **outside),
            copy,
            memset,
        ]
    )
    known = {"correlation": 6, "device": 1, "stream": 20, "registers": 40, "shared": 512}
    in_graph = {"context": 2, "graph": 11, "node": 13, "occupancy": 25}
    full = DeviceArgs(external=8, grid=(2, 3, 4), block=(5, 6, 7), **known, **in_graph)
    assert found.kernels == [
        DeviceEvent("k", 1000, 2000, full),
        DeviceEvent("k", 9000, 2000, DeviceArgs(external=8, correlation=7)),
    ]
    assert found.copies == [
        DeviceEvent("Memcpy HtoD", 4000, 1000, DeviceArgs(device=1, bytes=16)),
        DeviceEvent("Memset", 5000, 1000, DeviceArgs(stream=3, bytes=32)),
    ]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([(5, 10)], (5000, 15_000)),
        ([(5, 0)], (5000, 5000)),
        ([(5, "-0.001")], None),
        ([(5, None)], None),
        ([(None, 5)], None),
        ([(5, 10), (2, 4)], (2000, 15_000)),
        ([(5, 10), (6, 20)], (5000, 26_000)),
        ([(5, 10), (6, 2)], (5000, 15_000)),
    ],
)
def test_the_window_reaches_over_all_windows_of_the_trace(
    windows: list[tuple[object, object]], expected: tuple[int, int] | None
) -> None:
    assert (
        collect([event("Trace", "PyTorch Profiler (0)", *window) for window in windows]).window
        == expected
    )


def test_a_thread_is_one_of_a_process_however_its_number_is_written() -> None:
    places = [
        (1, 1),
        ("1", 1),
        (1, "1"),
        (1, 2),
        (2, 1),
        (0, "stream 7"),
        (1, [5]),
        (1, [5]),
        (None, None),
        (1, 2),
    ]
    found = collect(
        [operation("op", 1, 1, process=process, thread=thread) for process, thread in places]
    )
    assert [span.thread for span in found.spans] == [0, 0, 0, 1, 2, 3, 4, 4, 5, 1]
    assert found.threads == [(1, 1), (1, 2), (2, 1), (0, None), (1, None), (None, None)]


@pytest.mark.parametrize(
    ("kind", "category", "counted"),
    [
        ("X", None, {}),
        ("X", "overhead", {}),
        ("s", "ac2g", {}),
        ("M", None, {}),
        (None, None, {}),
        (5, None, {}),
        ("X", "gpu_dma", {"gpu_dma": 1}),
        (None, "gpu_dma", {"gpu_dma": 1}),
        (5, "gpu_dma", {"gpu_dma": 1}),
        ("Z", None, {"ph Z": 1}),
        ("Z", "overhead", {}),
        ("XB", "gpu_dma", {"ph XB": 1}),
        ("X", ["kernel"], {"['kernel']": 1}),
        ("X", 7, {"7": 1}),
        ("X", "", {"": 1}),
        ("X", "n" * 101, {"n" * 100: 1}),
        ("Z" * 200, None, {"ph " + "Z" * 97: 1}),
    ],
)
def test_an_event_is_counted_by_its_kind_or_else_by_its_category_if_that_is_in_no_list(
    kind: object, category: object, counted: dict[str, int]
) -> None:
    assert collect([{"ph": kind, "cat": category, "name": "x"}]).unknown == counted


def test_every_kind_of_event_of_the_chrome_format_is_known() -> None:
    kinds = "BEXiICbneSTpFstfPNODMvRc()"
    assert not collect([{"ph": kind, "name": "x"} for kind in kinds]).unknown
