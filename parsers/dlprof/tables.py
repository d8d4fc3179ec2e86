"""Reads the tables in DLProf's CSV files, recognised by their columns.

Seen: PyTorch 1.7.0 and 1.8.0, TensorFlow 1 (2020). Every file but the summary is a title line and
one table; columns are looked up by name, "Avg." and "Avg" being the same. The summary is a stack of
blocks, read by label.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.doubts import repeated
from perfctl.parsers.common.lines import encoding_of
from perfctl.parsers.common.tables import ends_with_line, read_csv
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Gap, Report, Summary

KNOWN: Any = json.loads(Path(__file__).with_name("known.json").read_text())
"""Columns of the reports, tables and columns of the database, read or not, and how its figures
are called."""
HEADERS: dict[str, list[str]] = KNOWN["headers"]
"""Kind of report -> columns that only it has together."""
WANTED = {**HEADERS, "expert_systems": ["problem", "recommendation"]}
SUMMARY_WORDS = frozenset(KNOWN["summary_words"])
"""Titles and labels of the summary; two of them tell it from other files."""

ROWS = 200_000
"""Rows of one table; this many take some 400 MB."""
PROBE_BYTES = 65536
_KIND_BYTES = 8192
"""Bytes of a file's beginning that show its kind, in UTF-16 too."""
CUT = "DLProf was probably stopped while writing the file: run it again, or copy the file again"

_UNIT = re.compile(r"(?P<name>.*?)\s*(?:\((?P<time>ns|us|ms)\)|(?P<percent>%))\Z")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
_CONFIG = "system config"
_FACTS = {
    "framework": "framework",
    "cuda version": "cuda",
    "cudnn version": "cudnn",
    "nsys version": "nsys",
    "dlprof version": "dlprof",
    "dlprof build": "dlprof_build",
    "cpu model": "cpu_model",
    "gpu driver version": "driver_version",
    "mode string": "dlprof_mode",
}


class Block(NamedTuple):
    """One titled block of the summary."""

    title: str
    columns: tuple[str, ...]
    """Names of the value columns; empty where each line is a label and one value."""
    lines: list[tuple[str, tuple[str, ...]]]
    """(label, values)"""


def column(name: str) -> str:
    """ "Avg. CPU Time (ns)" -> "avg cpu time (ns)"."""
    return " ".join(name.strip().lower().replace(".", "").split())


def kind_of(head: bytes) -> str | None:
    """Return the report that the first bytes of a file belong to: a key of HEADERS, "summary",
    "expert_systems", or None."""
    text = head[:_KIND_BYTES].decode(encoding_of(head), "replace").lstrip("\ufeff")
    lines = text.splitlines()[:3]
    if not lines or "\0" in text:
        return None
    if lines[0].strip(' ",').lower() == "expert systems feedback":
        return "expert_systems"
    for line in lines[:2]:
        names = {column(cell) for cell in next(csv.reader([line]), [])}
        for kind, wanted in HEADERS.items():
            if names.issuperset(wanted):
                return kind
    labels = {line.split(",")[0].strip(' "').lower() for line in text.splitlines()}
    return "summary" if len(labels.intersection(SUMMARY_WORDS)) >= 2 else None


def members(folder: Path) -> dict[str, Path]:
    """Kind -> file of a folder that is one DLProf report; empty when it is none. Several summaries
    are several runs."""
    return together(sorted(folder.glob("*.csv")), lambda head: {kind_of(head)} - {None})


def together(
    files: Iterable[Path], kinds_in: Callable[[bytes], Set[str | None]]
) -> dict[str, Path]:
    """Kind -> file of files that are one DLProf report; empty when they are none.

    They are one when no kind of report is there twice, and no other file or one with DLProf's own
    file name.
    """
    found: dict[str, Path] = {}
    foreign = False
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                kinds = kinds_in(file.read(PROBE_BYTES))
            if kinds & found.keys():
                return {}
            foreign |= not kinds
            found |= dict.fromkeys(map(str, kinds), path)
    named = any(path.name.startswith("dlprof_") for path in found.values())
    return found if named or not foreign else {}


def read_table(path: Path, kind: str) -> list[dict[str, str]]:
    """Its rows by normalised column name. Raises ReportError for a cut row, and where another
    report begins."""
    title: list[str] = []
    names: list[str] = []
    rows: list[dict[str, str]] = []
    for line, cells in read_csv(path, "dlprof", CUT):
        columns = [column(cell) for cell in cells]
        first = cells[0].strip()
        if not names and set(columns).issuperset(WANTED[kind]):
            names = columns
        elif not names:
            title = cells
        elif cells == title or columns == names:
            raise repeated(path, "dlprof", f"the {kind} report", line)
        elif sum(map(bool, cells)) == 1 and first.lower() in KNOWN["titles"]:
            reason = f"another report of DLProf, '{first[:80]}', begins at line {line}"
            remedy = "Split the file there and pass the folder that holds the parts"
            raise ReportError(path, "dlprof", reason, remedy)
        elif len(cells) < len(names):
            reason = f"row at line {line} has {len(cells)} of {len(names)} cells"
            raise ReportError(path, "dlprof", reason, CUT)
        elif len(rows) == ROWS:
            reason = f"it has more than {ROWS:,} rows, which do not fit into memory"
            remedy = "Pass dlprof_dldb.sqlite of the same run, which is read row by row"
            raise ReportError(path, "dlprof", reason, remedy)
        else:
            rows.append(dict(zip(names, cells, strict=False)))
    if not names:
        raise ReportError(path, "dlprof", f"it has no header line of a {kind} report", CUT)
    return rows


