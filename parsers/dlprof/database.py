"""DLProf's own database, ``dlprof_dldb.sqlite`` (1.8.0 was seen).

It has the figures of the CSV reports, unrounded, and also copies, device memory and CUDA calls. Its
tables are read and joined here; its views, which join the same names, are not used, since a view in
somebody else's file is a program. Where the database was aggregated several times, the last
aggregation counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from perfctl.parsers.common.cupti import COPY_KINDS
from perfctl.parsers.common.doubts import newer, not_understood, others
from perfctl.parsers.common.sqlite import Database, check_whole, connect, integer, opened
from perfctl.parsers.common.sqlite_checks import check
from perfctl.parsers.common.tables import Column, read_selected, read_text
from perfctl.parsers.dlprof import records as dlprof_records
from perfctl.parsers.dlprof.records import make_kernel, make_operations
from perfctl.parsers.dlprof.tables import KNOWN, environment_of, figure, version_of
from perfctl.records.errors import ReportError, readable
from perfctl.records.report import (
    Copy,
    Device,
    Diagnostic,
    Gap,
    Kernel,
    Operation,
    Report,
    Step,
    Summary,
)
from perfctl.records.sqlite_header import is_sqlite

TOOL = "dlprof"
KERNEL = "read_only_kernels"
MEMCPY = "read_only_memcpys"
MEMSET = "read_only_memsets"
OP = "read_only_ops"
_MARKERS = {OP, KERNEL, "dictionary"}
_ALWAYS: dict[str, tuple[str, ...]] = {
    KERNEL: (
        "device_id",
        "read_only_ops_id",
        "name_id",
        "long_name_id",
        "gpu_start",
        "gpu_stop",
        "grid_id",
        "block_id",
    ),
    OP: ("id", "op_id", "op_name", "op_type_id", "direction_id"),
    "dictionary": ("id", "string"),
    "read_only_grid_block": ("id", "x", "y", "z"),
    MEMCPY: ("copy_kind", "num_bytes", "gpu_start", "gpu_stop", "device_id"),
    MEMSET: ("num_bytes", "gpu_start", "gpu_stop", "device_id"),
    "read_only_gpu_infos": (
        "device_id",
        "gpu_name",
        "compute_capability_major",
        "compute_capability_minor",
        "sm_count",
    ),
    "kernel_iteration_node": ("aggr_id", "read_only_kernel_id", "iter_value"),
    "iteration_list": ("aggr_id", "iter_value", "start_time", "stop_time"),
}
"""Tables and columns that DLProf always writes, with rows or without."""
_READ: dict[str, tuple[str, ...]] = {
    **_ALWAYS,
    KERNEL: ("id", "uses_tc", *_ALWAYS[KERNEL]),
    "op_nodes": ("id", "aggr_id", "read_only_ops_id", "node_time_metrics_id", "num_calls"),
    "node_time_metrics": ("id", "cpu_time_metric_id", "gpu_time_metric_id"),
    "metric": ("id", "sum"),
    "category_summary": ("id", "gpu_time", "cpu_time", "count"),
    "model_summary": ("aggr_id", "domain_id", *KNOWN["model"], *KNOWN["ops"]),
    "kernel_summary_metrics": (
        "aggr_id",
        "domain_id",
        "kernels_total_id",
        "kernels_using_tc_id",
        "kernels_non_tc_id",
    ),
    "memory_summary_metrics": ("aggr_id", "domain_id", "memory_time_id"),
    "read_only_domains": ("id", "domain_name_id"),
    "read_only_cuda_calls": ("name_id", "api_start", "api_stop"),
    "read_only_cuda_syncs": ("name_id", "api_start", "api_stop"),
    "gpu_memories": ("used", "total"),
    "read_only_system_config": tuple(KNOWN["config"]),
    "read_only_model_config": tuple(KNOWN["settings"]),
    "db_version": ("current_version",),
    "expert_systems_feedback": ("aggr_id", "problem", "recommendation"),
}
"""All tables and columns that are read."""
NAMELESS = "(no name in the database)"
_AGAIN = "Copy it again, or let dlprof make it again (dlprof --force=true ...)"


def _read_number(value: object) -> int | None:
    return value if isinstance(value, int) else None


_LAUNCH = (
    *(Column(name, read=read_text) for name in ("op", "direction", "short", "long")),
    *(Column(name, read=_read_number) for name in ("step", "device", "start", "stop")),
    *(Column(name, read=_read_number) for name in dlprof_records.SIZES),
)
_OPERATION = (
    Column("op", read=lambda name: read_text(name) or NAMELESS),
    Column("type", read=read_text),
    Column("direction", read=read_text),
    Column("calls", read=_read_number),
    Column("cpu", "ns", read=_read_number),
    Column("gpu", "ns", read=_read_number),
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is an SQLite file with DLProf's tables; a damaged one is recognised by
    table names in its head."""
    if not is_sqlite(head):
        return False
    try:
        with closing(connect(path)) as connection:
            rows = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
    except (sqlite3.Error, OSError, UnicodeError):
        # a message about a damaged schema need not be UTF-8
        return OP.encode() in head and b"TABLE dictionary" in head
    return {name for (name,) in rows} >= _MARKERS


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off or damaged, or lacks the tables that all
    others refer to."""
    with readable(path, TOOL):
        check_whole(path, TOOL, _AGAIN)
        with opened(path, TOOL, _AGAIN) as database:
            if not set(database.tables) >= _MARKERS:
                raise ReportError(path, TOOL, "DLProf's tables are missing", _AGAIN)
            return _read_report(path, database)


def _read_report(path: Path, database: Database) -> Report:
    unreadable = tuple(check(database, _READ, _ALWAYS))
    cells = _read_first_row(database, "read_only_system_config")
    config = {KNOWN["config"][name]: text for name, text in cells.items()}
    version, tool_version = _read_first_row(database, "db_version"), version_of(config)
    devices, device_gaps = _read_devices(database, config)
    kernels, figures = list(_read_kernels(database)), list(_read_model(database))
    wall = next((entry.value for entry in figures if entry.name == "Wall Clock Time"), None)
    advice = database.connection.execute(_select_last("expert_systems_feedback", database))
    return Report(
        tool=TOOL,
        path=path,
        form=", version ".join(("DLProf database", *version.values())),
        tool_version=tool_version,
        devices=devices,
        environment=environment_of(config) | _read_first_row(database, "read_only_model_config"),
        kernels=kernels,
        copies=list(_read_copies(database)),
        operations=_read_operations(database),
        steps=tuple(_read_steps(database)),
        summaries=(
            *figures,
            *_read_tensor_core_use(database),
            *_read_calls(database),
            *_read_memory(database),
        ),
        gaps=(*unreadable, *device_gaps, *_find_gaps(database, kernels)),
        diagnostics=(
            *dlprof_records.feedback((str(problem), str(text)) for _, problem, text in advice),
            *_find_unknown(database),
            *newer("DLProf", tool_version, dlprof_records.NEWEST),
        ),
        duration_ns=None if wall is None else int(wall),
    )


def _select(table: str, database: Database) -> str:
    """Return SQL of a table with the columns that are read: NULL for those that this version
    lacks, and no row where it lacks the table."""
    known = database.tables.get(table, frozenset())
    columns = [name if name in known else f"NULL AS {name}" for name in _READ[table]]
    source = f"FROM {table}" if known else "WHERE FALSE"
    return f"(SELECT {', '.join(columns)} {source})"


def _select_last(table: str, database: Database) -> str:
    """Return SQL of the rows of a table's last aggregation."""
    rows = _select(table, database)
    return f"SELECT * FROM {rows} WHERE aggr_id IS (SELECT max(aggr_id) FROM {rows})"


