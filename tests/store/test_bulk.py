"""Kernels that go from an nsys export into the store inside SQLite, and columns with gaps."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.store import database, read
from perfctl.parsers import ReportError, parse
from perfctl.records.bulk import SqlKernels
from perfctl.records.report import Copy, Kernel, Report
from tests.make.nsys_sqlite import NsysBuilder, training_step
from tests.make.stored import write

SECRET = "TOKEN=not-a-kernel-name"


def export(path: Path) -> Path:
    """A training step, then kernels with what is odd: a missing name, no grid, two ids of one
    name."""
    builder = training_step(NsysBuilder())
    builder.string(SECRET)
    builder.kernel(77, demangledName=404)
    builder.strings["gemm(int) again"] = 500
    builder.kernel(78, demangledName=500)
    builder.kernel(79, gridX=None, streamId=None, name="conv<'\"\u202e>(int)")
    return builder.write(path)


def stored(connection: sqlite3.Connection, run_id: int) -> list[Kernel]:
    (run,) = read.load(connection, [run_id])
    return list(run.report.kernels)


def test_kernels_copied_by_sql_are_those_written_one_by_one(
    writing: sqlite3.Connection, tmp_path: Path
) -> None:
    report = parse(export(tmp_path / "r.sqlite"))
    assert isinstance(report.kernels, SqlKernels)
    one_by_one = write(writing, replace(report, kernels=list(report.kernels)))
    copied = write(writing, report)
    assert (copied.kernels, copied.ranges) == (one_by_one.kernels, one_by_one.ranges) == (8, 6)
    assert stored(writing, copied.run_id) == stored(writing, one_by_one.run_id)
    kernels = stored(writing, copied.run_id)
    assert kernels == list(report.kernels)
    assert [(k.layer, k.step, k.range_number) for k in kernels[:2]] == [
        ("conv1", 4, 3),
        ("conv1", 4, 2),
    ]
    assert [k.name for k in kernels[:1] + kernels[6:7]] == ["gemm(int)", "gemm(int) again"]


def test_names_that_their_first_id_tells_apart_come_out_right(
    writing: sqlite3.Connection, tmp_path: Path
) -> None:
    builder = NsysBuilder()
    for name in ("first(int)", "second(int)", "first(int)"):
        builder.kernel(1, name=name)
    report = parse(builder.write(tmp_path / "r.sqlite"))
    numbers = [write(writing, report).run_id for _ in range(2)]
    for number in numbers:
        assert [k.name for k in stored(writing, number)] == [
            "first(int)",
            "second(int)",
            "first(int)",
        ]
    assert writing.execute("SELECT count(*) FROM kernel_name").fetchone() == (4,)


def test_an_export_that_turns_out_damaged_while_it_is_copied_leaves_the_store_as_it_was(
    writing: sqlite3.Connection, tmp_path: Path
) -> None:
    builder = NsysBuilder()
    for number in range(3000):
        builder.launch(10 * number)
    path = builder.write(tmp_path / "r.sqlite")
    whole = path.read_bytes()
    report = parse(path)
    before = list(writing.iterdump())
    refused = 0
    for offset in range(4096, len(whole), 4096):
        path.write_bytes(whole[:offset] + b"\xff" * 4096 + whole[offset + 4096 :])
        try:
            run_id = write(writing, report).run_id
        except ReportError as error:
            assert "damaged or truncated" in str(error)
            refused += 1
            assert list(writing.iterdump()) == before
        else:  # the page holds nothing that is still needed
            assert writing.execute("SELECT count(*) FROM kernel").fetchone() == (3000,)
            writing.execute("DELETE FROM run WHERE id = ?", (run_id,))
            writing.execute("DELETE FROM sweep")
    assert refused > 5
    assert "report" not in [row[1] for row in writing.execute("PRAGMA database_list")]
    assert (
        writing.execute("SELECT name FROM temp.sqlite_master WHERE type = 'table'").fetchall() == []
    )


def test_a_value_that_the_store_does_not_take_is_null_and_said(
    writing: sqlite3.Connection, tmp_path: Path
) -> None:
    builder = training_step(NsysBuilder())
    builder.kernel(90, gridX=-2, registersPerThread="many")
    run_id = write(writing, parse(builder.write(tmp_path / "r.sqlite"))).run_id
    kernels = stored(writing, run_id)
    assert (kernels[5].grid_x, kernels[5].registers, kernels[5].grid_y) == (None, None, 3)
    query = "SELECT quantity FROM gap WHERE run_id = ? AND state = 'unreadable'"
    assert ("kernel.grid_x",) in writing.execute(query, (run_id,)).fetchall()


def test_two_short_names_of_one_name_are_kept_apart(
    writing: sqlite3.Connection, tmp_path: Path
) -> None:
    builder = NsysBuilder()
    for short in ("gemm", "other"):
        builder.kernel(1, name="gemm(int)", shortName=builder.string(short))
    report = parse(builder.write(tmp_path / "r.sqlite"))
    kernels = stored(writing, write(writing, report).run_id)
    assert [(k.name, k.short_name) for k in kernels] == [
        ("gemm(int)", "gemm"),
        ("gemm(int)", "other"),
    ]


def _die_after_the_copy(export_path: Path, store_path: Path) -> None:
    report = parse(export_path)
    assert isinstance(report.kernels, SqlKernels)
    with database.writing(store_path) as connection:
        steps = map(os.kill, [os.getpid()], [signal.SIGKILL])  # are asked for behind the kernels
        write(connection, replace(report, steps=steps))


def test_after_a_kill_behind_the_copy_the_store_holds_none_of_it_and_takes_it_again(
    is_killed: Callable[..., None], path: Path, tmp_path: Path
) -> None:
    export_path = export(tmp_path / "r.sqlite")
    is_killed(_die_after_the_copy, export_path, path)
    with database.writing(path) as connection:
        for table in ("run", "kernel_launch", "range"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
        assert write(connection, parse(export_path)).kernels == 8


def test_of_the_strings_of_an_export_only_names_of_kernels_reach_the_store_and_go_with_the_run(
    writing: sqlite3.Connection, tmp_path: Path
) -> None:
    write(writing, parse(export(tmp_path / "r.sqlite")))
    assert not any(SECRET in line for line in writing.iterdump())
    writing.execute("DELETE FROM run")
    for table in ("kernel", "kernel_name", "kernel_layer", "kernel_launch", "range", "gap"):
        assert writing.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_a_column_with_values_here_and_none_there_keeps_both(
    writing: sqlite3.Connection, tmp_path: Path
) -> None:
    copies = [
        Copy("HtoD", size, None, 0, layer)
        for size, layer in ((1, None), (None, "conv1"), (0, ""), (None, None))
    ]
    report = Report("nsys", tmp_path, "a list", copies=copies)
    (run,) = read.load(writing, [write(writing, report).run_id])
    assert run.report.copies == copies


@pytest.mark.parametrize("limit", [40, 999, 32766])
@pytest.mark.parametrize("count", [1, 99, 100, 101, 250, 1001])
def test_rows_come_back_in_their_order_however_many_go_in_together(
    writing: sqlite3.Connection, count: int, limit: int
) -> None:
    copies = [
        Copy("HtoD", 7 * n, None if n % 3 else n, n + 1, f"layer{n % 5}", n % 2, None)
        for n in range(count)
    ]
    report = Report(tool="nsys", path=Path("r"), form="made", copies=copies)
    before = writing.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, limit)
    run_id = write(writing, report).run_id
    writing.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, before)
    columns = ", ".join(Copy._fields)
    rows = writing.execute(
        f"SELECT {columns} FROM copy WHERE run_id = ? ORDER BY rowid", (run_id,)
    ).fetchall()
    assert [Copy(*row) for row in rows] == copies
