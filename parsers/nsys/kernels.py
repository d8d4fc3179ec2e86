"""Reads the GPU work of an nsys export: which call launched each kernel and copy, and which ranges
were around the call; then kernels as records, or for a store to copy them inside SQLite.

Layers of the kernels that CUDA graphs replayed come from the ranges that were open when their nodes
were created. With --cuda-graph-trace=node a kernel of a graph names its node, which is a copy:
cudaGraphInstantiate copies the nodes that the stream capture created. CUDA_GRAPH_NODE_EVENTS has
both, each with the thread and the time of its creation, and the copy with the node that it was made
from (``originalGraphNodeId``). So a kernel leads to its copy, from there to the node of the
capture, and from there to the innermost range around that node's creation on its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfctl.parsers.attribution import (
    NOBODY,
    EnclosingRanges,
    FirstIdIndex,
    Flags,
    Integers,
    LaunchCallIndex,
    SpanArrays,
)
from perfctl.parsers.common.sqlite import Database, sql_integer
from perfctl.parsers.nsys.columns import (
    NULL,
    iterate_integer_column_chunks,
    raise_if_null_values,
    read_integer_columns,
)
from perfctl.parsers.nsys.ranges import (
    PROCESS_BITS,
    GpuTimeByRange,
    RangeTable,
    convert_to_list_with_none,
    make_object_array,
)
from perfctl.parsers.nsys.tables import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NODES,
    RUNTIME,
    StringTable,
    open_export,
)
from perfctl.records.bulk import NO_NAME, ColumnChunks, ColumnRecords, SqlKernels
from perfctl.records.report import Kernel
from perfctl.records.serving import GraphLaunch

CHUNK = 512
"""Rows converted to columns at a time: few enough for the processor's cache (2048 takes a
fifth longer)."""
TOGETHER = 1 << 16
"""Rows in which stretches are sought at a time."""
NAMES = ("demangledName", "shortName")
COLUMNS = {
    "device_index": "deviceId",
    "stream": "streamId",
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
    "start_ns": "start",
    "context": "contextId",
    "graph_id": "graphId",
    "graph_node_id": "graphNodeId",
    "correlation": "correlationId",
    "cluster_x": "clusterX",
    "cluster_y": "clusterY",
    "cluster_z": "clusterZ",
}
"""Field of Kernel -> its column."""
OFTEN_ZERO = {"graph_id", "graph_node_id", "cluster_x", "cluster_y", "cluster_z"}
"""Fields for which nsys writes 0 where it means "no graph" and "no cluster"."""
CREATION = "creation of its nodes"
"""``GraphLaunch.capture`` where the report has the creation of a graph's nodes."""
_PROCESS = "(globalPid >> 24) & 0xFFFFFF"
_GENERATIONS = 16
"""Copies of copies that are followed."""


class TableLaunches(NamedTuple):
    """Launches of one table of GPU work."""

    around: EnclosingRanges
    """Of the call of each row. Its numbers are int32, half the width of other arrays: for millions
    of rows these are all that is kept."""
    unlaunched: int
    """Rows that no launch call in the report belongs to."""
    captured: Flags | None
    """Rows whose layer is that in which the node of their graph was captured; None if there
    are none."""
    graphs: tuple[GraphLaunch, ...] = ()


class AttributedWork(NamedTuple):
    """What the calls of a report launched."""

    launched: dict[str, TableLaunches]
    """Table -> its rows, in their order."""
    gpu: GpuTimeByRange
    """What all of it took, by range."""
    threads: set[int]
    """Threads that made the calls."""


class _WorkColumns(NamedTuple):
    """Columns of a table of GPU work; NULL where a row does not state the value."""

    process: Integers
    correlation: Integers
    start: Integers
    length: Integers
    """Negative if start or end is not known."""
    node: Integers
    """Of a CUDA graph; empty if the report has no creation of one."""


class _LaunchCalls(NamedTuple):
    """Calls that launched GPU work, and what all calls of the report are."""

    calls: LaunchCallIndex
    around: EnclosingRanges
    only_process: int | None
    """The process that made all calls of the report, if it is a single one."""
    spans: SpanArrays | None
    """Of the calls; None if no one needs them."""
    threads: set[int]
    """Threads that made them."""


class _CreatedNodes(NamedTuple):
    """Nodes of CUDA graphs whose creation is in the report."""

    nodes: LaunchCallIndex
    """By process and id."""
    layers: Integers
    """Of each: the range that names the layer in which it, or what it was copied from, was
    captured; NOBODY for none."""
    is_captured: Flags
    """Whether that first creation is in the report."""


