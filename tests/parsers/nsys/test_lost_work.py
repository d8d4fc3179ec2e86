"""Launches and copies that calls began and the export does not have are gaps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from perfctl.parsers import parse
from perfctl.records.report import Report
from tests.make.nsys_sqlite import NsysBuilder, gap


def export(folder: Path) -> Path:
    """Six launches of one kernel."""
    builder = NsysBuilder()
    for at in range(6):
        builder.launch(1000 * (at + 1))
    return builder.write(folder / "report.sqlite")


def damaged(folder: Path, *statements: str) -> Report:
    path = export(folder)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return parse(path)


def test_kernels_that_are_missing_at_the_end_have_calls_without_kernels(tmp_path: Path) -> None:
    calls = "SELECT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    rename = f"UPDATE StringIds SET value = 'cudaLaunchKernel_v7000' WHERE id IN ({calls})"
    found = damaged(tmp_path, rename, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid > 4")
    assert "2 of 6 launch calls have no kernel" in gap(found, "kernel")


def test_copies_that_are_missing_at_the_end_have_calls_without_copies(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for correlation in range(1, 5):
        builder.launch(1000 * correlation)
    for correlation in range(5, 9):
        builder.call(correlation, 5000, 5002)
        builder.memcpy(correlation, kind=1, size=64)
    path = builder.write(tmp_path / "report.sqlite")
    names = (
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = (SELECT id FROM StringIds WHERE value = "
        "'{}') WHERE correlationId {}"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO StringIds (id, value) VALUES (9001, 'cudaMemcpyAsync_v3020')"
        )
        connection.execute(names.format("cudaMemcpyAsync_v3020", "> 4"))
    assert "calls that copy" not in str(parse(path).gaps)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE StringIds SET value = 'cudaMemsetAsync_v3020' WHERE id = 9001")
    assert "calls that copy" not in str(parse(path).gaps), (
        "copies and settings of memory are counted together"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE rowid > 3")
    assert "1 of 4 calls that copy or set memory have no such operation in the report" in gap(
        parse(path), "copy"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid > 3")
    assert "calls that copy" not in str(parse(path).gaps), (
        "the capture ended before the last kernel, and copies may be later"
    )
