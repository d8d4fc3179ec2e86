"""``results.db`` of rocprofv3 (rocpd, an SQLite database; schema 3 of ROCm 7 was seen).

Its tables carry the run's GUID as a suffix; its views, which have plain names, are not used, since
a view in somebody else's file is a program (and ``top_kernels`` is in microseconds where all else
is in ns). Of ``rocpd_info_process`` only times are read: its ``environment`` is the whole
environment of the process, its ``command`` may hold secrets. Kernels, counters and copies are read
while they are iterated, each from a connection of its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from perfctl.parsers.common.doubts import newer, not_understood
from perfctl.parsers.common.lines import readable
from perfctl.parsers.common.sqlite import Database, check_whole, connect, integer, opened, quoted
from perfctl.parsers.common.sqlite_checks import check
from perfctl.parsers.common.tables import Column, read_selected, read_text
from perfctl.parsers.rocm.records import (
    AGAIN,
    ROCPROFV3,
    SERIAL,
    Calls,
    Rows,
    find_missing,
    make_copy,
    make_counter,
    make_device,
    make_kernel,
    measure_span,
    order_devices,
)
from perfctl.records.report import Copy, Counter, Device, Diagnostic, Gap, Kernel, Range, Report
from perfctl.records.sqlite_header import is_sqlite

DISPATCH = "rocpd_kernel_dispatch"
AGENT = "rocpd_info_agent"
STRING = "rocpd_string"
_MARKS = (DISPATCH, AGENT, STRING)
_LEFT_OUT = {
    "rocpd_arg": "arguments of API calls",
    "rocpd_sample": "samples",
    "rocpd_track": "tracks of samples",
    "rocpd_memory_allocate": "allocations of memory",
}
"""Known tables without a reader; those with rows become gaps."""
_QUIET = (
    "rocpd_info_code_object",
    "rocpd_info_node",
    "rocpd_info_queue",
    "rocpd_info_stream",
)
"""Known tables that hold no measurement."""
_NEWEST = "3"
NAMELESS = "(no name in the database)"

_DISPATCH = (
    Column("agent_id", field="agent"),
    Column("stream_id", field="stream"),
    *(Column(f"grid_size_{axis}", field=f"items_{axis}") for axis in "xyz"),
    *(Column(f"workgroup_size_{axis}", field=f"block_{axis}") for axis in "xyz"),
    Column("group_segment_size", "byte", "lds"),
    Column("start", "ns"),
    Column("end", "ns"),
)
_SYMBOL = (
    Column("display_name", field="shown", read=read_text),
    Column("kernel_name", field="symbol", read=read_text),
    Column("arch_vgpr_count", field="vgprs"),
    Column("accum_vgpr_count", field="accvgprs"),
    Column("group_segment_size", "byte", "static_lds"),
)
_COPY = (
    Column("dst_agent_id", field="target"),
    Column("src_agent_id", field="source"),
    Column("stream_id", field="stream"),
    Column("size", "byte", "bytes"),
    Column("start", "ns"),
    Column("end", "ns"),
)
_ALWAYS: dict[str, tuple[str, ...]] = {
    DISPATCH: ("id", "kernel_id", "event_id", *(column.name for column in _DISPATCH)),
    AGENT: ("id", "type", "type_index", "name", "product_name", "extdata"),
    STRING: ("id", "string"),
    "rocpd_info_kernel_symbol": ("id", *(column.name for column in _SYMBOL)),
    "rocpd_region": ("id", "tid", "start", "end", "name_id", "event_id"),
    "rocpd_memory_copy": ("id", "name_id", *(column.name for column in _COPY)),
    "rocpd_event": ("id", "category_id", "extdata"),
    "rocpd_pmc_event": ("id", "event_id", "pmc_id", "value"),
    "rocpd_info_pmc": ("id", "name"),
    "rocpd_info_process": ("id", "start", "end"),
    "rocpd_info_thread": ("id", "tid"),
}
"""Table -> columns that are read; rocprofv3 writes all of its tables, with rows or without."""
_READ = {**_ALWAYS, "rocpd_metadata": ("tag", "value")}
_REGIONS = """
    FROM {rocpd_region} r LEFT JOIN {rocpd_string} n ON n.id = r.name_id
    LEFT JOIN {rocpd_event} e ON e.id = r.event_id
    LEFT JOIN {rocpd_string} c ON c.id = e.category_id
    LEFT JOIN {rocpd_info_thread} t ON t.id = r.tid
