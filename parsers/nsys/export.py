"""Puts together what the modules of this folder read from an nsys export.

Kernels and copies are read while they are iterated, each from a connection of its own, or copied
by SQL. ``parse`` itself finds the range and layer of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from perfctl.parsers.attribution import NOBODY, Integers
from perfctl.parsers.common.sqlite import COPY_KINDS, Database, sql_integer
from perfctl.parsers.nsys import calls, gaps, machine
from perfctl.parsers.nsys import kernels as nsys_kernels
from perfctl.parsers.nsys import operators as nsys_operators
from perfctl.parsers.nsys import ranges as nsys_ranges
from perfctl.parsers.nsys.kernels import TableLaunches
from perfctl.parsers.nsys.ranges import RangeTable
from perfctl.parsers.nsys.tables import (
    COPY_LABELS,
    COUNTED,
    GPU_METRICS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    METRIC_NAMES,
    STRINGS,
    TOOL,
    open_export,
)
from perfctl.parsers.operators import OperatorShapes
from perfctl.records.bulk import ColumnRecords
from perfctl.records.errors import ReportError
from perfctl.records.report import Copy, Range, Report, Sample, Summary

SAMPLES = f"""
SELECT timestamp,
    max(CASE WHEN metricName GLOB 'GR Active*' THEN value END) / 100.0,
    CAST(1e6 * coalesce(
        max(CASE WHEN metricName GLOB 'SM Clock Frequency*' THEN value END),
        max(CASE WHEN metricName GLOB 'GPC Clock Frequency*' THEN value END),
        max(CASE WHEN metricName GLOB 'SYS Clock Frequency*' THEN value END)) AS INTEGER),
    typeId & 255
FROM {GPU_METRICS} JOIN {METRIC_NAMES} USING (typeId, metricId)
WHERE metricName GLOB 'GR Active*' OR metricName GLOB '* Clock Frequency*'
GROUP BY timestamp, typeId ORDER BY timestamp, typeId
"""
"""The share of time in which the graphics and compute engine was busy, from percent, and the clock,
from MHz; the low bits of typeId are the GPU."""
MEANS = f"""
SELECT typeId & 255, metricName, avg(value), max(value)
FROM {GPU_METRICS} JOIN {METRIC_NAMES} USING (typeId, metricId)
GROUP BY typeId, metricId ORDER BY typeId, metricId
"""
MEMORY_KINDS = {
    "pageable": "pageable",
    "pinned": "pinned",
    "device": "device",
    "array": "device",
    "managed": "managed",
    "device static": "device",
    "managed static": "managed",
}
"""Kind of memory as nsys spells it, in lower case -> the word of the record; CUDA arrays and
__device__ variables are memory of the device."""


def read_export(path: Path) -> Report:
    """Read the file. Raises ReportError if it is damaged, or the rest of a failed export."""
    with open_export(path) as database:
        if not set(database.tables) - {STRINGS, "ProcessStreams"}:
            reason = "the export failed: its only table is the table of strings"
            newer = (
                "nsys cannot read newer reports. Export again with an nsys at least as new as the "
                "report"
            )
            raise ReportError(path, TOOL, reason, newer)
        damage = gaps.find_unreadable_tables_and_columns(database)
        version, schema = machine.read_nsys_and_schema_versions(database)
        devices, device_gaps = machine.read_devices(database)
        ranges = nsys_ranges.load_range_table(database)
        work = nsys_kernels.attribute_gpu_work_to_ranges(database, ranges)
        kernels = work.launched[KERNEL]
        copies = {table: work.launched[table].around.layer for table in (MEMCPY, MEMSET)}
        operators = _collect_operator_shapes(ranges, kernels)
        api_calls = calls.sum_api_calls(database, ranges)
        copied = sum(map(len, copies.values()))
        threads = work.threads | nsys_kernels.find_distinct_values(ranges.spans.thread)
        unknown_gpu_time = gaps.explain_unknown_gpu_time(database, kernels, api_calls)
        gpu_times = work.gpu.compute_gpu_times_and_spans(has_launch_calls=unknown_gpu_time is None)
        has_metrics = database.has_row_or_value(GPU_METRICS) and database.has_row_or_value(
            METRIC_NAMES
        )
        return Report(
            tool=TOOL,
            path=path,
            form=f"nsys SQLite, schema {schema}"
            if schema
            else "nsys SQLite, without a schema version (up to 2021.3)",
            tool_version=version,
            devices=devices,
            environment={**machine.read_versions_and_host_facts(database), **operators.environment},
            kernels=nsys_kernels.read_kernels(path, database, kernels, ranges),
            copies=_read_copies(path, copies, ranges),
            ranges=ColumnRecords(Range, partial(ranges.iterate_range_columns, gpu_times)),
            samples=_read_gpu_metric_samples(path) if has_metrics else (),
            summaries=tuple(_summarize_metrics_and_events(database, has_metrics=has_metrics)),
            api_calls=api_calls,
            threads=machine.read_thread_names(database, threads),
            ops=operators.ops,
            op_calls=calls.read_gpu_synchronize_calls(path, database, ranges),
            graph_launches=kernels.graphs,
            gaps=(
                *damage,
                *device_gaps,
                *gaps.describe_missing_data(database, ranges, kernels, unknown_gpu_time),
                *gaps.find_lost_kernels_and_copies(
                    kernels, copied, api_calls, database.has_row_or_value(GRAPH)
                ),
                *gaps.find_unread_tables(database),
                *operators.gaps,
            ),
            diagnostics=(
                *machine.read_nsys_messages(database),
                *gaps.warn_unknown_tables_and_schema(database),
            ),
            started_at=machine.read_session_start_utc(database),
            duration_ns=machine.read_capture_duration_ns(database),
        )


def _read_gpu_metric_samples(path: Path) -> Iterator[Sample]:
    with open_export(path) as database:
        for moment, busy, hertz, gpu in database.connection.execute(SAMPLES):
            yield Sample(moment, busy, None, None, None, None, hertz, gpu)


def _summarize_metrics_and_events(database: Database, *, has_metrics: bool) -> Iterator[Summary]:
    """Yield means of the GPU's metrics, and counts of events that have no rows of their own."""
    query = database.connection.execute
    rows = query(MEANS).fetchall() if has_metrics else []
    several = len({gpu for gpu, *_ in rows}) > 1
    for gpu, metric, mean, highest in rows:
        name, _, unit = metric.rstrip("]").partition(" [")
        device = f"GPU {gpu}" if several else "GPU"
        unit = "%" if unit.endswith("%") else unit or None
        yield Summary(f"{device} metric: {name}, mean", mean, unit)
        yield Summary(f"{device} metric: {name}, highest", highest, unit)
    for table, name in COUNTED.items():
        if database.has_row_or_value(table):
            if database.has_table_with_columns(table, "numberOfPageFaults"):
                (faults,) = query(f"SELECT sum(numberOfPageFaults) FROM {table}").fetchone()
                yield Summary(name, faults, None)
                name += ", groups"
            yield Summary(name, database.count_rows(table), None)
    if database.has_row_or_value(GRAPH):
        launches, time = query(f"SELECT count(*), sum(end - start) FROM {GRAPH}").fetchone()
        yield Summary("CUDA graphs: launches recorded as one unit", launches, None)
        yield Summary("CUDA graphs: GPU time of these", time, "ns")


