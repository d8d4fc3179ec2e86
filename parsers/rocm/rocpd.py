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
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from perfctl.parsers.rocm.records import (
    AGAIN,
    ROCPROFV3,
    SERIAL,
    Calls,
    api_domain,
    copy_kind,
    counter,
    device,
    groups,
    launched,
    no_layers,
    registers,
)
from perfctl.parsers.text.doubts import contradictions, newer, not_understood, words
from perfctl.parsers.text.lines import readable
from perfctl.parsers.text.sqlite import Database, check_whole, connect, integer, opened
from perfctl.parsers.text.sqlite_checks import check
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

_NO_ROWS = "(SELECT NULL AS id, NULL AS category_id, NULL AS extdata, NULL AS tid WHERE 0)"
"""In the place of a table that others refer to."""

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

_REFERENCES = (
    (DISPATCH, "agent_id", "rocpd_info_agent"),
    ("rocpd_region", "name_id", "rocpd_string"),
    ("rocpd_memory_copy", "name_id", "rocpd_string"),
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
    """Read the file. Raises ReportError when it is cut off or damaged."""
    with readable(path, ROCPROFV3, "Check its permissions"):
        check_whole(path, ROCPROFV3, AGAIN)
    with opened(path, ROCPROFV3, AGAIN) as database:
        parts = _parts(database)
        damage = tuple(gap for part in parts for gap in _damage(part))
        counts = {table: sum(part.count(table) for part in parts) for table in (*_READ, *_LEFT_OUT)}
        calls, ranges = Calls(), list[Range]()
        unplaced = sum(_regions(part, calls, ranges) for part in parts)
        schema = next((text for part in parts if (text := _schema(part))), None)
        return Report(
            tool=ROCPROFV3,
            path=path,
            form=f"rocprofv3 database (rocpd), schema {schema}"
            if schema
            else "rocprofv3 database (rocpd)",
            devices=_devices(parts),
            environment={"rocpd_schema": schema} if schema else {},
            kernels=_Rows(path, _kernels),
            counters=_Rows(path, _counters),
            copies=_Rows(path, _copies),
            ranges=ranges,
            operations=tuple(calls.operations()),
            gaps=(*damage, *_gaps(counts, ranges, unplaced)),
            diagnostics=(
                *([SERIAL] if counts["rocpd_pmc_event"] else ()),
                *_unknown(database, parts),
                *newer("rocpd schema", schema, _NEWEST),
                *_doubts(database, parts),
            ),
            duration_ns=_length(parts),
        )


class Part:
    """The tables of one GUID, by their plain names."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.database, self.suffix = database, suffix

    def table(self, name: str) -> str:
        """The table's whole name, quoted; SQL of a table without rows where there is none."""
        if not self.has(name):
            return _NO_ROWS
        doubled = f"{name}{self.suffix}".replace('"', '""')
        return f'"{doubled}"'

    def has(self, name: str, *columns: str) -> bool:
        return self.database.has(name + self.suffix, *columns)

    def column(self, alias: str, table: str, column: str) -> str:
        """SQL of a column; NULL where this version does not have it."""
        return f'{alias}."{column}"' if self.has(table, column) else "NULL"

    def integer(self, alias: str, table: str, column: str) -> str:
        """The same, with NULL for what is no integer."""
        return integer(f'{alias}."{column}"') if self.has(table, column) else "NULL"

    def length(self, alias: str, table: str) -> str:
        """SQL of the ns from start to end; NULL where one of them is no integer."""
        return f"({self.integer(alias, table, 'end')} - {self.integer(alias, table, 'start')})"

    def count(self, table: str) -> int:
        if not self.has(table):
            return 0
        return int(self.execute(f"SELECT count(*) FROM {self.table(table)}").fetchone()[0])

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """All rows of a small table; [] without it."""
        if not self.has(table):
            return []
        wanted = ", ".join(self.column("t", table, column) for column in columns)
        return self.execute(f"SELECT {wanted} FROM {self.table(table)} t").fetchall()

    def word(self, number: str) -> str:
        """SQL of the string with that number."""
        return f"(SELECT s.string FROM {self.table('rocpd_string')} s WHERE s.id = {number})"

    def execute(self, query: str) -> sqlite3.Cursor:
        return self.database.connection.execute(query)


def _parts(database: Database) -> list[Part]:
    """One for each suffix that has the tables all others refer to."""
    suffixes = sorted(
        name.removeprefix(DISPATCH) for name in database.tables if name.startswith(DISPATCH)
    )
    found = [Part(database, suffix) for suffix in suffixes]
    return [part for part in found if all(part.has(mark) for mark in _MARKS)]


def _damage(part: Part) -> Iterator[Gap]:
    """Of the tables of one GUID; the gaps name them without it."""
    numbered, read, always = (
        {name + part.suffix: name for name in names} for names in (_NUMBERED, _READ, _ALWAYS)
    )
    symbols = part.table("rocpd_info_kernel_symbol")
    query = (
        f"SELECT count(*) FROM {part.table(DISPATCH)} k LEFT JOIN {symbols} s ON s.id = "
        "k.kernel_id WHERE s.id IS NULL"
    )
    if part.has(DISPATCH, "kernel_id") and (nameless := part.execute(query).fetchone()[0]):
        yield Gap(
            "kernel.name",
            "unreadable",
            f"{nameless:,} dispatches name a kernel that is not in the database",
        )
    for (extra,) in part.rows("rocpd_info_agent", "extdata"):
        if isinstance(extra, str) and extra and _object(extra) is None:
            yield Gap(
                "device", "unreadable", "the facts about an agent (extdata) are no JSON object"
            )
    for gap in check(
        part.database,
        [*numbered, *read],
        {table: _ALWAYS[name] for table, name in always.items()},
    ):
        yield gap._replace(
            quantity=gap.quantity.replace(part.suffix, ""),
            reason=gap.reason.replace(part.suffix, ""),
        )


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


def _schema(part: Part) -> str | None:
    return next(
        (
            str(value)
            for tag, value in part.rows("rocpd_metadata", "tag", "value")
            if tag == "schema_version"
        ),
        None,
    )


def _ordinals(part: Part) -> dict[int, int]:
    """Agent -> ordinal among the GPUs."""
    rows = [
        row for row in part.rows("rocpd_info_agent", "id", "type", "type_index") if row[1] == "GPU"
    ]
    return {
        row[0]: row[2] if isinstance(row[2], int) else place
        for place, row in enumerate(sorted(rows))
    }


def _kernels(part: Part, first: int) -> Iterator[Kernel]:
    ordinals = _ordinals(part)
    symbols = "rocpd_info_kernel_symbol"
    names = [part.column("s", symbols, name) for name in ("display_name", "kernel_name")]
    counts = [
        part.integer("s", symbols, name)
        for name in ("arch_vgpr_count", "accum_vgpr_count", "group_segment_size")
    ]
    sizes = [f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
    of_launch = ("agent_id", "stream_id", *sizes, "group_segment_size", "start")
    columns = [*names, *counts, *(part.integer("k", DISPATCH, name) for name in of_launch)]
    rows = part.execute(
        f"SELECT {', '.join(columns)}, {part.length('k', DISPATCH)} FROM {part.table(DISPATCH)} k"
        f" LEFT JOIN {part.table(symbols)} s ON s.id = k.kernel_id ORDER BY k.id"
    )
    for launch, row in enumerate(rows, first):
        shown, symbol, vgprs, accs, static, agent, stream, *rest = row
        grid, block, (lds, start, length) = rest[:3], rest[3:6], rest[6:]
        dynamic = (
            lds - static
            if isinstance(lds, int) and isinstance(static, int) and lds >= static
            else None
        )
        yield launched(
            launch,
            str(shown or symbol or "(no name in the database)"),
            ordinals.get(agent),
            stream,
            *map(groups, grid, block),
            *block,
            registers(vgprs, accs),
            static,
            dynamic,
            start,
            length if isinstance(length, int) and length >= 0 else None,
        )


def _counters(part: Part, first: int) -> Iterator[Counter]:
    """Instances of a counter (shader engines, XCDs, channels) are summed, as rocprofv3's own
    view does."""
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
        yield counter(first + launch, str(name), value)


def _copies(part: Part, first: int) -> Iterator[Copy]:
    if not part.has("rocpd_memory_copy", "name_id", "start", "end", "size"):
        return
    ordinals = _ordinals(part)
    table = "rocpd_memory_copy"
    size, start, *columns = (
        part.integer("c", table, name)
        for name in ("size", "start", "dst_agent_id", "src_agent_id", "stream_id")
    )
    rows = part.execute(
        f"SELECT {part.word('c.name_id')}, {size}, {start}, {part.length('c', table)}, "
        f"{', '.join(columns)} FROM {part.table('rocpd_memory_copy')} c ORDER BY c.id"
    )
    for name, size, start, length, target, source, stream in rows:
        place = ordinals.get(target, ordinals.get(source))
        yield Copy(copy_kind(str(name)), size, start, length, None, place, stream)


def _regions(part: Part, calls: Calls, ranges: list[Range]) -> int:
    """API calls into sums; ROCTx ranges, whose text is in ``extdata``, into ranges. How many of
    these have no start."""
    if not part.has("rocpd_region", "name_id", "event_id", "start", "end"):
        return 0
    category = (
        f"(SELECT {part.word('e.category_id')} FROM {part.table('rocpd_event')} e WHERE e.id = "
        "r.event_id)"
    )
    extra = f"(SELECT e.extdata FROM {part.table('rocpd_event')} e WHERE e.id = r.event_id)"
    grouped = part.execute(
        f"SELECT {category} AS c, {part.word('r.name_id')} AS n, count(*), "
        f"sum({part.length('r', 'rocpd_region')}), min(r.id) FROM {part.table('rocpd_region')} r "
        "GROUP BY c, n ORDER BY 5"
    )
    marked, unplaced = False, 0
    for kind, name, count, total, _ in grouped:
        if "MARKER" in str(kind).upper():
            marked = True
        else:
            calls.add(api_domain(str(kind or "api")), str(name), total or 0, count)
    if not marked:
        return 0
    rows = part.execute(
        f"SELECT {part.word('r.name_id')}, {extra}, {part.integer('r', 'rocpd_region', 'start')}, "
        f"{part.length('r', 'rocpd_region')}, {part.integer('t', 'rocpd_info_thread', 'tid')} FROM "
        f"{part.table('rocpd_region')} r LEFT JOIN {part.table('rocpd_info_thread')} t ON t.id = "
        f"r.tid WHERE {category} LIKE '%MARKER%' ORDER BY r.start, r.id"
    )
    for name, text, start, length, thread in rows:
        if start is None:
            unplaced += 1
        else:
            ranges.append(
                Range(
                    len(ranges),
                    _message(text) or str(name),
                    "roctx",
                    start,
                    length,
                    thread,
                    None,
                    None,
                )
            )
    return unplaced


def _message(text: object) -> str | None:
    """What the program gave to ``roctxRangePush``."""
    found = _object(text)
    message = found.get("message") if found else None
    return message if isinstance(message, str) and message else None


def _devices(parts: list[Part]) -> tuple[Device, ...]:
    """The GPUs, those that ran kernels first; each once."""
    found: dict[int, Device] = {}
    used: set[int] = set()
    for part in parts:
        ordinals = _ordinals(part)
        agents = part.execute(f"SELECT DISTINCT agent_id FROM {part.table(DISPATCH)}")
        used |= {ordinals[agent] for (agent,) in agents if agent in ordinals}
        for agent, name, product, extra in part.rows(
            "rocpd_info_agent", "id", "name", "product_name", "extdata"
        ):
            if agent in ordinals:
                found.setdefault(ordinals[agent], _device(ordinals[agent], name, product, extra))
    return tuple(sorted(found.values(), key=lambda one: (one.index not in used, one.index)))


def _device(index: int, name: object, product: object, extra: object) -> Device:
    return device(index, name, product, _object(extra) or {})


def _object(text: object) -> dict[str, Any] | None:
    """A JSON object; None for any other text."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _length(parts: list[Part]) -> int | None:
    """From the first process's start to the last one's end, ns."""
    rows = [row for part in parts for row in part.rows("rocpd_info_process", "start", "end")]
    known = [
        (start, end)
        for start, end in rows
        if isinstance(start, int) and isinstance(end, int) and 0 < start < end
    ]
    return max(end for _, end in known) - min(start for start, _ in known) if known else None


def _gaps(counts: dict[str, int], ranges: list[Range], unplaced: int) -> Iterator[Gap]:
    if unplaced:
        yield Gap(
            "range", "unreadable", f"{unplaced:,} ROCTx ranges have no start and were left out"
        )
    if not counts[DISPATCH]:
        yield Gap(
            "kernel",
            "not_collected",
            "no kernel was dispatched, or rocprofv3 ran without --kernel-trace",
        )
    else:
        yield no_layers(bool(ranges))
    if not counts["rocpd_memory_copy"]:
        yield Gap(
            "copy",
            "not_collected",
            "no copy was recorded: none ran, or rocprofv3 ran without --memory-copy-trace",
        )
    if not counts["rocpd_pmc_event"]:
        yield Gap("counter", "not_collected", "rocprofv3 ran without counters (--pmc)")
    for table, what in _LEFT_OUT.items():
        if counts[table] and table not in _QUIET:
            yield Gap(
                table, "not_available", f"{what} are not read: {counts[table]:,} rows of {table}"
            )


def _unknown(database: Database, parts: list[Part]) -> tuple[Diagnostic, ...]:
    known = {name + part.suffix for part in parts for name in (*_READ, *_LEFT_OUT)} | {
        "sqlite_sequence",
        "sqlite_stat1",
    }
    return not_understood(
        {
            "tables": [
                name
                for name in sorted(database.tables)
                if name not in known and database.holds(name)
            ]
        }
    )


def _doubts(database: Database, parts: list[Part]) -> tuple[Diagnostic, ...]:
    """Rows that were deleted, references to nothing, and times that go backwards."""
    found = [database.deleted()]
    for part in parts:
        for table, column, target in _REFERENCES:
            if part.has(table, column) and part.has(target, "id"):
                distinct = f"SELECT DISTINCT {column} AS n FROM {part.table(table)}"
                query = (
                    f"SELECT count(*) FROM ({distinct}) WHERE n NOT IN (SELECT id FROM "
                    f"{part.table(target)})"
                )
                (lost,) = part.execute(query).fetchone()
                found.append(
                    f"{lost} numbers in {table}.{column} are not in {target}" if lost else None
                )
        for table in (DISPATCH, "rocpd_region", "rocpd_memory_copy"):
            if part.has(table, "start", "end"):
                (wrong,) = part.execute(
                    f'SELECT count(*) FROM {part.table(table)} WHERE "end" < start'
                ).fetchone()
                found.append(f"{wrong} rows of {table} end before they begin" if wrong else None)
    return contradictions([text for text in found if text])
