"""Which rows, strings and texts of an nsys export go, and which stay: small databases made
by hand."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.scrub import environment_in, rewrite, scrub
from tests.parsers.nsys_secrets import with_environment

STRINGS = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)"


def made(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def every(path: Path, query: str) -> list[Any]:
    """The rows; of one column, its values."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(query).fetchall()
    return [row[0] if len(row) == 1 else row for row in rows]


@pytest.mark.parametrize(
    ("generation", "rows"),
    [
        ("2020.3", {"StringIds": 7}),
        ("2022.1", {"TARGET_INFO_SYSTEM_ENV": 1, "StringIds": 7}),
        ("2024.2", {"TARGET_INFO_SYSTEM_ENV": 1, "META_DATA_CAPTURE": 6, "StringIds": 7}),
        ("2026.1", {"TARGET_INFO_SYSTEM_ENV": 1, "META_DATA_CAPTURE": 6, "StringIds": 7}),
    ],
)
def test_the_rows_that_went_are_counted(
    generation: str, rows: dict[str, int], tmp_path: Path
) -> None:
    """Five plain variables and two secrets among the strings; five and one in the
    capture's facts."""
    done = scrub(with_environment(tmp_path / "r.sqlite", generation), tmp_path / "copy.sqlite")
    assert done.rows == rows
    if "META_DATA_CAPTURE" in rows:
        assert every(done.path, "SELECT name, value FROM META_DATA_CAPTURE") == [("RATE_HZ", "0")]
        assert every(done.path, "SELECT text FROM DIAGNOSTIC_EVENT") == [
            "Launched with DB_PASSWORD=(removed)"
        ]


def test_of_what_is_said_about_the_system_the_machine_s_own_facts_stay(tmp_path: Path) -> None:
    names = (
        "CpuDescription",
        "CpuCores",
        "DeviceEnvironment",
        "OsDescription",
        "Hostname",
        "NvDriverVersion",
    )
    path = made(
        tmp_path / "r.sqlite",
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)",
        *(f"INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('{name}', 'x')" for name in names),
        "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (NULL, 'x')",
    )
    assert rewrite(path, Counter()) == {"TARGET_INFO_SYSTEM_ENV": 3}
    assert every(path, "SELECT name FROM TARGET_INFO_SYSTEM_ENV") == [
        names[place] for place in (0, 1, 3, 5)
    ]


def test_of_the_facts_of_a_capture_those_of_an_environment_go(tmp_path: Path) -> None:
    kept = [
        "('RATE_HZ', '0')",
        "('NOTE', 'a=b')",
        "('LINE', NULL)",
        "(NULL, 'plain')",
        "('X', '7=8')",
    ]
    gone = [
        "('PROCESS_0:ENVIRONMENT_VARIABLE', 'x')",
        "('my_env', 'y')",
        "('OTHER', 'HOME=/x')",
        "(NULL, '_=/usr/bin/x')",
    ]
    path = made(
        tmp_path / "r.sqlite",
        "CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)",
        *(f"INSERT INTO META_DATA_CAPTURE VALUES {row}" for row in kept + gone),
    )
    assert rewrite(path, Counter()) == {"META_DATA_CAPTURE": 4}
    assert every(path, "SELECT count(*) FROM META_DATA_CAPTURE") == [5]


def test_what_the_program_printed_goes_and_so_does_a_table_with_other_columns_than_it_is_known_to_have(
    tmp_path: Path,
) -> None:
    path = made(
        tmp_path / "r.sqlite",
        "CREATE TABLE ProcessStreams (pid, textId)",
        "INSERT INTO ProcessStreams VALUES (1, 2), (3, 4)",
        "CREATE TABLE ANALYSIS_FILE (id, content)",
        "INSERT INTO ANALYSIS_FILE VALUES (1, 'said')",
        "CREATE TABLE META_DATA_CAPTURE (name TEXT, text TEXT)",
        "INSERT INTO META_DATA_CAPTURE VALUES ('RATE_HZ', '0')",
        "CREATE TABLE OTHER (id, content)",
        "INSERT INTO OTHER VALUES (1, 'said')",
    )
    assert rewrite(path, Counter()) == {
        "ProcessStreams": 2,
        "ANALYSIS_FILE": 1,
        "META_DATA_CAPTURE": 1,
    }
    assert every(path, "SELECT content FROM OTHER") == ["said"]


