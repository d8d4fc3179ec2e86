"""DLProf's own database, ``dlprof_dldb.sqlite`` (1.8.0 was seen).

It has the figures of the CSV reports, unrounded, and also copies, device memory and CUDA calls. Its
tables are read and joined here; its views, which join the same names, are not used, since a view in
somebody else's file is a program. Where the database was aggregated several times, the last
aggregation counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfctl.parsers.dlprof import records as dlprof_records
from perfctl.parsers.dlprof.records import make_kernel, make_operations
from perfctl.parsers.dlprof.tables import KNOWN, environment_of, figure, version_of
from perfctl.parsers.text.cupti import COPY_KINDS
from perfctl.parsers.text.doubts import newer, not_understood, others
from perfctl.parsers.text.sqlite import Database, check_whole, connect, integer, opened
from perfctl.parsers.text.sqlite_checks import check
from perfctl.parsers.text.tables import Column, read_selected, read_text, sql_columns
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
_READ = (
    KERNEL,
    OP,
    MEMCPY,
    MEMSET,
    "dictionary",
    "read_only_grid_block",
    "read_only_gpu_infos",
    "kernel_iteration_node",
    "iteration_list",
    "op_nodes",
    "node_time_metrics",
    "metric",
    "category_summary",
    "model_summary",
    "kernel_summary_metrics",
    "memory_summary_metrics",
    "read_only_domains",
    "read_only_cuda_calls",
    "read_only_cuda_syncs",
    "gpu_memories",
    "read_only_system_config",
    "read_only_model_config",
    "db_version",
    "expert_systems_feedback",
)
"""DLProf numbers the rows of each from 1 on."""
_ALWAYS = {
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
"""Tables and columns that are read; DLProf writes all of them, with rows or without."""
NAMELESS = "(no name in the database)"
_AGAIN = "Copy it again, or let dlprof make it again (dlprof --force=true ...)"


def _read_number(value: object) -> int | None:
    return value if isinstance(value, int) else None


_OPERATION = (
    Column("op", read=lambda name: read_text(name) or NAMELESS),
    Column("type", read=read_text),
    Column("direction", read=read_text),
    Column("calls", read=_read_number),
    Column("cpu", "ns", read=_read_number),
    Column("gpu", "ns", read=_read_number),
)


def summary_facts(path: Path, database: Database) -> Report:
    """A Report without launches, copies and operations. Raises sqlite3.Error when the database
    is damaged."""
    labels, figures = KNOWN["config"], KNOWN["model"]
    found = _first(database, "read_only_system_config", tuple(labels))
    config = {label: found[name] for name, label in labels.items() if name in found}
    version = _first(database, "db_version", ("current_version",)).get("current_version")
    names = ("aggr_id", "domain_id", *figures, *KNOWN["ops"])
    model = [
        dict(zip(names, row, strict=True))
        for row in _last_aggregation(database.rows("model_summary", *names))
    ]
    devices, gaps = _devices(database, config)
    summaries = [entry for row in model for entry in _model_figures(database, row, len(model) > 1)]
    wall = next((entry.value for entry in summaries if entry.name == "Wall Clock Time"), None)
    advice = _last_aggregation(
        database.rows("expert_systems_feedback", "aggr_id", "problem", "recommendation")
    )
    return Report(
        tool=TOOL,
        path=path,
        form=f"DLProf database, version {version}" if version else "DLProf database",
        tool_version=version_of(config),
        devices=devices,
        environment=environment_of(config)
        | _first(database, "read_only_model_config", tuple(KNOWN["settings"])),
        summaries=(*summaries, *_tensor_core(database), *_calls(database), *_memory(database)),
        gaps=tuple(gaps),
        diagnostics=tuple(
            dlprof_records.feedback((str(problem), str(do)) for _, problem, do in advice)
        ),
        duration_ns=None if wall is None else int(wall),
    )


def _first(database: Database, table: str, columns: tuple[str, ...]) -> dict[str, str]:
    """The filled cells of a table's first row, as text."""
    rows = database.rows(table, *columns)
    cells = zip(columns, rows[0], strict=True) if rows else ()
    return {name: str(value) for name, value in cells if value not in (None, "")}


