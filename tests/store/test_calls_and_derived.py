"""Operators, collectives and derived counts: kept compactly, read one by one, and gone with
their run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.store import query, read
from perfctl.orchestrator.store.write import forget, write_derived
from perfctl.records.bulk import Columns
from perfctl.records.report import (
    CODE,
    Collective,
    DerivedCount,
    Kernel,
    OpCall,
    Report,
    SourceCounter,
    SourceLine,
)
from tests.make.stored import write

EMPTY = Report("torch", Path("r"), "made")
RULE = "128 x 128 x 8 = 131,072 FFMA"
COUNTS = [
    DerivedCount(1, "FFMA", 131_072, RULE, 0.01),
    DerivedCount(0, "FFMA", 131_072, RULE, 0.01),
    DerivedCount(0, "FADD", 0, "none"),
    DerivedCount(0, "HMMA", None, "no rule"),
]


def rows(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def with_kernels(connection: sqlite3.Connection) -> int:
    kernels = [Kernel(0, "gemm"), Kernel(1, "gemm", source="counted")]
    return write(connection, replace(EMPTY, kernels=kernels)).run_id


def test_operators_come_from_a_one_pass_iterator_and_what_they_share_is_kept_once(
    writing: sqlite3.Connection,
) -> None:
    def call(number: int) -> OpCall:
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

    def calls() -> Iterator[OpCall]:
        yield from map(call, range(2500))

    first, second = (write(writing, replace(EMPTY, op_calls=calls())).run_id for _ in range(2))
    for number in (first, second):
        assert list(read.op_calls(writing, number)) == [call(number) for number in range(2500)]
    assert (rows(writing, "op_call"), rows(writing, "op_signature"), rows(writing, "stack")) == (
        5000,
        2 * 3,
        2 * 2,
    )
    ((text,),) = writing.execute(
        "SELECT DISTINCT text FROM op_call JOIN stack ON stack.id = stack_id WHERE start_ns = 10"
    )
    assert text == "line 1"


def test_derived_counts_come_back_by_launch_and_mark_what_no_counter_measured(
    writing: sqlite3.Connection,
) -> None:
    with_kernels(writing)  # so that a launch's number is not its row's
    run_id = with_kernels(writing)
    ((name_id,),) = writing.execute("SELECT id FROM kernel_name WHERE run_id = ?", (run_id,))
    assert write_derived(writing, run_id, iter(COUNTS), {name_id: "gemm"}) == 4
    assert read.derived_counts(writing, run_id) == [*COUNTS[1:], COUNTS[0]]
    assert rows(writing, "derived_rule") == 3
    assert [kernel.source for kernel in read.load(writing, [run_id])[0].report.kernels] == [
        "derived",
        "counted",
    ]
    assert read.load(writing, [run_id])[0].families == ("gemm", "gemm")
    found = writing.execute(
        "SELECT name, launch, value, verified_error FROM derived_count JOIN kernel ON kernel.id = "
        "kernel_id"
    )
    assert ("gemm", 1, 131_072, 0.01) in found.fetchall()


def test_counts_that_an_earlier_release_read_from_code_come_back_with_their_run(
    writing: sqlite3.Connection,
) -> None:
    run_id = with_kernels(writing)
    of_code = DerivedCount(1, "FADD", 64, f"{CODE}: 1 per thread")
    write_derived(writing, run_id, [*COUNTS, of_code])
    assert read.load(writing, [run_id])[0].code_counts == (of_code,)


def test_derived_counts_written_again_take_the_place_of_the_first(
    writing: sqlite3.Connection,
) -> None:
    other, run_id = with_kernels(writing), with_kernels(writing)
    for number in (other, run_id):
        write_derived(writing, number, COUNTS)
    write_derived(writing, run_id, COUNTS[:1])
    assert read.derived_counts(writing, run_id) == COUNTS[:1]
    assert len(read.derived_counts(writing, other)) == 4
    assert [kernel.source for kernel in read.load(writing, [run_id])[0].report.kernels] == [
        None,
        "counted",
    ]


@pytest.mark.parametrize("launch", [-1, 2, 10**6])
def test_a_derived_count_of_a_launch_that_is_not_there_is_refused_and_nothing_is_written(
    writing: sqlite3.Connection, launch: int
) -> None:
    with_kernels(writing)
    run_id = with_kernels(writing)
    write_derived(writing, run_id, COUNTS)
    before = list(writing.iterdump())
    with pytest.raises(ValueError, match=f"run {run_id} does not have"):
        write_derived(writing, run_id, [DerivedCount(launch, "FFMA", 1, RULE)])
    assert list(writing.iterdump()) == before


def test_counters_of_instructions_are_summed_by_line_or_where_no_line_is_known_by_address(
    writing: sqlite3.Connection,
) -> None:
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
    assert read.source_lines(writing, run_id) == [
        SourceLine("gemm(int)", "gemm", "a.cu", 4, 0, 2, 40, 2 * 630, 16, "FFMA", "barrier"),
        SourceLine("gemm(int)", "gemm", "b.cu", 4, 32, 1, 20, 640, 0, "EXIT", None),
        SourceLine("relu", None, None, None, 16, 1, 6, None, None, None, None),
        SourceLine("relu", None, None, None, 0, 1, 5, None, None, "MOV", None),
    ]
    assert (rows(writing, "source_counter"), rows(writing, "source_file")) == (8, 2)
    assert query.count_rows(writing, "source_counter", [run_id + 1]) == 0


@pytest.mark.parametrize("by_perfctl", [True, False])
def test_a_run_that_is_deleted_takes_operators_stacks_and_derived_counts_along(
    writing: sqlite3.Connection, by_perfctl: bool
) -> None:
    report = replace(
        EMPTY,
        kernels=[Kernel(0, "gemm"), Kernel(1, "gemm")],
        op_calls=[OpCall("o", 1, 2, stack="a")],
    )
    counters = [SourceCounter(0, 0, "MOV", "a.cu", 4)]
    report = replace(report, collectives=[Collective("all_reduce")], source_counters=counters)
    numbers = [write(writing, report).run_id for _ in range(2)]
    for number in numbers:
        write_derived(writing, number, COUNTS)
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
        forget(writing, "run", "id = ?", numbers[:1])
    else:
        writing.execute("DELETE FROM run WHERE id = ?", numbers[:1])
    assert {table: 2 * rows(writing, table) for table in tables} == before
    assert read.derived_counts(writing, numbers[1])
    assert writing.execute("PRAGMA foreign_key_check").fetchall() == []


def test_the_new_tables_are_listed_with_their_columns_and_can_be_limited_to_runs(
    writing: sqlite3.Connection,
) -> None:
    report = replace(
        EMPTY,
        kernels=[Kernel(0, "gemm"), Kernel(1, "gemm")],
        op_calls=[OpCall("o", 1, 2, stack="a")],
        collectives=[Collective("all_reduce", "tp")],
    )
    first, second = (write(writing, report).run_id for _ in range(2))
    write_derived(writing, first, COUNTS)
    listed = {"api_call", "op_call", "collective", "advice", "derived_count", "stack"}
    assert listed <= set(query.table_names())
    assert not {"op_instance", "op_signature", "derived_value", "derived_rule"} & set(
        query.table_names()
    )
    counted = {table: query.count_rows(writing, table, [second]) for table in listed}
    assert counted == {
        "api_call": 0,
        "op_call": 1,
        "collective": 1,
        "advice": 0,
        "derived_count": 0,
        "stack": 1,
    }
    (collective,) = query.table_rows(writing, "collective", [second])
    names = [column.name for column, _ in query.columns_of("collective")]
    assert dict(zip(names, collective, strict=True))["group"] == "tp"


def test_a_parser_that_gives_only_the_first_columns_gives_the_others_as_unknown(
    writing: sqlite3.Connection,
) -> None:
    chunks: list[Sequence[Sequence[Any]]] = [
        ((0, 1), ("a", "b"), *[(None, None)] * 6, (0, 1)),
        ((2,), ("c",)),
    ]
    columns = Columns(Kernel, lambda: iter(chunks))
    wanted = [Kernel(0, "a", device_index=0), Kernel(1, "b", device_index=1), Kernel(2, "c")]
    assert list(columns) == wanted
    full: Columns[Kernel] = Columns(Kernel, lambda: iter(chunks[:1]))
    (run,) = read.load(writing, [write(writing, replace(EMPTY, kernels=full)).run_id])
    assert run.report.kernels == wanted[:2]
