"""Parser of DLProf's CSV reports: a folder of them, or a single file."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.dlprof.records import report
from perfctl.parsers.dlprof.tables import PROBE_BYTES, kind_of, members, read_summary, read_table
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Report

ROUNDED = Diagnostic(
    "info",
    "perfctl",
    "DLProf rounds percentages to one decimal in CSV: 0.0 % is anything below 0.05 %",
)


def sniff(path: Path, head: bytes) -> bool:
    """A CSV whose title or columns are DLProf's, or a folder that is one DLProf report."""
    return bool(members(path)) if path.is_dir() else kind_of(head) is not None


def parse(path: Path) -> Report:
    """Read one folder or file. Raises ReportError when a file in it is cut off or broken."""
    if path.is_dir():
        files = members(path)
    else:
        with path.open("rb") as file:
            kind = kind_of(file.read(PROBE_BYTES))
        files = {kind: path} if kind else {}
    if not files:
        remedy = "Pass the folder that dlprof was given as --output_path"
        raise ReportError(path, "dlprof", "no DLProf CSV report", remedy)
    tables = {kind: read_table(file, kind) for kind, file in files.items() if kind != "summary"}
    summary = read_summary(files["summary"]) if "summary" in files else None
    return report(path, "CSV", tables, summary, files.values(), [ROUNDED] if summary else ())