def _last_aggregation(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Those of the rows whose first cell is the highest number; all where none is one."""
    last = max((row[0] for row in rows if isinstance(row[0], int)), default=None)
    return [row for row in rows if row[0] == last]


def _model_figures(database: Database, row: dict[str, object], several: bool) -> list[Summary]:
    prefix = f"{_domain(database, row['domain_id'])}: " if several else ""
    found = [
        figure(prefix + name, row[column], unit) for column, (name, unit) in KNOWN["model"].items()
    ]
    for column, label in KNOWN["ops"].items():
        found += _category(database, f"{prefix}All Ops: {label}", row[column], "# Ops")
    columns = ("kernels_total_id", "kernels_using_tc_id", "kernels_non_tc_id")
    total, using_tc, others = _of_domain(database, "kernel_summary_metrics", row, columns)
    (memory,) = _of_domain(database, "memory_summary_metrics", row, ("memory_time_id",))
    # the report's first line is the table's total and the copies together (1.8.0: 308960 + 43040 =
    # 352000 ns)
    both = [
        _category(database, f"{prefix}All Kernels: All kernels", n, "# Kernels")
        for n in (total, memory)
    ]
    found += [
        Summary(one.name, one.value + two.value, one.unit)
        for one, two in zip(*both, strict=False)
        if one.value is not None and two.value is not None
    ]
    for label, number in (
        ("Kernels using TC", using_tc),
        ("Memory", memory),
        ("All other kernels", others),
    ):
        found += _category(database, f"{prefix}All Kernels: {label}", number, "# Kernels")
    return found


def _of_domain(
    database: Database, table: str, row: dict[str, object], columns: tuple[str, ...]
) -> tuple[object, ...]:
    rows = database.rows(table, "aggr_id", "domain_id", *columns)
    return next(
        (one[2:] for one in rows if one[:2] == (row["aggr_id"], row["domain_id"])),
        (None,) * len(columns),
    )


def _category(database: Database, label: str, number: object, count_name: str) -> list[Summary]:
    for key, gpu_ns, cpu_ns, count in database.rows(
        "category_summary", "id", "gpu_time", "cpu_time", "count"
    ):
        if key == number:
            figures = (
                ("GPU Time", gpu_ns, "ns"),
                ("CPU Time", cpu_ns, "ns"),
                (count_name, count, None),
            )
            return [figure(f"{label}: {name}", value, unit) for name, value, unit in figures]
    return []


def _domain(database: Database, number: object) -> str:
    words = [
        word
        for key, word in database.rows("read_only_domains", "id", "domain_name_id")
        if key == number
    ]
    query = "SELECT string FROM dictionary WHERE id = ?"
    found = database.connection.execute(query, words[:1]).fetchone() if words else None
    return str(found[0]) if found else f"domain {number}"


def _tensor_core(database: Database) -> list[Summary]:
    """Share of each op's kernel time that used tensor cores, as in the tensor core report."""
    columns = ("read_only_ops_id", "uses_tc", "gpu_start", "gpu_stop")
    if not database.has("read_only_kernels", *columns) or not database.has(
        "read_only_ops", "op_id"
    ):
        return []
    rows = database.connection.execute(
        "SELECT o.op_id, sum(CASE WHEN k.uses_tc THEN k.gpu_stop - k.gpu_start ELSE 0 END), "
        "sum(k.gpu_stop - k.gpu_start) FROM read_only_kernels k JOIN read_only_ops o ON o.id = "
        "k.read_only_ops_id GROUP BY o.id ORDER BY o.id"
    )
    return [
        figure(f"TC Utilization: {op}", 100 * used / total, "%")
        for op, used, total in rows
        if total
    ]


def _calls(database: Database) -> list[Summary]:
    """CUDA calls that launched nothing, by name: count and host time."""
    found = []
    for table, word in (
        ("read_only_cuda_calls", "CUDA call"),
        ("read_only_cuda_syncs", "CUDA synchronisation"),
    ):
        if not database.has(table, "name_id", "api_start", "api_stop"):
            continue
        rows = database.connection.execute(
            "SELECT coalesce((SELECT string FROM dictionary WHERE id = name_id), 'without a "
            f"name'), count(*), sum({integer('api_stop')} - {integer('api_start')}) FROM {table} "
            "GROUP BY name_id ORDER BY 1"
        )
        for name, count, time in rows:
            found += [
                figure(f"{word}: {name}: Calls", count, None),
                figure(f"{word}: {name}: CPU Time", time, "ns"),
            ]
    return found


def _memory(database: Database) -> list[Summary]:
    rows = database.rows("gpu_memories", "used")
    labels = (
        [f"GPU {n}: Memory Used" for n in range(len(rows))]
        if len(rows) > 1
        else ["GPU Memory Used"]
    )
    return [figure(label, used, "byte") for label, (used,) in zip(labels, rows, strict=False)]


def _devices(database: Database, config: dict[str, str]) -> tuple[tuple[Device, ...], list[Gap]]:
    """GPUs by CUDA ordinal, then the CPU. Memory sizes do not name their device, so they are used
    only where all are equal."""
    columns = (
        "device_id",
        "gpu_name",
        "compute_capability_major",
        "compute_capability_minor",
        "sm_count",
    )
    rows = database.rows("read_only_gpu_infos", *columns)
    totals = [row[0] for row in database.rows("gpu_memories", "total")]
    size = (
        totals[0]
        if len(set(totals)) == 1 and len(totals) == len(rows) and isinstance(totals[0], int)
        else None
    )
    unsure = ("ambiguous", "gpu_memories does not say which size belongs to which device")
    why = unsure if totals else ("not_available", "the table gpu_memories is empty")
    gaps = [Gap("device.memory_bytes", *why)] if size is None and rows else []
    gpus = [
        Device(
            name=str(name) if name else None,
            kind="gpu",
            index=number if isinstance(number, int) else order,
            compute_capability=f"{major}.{minor}"
            if isinstance(major, int) and isinstance(minor, int)
            else None,
            sm_count=count if isinstance(count, int) and count > 0 else None,
            memory_bytes=size,
            driver_version=config.get("gpu driver version"),
        )
        for order, (number, name, major, minor, count) in enumerate(rows)
    ]
    cpu = [Device(config["cpu model"], "cpu")] if "cpu model" in config else []
    return (*gpus, *cpu), gaps


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
    with _opened(path) as database:
        damage = tuple(check(database, _READ, _ALWAYS))
        facts = summary_facts(path, database)
        found = list(_kernels(database))
        return replace(
            facts,
            kernels=found,
            copies=list(_copies(database)),
            operations=_operations(database),
            steps=tuple(_steps(database)),
            gaps=(*damage, *facts.gaps, *_gaps(database, found)),
            diagnostics=(
                *facts.diagnostics,
                *_unknown(database),
                *newer("DLProf", facts.tool_version, dlprof_records.NEWEST),
            ),
        )


@contextmanager
def _opened(path: Path) -> Iterator[Database]:
    """Open it read-only, leaving nothing beside the file. Raises ReportError for every
    SQLite error."""
    with readable(path, TOOL):
        check_whole(path, TOOL, _AGAIN)
        with opened(path, TOOL, _AGAIN) as database:
            database.connection.execute("PRAGMA temp_store = MEMORY")
            if not set(database.tables) >= _MARKERS:
                raise ReportError(path, TOOL, "DLProf's tables are missing", _AGAIN)
            yield database


def _text(column: str) -> str:
    """Return the SQL of the text with that number."""
    return f"(SELECT string FROM dictionary WHERE id = {column})"


def _kernels(database: Database) -> Iterator[Kernel]:
    tables = database.tables
    kernel, op = (
        dict(zip(names, sql_columns(map(Column, names), alias, tables.get(table, ())), strict=True))
        for names, alias, table in ((_ALWAYS[KERNEL], "k", KERNEL), (_ALWAYS[OP], "o", OP))
    )
    has_sizes = database.has("read_only_grid_block", "id", "x", "y", "z")
    size = "(SELECT {} FROM read_only_grid_block WHERE id = {})" if has_sizes else "NULL"
    sizes = {
        f"{what}_{axis}": size.format(axis, kernel[f"{what}_id"])
        for what in ("grid", "block")
        for axis in "xyz"
    }
    texts = {
        "short": _text(kernel["name_id"]),
        "long": _text(kernel["long_name_id"]),
        "op": op["op_name"],
        "direction": _text(op["direction_id"]),
    }
    numbers = {
        "step": _iteration(database),
        "device": kernel["device_id"],
        "start": kernel["gpu_start"],
        "stop": kernel["gpu_stop"],
    } | sizes
    columns = [Column(name, read=read_text) for name in texts]
    columns += [Column(name, read=_read_number) for name in numbers]
    rows = database.connection.execute(
        f"SELECT {', '.join([*texts.values(), *numbers.values()])} FROM {KERNEL} k "
        f"LEFT JOIN {OP} o ON o.id = {kernel['read_only_ops_id']} ORDER BY k.id"
    )
    for launch, row in enumerate(rows):
        fields = read_selected(columns, row)
        fields["duration"] = _duration(fields["start"], fields["stop"])
        yield make_kernel(launch, fields, NAMELESS)


def _iteration(database: Database) -> str:
    """SQL for the iteration of a kernel in the last aggregation."""
    if not database.has("kernel_iteration_node", "aggr_id", "read_only_kernel_id", "iter_value"):
        return "NULL"
    # a temporary index: the file has none on that column and must not be changed
    database.connection.execute(
        "CREATE TEMP TABLE kernel_step AS SELECT read_only_kernel_id AS kernel, min(iter_value) AS "
        "step FROM kernel_iteration_node WHERE aggr_id = (SELECT max(aggr_id) FROM "
        "kernel_iteration_node) GROUP BY 1"
    )
    database.connection.execute("CREATE INDEX temp.kernel_step_by_kernel ON kernel_step(kernel)")
    return "(SELECT step FROM temp.kernel_step WHERE kernel = k.id)"


def _copies(database: Database) -> Iterator[Copy]:
    for table in (MEMCPY, MEMSET):
        columns = ("copy_kind", "num_bytes", "gpu_start", "gpu_stop", "device_id")
        for kind, size, start, stop, device in database.rows(table, *columns):
            word = "memset" if table == MEMSET else COPY_KINDS.get(kind, str(kind))
            yield Copy(
                word,
                _read_number(size),
                _read_number(start),
                _duration(start, stop),
                device_index=_read_number(device),
            )


def _operations(database: Database) -> list[Operation]:
    """Return one record per op of the model, summed over its calls, from the last aggregation."""
    if not (
        database.has("op_nodes", "aggr_id", "read_only_ops_id", "node_time_metrics_id", "num_calls")
        and database.has("node_time_metrics", "id", "cpu_time_metric_id", "gpu_time_metric_id")
        and database.has("metric", "id", "sum")
    ):
        return []
    ops = map(Column, ("op_name", "op_type_id", "direction_id"))
    name, kind, way = sql_columns(ops, "o", database.tables.get(OP, ()))
    rows = database.connection.execute(
        f"SELECT {name}, {_text(kind)}, {_text(way)}, n.num_calls, c.sum, g.sum FROM op_nodes n"
        f" LEFT JOIN {OP} o ON o.id = n.read_only_ops_id"
        " LEFT JOIN node_time_metrics t ON t.id = n.node_time_metrics_id"
        " LEFT JOIN metric c ON c.id = t.cpu_time_metric_id LEFT JOIN metric g ON g.id = "
        "t.gpu_time_metric_id WHERE n.aggr_id = (SELECT max(aggr_id) FROM op_nodes) ORDER BY n.id"
    )
    return make_operations(read_selected(_OPERATION, row) for row in rows)


def _steps(database: Database) -> Iterator[Step]:
    """The iterations of the last aggregation, whether aggregated or not."""
    rows = database.rows("iteration_list", "aggr_id", "iter_value", "start_time", "stop_time")
    for _, number, start, stop in _last_aggregation(rows):
        if isinstance(number, int):
            yield Step(number, "step", _read_number(start), _duration(start, stop))


def _gaps(database: Database, found: list[Kernel]) -> Iterator[Gap]:
    yield from dlprof_records.never(
        "DLProf's database has no streams, registers or shared memory of kernels"
    )
    if not found:
        yield Gap(
            "kernel",
            "not_collected",
            "no kernel ran while DLProf recorded, or nsys could not trace CUDA",
        )
    for table, quantity in ((MEMCPY, "copy"), ("op_nodes", "operation")):
        if table not in database.tables:
            yield Gap(quantity, "not_available", f"the database has no table {table}")
    yield from dlprof_records.layer_gap(found)
    yield from dlprof_records.operation_gaps()
    if unstepped := sum(kernel.step is None for kernel in found):
        reason = (
            f"{unstepped} of {len(found)} launches are outside the iterations that DLProf "
            "aggregated"
        )
        yield Gap("kernel.step", "not_collected", reason)


def _unknown(database: Database) -> tuple[Diagnostic, ...]:
    """Return the tables and columns that hold data and are in no list."""
    read: dict[str, list[str]] = KNOWN["tables"]
    tables = others(database.tables, read, KNOWN["other_tables"])
    columns = [
        f"{table}.{name}"
        for table, columns_read in read.items()
        for name in others(sorted(database.tables.get(table, ())), columns_read)
        if database.holds(table, name)
    ]
    return not_understood(
        {"tables": [name for name in tables if database.holds(name)], "columns": columns}
    )


def _duration(start: object, stop: object) -> int | None:
    """Return None also where stop is before start: DLProf writes 0 for unknown times."""
    if isinstance(start, int) and isinstance(stop, int) and stop >= start and stop:
        return stop - start
    return None
