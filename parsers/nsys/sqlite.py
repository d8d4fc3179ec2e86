"""Reports of Nsight Systems, as ``nsys export --type sqlite`` writes them (2020.3 to 2026.1 were
seen). Kernels and copies are read while they are iterated, each from a connection of its own, or
copied by SQL; which range and layer they belong to is worked out in ``parse``. GPU metrics that
nsys sampled, page faults of unified memory and CUDA graphs are read in the same way.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from perfctl.parsers.attribution import NOBODY
from perfctl.parsers.common.cupti import COPY_KINDS
from perfctl.parsers.common.doubts import newer, not_understood, others, words
from perfctl.parsers.common.lines import readable
from perfctl.parsers.common.sqlite import Database, check_whole, connect, integer
from perfctl.parsers.common.sqlite_checks import check
from perfctl.parsers.nsys import calls, machine, tables
from perfctl.parsers.nsys import kernels as nsys_launches
from perfctl.parsers.nsys import operators as nsys_operators
from perfctl.parsers.nsys import ranges as nsys_ranges
from perfctl.parsers.nsys.kernels import Around, Launched
from perfctl.parsers.nsys.machine import versions
from perfctl.parsers.nsys.ranges import PUSH_POP, RangeTable
from perfctl.parsers.nsys.tables import (
    EXPORT_AGAIN,
    GPU_METRICS,
    GRAPH,
    KERNEL,
    KNOWN,
    MEMCPY,
    MEMSET,
    NODES,
    RUNTIME,
    STRINGS,
    TOOL,
    opened,
)
from perfctl.parsers.operator_rows import Operators
from perfctl.records.errors import ReportError
from perfctl.records.report import ApiCall, Copy, Diagnostic, Gap, Report, Sample, Summary
from perfctl.records.sqlite_header import is_sqlite

ACTIVE = "GR Active"
"""Metric of the share of time in which the graphics and compute engine was busy; in percent."""
CLOCKS = ("SM Clock Frequency", "GPC Clock Frequency", "SYS Clock Frequency")
"""Metrics of the clock, the best first; in MHz."""
COUNTED = {
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "unified memory: CPU page faults",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "unified memory: GPU page faults",
    NODES: "CUDA graphs: nodes created",
    "CUDA_GRAPH_EVENTS": "CUDA graphs: events of creation",
}
"""Table of events -> name of the summary that counts them."""
GPU_BITS = 0xFF
"""Of typeId: which GPU."""

NEWEST_SCHEMA = "3.24"
"""Of nsys 2026.1.1."""
_LAYOUTS = ("1.", "2.", "3.")
"""Schemas with these majors differ in tables and columns, not in meaning."""
OTHER_TABLES = words(KNOWN["sqlite"]["other_tables"])
"""Known by name. Those without a reader hold what perfctl does not show (samples, system calls,
sums that ``nsys stats`` left in the file)."""
OTHER_FAMILIES = tuple(KNOWN["sqlite"]["other_families"])
"""Beginnings of tables of other interfaces than CUDA and NVTX, and of enumerations."""

READ = {
    KERNEL,
    MEMCPY,
    MEMSET,
    RUNTIME,
    GRAPH,
    tables.NVTX,
    STRINGS,
    tables.OSRT,
    tables.SYNC,
    tables.GPU_METRICS,
    *calls.OF_LIBRARIES,
    *calls.OF_MPI,
    *COUNTED,
    "MemcpyOperationStrings",
    "DomainStrings",
}
"""Tables whose rows are in the report's records, one by one or summed."""
CHECKED = {
    *READ,
    "EXPORT_META_DATA",
    "META_DATA_EXPORT",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "ThreadNames",
    "ANALYSIS_DETAILS",
    "TARGET_INFO_SESSION_START_TIME",
    "DIAGNOSTIC_EVENT",
}
"""These, and the tables that facts about the machine are in."""
BOOKKEEPING = words(KNOWN["sqlite"]["bookkeeping"])
BOOKKEEPING_FAMILIES = tuple(KNOWN["sqlite"]["bookkeeping_families"])
"""Tables of the profiler's own affairs: versions, names, what ``nsys stats`` left in the file."""

