"""``results.db`` of rocprofv3 (rocpd, an SQLite database; schema 3 of ROCm 7 was seen).

Its tables carry the run's GUID as a suffix; its views, which have plain names, are not used, since
a view in somebody else's file is a program (and ``top_kernels`` is in microseconds where all else
is in ns). Of ``rocpd_info_process`` only times are read: its ``environment`` is the whole
environment of the process, its ``command`` may hold secrets. Kernels, counters and copies are read
while they are iterated, each from a connection of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from perfctl.parsers.common.doubts import make_newer_version_note, make_unknown_names_warning
from perfctl.parsers.common.sqlite import (
    Database,
    NamedTables,
    has_tables,
    list_unreadable_column_gaps,
    open_database,
    sql_integer,
)
from perfctl.parsers.common.tables import FieldColumn, nonempty_text_or_none
from perfctl.parsers.rocm.records import (
    AGAIN,
    COPY,
    LAUNCH_OF_SYMBOL,
    NAMELESS,
    ROCPROFV3,
    TIMES,
    RereadRecords,
    RocmRecording,
    make_copy,
    make_counter,
    make_kernel,
)
from perfctl.records.report import Copy, Counter, Gap, Kernel, Report

DISPATCH = "rocpd_kernel_dispatch"
AGENT = "rocpd_info_agent"
STRING = "rocpd_string"
_MARKS = (DISPATCH, AGENT, STRING)
_READ = {
    DISPATCH: "id kernel_id event_id agent_id stream_id group_segment_size start end grid_size_x "
    "grid_size_y grid_size_z workgroup_size_x workgroup_size_y workgroup_size_z",
    AGENT: "id type type_index name product_name extdata",
    STRING: "id string",
    "rocpd_info_kernel_symbol": "id display_name kernel_name arch_vgpr_count accum_vgpr_count "
    "group_segment_size",
    "rocpd_region": "id tid start end name_id event_id",
    "rocpd_memory_copy": "id name_id dst_agent_id src_agent_id stream_id size start end",
    "rocpd_event": "id category_id extdata",
    "rocpd_pmc_event": "id event_id pmc_id value",
    "rocpd_info_pmc": "id name",
    "rocpd_info_process": "id start end",
    "rocpd_info_thread": "id tid",
    "rocpd_metadata": "tag value",
}
"""Table -> columns that are read; rocprofv3 writes all of its tables, with rows or without."""
_COLUMNS = {table: names.split() for table, names in _READ.items()}
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

_KERNELS = """
    SELECT k.*, coalesce(s.display_name, s.kernel_name) AS kernel_name, s.arch_vgpr_count,
        s.accum_vgpr_count, s.group_segment_size AS "symbol.group_segment_size"
    FROM {rocpd_kernel_dispatch} k LEFT JOIN {rocpd_info_kernel_symbol} s ON s.id = k.kernel_id
    ORDER BY k.id
"""
_COUNTERS = """
    SELECT k.launch, i.name, sum(e.value)
    FROM (
        SELECT event_id, row_number() OVER (ORDER BY id) - 1 AS launch FROM {rocpd_kernel_dispatch}
    ) k
    JOIN {rocpd_pmc_event} e ON e.event_id = k.event_id JOIN {rocpd_info_pmc} i ON i.id = e.pmc_id
    GROUP BY k.launch, i.name ORDER BY k.launch, i.name
"""
"""Instances of a counter (shader engines, XCDs, channels) are summed, as rocprofv3's own view
does."""
_COPIES = """
    SELECT n.string AS "Direction", c.*
    FROM {rocpd_memory_copy} c LEFT JOIN {rocpd_string} n ON n.id = c.name_id ORDER BY c.id
"""
_REGIONS = """
    FROM {rocpd_region} r LEFT JOIN {rocpd_string} n ON n.id = r.name_id
    LEFT JOIN {rocpd_event} e ON e.id = r.event_id
    LEFT JOIN {rocpd_string} c ON c.id = e.category_id
    LEFT JOIN {rocpd_info_thread} t ON t.id = r.tid
"""
"""API calls and ROCTx ranges, with their names, categories and threads."""
_CALLS = f"""
    SELECT coalesce(c.string, 'api') AS category, coalesce(n.string, '{NAMELESS}'),
        sum({sql_integer('r."end"')} - {sql_integer("r.start")}), count(*)
    {_REGIONS} WHERE category NOT LIKE '%MARKER%' GROUP BY 1, 2 ORDER BY min(r.id)
"""
_RANGES = f"""
    SELECT n.string AS function, e.extdata, r.start, r."end", t.tid
    {_REGIONS} WHERE c.string LIKE '%MARKER%' ORDER BY r.start, r.id
