"""rocprofv3's database: secrets stay out, cut files, and a real one read a second time with sqlite3
alone."""

from __future__ import annotations

import json
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


def test_the_real_database_agrees_with_its_own_rows(shared: Path) -> None:
    path = shared / "reports/rocm/rocprofv3/hgliu_ck_bmm_28_results.db"
    report = parsers.parse(path)
    kernels = list(report.kernels)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        names = dict(connection.execute("SELECT name, count(*) FROM kernels GROUP BY 1"))
        total, launches = connection.execute(
            "SELECT sum(duration), count(*) FROM kernels"
        ).fetchone()
        grids = connection.execute(
            "SELECT grid_x / workgroup_x, grid_y / workgroup_y FROM kernels ORDER BY id"
        ).fetchall()
        calls = dict(connection.execute("SELECT name, sum(end - start) FROM regions GROUP BY 1"))
        agents = connection.execute(
            "SELECT product_name, extdata FROM rocpd_info_agent WHERE type = 'GPU'"
        ).fetchall()
    assert (
        (len(kernels), sum(kernel.duration_ns or 0 for kernel in kernels))
        == (launches, total)
        == (151, 2604546)
    )
    assert {name: sum(kernel.name == name for kernel in kernels) for name in names} == names
    assert [(kernel.grid_x, kernel.grid_y) for kernel in kernels] == grids
    assert {one.name: one.cpu_ns for one in report.operations} == calls
    assert sum(one.calls for one in report.operations) == 629
    assert [(one.name, one.sm_count) for one in report.devices] == [
        (n, json.loads(e)["cu_count"]) for n, e in agents
    ]
