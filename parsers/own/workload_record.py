"""Reads ``workload.json``, the record that a perfctl workload writes: steps, memory, shapes,
environment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.doubts import not_understood, others, words
from perfctl.parsers.common.json import read_whole, typed
from perfctl.records.errors import ReportError
from perfctl.records.paper import OpShape, read_op_shape
from perfctl.records.report import (
    Device,
    Gap,
    LayerTime,
    MemoryFigure,
    Report,
    Step,
    Summary,
)

KEY = "perfctl_workload_record"
VERSION = 1
_OF_ROWS: dict[str, Collection[str]] = {
    "steps": Step._fields,
    "memory": MemoryFigure._fields,
    "summaries": Summary._fields,
    "layer_times": LayerTime._fields,
    "gaps": Gap._fields,
    "ops": [item.name for item in fields(OpShape)],
}
_FIELDS = frozenset(_OF_ROWS) | words(
    f"{KEY} workload batch_size mode precision seed status reason variant options environment "
    "device started_at duration_ns clock parameters crc32"
)
PLUMBING = ("annotate", "batch_size", "record", "trace", "window")
"""Options between perfctl and the workload, which are not facts about the run."""


class _RunFields(NamedTuple):
    workload: str | None
    batch_size: int | None
    mode: str | None
    precision: str | None
    started_at: str | None
    duration_ns: int | None
    variant: str | None = None


def sniff(path: Path, head: bytes) -> bool:
    return f'"{KEY}"'.encode() in head[:200]


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off, from a newer perfctl, or lacks
    a field."""
    record = load(path)
    try:
        record, unknown_fields = _understood(record)
        return Report(
            tool="workload",
            path=path,
            form=f"perfctl workload record, version {record[KEY]}",
            devices=(typed(Device, record["device"]),) if record.get("device") else (),
            environment=_environment(record),
            steps=tuple(typed(Step, row) for row in record["steps"]),
            memory=tuple(typed(MemoryFigure, row) for row in record["memory"]),
            summaries=tuple(typed(Summary, row) for row in record.get("summaries", ())),
            ops=tuple(read_op_shape(row) for row in record["ops"]),
            layer_times=tuple(typed(LayerTime, row) for row in record.get("layer_times", ())),
            gaps=tuple(typed(Gap, row) for row in record["gaps"]),
            diagnostics=not_understood({"fields": unknown_fields}),
            **typed(
                _RunFields, {name: record[name] for name in _RunFields._fields if name in record}
            )._asdict(),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        reason = f"a field is missing or wrong ({error})"
        raise ReportError(path, "workload", reason, "Run this batch size again") from error


def _understood(record: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return (the record without unknown fields, the names of the unknown fields)."""
    known_part = {key: value for key, value in record.items() if key in _FIELDS}
    unknown = others(record, _FIELDS)
    for name, known in _OF_ROWS.items():
        rows = record[name] if isinstance(record.get(name), list) else []
        if strange := others(dict.fromkeys(key for row in rows for key in row), known):
            unknown += [f"{name}.{key}" for key in strange]
            known_part[name] = [
                {key: value for key, value in row.items() if key in known} for row in rows
            ]
    return known_part, unknown


def load(path: Path) -> dict[str, Any]:
    """The JSON object, checked for kind and version."""
    record = read_whole(path, "workload", "The workload was stopped while writing: run it again")
    if not isinstance(record, dict) or not isinstance(record.get(KEY), int):
        raise ReportError(
            path, "workload", f"no field {KEY}", "This file was not written by a perfctl workload"
        )
    if record[KEY] > VERSION:
        reason = f"record version {record[KEY]}, this perfctl reads {VERSION}"
        raise ReportError(path, "workload", reason, "Install a newer perfctl")
    return record


def _environment(record: dict[str, Any]) -> dict[str, str]:
    """Return facts about software, with the workload's own options and what timed its steps."""
    facts = dict(record.get("environment", {}))
    options = record.get("options", {}).items()
    facts |= {f"option:{key}": value for key, value in options if key not in PLUMBING}
    facts |= {key: record.get(key) for key in ("seed", "clock")}
    return {str(key): str(value) for key, value in facts.items() if value is not None}
