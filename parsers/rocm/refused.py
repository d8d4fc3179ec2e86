"""Recognize reports of AMD's older profilers, which perfctl no longer reads, and refuse them
by name.

rocprof v1 writes ``*.stats.csv``, ``results.csv``, ``results.db`` and ``results.json`` (a Chrome
trace). rocprof-compute, formerly Omniperf, writes a folder with ``pmc_perf.csv``, ``sysinfo.csv``,
``timestamps.csv`` and others.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

from perfctl.parsers.common.json import decode_head
from perfctl.parsers.common.sqlite import has_tables
from perfctl.parsers.common.tables import read_csv_header
from perfctl.parsers.rocm.csv import STATS
from perfctl.records.errors import ReportError
from perfctl.records.sqlite_header import has_sqlite_magic

ROCPROF, COMPUTE = "rocprof v1", "rocprof-compute"
REMEDY = "Record with rocprofv3, or install perfctl==1.0.0"
_OF_A_FOLDER = re.compile(
    "(?P<prefix>.*?)(?:sysinfo|timestamps|pmc_kernel_top|pmc_dispatch_info|roofline|"
    r"SQ\w*_LEVEL\w*)\.csv\Z"
)
"""Names of the files that rocprof-compute writes next to ``pmc_perf.csv``."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether rocprof v1 or rocprof-compute wrote the file."""
    return not path.is_dir() and _recognize_unsupported_profiler(path, head) is not None


def find_leading_file(path: Path) -> Path:
    """Return ``pmc_perf.csv`` for the files next to it, so that a folder of rocprof-compute is
    refused once."""
    match = _OF_A_FOLDER.match(path.name)
    first = path.with_name(f"{match['prefix']}pmc_perf.csv") if match else path
    return first if first.is_file() else path


def parse(path: Path) -> NoReturn:
    """Raise ReportError with the release that reads the file."""
    with path.open("rb") as file:
        tool = _recognize_unsupported_profiler(path, file.read(1 << 16)) or ROCPROF
    raise ReportError(
        path, tool, f"a report of {tool}, which perfctl 1.0.0 was the last release to read", REMEDY
    )


def _recognize_unsupported_profiler(path: Path, head: bytes) -> str | None:
    if has_sqlite_magic(head):
        return ROCPROF if has_tables(path, head, "OPS", "COPY", "HIP") else None
    text = decode_head(head).lstrip()
    if text.startswith("{"):
        return ROCPROF if '"traceEvents"' in text and '"BeginNs"' in text else None
    columns = read_csv_header(head)
    names = {name.strip() for name in columns}
    if names >= {"gpu_model", "gpu_arch"} or names >= {"Kernel_Name", "Count", "Sum(ns)"}:
        return COMPUTE
    has_sizes = names & {"Grid_Size", "grd"} and names & {"Workgroup_Size", "wgr"}
    if columns == STATS or (has_sizes and "Index" in names):
        return ROCPROF
    return COMPUTE if has_sizes and names >= {"Kernel_Name", "Dispatch_ID"} else None
