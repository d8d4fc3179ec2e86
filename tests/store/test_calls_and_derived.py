"""Operators, collectives and derived counts: kept compactly, read one by one, and gone with
their run."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.store import database, query, read
from perfctl.orchestrator.store.write import delete_rows_cascading, replace_derived_counts
from perfctl.parsers import ReportError, parse
from perfctl.records.bulk import ColumnRecords, SqlKernels
from perfctl.records.report import (
    CODE,
    Collective,
    Copy,
    DerivedCount,
    Kernel,
    OpCall,
    Report,
    SourceCounter,
    SourceLine,
)
from tests.make.nsys_sqlite import NsysBuilder, training_step
from tests.make.stored import write

EMPTY = Report("torch", Path("r"), "made")
RULE = "128 x 128 x 8 = 131,072 FFMA"
COUNTS = [
    DerivedCount(1, "FFMA", 131_072, RULE, 0.01),
    DerivedCount(0, "FFMA", 131_072, RULE, 0.01),
    DerivedCount(0, "FADD", 0, "none"),
    DerivedCount(0, "HMMA", None, "no rule"),
]


def rows(connection, table):
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def with_kernels(connection):
    kernels = [Kernel(0, "gemm"), Kernel(1, "gemm", source="counted")]
    return write(connection, replace(EMPTY, kernels=kernels)).run_id


def test_operators_come_from_a_one_pass_iterator_and_what_they_share_is_kept_once(writing):
    def call(number):
        layer = f"conv{number % 3}"
        return OpCall(
            "aten::conv2d",
            10 * number,
            5,
            None,
            "[[16, 1]]",
            None,
            layer,
            "forward",
            number // 9,
            7,
            f"line {number % 2}",
        )

    def calls():
        yield from map(call, range(2500))

    first, second = (write(writing, replace(EMPTY, op_calls=calls())).run_id for _ in range(2))
    for number in (first, second):
        assert list(read.read_op_calls(writing, number)) == [call(number) for number in range(2500)]
    assert (rows(writing, "op_call"), rows(writing, "op_signature"), rows(writing, "stack")) == (
        5000,
        2 * 3,
        2 * 2,
    )
    ((text,),) = writing.execute(
        "SELECT DISTINCT text FROM op_call JOIN stack ON stack.id = stack_id WHERE start_ns = 10"
    )
    assert text == "line 1"


def test_derived_counts_come_back_by_launch_and_mark_what_no_counter_measured(writing):
    with_kernels(writing)  # so that a launch's number is not its row's
    run_id = with_kernels(writing)
    ((name_id,),) = writing.execute("SELECT id FROM kernel_name WHERE run_id = ?", (run_id,))
    assert replace_derived_counts(writing, run_id, iter(COUNTS), {name_id: "gemm"}) == 4
    assert read.read_derived_counts(writing, run_id) == [*COUNTS[1:], COUNTS[0]]
    assert rows(writing, "derived_rule") == 3
    assert [kernel.source for kernel in read.load_run(writing, run_id).report.kernels] == [
        "derived",
        "counted",
    ]
    families = writing.execute("SELECT family FROM kernel WHERE run_id = ?", (run_id,)).fetchall()
    assert families == [("gemm",)] * 2
    found = writing.execute(
        "SELECT name, launch, value, verified_error FROM derived_count JOIN kernel ON kernel.id = "
        "kernel_id"
    )
    assert ("gemm", 1, 131_072, 0.01) in found.fetchall()


def test_counts_that_an_earlier_release_read_from_code_come_back_with_their_run(writing):
    run_id = with_kernels(writing)
    of_code = DerivedCount(1, "FADD", 64, f"{CODE}: 1 per thread")
    replace_derived_counts(writing, run_id, [*COUNTS, of_code])
    assert read.load_run(writing, run_id).code_counts == (of_code,)


def test_derived_counts_written_again_take_the_place_of_the_first(writing):
    other, run_id = with_kernels(writing), with_kernels(writing)
    for number in (other, run_id):
        replace_derived_counts(writing, number, COUNTS)
    replace_derived_counts(writing, run_id, COUNTS[:1])
    assert read.read_derived_counts(writing, run_id) == COUNTS[:1]
    assert len(read.read_derived_counts(writing, other)) == 4
    assert [kernel.source for kernel in read.load_run(writing, run_id).report.kernels] == [
        None,
        "counted",
    ]


@pytest.mark.parametrize("launch", [-1, 2, 10**6])
def test_a_derived_count_of_a_launch_that_is_not_there_is_refused_and_nothing_is_written(
    writing, launch
):
    with_kernels(writing)
    run_id = with_kernels(writing)
    replace_derived_counts(writing, run_id, COUNTS)
    before = list(writing.iterdump())
    with pytest.raises(ValueError, match=f"run {run_id} does not have"):
        replace_derived_counts(writing, run_id, [DerivedCount(launch, "FFMA", 1, RULE)])
    assert list(writing.iterdump()) == before


def test_counters_of_instructions_are_summed_by_line_or_where_no_line_is_known_by_address(writing):
    """Two launches of one kernel and one of another; the line's opcode and stall are those of its
    hottest instruction."""
    launches = [Kernel(0, "gemm(int)", "gemm"), Kernel(1, "gemm(int)", "gemm"), Kernel(2, "relu")]
    counters = [
        SourceCounter(launch, *rest)
        for launch in (0, 1)
        for rest in (
            (0, "MOV", "a.cu", 4, 10, 320, 1, "wait"),
            (16, "FFMA", "a.cu", 4, 10, 310, 7, "barrier"),
            (32, "EXIT", "b.cu", 4, 10, 320, 0, None),
        )
    ]
    counters += [
        SourceCounter(2, 0, "MOV", None, None, 5),
        SourceCounter(2, 16, None, None, None, 6),
    ]
    run_id = write(writing, replace(EMPTY, kernels=launches, source_counters=counters)).run_id
    assert read.read_source_lines(writing, run_id) == [
        SourceLine("gemm(int)", "gemm", "a.cu", 4, 0, 2, 40, 2 * 630, 16, "FFMA", "barrier"),
        SourceLine("gemm(int)", "gemm", "b.cu", 4, 32, 1, 20, 640, 0, "EXIT", None),
        SourceLine("relu", None, None, None, 16, 1, 6, None, None, None, None),
        SourceLine("relu", None, None, None, 0, 1, 5, None, None, "MOV", None),
    ]
    assert (rows(writing, "source_counter"), rows(writing, "source_file")) == (8, 2)
    assert query.count_table_rows(writing, "source_counter", [run_id + 1]) == 0


@pytest.mark.parametrize("by_perfctl", [True, False])
def test_a_run_that_is_deleted_takes_operators_stacks_and_derived_counts_along(writing, by_perfctl):
    report = replace(
        EMPTY,
        kernels=[Kernel(0, "gemm"), Kernel(1, "gemm")],
        op_calls=[OpCall("o", 1, 2, stack="a")],
    )
    counters = [SourceCounter(0, 0, "MOV", "a.cu", 4)]
    report = replace(report, collectives=[Collective("all_reduce")], source_counters=counters)
    numbers = [write(writing, report).run_id for _ in range(2)]
    for number in numbers:
        replace_derived_counts(writing, number, COUNTS)
    tables = (
        "op_instance",
        "op_signature",
        "stack",
        "collective",
        "derived_value",
        "derived_rule",
        "source_counter",
        "source_file",
    )
    before = {table: rows(writing, table) for table in tables}
    if by_perfctl:
        delete_rows_cascading(writing, "run", "id = ?", numbers[:1])
    else:
        writing.execute("DELETE FROM run WHERE id = ?", numbers[:1])
    assert {table: 2 * rows(writing, table) for table in tables} == before
    assert read.read_derived_counts(writing, numbers[1])
    assert writing.execute("PRAGMA foreign_key_check").fetchall() == []


def test_the_new_tables_are_listed_with_their_columns_and_can_be_limited_to_runs(writing):
    report = replace(
        EMPTY,
        kernels=[Kernel(0, "gemm"), Kernel(1, "gemm")],
        op_calls=[OpCall("o", 1, 2, stack="a")],
        collectives=[Collective("all_reduce", "tp")],
    )
    first, second = (write(writing, report).run_id for _ in range(2))
    replace_derived_counts(writing, first, COUNTS)
    listed = {"api_call", "op_call", "collective", "advice", "derived_count", "stack"}
    assert listed <= set(query.list_public_table_names())
    assert not {"op_instance", "op_signature", "derived_value", "derived_rule"} & set(
        query.list_public_table_names()
    )
    counted = {table: query.count_table_rows(writing, table, [second]) for table in listed}
    assert counted == {
        "api_call": 0,
        "op_call": 1,
        "collective": 1,
        "advice": 0,
        "derived_count": 0,
        "stack": 1,
    }
    (collective,) = query.read_table_rows(writing, "collective", [second])
    names = [column.name for column, _ in query.list_table_columns("collective")]
    assert dict(zip(names, collective, strict=True))["group"] == "tp"


def test_a_parser_that_gives_only_the_first_columns_gives_the_others_as_unknown(writing):
    chunks: list[Sequence[Sequence[Any]]] = [
        ((0, 1), ("a", "b"), *[(None, None)] * 6, (0, 1)),
        ((2,), ("c",)),
    ]
    columns = ColumnRecords(Kernel, lambda: iter(chunks))
    wanted = [Kernel(0, "a", device_index=0), Kernel(1, "b", device_index=1), Kernel(2, "c")]
    assert list(columns) == wanted
    full: ColumnRecords[Kernel] = ColumnRecords(Kernel, lambda: iter(chunks[:1]))
    run = read.load_run(writing, write(writing, replace(EMPTY, kernels=full)).run_id)
    assert run.report.kernels == wanted[:2]


# Kernels that go from an nsys export into the store inside SQLite, and columns with gaps


SECRET = "TOKEN=not-a-kernel-name"


def export(path):
    """A training step, then kernels with what is odd: a missing name, no grid, two ids of one
    name."""
    builder = training_step(NsysBuilder())
    builder.string(SECRET)
    builder.kernel(77, demangledName=404)
    builder.strings["gemm(int) again"] = 500
    builder.kernel(78, demangledName=500)
    builder.kernel(79, gridX=None, streamId=None, name="conv<'\"\u202e>(int)")
    return builder.write(path)


def stored(connection, run_id):
    run = read.load_run(connection, run_id)
    return list(run.report.kernels)


def test_kernels_copied_by_sql_are_those_written_one_by_one(writing, tmp_path):
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


def test_names_that_their_first_id_tells_apart_come_out_right(writing, tmp_path):
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
    writing, tmp_path
):
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


def test_a_value_that_the_store_does_not_take_is_null_and_said(writing, tmp_path):
    builder = training_step(NsysBuilder())
    builder.kernel(90, gridX=-2, registersPerThread="many", name="other(int)")
    report = parse(builder.write(tmp_path / "r.sqlite"))
    run_id = write(writing, report).run_id
    kernels = stored(writing, run_id)
    assert (kernels[5].grid_x, kernels[5].registers, kernels[5].grid_y) == (None, None, 3)
    expected = [(kernel.name, kernel.layer) for kernel in report.kernels]
    assert [(kernel.name, kernel.layer) for kernel in kernels] == expected
    query = "SELECT quantity FROM gap WHERE run_id = ? AND state = 'unreadable'"
    assert ("kernel.grid_x",) in writing.execute(query, (run_id,)).fetchall()


def test_two_short_names_of_one_name_are_kept_apart(writing, tmp_path):
    builder = NsysBuilder()
    for short in ("gemm", "other"):
        builder.kernel(1, name="gemm(int)", shortName=builder.string(short))
    report = parse(builder.write(tmp_path / "r.sqlite"))
    kernels = stored(writing, write(writing, report).run_id)
    assert [(k.name, k.short_name) for k in kernels] == [
        ("gemm(int)", "gemm"),
        ("gemm(int)", "other"),
    ]


def _die_after_the_copy(export_path, store_path):
    report = parse(export_path)
    assert isinstance(report.kernels, SqlKernels)
    with database.open_store_for_writing(store_path) as connection:
        steps = map(os.kill, [os.getpid()], [signal.SIGKILL])  # are asked for behind the kernels
        write(connection, replace(report, steps=steps))


def test_after_a_kill_behind_the_copy_the_store_holds_none_of_it_and_takes_it_again(
    is_killed, path, tmp_path
):
    export_path = export(tmp_path / "r.sqlite")
    is_killed(_die_after_the_copy, export_path, path)
    with database.open_store_for_writing(path) as connection:
        for table in ("run", "kernel_launch", "range"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
        assert write(connection, parse(export_path)).kernels == 8


def test_of_the_strings_of_an_export_only_names_of_kernels_reach_the_store_and_go_with_the_run(
    writing, tmp_path
):
    write(writing, parse(export(tmp_path / "r.sqlite")))
    assert not any(SECRET in line for line in writing.iterdump())
    writing.execute("DELETE FROM run")
    for table in ("kernel", "kernel_name", "kernel_layer", "kernel_launch", "range", "gap"):
        assert writing.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_a_column_with_values_here_and_none_there_keeps_both(writing, tmp_path):
    copies = [
        Copy("HtoD", size, None, 0, layer)
        for size, layer in ((1, None), (None, "conv1"), (0, ""), (None, None))
    ]
    report = Report("nsys", tmp_path, "a list", copies=copies)
    run = read.load_run(writing, write(writing, report).run_id)
    assert run.report.copies == copies


@pytest.mark.parametrize("limit", [40, 999, 32766])
@pytest.mark.parametrize("count", [1, 99, 100, 101, 250, 1001])
def test_rows_come_back_in_their_order_however_many_go_in_together(writing, count, limit):
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
