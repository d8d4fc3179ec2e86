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

from perfctl.parsers.dlprof.records import report
from perfctl.parsers.dlprof.tables import SUMMARY_WORDS, WANTED, Block, column, summary_of, together
from perfctl.parsers.text.json import read_whole
from perfctl.parsers.text.lines import encoding_of
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
_KEY = re.compile(rb'"((?:[^"\\]|\\.){1,80})"')
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
    encoding = encoding_of(head)
    head = head if encoding == "utf-8" else head.decode(encoding, "replace").encode()
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"[") or b"\0" in head:
        return set()
    keys = {_name(key.decode("utf-8", "replace")) for key in _KEY.findall(head)}
    found = {kind for kind, wanted in WANTED.items() if keys.issuperset(wanted)}
    return found | ({"summary"} if len(keys & SUMMARY_WORDS) >= 2 else set())


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is not complete JSON, is too large, or holds no
    DLProf report."""
    tables: dict[str, list[dict[str, str]]] = {}
    blocks: list[Block] = []
    files = members(path) if path.is_dir() else [path]
    for title, part in (
        part for file in files for part in _parts(read_whole(file, "dlprof", _REMEDY))
    ):
        if isinstance(part, dict):
            blocks.append(_block(title, part))
        elif kind := _kind(part):
            for number, row in enumerate(part):
                if missing := sorted(set(WANTED[kind]) - row.keys()):
                    reason = (
                        f"row {number} of a table has no '{missing[0]}', the rows before it have"
                    )
                    raise ReportError(path, "dlprof", reason, _REMEDY)
            if part[0] in tables.get(kind, ()):
                reason = f"the {kind} report appears twice; counting both would double the totals"
                raise ReportError(path, "dlprof", reason, _REMEDY)
            tables.setdefault(kind, []).extend(part)
    blocks = [block for block in blocks if block.lines]
    words = {
        word
        for block in blocks
        for word in (block.title.lower(), *(label.lower() for label, _ in block.lines))
    }
    summary = summary_of(path, blocks) if len(words & SUMMARY_WORDS) >= 2 else None
    if not tables and not summary:
        raise ReportError(path, "dlprof", "this JSON holds no DLProf report", _REMEDY)
    return report(path, "JSON", tables, summary, files, before=[_UNVERIFIED])


def _parts(root: Any) -> Iterator[tuple[str, dict[str, Any] | list[dict[str, str]]]]:
    """(title, object of labels, or rows of a table that is DLProf's), for everything in the tree
    that can be a report."""
    waiting: deque[tuple[str, Any]] = deque([("", root)] if _is_tree(root) else [])
    while waiting:
        title, node = waiting.popleft()
        if isinstance(node, list):
            items = [item for item in node if isinstance(item, dict)]
            rows = [{_name(key): _text(value) for key, value in item.items()} for item in items]
            if _kind(rows) and len(rows) == len(node):
                yield title, rows
            else:
                waiting.extend((title, item) for item in node if _is_tree(item))
        elif (table := _columns_and_rows(node)) is not None:
            yield title, table
        else:
            yield title, node
            if not _columns(node):
                waiting.extend((key, value) for key, value in node.items() if _is_tree(value))


def _kind(rows: list[dict[str, str]]) -> str | None:
    return next(
        (kind for kind, wanted in WANTED.items() if rows and rows[0].keys() >= set(wanted)), None
    )


def _columns_and_rows(node: dict[str, Any]) -> list[dict[str, str]] | None:
    """The rows of {"columns": [...], "rows" or "data": [[...], ...]}; None when it is
    something else."""
    named = {key.lower(): value for key, value in node.items()}
    names = named.get("columns", named.get("headers", named.get("header")))
    rows = named.get("rows", named.get("data"))
    if not isinstance(names, list) or not isinstance(rows, list):
        return None
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        return None
    return [
        {_name(str(name)): _text(cell) for name, cell in zip(names, row, strict=True)}
        for row in rows
    ]


def _columns(node: dict[str, Any]) -> tuple[str, ...]:
    """The keys that all values of an object share: {"All kernels": {"GPU Time (ns)": 1}, "Memory":
    ...}; () if none."""
    inner = [
        value
        for value in node.values()
        if isinstance(value, dict) and not any(map(_is_tree, value.values()))
    ]
    columns = tuple(inner[0]) if inner and len(inner) == len(node) else ()
    return columns if all(tuple(value) == columns for value in inner) else ()


def _block(title: str, node: dict[str, Any]) -> Block:
    """The labels of an object with their plain values, or with a row of values each."""
    if columns := _columns(node):
        return Block(
            title,
            columns,
            [(key, tuple(map(_text, value.values()))) for key, value in node.items()],
        )
    return Block(
        title, (), [(key, (_text(value),)) for key, value in node.items() if not _is_tree(value)]
    )


def _is_tree(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _name(text: str) -> str:
    return column(text.replace("_", " "))


def _text(value: Any) -> str:
    """A JSON value as DLProf's CSV prints it."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return json.dumps(value) if _is_tree(value) else str(value)
