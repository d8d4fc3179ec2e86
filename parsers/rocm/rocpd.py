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
from pathlib import Path
from typing import Any

from perfctl.parsers.rocm.records import (
    AGAIN,
    NO_COPIES,
    NO_COUNTERS,
    ROCPROFV3,
    SERIAL,
    Calls,
    make_copy,
    make_counter,
    make_device,
    make_kernel,
    make_layer_gap,
    order_devices,
)
from perfctl.parsers.text.doubts import newer, not_understood, words
from perfctl.parsers.text.lines import readable
from perfctl.parsers.text.sqlite import Database, check_whole, connect, integer, opened
from perfctl.parsers.text.sqlite_checks import check
from perfctl.parsers.text.tables import Column, read_selected, read_text, sql_columns
from perfctl.records.report import Copy, Counter, Device, Diagnostic, Gap, Kernel, Range, Report
from perfctl.records.sqlite_header import is_sqlite

DISPATCH = "rocpd_kernel_dispatch"
_MARKS = (DISPATCH, "rocpd_info_agent", "rocpd_string")
_READ = (
    *_MARKS,
    "rocpd_metadata",
    "rocpd_info_process",
    "rocpd_info_kernel_symbol",
    "rocpd_info_pmc",
    "rocpd_pmc_event",
    "rocpd_event",
    "rocpd_region",
    "rocpd_memory_copy",
    "rocpd_info_stream",
    "rocpd_info_queue",
    "rocpd_info_thread",
)
_LEFT_OUT = {
    "rocpd_arg": "arguments of API calls",
    "rocpd_sample": "samples",
    "rocpd_track": "tracks of samples",
    "rocpd_memory_allocate": "allocations of memory",
    "rocpd_info_code_object": "code objects",
    "rocpd_info_node": "names of the host",
}
"""Known tables without a reader; those with rows become gaps, but for the last two, which hold no
measurement."""
_QUIET = ("rocpd_info_code_object", "rocpd_info_node")
_NEWEST = "3"

_NUMBERED = (
    DISPATCH,
    "rocpd_string",
    "rocpd_event",
    "rocpd_region",
    "rocpd_memory_copy",
    "rocpd_pmc_event",
    "rocpd_metadata",
)
"""Tables whose rows rocprofv3 numbers from 1 on."""
_ALWAYS = {
    DISPATCH: words(
        "id agent_id kernel_id stream_id start end workgroup_size_x workgroup_size_y "
        "workgroup_size_z grid_size_x grid_size_y grid_size_z event_id group_segment_size"
    ),
    "rocpd_info_agent": words("id type type_index name product_name extdata"),
    "rocpd_string": words("id string"),
    "rocpd_info_kernel_symbol": words(
        "id kernel_name display_name group_segment_size arch_vgpr_count accum_vgpr_count"
    ),
    "rocpd_region": words("id tid start end name_id event_id"),
    "rocpd_memory_copy": words("id start end name_id dst_agent_id src_agent_id size stream_id"),
    "rocpd_event": words("id category_id extdata"),
    "rocpd_pmc_event": words("id event_id pmc_id value"),
    "rocpd_info_pmc": words("id name"),
    "rocpd_info_process": words("id start end"),
    "rocpd_info_thread": words("id tid"),
}
"""Table -> columns that are read; rocprofv3 writes all of its tables, with rows or without."""

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
        parts = _parts(database)
        counts = {table: sum(part.count(table) for part in parts) for table in (*_READ, *_LEFT_OUT)}
        calls, ranges = Calls(), list[Range]()
        unplaced = sum(_read_regions(part, calls, ranges) for part in parts)
        tags = dict(row for part in parts for row in part.rows("rocpd_metadata", "tag", "value"))
        schema = str(tags.get("schema_version") or "")
        return Report(
            tool=ROCPROFV3,
            path=path,
            form=f"rocprofv3 database (rocpd){schema and f', schema {schema}'}",
            devices=_devices(parts),
            environment={"rocpd_schema": schema} if schema else {},
            kernels=_Rows(path, _kernels),
            counters=_Rows(path, _counters),
            copies=_Rows(path, _copies),
            ranges=ranges,
            operations=calls.operations(),
            gaps=(
                *(gap for part in parts for gap in _table_gaps(part)),
                *_gaps(counts, ranges, unplaced),
            ),
            diagnostics=(
                *([SERIAL] if counts["rocpd_pmc_event"] else ()),
                *_unknown_tables(database, parts),
                *newer("rocpd schema", schema, _NEWEST),
            ),
            duration_ns=_length(parts),
        )