@pytest.mark.parametrize(
    ("column", "kept"),
    [
        *(
            (name, True)
            for name in (
                "nameId",
                "textId",
                "jsonTextId",
                "fileNameId",
                "contentId",
                "symbolId",
                "moduleId",
                "pathId",
            )
        ),
        *(
            (name, True)
            for name in (
                "shortName",
                "demangledName",
                "mangledName",
                "symbol",
                "module",
                "apiCallId",
                "NAMEID",
            )
        ),
        *(
            (name, False)
            for name in (
                "value",
                "bytes",
                "correlationId",
                "deviceId",
                "nameIds",
                "named",
                "moduleOffset",
                "rangeId",
            )
        ),
    ],
)
def test_a_string_stays_where_a_column_for_strings_names_it(
    column: str, kept: bool, tmp_path: Path
) -> None:
    path = made(
        tmp_path / "r.sqlite",
        STRINGS,
        "INSERT INTO StringIds VALUES (1, 'first'), (2, 'second'), (3, 'third')",
        f"CREATE TABLE T (x, {column})",
        f"INSERT INTO T (x, {column}) VALUES (2, 1), (2, NULL), (2, '3')",
    )
    assert rewrite(path, Counter()) == {"StringIds": 2 if kept else 3}
    assert every(path, "SELECT value FROM StringIds") == (["first"] if kept else [])


def test_a_comment_in_the_schema_tells_a_column_for_strings_too(tmp_path: Path) -> None:
    table = (
        "CREATE TABLE T (\n  odd INTEGER NOT NULL, -- REFERENCES StringIds(id)\n"
        "  other INTEGER -- REFERENCES Elsewhere(id)\n)"
    )
    path = made(
        tmp_path / "r.sqlite",
        STRINGS,
        "INSERT INTO StringIds VALUES (1, 'first'), (2, 'second')",
        table,
        "INSERT INTO T VALUES (1, 2)",
    )
    assert rewrite(path, Counter()) == {"StringIds": 1}
    assert every(path, "SELECT value FROM StringIds") == ["first"]


def test_a_string_that_is_named_and_is_a_variable_of_an_environment_loses_its_value(
    tmp_path: Path,
) -> None:
    strings = {
        "HOME=/home/me": "HOME=(removed)",
        "HOME=(removed)": "HOME=(removed)",
        "HOMES=/x": "HOMES=/x",
        "LR=0.1": "LR=0.1",
        "A HOME=/x": "A HOME=/x",
        "SLURM_JOB_ID=7=8": "SLURM_JOB_ID=(removed)",
        "_=/usr/bin/x": "_=(removed)",
    }
    rows = ", ".join(f"({number}, '{text}')" for number, text in enumerate(strings))
    path = made(
        tmp_path / "r.sqlite",
        STRINGS,
        f"INSERT INTO StringIds VALUES {rows}",
        "CREATE TABLE T (nameId INTEGER)",
        f"INSERT INTO T VALUES {', '.join(f'({number})' for number in range(len(strings)))}",
    )
    assert environment_in(path)
    assert rewrite(path, Counter()) == {}
    assert every(path, "SELECT value FROM StringIds ORDER BY id") == list(strings.values())
    assert not environment_in(path)


