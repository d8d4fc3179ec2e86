import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from perfctl.orchestrator.commands import query as module
from tests.cli.hostile import ESCAPES, FORMULA

COUNT = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t)"


def test_a_select_is_answered_as_a_table_as_json_and_as_csv(perfctl, hostile):
    sql = "SELECT launch, duration_ns FROM kernel ORDER BY launch"
    table = perfctl("query", sql)
    assert [line.split() for line in table.out.splitlines()[1:]] == [
        ["0", "500"],
        ["1", "0"],
        ["2", "–"],
        ["3", "rows"],
    ]
    assert perfctl("query", sql, "--json").json == [
        {"launch": 0, "duration_ns": 500},
        {"launch": 1, "duration_ns": 0},
        {"launch": 2, "duration_ns": None},
    ]
    assert perfctl("query", sql, "--csv").out == "launch,duration_ns\n0,500\n1,0\n2,\n"


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM run",
        "UPDATE run SET status = 'ok'",
        "INSERT INTO gap VALUES (1, 'a', 'ambiguous', 'b', NULL)",
        "INSERT INTO sweep SELECT * FROM sweep RETURNING id",
        "DROP TABLE gap",
        "CREATE TABLE mine (a)",
        "CREATE TEMP TABLE mine (a)",
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'other.db'",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA user_version = 9",
        "PRAGMA query_only = OFF",
        "BEGIN IMMEDIATE",
        "SELECT load_extension('x.so')",
        "REINDEX",
    ],
)
def test_nothing_but_reading_is_allowed(perfctl, hostile, sql):
    before, files = hostile.read_bytes(), {path.name for path in Path().iterdir()}
    perfctl("query", sql).ends(2, "may only read")
    assert hostile.read_bytes() == before
    assert {path.name for path in Path().iterdir()} <= files | {"perfctl.db-wal", "perfctl.db-shm"}


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT 1; SELECT 2", "more than one statement"),
        ("", "the query is empty"),
        ("/* nothing */", "the query is empty"),
        ("SELECT * FROM nope", "no such table: nope. Tables: sweep"),
        ("SELECT nope FROM run", "no such column"),
        ("SELEC 1", "syntax error"),
        ("SELECT zeroblob(1000000000)", "too big"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused_in_one_line(perfctl, hostile, sql, said):
    answer = perfctl("query", sql).ends(2, said)
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(f"{COUNT} SELECT count(*) FROM t", id="many steps"),
        pytest.param(
            "SELECT instr(printf('%.*c', 8000000, 'a'), printf('%.*c', 4000000, 'a') || 'b')",
            id="one long function",
        ),
        pytest.param(f"{COUNT} SELECT n FROM t", id="rows without end"),
    ],
)
def test_a_query_that_runs_for_ever_is_stopped(perfctl, hostile, sql):
    perfctl("query", sql, "--timeout", 0.3, "--csv").ends(2, "longer than 0.3 s")


def test_a_result_that_is_too_large_is_shown_in_part_or_refused(perfctl, hostile, monkeypatch):
    long = module.LONGEST_SHOWN + 1
    typed = f"SELECT printf('%.*c', {long}, 'x'), zeroblob({long})"
    shown = " ".join(perfctl("query", typed).out.split())
    assert shown.count("x") <= long
    assert all(f"({long:,} {unit})" in shown for unit in ("characters", "bytes"))
    many = ", ".join(["1"] * (module.MOST_COLUMNS + 1))
    assert "more than 500" in perfctl("query", f"SELECT {many}").err
    row = module.ROW_BYTES + module.VALUE_BYTES
    monkeypatch.setattr(module, "MOST_SHOWN", 7 * row)
    monkeypatch.setattr(module, "MOST_JSON", 7 * row)
    eight = f"{COUNT} SELECT n FROM t LIMIT 8"
    assert "first 7 rows; --csv prints all" in perfctl("query", eight).out
    assert "as JSON. Narrow the query" in perfctl("query", eight, "--json").err
    assert len(perfctl("query", eight, "--csv").out.splitlines()) == 1 + 8


def test_a_query_that_would_fill_the_memory_is_stopped(hostile):
    """In a process of its own, which keeps the limit for good."""
    code = (
        "import sys; from perfctl.orchestrator.commands import query; from "
        "perfctl.orchestrator.cli.main import run_command_line as run\n"
        "query.MOST_MEMORY = 16 << 20; sys.exit(run(['query', '--store', sys.argv[1], "
        "sys.argv[2]]))"
    )
    sql = (
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t)"
        " SELECT count(*) FROM (SELECT DISTINCT printf('%09000d', n) FROM t)"
    )
    said = subprocess.run(
        (sys.executable, "-c", code, str(hostile), sql), capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert "needs more than 16 MiB of memory" in said.stderr


def test_json_functions_the_schema_and_columns_of_one_name_can_be_asked(
    perfctl, hostile, monkeypatch
):
    for sql, rows in (
        ("SELECT value FROM json_each('[4, 5]')", [{"value": 4}, {"value": 5}]),
        ("SELECT 1 AS a, 2 AS a, NULL AS a", [{"a": 1, "a_2": 2, "a_3": None}]),
        ("SELECT name FROM pragma_table_info('gap') WHERE name LIKE 're%'", [{"name": "reason"}]),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(sql))
        assert perfctl("query - --json").json == rows


def test_hostile_names_reach_programs_whole(perfctl, hostile):
    assert perfctl("query 'SELECT name FROM kernel' --json").json[1]["name"] == ESCAPES
    rows = list(
        csv.DictReader(
            io.StringIO(perfctl("query 'SELECT name FROM kernel' --csv").out, newline="")
        )
    )
    assert rows[0]["name"] == "'" + FORMULA
    assert rows[1]["name"] == ESCAPES


def test_a_table_says_that_there_are_more_rows_and_many_columns_become_a_list(perfctl, hostile):
    lines = perfctl("query 'SELECT launch FROM kernel' --rows 2").out.splitlines()
    assert len(lines) == 4 and "use --rows to show more" in lines[-1]
    shown = perfctl("query 'SELECT * FROM kernel'").out
    assert shown.count("\n  run_id") == 3 and max(map(len, shown.splitlines())) <= 80


def test_kernels_and_layers_are_found_by_parts_of_their_names(perfctl, hostile):
    assert perfctl("query --search ONV1 --json").json == [
        {
            "type": "layer",
            "name": "conv1",
            "kind": None,
            "runs": 1,
            "launches": 3,
            "duration_ns": 500,
        }
    ]
    formula = {
        "type": "kernel",
        "name": FORMULA,
        "kind": None,
        "runs": 1,
        "launches": 1,
        "duration_ns": 500,
    }
    assert perfctl("query --search 'x.example click' --json").json == [formula]
    assert perfctl("query", "--search", 'click") http', "--json").json == [formula]
    assert perfctl("query --search =h --json").json == [formula]
    unknown = perfctl("query --search alert --csv")
    assert unknown.out.splitlines()[1:] == ["kernel,<script>alert('1')</script>,,1,1,"]
    for nothing in ("conv2", "conv1 gemm", 'name:"conv1"', "x*", "conv1 OR gemm"):
        assert perfctl("query", "--search", nothing, "--json").json == []


def test_a_search_reads_one_thing_and_says_what_it_needs(perfctl, hostile):
    before = hostile.read_bytes()
    for words in ((), ("select 1", "--search", "conv"), ("--search", " ")):
        perfctl("query", *words).ends(2, "perfctl query")
    assert hostile.read_bytes() == before
