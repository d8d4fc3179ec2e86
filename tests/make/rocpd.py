"""Small databases with the layout of rocprofv3's (schema 3); synthetic, every number made up."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

GUID = "_0000_test"
ENVIRONMENT = '{"PATH": "/usr/bin", "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz0123"}'
SCHEMA = """
CREATE TABLE rocpd_metadata{0} (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE rocpd_string{0} (id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE rocpd_info_node{0} (id INTEGER PRIMARY KEY, machine_id TEXT, hostname TEXT);
CREATE TABLE rocpd_info_process{0} (id INTEGER PRIMARY KEY, pid INT, start INT, "end" INT, command TEXT, environment TEXT);
CREATE TABLE rocpd_info_thread{0} (id INTEGER PRIMARY KEY, tid INT);
CREATE TABLE rocpd_info_agent{0} (id INTEGER PRIMARY KEY, type TEXT, type_index INT, name TEXT, product_name TEXT, extdata TEXT);
CREATE TABLE rocpd_info_kernel_symbol{0} (id INTEGER PRIMARY KEY, kernel_name TEXT, display_name TEXT, group_segment_size INT,
    arch_vgpr_count INT, accum_vgpr_count INT);
CREATE TABLE rocpd_info_pmc{0} (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE rocpd_event{0} (id INTEGER PRIMARY KEY, category_id INT, extdata TEXT);
CREATE TABLE rocpd_pmc_event{0} (id INTEGER PRIMARY KEY, event_id INT, pmc_id INT, value REAL);
CREATE TABLE rocpd_region{0} (id INTEGER PRIMARY KEY, tid INT, start INT, "end" INT, name_id INT, event_id INT);
CREATE TABLE rocpd_memory_copy{0} (id INTEGER PRIMARY KEY, start INT, "end" INT, name_id INT, dst_agent_id INT,
    src_agent_id INT, size INT, stream_id INT);
CREATE TABLE rocpd_memory_allocate{0} (id INTEGER PRIMARY KEY, size INT);
CREATE TABLE rocpd_kernel_dispatch{0} (id INTEGER PRIMARY KEY, agent_id INT, kernel_id INT, stream_id INT, start INT,
    "end" INT, group_segment_size INT, workgroup_size_x INT, workgroup_size_y INT, workgroup_size_z INT, grid_size_x INT,
    grid_size_y INT, grid_size_z INT, event_id INT);
CREATE VIEW top_kernels AS SELECT 1 AS total_duration;
"""
AGENT = {
    "cu_count": 304,
    "max_engine_clk_fcompute": 2100,
    "mem_banks": [{"heap_type": 1, "size_in_bytes": 192 << 30}],
}
STRINGS = (
    "HIP_RUNTIME_API_EXT",
    "hipLaunchKernel",
    "MARKER_CORE_API",
    "roctxRangePushA",
    "MEMORY_COPY_HOST_TO_DEVICE",
)


def made(path: Path, launches: int = 3) -> Path:
    """``launches`` of one kernel 100 ns apart (grid 1000 x 6 work-items in groups of 256 x 2, 40 ns
    each) with two counters of two instances each, one copy, one range, and an environment with
    a secret."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(SCHEMA.format(GUID))

        def add(table: str, *rows: tuple[object, ...]) -> None:
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO rocpd_{table}{GUID} VALUES ({marks})", rows)

        add("metadata", (1, "schema_version", "3"))
        add("string", *enumerate(STRINGS, 1))
        add("info_node", (1, "0123", "node17.example.org"))
        add("info_process", (1, 4711, 1000, 9000, "./train --token=secret0123", ENVIRONMENT))
        add("info_thread", (1, 4711))
        add(
            "info_agent",
            (0, "CPU", 0, "a CPU", "a CPU", "{}"),
            (5, "GPU", 0, "gfx942", "AMD Instinct MI300X", json.dumps(AGENT)),
            (6, "GPU", 1, "gfx942", "AMD Instinct MI300X", json.dumps(AGENT)),
        )
        add("info_kernel_symbol", (7, "mul.kd", "mul(float*)", 1024, 20, 12))
        add("info_pmc", (1, "SQ_WAVES"), (2, "FETCH_SIZE"))
        add(
            "event",
            *((10 + n, None, "{}") for n in range(launches)),
            (1, 1, "{}"),
            (2, 3, '{"message": "step 1"}'),
        )
        add(
            "pmc_event",
            *(
                (None, 10 + n, pmc, n + pmc)
                for n in range(launches)
                for pmc in (1, 2)
                for _ in "two"[:2]
            ),
        )
        add("region", (1, 1, 1500, 1600, 2, 1), (2, 1, 1700, 1750, 2, 1), (3, 1, 1400, 1900, 4, 2))
        add("memory_copy", (1, 1200, 1300, 5, 6, 0, 4096, 3))
        add("memory_allocate", (1, 64), (2, 128))
        add(
            "kernel_dispatch",
            *(
                (
                    n + 1,
                    6,
                    7,
                    3,
                    2000 + 100 * n,
                    2040 + 100 * n,
                    3072,
                    256,
                    2,
                    1,
                    1000,
                    6,
                    1,
                    10 + n,
                )
                for n in range(launches)
            ),
        )
    return path