def attribute_gpu_work_to_ranges(database: Database, ranges: RangeTable) -> AttributedWork:
    """Return what the GPU work of a report belongs to. Calls that launched none of it are only
    counted."""
    created = _find_created_graph_nodes(database, ranges)
    work = {
        table: _read_gpu_work_columns(database, table, reads_graph_nodes=created is not None)
        for table in (KERNEL, MEMCPY, MEMSET, GRAPH)
    }
    gpu = GpuTimeByRange(ranges)
    correlations = FirstIdIndex(np.concatenate([rows.correlation for rows in work.values()]))
    calls = _read_launch_calls(database, correlations, ranges, gpu.needs_call_spans)
    launched = {
        table: _match_work_with_launch_calls(rows, calls, gpu, created)
        for table, rows in work.items()
    }
    if created is not None:
        kernels = launched[KERNEL]
        graphs = _summarize_graph_launches(work[KERNEL], kernels.around, ranges, created)
        launched[KERNEL] = kernels._replace(graphs=tuple(graphs))
    return AttributedWork(launched, gpu, calls.threads)


def _read_gpu_work_columns(
    database: Database, table: str, *, reads_graph_nodes: bool
) -> _WorkColumns:
    names = ["globalPid", "correlationId", "start", "end"]
    # read only if needed: it is one of the last columns
    process, correlation, start, end, *nodes = read_integer_columns(
        database, table, *names, *["graphNodeId"] * reads_graph_nodes
    )
    if len(process) and process.min() == process.max():  # without memory for each
        process = np.broadcast_to(process[0], len(process))
    correlation = np.where(correlation == NULL, NOBODY, correlation)
    length = np.where((start != NULL) & (end != NULL), end - start, NOBODY)
    # some versions write 0 for "no node"
    node = np.where(nodes[0] == 0, NULL, nodes[0]) if nodes else np.empty(0, np.int64)
    return _WorkColumns(process, correlation, start, length, node)


def _read_launch_calls(
    database: Database, gpu_work_correlations: FirstIdIndex, ranges: RangeTable, keeps_spans: bool
) -> _LaunchCalls:
    """Read all calls of the CUDA API, and keep those that launched the work with these ids; none if
    they were not traced."""
    threads, callers = set[int](), set[int]()
    number, index = np.empty(0, np.int64), np.empty(0, np.int32)
    pieces: list[list[Any]] = [[number, number, index, index, index, *[number] * (3 * keeps_spans)]]
    names = ("correlationId", "globalTid", "start", "end")
    is_traced = database.has_table_with_columns(RUNTIME, *names[:3])
    for correlation, thread, start, end in (
        iterate_integer_column_chunks(database, RUNTIME, *names) if is_traced else ()
    ):
        threads |= find_distinct_values(thread)
        stated = (correlation != NULL) & (thread != NULL)
        raise_if_null_values(RUNTIME, start[stated])
        callers |= find_distinct_values((thread & PROCESS_BITS)[stated])
        rows = np.flatnonzero(
            stated & (gpu_work_correlations.find_first_equal(correlation) != NOBODY)
        )
        caller, begins = thread[rows], start[rows]
        ends = np.where(end[rows] == NULL, begins, end[rows])
        calls = SpanArrays(caller & PROCESS_BITS, caller, begins, ends)
        enclosing = ranges.attribution.find_ranges_around_calls(calls)
        indices = (column.astype(np.int32) for column in enclosing)
        spans = calls[1:] if keeps_spans else ()
        pieces.append([calls.process, correlation[rows], *indices, *spans])
    process, ids, innermost, layer, step, *spans_of = map(np.concatenate, zip(*pieces, strict=True))
    return _LaunchCalls(
        LaunchCallIndex(process, ids),
        EnclosingRanges(innermost, layer, step),
        callers.pop() if len(callers) == 1 else None,
        SpanArrays(process, *spans_of) if keeps_spans else None,
        threads,
    )


def _match_work_with_launch_calls(
    work: _WorkColumns,
    calls: _LaunchCalls,
    gpu_time_by_range: GpuTimeByRange,
    created: _CreatedNodes | None,
) -> TableLaunches:
    process = work.process
    if calls.only_process is not None:  # then it can only be that one
        process = np.where(process == NULL, calls.only_process, process)
    call = calls.calls.find_call_index(process, work.correlation)
    enclosing = EnclosingRanges(
        *(np.append(values, np.int32(NOBODY))[call] for values in calls.around)
    )
    captured = np.zeros(len(call), bool)
    gpu_time_by_range.add_gpu_operations(
        enclosing.innermost, call, calls.spans, work.start, work.length
    )
    if created is not None:
        layer = np.append(created.layers, NOBODY)[created.nodes.find_call_index(process, work.node)]
        captured = layer != NOBODY
        of_layer = np.where(captured, layer, enclosing.layer).astype(np.int32)
        enclosing = enclosing._replace(layer=of_layer)
    unlaunched = int((call == NOBODY).sum())
    return TableLaunches(enclosing, unlaunched, captured if captured.any() else None)


