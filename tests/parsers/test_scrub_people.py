"""What a report says about its maker goes as well: home folders, hosts, users, and environments
wherever they stand."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers.scrub import rewrite, scrub
from perfctl.redact.people import is_environment

ENVIRONMENT = (
    "SHELL=/bin/bash\nPATH=/opt/private/bin:/bin\nHOME=/home/jdoe17\nUSER=jdoe17\n"
    "MY_OWN=private-life\n"
)
AS_JSON = (
    '{"PATH": "/opt/private/bin", "HOME": "/home/jdoe17", "USER": "jdoe17", "MY_OWN": '
    '"private-life"}'
)


def export(path: Path) -> Path:
    facts = {
        "EXPORT_HOST": "gpu-node17.cluster.example",
        "EXPORT_USER": "jdoe17",
        "EXPORT_PARAM_INPUT_PATH_ABS": "/home/jdoe17/net/r.nsys-rep",
        "EXPORT_SCHEMA_VERSION": "3.13.2",
    }
    capture = {
        "DEVICE_DISPLAY_NAME": "gpu-node17",
        "PROCESS_0:WORKING_DIR": "/scratch/jdoe17/net",
        "PROCESS_0:USER_NAME": "jdoe17",
        "RATE_HZ": "0",
        "PROCESS_0:ARGUMENT_0": "--password",
        "PROCESS_0:ARGUMENT_1": "maple-41",
    }
    strings = [
        "/home/jdoe17/net/train.py",
        "/scratch/jdoe17/data",
        "gpu-node17:4711",
        "gemm_jdoe17_kernel",
        ENVIRONMENT,
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, rows in (("META_DATA_EXPORT", facts), ("META_DATA_CAPTURE", capture)):
            connection.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows.items())
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.executemany(
            "INSERT INTO StringIds (value) VALUES (?)", [(text,) for text in strings]
        )
        connection.execute("CREATE TABLE T (nameId INTEGER)")
        connection.executemany(
            "INSERT INTO T VALUES (?)", [(number + 1,) for number in range(len(strings))]
        )
    return path


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_host_user_and_home_of_an_nsys_export_go_and_the_rest_of_a_path_stays(
    tmp_path: Path,
) -> None:
    done = scrub(export(tmp_path / "r.sqlite"), tmp_path / "copy.sqlite")
    assert rows(done.path, "SELECT name FROM META_DATA_EXPORT") == [("EXPORT_SCHEMA_VERSION",)]
    assert rows(done.path, "SELECT * FROM META_DATA_CAPTURE ORDER BY name") == [
        ("PROCESS_0:ARGUMENT_0", "--password"),
        ("PROCESS_0:ARGUMENT_1", "(removed)"),
        ("RATE_HZ", "0"),
    ]
    assert [value for (value,) in rows(done.path, "SELECT value FROM StringIds ORDER BY id")] == [
        "/home/(removed)/net/train.py",
        "/scratch/(removed)/data",
        "(removed):4711",
        "gemm_jdoe17_kernel",
        "SHELL=(removed)",
    ]
    assert done.found == {
        "an argument": 1,
        "the name of a home folder": 1,
        "the name of a host": 1,
        "the name of a user": 1,
    }
    raw = done.path.read_bytes()
    assert [
        word for word in (b"private-life", b"gpu-node17", b"/jdoe17", b"maple-41") if word in raw
    ] == []


@pytest.mark.parametrize("environment", [ENVIRONMENT, AS_JSON, ENVIRONMENT.replace("\n", "\0")])
def test_an_environment_goes_from_any_table_of_any_database(
    environment: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE rocpd_string_0 (id INTEGER PRIMARY KEY, string TEXT UNIQUE)"
        )
        connection.execute("INSERT INTO rocpd_string_0 VALUES (1, ?), (2, 'gemm')", (environment,))
    found: Counter[str] = Counter()
    rewrite(path, found)
    assert found == {"a process environment": 1}
    left = "{}" if environment.startswith("{") else "(removed)"
    assert rows(path, "SELECT string FROM rocpd_string_0 ORDER BY id") == [(left,), ("gemm",)]


def test_a_log_loses_the_names_of_home_folders(tmp_path: Path) -> None:
    path = tmp_path / "r.log"
    path.write_text(
        'File "/home/jdoe17/net/train.py", line 3\nC:\\Users\\Jane\\x and /Users/jane/x, /home/\n'
    )
    done = scrub(path, tmp_path / "copy.log")
    assert done.path.read_text() == (
        'File "/home/(removed)/net/train.py", line 3\nC:\\Users\\(removed)\\x and '
        "/Users/(removed)/x, /home/\n"
    )
    assert (done.names, done.found) == ((), {"the name of a home folder": 3})


@pytest.mark.parametrize(
    "text",
    [
        "PATH=/bin and HOME=/x",
        "void kernel<PATH, HOME, USER>(int)",
        "SET PATH: 1; PATH: 2; PATH: 3" * 3,
    ],
)
def test_a_text_that_only_speaks_of_variables_is_no_environment(text: str) -> None:
    assert not is_environment(text.encode())
