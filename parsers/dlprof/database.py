"""DLProf's own database, ``dlprof_dldb.sqlite`` (1.8.0 was seen).

It has the figures of the CSV reports, unrounded, and also copies, device memory and CUDA calls. Its
tables are read and joined here; its views, which join the same names, are not used, since a view in
somebody else's file is a program. Where the database was aggregated several times, the last
aggregation counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from perfctl.parsers.common.doubts import (
    make_newer_version_note,
    make_unknown_names_warning,
)
from perfctl.parsers.common.numbers import parse_integer
from perfctl.parsers.common.sqlite import (
    COPY_KINDS,
    Database,
    NamedTables,
    has_tables,
    list_unreadable_column_gaps,
    open_database,
    sql_integer,
)
from perfctl.parsers.common.tables import nonempty_text_or_none
from perfctl.parsers.dlprof.records import (
    KNOWN,
    LAUNCH,
    NEWEST,
    OPERATION,
    build_environment_from_config,
    list_missing_kernel_field_gaps,
    list_missing_operation_field_gaps,
    make_advice_diagnostic,
    make_kernel,
    make_operations,
    make_summary,
    parse_dlprof_version,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import (
    Copy,
    Device,
    Gap,
    Kernel,
    Report,
    Step,
    Summary,
)

TOOL = "dlprof"
_MARKERS = ("read_only_ops", "read_only_kernels", "dictionary")
_ALWAYS = {
    "read_only_kernels": "id device_id read_only_ops_id name_id long_name_id gpu_start gpu_stop "
    "grid_id block_id uses_tc",
    "read_only_ops": "id op_id op_name op_type_id direction_id",
    "dictionary": "id string",
    "read_only_grid_block": "id x y z",
    "read_only_memcpys": "copy_kind num_bytes gpu_start gpu_stop device_id",
    "read_only_memsets": "num_bytes gpu_start gpu_stop device_id",
    "read_only_gpu_infos": "device_id gpu_name compute_capability_major compute_capability_minor "
    "sm_count",
    "kernel_iteration_node": "aggr_id read_only_kernel_id iter_value",
    "iteration_list": "aggr_id iter_value start_time stop_time",
}
"""Tables and columns that DLProf always writes, with rows or without."""
_SOMETIMES = {
    "op_nodes": "id aggr_id read_only_ops_id node_time_metrics_id num_calls",
    "node_time_metrics": "id cpu_time_metric_id gpu_time_metric_id",
    "metric": "id sum",
    "category_summary": "id gpu_time cpu_time count",
    "kernel_summary_metrics": "aggr_id domain_id kernels_total_id kernels_using_tc_id "
    "kernels_non_tc_id",
    "memory_summary_metrics": "aggr_id domain_id memory_time_id",
    "read_only_domains": "id domain_name_id",
    "read_only_cuda_calls": "name_id api_start api_stop",
    "read_only_cuda_syncs": "name_id api_start api_stop",
    "gpu_memories": "used total",
    "db_version": "current_version",
    "expert_systems_feedback": "aggr_id problem recommendation",
}
_COLUMNS: dict[str, list[str]] = {
    **{table: names.split() for table, names in (_ALWAYS | _SOMETIMES).items()},
    "model_summary": ["aggr_id", "domain_id", *KNOWN["model"], *KNOWN["ops"]],
    "read_only_system_config": [*KNOWN["config"]],
    "read_only_model_config": KNOWN["settings"],
}
"""All tables and columns that are read."""
_NAMELESS = "'(no name in the database)'"
_TENSOR_CORE_USE = """
    SELECT o.op_id, sum(CASE WHEN k.uses_tc THEN k.gpu_stop - k.gpu_start
        WHEN NOT k.uses_tc THEN 0 END), sum(k.gpu_stop - k.gpu_start)
    FROM {read_only_kernels} k JOIN {read_only_ops} o ON o.id = k.read_only_ops_id
    GROUP BY o.id ORDER BY o.id
