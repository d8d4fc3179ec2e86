"""Reads kernels of an nsys export, as records or as SQL for a store to copy them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfctl.parsers.attribution import NOBODY, SLICE, Calls, Spans, Wanted
from perfctl.parsers.nsys import ranges as nsys_ranges
from perfctl.parsers.nsys.calls import Sums
from perfctl.parsers.nsys.kernel_check import NAMES, KernelCheck
from perfctl.parsers.nsys.ranges import PROCESS_BITS, Created, GpuTime, RangeTable, objects
from perfctl.parsers.nsys.tables import KERNEL, RUNTIME, Strings, opened
from perfctl.parsers.text.sqlite import Database, integer
from perfctl.parsers.text.sqlite_checks import LARGEST
from perfctl.records.bulk import AROUND, NO_NAME, Columns, SqlKernels
from perfctl.records.report import Kernel
from perfctl.records.serving import GraphLaunch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from perfctl.parsers.attribution import Flags, Integers
    from perfctl.parsers.text.sqlite_pages import Column

    Indices = npt.NDArray[np.int32]

CHUNK = 512
"""Rows converted to columns at a time: few enough for the processor's cache (2048 takes a
fifth longer)."""
TOGETHER = 1 << 16
"""Rows in which stretches are sought at a time."""

COLUMNS = (
    *("deviceId", "streamId", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "start"),
)
"""In the order of Kernel's fields from device_index on; the duration follows."""
PROCESS_NUMBER = 0xFFFFFF
"""Bits of a process id, above those of the thread's."""
OFTEN_ZERO = {
    "graph_id": "graphId",
    "graph_node_id": "graphNodeId",
    "cluster_x": "clusterX",
    "cluster_y": "clusterY",
    "cluster_z": "clusterZ",
}
"""Field of Kernel -> its column, where nsys writes 0 for "no graph" and "no cluster"."""

_DURATION = Kernel._fields.index("duration_ns")
_TO_DURATION = Kernel._fields[Kernel._fields.index("range_number") : _DURATION + 1]
_AFTER_DURATION = Kernel._fields[_DURATION + 1 :]


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
            nobody = self.innermost.dtype.type(NOBODY).repeat(len(rows))
            return Around(nobody, nobody, nobody)
        known = rows >= 0

        def some(values: Indices) -> Indices:
            picked = values[rows]
            picked[~known] = NOBODY
            return picked

        return Around(*map(some, self))


class Launched(NamedTuple):
    """Launches of one table of GPU work."""

    around: Around
    unlaunched: int
    """Rows that no launch call in the report belongs to."""
    process: int | None
    """The process that launched all of them; None when there are several, or not all rows
    say so."""
    check: KernelCheck | None = None
    """Of kernels only."""
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
    node: Integers | None = None
    """Of a CUDA graph, NOBODY for none; None where the report has no creation of a node."""


def attribute(database: Database, tables: Sequence[str], ranges: RangeTable) -> Attributed:
    """Calls that launched none of the work in these tables are only counted."""
    check = KernelCheck(database)
    created = nsys_ranges.created(database, ranges)
    work = {
        table: _work(database, table, check if table == KERNEL else None, created is not None)
        for table in tables
    }
    gpu, counted = GpuTime(ranges), _Counted(Sums(), set())
    calls = _calls(
        database,
        Wanted([some.correlation for some in work.values()]),
        ranges,
        counted,
        gpu.keeps_calls,
    )
    launched = {table: _launched(some, calls, gpu, created) for table, some in work.items()}
    launched[KERNEL] = launched[KERNEL]._replace(
        check=check, graphs=_graphs(work[KERNEL], launched[KERNEL], ranges, created)
    )
    return Attributed(launched, counted.api, gpu, counted.threads)


class _Counted(NamedTuple):
    """What is counted of all calls while they are read."""

    api: Sums
    threads: set[int]


