"""Columns of nsys exports that are read joined together: what could pull them apart."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.parsers import parse
from perfctl.parsers.text import sqlite
from tests.parsers.nsys_builder import NsysBuilder, read, training_step

NAMES = ("plain", "with \x1f inside", "", "a,b\n\x1f", "conv1:forward")


def test_a_name_that_holds_the_separator_stays_whole(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for number, name in enumerate(NAMES):
        builder.range(name, number, number + 1)
    assert tuple(r.name for r in read(builder, tmp_path).ranges) == NAMES


def test_row_ids_that_are_far_apart_lose_no_row(tmp_path: Path) -> None:
    path = training_step(NsysBuilder()).write(tmp_path / "report.sqlite")
    before = parse(path)
    kernels, ranges = list(before.kernels), list(before.ranges)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            connection.execute(f"UPDATE {table} SET rowid = rowid * 1000000000007")
    after = parse(path)
    assert (list(after.kernels), list(after.ranges)) == (kernels, ranges)


def test_many_small_slices_give_what_one_large_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = training_step(NsysBuilder()).write(tmp_path / "report.sqlite")
    whole = parse(path)
    expected = [list(whole.kernels), list(whole.ranges)]
    monkeypatch.setattr(sqlite, "SLICE_ROWS", 2)
    sliced = parse(path)
    assert [list(sliced.kernels), list(sliced.ranges)] == expected
