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
from itertools import chain
from pathlib import Path
from typing import Any

from perfctl.parsers.common.json import read_whole
from perfctl.parsers.common.lines import encoding_of
from perfctl.parsers.dlprof.records import report
from perfctl.parsers.dlprof.tables import SUMMARY_WORDS, WANTED, Block, column, summary_of, together
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Report

MOST_FILES = 50
"""A folder with more JSON files is not searched."""
_UNVERIFIED = Diagnostic(
    "warning",
    "perfctl",
    "DLProf's JSON was read by the column names of its CSV, which was never checked with a real "
    "file: compare some figures with the CSV reports or dlprof_dldb.sqlite of the same run",
)
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,80})"')
_REMEDY = (
    "DLProf may have been stopped while writing: pass the CSV reports of the same run (dlprof "
    "--formats=csv) or its dlprof_dldb.sqlite"
)


def sniff(path: Path, head: bytes) -> bool:
    """JSON whose keys in the first bytes are the columns or labels of a DLProf report, or a folder
    of such files."""
    return bool(members(path)) if path.is_dir() else bool(_kinds_in(head))


def members(folder: Path) -> list[Path]:
    """The JSON files of a folder that is one DLProf report of several files; empty when it
    is not."""
    files = [path for path in sorted(folder.glob("*.json")) if path.is_file()]
    ours = (
        list(dict.fromkeys(together(files, _kinds_in).values())) if len(files) <= MOST_FILES else []
    )
    return ours if len(ours) > 1 else []


def _kinds_in(head: bytes) -> set[str]:
    """Return the reports that the keys in the first bytes belong to; none where they are
    not JSON."""
    text = head.decode(encoding_of(head), "replace").lstrip("\ufeff \t\r\n")
    if not text.startswith(("{", "[")) or "\0" in text:
        return set()
    keys = set(map(_normalize, _KEY.findall(text)))
    kinds = {kind for kind, wanted in WANTED.items() if keys.issuperset(wanted)}
    return kinds | ({"summary"} if len(keys & SUMMARY_WORDS) >= 2 else set())


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is not complete JSON, is too large, or holds no
    DLProf report."""
    tables: dict[str, list[dict[str, str]]] = {}
    blocks: list[Block] = []
    files = members(path) if path.is_dir() else [path]
    for part in chain.from_iterable(_parts(read_whole(file, "dlprof", _REMEDY)) for file in files):
        if isinstance(part, Block):
            blocks.append(part)
            continue
        kind = _kind_of(part)
        for number, row in enumerate(part):
            if missing := sorted(set(WANTED[kind]) - row.keys()):
                reason = f"row {number} of a table has no '{missing[0]}', the rows before it have"
                raise ReportError(path, "dlprof", reason, _REMEDY)
        if part[0] in tables.get(kind, ()):
            reason = f"the {kind} report appears twice; counting both would double the totals"
            raise ReportError(path, "dlprof", reason, _REMEDY)
        tables.setdefault(kind, []).extend(part)
    words = {block.title.lower() for block in blocks}
    words |= {label.lower() for block in blocks for label, _ in block.lines}
    summary = summary_of(path, blocks) if len(words & SUMMARY_WORDS) >= 2 else None
    if not tables and not summary:
        raise ReportError(path, "dlprof", "this JSON holds no DLProf report", _REMEDY)
    return report(path, "JSON", tables, summary, files, [_UNVERIFIED])


def _parts(root: Any) -> Iterator[Block | list[dict[str, str]]]:
    """Yield everything in the tree that can be a report: the rows of tables that are DLProf's, and
    objects of labels that have values."""
    waiting: deque[tuple[str, Any]] = deque([("", root)])
    while waiting:
        title, node = waiting.popleft()
        inner: list[tuple[str, Any]] = []
        if _kind_of(rows := _read_rows(node)):
            yield rows
        elif isinstance(node, list):
            inner = [(title, item) for item in node]
        elif isinstance(node, dict):
            block = _read_block(title, node)
            if block.lines:
                yield block
            inner = [] if block.columns else list(node.items())
        waiting.extend((key, value) for key, value in inner if _is_tree(value))


def _kind_of(rows: list[dict[str, str]]) -> str:
    """Return the report that has the columns of the first row; "" if none has."""
    kinds = (kind for kind, wanted in WANTED.items() if rows and rows[0].keys() >= set(wanted))
    return next(kinds, "")


def _read_rows(node: Any) -> list[dict[str, str]]:
    """Return the rows of a list of objects, or of {"columns": [...], "rows" or "data": [[...],
    ...]}; [] for anything else."""
    if isinstance(node, list) and all(isinstance(item, dict) for item in node):
        return [{_normalize(key): _print(item[key]) for key in item} for item in node]
    named = {key.lower(): node[key] for key in node} if isinstance(node, dict) else {}
    names = named.get("columns", named.get("headers", named.get("header")))
    rows = named.get("rows", named.get("data"))
    if not isinstance(names, list) or not isinstance(rows, list):
        return []
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        return []
    names = [_normalize(str(name)) for name in names]
    return [dict(zip(names, map(_print, row), strict=True)) for row in rows]


def _read_block(title: str, node: dict[str, Any]) -> Block:
    """Return the labels of an object with their plain values; with a row of values each where all
    are objects of the same keys: {"All kernels": {"GPU Time (ns)": 1}, "Memory": ...}."""
    values = list(node.values())
    columns = tuple(values[0]) if values and isinstance(values[0], dict) else ()
    is_table = all(
        isinstance(value, dict)
        and tuple(value) == columns
        and not any(map(_is_tree, value.values()))
        for value in values
    )
    if columns and is_table:
        lines = [(label, tuple(map(_print, cells.values()))) for label, cells in node.items()]
        return Block(title, columns, lines)
    block = Block(title, (), [])
    for label, value in node.items():
        if not _is_tree(value):
            block.lines.append((label, (_print(value),)))
    return block


def _is_tree(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _normalize(key: str) -> str:
    return column(key.replace("_", " "))


def _print(value: Any) -> str:
    """Return a JSON value as DLProf's CSV prints it."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return json.dumps(value) if _is_tree(value) else str(value)