def find_distinct_values(values: Integers) -> set[int]:
    """Return the values, each once: quickly if the same one stands in many rows after one
    another."""
    changes = np.flatnonzero(values[1:] != values[:-1])
    return {*values[changes].tolist(), *values[-1:].tolist()}


def _find_created_graph_nodes(database: Database, ranges: RangeTable) -> _CreatedNodes | None:
    """Return the nodes; None if the report has no creation of one."""
    names = ("start", "globalTid", "graphNodeId", "originalGraphNodeId")
    events = read_integer_columns(database, NODES, *names)
    events = events[:, (events[:3] != NULL).all(axis=0)]
    if not events.size:
        return None
    # of several events of a node, the first is its creation
    begins, threads, ids, copied = events[:, np.argsort(events[0], kind="stable")]
    copied = np.where(copied == NULL, 0, copied)
    processes = threads & PROCESS_BITS
    nodes = LaunchCallIndex(processes, ids)
    first = np.arange(len(ids))
    for _ in range(_GENERATIONS):
        copies = (first != NOBODY) & (copied[first] != 0)
        if not copies.any():
            break
        above = nodes.find_call_index(processes[first[copies]], copied[first[copies]])
        first[copies] = np.where(above == first[copies], NOBODY, above)
    else:
        first[copies] = NOBODY  # a circle
    enclosing = ranges.attribution.find_ranges_around_calls(
        SpanArrays(processes, threads, begins, begins)
    )
    return _CreatedNodes(nodes, np.append(enclosing.layer, NOBODY)[first], first != NOBODY)


def _summarize_graph_launches(
    work: _WorkColumns, enclosing: EnclosingRanges, ranges: RangeTable, created: _CreatedNodes
) -> Iterator[GraphLaunch]:
    """Yield one record per launch of a graph, in the order of its first kernel."""
    rows = np.flatnonzero(work.node != NULL)
    if not len(rows):
        return
    process, correlation, length = (
        column[rows] for column in (work.process, work.correlation, work.length)
    )
    keys = np.stack([process, correlation])
    _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    node = created.nodes.find_call_index(process, work.node[rows])
    matched = np.bincount(group, np.append(created.is_captured, False)[node]).astype(np.int64)
    kernels, untimed = np.bincount(group), np.bincount(group, length < 0) > 0
    steps = ranges.get_step_per_range()[enclosing.step[rows]]
    times = np.zeros(len(first), np.int64)
    np.add.at(times, group, length)
    for index in np.argsort(first, kind="stable").tolist():
        row = first[index]
        count, captured = int(kernels[index]), int(matched[index])
        yield GraphLaunch(
            int(correlation[row]),
            None if steps[row] == NOBODY else int(steps[row]),
            count,
            None if untimed[index] else int(times[index]),
            CREATION if captured else None,
            captured,
            "node" if captured else None,
            captured / count if captured else None,
        )


def read_kernels(
    path: Path, database: Database, launched: TableLaunches, ranges: RangeTable
) -> Iterable[Kernel]:
    """Return all kernels in the order of their table."""
    count = len(launched.around.innermost)
    if not count:
        return ()
    records = ColumnRecords(Kernel, partial(_iterate_kernel_columns, path, launched, ranges))
    # two queries: for min and max in one SQLite would scan every row
    (first,), (last,) = database.connection.execute(
        f"SELECT min(rowid) FROM {KERNEL} UNION ALL SELECT max(rowid) FROM {KERNEL}"
    )
    names = _read_kernel_names(database)
    # where rows were deleted, a row's position does not follow from its id
    if last - first + 1 != count or names is None:
        return records
    layers = {}
    used = np.flatnonzero(np.bincount(launched.around.layer + 1)[1:])
    sources = ["range"] if launched.captured is None else ["range", "capture"]
    for index in np.unique(ranges.name[used]).tolist():
        label = ranges.labels[index]
        for number, source in enumerate(sources):
            layers[index + number * len(ranges.labels)] = (label.layer, label.direction, source)
    return SqlKernels(
        path,
        KERNEL,
        first,
        _build_sql_of_kernel_fields(database),
        NAMES[0],
        names,
        partial(_iterate_same_layer_row_runs, first, launched, ranges),
        layers,
        records,
    )