def _select_text(column: str) -> str:
    """Return SQL of the text with that number."""
    return f"(SELECT string FROM dictionary WHERE id = {column})"


def _read_rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    """Return all rows of a small table, with the columns that are read."""
    return database.rows(table, *_READ[table])


def _read_first_row(database: Database, table: str) -> dict[str, str]:
    """Return the filled cells of a table's first row, as text."""
    rows = _read_rows(database, table)
    cells = zip(_READ[table], rows[0], strict=True) if rows else ()
    return {name: str(value) for name, value in cells if value not in (None, "")}


def _read_model(database: Database) -> Iterator[Summary]:
    """Yield the figures of the model, of each of its domains where it has several."""
    sums: dict[object, list[Any]] = {
        number: cells for number, *cells in _read_rows(database, "category_summary")
    }
    models = database.connection.execute(
        f"SELECT {_select_text('d.domain_name_id')}, k.kernels_total_id, k.kernels_using_tc_id, "
        "c.memory_time_id, k.kernels_non_tc_id, m.* "
        f"FROM ({_select_last('model_summary', database)}) m "
        f"LEFT JOIN {_select('kernel_summary_metrics', database)} k "
        "ON k.aggr_id IS m.aggr_id AND k.domain_id IS m.domain_id "
        f"LEFT JOIN {_select('memory_summary_metrics', database)} c "
        "ON c.aggr_id IS m.aggr_id AND c.domain_id IS m.domain_id "
        f"LEFT JOIN {_select('read_only_domains', database)} d ON d.id = m.domain_id"
    ).fetchall()
    for name, total, using_tc, copies, rest, _, domain, *cells in models:
        prefix = f"{name or f'domain {domain}'}: " if len(models) > 1 else ""
        values = dict(zip((*KNOWN["model"], *KNOWN["ops"]), cells, strict=True))
        for column, (label, unit) in KNOWN["model"].items():
            yield figure(prefix + label, values[column], unit)
        for column, label in KNOWN["ops"].items():
            category = sums.get(values[column], ())
            yield from _name_figures(f"{prefix}All Ops: {label}", "# Ops", category)
        # the report's first line is the table's total and the copies together (1.8.0: 308960 +
        # 43040 = 352000 ns)
        pairs = zip(sums.get(total, ()), sums.get(copies, ()), strict=False)
        both = [
            whole + copied if isinstance(whole, int) and isinstance(copied, int) else None
            for whole, copied in pairs
        ]
        for label, category in (
            ("All kernels", both),
            ("Kernels using TC", sums.get(using_tc, ())),
            ("Memory", sums.get(copies, ())),
            ("All other kernels", sums.get(rest, ())),
        ):
            yield from _name_figures(f"{prefix}All Kernels: {label}", "# Kernels", category)


