"""What a run's folder says of itself, refused in one line where it makes no sense: anybody may have written it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfctl.orchestrator.analyse.estimate import estimate
from perfctl.orchestrator.launch.run_folder import read_run_record
from perfctl.parsers.errors import ReportError
from perfctl.parsers.paper import LayerCall
from perfctl.parsers.records import Report

_NEEDED = (
    *("profiler", "status", "origin", "workload", "batch_size", "exit_code", "reason", "started_at", "duration_ns"),
    *("artifact", "commands"),
)
"""Fields that every run.json has."""
_AGAIN = "Run this batch size again"


def run_record(folder: Path) -> dict[str, Any]:
    """run.json with all its fields. Raises ReportError."""
    record = read_run_record(folder)
    if record is None:
        raise ReportError(folder, "perfctl", "run.json is missing or not whole", _AGAIN)
    if missing := [name for name in _NEEDED if name not in record]:
        raise ReportError(folder, "perfctl", f"run.json lacks {missing[0]}", _AGAIN)
    return record


def paper(place: Path, report: Report) -> tuple[LayerCall, ...]:
    """Pen and paper of the shapes in a record. Raises ReportError where they are shapes of nothing."""
    try:
        return estimate(report.ops)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"the shapes in the workload's record make no sense ({type(error).__name__}: {error})"
        raise ReportError(place, "perfctl", reason, _AGAIN) from error
