"""Reads ``workload.json``, the record that a perfctl workload writes: steps, memory, shapes,
environment."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.doubts import (
    list_unknown_names,
    make_unknown_names_warning,
    split_words,
)
from perfctl.parsers.own.json import get_field_types, make_checked_record, read_versioned_json
from perfctl.records.errors import ReportError
from perfctl.records.paper import OpShape, parse_op_shape
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
_ROWS: dict[str, Any] = {
    "steps": Step,
    "memory": MemoryFigure,
    "summaries": Summary,
    "layer_times": LayerTime,
    "gaps": Gap,
    "ops": OpShape,
}
"""Field of the record and the report -> what its rows are."""
_LATER = ("summaries", "layer_times")
"""Fields that older records lack."""
_FIELDS = frozenset(_ROWS) | split_words(
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
    remedy = "The workload was stopped while writing. Run it again"
    remedies = (remedy, "A perfctl workload did not write this file")
    record = read_versioned_json(path, "workload", KEY, VERSION, remedies)
    unknown = list_unknown_names(record, _FIELDS)
    try:
        run = {name: record[name] for name in _RunFields._fields if name in record}
        rows: dict[str, Any] = {
            name: _read_rows_without_unknown_fields(record, name, unknown) for name in _ROWS
        }
        return Report(
            tool="workload",
            path=path,
            form=f"perfctl workload record, version {record[KEY]}",
            devices=(make_checked_record(Device, record["device"]),)
            if record.get("device")
            else (),
            environment=_read_software_and_options(record),
            **rows,
            diagnostics=make_unknown_names_warning({"fields": unknown}),
            **make_checked_record(_RunFields, run)._asdict(),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        reason = f"a field is missing or wrong ({error})"
        raise ReportError(path, "workload", reason, "Run this batch size again") from error


def _read_rows_without_unknown_fields(
    record: dict[str, Any], name: str, unknown_fields: list[str]
) -> tuple[Any, ...]:
    """Return the rows of one field without their unknown fields, which are added to
    ``unknown_fields``."""
    rows = record.get(name, []) if name in _LATER else record[name]
    types = get_field_types(_ROWS[name])
    read = parse_op_shape if name == "ops" else partial(make_checked_record, _ROWS[name])
    strange = list_unknown_names(dict.fromkeys(key for row in rows for key in row), types)
    unknown_fields += [f"{name}.{key}" for key in strange]
    return tuple(read({key: row[key] for key in row if key in types}) for row in rows)


def _read_software_and_options(record: dict[str, Any]) -> dict[str, str]:
    """Return facts about software, with the workload's own options and what timed its steps."""
    facts = dict(record.get("environment", {}))
    options = record.get("options", {}).items()
    facts |= {f"option:{key}": value for key, value in options if key not in PLUMBING}
    facts |= {key: record.get(key) for key in ("seed", "clock")}
    return {str(key): str(value) for key, value in facts.items() if value is not None}