def _work(database: Database, table: str, check: KernelCheck | None, nodes: bool) -> _Work:
    """``nodes``: also read the nodes of graphs."""
    names = ("globalPid", "correlationId", "start", "end", *(("graphNodeId",) if nodes else ()))
    pieces, of_graphs = [], []
    for columns in database.numbers(
        table, *names, few=("globalPid",), also=check.columns if check else ()
    ):
        process, correlation, start, end, *others = columns
        if nodes:
            node, *others = others
            of_graphs.append(_node(node))
        pieces.append(_work_piece(process, correlation, start, end))
        if check:
            check.add(others, start, end, pieces[-1][-1])
    joined = zip(*pieces, strict=True) if pieces else ((), (), (), ())
    of_process, *more = map(list, joined)
    found = _Work(_same(of_process), *map(_joined, more))
    return found._replace(node=_joined(of_graphs)) if nodes else found


def _node(node: Column) -> Integers:
    """Some versions write 0 for no graph."""
    import numpy as np

    return np.where(node.or_else(0) == 0, NOBODY, node.values)


def _work_piece(
    process: Column, correlation: Column, start: Column, end: Column
) -> tuple[Integers, ...]:
    import numpy as np

    known = start.where_known() & end.where_known()
    length = np.where(known, end.values - start.values, NOBODY)
    return process.or_else(NOBODY), correlation.or_else(NOBODY), start.values, length


class _Known(NamedTuple):
    calls: Calls
    around: Around
    only: int | None
    """The process, where a single one made all calls."""
    spans: Spans | None
    """Of the calls; None where nobody needs them."""


def _calls(
    database: Database, wanted: Wanted, ranges: RangeTable, counted: _Counted, keep: bool
) -> _Known:
    import numpy as np

    processes, correlations, found, kept = [], [], [], []
    callers: set[int] = set()
    for correlation, spans in _spans(database, counted):
        callers.update(_extremes(spans.process))
        chosen = wanted.among(correlation).nonzero()[0]
        calls = spans.take(chosen)
        in_process = ranges.attribution.of_calls(calls, phases=False)
        processes.append(calls.process)
        correlations.append(correlation[chosen])
        columns = (in_process.innermost, in_process.layer, in_process.step)
        found.append(Around(*(column.astype(np.int32) for column in columns)))
        if keep:
            kept.append(calls)
    only = callers.pop() if len(callers) == 1 else None
    fields = ("process", "thread", "start", "end")
    every = (
        Spans(*(_joined([getattr(one, name) for one in kept]) for name in fields)) if keep else None
    )
    return _Known(Calls(_same(processes), _joined(correlations)), _together(found), only, every)


def _spans(database: Database, counted: _Counted) -> Iterator[tuple[Integers, Spans]]:
    """(correlation ids, spans) of all CUDA API calls, piece by piece; nothing where they were
    not traced."""
    if not database.has(RUNTIME, "globalTid", "correlationId", "start"):
        return
    names = ("correlationId", "globalTid", "start", "end", "nameId")
    for correlation, thread, start, end, name in database.numbers(
        RUNTIME, *names, few=("globalTid",)
    ):
        length = (end.values - start.values) * end.where_known()
        counted.api.add(name, length, end.known)
        counted.threads.update(different(thread.or_else(NOBODY)))
        stated = correlation.where_known() & thread.where_known()
        start.check_known(RUNTIME, stated)
        spans = Spans(
            thread.values & PROCESS_BITS, thread.values, start.values, start.values + length
        )
        if stated.all():
            yield correlation.values, spans
        else:
            rows = stated.nonzero()[0]
            yield correlation.values[rows], spans.take(rows)


def _launched(work: _Work, known: _Known, gpu: GpuTime, created: Created | None) -> Launched:
    import numpy as np

    found, captured, unlaunched = [], [], 0
    for first in range(0, len(work.correlation), SLICE):
        part = slice(first, first + SLICE)
        of_process = work.process[part]
        if known.only is not None:  # then it can only be that one
            of_process = np.where(of_process == NOBODY, known.only, of_process)
        call = known.calls.find(of_process, work.correlation[part])
        unlaunched += int((call == NOBODY).sum())
        found.append(known.around.at(call))
        gpu.add(found[-1].innermost, call, known.spans, work.start[part], work.length[part])
        if created is not None and work.node is not None:
            layer, _ = created.find(of_process, work.node[part])
            captured.append(layer != NOBODY)
            found[-1] = found[-1]._replace(
                layer=np.where(captured[-1], layer, found[-1].layer).astype(np.int32)
            )
    processes = _extremes(work.process)
    only = next(iter(processes)) if len(processes) == 1 and NOBODY not in processes else None
    rows = np.concatenate(captured) if captured else None
    return Launched(
        _together(found),
        unlaunched,
        only,
        captured=rows if rows is not None and rows.any() else None,
    )