def read_blocks(path: Path) -> list[Block]:
    """Read the blocks of a summary, in order. Raises ReportError when one appears twice."""
    blocks: list[Block] = []
    for line, (first, *rest) in read_csv(path, "dlprof", CUT):
        label, values = first.strip(), tuple(cell.strip() for cell in rest)
        if not rest:
            if any(block.title == label for block in blocks):
                raise repeated(path, "dlprof", f"the block '{label[:80]}' of the summary", line)
            blocks.append(Block(label, (), []))
        elif not label and blocks and not blocks[-1].lines:
            blocks[-1] = Block(blocks[-1].title, values, [])
        elif blocks and blocks[-1].columns:
            blocks[-1].lines.append((label, values))
        else:
            blocks = blocks or [Block("", (), [])]
            # GPU names are separated by commas without quotes (1.7.0): everything after the label
            # is the value
            blocks[-1].lines.append((label, (",".join(rest).strip(),)))
    return blocks


def environment_of(config: Mapping[str, str]) -> dict[str, str]:
    """Versions by the names of Report.environment, from labels of the system config; "mode string"
    is the database's."""
    found = {name: config[label] for label, name in _FACTS.items() if config.get(label)}
    product, _, version = config.get("framework", "").partition(" ")
    return found | ({"torch": version} if product == "PyTorch" and version else {})


def version_of(config: Mapping[str, str]) -> str | None:
    """DLProf's own version, without what stands behind its numbers."""
    version = _VERSION.match(config.get("dlprof version", ""))
    return version[1] if version else config.get("dlprof version")


def figure(name: str, value: object, unit: str | None) -> Summary:
    """Return a finite number, also a printed one, as such; anything else as text."""
    try:
        number = float(str(value))
    except ValueError:
        number = nan
    if isfinite(number):
        return Summary(name, number, unit)
    return Summary(name, None, unit, None if value is None else str(value))


def read_summary(path: Path) -> Report:
    """Return the facts of a summary. Raises ReportError when no line of it is a label and a
    value."""
    blocks = read_blocks(path)
    lines = [lines for block in blocks if (lines := block.lines)]
    if not lines:
        reason = "the summary has no lines with a label and a value"
        raise ReportError(path, "dlprof", reason, "Run DLProf again")
    if ends_with_line(path):
        return summary_of(path, blocks)
    # the last number may be cut: DLProf ends every line
    label, values = lines[-1].pop()
    lines[-1].append((label, (*values[:-1], "")))
    reason = f"the last line is incomplete: the last cell of '{label}' was left out"
    summary = summary_of(path, blocks)
    return replace(summary, gaps=(*summary.gaps, Gap("summary", "unreadable", reason)))


def summary_of(path: Path, blocks: list[Block]) -> Report:
    """Return the facts in the blocks of a summary: a Report without its launches and
    operations."""
    config: dict[str, str] = {}
    summaries: list[Summary] = []
    for block in blocks:
        is_config = block.title.lower() == _CONFIG
        for label, values in block.lines:
            if is_config:
                config[label.lower()] = values[0]
            if is_config and label != "GPU Count":
                # versions and names are texts, even "11.6"
                summaries.append(Summary(label, None, None, values[0] or None))
            elif block.columns:
                for name, value in zip(block.columns, values, strict=False):
                    summaries.append(_read_figure(f"{block.title}: {label}: {name}", value))
            else:
                summaries.append(_read_figure(label, values[0]))
    walls = [entry for entry in summaries if entry.name == "Wall Clock Time"]
    wall = walls[0].value if walls and walls[0].unit == "ns" else None
    devices, gaps = _read_devices(config)
    if config and "cudnn version" not in config:
        reason = "this DLProf's summary has no line 'cuDNN Version' (pip's 1.8.0 leaves it out)"
        gaps.append(Gap("environment.cudnn", "not_available", reason))
    return Report(
        tool="dlprof",
        path=path,
        form="DLProf summary",
        tool_version=version_of(config),
        devices=devices,
        environment=environment_of(config),
        summaries=tuple(summaries),
        gaps=tuple(gaps),
        duration_ns=None if wall is None or abs(wall) > 2**62 else int(wall),
    )


def _read_figure(label: str, value: str) -> Summary:
    """Return a figure without the unit in its label."""
    match = _UNIT.match(label)
    name, unit = (match["name"], match["time"] or match["percent"]) if match else (label, None)
    if label == "Iteration Time Standard Deviation":
        unit = "ns"  # printed without a unit, below an average that has one
    return figure(name, value or None, unit)


def _read_devices(config: Mapping[str, str]) -> tuple[tuple[Device, ...], list[Gap]]:
    """Return the GPUs, whose names are separated by commas without quotes, and the CPU. The count
    shows whether the names were split correctly."""
    names = [name.strip() for name in config.get("gpu name(s)", "").split(",") if name.strip()]
    count = config.get("gpu count", "")
    gaps = []
    if names and count.isdecimal() and int(count) != len(names):
        reason = f"the summary counts {count} GPUs and names {len(names)}: {', '.join(names)}"
        gaps.append(Gap("device.name", "ambiguous", reason))
        names = []
    driver = config.get("gpu driver version") or None
    devices = [Device(name, "gpu", n, driver_version=driver) for n, name in enumerate(names)]
    if config.get("cpu model"):
        devices.append(Device(config["cpu model"], "cpu"))
    return tuple(devices), gaps
