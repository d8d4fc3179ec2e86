"""Sums of calls in an nsys export, as ``nsys stats`` has them (cuda_api_sum, osrt_sum, nvtx_sum,
mpi_event_sum, ...)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from perfctl.parsers.attribution import NEVER, NOBODY, SpanArrays
from perfctl.parsers.common.sqlite import Database, sql_integer
from perfctl.parsers.nsys.columns import NULL, iterate_integer_column_chunks
from perfctl.parsers.nsys.ranges import MARK, PROCESS_BITS, RangeTable, convert_to_list_with_none
from perfctl.parsers.nsys.tables import OSRT, RUNTIME, STRINGS, SYNC, StringTable, open_export
from perfctl.records.bulk import ColumnChunks, ColumnRecords
from perfctl.records.report import ALLOCATIONS, WAITS, ApiCall, OpCall

NO_NAME = "(no name)"
OSRT_CALL = 27
"""Class of the rows of OSRT_API that are calls; others mark where tracing began and ended."""
OF_LIBRARIES = {"CUDNN_EVENTS": "cudnn", "CUBLAS_EVENTS": "cublas"}
"""Table -> domain of its calls. Since 2024 nsys records these libraries as NVTX domains."""
OF_MPI = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
NVTX_LIBRARIES = {
    "nccl": "nccl",
    "cublas": "cublas",
    "cublaslt": "cublas",
    "cudnn": "cudnn",
    "mpi": "mpi",
}
"""NVTX domain, in lower case -> domain of the calls that its ranges are."""
SYNCS = {
    1: "event synchronize",
    2: "stream wait event",
    3: "stream synchronize",
    4: "context synchronize",
}
"""CUpti_ActivitySynchronizationType; exports since 3.0.0 have ENUM_CUPTI_SYNC_TYPE."""
_OF_NCCL = re.compile(r"nccl[A-Z]")
_VERSION = re.compile(r"_v.{4}$", re.DOTALL)
"""Of a CUDA function ("cudaLaunchKernel_v7000"): nsys stats cuts it off."""
_ANY_VERSION = re.compile(r"_v\d+$")
"""Of a CUDA function, also where nsys stats keeps it: "cuMemAlloc_v2", "cudaMallocAsync_v11020"."""


def sum_api_calls(database: Database, ranges: RangeTable) -> list[ApiCall]:
    """Return the calls of all domains; in each, what took longest first, as ``nsys stats`` prints
    them."""
    strings = StringTable(database, NO_NAME)

    def get_cuda_function_name(number: object) -> str:
        return _VERSION.sub("", strings[number] or NO_NAME)

    is_traced = database.has_table_with_columns(RUNTIME, "correlationId", "globalTid")
    traced = {RUNTIME: "nameId"} if is_traced else {}
    calls = _sum_calls_in_tables(database, "cuda", traced, get_cuda_function_name)
    is_call = (
        f"eventClass = {OSRT_CALL}"
        if database.has_table_with_columns(OSRT, "eventClass")
        else "TRUE"
    )
    calls += _sum_calls_in_tables(database, "osrt", {OSRT: "nameId"}, strings.__getitem__, is_call)
    calls += _sum_nvtx_ranges(ranges)
    for table, domain in OF_LIBRARIES.items():
        calls += _sum_calls_in_tables(database, domain, {table: "nameId"}, strings.__getitem__)
    name_columns = {
        table: "nameId" if database.has_table_with_columns(table, "nameId") else "textId"
        for table in OF_MPI
    }
    calls += _sum_calls_in_tables(database, "mpi", name_columns, strings.__getitem__)
    rows = database.read_rows("ENUM_CUPTI_SYNC_TYPE", "id", "label")
    labels: dict[object, str] = {**SYNCS} | {number: str(label).lower() for number, label in rows}

    def get_sync_kind_name(number: object) -> str:
        return labels.get(number, f"type {number}")

    return [*calls, *_sum_calls_in_tables(database, "sync", {SYNC: "syncType"}, get_sync_kind_name)]


def _sum_calls_in_tables(
    database: Database,
    domain: str,
    name_column_by_table: Mapping[str, str],
    name_of: Callable[[object], str | None],
    sql_condition: str = "TRUE",
) -> list[ApiCall]:
    """Sum the calls in these tables by name, longest first. ``name_column_by_table``: table -> its
    column of numbers of names."""
    rows = " UNION ALL ".join(
        f"SELECT {sql_integer(database.column_or_null(table, name))} AS name, "
        f"{sql_integer(database.column_or_null(table, 'end'))} - {sql_integer('start')} AS length "
        f"FROM {table} WHERE {sql_condition}"
        for table, name in name_column_by_table.items()
        if database.has_table_with_columns(table, "start")
    )
    if not rows:
        return []
    query = (
        "SELECT name, count(*), coalesce(sum(length), 0), min(length), max(length) "
        f"FROM ({rows}) GROUP BY name"
    )
    sums = database.connection.execute(query)
    calls = [ApiCall(domain, name_of(name) or NO_NAME, *figures) for name, *figures in sums]
    return sorted(calls, key=_longest_first_key)


def read_gpu_synchronize_calls(
    path: Path, database: Database, ranges: RangeTable
) -> ColumnRecords[OpCall] | tuple[()]:
    """Return each call that waits for the GPU or manages memory, in the order of the table, with
    the measured step in which it began.

    Records are made while they are read, from a connection of their own.
    """
    if not database.has_table_with_columns(
        RUNTIME, "nameId", "start", "end"
    ) or not database.has_table_with_columns(STRINGS, "id", "value"):
        return ()
    query = f"SELECT id, value FROM {STRINGS} WHERE value GLOB 'cu*'"
    functions = {
        number: _ANY_VERSION.sub("", str(text))
        for number, text in database.connection.execute(query)
    }
    recorded = {*WAITS, *ALLOCATIONS}
    names = {number: name for number, name in functions.items() if name in recorded}
    return (
        ColumnRecords(OpCall, partial(_iterate_gpu_synchronize_columns, path, names, ranges))
        if names
        else ()
    )


def _iterate_gpu_synchronize_columns(
    path: Path, function_name_by_id: dict[int, str], ranges: RangeTable
) -> ColumnChunks:
    numbers = ranges.get_step_per_range()
    is_wait = f"nameId IN ({', '.join(map(str, function_name_by_id))})"
    columns = ("nameId", "start", "end", "globalTid")
    with open_export(path) as database:
        for piece in iterate_integer_column_chunks(
            database, RUNTIME, *columns, sql_condition=is_wait
        ):
            name, start, end, thread = piece[:, (piece[1] != NULL) & (piece[2] >= piece[1])]
            moments = SpanArrays(thread & PROCESS_BITS, thread, start, start)
            steps = numbers[ranges.attribution.find_ranges_around_calls(moments).step]
            nothing = [None] * len(name)
            yield (
                [function_name_by_id[number] for number in name.tolist()],
                start.tolist(),
                (end - start).tolist(),
                *(nothing,) * 5,
                convert_to_list_with_none(steps, steps == NOBODY),
                convert_to_list_with_none(thread & ~PROCESS_BITS, thread == NULL),
                nothing,
            )


def _longest_first_key(call: ApiCall) -> tuple[int, str]:
    return -(call.total_ns or 0), call.name


def _sum_nvtx_ranges(ranges: RangeTable) -> list[ApiCall]:
    """Sum ranges by domain, name and style, and once more those of libraries that annotate their
    own calls. A range that never ended lasts until the last NVTX event, as ``nsys stats`` has
    it."""
    chosen = np.flatnonzero(ranges.kind != MARK)
    if not len(chosen):
        return []
    spans = ranges.spans.select_spans(chosen)
    every_end = ranges.spans.end[ranges.spans.end != NEVER]
    until = max(int(ranges.spans.start.max()), int(every_end.max(initial=-NEVER)))
    length = np.where(spans.end == NEVER, until, spans.end) - spans.start
    columns = (ranges.name[chosen], ranges.kind[chosen], ranges.domain[chosen], spans.process)
    group = np.zeros(len(chosen), np.int64)
    for column in columns if columns[2].any() else columns[:2]:
        values, index = np.unique(column, return_inverse=True)
        numbers = group * len(values) + index
        _, rows, group = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(rows)))
    figures = [np.diff(np.append(starts, len(order)))]
    figures += [ufunc.reduceat(length[order], starts) for ufunc in (np.add, np.minimum, np.maximum)]
    keys = zip(*(column[rows].tolist() for column in columns), strict=True)
    sums: defaultdict[tuple[str | None, str, int], list[Sequence[int]]] = defaultdict(list)
    for (name, kind, number, process), *group_figures in zip(
        keys, *(column.tolist() for column in figures), strict=True
    ):
        library = ranges.domains.get((process, number), "") if number else None
        sums[library, ranges.names[name], kind].append(group_figures)
    calls, of_libraries = [], []
    for (library, name, _), groups in sums.items():
        counts, totals, shortest, longest = zip(*groups, strict=True)
        total = sum(counts), sum(totals), min(shortest), max(longest)
        calls.append(ApiCall("nvtx", f"{library}:{name}" if library else name, *total))
        domain = NVTX_LIBRARIES.get((library or "").lower())
        if library == "" and _OF_NCCL.match(name):  # NCCL's own domain may have no name
            domain = "nccl"
        if domain:
            of_libraries.append(ApiCall(domain, name, *total))
    of_libraries.sort(key=lambda call: (call.domain, *_longest_first_key(call)))
    return [*sorted(calls, key=_longest_first_key), *of_libraries]
