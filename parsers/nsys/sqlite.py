"""Reports of Nsight Systems, as ``nsys export --type sqlite`` writes them (2020.3 to 2026.1 were
seen)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.parsers.common.sqlite import list_table_names
from perfctl.parsers.nsys.tables import STRINGS
from perfctl.records.sqlite_header import has_sqlite_magic

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
    if not has_sqlite_magic(head):
        return False
    names = list_table_names(path)
    if names is None:
        return b"TABLE StringIds" in head or b"TABLE ENUM_NSYS_EVENT_TYPE" in head
    return STRINGS in names and any(
        name in MARKERS or name.startswith("CUPTI_ACTIVITY_KIND_") for name in names
    )


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off, damaged, or the rest of a
    failed export."""
    # loads numpy, which is not needed to recognise a report
    from perfctl.parsers.nsys.export import read_export

    return read_export(path)