MARKERS = {
    "ProcessStreams",
    "NVTX_EVENTS",
    "ThreadNames",
    "EXPORT_META_DATA",
    "META_DATA_EXPORT",
    "ANALYSIS_DETAILS",
}
"""StringIds and any one of these make an SQLite file an nsys export."""

_LAUNCH = re.compile(
    "(?:cudaLaunch(?:Cooperative)?Kernel|cuLaunch(?:Cooperative)?Kernel|hipLaunchKernel)"
    r"(?:Ex)?C?(?:_v\d+|_ptsz)*\Z"
)
_COPY = re.compile(r"(?:cuda|cu|hip)Mem(?:cpy(?!Batch)|set)\w*\Z")
"""Names of calls that move or set memory; others of the kind move several pieces at once."""

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


def _metrics(database: Database) -> dict[tuple[int, int], str]:
    """(type, number) -> name of a metric, as in "SMs Active [Throughput %]"."""
    rows = database.rows("TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName")
    return {
        (kind, number): str(name)
        for kind, number, name in rows
        if isinstance(kind, int) and isinstance(number, int) and name
    }


def samples(path: Path, database: Database) -> Iterable[Sample]:
    """One Sample a reading of a GPU: its utilisation and clock. The means of all metrics
    are summaries."""
    names = _metrics(database)
    active = {key for key, name in names.items() if name.startswith(ACTIVE)}
    clock: dict[int, tuple[int, int]] = {}
    for start in reversed(CLOCKS):
        clock |= {key[0]: key for key, name in names.items() if name.startswith(start)}
    if not database.filled(GPU_METRICS) or not (active or clock):
        return ()
    return _readings(path, active, set(clock.values()))


def _readings(
    path: Path, active: set[tuple[int, int]], clock: set[tuple[int, int]]
) -> Iterator[Sample]:
    numbers = ", ".join(str(number) for number in sorted({number for _, number in active | clock}))
    query = (
        f"SELECT timestamp, typeId, metricId, value FROM {GPU_METRICS} WHERE metricId IN "
        f"({numbers}) ORDER BY 1, 2"
    )
    with opened(path) as database:
        for (at, kind), rows in groupby(database.connection.execute(query), itemgetter(0, 1)):
            busy = hertz = None
            for _, _, number, value in rows:
                if (kind, number) in active:
                    busy = value / 100
                elif (kind, number) in clock:
                    hertz = round(value * 1e6)
            yield Sample(at, busy, None, None, None, None, hertz, kind & GPU_BITS)


def _means(database: Database) -> Iterator[Summary]:
    if not database.filled(GPU_METRICS):
        return
    names = _metrics(database)
    query = (
        f"SELECT typeId, metricId, avg(value), max(value) FROM {GPU_METRICS} GROUP BY 1, 2 ORDER "
        "BY 1, 2"
    )
    rows = database.connection.execute(query).fetchall()
    several = len({kind & GPU_BITS for kind, *_ in rows}) > 1
    for kind, number, mean, highest in rows:
        name, _, unit = names.get((kind, number), f"metric {number}").partition(" [")
        unit = unit.rstrip("]")
        place = f"GPU {kind & GPU_BITS} " if several else "GPU "
        unit = "%" if unit.endswith("%") else unit
        yield Summary(f"{place}metric: {name}, mean", mean, unit or None)
        yield Summary(f"{place}metric: {name}, highest", highest, unit or None)


def _counts(database: Database) -> Iterator[Summary]:
    for table, name in COUNTED.items():
        if not database.filled(table):
            continue
        if database.has(table, "numberOfPageFaults"):
            query = f"SELECT sum(numberOfPageFaults) FROM {table}"
            yield Summary(name, database.connection.execute(query).fetchone()[0], None)
            yield Summary(f"{name}, groups", database.count(table), None)
        else:
            yield Summary(name, database.count(table), None)


def _graph_launches(database: Database) -> Iterator[Summary]:
    """Graphs that were recorded whole, without their kernels."""
    if not database.filled(GRAPH):
        return
    launches, time = database.connection.execute(
        f"SELECT count(*), sum(end - start) FROM {GRAPH}"
    ).fetchone()
    yield Summary("CUDA graphs: launches recorded whole", launches, None)
    yield Summary("CUDA graphs: GPU time of these", time, "ns")


