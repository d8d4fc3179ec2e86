"""Launches tied to their operations, and every record with every field, from traces made
up here."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.records.report import Copy, Kernel, Operation, Range, Report, Step
from tests.parsers.kineto_trace import (
    annotation,
    event,
    kernel,
    launch,
    operation,
    read,
    the_operation,
)


@pytest.mark.parametrize(
    ("dur", "thread", "at", "inside"),
    [
        (10, 1, 9.999, False),
        (10, 1, 10, True),
        (10, 1, 20, True),
        (10, 1, 20.001, False),
        (10, 2, 15, False),
        (None, 1, 9.999, False),
        (None, 1, 10, True),
        (None, 1, 10.001, False),
    ],
)
def test_an_external_id_is_believed_from_the_begin_to_the_end_of_its_operation_on_its_thread(
    dur: int | None, thread: int, at: float, inside: bool, tmp_path: Path
) -> None:
    events = [operation("op", 10, dur, 1), launch(at, 5, thread=thread), kernel("k", 50, 3, 1, 5)]
    assert the_operation(read(tmp_path, *events), "op").device_ns == (3000 if inside else 0)


@pytest.mark.parametrize(
    ("start", "inside"), [(9.999, False), (10, True), (90, True), (None, False)]
)
def test_without_a_launch_call_the_external_id_holds_for_what_began_no_earlier(
    start: float | None, inside: bool, tmp_path: Path
) -> None:
    found = read(
        tmp_path, operation("op", 10, 5, 1), kernel("k", start, 3, 1), operation("last", 30, 5, 2)
    )
    assert the_operation(found, "op").device_ns == (3000 if inside else 0)
    assert the_operation(found, "last").device_ns == 0


def test_launches_that_no_external_id_settles_go_by_the_time_of_each_ones_call(
    tmp_path: Path,
) -> None:
    """The id 3 is shared by two operations, and the id 99 is nobody's."""
    events = [
        annotation("a:forward", 0, 10),
        operation("in a", 1, 8, 3),
        annotation("b:forward", 20, 10),
        operation("in b", 21, 8, 3),
        launch(5, 1),
        launch(25, 2),
        launch(50, 3),
        launch(26, 4),
        launch(4, 5),
        kernel("of a", 60, 1, 3, 1),
        kernel("of b", 61, 1, 3, 2),
        kernel("of none", 62, 1, 99, 3),
        event("gpu_memcpy", "Memcpy DtoD", 63, 1, correlation=4, bytes=16),
        event("gpu_memset", "Memset (Device)", 64, 1, correlation=5, bytes=32),
        event("gpu_memcpy", "Memcpy DtoD", 65, 1, correlation=6, bytes=64),
    ]
    found = read(tmp_path, *events)
    assert [entry.layer for entry in found.kernels] == ["a", "b", None]
    assert list(found.copies) == [
        Copy("DtoD", 16, 63_000, 1000, "b"),
        Copy("memset", 32, 64_000, 1000, "a"),
        Copy("DtoD", 64, 65_000, 1000),
    ]
    assert [entry.device_ns for entry in found.operations] == [1000, 1000]


def test_a_correlation_that_several_calls_share_is_of_no_place_and_one_that_stands_twice_is(
    tmp_path: Path,
) -> None:
    events = [
        annotation("a:forward", 0, 10),
        launch(1, 1),
        launch(2, 1),
        launch(3, 2),
        launch(3, 2),
        launch(4, 3),
        launch(4, 3, thread=2),
        kernel("shared", 20, 1, None, 1),
        kernel("twice", 21, 1, None, 2),
        kernel("two threads", 22, 1, None, 3),
    ]
    assert [entry.layer for entry in read(tmp_path, *events).kernels] == [None, "a", None]


