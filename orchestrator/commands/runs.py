"""List the runs of a results database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfctl.orchestrator.commands.declare import DEFAULT_STORE, Command, Events, Store
from perfctl.orchestrator.faults import work_without_failing_items
from perfctl.orchestrator.outputs import build_column_schema, build_object_schema
from perfctl.orchestrator.report.numbers import format_time
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_table,
    missing_cell,
    text_cell,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, query, read

_JSON_TYPES = {"INTEGER": "integer", "REAL": "number", "NUMERIC": "number", "TEXT": "string"}
_COLUMNS = {
    "id": Column("run"),
    "profiler": Column("tool", style="text"),
    "workload": Column("workload", style="code"),
    "file": Column("file", style="code"),
    "rank": Column("rank"),
    "batch_size": Column("batch"),
    "parameters": Column("parameters", style="text"),
    "serving": Column("serving", style="text"),
    "mode": Column("mode", style="text"),
    "device_name": Column("device", style="code"),
    "kernels": Column("kernels"),
    "started_at": Column("started (UTC)", is_optional=True),
    "duration_ns": Column("duration", is_optional=True),
    "status": Column("status", style="text"),
}
"""JSON key of a run -> its column."""


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """List the runs in the results database: workload, device, start, status and number of kernels.

    Raises StoreError if there is no store.
    """

    store: Store = DEFAULT_STORE


class StoredRun(dict[str, Any]):
    """One object a run, oldest first."""

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the columns of the table run, and what ``perfctl runs`` adds to them."""
        properties: dict[str, Any] = {
            column.name: build_column_schema(
                _JSON_TYPES[kind], column.meaning, column.unit, column.null
            )
            for column, kind in query.list_table_columns("run")
        }
        for name in ("kernels", "ranges", "copies", "operations"):
            properties[name] = build_column_schema(
                "integer", f"rows of {name}", null="not collected"
            )
        return build_object_schema(
            {
                **properties,
                "sweep_name": build_column_schema(
                    "string", "name of the sweep", null="the sweep is gone"
                ),
                "device_name": build_column_schema("string", "name of the device", null="unknown"),
                "counters": build_column_schema("integer", "values of counters"),
                "parameters": build_column_schema(
                    "string", "parameters of the sweep other than the batch size", null="none"
                ),
                "serving": build_column_schema(
                    "string",
                    "phases of text generation and their tokens",
                    null="no known step",
                ),
            }
        )


def list_stored_runs(options: RunsOptions, events: Events) -> list[StoredRun]:
    """Read the rows of the table run."""
    with database.open_store_for_reading(options.store) as connection:
        return [StoredRun(row) for row in read.list_run_summaries(connection)]


def build_runs_view(rows: list[StoredRun]) -> View:
    """Return one line a run, and below it what is the same in all."""
    if not rows:
        return View("The results database has no runs.")
    return work_without_failing_items(rows, _build_rows_view, lambda row: f"run {row['id']}")


def _build_rows_view(rows: Sequence[StoredRun]) -> View:
    notes = ["1 run" if len(rows) == 1 else f"{len(rows):,} runs"]
    facts = [{**row, "file": _name_ingested_file(row)} for row in rows]
    values = {name: {row.get(name) for row in facts} for name in _COLUMNS}
    names = [name for name in _COLUMNS if values[name] != {None}]
    if "kernels" not in names:
        notes.append("no GPU kernels")
    if "mode" in names and len(values["mode"]) == 1:
        names.remove("mode")
        mode = str(*values["mode"])
        notes.append({"train": "training", "infer": "inference"}.get(mode, mode))
    if values["rank"] == {0}:
        names.remove("rank")
    statuses = {_choose_status_or_origin(row) for row in rows}
    if len(rows) > 1 and statuses in ({"ok"}, {"ingested"}):
        names.remove("status")
        notes += [f"all {status}" for status in statuses]
    devices = values["device_name"]
    if len(rows) > 1 and "device_name" in names and len(devices) == 1:
        names.remove("device_name")
        notes += map(str, devices)
    cells = [[_format_run_cell(name, row) for name in names] for row in facts]
    columns = [_COLUMNS[name] for name in names]
    drawn = build_table("", columns, cells, limit=len(rows), is_complete=True)
    return View(
        "",
        tables=(drawn,) if isinstance(drawn, Table) else (),
        notes=(f"{', '.join(notes)}.",),
    )


def _name_ingested_file(row: Mapping[str, Any]) -> str | None:
    """Return the name of an ingested report, which has no workload that tells it from others."""
    if row["origin"] in (None, "measured") or row.get("workload"):
        return None
    return Path(row.get("artifact") or "").name or None


def _choose_status_or_origin(row: Mapping[str, Any]) -> str:
    """Return the status of a run; of a complete one that was not measured here, its origin."""
    is_measured = row["origin"] in (None, "measured")
    return str(row["status"] if row["status"] != "ok" or is_measured else row["origin"])


def _format_run_cell(name: str, row: Mapping[str, Any]) -> Cell:
    value = row.get(name)
    if name == "status":
        status = _choose_status_or_origin(row)
        return Cell(status, style="bad" if status == "failed" else "", value=status)
    if value is None:
        return missing_cell("unknown")
    if name == "kernels":
        value = f"{value:,}"
    elif name == "started_at":
        value = value[:16].replace("T", " ")
    elif name == "duration_ns":
        value = format_time(value)
    return text_cell(value)


COMMAND = Command(RunsOptions, list_stored_runs, build_runs_view)
