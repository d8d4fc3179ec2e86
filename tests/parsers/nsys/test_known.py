"""What an nsys export holds that no list has, told from what the lists know and leave out."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.nsys.gaps import find_unknown

FIRST = "not understood and left out: "


def said(
    *tables: str, schema: str | None = "3.11.1", version: str | None = "2024.2.3.38"
) -> list[tuple[str, str]]:
    """(severity, text) about an export with these tables, each with one row of ones; "-" before
    those without a row."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE META_DATA_EXPORT (name, value)")
        for name, value in (("EXPORT_SCHEMA_VERSION", schema), ("EXPORT_PRODUCT_VERSION", version)):
            if value is not None:
                connection.execute("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", (name, value))
        for table in tables:
            name, _, columns = table.lstrip("-").partition(" ")
            columns = columns or "start"
            connection.execute(f"CREATE TABLE {name} ({columns})")
            if not table.startswith("-"):
                connection.execute(
                    f"INSERT INTO {name} VALUES ({', '.join('1' for _ in columns.split(','))})"
                )
        return [(one.severity, one.text) for one in find_unknown(Database(connection))]


@pytest.mark.parametrize(
    "table",
    [
        "CUDA_GRAPH_EVENTS",
        "SCHED_EVENTS",
        "estEnd",
        "ENUM_NEW",
        "TARGET_INFO_NEW",
        "MPI_NEW",
        "IB_NEW",
        "StringIds id",
    ],
)
def test_tables_known_by_name_or_by_their_beginning_are_passed_over_in_silence(table: str) -> None:
    assert said(table) == []


def test_tables_of_no_list_are_named_where_they_hold_a_row() -> None:
    tables = ("NEW_ENUM_", "-EMPTY_EVENTS", "OSRT_API", "TILES", '"odd""-\'name"')
    assert said(*tables) == [("warning", f"{FIRST}tables NEW_ENUM_, TILES, odd\"-'name")]
    assert said("-NEW_EVENTS", "-TILES") == []


def test_columns_of_no_list_are_named_in_order_and_only_of_tables_that_are_read() -> None:
    assert said(
        "CUPTI_ACTIVITY_KIND_MEMSET start, tile, value, heat",
        "NVTX_EVENTS start, end, mood",
        "-CUPTI_ACTIVITY_KIND_MEMCPY start, pace",
        "SCHED_EVENTS start, cpu",
    ) == [
        (
            "warning",
            (
                f"{FIRST}columns CUPTI_ACTIVITY_KIND_MEMSET.heat, CUPTI_ACTIVITY_KIND_MEMSET.tile, "
                "NVTX_EVENTS.mood"
            ),
        )
    ]


@pytest.mark.parametrize(
    "schema", ["1.0", "2.9.1", "3.0", "3.24", "3.24.14", "3.9.9", "odd", "", None]
)
def test_schemas_that_were_seen_and_those_that_are_no_numbers_need_no_word(
    schema: str | None,
) -> None:
    assert said(schema=schema) == []


@pytest.mark.parametrize("schema", ["4.0.1", "10.2", "0.9", "33.1"])
def test_a_schema_of_another_layout_is_a_warning_and_nothing_else(schema: str) -> None:
    assert said(schema=schema) == [("warning", f"{FIRST}schema version {schema}")]
    assert said("TILES", schema=schema) == [
        ("warning", f"{FIRST}schema version {schema}; tables TILES")
    ]


@pytest.mark.parametrize(
    ("version", "who"), [("2027.1.1.5", "nsys 2027.1.1.5, schema"), (None, "nsys schema")]
)
def test_a_later_schema_of_a_known_layout_is_a_note(version: str | None, who: str) -> None:
    note = (
        "info",
        f"{who} 3.25.0 is newer than the newest tested version (3.24): perfctl read all known parts",
    )
    assert said(schema="3.25.0", version=version) == [note]
    assert said("TILES", schema="3.25.0", version=version) == [
        ("warning", f"{FIRST}tables TILES"),
        note,
    ]
