"""rocprofv3's database: secrets stay out, cut files, and a real one read a second time with sqlite3
alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator.commands.scrub import scrub
from perfctl.orchestrator.ingest.ingest import ingest
from perfctl.parsers import ReportError
from perfctl.parsers.rocm import rocpd
from tests.make.rocpd import made


def test_neither_environment_nor_command_nor_host_reaches_the_store(tmp_path: Path) -> None:
    path = made(tmp_path / "r.db")
    ingest(path, tmp_path / "store.db")
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("store.db*"))
    for secret in (b"hf_abcdefghij", b"HF_TOKEN", b"secret0123", b"node17.example.org"):
        assert secret in path.read_bytes()
        assert secret not in stored


def test_scrub_empties_the_environment_and_the_host_and_keeps_every_launch(tmp_path: Path) -> None:
    path = made(tmp_path / "r.db")
    done = scrub(path, tmp_path / "clean.db")
    left = done.path.read_bytes()
    for secret in (b"hf_abcdefghij", b"/usr/bin", b"secret0123", b"node17.example.org"):
        assert secret not in left
    assert list(parsers.parse(done.path).kernels) == list(parsers.parse(path).kernels)


@pytest.mark.parametrize("size", [5000, 9000, -4096])
def test_a_cut_off_database_is_one_clear_error(size: int, tmp_path: Path) -> None:
    data = made(tmp_path / "whole.db").read_bytes()
    path = tmp_path / "cut.db"
    path.write_bytes(data[:size])
    assert rocpd.sniff(path, data[:65536])
    with pytest.raises(ReportError, match="is truncated"):
        parsers.parse(path)


def test_a_table_that_no_list_knows_is_named(tmp_path: Path) -> None:
    path = made(tmp_path / "r.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE rocpd_novelty (a)")
        connection.execute("INSERT INTO rocpd_novelty VALUES (1)")
    warnings = [one.text for one in parsers.parse(path).diagnostics if one.severity == "warning"]
    assert warnings == ["not understood and left out: tables rocpd_novelty"]