"""
"""API calls and ROCTx ranges, with their names, categories and threads."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a rocpd database: by its tables, or by table names in the head of a
    damaged file."""
    if not is_sqlite(head):
        return False
    try:
        with closing(connect(path)) as connection:
            rows = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
    except (sqlite3.Error, OSError, UnicodeError):
        return b"rocpd_string" in head and b"rocpd_info_" in head
    names = [str(name) for (name,) in rows]
    return all(any(name.startswith(mark) for name in names) for mark in _MARKS)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off or malformed."""
    with readable(path, ROCPROFV3, "Check its permissions"):
        check_whole(path, ROCPROFV3, AGAIN)
    with opened(path, ROCPROFV3, AGAIN) as database:
        parts = _find_parts(database)
        calls, ranges = Calls(), list[Range]()
        unplaced = sum(_read_regions(part, calls, ranges) for part in parts)
        tags = dict(row for part in parts for row in part.read("rocpd_metadata"))
        schema = str(tags.get("schema_version") or "")
        processes = [row for part in parts for row in part.read("rocpd_info_process")]
        has_counters = any(part.count("rocpd_pmc_event") for part in parts)
        return Report(
            tool=ROCPROFV3,
            path=path,
            form=f"rocprofv3 database (rocpd){schema and f', schema {schema}'}",
            devices=_read_devices(parts),
            environment={"rocpd_schema": schema} if schema else {},
            kernels=Rows(partial(_read_rows, path, _read_kernels)),
            counters=Rows(partial(_read_rows, path, _read_counters)),
            copies=Rows(partial(_read_rows, path, _read_copies)),
            ranges=ranges,
            operations=calls.operations(),
            gaps=(
                *(gap for part in parts for gap in _find_table_gaps(part)),
                *_find_left_out(parts, unplaced),
                *find_missing(
                    has_kernels=any(part.count(DISPATCH) for part in parts),
                    has_ranges=bool(ranges),
                    has_copies=any(part.count("rocpd_memory_copy") for part in parts),
                    has_counters=has_counters,
                ),
            ),
            diagnostics=(
                *([SERIAL] if has_counters else ()),
                *_find_unknown_tables(database, parts),
                *newer("rocpd schema", schema, _NEWEST),
            ),
            duration_ns=measure_span((start, end) for _, start, end in processes),
        )


class Part:
    """The tables of one GUID, by their plain names."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.database, self.suffix = database, suffix
        self.selects = {table: self._select(table) for table in _READ}
        """Table -> SQL of it with the columns that are read: NULL for those that this version
        lacks, and no row where it lacks the table."""

    def _select(self, table: str) -> str:
        known = self.database.tables.get(table + self.suffix, frozenset())
        columns = [f'"{name}"' if name in known else f'NULL AS "{name}"' for name in _READ[table]]
        source = f"FROM {quoted(table + self.suffix)}" if known else "WHERE FALSE"
        return f"(SELECT {', '.join(columns)} {source})"

    def count(self, table: str) -> int:
        name = table + self.suffix
        return self.database.count(name) if name in self.database.tables else 0

    def read(self, table: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small table, with the columns that are read."""
        return self.database.connection.execute(f"SELECT * FROM {self.selects[table]}").fetchall()

    def execute(self, query: str) -> sqlite3.Cursor:
        """Run a query in which tables stand in braces."""
        return self.database.connection.execute(query.format_map(self.selects))


def _find_parts(database: Database) -> list[Part]:
    """Return one for each suffix that has the tables all others refer to."""
    suffixes = sorted(
        name.removeprefix(DISPATCH) for name in database.tables if name.startswith(DISPATCH)
    )
    return [
        Part(database, suffix)
        for suffix in suffixes
        if all(mark + suffix in database.tables for mark in _MARKS)
    ]


def _find_table_gaps(part: Part) -> Iterator[Gap]:
    """Yield the gaps of the tables of one GUID, which name them without it."""
    nameless = part.execute(
        "SELECT count(*) FROM {rocpd_kernel_dispatch} k LEFT JOIN {rocpd_info_kernel_symbol} s "
        "ON s.id = k.kernel_id WHERE s.id IS NULL"
    ).fetchone()[0]
    if nameless:
        reason = f"{nameless:,} dispatches name a kernel that is not in the database"
        yield Gap("kernel.name", "unreadable", reason)
    for *_, extra in part.read(AGENT):
        if isinstance(extra, str) and extra and _read_object(extra) is None:
            reason = "the facts about an agent (extdata) are no JSON object"
            yield Gap("device", "unreadable", reason)
    always = {name + part.suffix: columns for name, columns in _ALWAYS.items()}
    for gap in check(part.database, [name + part.suffix for name in _READ], always):
        quantity, reason = (text.replace(part.suffix, "") for text in (gap.quantity, gap.reason))
        yield Gap(quantity, gap.state, reason)


def _read_rows(path: Path, read: Callable[[Part, int], Iterator[Any]]) -> Iterator[Any]:
    """Yield what ``read`` yields of each GUID, given the number of launches before it."""
    with opened(path, ROCPROFV3, AGAIN) as database:
        first = 0
        for part in _find_parts(database):
            yield from read(part, first)
            first += part.count(DISPATCH)


def _number_gpus(part: Part) -> dict[int, int]:
    """Return agent -> ordinal among the GPUs."""
    gpus = sorted(row[:3] for row in part.read(AGENT) if row[1] == "GPU")
    return {
        agent: number if isinstance(number, int) else index
        for index, (agent, _, number) in enumerate(gpus)
    }


def _list_columns(alias: str, columns: Iterable[Column]) -> str:
    return ", ".join(f'{alias}."{column.name}"' for column in columns)


