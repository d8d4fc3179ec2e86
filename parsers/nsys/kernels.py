"""Reads kernels of an nsys export: which call launched each, and which ranges were around the call;
then as records, or for a store to copy them inside SQLite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfctl.parsers.attribution import NOBODY, SLICE, Calls, Ids, Spans
from perfctl.parsers.common.sqlite import Database, integer
from perfctl.parsers.nsys.calls import Sums
from perfctl.parsers.nsys.graphs import Created, find_created, find_launches
from perfctl.parsers.nsys.ranges import PROCESS_BITS, GpuTime, RangeTable, objects
from perfctl.parsers.nsys.tables import KERNEL, RUNTIME, Strings, check_starts, opened
from perfctl.records.bulk import NO_NAME, Columns, SqlKernels
from perfctl.records.report import Kernel
from perfctl.records.serving import GraphLaunch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from perfctl.parsers.attribution import Flags, Integers

    Indices = npt.NDArray[np.int32]
else:
    from perfctl.parsers.attribution import np

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
_PROCESS = "(globalPid >> 24) & 0xFFFFFF"


class Around(NamedTuple):
    """For every row of a table of GPU work: indices of the ranges around its launch call, NOBODY
    where there is none. They are int32, half the width of other arrays: for millions of rows these
    are all that is kept."""

    innermost: Indices
    layer: Indices
    step: Indices

    def at(self, rows: Integers) -> Around:
        """Return the entries of these rows; NOBODY stays NOBODY."""
        if not len(self.innermost):
            return Around(*[np.full(len(rows), NOBODY, np.int32)] * 3)
        return Around(*(np.where(rows >= 0, values[rows], np.int32(NOBODY)) for values in self))


class Launched(NamedTuple):
    """Launches of one table of GPU work."""

    around: Around
    unlaunched: int
    """Rows that no launch call in the report belongs to."""
    captured: Flags | None = None
    """Rows whose layer is that in which the node of their graph was captured; None where there
    is none."""
    graphs: tuple[GraphLaunch, ...] = ()
    """Of kernels only: the launches of graphs."""


class Attributed(NamedTuple):
    """What the calls of a report launched."""

    launched: dict[str, Launched]
    """Table -> its rows, in their order."""
    api: Sums
    """The calls themselves, by number of their name."""
    gpu: GpuTime
    """What all of it took, by range."""
    threads: set[int]
    """Threads that made the calls."""


class _Work(NamedTuple):
    """Columns of a table of GPU work; NOBODY where process or correlation id is not said."""

    process: Integers
    correlation: Integers
    start: Integers
    length: Integers
    """Negative where start or end is not known."""
    node: Integers
    """Of a CUDA graph, NOBODY for none (some versions write 0); empty where nodes are not read."""


class _LaunchCalls(NamedTuple):
    """Calls that launched GPU work."""

    calls: Calls
    around: Around
    only_process: int | None
    """Where a single one made all calls of the report."""
    spans: Spans | None
    """Of the calls; None where nobody needs them."""


def attribute(database: Database, tables: Sequence[str], ranges: RangeTable) -> Attributed:
    """Return what the work in these tables belongs to. Calls that launched none of it are only
    counted."""
    created = find_created(database, ranges)
    work = {table: _read_work(database, table, created is not None) for table in tables}
    api, gpu, threads = Sums(), GpuTime(ranges), set[int]()
    wanted = Ids(_join([some.correlation for some in work.values()]))
    calls = _read_calls(database, wanted, ranges, api, threads, gpu.keeps_calls)
    launched = {table: _find_launches(some, calls, gpu, created) for table, some in work.items()}
    kernels, of_kernels = work[KERNEL], launched[KERNEL]
    if created is not None and len(kernels.node):
        in_graph = kernels.node != NOBODY
        _, is_captured = created.find(kernels.process, kernels.node)
        steps = ranges.step_numbers()[of_kernels.around.step]
        columns = (kernels.process, kernels.correlation, kernels.length, steps)
        graphs = find_launches(*columns, in_graph, is_captured)
        launched[KERNEL] = of_kernels._replace(graphs=tuple(graphs))
    return Attributed(launched, api, gpu, threads)


def _read_work(database: Database, table: str, has_nodes: bool) -> _Work:
    names = ("globalPid", "correlationId", "start", "end", *(("graphNodeId",) if has_nodes else ()))
    pieces: list[tuple[Integers, ...]] = []
    for process, called, begin, end, *nodes in database.numbers(table, *names):
        known = begin.where_known() & end.where_known()
        took = np.where(known, end.values - begin.values, NOBODY)
        ids = process.or_else(NOBODY), called.or_else(NOBODY)
        graph = [np.where(node.or_else(0) == 0, NOBODY, node.values) for node in nodes]
        pieces.append((*ids, begin.values, took, *graph))
    if not pieces:
        return _Work(*[np.empty(0, np.int64)] * 5)
    processes, *columns = zip(*pieces, strict=True)
    graph_nodes = _join(columns.pop()) if has_nodes else np.empty(0, np.int64)
    correlation, start, length = map(_join, columns)
    return _Work(_join_equal(processes), correlation, start, length, graph_nodes)


def _read_calls(
    database: Database,
    wanted: Ids,
    ranges: RangeTable,
    api: Sums,
    threads: set[int],
    keeps_spans: bool,
) -> _LaunchCalls:
    """Read all calls of the CUDA API, and keep those that launched ``wanted`` work; nothing where
    they were not traced. ``api`` and ``threads`` are added to."""
    processes, correlations, found, kept = [], [], [], []
    callers: set[int] = set()
    names = ("correlationId", "globalTid", "start", "end", "nameId")
    is_traced = database.has(RUNTIME, *names[:3])
    pieces = database.numbers(RUNTIME, *names) if is_traced else ()
    for correlation, thread, start, end, name in pieces:
        length = (end.values - start.values) * end.where_known()
        api.add(name, length, end.known)
        threads.update(find_different(thread.or_else(NOBODY)))
        stated = correlation.where_known() & thread.where_known()
        check_starts(RUNTIME, start, stated)
        callers.update(_find_extremes((thread.values & PROCESS_BITS)[stated]))
        is_wanted = wanted.first_equal(correlation.values) != NOBODY
        rows = np.flatnonzero(stated & is_wanted)
        begins, caller = start.values[rows], thread.values[rows]
        calls = Spans(caller & PROCESS_BITS, caller, begins, begins + length[rows])
        inside = ranges.attribution.of_calls(calls)
        processes.append(calls.process)
        correlations.append(correlation.values[rows])
        columns = (inside.innermost, inside.layer, inside.step)
        found.append(Around(*(column.astype(np.int32) for column in columns)))
        kept += [(calls.process, caller, begins, calls.end)] * keeps_spans
    only = callers.pop() if len(callers) == 1 else None
    spans = Spans(*map(_join, zip(*kept, strict=True) if kept else [()] * 4))
    by_id = Calls(_join_equal(processes), _join(correlations))
    return _LaunchCalls(by_id, _join_around(found), only, spans if keeps_spans else None)


def _find_launches(
    work: _Work, known: _LaunchCalls, gpu: GpuTime, created: Created | None
) -> Launched:
    found, captured, unlaunched = [], [], 0
    for first in range(0, len(work.correlation), SLICE):
        part = slice(first, first + SLICE)
        process = work.process[part]
        if known.only_process is not None:  # then it can only be that one
            process = np.where(process == NOBODY, known.only_process, process)
        call = known.calls.find(process, work.correlation[part])
        unlaunched += int((call == NOBODY).sum())
        around = known.around.at(call)
        gpu.add(around.innermost, call, known.spans, work.start[part], work.length[part])
        if created is not None and len(work.node):
            layer, _ = created.find(process, work.node[part])
            captured.append(layer != NOBODY)
            of_layer = np.where(layer != NOBODY, layer, around.layer).astype(np.int32)
            around = around._replace(layer=of_layer)
        found.append(around)
    rows = np.concatenate(captured) if captured else None
    has_captured = rows is not None and bool(rows.any())
    return Launched(_join_around(found), unlaunched, rows if has_captured else None)


def _join_around(found: Sequence[Around]) -> Around:
    if not found:
        return Around(*[np.empty(0, np.int32)] * 3)
    return found[0] if len(found) == 1 else Around(*map(np.concatenate, zip(*found, strict=True)))


def _join(pieces: Sequence[Integers]) -> Integers:
    return np.concatenate(pieces) if len(pieces) else np.empty(0, np.int64)


def _join_equal(pieces: Sequence[Integers]) -> Integers:
    """Join the pieces; where all numbers are equal, without memory for each."""
    values = set[int]().union(*map(_find_extremes, pieces))
    if len(values) == 1:
        return np.broadcast_to(np.int64(values.pop()), sum(map(len, pieces)))
    return _join(pieces)


def _find_extremes(values: Integers) -> set[int]:
    return {int(values.min()), int(values.max())} if len(values) else set()


def find_different(values: Integers) -> set[int]:
    """Return the values, each once: quickly where the same stands in many rows after one
    another."""
    if not len(values):
        return set()
    changes = np.flatnonzero(values[1:] != values[:-1])
    return set(values[np.append(changes, len(values) - 1)].tolist())


def read_kernels(
    path: Path, database: Database, launched: Launched, ranges: RangeTable
) -> Iterable[Kernel]:
    """Return all kernels in the order of their table."""
    count = len(launched.around.innermost)
    if KERNEL not in database.tables or not count:
        return ()
    records = Columns(Kernel, partial(_read_chunks, path, launched, ranges))
    first, last = database.ends(KERNEL)
    names = _read_names(database)
    # where rows were deleted, a row's position does not follow from its id
    if last - first + 1 != count or names is None:
        return records
    layers = {}
    for index in _find_used(ranges.name, launched.around.layer):
        label = ranges.labels[index]
        layers[index] = (label.layer, label.direction, "range")
        if launched.captured is not None:
            captured = (label.layer, label.direction, "capture")
            layers[index + len(ranges.labels)] = captured
    return SqlKernels(
        path,
        KERNEL,
        first,
        _find_fields(database, is_checked=False),
        NAMES[0],
        names,
        partial(_find_stretches, first, launched, ranges),
        layers,
        records,
    )


def _read_names(database: Database) -> dict[int, tuple[str, str | None]] | None:
    """Return number -> (name, short name), as all real exports have them; None where a name has no
    number, or has more than one short name."""
    if not database.has(KERNEL, *NAMES):
        return None
    query = f"SELECT DISTINCT {', '.join(NAMES)} FROM {KERNEL}"
    pairs = database.connection.execute(query).fetchall()
    numbers = {name for name, _ in pairs}
    if len(numbers) < len(pairs) or not all(
        type(name) is int and 0 <= name < 1 << 32 for name in numbers
    ):
        return None
    strings = Strings(database)
    strings.look_up(number for pair in pairs for number in pair)
    return {name: (strings[name] or NO_NAME, strings[short]) for name, short in pairs}


def _find_fields(database: Database, *, is_checked: bool) -> dict[str, str]:
    """Return field of Kernel -> its SQL, of those that this version's table has. ``is_checked``:
    values that are no integers are NULL; a store looks for them itself."""

    def sql_of(column: str) -> str:
        return integer(column) if is_checked else column

    fields = {}
    for field, column in COLUMNS.items():
        if database.has(KERNEL, column):
            sql = sql_of(column)
            fields[field] = f"nullif({sql}, 0)" if field in OFTEN_ZERO else sql
    if database.has(KERNEL, "start", "end"):
        fields["duration_ns"] = f"{sql_of('end')} - {sql_of('start')}"
    if database.has(KERNEL, "globalPid"):
        fields["process"] = _PROCESS
    return fields


def _find_stretches(
    first_row: int, launched: Launched, ranges: RangeTable
) -> Iterator[Sequence[Sequence[int]]]:
    """A layer launches several kernels, so these are a fraction of all rows. The number of a layer
    that the capture of a graph told is larger by the number of names."""
    around, names, steps = launched.around, np.append(ranges.name, NOBODY), ranges.step_numbers()
    for first in range(0, len(around.innermost), TOGETHER):
        part = slice(first, first + TOGETHER)
        layers = names[around.layer[part]]
        if launched.captured is not None:
            layers = layers + launched.captured[part] * len(ranges.labels)
        columns = (layers, steps[around.step[part]], around.innermost[part])
        differs = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        starts = np.append(0, np.flatnonzero(differs) + 1)
        ends = np.append(starts[1:], len(layers)) - 1
        rows = (starts + first_row + first, ends + first_row + first)
        yield [column.tolist() for column in (*rows, *(column[starts] for column in columns))]


def _find_used(numbers: Integers, which: Indices) -> list[int]:
    """Return every value of ``numbers[which]``, NOBODY left out; sorted."""
    is_used = np.zeros(len(numbers) + 1, bool)
    is_used[which] = True
    return list(map(int, np.unique(numbers[is_used[:-1]])))


def _read_chunks(
    path: Path, launched: Launched, ranges: RangeTable
) -> Iterator[Sequence[Sequence[Any]]]:
    around = launched.around
    layers, directions, steps = (ranges.label_of(field) for field in ("layer", "direction", "step"))
    sources = objects(["range" if layer is not None else None for layer in layers])
    numbers = objects([*range(len(ranges.kind)), None])
    with opened(path) as database:
        long_names, short_names = Strings(database, NO_NAME), Strings(database)
        known = _find_fields(database, is_checked=True)
        names = [integer(name) if database.has(KERNEL, name) else "NULL" for name in NAMES]
        first_field = Kernel._fields.index("device_index")
        fields = [known.get(field, "NULL") for field in Kernel._fields[first_field:]]
        query = f"SELECT {', '.join([*names, *fields])} FROM {KERNEL} NOT INDEXED"
        cursor, first = database.connection.execute(query), 0
        while rows := cursor.fetchmany(CHUNK):
            part = slice(first, first + len(rows))
            name, short_name, *columns = zip(*rows, strict=True)
            layer = around.layer[part]
            source = sources[layer]
            if launched.captured is not None:
                source[launched.captured[part]] = "capture"
            yield (
                range(first, first + len(rows)),
                # read the names now: a damaged page raises here and not while iterating
                list(map(long_names.__getitem__, name)),
                list(map(short_names.__getitem__, short_name)),
                layers[layer].tolist(),
                directions[layer].tolist(),
                steps[around.step[part]].tolist(),
                source.tolist(),
                numbers[around.innermost[part]].tolist(),
                *columns,
            )
            first += len(rows)