def test_secrets_are_replaced_in_texts_and_bytes_of_every_table_and_numbers_stay(
    tmp_path: Path,
) -> None:
    path = made(
        tmp_path / "r.sqlite",
        'CREATE TABLE "odd ""name" (id INTEGER, "a ""b" TEXT, bytes BLOB, any, r REAL)',
        """INSERT INTO "odd ""name" VALUES (1, 'X_TOKEN=a', CAST('see HF_TOKEN=abcdefgh' AS BLOB), 'plain text', 1.5),
           (2, 'MAX_TOKENS=512', X'FF00FF0102030405060708', 'DB_PASSWORD=x y', 2.5), (123456789012, NULL, NULL, 123456789012, NULL)""",
    )
    names: Counter[str] = Counter()
    assert rewrite(path, names) == {}
    assert set(names) == {"X_TOKEN", "HF_TOKEN", "DB_PASSWORD"}
    assert every(path, 'SELECT * FROM "odd ""name"') == [
        (1, "X_TOKEN=(removed)", b"see HF_TOKEN=(removed)", "plain text", 1.5),
        (2, "MAX_TOKENS=512", b"\xff\0\xff\1\2\3\4\5\6\7\x08", "DB_PASSWORD=(removed) y", 2.5),
        (123456789012, None, None, 123456789012, None),
    ]


def test_text_that_is_no_utf_8_or_holds_a_zero_byte_stays_as_it_is_but_for_its_secret(
    tmp_path: Path,
) -> None:
    texts = {
        "FFFE20": "an ordinary text",
        "FFFE": " HF_TOKEN=abcdefgh",
        "61620063": " HF_TOKEN=abcdefgh",
        "4C445F58413D": "/opt/lib",
    }
    rows = ", ".join(
        f"({number}, CAST(X'{raw}' || '{text}' AS TEXT))"
        for number, (raw, text) in enumerate(texts.items())
    )
    path = made(
        tmp_path / "r.sqlite",
        STRINGS,
        f"INSERT INTO StringIds VALUES {rows}",
        "CREATE TABLE T (nameId, a TEXT)",
        "INSERT INTO T SELECT id, value FROM StringIds WHERE id < 3",
    )
    assert rewrite(path, Counter()) == {"StringIds": 1}
    kept = [
        b"\xff\xfe an ordinary text",
        b"\xff\xfe HF_TOKEN=(removed)",
        b"ab\0c HF_TOKEN=(removed)",
    ]
    assert every(path, "SELECT CAST(a AS BLOB) FROM T") == kept
    assert every(path, "SELECT CAST(value AS BLOB) FROM StringIds") == kept
    assert set(every(path, "SELECT typeof(a) FROM T")) == {"text"}


def test_an_export_whose_texts_are_utf_16_is_refused(tmp_path: Path) -> None:
    path = made(
        tmp_path / "r.sqlite",
        "PRAGMA encoding = 'UTF-16le'",
        STRINGS,
        "INSERT INTO StringIds VALUES (1, 'HF_TOKEN=abcdefgh')",
    )
    with pytest.raises(
        ReportError, match=r"its text encoding is UTF-16le, which nsys does not write"
    ):
        scrub(path, tmp_path / "copy.sqlite")
    assert [one.name for one in tmp_path.iterdir()] == ["r.sqlite"]


def test_triggers_go_whatever_they_are_called(tmp_path: Path) -> None:
    path = made(
        tmp_path / "r.sqlite",
        STRINGS,
        "INSERT INTO StringIds VALUES (1, 'first')",
        "CREATE TABLE Back (value)",
        'CREATE TRIGGER "a ""b" AFTER DELETE ON StringIds BEGIN INSERT INTO Back VALUES '
        "(OLD.value); END",
    )
    assert rewrite(path, Counter()) == {"StringIds": 1}
    assert every(path, "SELECT * FROM Back") == []
    assert every(path, "SELECT name FROM sqlite_master WHERE type = 'trigger'") == []


def test_an_environment_is_seen_among_the_strings_and_nowhere_else(tmp_path: Path) -> None:
    assert environment_in(with_environment(tmp_path / "r.sqlite"))
    assert not environment_in(scrub(tmp_path / "r.sqlite", tmp_path / "copy.sqlite").path)
    assert not environment_in(
        made(
            tmp_path / "none.sqlite", "CREATE TABLE T (value)", "INSERT INTO T VALUES ('PATH=/bin')"
        )
    )
    assert not environment_in(
        made(tmp_path / "empty.sqlite", STRINGS, "INSERT INTO StringIds VALUES (1, NULL), (2, '')")
    )
