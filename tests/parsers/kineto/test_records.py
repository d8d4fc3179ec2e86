"""Launches tied to their operations by external IDs, and steps from ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers.kineto.records import steps
from perfctl.records.report import Range, Report, Step
from tests.make.kineto import (
    kernel,
    launch,
    operation,
    read,
)


def device_time(found: Report, name: str) -> int | None:
    (only,) = [op for op in found.operations if op.name == name]
    return only.device_ns


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
    assert device_time(read(tmp_path, *events), "op") == (3000 if inside else 0)


@pytest.mark.parametrize(
    ("start", "inside"), [(9.999, False), (10, True), (90, True), (None, False)]
)
def test_without_a_launch_call_the_external_id_holds_for_what_began_no_earlier(
    start: float | None, inside: bool, tmp_path: Path
) -> None:
    found = read(
        tmp_path, operation("op", 10, 5, 1), kernel("k", start, 3, 1), operation("last", 30, 5, 2)
    )
    assert device_time(found, "op") == (3000 if inside else 0)
    assert device_time(found, "last") == 0


def a_range(name: str, start: int, step: int | None, phase: str | None = None) -> Range:
    return Range(0, name, None, start, 10, 1, 0, None, step=step, phase=phase)


def test_steps_and_their_phases_stand_in_the_order_of_time_the_step_before_its_phases() -> None:
    found = [
        a_range("perfctl:phase:forward", 5, 0, "forward"),
        a_range("perfctl:step:0", 5, 0),
        a_range("fc:forward", 6, 0, "forward"),
        a_range("perfctl:window", 0, None),
        a_range("plain", 7, 0),
        a_range("perfctl:phase:data", 50, None, "data"),
        a_range("perfctl:step:1", 1, 1)._replace(duration_ns=None),
        a_range("perfctl:step:one", 6, 0),
    ]
    assert steps(found) == (
        Step(1, "step", 1, None),
        Step(0, "step", 5, 10),
        Step(0, "forward", 5, 10),
    )


def test_a_step_of_torchs_profiler_that_begins_within_one_of_perfctls_is_no_second_step() -> None:
    mark = a_range("ProfilerStep#9", 8, 0)
    assert steps([a_range("perfctl:step:0", 5, 0), mark]) == (Step(0, "step", 5, 10),)
    assert steps([mark._replace(step=9), a_range("plain", 9, 9)]) == (Step(9, "step", 8, 10),)
