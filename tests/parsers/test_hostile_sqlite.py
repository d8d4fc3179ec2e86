"""SQLite reports that somebody else made: their schema runs nothing, and no value of theirs fills
the memory."""

import sqlite3
from contextlib import closing

import pytest

from perfctl.parsers import ReportError, parse
from perfctl.parsers.common import sqlite
from tests.make.nsys_sqlite import NsysBuilder, training_step
from tests.make.stored import execute

ENDLESS = (
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n AS id, n AS value "
    "FROM t"
)


def report(folder, *statements):
    folder.mkdir(exist_ok=True)
    path = training_step(NsysBuilder()).write(folder / "report.sqlite")
    execute(path, *statements)
    return path


def test_views_named_like_tables_are_no_tables_and_never_run(tmp_path):
    path = report(
        tmp_path,
        "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME",
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS {ENDLESS}",
    )
    with closing(sqlite.connect_read_only(path)) as connection:
        assert "TARGET_INFO_GPU" not in sqlite.Database(connection).tables
    assert len(list(parse(path).kernels)) == 5
    with pytest.raises(ReportError):
        parse(
            report(
                tmp_path / "again", "DROP TABLE StringIds", f"CREATE VIEW StringIds AS {ENDLESS}"
            )
        )


def test_virtual_tables_are_left_out(tmp_path):
    path = report(
        tmp_path, "CREATE VIRTUAL TABLE DIAGNOSTIC_EVENT USING fts4(severity, source, text)"
    )
    with closing(sqlite.connect_read_only(path)) as connection:
        assert "DIAGNOSTIC_EVENT" not in sqlite.Database(connection).tables
    assert parse(path).diagnostics == ()


def test_a_column_that_is_computed_is_no_column(tmp_path):
    path = report(
        tmp_path,
        "DROP TABLE StringIds",
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT AS (printf('%.*c', 3000000, "
        "'x')))",
        "INSERT INTO StringIds (id) VALUES (1)",
    )
    assert {kernel.name for kernel in parse(path).kernels if len(kernel.name) > 1000} == set()


def test_a_value_that_would_fill_the_memory_is_refused(tmp_path):
    path = report(tmp_path)
    with closing(sqlite.connect_read_only(path)) as connection:
        with pytest.raises(sqlite3.DataError, match="too big"):
            connection.execute("SELECT zeroblob(900000000)").fetchone()
        assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM StringIds")


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_a_column_called_rowid_hides_the_rows_numbers_and_the_table_is_named(table, tmp_path):
    """A ValueError with NVTX_EVENTS, a TypeError with kernels."""
    path = report(tmp_path, f"ALTER TABLE {table} ADD COLUMN rowid")
    parsed = parse(path)
    assert any(
        gap.quantity == f"table:{table}" and gap.state == "unreadable" for gap in parsed.gaps
    )
    assert list(parsed.kernels if table.endswith("KERNEL") else parsed.ranges) == []


def test_a_text_in_a_column_of_numbers_is_null_with_a_gap_and_never_a_number(tmp_path):
    """ "12abc" counted as 12 where SQL reckoned with it, and as text where it went to the store (an
    OperationalError there)."""
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    path = report(
        tmp_path,
        f"UPDATE {table} SET end = '12abc', streamId = CAST(x'ff41' AS TEXT) WHERE rowid = 1",
    )
    parsed = parse(path)
    first, *others = parsed.kernels
    assert (first.duration_ns, first.stream) == (None, None)
    assert all(
        isinstance(kernel.duration_ns, int) and isinstance(kernel.stream, int) for kernel in others
    )
    reasons = {
        gap.reason.partition(":")[0] for gap in parsed.gaps if gap.quantity == f"table:{table}"
    }
    assert reasons == {f"{table}.end", f"{table}.streamId"}