def _collect_operator_shapes(ranges: RangeTable, kernels: TableLaunches) -> OperatorShapes:
    if ranges.operators is not None:
        innermost = kernels.around.innermost
        launchers = innermost[innermost != NOBODY].tolist() if len(innermost) else None
        return ranges.operators.collect_operator_shapes(launchers)
    has_layers = any(label.layer for label in ranges.labels)
    return OperatorShapes(
        gaps=() if has_layers else nsys_operators.explain_missing_operator_shapes(ranges.names)
    )


def _read_copies(
    path: Path, layer_ranges_by_table: Mapping[str, Integers], ranges: RangeTable
) -> Iterator[Copy]:
    """Yield copies, then memsets. ``layer_ranges_by_table``: for each row of a table, the range of
    its layer."""
    names = ranges.get_label_field_per_range("layer")
    with open_export(path) as database:
        kind_names: dict[object, str] = {"memset": "memset", **COPY_KINDS}
        # since 3.0.0
        for number, label in database.read_rows("ENUM_CUDA_MEMCPY_OPER", "id", "label"):
            kind_names[number] = COPY_LABELS.get(str(label), str(label))
        # numbered in this order before 3.0.0, too
        labels = database.read_rows("ENUM_CUDA_MEM_KIND", "id", "label") or enumerate(MEMORY_KINDS)
        kinds = {number: MEMORY_KINDS.get(str(label).lower()) for number, label in labels}
        for table, target in ((MEMCPY, "dstKind"), (MEMSET, "memKind")):
            if table not in database.tables:
                continue
            times, devices = ("start", "end"), ("srcDeviceId", "dstDeviceId", "deviceId")
            start, end, *columns = (
                sql_integer(database.column_or_null(table, name))
                for name in (*times, "bytes", "srcKind", target, *devices, "streamId")
            )
            kind = "copyKind" if database.has_table_with_columns(table, "copyKind") else "'memset'"
            selected = ", ".join([kind, start, f"{end} - {start}", *columns])
            rows = database.connection.execute(f"SELECT {selected} FROM {table} NOT INDEXED")
            for row, layer in zip(rows, names[layer_ranges_by_table[table]].tolist(), strict=True):
                code, begin, length, size, from_kind, to_kind, from_gpu, to_gpu, gpu, stream = row
                is_peer = None not in (from_gpu, to_gpu) and from_gpu != to_gpu
                other_gpu = to_gpu if gpu == from_gpu else from_gpu
                yield Copy(
                    kind_names.get(code, str(code)),
                    size,
                    begin,
                    length,
                    layer,
                    gpu,
                    stream,
                    kinds.get(from_kind),
                    kinds.get(to_kind),
                    other_gpu if is_peer else None,
                )
