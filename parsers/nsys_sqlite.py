"""Reports of Nsight Systems, as ``nsys export --type sqlite`` writes them (2020.3 to 2026.1 were seen).

Kernels and copies are read while they are iterated, each from a connection of its own, or copied by SQL; which
range and layer they belong to is worked out in ``parse``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from perfctl.parsers import nsys_devices, nsys_kernels, nsys_known, nsys_launches, nsys_ranges
from perfctl.parsers.errors import ReportError
from perfctl.parsers.nsys_gaps import find_gaps
from perfctl.parsers.nsys_launches import Around
from perfctl.parsers.nsys_ranges import RangeTable
from perfctl.parsers.nsys_tables import EXPORT_AGAIN, KERNEL, MEMCPY, MEMSET, STRINGS, TOOL, opened
from perfctl.parsers.records import Copy, Report
from perfctl.parsers.text.cupti import COPY_KINDS
from perfctl.parsers.text.sqlite import Database, check_whole, connect
from perfctl.sqlite_header import is_sqlite

MARKERS = {"ProcessStreams", "NVTX_EVENTS", "ThreadNames", "EXPORT_META_DATA", "META_DATA_EXPORT", "ANALYSIS_DETAILS"}
"""StringIds and any one of these make an SQLite file an nsys export."""

COPY_LABELS = {
    "Host-to-Device": "HtoD",
    "Device-to-Host": "DtoH",
    "Device-to-Device": "DtoD",
    "Host-to-Host": "HtoH",
    "Peer-to-Peer": "PtoP",
}


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is an nsys export: by its tables, or by table names in the head of a damaged file."""
    if not is_sqlite(head):
        return False
    try:
        with closing(connect(path)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except (sqlite3.Error, OSError, UnicodeError):  # the message about a damaged schema may not be UTF-8
        return b"TABLE StringIds" in head or b"TABLE ENUM_NSYS_EVENT_TYPE" in head
    names = {name for (name,) in rows}
    return STRINGS in names and (
        bool(names & MARKERS) or any(name.startswith("CUPTI_ACTIVITY_KIND_") for name in names)
    )


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off, damaged, or the rest of a failed export."""
    try:
        check_whole(path, TOOL, EXPORT_AGAIN)
    except OSError as error:
        raise ReportError(path, TOOL, f"it cannot be read ({error.strerror})", "Check its permissions") from error
    with opened(path) as database:
        if not set(database.tables) - {STRINGS, "ProcessStreams"}:
            reason = "the export failed: it holds no table but the strings"
            newer = "nsys refuses reports newer than itself: export again with an nsys at least as new as the report"
            raise ReportError(path, TOOL, reason, newer)
        version, schema = nsys_devices.versions(database)
        devices, device_gaps = nsys_devices.devices(database)
        ranges = nsys_ranges.load(database)
        work = nsys_launches.attribute(database, (KERNEL, MEMCPY, MEMSET), ranges)
        kernels, copies = work[KERNEL], {table: work[table].around for table in (MEMCPY, MEMSET)}
        return Report(
            tool=TOOL,
            path=path,
            form=f"nsys SQLite, schema {schema}" if schema else "nsys SQLite, without a schema version (up to 2021.3)",
            tool_version=version,
            devices=devices,
            environment=nsys_devices.environment(database),
            kernels=nsys_kernels.kernels(path, database, kernels.around, ranges),
            copies=_copies(path, copies, ranges),
            ranges=ranges.records(),
            gaps=(*device_gaps, *find_gaps(database, ranges, kernels)),
            diagnostics=(*nsys_devices.diagnostics(database), *nsys_known.unknown(database)),
            started_at=nsys_devices.started_at(database),
            duration_ns=nsys_devices.duration_ns(database),
        )


def _copies(path: Path, found: dict[str, Around], ranges: RangeTable) -> Iterator[Copy]:
    """Yield copies in the order of their table, then memsets in theirs."""
    layers = ranges.label_of("layer")
    with opened(path) as database:
        words = _copy_words(database)
        for table in (MEMCPY, MEMSET):
            if table not in database.tables:
                continue
            kind = database.column(table, "copyKind", "'memset'")
            columns = [database.column(table, name) for name in ("bytes", "start")]
            duration = f"{database.column(table, 'end')} - {columns[1]}"
            place = [database.column(table, name) for name in ("deviceId", "streamId")]
            query = f"SELECT {', '.join([kind, *columns, duration, *place])} FROM {table} NOT INDEXED"
            rows = database.connection.execute(query)
            for (code, size, start, length, *where), layer in zip(rows, found[table].layer.tolist(), strict=True):
                yield Copy(words.get(code, str(code)), size, start, length, layers[layer], *where)


def _copy_words(database: Database) -> dict[object, str]:
    """copyKind -> word: from the export's own table (3.0.0 on), else by CUPTI's numbers."""
    words: dict[object, str] = {"memset": "memset", **COPY_KINDS}
    for number, label in database.rows("ENUM_CUDA_MEMCPY_OPER", "id", "label"):
        words[number] = COPY_LABELS.get(str(label), str(label))
    return words
