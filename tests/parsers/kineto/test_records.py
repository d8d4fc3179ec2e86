"""Launches tied to their operations by external IDs, and steps from ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.records.report import Report
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