"""
_AGAIN = "Copy it again, or let dlprof make it again (dlprof --force=true ...)"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is an SQLite file with DLProf's tables."""
    return has_tables(path, head, *_MARKERS)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off or damaged, or lacks the tables that all
    others refer to."""
    with open_database(path, TOOL, _AGAIN) as database:
        if not database.tables.keys() >= set(_MARKERS):
            raise ReportError(path, TOOL, "DLProf's tables are missing", _AGAIN)
        return _read_report(path, NamedTables(database, _COLUMNS))


def _read_report(path: Path, tables: NamedTables) -> Report:
    always = {table: names.split() for table, names in _ALWAYS.items()}
    unreadable = tuple(list_unreadable_column_gaps(tables.database, _COLUMNS, always))
    environment = build_environment_from_config(_read_first_row(tables, "read_only_system_config"))
    version = parse_dlprof_version(environment)
    devices, device_gaps = _read_devices(tables, environment)
    kernels, figures = list(_read_kernels(tables)), list(_read_model_figures(tables))
    wall = next((entry.value for entry in figures if entry.name == "Wall Clock Time"), None)
    operations = tables.query_fields(OPERATION, _OPERATIONS)
    return Report(
        tool=TOOL,
        path=path,
        form=", version ".join(
            ("DLProf database", *_read_first_row(tables, "db_version").values())
        ),
        tool_version=version,
        devices=devices,
        environment=environment | _read_first_row(tables, "read_only_model_config"),
        kernels=kernels,
        copies=list(_read_copies(tables)),
        operations=list(make_operations(operations)),
        steps=tuple(_read_steps(tables)),
        summaries=(*figures, *_read_tensor_core_call_memory_figures(tables)),
        gaps=(*unreadable, *device_gaps, *_list_missing_data_gaps(tables.database, kernels)),
        diagnostics=(
            *(
                make_advice_diagnostic(problem, recommendation)
                for _, problem, recommendation in tables.execute_query(
                    f"SELECT * FROM {_sql_last_rows('expert_systems_feedback')}"
                )
            ),
            *make_unknown_names_warning(
                tables.database.find_unknown_tables_and_columns(
                    KNOWN["tables"], KNOWN["other_tables"]
                )
            ),
            *make_newer_version_note("DLProf", version, NEWEST),
        ),
        duration_ns=None if wall is None else int(wall),
    )


def _sql_last_rows(table: str) -> str:
    """Return SQL of the rows of a table's last aggregation."""
    newest = f"(SELECT max(aggr_id) FROM {{{table}}})"
    return f"(SELECT * FROM {{{table}}} WHERE aggr_id IS {newest})"


def _sql_text(column: str) -> str:
    """Return SQL of the text with that number."""
    return f"(SELECT string FROM {{dictionary}} WHERE id = {column})"


def _sql_duration(start: str, stop: str) -> str:
    """Return SQL of a duration; NULL also where stop is before start: DLProf writes 0 for unknown
    times."""
    start, stop = sql_integer(start), sql_integer(stop)
    return f"CASE WHEN {stop} >= {start} AND {stop} THEN {stop} - {start} END"