def find_gaps(database: Database, ranges: RangeTable, kernels: Launched) -> Iterator[Gap]:
    """Yield one Gap per reason."""
    count = len(kernels.around.innermost)
    if versions(database)[0] is None:
        yield Gap(
            "profiler_version",
            "not_available",
            "nsys exports up to 2021.3 do not state the version",
        )
    yield from _kernel_gaps(database, count)
    if not len(ranges.kind):
        reason = (
            "no NVTX range was recorded: the program has no annotations, or NVTX was not traced"
        )
        yield Gap("range", "not_collected", f"{reason} (nsys profile --trace=nvtx,...)")
    if unended := ranges.unended():
        reason = f"{unended} of {len(ranges.kind)} ranges never ended in the capture"
        yield Gap("range:duration", "not_available", reason)
    if count:
        yield from _layer_gaps(database, ranges, kernels)
    if database.has(tables.NVTX, "binaryData") and database.holds(tables.NVTX, "binaryData"):
        reason = "programs gave values in a binary form (NVTX_PAYLOAD_SCHEMAS), which is not read"
        yield Gap("range:payload", "not_available", reason)
    if len(ranges.kind) and not database.filled(RUNTIME):
        reason = "CUDA calls were not recorded, so no GPU time can be assigned to a range"
        yield Gap("range:gpu_ns", "not_collected", reason)


def find_lost_work(
    kernels: Launched, copies: int, calls: Sequence[ApiCall], has_graphs: bool
) -> Iterator[Gap]:
    """Yield a gap where calls launched kernels or, though all kernels are there, started copies
    that the report does not have."""
    count = len(kernels.around.innermost) - kernels.unlaunched
    launches = sum(
        one.calls or 0 for one in calls if one.domain == "cuda" and _LAUNCH.match(one.name)
    )
    if count and launches > count and not has_graphs:
        which = f"{launches - count:,} of {launches:,} launch calls"
        reason = f"{which} have no kernel in the report: it ended after the capture, or was lost"
        yield Gap("kernel", "not_available", reason)
        return
    moved = sum(one.calls or 0 for one in calls if one.domain == "cuda" and _COPY.match(one.name))
    if launches == count and 0 < copies < moved and not has_graphs:
        reason = (
            f"{moved - copies:,} of {moved:,} calls that copy or set memory have no such operation "
            "in the report"
        )
        yield Gap("copy", "not_available", f"{reason}: it had no bytes, or was lost")


def _kernel_gaps(database: Database, count: int) -> Iterator[Gap]:
    traced, reason = database.filled(RUNTIME), ""
    if database.filled(GRAPH):
        reason = (
            "CUDA graphs were recorded as a whole, without their kernels: record with "
            "--cuda-graph-trace=node"
        )
    elif not count and traced:
        reason = "CUDA calls were traced, but no kernel ran during the capture"
    elif not count:
        reason = (
            "no CUDA activity was recorded: the program did not use a GPU, CUDA was not traced, or "
            "the tracing failed"
        )
        reason += " (see the messages of nsys)"
    if reason:
        yield Gap("kernel", "not_collected", reason)
    if not (count or traced or database.filled(MEMCPY) or database.filled(MEMSET)):
        yield Gap("copy", "not_collected", "no CUDA activity was recorded, so no copies either")


def _layer_gaps(database: Database, ranges: RangeTable, kernels: Launched) -> Iterator[Gap]:
    count, unlaunched = len(kernels.around.innermost), kernels.unlaunched
    if not database.filled(RUNTIME):
        reason = (
            "CUDA calls were not recorded, so no kernel can be assigned to a range (nsys profile "
            "--trace=cuda,nvtx)"
        )
        yield Gap("layer", "not_collected", reason)
        return
    if unlaunched:
        yield Gap(
            "layer",
            "not_available",
            f"{unlaunched} of {count} kernels have no launch call in the report",
        )
    if not (ranges.kind == PUSH_POP).any():
        reason = "no push/pop NVTX range was recorded, so no launch can be assigned to a layer"
        yield Gap("layer", "not_collected", reason)
    elif not any(label.layer for label in ranges.labels):
        reason = (
            'no range names a layer as perfctl does ("conv2:forward"): record the program with '
            "perfctl"
        )
        yield Gap("layer", "not_collected", reason)
    elif (outside := int((kernels.around.layer == NOBODY).sum()) - unlaunched) > 0:
        reason = f"{outside} of {count} kernels were launched outside of every layer's range"
        yield Gap("layer", "not_available", f"{reason}{_of_graphs(database, kernels)}")
    if not any(label.step is not None for label in ranges.labels):
        yield Gap(
            "step", "not_collected", 'no range names a step as perfctl does ("perfctl:step:3")'
        )