def test_a_kernel_has_all_that_the_trace_says_of_it_and_none_for_the_rest(tmp_path: Path) -> None:
    whole = {
        "grid": [12, 3, 2],
        "block": [128, 4, 1],
        "registers_per_thread": 40,
        "shared_memory": 0,
    }
    events = [
        annotation("perfctl:step:3", 0, 100),
        annotation("conv:forward", 5, 45),
        operation("op", 10, 10, 1),
        launch(12, 5),
        launch(99, 6, thread=2),
        launch(100, 7, thread=2),
        kernel("whole", 60, 5, 1, 5, device=1, stream=20, **whole),
        kernel("bare", 70, None),
        kernel("autograd's", 71, 0.5, None, 6, shared_memory=1),
        kernel("after", 72, 0, None, 7),
    ]
    assert list(read(tmp_path, *events).kernels) == [
        Kernel(
            0,
            "whole",
            None,
            "conv",
            "forward",
            3,
            "range",
            1,
            1,
            20,
            12,
            3,
            2,
            128,
            4,
            1,
            40,
            0,
            0,
            60_000,
            5_000,
            1,
            correlation=5,
        ),
        Kernel(1, "bare", start_ns=70_000),
        Kernel(2, "autograd's", step=3, start_ns=71_000, duration_ns=500, process=1, correlation=6),
        Kernel(3, "after", start_ns=72_000, duration_ns=0, process=1, correlation=7),
    ]


def test_work_of_the_optimizer_has_its_direction_unless_it_is_a_layers(tmp_path: Path) -> None:
    events = [
        annotation("perfctl:phase:optimizer", 0, 100),
        operation("aten::add_", 10, 5, 1),
        annotation("fc:grad_weight", 20, 10),
        operation("aten::mm", 21, 5, 2),
        operation("aten::sum", 200, 5, 3),
        kernel("k", 11, 1, 1),
        kernel("k", 22, 1, 2),
        kernel("k", 201, 1, 3),
    ]
    found = read(tmp_path, *events)
    places = [(None, "optimizer"), ("fc", "grad_weight"), (None, None)]
    assert [(entry.layer, entry.direction) for entry in found.kernels] == places
    assert [(entry.layer, entry.direction) for entry in found.operations] == places


def test_a_range_has_its_times_its_place_and_what_it_says_itself(tmp_path: Path) -> None:
    events = [
        annotation("perfctl:step:1", 0, 100),
        operation("op", 9, 1),
        annotation("perfctl:phase:forward", 10, 20),
        annotation("fc:forward", 12, 5),
        annotation("open", 15, None, thread="main"),
    ]
    assert list(read(tmp_path, *events).ranges) == [
        Range(0, "perfctl:step:1", None, 0, 100_000, 1, 0, None, step=1),
        Range(1, "perfctl:phase:forward", None, 10_000, 20_000, 1, 1, 0, step=1, phase="forward"),
        Range(
            2, "fc:forward", None, 12_000, 5_000, 1, 2, 1, "push_pop", "fc", "forward", 1, "forward"
        ),
        Range(3, "open", None, 15_000, None, None, 0, None, step=1, phase="forward"),
    ]


def test_steps_and_their_phases_stand_in_the_order_of_time_the_step_before_its_phases(
    tmp_path: Path,
) -> None:
    events = [
        annotation("perfctl:phase:forward", 5, 10),
        annotation("perfctl:step:0", 5, 20),
        annotation("fc:forward", 6, 5),
        annotation("perfctl:window", 0, 90),
        annotation("plain", 7, 1),
        annotation("ProfilerStep#9", 8, 1),
        annotation("perfctl:phase:data", 50, 1),
        annotation("perfctl:step:1", 1, None, thread=2),
        annotation("perfctl:step:one", 6, 1),
    ]
    assert read(tmp_path, *events).steps == (
        Step(1, "step", 1_000, None),
        Step(0, "step", 5_000, 20_000),
        Step(0, "forward", 5_000, 10_000),
    )


def test_a_step_of_torchs_profiler_is_one_where_perfctl_names_none(tmp_path: Path) -> None:
    events = [annotation("ProfilerStep#9", 8, 5), annotation("plain", 9, 1)]
    assert read(tmp_path, *events).steps == (Step(9, "step", 8_000, 5_000),)