class Part:
    """The tables of one GUID, by their plain names."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.database, self.suffix = database, suffix

    def has(self, name: str, *columns: str) -> bool:
        return self.database.has(name + self.suffix, *columns)

    def table(self, name: str) -> str:
        """Return the quoted name of the table; a table without rows if there is none."""
        if not self.has(name):
            return "(SELECT NULL AS id, NULL AS category_id, NULL AS extdata, NULL AS tid WHERE 0)"
        doubled = f"{name}{self.suffix}".replace('"', '""')
        return f'"{doubled}"'

    def columns(self, alias: str, table: str, columns: Iterable[Column]) -> list[str]:
        """Return the SQL of declared columns; NULL for those that this version does not have."""
        return sql_columns(columns, alias, self.database.tables.get(table + self.suffix, ()))

    def integer(self, alias: str, table: str, column: str) -> str:
        """Return the SQL of a column, with NULL for what is no integer."""
        return integer(f'{alias}."{column}"') if self.has(table, column) else "NULL"

    def count(self, table: str) -> int:
        return self.database.count(table + self.suffix) if self.has(table) else 0

    def rows(self, table: str, *names: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small table; [] without it."""
        wanted = ", ".join(self.columns("t", table, map(Column, names)))
        return self.execute(f"SELECT {wanted} FROM {self.table(table)} t").fetchall()

    def text(self, number: str) -> str:
        """Return the SQL of the string with that number."""
        return f"(SELECT s.string FROM {self.table('rocpd_string')} s WHERE s.id = {number})"

    def execute(self, query: str) -> sqlite3.Cursor:
        return self.database.connection.execute(query)


def _parts(database: Database) -> list[Part]:
    """Return one for each suffix that has the tables all others refer to."""
    suffixes = sorted(
        name.removeprefix(DISPATCH) for name in database.tables if name.startswith(DISPATCH)
    )
    parts = [Part(database, suffix) for suffix in suffixes]
    return [part for part in parts if all(part.has(mark) for mark in _MARKS)]


def _table_gaps(part: Part) -> Iterator[Gap]:
    """Yield the gaps of the tables of one GUID, which name them without it."""
    symbols = part.table("rocpd_info_kernel_symbol")
    query = (
        f"SELECT count(*) FROM {part.table(DISPATCH)} k LEFT JOIN {symbols} s ON s.id = "
        "k.kernel_id WHERE s.id IS NULL"
    )
    if part.has(DISPATCH, "kernel_id") and (nameless := part.execute(query).fetchone()[0]):
        reason = f"{nameless:,} dispatches name a kernel that is not in the database"
        yield Gap("kernel.name", "unreadable", reason)
    for (extra,) in part.rows("rocpd_info_agent", "extdata"):
        if isinstance(extra, str) and extra and _object(extra) is None:
            reason = "the facts about an agent (extdata) are no JSON object"
            yield Gap("device", "unreadable", reason)
    tables = [name + part.suffix for name in (*_NUMBERED, *_READ)]
    always = {name + part.suffix: columns for name, columns in _ALWAYS.items()}
    for gap in check(part.database, tables, always):
        quantity, reason = (text.replace(part.suffix, "") for text in (gap.quantity, gap.reason))
        yield Gap(quantity, gap.state, reason)


class _Rows:
    """Opens the database anew for each iteration."""

    def __init__(self, path: Path, read: Callable[[Part, int], Iterator[Any]]) -> None:
        self._path, self._read = path, read

    def __iter__(self) -> Iterator[Any]:
        with opened(self._path, ROCPROFV3, AGAIN) as database:
            first = 0
            for part in _parts(database):
                yield from self._read(part, first)
                first += part.count(DISPATCH)


def _ordinals(part: Part) -> dict[int, int]:
    """Return agent -> ordinal among the GPUs."""
    agents = part.rows("rocpd_info_agent", "id", "type", "type_index")
    gpus = sorted(agent for agent in agents if agent[1] == "GPU")
    return {
        agent: number if isinstance(number, int) else index
        for index, (agent, _, number) in enumerate(gpus)
    }


def _kernels(part: Part, first: int) -> Iterator[Kernel]:
    ordinals, symbols = _ordinals(part), "rocpd_info_kernel_symbol"
    columns = [*part.columns("k", DISPATCH, _DISPATCH), *part.columns("s", symbols, _SYMBOL)]
    rows = part.execute(
        f"SELECT {', '.join(columns)} FROM {part.table(DISPATCH)} k"
        f" LEFT JOIN {part.table(symbols)} s ON s.id = k.kernel_id ORDER BY k.id"
    )
    for launch, row in enumerate(rows, first):
        fields = read_selected((*_DISPATCH, *_SYMBOL), row)
        name = fields["shown"] or fields["symbol"] or "(no name in the database)"
        yield make_kernel(launch, name, ordinals.get(fields["agent"]), fields)


def _counters(part: Part, first: int) -> Iterator[Counter]:
    """Yield the counters; instances of one (shader engines, XCDs, channels) are summed, as
    rocprofv3's own view does."""
    if not (
        part.has("rocpd_pmc_event", "event_id", "pmc_id", "value")
        and part.has("rocpd_info_pmc", "id", "name")
    ):
        return
    rows = part.execute(
        "SELECT k.launch, i.name, sum(e.value) FROM (SELECT event_id, row_number() OVER (ORDER BY "
        f"id) - 1 AS launch FROM {part.table(DISPATCH)}) k JOIN {part.table('rocpd_pmc_event')} e "
        f"ON e.event_id = k.event_id JOIN {part.table('rocpd_info_pmc')} i ON i.id = e.pmc_id "
        "GROUP BY k.launch, i.name ORDER BY k.launch, i.name"
    )
    for launch, name, value in rows:
        yield make_counter(first + launch, str(name), value)