def _of_graphs(database: Database, kernels: Launched) -> str:
    """How many of the kernels are of graphs whose capture the report does not have."""
    if kernels.graphs:
        lost = sum(launch.kernels - launch.matched for launch in kernels.graphs)
    elif database.has(KERNEL, "graphNodeId"):
        (lost,) = database.connection.execute(
            f"SELECT count(*) FROM {KERNEL} WHERE graphNodeId > 0"
        ).fetchone()
    else:
        lost = 0
    what = "which were captured before the recording began: record the capture, too"
    return f"; {lost} of all are of CUDA graphs, {what}" if lost else ""


COLUMNS = {table: words(names) for table, names in KNOWN["sqlite"]["columns"].items()}


def unknown(database: Database) -> tuple[Diagnostic, ...]:
    """Diagnostics for unknown tables and columns that hold data, and for a newer schema."""
    of_no_list = others(database.tables, COLUMNS, OTHER_TABLES)
    new = [
        table
        for table in of_no_list
        if not table.startswith(OTHER_FAMILIES) and database.holds(table)
    ]
    columns = [
        f"{table}.{column}"
        for table, known in COLUMNS.items()
        for column in others(sorted(database.tables.get(table, ())), known)
        if database.holds(table, column)
    ]
    version, schema = versions(database)
    unknown_schema = (
        [schema]
        if schema and re.match(r"\d+\.", schema) and not schema.startswith(_LAYOUTS)
        else []
    )
    warned = not_understood({"schema version": unknown_schema, "tables": new, "columns": columns})
    product = f"nsys {version}, schema" if version else "nsys schema"
    return (*warned, *(() if unknown_schema else newer(product, schema, NEWEST_SCHEMA)))


def unread(database: Database) -> Iterator[Gap]:
    """One Gap for each table with rows that are not read."""
    for table in sorted(database.tables.keys() - READ):
        if (
            table in BOOKKEEPING
            or table.startswith(BOOKKEEPING_FAMILIES)
            or not (count := database.count(table))
        ):
            continue
        rows = "1 row is" if count == 1 else f"{count:,} rows are"
        yield Gap(f"table:{table}", "not_available", f"{table}: {rows} not read")


