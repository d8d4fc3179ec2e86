"""Parser of DLProf's CSV reports: a folder of them, or a single file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from perfctl.parsers.dlprof import records as dlprof_records
from perfctl.parsers.dlprof.records import Row, report
from perfctl.parsers.dlprof.tables import PROBE_BYTES, kind_of, members, read_summary, read_table
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report

ROUNDED = Diagnostic(
    "info", "perfctl", "DLProf rounds percentages to one decimal in CSV: 0.0 % is anything below 0.05 %"
)


def sniff(path: Path, head: bytes) -> bool:
    """A CSV whose title or columns are DLProf's, or a folder that is one DLProf report."""
    return bool(members(path)) if path.is_dir() else kind_of(head) is not None


def parse(path: Path) -> Report:
    """Read one folder or file. Raises ReportError when a file in it is cut off or broken."""
    files = _files(path)
    tables = {kind: read_table(file, kind).rows for kind, file in files.items() if kind != "summary"}
    summary = read_summary(files["summary"]) if "summary" in files else None
    return report(path, "CSV", files, tables, summary, _unread(files, path), _diagnostics(tables, files, path))


def _files(path: Path) -> dict[str, Path]:
    if path.is_dir():
        found = members(path)
    else:
        with path.open("rb") as file:
            kind = kind_of(file.read(PROBE_BYTES))
        found = {kind: path} if kind else {}
    if not found:
        remedy = "Pass the folder that dlprof was given as --output_path"
        raise ReportError(path, "dlprof", "no DLProf CSV report", remedy)
    return found


def _unread(files: dict[str, Path], path: Path) -> list[Gap]:
    """One gap for each file of a DLProf folder that was not read."""
    if not path.is_dir():
        return []
    unread = [file.name for file in sorted(path.glob("dlprof_*.csv")) if file not in files.values()]
    return [Gap(name, "unreadable", f"{name} is empty or not a DLProf report") for name in unread]


def _diagnostics(tables: Mapping[str, Collection[Row]], files: dict[str, Path], path: Path) -> list[Diagnostic]:
    found = []
    beside = sorted(file.name for file in path.iterdir() if file.is_file()) if path.is_dir() else []
    beside = [name for name in beside if name not in {file.name for file in files.values()} and name[0] != "."]
    if beside:
        text = f"read as one DLProf report; other files in the folder were not read: {', '.join(beside[:10])}"
        found.append(Diagnostic("info", "perfctl", text))
    advice = tables.get("expert_systems", ())
    found += dlprof_records.feedback((row["problem"], row["recommendation"]) for row in advice)
    return [*found, ROUNDED] if "summary" in files else found
