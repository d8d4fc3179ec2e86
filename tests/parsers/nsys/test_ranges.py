"""Ranges of an nsys export: kinds, threads and names, and slices of any size."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers.attribution import NOBODY
from perfctl.parsers.nsys import ranges as nsys_ranges
from perfctl.parsers.nsys.ranges import RangeTable, load
from perfctl.parsers.nsys.tables import opened
from tests.make.nsys_sqlite import NsysBuilder, gap, global_tid, read, training_step

PUSH_POP, START_END, MARK = 59, 60, 34
"""As ENUM_NSYS_EVENT_TYPE of real exports has them."""


def table(builder: NsysBuilder, folder: Path) -> RangeTable:
    with opened(builder.write(folder / "r.sqlite")) as database:
        return load(database)


def test_ranges_are_counted_by_kind_and_marks_have_no_end_that_could_be_missing(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    kinds = [(PUSH_POP, 5), (PUSH_POP, None), (START_END, None), (START_END, 9), (START_END, 9)]
    for number, (kind, end) in enumerate(
        [*kinds, *[(MARK, None)] * 4, (39, None), (75, None), (33, 5), (61, 5)]
    ):
        builder.range(f"r{number}", 0, end, eventType=kind)
    found = table(builder, tmp_path)
    assert [found.kind.tolist().count(kind) for kind in (PUSH_POP, START_END, MARK, 39, 75)] == [
        2,
        3,
        4,
        0,
        0,
    ]
    assert found.unended() == 2
    report = read(builder, tmp_path)
    assert (
        gap(report, "range:duration") == "not_available: 2 of 9 ranges never ended in the capture"
    )


@pytest.mark.parametrize("thread", [0, 1, 2**24 - 1])
def test_a_thread_is_the_low_24_bits_of_its_global_number(thread: int, tmp_path: Path) -> None:
    """And what is left is its process: ranges of two processes with equal threads do not enclose
    each other."""
    builder = NsysBuilder()
    builder.range("outer", 0, 100, thread=thread)
    builder.range("other", 10, 50, pid=8, thread=thread)
    found = table(builder, tmp_path)
    assert found.spans.process.tolist() == [global_tid(7, 0), global_tid(8, 0)]
    assert found.spans.thread.tolist() == [global_tid(7, thread), global_tid(8, thread)]
    assert [(r.thread, r.depth, r.parent) for r in found.records()] == [(thread, 0, None)] * 2


def test_fields_of_names_follow_the_ranges_in_time_and_nobody_has_none(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("b:backward", 50, 60)
    builder.range("a:forward", 0, 10)
    builder.range("a:forward", 20, 30)
    builder.range("perfctl:step:5", 70, 80)
    builder.range("perfctl:phase:data", 90, 95)
    found = table(builder, tmp_path)
    assert (found.names[:2], found.name.tolist()) == (["b:backward", "a:forward"], [1, 1, 0, 2, 3])
    said = {field: found.label_of(field) for field in ("layer", "direction", "step", "phase")}
    assert {field: values.tolist() for field, values in said.items()} == {
        "layer": ["a", "a", "b", *[None] * 3],
        "direction": ["forward", "forward", "backward", *[None] * 3],
        "step": [*[None] * 3, 5, None, None],
        "phase": [*[None] * 4, "data", None],
    }
    assert {values[NOBODY] for values in said.values()} == {None}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranges_are_put_together_from_pieces_of_any_size(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_ranges, "CHUNK", size)
    ranges = list(read(training_step(NsysBuilder()), tmp_path).ranges)
    assert [(r.number, r.name, r.domain, r.start_ns, r.duration_ns, r.thread) for r in ranges] == [
        (0, "perfctl:step:4", None, 0, 1000, 7),
        (1, "perfctl:phase:forward", None, 10, 390, 7),
        (2, "conv1:forward", None, 20, 80, 7),
        (3, "cudnnConvolutionForward", "cudnn", 30, 60, 7),
        (4, "perfctl:phase:backward", None, 450, 450, 7),
        (5, "conv1:backward", None, 500, 100, 8),
    ]
    assert [(r.depth, r.parent, r.step, r.phase, r.layer, r.direction) for r in ranges] == [
        (0, None, 4, None, None, None),
        (1, 0, 4, "forward", None, None),
        (2, 1, 4, "forward", "conv1", "forward"),
        (3, 2, 4, "forward", None, None),
        (1, 0, 4, "backward", None, None),
        (0, None, 4, "backward", "conv1", "backward"),
    ]
