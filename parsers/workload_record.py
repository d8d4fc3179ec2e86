"""The record that a perfctl workload writes itself: steps, memory, shapes, environment (``workload.json``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfctl.parsers.errors import ReportError
from perfctl.parsers.layer_times import LayerTime
from perfctl.parsers.paper import read_op_shape
from perfctl.parsers.records import Device, Gap, MemoryFigure, Report, Step, Summary

KEY = "perfctl_workload_record"
VERSION = 1
PLUMBING = ("annotate", "batch_size", "record", "trace", "window")
"""Options by which perfctl itself talks to the workload: no facts about the run."""


def sniff(path: Path, head: bytes) -> bool:
    return f'"{KEY}"'.encode() in head[:200]


def parse(path: Path) -> Report:
    """Read it. Raises ReportError when it is cut off, from a newer perfctl, or lacks a field."""
    record = load(path)
    try:
        return Report(
            tool="workload",
            path=path,
            form=f"perfctl workload record, version {record[KEY]}",
            tool_version=None,
            devices=(Device(**record["device"]),) if record.get("device") else (),
            environment=_environment(record),
            steps=tuple(Step(**row) for row in record["steps"]),
            memory=tuple(MemoryFigure(**row) for row in record["memory"]),
            summaries=tuple(Summary(**row) for row in record.get("summaries", ())),
            ops=tuple(read_op_shape(row) for row in record["ops"]),
            layer_times=tuple(LayerTime(**row) for row in record.get("layer_times", ())),
            gaps=tuple(Gap(**row) for row in record["gaps"]),
            workload=record["workload"],
            variant=record.get("variant"),
            batch_size=record["batch_size"],
            mode=record["mode"],
            precision=record["precision"],
            started_at=record["started_at"],
            duration_ns=record["duration_ns"],
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ReportError(
            path, "workload", f"a field is missing or wrong ({error})", "Run this batch size again"
        ) from error


def load(path: Path) -> dict[str, Any]:
    """The JSON object, checked for kind and version."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ReportError(
            path, "workload", f"not a whole record ({error})", "The workload was stopped while it wrote: run it again"
        ) from error
    if not isinstance(record, dict) or not isinstance(record.get(KEY), int):
        raise ReportError(path, "workload", f"no field {KEY}", "This file was not written by a perfctl workload")
    if record[KEY] > VERSION:
        raise ReportError(
            path, "workload", f"record version {record[KEY]}, this perfctl reads {VERSION}", "Install a newer perfctl"
        )
    return record


def _environment(record: dict[str, Any]) -> dict[str, str]:
    """Facts about software, with the workload's own options and what timed its steps."""
    facts = {str(key): str(value) for key, value in record.get("environment", {}).items() if value is not None}
    given = record.get("options", {}).items()
    facts |= {f"option:{key}": str(value) for key, value in given if value is not None and key not in PLUMBING}
    for key in ("seed", "clock"):
        if record.get(key) is not None:
            facts[key] = str(record[key])
    return facts
