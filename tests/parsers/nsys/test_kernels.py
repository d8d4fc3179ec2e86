"""Kernels of an nsys export as a store copies them by SQL: the same rows as the records, whatever
the numbers look like."""

from collections import Counter

import pytest

from perfctl.parsers import parse
from perfctl.parsers.nsys import kernels as nsys_kernels
from perfctl.parsers.nsys import ranges as nsys_ranges
from perfctl.records.bulk import ColumnRecords, SqlKernels
from tests.make.nsys_sqlite import NsysBuilder, gap, read, training_step
from tests.make.nsys_sqlite import copied as copied_rows
from tests.make.stored import execute

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"


def copied(path):
    """The rows that a store takes; they are those of the records."""
    kernels = parse(path).kernels
    assert isinstance(kernels, SqlKernels)
    return copied_rows(kernels)


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("steps", [[0], [100, 9, 0], [10**18 - 1, 0]])
def test_step_numbers_of_every_length_are_copied_whole(steps, outside, tmp_path):
    builder = NsysBuilder()
    for place, step in enumerate(steps):
        builder.range(f"perfctl:step:{step}", 100 * place, 100 * place + 50)
        builder.launch(100 * place + 10)
    if outside:
        builder.launch(5000)
    kernels = copied(builder.write(tmp_path / "r.sqlite"))
    expected = [(step, number, None) for number, step in enumerate(steps)]
    assert [(kernel.step, kernel.range_number, kernel.layer) for kernel in kernels] == [
        *expected,
        *[(None, None, None)] * outside,
    ]


@pytest.mark.parametrize("ranges", [(), ("perfctl:step:3", "conv1:forward")])
def test_where_no_kernel_has_a_range_all_of_them_are_one_stretch(ranges, tmp_path):
    builder = NsysBuilder()
    builder.launch(10)
    for name in ranges:
        builder.range(name, 500, 600)
    kernels = parse(builder.write(tmp_path / "r.sqlite")).kernels
    assert isinstance(kernels, SqlKernels)
    assert [list(columns) for columns in kernels.stretches()] == [[[1], [1], [-1], [-1], [-1]]]
    assert dict(kernels.layers) == {}


def test_layers_that_launched_something_are_listed_and_no_others(tmp_path):
    builder = training_step(NsysBuilder())
    builder.range("idle:forward", 960, 990)
    kernels = parse(builder.write(tmp_path / "r.sqlite")).kernels
    assert isinstance(kernels, SqlKernels)
    assert set(kernels.layers.values()) == {
        ("conv1", "backward", "range"),
        ("conv1", "forward", "range"),
    }


def test_rows_may_be_numbered_from_anywhere(tmp_path):
    path = training_step(NsysBuilder()).write(tmp_path / "r.sqlite")
    before = copied(path)
    assert [kernel.launch for kernel in before] == [0, 1, 2, 3, 4]
    assert [kernel.range_number for kernel in before] == [3, 2, 1, 5, None]
    for shift in (41, -1000):
        execute(path, f"UPDATE {TABLE} SET rowid = rowid + {shift}")
        assert copied(path) == before


@pytest.mark.parametrize("taken", [2, 3])
def test_rows_that_were_taken_out_leave_records_alone(taken, tmp_path):
    """Five kernels, of which the second or the third goes: the others keep their places in time and
    their layers."""
    path = training_step(NsysBuilder()).write(tmp_path / "r.sqlite")
    before = list(parse(path).kernels)
    execute(path, f"DELETE FROM {TABLE} WHERE rowid = {taken}")
    kernels = parse(path).kernels
    assert isinstance(kernels, ColumnRecords)
    del before[taken - 1]
    assert list(kernels) == [kernel._replace(launch=at) for at, kernel in enumerate(before)]


# Ranges of an nsys export: kinds, threads and names, and slices of any size


PUSH_POP, START_END, MARK = 59, 60, 34
"""As ENUM_NSYS_EVENT_TYPE of real exports has them."""


def test_ranges_are_counted_by_kind_and_marks_have_no_end_that_could_be_missing(tmp_path):
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
def test_a_thread_is_the_low_24_bits_of_its_global_number(thread, tmp_path):
    """And what is left is its process: ranges of two processes with equal threads do not enclose
    each other."""
    builder = NsysBuilder()
    builder.range("outer", 0, 100, thread=thread)
    builder.range("other", 10, 50, pid=8, thread=thread)
    ranges = read(builder, tmp_path).ranges
    assert [(r.thread, r.depth, r.parent) for r in ranges] == [(thread, 0, None)] * 2


@pytest.mark.parametrize("size", [1, 2, 5])
def test_kernels_and_ranges_are_put_together_from_pieces_of_any_size(size, tmp_path, monkeypatch):
    path = training_step(NsysBuilder()).write(tmp_path / "r.sqlite")
    kernels, ranges = copied(path), list(parse(path).ranges)
    for module, name in (
        (nsys_kernels, "CHUNK"),
        (nsys_kernels, "TOGETHER"),
        (nsys_ranges, "CHUNK"),
    ):
        monkeypatch.setattr(module, name, size)
    report = parse(path)
    assert copied(path) == list(report.kernels) == kernels
    assert list(report.ranges) == ranges