def _read_kernels(part: Part, first: int) -> Iterator[Kernel]:
    ordinals = _number_gpus(part)
    rows = part.execute(
        f"SELECT {_list_columns('k', _DISPATCH)}, {_list_columns('s', _SYMBOL)} "
        "FROM {rocpd_kernel_dispatch} k LEFT JOIN {rocpd_info_kernel_symbol} s "
        "ON s.id = k.kernel_id ORDER BY k.id"
    )
    for launch, row in enumerate(rows, first):
        fields = read_selected((*_DISPATCH, *_SYMBOL), row)
        name = fields["shown"] or fields["symbol"] or NAMELESS
        yield make_kernel(launch, name, ordinals.get(fields["agent"]), fields)


def _read_counters(part: Part, first: int) -> Iterator[Counter]:
    """Yield the counters; instances of one (shader engines, XCDs, channels) are summed, as
    rocprofv3's own view does."""
    rows = part.execute(
        "SELECT k.launch, i.name, sum(e.value) FROM (SELECT event_id, row_number() OVER (ORDER BY "
        "id) - 1 AS launch FROM {rocpd_kernel_dispatch}) k JOIN {rocpd_pmc_event} e ON e.event_id "
        "= k.event_id JOIN {rocpd_info_pmc} i ON i.id = e.pmc_id GROUP BY k.launch, i.name "
        "ORDER BY k.launch, i.name"
    )
    for launch, name, value in rows:
        yield make_counter(first + launch, str(name), value)


def _read_copies(part: Part, first: int) -> Iterator[Copy]:
    ordinals = _number_gpus(part)
    rows = part.execute(
        f"SELECT n.string, {_list_columns('c', _COPY)} FROM {{rocpd_memory_copy}} c "
        "LEFT JOIN {rocpd_string} n ON n.id = c.name_id ORDER BY c.id"
    )
    for kind, *cells in rows:
        fields = read_selected(_COPY, cells)
        target, source = ordinals.get(fields["target"]), ordinals.get(fields["source"])
        yield make_copy(str(kind), target, source, fields)


def _read_regions(part: Part, calls: Calls, ranges: list[Range]) -> int:
    """Add API calls to ``calls``, and ROCTx ranges, whose text is in ``extdata``, to ``ranges``.
    Return how many of these have no start."""
    start, end, tid = integer("r.start"), integer('r."end"'), integer("t.tid")
    sums = part.execute(
        f"SELECT c.string, n.string, count(*), sum({end} - {start}), min(r.id) {_REGIONS} "
        "GROUP BY 1, 2 ORDER BY 5"
    )
    for category, function, count, total, _ in sums:
        if "MARKER" not in str(category).upper():
            calls.add(str(category or "api"), str(function or NAMELESS), total or 0, count)
    unplaced = 0
    rows = part.execute(
        f"SELECT n.string, e.extdata, {start}, {end} - {start}, {tid} {_REGIONS} "
        "WHERE c.string LIKE '%MARKER%' ORDER BY r.start, r.id"
    )
    for function, text, begin, duration, thread in rows:
        if begin is None:
            unplaced += 1
            continue
        # what the program gave to ``roctxRangePush``
        message = read_text((_read_object(text) or {}).get("message"))
        name = message or str(function)
        ranges.append(Range(len(ranges), name, "roctx", begin, duration, thread, None, None))
    return unplaced


def _read_devices(parts: list[Part]) -> tuple[Device, ...]:
    """Return the GPUs, those that ran kernels first; each once."""
    devices: dict[int, Device] = {}
    used: set[int | None] = set()
    for part in parts:
        ordinals = _number_gpus(part)
        agents = part.execute("SELECT DISTINCT agent_id FROM {rocpd_kernel_dispatch}")
        used |= {ordinals.get(agent) for (agent,) in agents}
        for agent, _, _, name, product, extra in part.read(AGENT):
            if (index := ordinals.get(agent)) is not None:
                gpu = make_device(index, name, product, _read_object(extra) or {})
                devices.setdefault(index, gpu)
    return order_devices(devices, used)


def _read_object(text: object) -> dict[str, Any] | None:
    """Return a JSON object; None for any other text."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _find_left_out(parts: list[Part], unplaced: int) -> Iterator[Gap]:
    if unplaced:
        reason = f"{unplaced:,} ROCTx ranges have no start and were left out"
        yield Gap("range", "unreadable", reason)
    for table, what in _LEFT_OUT.items():
        if count := sum(part.count(table) for part in parts):
            reason = f"{what} are not read: {count:,} rows of {table}"
            yield Gap(table, "not_available", reason)


def _find_unknown_tables(database: Database, parts: list[Part]) -> tuple[Diagnostic, ...]:
    known = {"sqlite_sequence", "sqlite_stat1"}
    known |= {name + part.suffix for part in parts for name in (*_READ, *_LEFT_OUT, *_QUIET)}
    unknown = sorted(database.tables.keys() - known)
    return not_understood({"tables": [name for name in unknown if database.holds(name)]})