def _graphs(
    work: _Work, launched: Launched, ranges: RangeTable, created: Created | None
) -> tuple[GraphLaunch, ...]:
    if created is None or work.node is None or not len(work.node):
        return ()
    in_graph = work.node != NOBODY
    _, is_captured = created.find(work.process, work.node)
    steps = _step_numbers(ranges)[launched.around.step]
    return tuple(
        nsys_ranges.launches(
            work.process, work.correlation, work.length, steps, in_graph, is_captured
        )
    )


def _step_numbers(ranges: RangeTable) -> Integers:
    """Of every range, NOBODY where its name is of no step; and NOBODY at the end."""
    import numpy as np

    steps = np.array(
        [NOBODY if label.step is None else label.step for label in ranges.labels], np.int64
    )
    return np.append(steps[ranges.name], NOBODY)


def _together(found: Sequence[Around]) -> Around:
    import numpy as np

    if len(found) == 1:
        return found[0]
    return (
        Around(*map(np.concatenate, zip(*found, strict=True)))
        if found
        else Around(*[np.empty(0, np.int32)] * 3)
    )


def _joined(pieces: list[Integers]) -> Integers:
    import numpy as np

    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _same(pieces: list[Integers]) -> Integers:
    """Join the pieces; where all numbers are equal, without memory for each."""
    import numpy as np

    values = set().union(*map(_extremes, pieces))
    if len(values) == 1:
        return np.broadcast_to(np.int64(values.pop()), sum(map(len, pieces)))
    return _joined(pieces)


def different(values: Integers) -> set[int]:
    """The values, each once: quickly where the same stands in many rows after one another."""
    import numpy as np

    return (
        set(values[np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)].tolist())
        if len(values)
        else set()
    )


def _extremes(values: Integers) -> set[int]:
    return {int(values.min()), int(values.max())} if len(values) else set()


def kernels(
    path: Path, database: Database, launched: Launched, ranges: RangeTable
) -> Iterable[Kernel]:
    """All kernels in the order of their table."""

    found = launched.around
    records = Columns(Kernel, partial(_columns, path, launched, ranges))
    if KERNEL not in database.tables or not len(found.innermost):
        return ()
    first, last = database.ends(KERNEL)
    # rows were deleted, so a row's position does not follow from its id
    if last - first + 1 != len(found.innermost):
        return records
    name_columns, rest, more = _expressions(database, launched.process, launched.check)
    around = ("layer", "step", "range_number")
    columns = [
        f"kernel.rowid - {first}",
        *name_columns,
        *(f"around.{name}" for name in around),
        *rest,
        *more.values(),
    ]
    rows = f"{AROUND} AS around CROSS JOIN report.{KERNEL} AS kernel NOT INDEXED"
    select = (
        f"SELECT {', '.join(columns)} FROM {rows} WHERE kernel.rowid BETWEEN around.first_row AND "
        "around.last_row"
    )
    fields = (*_TO_DURATION, *more)
    used = {index: ranges.labels[index] for index in _used(ranges.name, found.layer)}
    layers = {index: (label.layer, label.direction, "range") for index, label in used.items()}
    if launched.captured is not None:
        layers |= {
            index + len(ranges.labels): (label.layer, label.direction, "capture")
            for index, label in used.items()
        }
    stretches = partial(_stretches, first, launched, ranges)
    check = launched.check
    checked, names = (check.never_negative(), check.names()) if check else ((), None)
    return SqlKernels(
        path, select, fields, stretches, layers, partial(_texts, path), records, checked, names
    )