def _copies(part: Part, first: int) -> Iterator[Copy]:
    copies = "rocpd_memory_copy"
    if not part.has(copies, "name_id", "start", "end", "size"):
        return
    ordinals = _ordinals(part)
    columns = ", ".join([*part.columns("c", copies, _COPY), part.text("c.name_id")])
    for row in part.execute(f"SELECT {columns} FROM {part.table(copies)} c ORDER BY c.id"):
        fields = read_selected(_COPY, row)
        target, source = ordinals.get(fields["target"]), ordinals.get(fields["source"])
        yield make_copy(str(row[-1]), target, source, fields)


def _read_regions(part: Part, calls: Calls, ranges: list[Range]) -> int:
    """Add API calls to ``calls``, and ROCTx ranges, whose text is in ``extdata``, to ``ranges``.
    Return how many of these have no start."""
    regions = "rocpd_region"
    if not part.has(regions, "name_id", "event_id", "start", "end"):
        return 0
    events = f"FROM {part.table('rocpd_event')} e WHERE e.id = r.event_id"
    category, extra = (
        f"(SELECT {part.text('e.category_id')} {events})",
        f"(SELECT e.extdata {events})",
    )
    name, start = part.text("r.name_id"), part.integer("r", regions, "start")
    length = f"({part.integer('r', regions, 'end')} - {start})"
    sums = part.execute(
        f"SELECT {category} AS c, {name} AS n, count(*), sum({length}), min(r.id) FROM "
        f"{part.table(regions)} r GROUP BY c, n ORDER BY 5"
    )
    for kind, function, count, total, _ in sums:
        if "MARKER" not in str(kind).upper():
            calls.add(str(kind or "api"), str(function), total or 0, count)
    unplaced = 0
    rows = part.execute(
        f"SELECT {name}, {extra}, {start}, {length}, "
        f"{part.integer('t', 'rocpd_info_thread', 'tid')} FROM {part.table(regions)} r LEFT JOIN "
        f"{part.table('rocpd_info_thread')} t ON t.id = r.tid WHERE {category} LIKE '%MARKER%' "
        "ORDER BY r.start, r.id"
    )
    for function, text, begin, duration, thread in rows:
        if begin is None:
            unplaced += 1
            continue
        # what the program gave to ``roctxRangePush``
        message = (_object(text) or {}).get("message")
        shown = message if isinstance(message, str) and message else str(function)
        ranges.append(Range(len(ranges), shown, "roctx", begin, duration, thread, None, None))
    return unplaced


def _devices(parts: list[Part]) -> tuple[Device, ...]:
    """Return the GPUs, those that ran kernels first; each once."""
    devices: dict[int, Device] = {}
    used: set[int | None] = set()
    for part in parts:
        ordinals = _ordinals(part)
        agents = part.execute(f"SELECT DISTINCT agent_id FROM {part.table(DISPATCH)}")
        used |= {ordinals.get(agent) for (agent,) in agents}
        for agent, name, product, extra in part.rows(
            "rocpd_info_agent", "id", "name", "product_name", "extdata"
        ):
            if (index := ordinals.get(agent)) is not None:
                gpu = make_device(index, name, product, _object(extra) or {})
                devices.setdefault(index, gpu)
    return order_devices(devices, used)


def _object(text: object) -> dict[str, Any] | None:
    """Return a JSON object; None for any other text."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _length(parts: list[Part]) -> int | None:
    """Return the ns from the first process's start to the last one's end."""
    rows = [row for part in parts for row in part.rows("rocpd_info_process", "start", "end")]
    spans = [
        (start, end)
        for start, end in rows
        if isinstance(start, int) and isinstance(end, int) and 0 < start < end
    ]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else None


def _gaps(counts: dict[str, int], ranges: list[Range], unplaced: int) -> Iterator[Gap]:
    if unplaced:
        reason = f"{unplaced:,} ROCTx ranges have no start and were left out"
        yield Gap("range", "unreadable", reason)
    yield make_layer_gap(counts[DISPATCH] > 0, bool(ranges), "the database holds")
    if not counts["rocpd_memory_copy"]:
        yield NO_COPIES
    if not counts["rocpd_pmc_event"]:
        yield NO_COUNTERS
    for table, what in _LEFT_OUT.items():
        if counts[table] and table not in _QUIET:
            reason = f"{what} are not read: {counts[table]:,} rows of {table}"
            yield Gap(table, "not_available", reason)


def _unknown_tables(database: Database, parts: list[Part]) -> tuple[Diagnostic, ...]:
    known = {name + part.suffix for part in parts for name in (*_READ, *_LEFT_OUT)}
    known |= {"sqlite_sequence", "sqlite_stat1"}
    unknown = [name for name in sorted(database.tables) if name not in known]
    return not_understood({"tables": [name for name in unknown if database.holds(name)]})