_KERNELS = f"""
    SELECT o.op_name AS "op name", {_sql_text("o.direction_id")} AS direction,
        {_sql_text("k.name_id")} AS "kernel name",
        coalesce({_sql_text("k.long_name_id")}, {_sql_text("k.name_id")}, {_NAMELESS})
            AS "long kernel name",
        i.step AS iteration, k.device_id AS "device id", k.gpu_start AS "gpu start time (ns)",
        {_sql_duration("k.gpu_start", "k.gpu_stop")} AS "gpu duration (ns)",
        g.x AS "grid x", g.y AS "grid y", g.z AS "grid z",
        b.x AS "block x", b.y AS "block y", b.z AS "block z"
    FROM {{read_only_kernels}} k LEFT JOIN {{read_only_ops}} o ON o.id = k.read_only_ops_id
    LEFT JOIN {{read_only_grid_block}} g ON g.id = k.grid_id
    LEFT JOIN {{read_only_grid_block}} b ON b.id = k.block_id
    LEFT JOIN (
        SELECT read_only_kernel_id AS kernel, min(iter_value) AS step
        FROM {_sql_last_rows("kernel_iteration_node")} GROUP BY 1
    ) i ON i.kernel = k.id ORDER BY k.id
"""
"""Launches, by the column names of the iteration report."""
_OPERATIONS = f"""
    SELECT coalesce(o.op_name, {_NAMELESS}) AS "op name", {_sql_text("o.op_type_id")} AS "op type",
        {_sql_text("o.direction_id")} AS direction, n.num_calls AS "no calls",
        c.sum AS "total cpu time (ns)", g.sum AS "total gpu time (ns)"
    FROM {_sql_last_rows("op_nodes")} n LEFT JOIN {{read_only_ops}} o ON o.id = n.read_only_ops_id
    LEFT JOIN {{node_time_metrics}} t ON t.id = n.node_time_metrics_id
    LEFT JOIN {{metric}} c ON c.id = t.cpu_time_metric_id
    LEFT JOIN {{metric}} g ON g.id = t.gpu_time_metric_id ORDER BY n.id
"""
"""Ops of the model, summed over their calls, by the column names of the detail report."""
_MODELS = f"""
    SELECT {_sql_text("d.domain_name_id")}, k.kernels_total_id, k.kernels_using_tc_id,
        c.memory_time_id, k.kernels_non_tc_id, m.*
    FROM {_sql_last_rows("model_summary")} m
    LEFT JOIN {{kernel_summary_metrics}} k ON k.aggr_id IS m.aggr_id AND k.domain_id IS m.domain_id
    LEFT JOIN {{memory_summary_metrics}} c ON c.aggr_id IS m.aggr_id AND c.domain_id IS m.domain_id
    LEFT JOIN {{read_only_domains}} d ON d.id = m.domain_id
"""


def _read_first_row(tables: NamedTables, table: str) -> dict[str, str]:
    """Return the filled cells of a table's first row, as text."""
    rows = tables.read_table(table)
    cells = zip(_COLUMNS[table], rows[0], strict=True) if rows else ()
    return {name: str(value) for name, value in cells if value not in (None, "")}


def _read_model_figures(tables: NamedTables) -> Iterator[Summary]:
    """Yield the figures of the model, of each of its domains where it has several."""
    sums: dict[object, list[Any]] = {
        number: cells for number, *cells in tables.read_table("category_summary")
    }
    models = tables.execute_query(_MODELS).fetchall()
    for name, total, using_tc, copies, others_id, _, domain, *cells in models:
        prefix = f"{name or f'domain {domain}'}: " if len(models) > 1 else ""
        values = dict(zip((*KNOWN["model"], *KNOWN["ops"]), cells, strict=True))
        for column, (label, unit) in KNOWN["model"].items():
            yield make_summary(prefix + label, values[column], unit)
        for column, label in KNOWN["ops"].items():
            category = sums.get(values[column], ())
            yield from _make_category_figures(f"{prefix}All Ops: {label}", "# Ops", category)
        # the report's first line is the table's total and the copies together (1.8.0: 308960 +
        # 43040 = 352000 ns)
        pairs = zip(sums.get(total, ()), sums.get(copies, ()), strict=False)
        both = [
            kernel_sum + copied if isinstance(kernel_sum, int) and isinstance(copied, int) else None
            for kernel_sum, copied in pairs
        ]
        for label, category in (
            ("All kernels", both),
            ("Kernels using TC", sums.get(using_tc, ())),
            ("Memory", sums.get(copies, ())),
            ("All other kernels", sums.get(others_id, ())),
        ):
            yield from _make_category_figures(
                f"{prefix}All Kernels: {label}", "# Kernels", category
            )


def _make_category_figures(label: str, count_name: str, figures: Iterable[object]) -> list[Summary]:
    """Return the figures of a category: time on the GPU and on the CPU, and the count."""
    names = (("GPU Time", "ns"), ("CPU Time", "ns"), (count_name, None))
    return [
        make_summary(f"{label}: {name}", value, unit)
        for (name, unit), value in zip(names, figures, strict=False)
    ]


