"""rocprofv3's database: synthetic ones by tests.make.rocpd, and a real one read a second time with
sqlite3 alone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator.actions.ingest import ingest
from perfctl.orchestrator.actions.scrub import scrub
from perfctl.parsers import ReportError
from perfctl.parsers.rocm import rocpd
from perfctl.records.report import Copy, Counter, Range
from tests.make.rocpd import made


def test_grids_count_work_groups_and_a_last_group_may_be_partly_filled(tmp_path: Path) -> None:
    kernels = list(parsers.parse(made(tmp_path / "r.db")).kernels)
    assert [(k.grid_x, k.grid_y, k.grid_z) for k in kernels] == [(-(-1000 // 256), 6 // 2, 1)] * 3
    assert [(k.block_x, k.block_y, k.block_z) for k in kernels] == [(256, 2, 1)] * 3
    assert [(k.launch, k.start_ns, k.duration_ns) for k in kernels] == [
        (n, 2000 + 100 * n, 40) for n in range(3)
    ]


def test_registers_lds_and_the_gpu_s_ordinal_are_those_of_the_launch(tmp_path: Path) -> None:
    kernel = next(iter(parsers.parse(made(tmp_path / "r.db")).kernels))
    assert (kernel.name, kernel.registers) == ("mul(float*)", 20 + 12)
    assert (kernel.static_shared_bytes, kernel.dynamic_shared_bytes) == (1024, 3072 - 1024)
    assert (kernel.device_index, kernel.stream) == (1, 3), "agent 6 is the second GPU"


def test_instances_of_a_counter_are_summed_and_kilobytes_are_of_1024_bytes(tmp_path: Path) -> None:
    counters = list(parsers.parse(made(tmp_path / "r.db", 2)).counters)
    assert counters == [
        Counter(0, "FETCH_SIZE", 2 * 2 * 1024, "byte"),
        Counter(0, "SQ_WAVES", 2 * 1, None),
        Counter(1, "FETCH_SIZE", 2 * 3 * 1024, "byte"),
        Counter(1, "SQ_WAVES", 2 * 2, None),
    ]


def test_copies_calls_and_ranges_are_read_and_allocations_are_named_as_left_out(
    tmp_path: Path,
) -> None:
    report = parsers.parse(made(tmp_path / "r.db"))
    assert list(report.copies) == [Copy("HtoD", 4096, 1200, 100, None, 1, 3)]
    assert [(one.name, one.category, one.calls, one.cpu_ns) for one in report.operations] == [
        ("hipLaunchKernel", "hip_api", 2, 100 + 50)
    ]
    assert list(report.ranges) == [Range(0, "step 1", "roctx", 1400, 500, 4711, None, None)]
    assert "2 rows of rocpd_memory_allocate" in next(
        g.reason for g in report.gaps if g.quantity == "rocpd_memory_allocate"
    )
    assert report.duration_ns == 9000 - 1000


def test_the_gpu_that_worked_comes_first_with_its_own_facts(tmp_path: Path) -> None:
    first, second = parsers.parse(made(tmp_path / "r.db")).devices
    assert (first.index, second.index) == (1, 0)
    assert (first.name, first.compute_capability, first.sm_count) == (
        "AMD Instinct MI300X",
        "gfx942",
        304,
    )
    assert (first.memory_bytes, first.clock_hz) == (192 << 30, 2_100_000_000)


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
    with pytest.raises(ReportError, match="is cut off"):
        parsers.parse(path)


def test_a_table_that_no_list_knows_is_named(tmp_path: Path) -> None:
    path = made(tmp_path / "r.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE rocpd_novelty (a)")
        connection.execute("INSERT INTO rocpd_novelty VALUES (1)")
    warnings = [one.text for one in parsers.parse(path).diagnostics if one.severity == "warning"]
    assert warnings == ["not understood and left out: tables rocpd_novelty"]


def test_a_database_of_missing_columns_gives_null_and_no_traceback(tmp_path: Path) -> None:
    path = made(tmp_path / "r.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "ALTER TABLE rocpd_info_kernel_symbol_0000_test DROP COLUMN arch_vgpr_count"
        )
        connection.execute("ALTER TABLE rocpd_info_agent_0000_test DROP COLUMN product_name")
    report = parsers.parse(path)
    assert next(iter(report.kernels)).registers is None
    assert report.devices[0].name is None


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