def _name_figures(label: str, count_name: str, figures: Iterable[object]) -> list[Summary]:
    """Return the figures of a category: time on the GPU and on the CPU, and the count."""
    names = (("GPU Time", "ns"), ("CPU Time", "ns"), (count_name, None))
    return [
        figure(f"{label}: {name}", value, unit)
        for (name, unit), value in zip(names, figures, strict=False)
    ]


def _read_tensor_core_use(database: Database) -> list[Summary]:
    """Return the share of each op's kernel time that used tensor cores, as in the tensor core
    report."""
    rows = database.connection.execute(
        "SELECT o.op_id, sum(CASE WHEN k.uses_tc THEN k.gpu_stop - k.gpu_start WHEN NOT k.uses_tc "
        f"THEN 0 END), sum(k.gpu_stop - k.gpu_start) FROM {_select(KERNEL, database)} k "
        f"JOIN {_select(OP, database)} o ON o.id = k.read_only_ops_id GROUP BY o.id ORDER BY o.id"
    )
    return [
        figure(f"TC Utilization: {op}", 100 * used / total, "%")
        for op, used, total in rows
        if op and total and used is not None
    ]


def _read_calls(database: Database) -> Iterator[Summary]:
    """Yield count and host time of CUDA calls that launched nothing, by name."""
    for table, word in (
        ("read_only_cuda_calls", "CUDA call"),
        ("read_only_cuda_syncs", "CUDA synchronisation"),
    ):
        rows = database.connection.execute(
            f"SELECT coalesce({_select_text('name_id')}, 'without a name'), count(*), "
            f"sum({integer('api_stop')} - {integer('api_start')}) FROM {_select(table, database)} "
            "GROUP BY name_id ORDER BY 1"
        )
        for name, count, time in rows:
            yield figure(f"{word}: {name}: Calls", count, None)
            yield figure(f"{word}: {name}: CPU Time", time, "ns")


def _read_memory(database: Database) -> Iterator[Summary]:
    rows = _read_rows(database, "gpu_memories")
    for index, (used, _) in enumerate(rows):
        prefix = f"GPU {index}: " if len(rows) > 1 else "GPU "
        yield figure(f"{prefix}Memory Used", used, "byte")


def _read_devices(
    database: Database, config: dict[str, str]
) -> tuple[tuple[Device, ...], list[Gap]]:
    """Return the GPUs by CUDA ordinal, then the CPU. Memory sizes do not name their device, so
    they are used only where all are equal."""
    rows = _read_rows(database, "read_only_gpu_infos")
    totals = [_read_number(total) for _, total in _read_rows(database, "gpu_memories")]
    size = totals[0] if len(set(totals)) == 1 and len(totals) == len(rows) else None
    gaps = []
    if size is None and rows:
        why = ("not_available", "the table gpu_memories is empty")
        if totals:
            why = ("ambiguous", "gpu_memories does not say which size belongs to which device")
        gaps.append(Gap("device.memory_bytes", *why))
    devices = [
        Device(
            name=read_text(name),
            kind="gpu",
            index=number if isinstance(number, int) else order,
            compute_capability=None if major is None or minor is None else f"{major}.{minor}",
            sm_count=_read_number(count) or None,
            memory_bytes=size,
            driver_version=config.get("gpu driver version"),
        )
        for order, (number, name, major, minor, count) in enumerate(rows)
    ]
    if "cpu model" in config:
        devices.append(Device(config["cpu model"], "cpu"))
    return tuple(devices), gaps


