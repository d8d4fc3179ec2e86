"""Ranges of an nsys export: kinds, threads and names, and slices of any size."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perfctl.parsers.nsys import ranges as nsys_ranges
from tests.make.nsys_sqlite import NsysBuilder, gap, read, training_step

PUSH_POP, START_END, MARK = 59, 60, 34
"""As ENUM_NSYS_EVENT_TYPE of real exports has them."""


def test_ranges_are_counted_by_kind_and_marks_have_no_end_that_could_be_missing(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    kinds = [(PUSH_POP, 5), (PUSH_POP, None), (START_END, None), (START_END, 9), (START_END, 9)]
    for number, (kind, end) in enumerate(
        [*kinds, *[(MARK, None)] * 4, (39, None), (75, None), (33, 5), (61, 5)]
    ):
        builder.range(f"r{number}", 0, end, eventType=kind)
    report = read(builder, tmp_path)
    assert Counter(one.kind for one in report.ranges) == {"push_pop": 2, "start_end": 3, "mark": 4}
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
    ranges = read(builder, tmp_path).ranges
    assert [(r.thread, r.depth, r.parent) for r in ranges] == [(thread, 0, None)] * 2


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranges_are_put_together_from_pieces_of_any_size(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = read(training_step(NsysBuilder()), tmp_path).ranges
    whole = list(ranges)
    monkeypatch.setattr(nsys_ranges, "CHUNK", size)
    assert list(ranges) == whole
