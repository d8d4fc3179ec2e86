"""``results.db`` of rocprofv3 (rocpd, an SQLite database; schema 3 of ROCm 7 was seen).

Its tables carry the run's GUID as a suffix; its views, which have plain names, are not used, since a view in somebody
else's file is a program (and ``top_kernels`` is in microseconds where all else is in ns). Of ``rocpd_info_process`` only
times are read: its ``environment`` is the whole environment of the process, its ``command`` may hold secrets. Kernels,
counters and copies are read while they are iterated, each from a connection of its own.
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
from perfctl.parsers.text.doubts import contradictions, newer, not_understood
from perfctl.parsers.text.lines import readable
from perfctl.parsers.text.sqlite import Database, check_whole, connect, opened
from perfctl.records.report import Copy, Counter, Device, Diagnostic, Gap, Kernel, Range, Report
from perfctl.records.sqlite_header import is_sqlite

DISPATCH = "rocpd_kernel_dispatch"
_MARKS = (DISPATCH, "rocpd_info_agent", "rocpd_string")
_READ = (
    *_MARKS, "rocpd_metadata", "rocpd_info_process", "rocpd_info_kernel_symbol", "rocpd_info_pmc", "rocpd_pmc_event",
    "rocpd_event", "rocpd_region", "rocpd_memory_copy", "rocpd_info_stream", "rocpd_info_queue", "rocpd_info_thread",
)  # fmt: skip
_LEFT_OUT = {
    "rocpd_arg": "arguments of API calls", "rocpd_sample": "samples", "rocpd_track": "tracks of samples",
    "rocpd_memory_allocate": "allocations of memory", "rocpd_info_code_object": "code objects",
    "rocpd_info_node": "names of the host",
}  # fmt: skip
"""Known tables without a reader; those with rows become gaps, but for the last two, which hold no measurement."""
_QUIET = ("rocpd_info_code_object", "rocpd_info_node")
_NEWEST = "3"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a rocpd database: by its tables, or by table names in the head of a damaged file."""
    if not is_sqlite(head):
        return False
    try:
        with closing(connect(path)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
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
        counts = {table: sum(part.count(table) for part in parts) for table in (*_READ, *_LEFT_OUT)}
        calls, ranges = Calls(), list[Range]()
        for part in parts:
            _regions(part, calls, ranges)
        schema = next((text for part in parts if (text := _schema(part))), None)
        return Report(
            tool=ROCPROFV3,
            path=path,
            form=f"rocprofv3 database (rocpd), schema {schema}" if schema else "rocprofv3 database (rocpd)",
            devices=_devices(parts),
            environment={"rocpd_schema": schema} if schema else {},
            kernels=_Rows(path, _kernels),
            counters=_Rows(path, _counters),
            copies=_Rows(path, _copies),
            ranges=ranges,
            operations=tuple(calls.operations()),
            gaps=tuple(_gaps(counts, ranges)),
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
        """The table's whole name, quoted."""
        doubled = f"{name}{self.suffix}".replace('"', '""')
        return f'"{doubled}"'

    def has(self, name: str, *columns: str) -> bool:
        return self.database.has(name + self.suffix, *columns)

    def column(self, alias: str, table: str, column: str) -> str:
        """SQL of a column; NULL where this version does not have it."""
        return f'{alias}."{column}"' if self.has(table, column) else "NULL"

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
    suffixes = sorted(name.removeprefix(DISPATCH) for name in database.tables if name.startswith(DISPATCH))
    found = [Part(database, suffix) for suffix in suffixes]
    return [part for part in found if all(part.has(mark) for mark in _MARKS)]


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
        (str(value) for tag, value in part.rows("rocpd_metadata", "tag", "value") if tag == "schema_version"), None
    )


def _ordinals(part: Part) -> dict[int, int]:
    """Agent -> ordinal among the GPUs."""
    rows = [row for row in part.rows("rocpd_info_agent", "id", "type", "type_index") if row[1] == "GPU"]
    return {row[0]: row[2] if isinstance(row[2], int) else place for place, row in enumerate(sorted(rows))}


def _kernels(part: Part, first: int) -> Iterator[Kernel]:
    ordinals = _ordinals(part)
    symbols = "rocpd_info_kernel_symbol"
    of_symbol = [part.column("s", symbols, name) for name in (
        "display_name", "kernel_name", "arch_vgpr_count", "accum_vgpr_count", "group_segment_size")]  # fmt: skip
    sizes = [f"k.{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
    columns = [*of_symbol, "k.agent_id", "k.stream_id", *sizes, part.column("k", DISPATCH, "group_segment_size")]
    rows = part.execute(
        f'SELECT {", ".join(columns)}, k.start, k."end" - k.start FROM {part.table(DISPATCH)} k'
        f" LEFT JOIN {part.table(symbols)} s ON s.id = k.kernel_id ORDER BY k.id"
    )
    for launch, row in enumerate(rows, first):
        shown, symbol, vgprs, accs, static, agent, stream, *rest = row
        grid, block, (lds, start, length) = rest[:3], rest[3:6], rest[6:]
        dynamic = lds - static if isinstance(lds, int) and isinstance(static, int) and lds >= static else None
        yield launched(
            launch, str(shown or symbol or "(no name in the database)"),
            ordinals.get(agent), stream, *map(groups, grid, block), *block, registers(vgprs, accs), static, dynamic,
            start, length if isinstance(length, int) and length >= 0 else None,
        )  # fmt: skip


def _counters(part: Part, first: int) -> Iterator[Counter]:
    """Instances of a counter (shader engines, XCDs, channels) are summed, as rocprofv3's own view does."""
    if not (part.has("rocpd_pmc_event", "event_id", "pmc_id", "value") and part.has("rocpd_info_pmc", "id", "name")):
        return
    rows = part.execute(
        f"SELECT k.launch, i.name, sum(e.value) FROM (SELECT event_id, row_number() OVER (ORDER BY id) - 1 AS launch"
        f" FROM {part.table(DISPATCH)}) k JOIN {part.table('rocpd_pmc_event')} e ON e.event_id = k.event_id"
        f" JOIN {part.table('rocpd_info_pmc')} i ON i.id = e.pmc_id GROUP BY k.launch, i.name ORDER BY k.launch, i.name"
    )
    for launch, name, value in rows:
        yield counter(first + launch, str(name), value)


def _copies(part: Part, first: int) -> Iterator[Copy]:
    if not part.has("rocpd_memory_copy", "name_id", "start", "end", "size"):
        return
    ordinals = _ordinals(part)
    columns = [part.column("c", "rocpd_memory_copy", name) for name in ("dst_agent_id", "src_agent_id", "stream_id")]
    rows = part.execute(
        f'SELECT {part.word("c.name_id")}, c.size, c.start, c."end" - c.start, {", ".join(columns)}'
        f" FROM {part.table('rocpd_memory_copy')} c ORDER BY c.id"
    )
    for name, size, start, length, target, source, stream in rows:
        place = ordinals.get(target, ordinals.get(source))
        yield Copy(copy_kind(str(name)), size, start, length, None, place, stream)


def _regions(part: Part, calls: Calls, ranges: list[Range]) -> None:
    """API calls into sums; ROCTx ranges, whose text is in ``extdata``, into ranges."""
    if not part.has("rocpd_region", "name_id", "event_id", "start", "end"):
        return
    category = f"(SELECT {part.word('e.category_id')} FROM {part.table('rocpd_event')} e WHERE e.id = r.event_id)"
    extra = f"(SELECT e.extdata FROM {part.table('rocpd_event')} e WHERE e.id = r.event_id)"
    grouped = part.execute(
        f'SELECT {category} AS c, {part.word("r.name_id")} AS n, count(*), sum(r."end" - r.start), min(r.id)'
        f" FROM {part.table('rocpd_region')} r GROUP BY c, n ORDER BY 5"
    )
    marked = False
    for kind, name, count, total, _ in grouped:
        if "MARKER" in str(kind).upper():
            marked = True
        else:
            calls.add_sum(api_domain(str(kind or "api")), str(name), count, total)
    if not marked:
        return
    rows = part.execute(
        f'SELECT {part.word("r.name_id")}, {extra}, r.start, r."end" - r.start, t.tid FROM {part.table("rocpd_region")} r'
        f" LEFT JOIN {part.table('rocpd_info_thread')} t ON t.id = r.tid WHERE {category} LIKE '%MARKER%' ORDER BY r.start, r.id"
    )
    for name, text, start, length, thread in rows:
        ranges.append(Range(len(ranges), _message(text) or str(name), "roctx", start, length, thread, None, None))


def _message(text: object) -> str | None:
    """What the program gave to ``roctxRangePush``."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    message = found.get("message") if isinstance(found, dict) else None
    return message if isinstance(message, str) and message else None


def _devices(parts: list[Part]) -> tuple[Device, ...]:
    """The GPUs, those that ran kernels first; each once."""
    found: dict[int, Device] = {}
    used: set[int] = set()
    for part in parts:
        ordinals = _ordinals(part)
        agents = part.execute(f"SELECT DISTINCT agent_id FROM {part.table(DISPATCH)}")
        used |= {ordinals[agent] for (agent,) in agents if agent in ordinals}
        for agent, name, product, extra in part.rows("rocpd_info_agent", "id", "name", "product_name", "extdata"):
            if agent in ordinals:
                found.setdefault(ordinals[agent], _device(ordinals[agent], name, product, extra))
    return tuple(sorted(found.values(), key=lambda one: (one.index not in used, one.index)))


def _device(index: int, name: object, product: object, extra: object) -> Device:
    try:
        said = json.loads(extra) if isinstance(extra, str) else {}
    except (ValueError, RecursionError):
        said = {}
    facts: dict[str, Any] = said if isinstance(said, dict) else {}
    return device(index, name, product, facts)


def _length(parts: list[Part]) -> int | None:
    """From the first process's start to the last one's end, ns."""
    rows = [row for part in parts for row in part.rows("rocpd_info_process", "start", "end")]
    known = [(start, end) for start, end in rows if isinstance(start, int) and isinstance(end, int) and 0 < start < end]
    return max(end for _, end in known) - min(start for start, _ in known) if known else None


def _gaps(counts: dict[str, int], ranges: list[Range]) -> Iterator[Gap]:
    if not counts[DISPATCH]:
        yield Gap("kernel", "not_collected", "no kernel was dispatched, or rocprofv3 ran without --kernel-trace")
    else:
        yield from no_layers(bool(ranges))
    if not counts["rocpd_memory_copy"]:
        yield Gap(
            "copy", "not_collected", "no copy was recorded: none ran, or rocprofv3 ran without --memory-copy-trace"
        )
    if not counts["rocpd_pmc_event"]:
        yield Gap("counter", "not_collected", "rocprofv3 ran without counters (--pmc)")
    for table, what in _LEFT_OUT.items():
        if counts[table] and table not in _QUIET:
            yield Gap(table, "not_available", f"{what} are not read: {counts[table]:,} rows of {table}")


def _unknown(database: Database, parts: list[Part]) -> tuple[Diagnostic, ...]:
    known = {name + part.suffix for part in parts for name in (*_READ, *_LEFT_OUT)} | {
        "sqlite_sequence",
        "sqlite_stat1",
    }
    return not_understood(
        {"tables": [name for name in sorted(database.tables) if name not in known and database.holds(name)]}
    )


_NUMBERED = (DISPATCH, "rocpd_string", "rocpd_region", "rocpd_memory_copy", "rocpd_pmc_event")
"""Tables whose rows are numbered from 1 without gaps."""
_REFERENCES = (
    (DISPATCH, "kernel_id", "rocpd_info_kernel_symbol"), (DISPATCH, "agent_id", "rocpd_info_agent"),
    ("rocpd_region", "name_id", "rocpd_string"), ("rocpd_memory_copy", "name_id", "rocpd_string"),
)  # fmt: skip


def _doubts(database: Database, parts: list[Part]) -> tuple[Diagnostic, ...]:
    """Rows that are missing or were deleted, references to nothing, and times that go backwards."""
    found = [database.deleted()]
    for part in parts:
        found += [database.lost(table + part.suffix) for table in _NUMBERED if part.has(table)]
        for table, column, target in _REFERENCES:
            if part.has(table, column) and part.has(target, "id"):
                distinct = f"SELECT DISTINCT {column} AS n FROM {part.table(table)}"
                query = f"SELECT count(*) FROM ({distinct}) WHERE n NOT IN (SELECT id FROM {part.table(target)})"
                (lost,) = part.execute(query).fetchone()
                found.append(f"{lost} numbers in {table}.{column} are not in {target}" if lost else None)
        for table in (DISPATCH, "rocpd_region", "rocpd_memory_copy"):
            if part.has(table, "start", "end"):
                (wrong,) = part.execute(f'SELECT count(*) FROM {part.table(table)} WHERE "end" < start').fetchone()
                found.append(f"{wrong} rows of {table} end before they begin" if wrong else None)
    return contradictions([text for text in found if text])