def _read_kernels(database: Database) -> Iterator[Kernel]:
    nodes = _select_last("kernel_iteration_node", database)
    rows = database.connection.execute(
        f"SELECT o.op_name, {_select_text('o.direction_id')}, {_select_text('k.name_id')}, "
        f"{_select_text('k.long_name_id')}, i.step, k.device_id, k.gpu_start, k.gpu_stop, "
        f"g.x, g.y, g.z, b.x, b.y, b.z FROM {_select(KERNEL, database)} k "
        f"LEFT JOIN {_select(OP, database)} o ON o.id = k.read_only_ops_id "
        f"LEFT JOIN {_select('read_only_grid_block', database)} g ON g.id = k.grid_id "
        f"LEFT JOIN {_select('read_only_grid_block', database)} b ON b.id = k.block_id "
        "LEFT JOIN (SELECT read_only_kernel_id AS kernel, min(iter_value) AS step "
        f"FROM ({nodes}) GROUP BY 1) i ON i.kernel = k.id ORDER BY k.id"
    )
    for launch, row in enumerate(rows):
        fields = read_selected(_LAUNCH, row)
        fields["duration"] = _subtract(fields["stop"], fields["start"])
        yield make_kernel(launch, fields, NAMELESS)


def _read_copies(database: Database) -> Iterator[Copy]:
    for table in (MEMCPY, MEMSET):
        for kind, size, start, stop, device in database.rows(table, *_READ[MEMCPY]):
            word = "memset" if table == MEMSET else COPY_KINDS.get(kind, str(kind))
            numbers = (_read_number(size), _read_number(start), _subtract(stop, start))
            yield Copy(word, *numbers, device_index=_read_number(device))


def _read_operations(database: Database) -> list[Operation]:
    """Return one record per op of the model, summed over its calls, from the last aggregation."""
    if not {"node_time_metrics", "metric"} <= database.tables.keys():
        return []
    rows = database.connection.execute(
        f"SELECT o.op_name, {_select_text('o.op_type_id')}, {_select_text('o.direction_id')}, "
        f"n.num_calls, c.sum, g.sum FROM ({_select_last('op_nodes', database)}) n "
        f"LEFT JOIN {_select(OP, database)} o ON o.id = n.read_only_ops_id "
        f"LEFT JOIN {_select('node_time_metrics', database)} t ON t.id = n.node_time_metrics_id "
        f"LEFT JOIN {_select('metric', database)} c ON c.id = t.cpu_time_metric_id "
        f"LEFT JOIN {_select('metric', database)} g ON g.id = t.gpu_time_metric_id ORDER BY n.id"
    )
    return make_operations(read_selected(_OPERATION, row) for row in rows)


def _read_steps(database: Database) -> Iterator[Step]:
    """Yield the iterations of the last aggregation, whether aggregated or not."""
    for _, number, start, stop in database.connection.execute(
        _select_last("iteration_list", database)
    ):
        if isinstance(number, int):
            yield Step(number, "step", _read_number(start), _subtract(stop, start))


def _find_gaps(database: Database, kernels: list[Kernel]) -> Iterator[Gap]:
    yield from dlprof_records.never(
        "DLProf's database has no streams, registers or shared memory of kernels"
    )
    if not kernels:
        reason = "no kernel ran while DLProf recorded, or nsys could not trace CUDA"
        yield Gap("kernel", "not_collected", reason)
    for table, quantity in ((MEMCPY, "copy"), ("op_nodes", "operation")):
        if table not in database.tables:
            yield Gap(quantity, "not_available", f"the database has no table {table}")
    yield from dlprof_records.layer_gap(kernels)
    yield from dlprof_records.operation_gaps()
    if outside := sum(kernel.step is None for kernel in kernels):
        reason = (
            f"{outside} of {len(kernels)} launches are outside the iterations that DLProf "
            "aggregated"
        )
        yield Gap("kernel.step", "not_collected", reason)


def _find_unknown(database: Database) -> tuple[Diagnostic, ...]:
    """Return the tables and columns that hold data and are in no list."""
    known: dict[str, list[str]] = KNOWN["tables"]
    tables = others(database.tables, known, KNOWN["other_tables"])
    columns = [
        f"{table}.{name}"
        for table, names in known.items()
        for name in others(sorted(database.tables.get(table, ())), names)
        if database.holds(table, name)
    ]
    return not_understood(
        {"tables": [name for name in tables if database.holds(name)], "columns": columns}
    )


def _subtract(stop: object, start: object) -> int | None:
    """Return a duration; None also where stop is before start: DLProf writes 0 for unknown
    times."""
    if isinstance(start, int) and isinstance(stop, int) and stop >= start and stop:
        return stop - start
    return None