def _stretches(
    first_row: int, launched: Launched, ranges: RangeTable
) -> Iterator[Sequence[Sequence[int]]]:
    """Rows that follow one another and have the same around them: a fraction of all rows, as a
    layer launches several kernels. For SQLite a join with these is five times as fast as a look-up
    for each row. The number of a layer that the capture of a graph told is larger by the number
    of names."""
    import numpy as np

    found, layer, step = launched.around, np.append(ranges.name, NOBODY), _step_numbers(ranges)
    for first in range(0, len(found.innermost), TOGETHER):
        part = slice(first, first + TOGETHER)
        numbers = layer[found.layer[part]]
        if launched.captured is not None:
            numbers = numbers + launched.captured[part] * len(ranges.labels)
        columns = (numbers, step[found.step[part]], found.innermost[part])
        differs = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        starts = np.append(0, np.flatnonzero(differs) + 1)
        ends = np.append(starts[1:], len(columns[0])) - 1
        yield [
            *((rows + (first_row + first)).tolist() for rows in (starts, ends)),
            *(column[starts].tolist() for column in columns),
        ]


def _used(numbers: Integers, which: Indices) -> list[int]:
    """Every value of ``numbers[which]``, NOBODY left out; sorted."""
    import numpy as np

    is_used = np.zeros(len(numbers) + 1, bool)
    is_used[which] = True
    return list(map(int, np.unique(numbers[is_used[:-1]])))


def _expressions(
    database: Database, process: int | None = None, check: KernelCheck | None = None
) -> tuple[list[str], list[str], dict[str, str]]:
    """SQL of the two names' ids, of Kernel's fields from device_index to duration_ns, and of the
    fields behind these; what is not in this version's table is not among the last. ``process``: the
    only one, where that is known. Values that are no integers are NULL; in a large report where
    ``check`` found none they are not looked for."""
    # a small one costs nothing
    is_plain = check is not None and check.is_whole and database.size() > LARGEST

    def column(name: str) -> str:
        is_there = database.has(KERNEL, name)
        return name if is_plain and is_there else integer(name) if is_there else "NULL"

    names, columns = ([column(name) for name in some] for some in (NAMES, COLUMNS))
    duration = f"{column('end')} - {column('start')}"
    of_process = (
        f"(globalPid >> 24) & {PROCESS_NUMBER}"
        if process is None
        else str(process >> 24 & PROCESS_NUMBER)
    )
    more = {
        "process": ("globalPid", of_process),
        "context": ("contextId", column("contextId")),
        "correlation": ("correlationId", column("correlationId")),
        **{field: (name, f"nullif({column(name)}, 0)") for field, name in OFTEN_ZERO.items()},
    }
    last = {
        field: more[field][1]
        for field in Kernel._fields
        if field in more and database.has(KERNEL, more[field][0])
    }
    return names, [*columns, duration], last


def _texts(path: Path, keys: Iterable[object]) -> Mapping[object, str | None]:
    with opened(path) as database:
        wanted, strings = list(keys), Strings(database)
        strings.look_up(wanted)
        return {key: strings[key] for key in wanted}


def _columns(
    path: Path, launched: Launched, ranges: RangeTable
) -> Iterator[Sequence[Sequence[Any]]]:
    found = launched.around
    layers, directions, steps = (ranges.label_of(field) for field in ("layer", "direction", "step"))
    sources = objects(["range" if layer is not None else None for layer in layers])
    numbers = objects([*range(len(ranges.kind)), None])
    with opened(path) as database:
        long_names, short_names = Strings(database, NO_NAME), Strings(database)
        names, rest, last = _expressions(database, None, launched.check)
        more = [last.get(field, "NULL") for field in _AFTER_DURATION]
        cursor = database.connection.execute(
            f"SELECT {', '.join([*names, *rest, *more])} FROM {KERNEL} NOT INDEXED"
        )
        first = 0
        while rows := cursor.fetchmany(CHUNK):
            part = slice(first, first + len(rows))
            name, short_name, *columns = zip(*rows, strict=True)
            layer = found.layer[part]
            how = sources[layer]
            if launched.captured is not None:
                how[launched.captured[part]] = "capture"
            yield (
                range(first, first + len(rows)),
                # read the names now: a damaged page raises here and not while iterating
                list(map(long_names.__getitem__, name)),
                list(map(short_names.__getitem__, short_name)),
                layers[layer].tolist(),
                directions[layer].tolist(),
                steps[found.step[part]].tolist(),
                how.tolist(),
                numbers[found.innermost[part]].tolist(),
                *columns,
            )
            first += len(rows)