def _read_tensor_core_call_memory_figures(tables: NamedTables) -> Iterator[Summary]:
    """Yield the share of each op's kernel time that used tensor cores, as in the tensor core
    report; count and host time of CUDA calls that launched nothing, by name; and used memory."""
    for op, used, total in tables.execute_query(_TENSOR_CORE_USE):
        if op and total and used is not None:
            yield make_summary(f"TC Utilization: {op}", 100 * used / total, "%")
    for table, label in (
        ("read_only_cuda_calls", "CUDA call"),
        ("read_only_cuda_syncs", "CUDA synchronisation"),
    ):
        rows = tables.execute_query(
            f"SELECT coalesce({_sql_text('name_id')}, 'without a name'), count(*), "
            f"sum({sql_integer('api_stop')} - {sql_integer('api_start')}) FROM {{{table}}} "
            "GROUP BY name_id ORDER BY 1"
        )
        for name, count, time in rows:
            yield make_summary(f"{label}: {name}: Calls", count, None)
            yield make_summary(f"{label}: {name}: CPU Time", time, "ns")
    memories = tables.read_table("gpu_memories")
    for index, (used, _) in enumerate(memories):
        prefix = f"GPU {index}: " if len(memories) > 1 else "GPU "
        yield make_summary(f"{prefix}Memory Used", used, "byte")


def _read_devices(
    tables: NamedTables, environment: dict[str, str]
) -> tuple[tuple[Device, ...], list[Gap]]:
    """Return the GPUs by CUDA ordinal, then the CPU. Memory sizes do not name their device, so
    they are used only where all are equal."""
    rows = tables.read_table("read_only_gpu_infos")
    totals = [parse_integer(total) for _, total in tables.read_table("gpu_memories")]
    size = totals[0] if len(set(totals)) == 1 and len(totals) == len(rows) else None
    gaps = []
    if size is None and rows:
        reason = ("not_available", "the table gpu_memories is empty")
        if totals:
            reason = ("ambiguous", "gpu_memories does not state which size belongs to which device")
        gaps.append(Gap("device.memory_bytes", *reason))
    devices = [
        Device(
            name=nonempty_text_or_none(name),
            kind="gpu",
            index=number if isinstance(number, int) else order,
            compute_capability=None if major is None or minor is None else f"{major}.{minor}",
            sm_count=parse_integer(count) or None,
            memory_bytes=size,
            driver_version=environment.get("driver_version"),
        )
        for order, (number, name, major, minor, count) in enumerate(rows)
    ]
    if "cpu_model" in environment:
        devices.append(Device(environment["cpu_model"], "cpu"))
    return tuple(devices), gaps


def _read_kernels(tables: NamedTables) -> Iterator[Kernel]:
    for launch, fields in enumerate(tables.query_fields(LAUNCH, _KERNELS)):
        yield make_kernel(launch, fields)


def _read_copies(tables: NamedTables) -> Iterator[Copy]:
    duration = _sql_duration("gpu_start", "gpu_stop")
    for table, column in (("read_only_memcpys", "copy_kind"), ("read_only_memsets", "'memset'")):
        for kind, *cells in tables.execute_query(
            f"SELECT {column}, num_bytes, gpu_start, {duration}, device_id FROM {{{table}}}"
        ):
            size, start, length, device = map(parse_integer, cells)
            yield Copy(COPY_KINDS.get(kind, str(kind)), size, start, length, device_index=device)


def _read_steps(tables: NamedTables) -> Iterator[Step]:
    """Yield the iterations of the last aggregation, whether aggregated or not."""
    for number, start, duration in tables.execute_query(
        f"SELECT iter_value, start_time, {_sql_duration('start_time', 'stop_time')} "
        f"FROM {_sql_last_rows('iteration_list')}"
    ):
        if isinstance(number, int):
            yield Step(number, "step", parse_integer(start), duration)


def _list_missing_data_gaps(database: Database, kernels: list[Kernel]) -> Iterator[Gap]:
    if not kernels:
        reason = "no kernel ran while DLProf recorded, or nsys could not trace CUDA"
        yield Gap("kernel", "not_collected", reason)
    for table, quantity in (("read_only_memcpys", "copy"), ("op_nodes", "operation")):
        if table not in database.tables:
            yield Gap(quantity, "not_available", f"the database has no table {table}")
    reason = "DLProf's database has no streams, registers or shared memory of kernels"
    yield from list_missing_kernel_field_gaps(kernels, reason)
    yield from list_missing_operation_field_gaps()
    if outside := sum(kernel.step is None for kernel in kernels):
        reason = (
            f"{outside} of {len(kernels)} launches are outside the iterations that DLProf "
            "aggregated"
        )
        yield Gap("kernel.step", "not_collected", reason)
