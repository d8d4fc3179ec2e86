"""DLProf's reports as JSON (``dlprof --formats=json``).

UNVERIFIED: no real file of this form was at hand, and NVIDIA's guide shows none. So nothing is read
by position or nesting: the reports, column names and labels of the CSV are searched by key
everywhere, as a list of objects, as columns and rows, or as labels with values. Every report read
here carries a diagnostic about this.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfctl.parsers.common.json import read_json_file
from perfctl.parsers.common.lines import guess_encoding
from perfctl.parsers.dlprof.csv import find_single_report_files_by_kind
from perfctl.parsers.dlprof.records import (
    HEADERS,
    SUMMARY_WORDS,
    Row,
    SummaryBlock,
    find_report_kind_by_columns,
    make_tables_report,
    normalize_column_name,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Report

MOST_FILES = 50
"""A folder with more JSON files is not searched."""
_UNVERIFIED = Diagnostic(
    "warning",
    "perfctl",
    "perfctl read DLProf's JSON by the column names of its CSV, a rule never tested on a real "
    "file. Compare some values with the CSV reports or dlprof_dldb.sqlite of the same run",
)
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,80})"')
_REMEDY = (
    "DLProf was possibly stopped while writing. Pass the CSV reports of the same run (dlprof "
    "--formats=csv) or its dlprof_dldb.sqlite"
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the keys in the first bytes are the columns or labels of a DLProf report, or a
    folder has several such files."""
    return len(_list_report_files(path)) > 1 if path.is_dir() else bool(_find_report_kinds(head))


def _list_report_files(path: Path) -> list[Path]:
    """Return the file, or those of a folder that is one DLProf report."""
    if not path.is_dir():
        return [path]
    if len(list(path.glob("*.json"))) > MOST_FILES:
        return []
    return list(
        dict.fromkeys(find_single_report_files_by_kind(path, "*.json", _find_report_kinds).values())
    )


def _find_report_kinds(head: bytes) -> set[str]:
    """Return the reports that the keys in the first bytes belong to; none where they are
    not JSON."""
    text = head.decode(guess_encoding(head), "replace").lstrip("\ufeff \t\r\n")
    if not text.startswith(("{", "[")) or "\0" in text:
        return set()
    keys = set(map(_normalize_key, _KEY.findall(text)))
    kinds = {kind for kind, header in HEADERS.items() if keys.issuperset(header)}
    return kinds | ({"summary"} if len(keys & SUMMARY_WORDS) >= 2 else set())


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is not complete JSON, is too large, or holds no
    DLProf report."""
    tables: dict[str, list[Row]] = {}
    blocks: list[SummaryBlock] = []
    files = _list_report_files(path)
    for file in files:
        for part in _find_tables_and_blocks(read_json_file(file, "dlprof", _REMEDY)):
            if isinstance(part, SummaryBlock):
                blocks.append(part)
            else:
                tables.setdefault(find_report_kind_by_columns(part[0]) or "", []).extend(part)
    labels = {block.title.lower() for block in blocks}
    labels |= {label.lower() for block in blocks for label, _ in block.lines}
    if len(labels & SUMMARY_WORDS) < 2:
        blocks = []
    if not tables and not blocks:
        raise ReportError(path, "dlprof", "this JSON is not a DLProf report", _REMEDY)
    return make_tables_report(path, "JSON", tables, blocks, files, [_UNVERIFIED])


def _find_tables_and_blocks(root: Any) -> Iterator[SummaryBlock | list[Row]]:
    """Yield everything in the tree that can be a report: the rows of tables that are DLProf's, and
    objects of labels that have values."""
    waiting: deque[tuple[str, Any]] = deque([("", root)])
    while waiting:
        title, node = waiting.popleft()
        if rows := _read_table_rows(node):
            yield rows
        elif isinstance(node, list):
            waiting.extend((title, item) for item in node)
        elif isinstance(node, dict):
            block = _read_labeled_block(title, node)
            if block.lines:
                yield block
            if not block.columns:
                waiting.extend(node.items())


def _read_table_rows(node: Any) -> list[Row]:
    """Return the rows of a list of objects, or of {"columns": [...], "rows": [[...], ...]}, that
    have the columns of one report; [] for anything else."""
    if isinstance(node, dict):
        names, rows = node.get("columns"), node.get("rows")
        if not isinstance(names, list) or not isinstance(rows, list):
            return []
        node = [
            dict(zip(map(str, names), row, strict=False)) for row in rows if _is_list_or_dict(row)
        ]
    if not isinstance(node, list) or not all(isinstance(item, dict) for item in node):
        return []
    rows = [
        {_normalize_key(key): _format_json_value_as_csv(item[key]) for key in item} for item in node
    ]
    kinds = {find_report_kind_by_columns(row) for row in rows}
    return rows if len(kinds) == 1 and None not in kinds else []


def _read_labeled_block(title: str, node: dict[str, Any]) -> SummaryBlock:
    """Return the labels of an object with their plain values; with a row of values each where all
    are objects of the same keys: {"All kernels": {"GPU Time (ns)": 1}, "Memory": ...}."""
    values = list(node.values())
    columns = tuple(values[0]) if values and isinstance(values[0], dict) else ()
    is_table = all(
        isinstance(value, dict)
        and tuple(value) == columns
        and not any(map(_is_list_or_dict, value.values()))
        for value in values
    )
    if columns and is_table:
        lines = [
            (label, tuple(map(_format_json_value_as_csv, cells.values())))
            for label, cells in node.items()
        ]
        return SummaryBlock(title, columns, lines)
    plain: list[tuple[str, tuple[str, ...]]] = [
        (label, (_format_json_value_as_csv(value),))
        for label, value in node.items()
        if not _is_list_or_dict(value)
    ]
    return SummaryBlock(title, (), plain)


def _is_list_or_dict(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _normalize_key(key: str) -> str:
    return normalize_column_name(key.replace("_", " "))


def _format_json_value_as_csv(value: Any) -> str:
    """Return a JSON value as DLProf's CSV prints it."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return json.dumps(value) if _is_list_or_dict(value) else str(value)
