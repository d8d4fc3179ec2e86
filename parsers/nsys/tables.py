"""Tables of an nsys SQLite export: their names, its strings, and the file opened for reading. nsys
leaves out a table that would be empty, and adds columns from version to version (2020.3 to 2026.1
were seen)."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.common.sqlite import open_database as open_database

TOOL = "nsys"
KNOWN: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("known.json").read_text(encoding="utf-8")
)
"""Names of tables and columns in exports, and of reports and columns of nsys stats, of all versions
that were seen."""
EXPORT_AGAIN = (
    "Copy it again, or export the report again: nsys export --type sqlite --force-overwrite true "
    "REPORT.nsys-rep"
)
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
OSRT = "OSRT_API"
GPU_METRICS = "GPU_METRICS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NODES = "CUDA_GRAPH_NODE_EVENTS"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
METRIC_NAMES = "TARGET_INFO_GPU_METRICS"
COUNTED = {
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "unified memory: CPU page faults",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "unified memory: GPU page faults",
    NODES: "CUDA graphs: nodes created",
    "CUDA_GRAPH_EVENTS": "CUDA graphs: events of creation",
}
"""Table of events -> name of the summary that counts them."""
COPY_LABELS = {
    "Host-to-Device": "HtoD",
    "Device-to-Host": "DtoH",
    "Device-to-Device": "DtoD",
    "Host-to-Host": "HtoH",
    "Peer-to-Peer": "PtoP",
    "Unified Host-to-Device": "unified HtoD",
    "Unified Device-to-Host": "unified DtoH",
    "Unified Device-to-Device": "unified DtoD",
}
"""Kind of a copy as nsys spells it (its stats: since 2024) -> the short word."""


class StringTable(dict[object, str | None]):
    """StringIds, read on demand: the table also holds the whole process environment."""

    def __init__(self, database: Database, null: str | None = None) -> None:
        """``null`` stands for a name whose number is NULL, or whose column is not there."""
        super().__init__({None: null})
        self._connection = database.connection
        self._known = database.has_table_with_columns(STRINGS, "id", "value")

    def __missing__(self, key: object) -> str:
        row = None
        if self._known and isinstance(key, int):
            query = f"SELECT value FROM {STRINGS} WHERE id = ? AND value IS NOT NULL"
            row = self._connection.execute(query, (key,)).fetchone()
        self[key] = text = str(row[0]) if row else f"(name {key} is not in the report)"
        return text


def open_export(path: Path) -> AbstractContextManager[Database]:
    """Open the export at ``path`` read-only. Raises ReportError for every SQLite error inside
    the block."""
    return open_database(path, TOOL, EXPORT_AGAIN)
