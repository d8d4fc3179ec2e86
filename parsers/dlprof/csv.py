"""DLProf's CSV reports, a folder of them or a single file, recognised by their columns.

Seen: PyTorch 1.7.0 and 1.8.0, TensorFlow 1 (2020). Every file but the summary is a title line and
one table; columns are looked up by name, "Avg." and "Avg" being the same. The summary is a stack of
blocks, read by label.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Set
from pathlib import Path

from perfctl.parsers.common.doubts import make_repeated_part_error
from perfctl.parsers.common.lines import guess_encoding
from perfctl.parsers.common.tables import has_complete_last_line, iterate_csv_rows
from perfctl.parsers.dlprof.records import (
    HEADERS,
    KNOWN,
    SUMMARY_WORDS,
    Row,
    SummaryBlock,
    find_report_kind_by_columns,
    make_tables_report,
    normalize_column_name,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report

ROWS = 200_000
"""Rows of one table; this many take some 400 MB."""
_PROBE_BYTES = 65536
_KIND_BYTES = 8192
"""Bytes of a file's beginning that show its kind, in UTF-16 too."""
_CUT = "DLProf was probably stopped while writing the file: run it again, or copy the file again"
_ROUNDED = Diagnostic(
    "info",
    "perfctl",
    "DLProf rounds percentages to one decimal in CSV: 0.0% means any value below 0.05%",
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the title or columns are DLProf's, or a folder is one DLProf report."""
    return bool(
        find_single_report_files_by_kind(path, "*.csv", find_report_kind)
        if path.is_dir()
        else find_report_kind(head)
    )


def parse(path: Path) -> Report:
    """Read one folder or file. Raises ReportError when a file in it is cut off or broken."""
    files = find_single_report_files_by_kind(path, "*.csv", find_report_kind)
    if not files:
        remedy = "Pass the --output_path folder of dlprof"
        raise ReportError(path, "dlprof", "no DLProf CSV report", remedy)
    blocks, gaps = read_summary_blocks(files["summary"]) if "summary" in files else ([], [])
    tables = {
        kind: read_report_table(file, kind) for kind, file in files.items() if kind != "summary"
    }
    notes = [_ROUNDED] if blocks else []
    return make_tables_report(path, "CSV", tables, blocks, files.values(), notes, gaps)


def find_report_kind(head: bytes) -> Set[str]:
    """Return the report that the first bytes of a file belong to: a key of HEADERS, "summary", or
    none."""
    text = head[:_KIND_BYTES].decode(guess_encoding(head), "replace").lstrip("\ufeff")
    lines = [] if "\0" in text else text.splitlines()
    for line in lines[:2]:
        kind = find_report_kind_by_columns(map(normalize_column_name, next(csv.reader([line]), [])))
        if kind and (kind != "expert_systems" or "expert systems feedback" in lines[0].lower()):
            return {kind}
    labels = {line.split(",")[0].strip(' "').lower() for line in lines}
    return {"summary"} if len(labels & SUMMARY_WORDS) >= 2 else set()


def find_single_report_files_by_kind(
    path: Path, pattern: str, find_kinds: Callable[[bytes], Set[str]]
) -> dict[str, Path]:
    """Return kind -> file of a file, or of a folder that is one DLProf report; empty when it is
    none.

    It is one when no kind of report is there twice (several summaries are several runs), and no
    other file or one with DLProf's own file name.
    """
    files = sorted(filter(Path.is_file, path.glob(pattern))) if path.is_dir() else [path]
    members: dict[str, Path] = {}
    has_others = False
    for member in files:
        with member.open("rb") as file:
            kinds = find_kinds(file.read(_PROBE_BYTES))
        if kinds & members.keys():
            return {}
        has_others |= not kinds
        members |= dict.fromkeys(kinds, member)
    is_named = any(member.name.startswith("dlprof_") for member in members.values())
    return members if is_named or not has_others else {}


def read_report_table(path: Path, kind: str) -> list[Row]:
    """Return the rows by normalised column name. Raises ReportError for a cut row, and where
    another report begins."""
    title: list[str] = []
    names: list[str] = []
    rows: list[Row] = []
    for line, cells in iterate_csv_rows(path, "dlprof", _CUT):
        columns = [normalize_column_name(cell) for cell in cells]
        if not names and set(columns).issuperset(HEADERS[kind]):
            names = columns
        elif not names:
            title = cells
        elif (
            cells == title
            or columns == names
            or (columns[0] in KNOWN["titles"] and not any(columns[1:]))
        ):
            raise make_repeated_part_error(path, "dlprof", "a DLProf report", line)
        elif len(cells) < len(names):
            reason = f"row at line {line} has {len(cells)} of {len(names)} cells"
            raise ReportError(path, "dlprof", reason, _CUT)
        elif len(rows) == ROWS:
            reason = f"it has more than {ROWS:,} rows, which do not fit into memory"
            remedy = "Pass dlprof_dldb.sqlite of the same run, which perfctl reads row by row"
            raise ReportError(path, "dlprof", reason, remedy)
        else:
            rows.append(dict(zip(names, cells, strict=False)))
    if not names:
        raise ReportError(path, "dlprof", f"it lacks the header line of a {kind} report", _CUT)
    return rows


def read_summary_blocks(path: Path) -> tuple[list[SummaryBlock], list[Gap]]:
    """Return the blocks of a summary, in order, and a gap if its last cell was left out. Raises
    ReportError when a block appears twice, or no line is a label and a value."""
    blocks: list[SummaryBlock] = []
    for line, (first, *cells) in iterate_csv_rows(path, "dlprof", _CUT):
        label, values = first.strip(), tuple(cell.strip() for cell in cells)
        if not cells:
            if any(block.title == label for block in blocks):
                raise make_repeated_part_error(
                    path, "dlprof", f"the block '{label[:80]}' of the summary", line
                )
            blocks.append(SummaryBlock(label, (), []))
        elif not label and blocks and not blocks[-1].lines:
            blocks[-1] = SummaryBlock(blocks[-1].title, values, [])
        elif blocks and blocks[-1].columns:
            blocks[-1].lines.append((label, values))
        else:
            blocks = blocks or [SummaryBlock("", (), [])]
            # GPU names are separated by commas without quotes (1.7.0): everything after the label
            # is the value
            blocks[-1].lines.append((label, (",".join(cells).strip(),)))
    filled = [block.lines for block in blocks if block.lines]
    if not filled:
        reason = "the summary has no lines with a label and a value"
        raise ReportError(path, "dlprof", reason, "Run DLProf again")
    if has_complete_last_line(path):
        return blocks, []
    # the last number may be cut: DLProf ends every line
    label, values = filled[-1].pop()
    filled[-1].append((label, (*values[:-1], "")))
    reason = f"the last line is incomplete: the last cell of '{label}' was skipped"
    return blocks, [Gap("summary", "unreadable", reason)]