"""
"""``extdata`` holds what the program gave to ``roctxRangePush``."""
_RANGE = (
    *TIMES,
    FieldColumn("function", read=str),
    FieldColumn("extdata", read=nonempty_text_or_none),
    FieldColumn("tid"),
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a rocpd database."""
    return has_tables(path, head, *_MARKS)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off or malformed."""
    with open_database(path, ROCPROFV3, AGAIN) as database:
        parts = _find_tables_by_guid(database)

        def read_if_rows(
            table: str, read: Callable[[NamedTables, int], Iterator[Any]]
        ) -> RereadRecords | tuple[()]:
            has_some = any(part.count_rows(table) for part in parts)
            return RereadRecords(partial(_iterate_rows_by_guid, path, read)) if has_some else ()

        tags = dict(row for part in parts for row in part.read_table("rocpd_metadata"))
        schema = str(tags.get("schema_version") or "")
        recording = RocmRecording(
            path,
            f"rocprofv3 database (rocpd){schema and f', schema {schema}'}",
            kernels=read_if_rows(DISPATCH, _read_kernels),
            counters=(counters := read_if_rows("rocpd_pmc_event", _read_counters)),
            copies=read_if_rows("rocpd_memory_copy", _read_copies),
            has_counters=bool(counters),
            environment={"rocpd_schema": schema} if schema else {},
        )
        for part in parts:
            _add_tables_of_guid(part, recording)
        recording.gaps += _find_unread_tables(database, parts)
        known_tables = {
            name + part.suffix for part in parts for name in (*_READ, *_LEFT_OUT, *_QUIET)
        }
        known_tables |= {"sqlite_sequence", "sqlite_stat1"}
        unknown = database.find_unknown_tables_and_columns({}, known_tables)
        recording.diagnostics += make_unknown_names_warning(unknown)
        recording.diagnostics += make_newer_version_note("rocpd schema", schema, _NEWEST)
        return recording.make_report()


def _find_tables_by_guid(database: Database) -> list[NamedTables]:
    """Return the tables of each GUID that has those all others refer to."""
    suffixes = sorted(
        name.removeprefix(DISPATCH) for name in database.tables if name.startswith(DISPATCH)
    )
    return [
        NamedTables(database, _COLUMNS, suffix)
        for suffix in suffixes
        if all(mark + suffix in database.tables for mark in _MARKS)
    ]


def _iterate_rows_by_guid(
    path: Path, read: Callable[[NamedTables, int], Iterator[Any]]
) -> Iterator[Any]:
    """Yield what ``read`` yields of each GUID, given the number of launches before it."""
    with open_database(path, ROCPROFV3, AGAIN) as database:
        first = 0
        for part in _find_tables_by_guid(database):
            yield from read(part, first)
            first += part.count_rows(DISPATCH)


def _map_agents_to_gpu_ordinals(part: NamedTables) -> dict[int, int]:
    """Return agent -> ordinal among the GPUs."""
    gpus = sorted(row[:3] for row in part.read_table(AGENT) if row[1] == "GPU")
    return {
        agent: number if isinstance(number, int) else index
        for index, (agent, _, number) in enumerate(gpus)
    }


def _read_kernels(part: NamedTables, first_launch: int) -> Iterator[Kernel]:
    ordinals = _map_agents_to_gpu_ordinals(part)
    for launch, row in enumerate(part.query_fields(LAUNCH_OF_SYMBOL, _KERNELS), first_launch):
        yield make_kernel(launch, ordinals.get(row["agent"]), row)


def _read_counters(part: NamedTables, first_launch: int) -> Iterator[Counter]:
    for launch, name, value in part.execute_query(_COUNTERS):
        yield make_counter(first_launch + launch, str(name), value)


def _read_copies(part: NamedTables, first_launch: int) -> Iterator[Copy]:
    ordinals = _map_agents_to_gpu_ordinals(part)
    for row in part.query_fields(COPY, _COPIES):
        yield make_copy(row, ordinals.get)


def _add_tables_of_guid(part: NamedTables, recording: RocmRecording) -> None:
    """Add the GPUs, the calls and ranges, the times and the gaps of one GUID."""
    ordinals = _map_agents_to_gpu_ordinals(part)
    agents = part.execute_query("SELECT DISTINCT agent_id FROM {rocpd_kernel_dispatch}")
    recording.used |= {ordinals.get(agent) for (agent,) in agents}
    for agent, _, _, name, product, text in part.read_table(AGENT):
        facts = _parse_json_object(text)
        if text and facts is None:
            reason = "the data of an agent (extdata) are not a JSON object"
            recording.gaps.append(Gap("device", "unreadable", reason))
        if agent in ordinals:
            facts = {**(facts or {}), "name": name, "product_name": product}
            recording.add_gpu(ordinals[agent], facts)
    for category, function, total, count in part.execute_query(_CALLS):
        recording.add_api_calls(str(category), str(function), total, count)
    for row in part.query_fields(_RANGE, _RANGES):
        message = nonempty_text_or_none((_parse_json_object(row["extdata"]) or {}).get("message"))
        recording.add_roctx_range(message or row["function"], row, row["tid"])
    recording.times += [(start, end) for _, start, end in part.read_table("rocpd_info_process")]
    nameless = part.execute_query(
        "SELECT count(*) FROM {rocpd_kernel_dispatch} k LEFT JOIN {rocpd_info_kernel_symbol} s "
        "ON s.id = k.kernel_id WHERE s.id IS NULL"
    ).fetchone()[0]
    if nameless:
        reason = f"{nameless:,} dispatches name a kernel that is not in the database"
        recording.gaps.append(Gap("kernel.name", "unreadable", reason))
    columns = {name + part.suffix: names for name, names in _COLUMNS.items()}
    for gap in list_unreadable_column_gaps(part.database, columns, columns):
        quantity, reason = (text.replace(part.suffix, "") for text in (gap.quantity, gap.reason))
        recording.gaps.append(Gap(quantity, gap.state, reason))


def _parse_json_object(text: object) -> dict[str, Any] | None:
    """Return a JSON object; None for anything else."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _find_unread_tables(database: Database, parts: list[NamedTables]) -> Iterator[Gap]:
    for table, label in _LEFT_OUT.items():
        names = [table + part.suffix for part in parts]
        if count := sum(database.count_rows(name) for name in names if name in database.tables):
            reason = f"perfctl does not read {label}: {count:,} rows of {table}"
            yield Gap(table, "not_available", reason)
