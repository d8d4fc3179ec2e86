"""Exports as a folder of Parquet or Arrow files hold the tables of the SQLite export. No public one was
available: these are synthetic, converted from made SQLite exports."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from functools import partial
from typing import Any

import pyarrow
import pytest
from pyarrow import feather, ipc, parquet

from perfctl.parsers import ReportError, find_report_paths, parse, sniff
from perfctl.parsers.nsys.parquet import load_into_sqlite
from tests.make.nsys_sqlite import NsysBuilder, training_step
from tests.make.stored import rows


def write_stream(table, path):
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, tuple[str, Callable[[Any, str], None]]] = {
    "parquet": (".parquet", parquet.write_table),
    "arrow file": (".arrow", feather.write_feather),
    "arrow stream": (".arrow", write_stream),
}


def convert(database, folder, form="parquet"):
    """Write each table of the database as nsys names it; columns declared INTEGER or TEXT."""
    suffix, write = WRITERS[form]
    folder.mkdir()
    with closing(sqlite3.connect(database)) as connection:
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            cursor = connection.execute(f'SELECT * FROM "{name}"')
            found = cursor.fetchall()
            columns = {
                column: pyarrow.array([row[index] for row in found])
                for index, (column, *_) in enumerate(cursor.description)
            }
            write(pyarrow.table(columns), str(folder / (name + suffix)))
    return folder


def content(report):
    """Everything but the path and the form, which name the file."""
    values = {one.name: getattr(report, one.name) for one in fields(report)}
    lists = ("kernels", "copies", "ranges", "samples", "op_calls")
    listed = {name: [*map(repr, values[name])] for name in lists}
    return {
        name: value for name, value in (values | listed).items() if name not in ("path", "form")
    }


@pytest.fixture
def database(tmp_path):
    return training_step(NsysBuilder()).write(tmp_path / "export.sqlite")


@pytest.mark.parametrize("form", WRITERS)
def test_a_folder_holds_the_same_run_as_the_sqlite_export(tmp_path, database, form):
    folder = convert(database, tmp_path / "export_pqtdir", form)
    report = parse(folder)
    assert content(report) == content(parse(database))
    assert [*report.kernels]
    assert report.form.startswith("nsys folder, exported: nsys SQLite")


def test_the_folder_is_one_report(tmp_path, database):
    folder = convert(database, tmp_path / "folder")
    parser = sniff(folder)
    assert parser is not None and parser.name == "nsys report"
    assert find_report_paths(tmp_path) == [database, folder]


def test_numbers_beyond_63_bits_are_as_in_sqlite(tmp_path, database):
    folder = convert(database, tmp_path / "folder")
    large = pyarrow.table({"id": pyarrow.array([2**64 - 1], pyarrow.uint64())})
    parquet.write_table(large, folder / "PROCESSES.parquet")
    load_into_sqlite(folder, tmp_path / "loaded.sqlite")
    assert rows(tmp_path / "loaded.sqlite", "SELECT id FROM PROCESSES") == [(-1,)]


def test_a_damaged_table_is_named(tmp_path, database):
    folder = convert(database, tmp_path / "folder")
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1")
    with pytest.raises(ReportError, match=r"NVTX_EVENTS\.parquet cannot be read"):
        parse(folder)


def test_without_pyarrow_the_extra_is_named(tmp_path, database, monkeypatch):
    folder = convert(database, tmp_path / "folder")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ReportError, match=r"pip install 'perfctl\[export\]'"):
        parse(folder)
