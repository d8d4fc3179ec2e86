"""DLProf's reports as JSON (``dlprof --formats=json``).

UNVERIFIED: no real file of this form was at hand (DLProf is no longer distributed), and NVIDIA's guide shows none.
So nothing is read by position or nesting: the reports, column names and labels of the CSV are
searched by key everywhere: as a list of objects, as columns and rows, or as labels with values.
A file with none of them is not read as DLProf's. Every report read here carries a diagnostic about this.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfctl.parsers.dlprof import records as dlprof_records
from perfctl.parsers.dlprof.records import Row, report
from perfctl.parsers.dlprof.tables import HEADERS, SUMMARY_WORDS, Block, column, summary_of
from perfctl.parsers.text.json import read_whole
from perfctl.parsers.text.lines import encoding_of
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Report

MOST_FILES = 50
"""A folder with more JSON files is not searched."""
_PROBE_BYTES = 65536

_ADVICE = ("problem", "recommendation")
_WANTED = {**HEADERS, "expert_systems": _ADVICE}
_UNVERIFIED = Diagnostic(
    "warning",
    "perfctl",
    "DLProf's JSON was read by the column names of its CSV, which was never checked with a real file: compare some"
    " figures with the CSV reports or dlprof_dldb.sqlite of the same run",
)
_KEY = re.compile(rb'"((?:[^"\\]|\\.){1,80})"')
_REMEDY = (
    "DLProf may have been stopped while writing: pass the CSV reports of the same run (dlprof --formats=csv) or its"
    " dlprof_dldb.sqlite"
)


def sniff(path: Path, head: bytes) -> bool:
    """JSON whose keys in the first bytes are the columns or labels of a DLProf report, or a folder of such files."""
    return bool(members(path)) if path.is_dir() else bool(_kinds_in(head))


def members(folder: Path) -> list[Path]:
    """The JSON files of a folder that is one DLProf report; empty when it is not.

    It is one when it holds several, no kind of report twice, and either no other JSON files or DLProf's own file names.
    """
    found: dict[str, Path] = {}
    foreign = False
    files = [path for path in sorted(folder.glob("*.json")) if path.is_file()]
    if len(files) > MOST_FILES:
        return []
    for path in files:
        with path.open("rb") as file:
            kinds = _kinds_in(file.read(_PROBE_BYTES))
        foreign |= not kinds
        if kinds & found.keys():
            return []
        found |= dict.fromkeys(kinds, path)
    ours = list(dict.fromkeys(found.values()))
    named = any(path.name.startswith("dlprof_") for path in ours)
    return ours if len(ours) > 1 and (named or not foreign) else []


def _kinds_in(head: bytes) -> set[str]:
    """Return the reports that the keys in the first bytes belong to; none where they are not JSON."""
    encoding = encoding_of(head)
    head = head if encoding == "utf-8" else head.decode(encoding, "replace").encode()
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"[") or b"\0" in head:
        return set()
    keys = {_name(key.decode("utf-8", "replace")) for key in _KEY.findall(head)}
    found = {kind for kind, wanted in _WANTED.items() if keys.issuperset(wanted)}
    return found | ({"summary"} if len(keys & SUMMARY_WORDS) >= 2 else set())


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is not complete JSON, is too large, or holds no DLProf report."""
    tables: dict[str, list[Row]] = {}
    blocks: list[Block] = []
    files = members(path) if path.is_dir() else [path]
    for title, part in (part for file in files for part in _parts(read_whole(file, "dlprof", _REMEDY))):
        if isinstance(part, dict):
            blocks.append(_block(title, part))
            continue
        if kind := _kind(part):
            rows = _whole_rows(part, _WANTED[kind], path)
            if rows and rows[0] in tables.get(kind, ()):
                reason = f"the {kind} report appears twice; counting both would double the totals"
                raise ReportError(path, "dlprof", reason, _REMEDY)
            tables.setdefault(kind, []).extend(rows)
    blocks = [block for block in blocks if block.lines]
    is_summary = len({word for block in blocks for word in _words(block)} & SUMMARY_WORDS) >= 2
    if not tables and not is_summary:
        raise ReportError(path, "dlprof", "this JSON holds no DLProf report", _REMEDY)
    beside = sorted({file for file in path.iterdir() if file.name[0] != "."} - set(files)) if path.is_dir() else []
    advice = ((row["problem"], row["recommendation"]) for row in tables.get("expert_systems", ()))
    notes = (_UNVERIFIED, *_others(beside), *dlprof_records.feedback(advice))
    kinds = [*tables, *(["summary"] if is_summary else [])]
    return report(path, "JSON", kinds, tables, summary_of(blocks) if is_summary else None, (), notes)