ALWAYS: dict[str, frozenset[str]] = {
    table: words(names) for table, names in KNOWN["sqlite"]["always"].items()
}
"""Table -> columns that it had in all exports that were seen (2020.3 to 2026.1)."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is an nsys export: by its tables, or by table names in the head of a
    damaged file."""
    if not is_sqlite(head):
        return False
    try:
        with closing(connect(path)) as connection:
            rows = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
    except (sqlite3.Error, OSError, UnicodeError):
        # the message about a damaged schema may not be UTF-8
        return b"TABLE StringIds" in head or b"TABLE ENUM_NSYS_EVENT_TYPE" in head
    names = {name for (name,) in rows}
    return STRINGS in names and any(
        name in MARKERS or name.startswith("CUPTI_ACTIVITY_KIND_") for name in names
    )


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off, damaged, or the rest of a
    failed export."""
    with readable(path, TOOL, "Check its permissions"):
        check_whole(path, TOOL, EXPORT_AGAIN)
    with opened(path) as database:
        if not set(database.tables) - {STRINGS, "ProcessStreams"}:
            reason = "the export failed: it holds no table but the strings"
            newer = (
                "nsys refuses reports newer than itself: export again with an nsys at least as new "
                "as the report"
            )
            raise ReportError(path, TOOL, reason, newer)
        # nsys leaves out tables without rows, but for that of the strings
        always = {name: ALWAYS[name] for name in ALWAYS if name in {STRINGS, *database.tables}}
        damage = tuple(check(database, CHECKED, always))
        version, schema = machine.versions(database)
        devices, device_gaps = machine.devices(database)
        ranges = nsys_ranges.load(database)
        work = nsys_launches.attribute(database, ranges)
        kernels, copies = (
            work.launched[KERNEL],
            {table: work.launched[table].around for table in (MEMCPY, MEMSET)},
        )
        operators = _operators(ranges, kernels)
        api_calls = calls.api_calls(database, work.api, ranges)
        copied = sum(len(found.innermost) for found in copies.values())
        lost = find_lost_work(kernels, copied, api_calls, database.filled(GRAPH))
        return Report(
            tool=TOOL,
            path=path,
            form=f"nsys SQLite, schema {schema}"
            if schema
            else "nsys SQLite, without a schema version (up to 2021.3)",
            tool_version=version,
            devices=devices,
            environment={**machine.environment(database), **operators.environment},
            kernels=nsys_launches.read_kernels(path, database, kernels, ranges),
            copies=_copies(path, copies, ranges),
            ranges=ranges.records(work.gpu.times(is_known=database.filled(RUNTIME))),
            samples=samples(path, database),
            summaries=(*_means(database), *_counts(database), *_graph_launches(database)),
            api_calls=api_calls,
            threads=machine.threads(
                database, work.threads | nsys_launches.find_different(ranges.spans.thread)
            ),
            ops=operators.ops,
            op_calls=calls.waits(path, database, ranges),
            graph_launches=kernels.graphs,
            gaps=(
                *damage,
                *device_gaps,
                *find_gaps(database, ranges, kernels),
                *lost,
                *unread(database),
                *operators.gaps,
            ),
            diagnostics=(*machine.diagnostics(database), *unknown(database)),
            started_at=machine.started_at(database),
            duration_ns=machine.duration_ns(database),
        )


def _operators(ranges: RangeTable, kernels: Launched) -> Operators:
    if ranges.operators is not None:
        innermost = kernels.around.innermost
        return ranges.operators.collect(
            innermost[innermost != NOBODY].tolist() if len(innermost) else None
        )
    gap = (
        None
        if any(label.layer for label in ranges.labels)
        else nsys_operators.without_sizes(ranges.names)
    )
    return Operators(gaps=() if gap is None else (gap,))


def _copies(path: Path, found: dict[str, Around], ranges: RangeTable) -> Iterator[Copy]:
    layers = ranges.label_of("layer")
    with opened(path) as database:
        words, kinds = _copy_words(database), _memory_words(database)
        for table in (MEMCPY, MEMSET):
            if table not in database.tables:
                continue
            target = "dstKind" if table == MEMCPY else "memKind"
            names = ("start", "end", "bytes", "srcKind", target, "srcDeviceId", "dstDeviceId")
            start, end, *others = (
                integer(name) if database.has(table, name) else "NULL"
                for name in (*names, "deviceId", "streamId")
            )
            kind = "copyKind" if database.has(table, "copyKind") else "'memset'"
            columns = ", ".join([kind, start, f"{end} - {start}", *others])
            rows = database.connection.execute(f"SELECT {columns} FROM {table} NOT INDEXED")
            for row, layer in zip(rows, found[table].layer.tolist(), strict=True):
                code, begin, length, size, of, to, source, destination, device, stream = row
                is_peer = None not in (source, destination) and source != destination
                other_end = destination if device == source else source
                yield Copy(
                    words.get(code, str(code)),
                    size,
                    begin,
                    length,
                    layers[layer],
                    device,
                    stream,
                    kinds.get(of),
                    kinds.get(to),
                    other_end if is_peer else None,
                )


def _copy_words(database: Database) -> dict[object, str]:
    """copyKind -> word: from the export's own table (3.0.0 on), else by CUPTI's numbers."""
    words: dict[object, str] = {"memset": "memset", **COPY_KINDS}
    for number, label in database.rows("ENUM_CUDA_MEMCPY_OPER", "id", "label"):
        words[number] = tables.COPY_LABELS.get(str(label), str(label))
    return words


def _memory_words(database: Database) -> dict[object, str]:
    """srcKind, dstKind, memKind -> word. nsys numbers them as in ENUM_CUDA_MEM_KIND (3.0.0 on) in
    all versions seen."""
    labels = database.rows("ENUM_CUDA_MEM_KIND", "id", "label") or list(enumerate(MEMORY_KINDS))
    return {
        number: MEMORY_KINDS[str(label).lower()]
        for number, label in labels
        if str(label).lower() in MEMORY_KINDS
    }