def _read_kernel_names(database: Database) -> dict[int, tuple[str, str | None]] | None:
    """Return number in the table -> name and short name, as all real exports have them; None if a
    name has no number, or more than one short name."""
    if not database.has_table_with_columns(KERNEL, *NAMES):
        return None
    name, short_name = NAMES
    query = f"SELECT DISTINCT {name}, {sql_integer(short_name)} FROM {KERNEL}"
    pairs, strings = database.connection.execute(query).fetchall(), StringTable(database)
    numbers = dict(pairs)
    if len(numbers) < len(pairs) or any(type(key) is not int or key < 0 for key in numbers):
        return None
    return {number: (strings[number] or NO_NAME, strings[short]) for number, short in pairs}


def _build_sql_of_kernel_fields(
    database: Database, column_to_sql: Callable[[str], str] = str
) -> dict[str, str]:
    """Return field of Kernel -> its SQL, of those that this version's table has. ``column_to_sql``:
    of a column; a store itself looks for values that are no integers."""
    fields = {
        field: f"nullif({column_to_sql(column)}, 0)"
        if field in OFTEN_ZERO
        else column_to_sql(column)
        for field, column in COLUMNS.items()
        if database.has_table_with_columns(KERNEL, column)
    }
    if database.has_table_with_columns(KERNEL, "start", "end"):
        fields["duration_ns"] = f"{column_to_sql('end')} - {column_to_sql('start')}"
    if database.has_table_with_columns(KERNEL, "globalPid"):
        fields["process"] = _PROCESS
    return fields


def _iterate_same_layer_row_runs(
    first_row: int, launched: TableLaunches, ranges: RangeTable
) -> Iterator[Sequence[Sequence[int]]]:
    """A layer launches several kernels, so these are a fraction of all rows. The number of a layer
    that the capture of a graph told is larger by the number of names."""
    enclosing, names, steps = (
        launched.around,
        np.append(ranges.name, NOBODY),
        ranges.get_step_per_range(),
    )
    for first in range(0, len(enclosing.innermost), TOGETHER):
        part = slice(first, first + TOGETHER)
        layers = names[enclosing.layer[part]]
        if launched.captured is not None:
            layers = layers + launched.captured[part] * len(ranges.labels)
        columns = (layers, steps[enclosing.step[part]], enclosing.innermost[part])
        differs = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        starts = np.append(0, np.flatnonzero(differs) + 1)
        ends = np.append(starts[1:], len(layers)) - 1
        rows = (starts + first_row + first, ends + first_row + first)
        yield [column.tolist() for column in (*rows, *(column[starts] for column in columns))]


def _iterate_kernel_columns(
    path: Path, launched: TableLaunches, ranges: RangeTable
) -> ColumnChunks:
    enclosing = launched.around
    layers, directions, steps = (
        ranges.get_label_field_per_range(field) for field in ("layer", "direction", "step")
    )
    sources = make_object_array(["range" if layer is not None else None for layer in layers])
    with open_export(path) as database:
        long_names, short_names = StringTable(database, NO_NAME), StringTable(database)
        known_fields = _build_sql_of_kernel_fields(database, sql_integer)
        names = [sql_integer(database.column_or_null(KERNEL, name)) for name in NAMES]
        first_field = Kernel._fields.index("device_index")
        fields = [known_fields.get(field, "NULL") for field in Kernel._fields[first_field:]]
        query = f"SELECT {', '.join([*names, *fields])} FROM {KERNEL} NOT INDEXED"
        cursor, first = database.connection.execute(query), 0
        while rows := cursor.fetchmany(CHUNK):
            part = slice(first, first + len(rows))
            name, short_name, *columns = zip(*rows, strict=True)
            layer = enclosing.layer[part]
            innermost, source = enclosing.innermost[part], sources[layer]
            if launched.captured is not None:
                source[launched.captured[part]] = "capture"
            yield (
                range(first, first + len(rows)),
                # read the names now: a damaged page raises here and not while iterating
                list(map(long_names.__getitem__, name)),
                list(map(short_names.__getitem__, short_name)),
                layers[layer].tolist(),
                directions[layer].tolist(),
                steps[enclosing.step[part]].tolist(),
                source.tolist(),
                convert_to_list_with_none(innermost, innermost == NOBODY),
                *columns,
            )
            first += len(rows)
