"""A store with one synthetic run whose names try to be formulas, terminal commands and markup."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

FORMULA = '=HYPERLINK("http://x.example";"click")'
ESCAPES = "gemm\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp"
MARKUP = "<script>alert('1')</script>"


def store(path: Path) -> Path:
    """Three kernels with hostile names (start known for all, duration for two), a copy, nested
    ranges, a gap."""
    from perfctl.orchestrator.store import database

    with database.open_store_for_writing(path):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO sweep VALUES (1, '@sweep', 'ingest', '2026-01-01T00:00:00Z', NULL, 'host')"
        )
        db.execute(
            "INSERT INTO run (id, sweep_id, profiler, workload, batch_size, mode, status, origin, "
            "ingested_at) VALUES (1, 1, 'nsys', 'net', 16, 'train', 'ok', 'synthetic', "
            "'2026-01-01T00:00:00Z')"
        )
        db.executemany(
            "INSERT INTO kernel_name VALUES (?, 1, ?, NULL, NULL)",
            enumerate((FORMULA, ESCAPES, MARKUP), 1),
        )
        db.execute("INSERT INTO kernel_layer VALUES (1, 1, 'conv1', 'forward', 'range')")
        launches = ((1, 1, 0, 1000, 500), (2, 2, 1, 1600, 0), (3, 3, 2, 2000, None))
        for number, name, launch, start, duration in launches:
            db.execute(
                "INSERT INTO kernel_launch (id, run_id, name_id, launch, layer_id, step, "
                "device_index, stream, grid_x, grid_y, grid_z, block_x, block_y, block_z, "
                "start_ns, duration_ns) VALUES (?, 1, ?, ?, 1, 0, 0, 7, 4, 2, 1, 128, 1, 1, ?, ?)",
                (number, name, launch, start, duration),
            )
        db.execute("INSERT INTO metric VALUES (1, 1, 'flop_count', NULL, NULL)")
        db.executemany(
            "INSERT INTO metric_value VALUES (?, ?, 1, ?, NULL)",
            ((1, 1, 0), (2, 2, None), (3, 3, 2.5)),
        )
        db.execute(
            "INSERT INTO copy VALUES (1, 'HtoD', 4096, 1200, 100, NULL, 0, 7, NULL, NULL, NULL)"
        )
        db.executemany(
            "INSERT INTO range (id, run_id, name, start_ns, duration_ns, thread, depth, kind, step)"
            " VALUES (?, 1, ?, ?, ?, 11, ?, 'push_pop', ?)",
            (
                (1, "outer", 900, 2000, 0, 0),
                (2, "inner", 1000, 300, 1, 0),
                (3, "later", 9000, 10, 0, 1),
            ),
        )
        db.execute("INSERT INTO gap VALUES (1, 'sample', 'not_collected', '-1+1|cmd', NULL)")
        db.execute("INSERT INTO summary VALUES (1, 'x', NULL, NULL, '-5')")
        db.execute("INSERT INTO environment VALUES (1, 'empty', '')")
    return path
