"""A synthetic store of many runs, or a dataset: ``python scripts/speed/make_many_runs.py SWEEPS
RUNS KERNELS PATH``

RUNS for each sweep, KERNELS for each run. A PATH that ends with ``.db`` is a store. Any other is a
folder: the dataset that ``perfctl export --dataset`` would make of such a store, where one sweep is
exported and its files repeated with other numbers. For measuring what reads a store
(``perfctl export --dataset``, ``perfctl query``), not what writes it. Runs alternate between nsys
and torch; durations are pseudo-random, 1 to 100 us.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

import pyarrow.compute as compute
import pyarrow.parquet as parquet

from perfctl.orchestrator.commands.export import export_dataset
from perfctl.orchestrator.report.files.tables import AT_ONCE
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import write_in_transaction

LAYERS = ("conv1", "conv2", "fc1", "fc2", "head")
FAMILIES = ("gemm", "conv", "elementwise", "reduction", None)


def make(sweeps: int, runs: int, kernels: int, store: Path) -> None:
    """Write it."""
    with database.open_store_for_writing(store) as connection:
        connection.execute(
            "CREATE TEMP TABLE n AS WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM "
            f"n WHERE i + 1 < {max(runs, kernels)}) SELECT i FROM n"
        )
        connection.execute(
            "INSERT INTO device (id, name, kind, sm_count) VALUES (1, 'Synthetic GPU', 'gpu', 100)"
        )
        for sweep in range(sweeps):
            with write_in_transaction(connection):
                _sweep(connection, sweep, runs, kernels)


def _sweep(connection: sqlite3.Connection, sweep: int, runs: int, kernels: int) -> None:
    first = sweep * runs + 1
    number, width = sweep + 1, len(LAYERS)
    connection.execute(
        f"INSERT INTO sweep (id, name, kind, created_at) VALUES ({number}, 'synthetic {number}', "
        "'sweep', '2026-01-01T00:00:00Z')"
    )
    connection.execute(
        "INSERT INTO run (id, sweep_id, profiler, workload, batch_size, mode, precision, "
        f"device_id, status, origin, ingested_at) SELECT {first} + i, {number}, CASE i % 2 WHEN 0 "
        "THEN 'nsys' ELSE 'torch' END, 'synthetic', 1 << (i % 10), 'train', 'fp32', 1, 'ok', "
        f"'synthetic', '2026-01-01T00:00:00Z' FROM n WHERE i < {runs} ORDER BY i"
    )
    mine = f"FROM run, n WHERE sweep_id = {number} AND i < {width} ORDER BY run.id, i"
    family = " ".join(f"WHEN {i} THEN '{name}'" for i, name in enumerate(FAMILIES) if name)
    layer = " ".join(f"WHEN {i} THEN '{name}'" for i, name in enumerate(LAYERS))
    connection.execute(
        "INSERT INTO kernel_name (id, run_id, name, short_name, family) SELECT (run.id - 1) * "
        f"{width} + i + 1, run.id, 'void synthetic_kernel_' || i || '<float, 128>(float*)', "
        f"'synthetic_kernel_' || i, CASE i {family} END {mine}"
    )
    connection.execute(
        "INSERT INTO kernel_layer (id, run_id, layer, direction, layer_source)"
        f" SELECT (run.id - 1) * {width} + i + 1, run.id, CASE i {layer} END, 'forward', 'range' "
        f"{mine}"
    )
    ids = f"(run.id - 1) * {width} + i % {width} + 1"
    connection.execute(
        "INSERT INTO kernel_launch (id, run_id, name_id, launch, layer_id, step, device_index, "
        "stream, grid_x, grid_y, grid_z, block_x, block_y, block_z, registers, start_ns, "
        f"duration_ns) SELECT (run.id - 1) * {kernels} + i + 1, run.id, {ids}, i, {ids}, i / 100, "
        "0, 7, 1 + i % 300, 1, 1, 128, 1, 1, 32 + i % 64, i * 120000, 1000 + (run.id * 7919 + i * "
        f"104729) % 99000 FROM run, n WHERE sweep_id = {number} AND i < {kernels} ORDER BY run.id, "
        "i"
    )


def make_dataset(sweeps: int, runs: int, kernels: int, folder: Path) -> None:
    """Export one sweep, then repeat its files for the others."""
    with tempfile.TemporaryDirectory() as temporary:
        make(1, runs, kernels, Path(temporary, "one.db"))
        export_dataset(folder, Path(temporary, "one.db"))
    steps = {
        ("run", "id"): runs,
        ("run", "sweep_id"): 1,
        ("sweep", "id"): 1,
        ("kernel", "id"): runs * kernels,
    }
    for file in [
        file
        for table in ("sweep", "run", "kernel")
        for file in sorted((folder / table).rglob("*.parquet"))
    ]:
        one, table = parquet.ParquetFile(file).read(), file.relative_to(folder).parts[0]
        for sweep in range(1, sweeps):
            more = one
            for place, name in enumerate(one.column_names):
                if step := steps.get((table, name), runs if name == "run_id" else 0):
                    more = more.set_column(
                        place, one.field(name), compute.add(one.column(name), sweep * step)
                    )
            target = Path(str(file).replace("sweep=1/", f"sweep={sweep + 1}/"))
            target = target if target != file else file.with_name(f"part-{sweep}.parquet")
            target.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(more, target, compression="zstd", row_group_size=AT_ONCE)


if __name__ == "__main__":
    path = Path(sys.argv[4])
    (make if path.suffix == ".db" else make_dataset)(
        int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), path
    )
