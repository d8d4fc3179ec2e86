"""Reports of Nsight Systems, as ``nsys export --type sqlite`` writes them (2020.3 to 2026.1 were
seen)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.parsers.common.lines import readable
from perfctl.parsers.common.sqlite import check_whole, connect
from perfctl.parsers.nsys.tables import EXPORT_AGAIN, STRINGS, TOOL
from perfctl.records.sqlite_header import is_sqlite

if TYPE_CHECKING:
    from perfctl.records.report import Report

MARKERS = {
    "ProcessStreams",
    "NVTX_EVENTS",
    "ThreadNames",
    "EXPORT_META_DATA",
    "META_DATA_EXPORT",
    "ANALYSIS_DETAILS",
}
"""StringIds and any one of these make an SQLite file an nsys export."""


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
    # loads numpy, which is not needed to recognise a report
    from perfctl.parsers.nsys.export import read_export

    with readable(path, TOOL, "Check its permissions"):
        check_whole(path, TOOL, EXPORT_AGAIN)
    return read_export(path)