def _others(beside: list[Path]) -> Iterator[Diagnostic]:
    if beside:
        names = ", ".join(file.name for file in beside[:10])
        text = f"read as one DLProf report; other files in the folder were not read: {names}"
        yield Diagnostic("info", "perfctl", text)


def _parts(root: Any) -> Iterator[tuple[str, dict[str, Any] | list[dict[str, str]]]]:
    """(title, object of labels, or rows of a table that is DLProf's), for everything in the tree that can be a report."""
    waiting: deque[tuple[str, Any]] = deque([("", root)] if _is_tree(root) else [])
    while waiting:
        title, node = waiting.popleft()
        if isinstance(node, list):
            rows = [_row(item) for item in node if isinstance(item, dict)]
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
    """The report that the rows belong to, judged by the first row."""
    return next((kind for kind, wanted in _WANTED.items() if rows and rows[0].keys() >= set(wanted)), None)


def _columns_and_rows(node: dict[str, Any]) -> list[dict[str, str]] | None:
    """The rows of {"columns": [...], "rows" or "data": [[...], ...]}; None when it is something else."""
    named = {key.lower(): value for key, value in node.items()}
    names = named.get("columns", named.get("headers", named.get("header")))
    rows = named.get("rows", named.get("data"))
    if not isinstance(names, list) or not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        return None
    if any(len(row) != len(names) for row in rows):
        return None
    return [{_name(str(name)): _text(cell) for name, cell in zip(names, row, strict=True)} for row in rows]


def _row(item: dict[str, Any]) -> dict[str, str]:
    return {_name(key): _text(value) for key, value in item.items()}


def _whole_rows(rows: list[dict[str, str]], wanted: tuple[str, ...], path: Path) -> list[Row]:
    for number, row in enumerate(rows):
        missing = set(wanted) - row.keys()
        if missing:
            reason = f"row {number} of a table has no '{sorted(missing)[0]}', the rows before it have"
            raise ReportError(path, "dlprof", reason, _REMEDY)
    return list(rows)


def _columns(node: dict[str, Any]) -> tuple[str, ...]:
    """The keys that all values of an object share: {"All kernels": {"GPU Time (ns)": 1}, "Memory": ...}; () if none."""
    inner = [value for value in node.values() if isinstance(value, dict) and not any(map(_is_tree, value.values()))]
    columns = tuple(inner[0]) if inner and len(inner) == len(node) else ()
    return columns if all(tuple(value) == columns for value in inner) else ()


def _block(title: str, node: dict[str, Any]) -> Block:
    """The labels of an object with their plain values, or with a row of values each."""
    if columns := _columns(node):
        return Block(title, columns, [(key, tuple(map(_text, value.values()))) for key, value in node.items()])
    return Block(title, (), [(key, (_text(value),)) for key, value in node.items() if not _is_tree(value)])


def _words(block: Block) -> set[str]:
    return {block.title.lower(), *(label.lower() for label, _ in block.lines)}


def _is_tree(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _name(text: str) -> str:
    return column(text.replace("_", " "))


def _text(value: Any) -> str:
    """A JSON value as DLProf's CSV prints it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)