def figures(report: Report) -> dict[str, tuple[int, int | None, int | None, int | None]]:
    """Name -> (calls, time with and without children, device time)."""
    return {
        op.name: (op.calls, op.cpu_ns, op.self_cpu_ns, op.device_ns) for op in report.operations
    }


def test_a_kernel_without_a_duration_makes_unknown_the_device_time_of_all_around_it_alone(
    tmp_path: Path,
) -> None:
    events = [
        operation("outer", 0, 20, 1),
        operation("known", 1, 4, 2),
        operation("open", 6, 4, 3),
        operation("mixed", 30, 5, 4),
        operation("mixed", 40, 5, 5),
        operation("mixed too", 50, 5, 6),
        operation("mixed too", 60, 5, 7),
        operation("none", 70, 5, 8),
        kernel("k", 100, 3, 2),
        kernel("k", 110, 4, 2),
        kernel("k", 120, None, 3),
        kernel("k", 130, 5, 3),
        kernel("k", 140, None, 4),
        kernel("k", 150, 6, 5),
        kernel("k", 160, 7, 6),
        kernel("k", 170, None, 7),
        kernel("k", 180, 9),
    ]
    assert figures(read(tmp_path, *events)) == {
        "outer": (1, 20_000, 12_000, None),
        "known": (1, 4_000, 4_000, 7_000),
        "open": (1, 4_000, 4_000, None),
        "mixed": (2, 10_000, 10_000, None),
        "mixed too": (2, 10_000, 10_000, None),
        "none": (1, 5_000, 5_000, 0),
    }


def test_an_unknown_end_makes_unknown_the_own_time_of_the_parent_and_no_more(
    tmp_path: Path,
) -> None:
    events = [
        operation("before", 0, 20),
        operation("open", 2, None),
        operation("child", 4, 5),
        operation("after", 30, 20),
        operation("child", 32, 5),
        operation("open", 40, None),
        operation("whole", 60, 20),
        operation("child", 61, 5),
        operation("child", 70, 2),
    ]
    assert figures(read(tmp_path, *events)) == {
        "before": (1, 20_000, None, None),
        "open": (2, None, None, None),
        "child": (4, 17_000, 17_000, None),
        "after": (1, 20_000, None, None),
        "whole": (1, 20_000, 13_000, None),
    }


def test_a_child_that_seems_longer_than_its_parent_leaves_it_no_time_and_takes_none_away(
    tmp_path: Path,
) -> None:
    """In traces of whole microseconds; the second call of the parent has 5 us of its own."""
    events = [operation("parent", 0, 10), operation("child", 1, 11), operation("parent", 20, 5)]
    assert figures(read(tmp_path, *events)) == {
        "parent": (2, 15_000, 5_000, None),
        "child": (1, 11_000, 11_000, None),
    }


def test_an_overload_at_the_end_of_the_trace_is_one_call_with_its_namesake(tmp_path: Path) -> None:
    found = read(tmp_path, operation("sum", 0, 10), operation("sum", 1, 8), operation("sum", 2, 4))
    assert figures(found) == {"sum": (1, 10_000, 10_000, None)}


def test_operations_stand_by_name_layer_and_direction_in_the_order_of_their_first_calls(
    tmp_path: Path,
) -> None:
    memory = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 22, "args": {"Bytes": -64}}
    events = [
        operation("mm", 50, 4),
        annotation("fc:forward", 0, 10),
        operation("mm", 1, 2),
        operation("mm", 5, 3),
        annotation("fc:grad_input", 20, 10),
        operation("mm", 21, 6),
        operation("add", 51, 1),
        event("gpu_memcpy", "Memcpy HtoD", 90, 1, bytes=8),
        memory,
    ]
    assert list(read(tmp_path, *events).operations) == [
        Operation("mm", "cpu_op", 1, 4_000, 3_000, 0, 0, None),
        Operation("mm", "cpu_op", 2, 5_000, 5_000, 0, 0, None, "fc", "forward"),
        Operation("mm", "cpu_op", 1, 6_000, 6_000, 0, -64, None, "fc", "grad_input"),
        Operation("add", "cpu_op", 1, 1_000, 1_000, 0, 0, None),
    ]
