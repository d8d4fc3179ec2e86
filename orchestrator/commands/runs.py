"""List the runs of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfctl.orchestrator.commands.declare import DEFAULT_STORE, Command, Events, Store
from perfctl.orchestrator.faults import whole
from perfctl.orchestrator.outputs import column_schema, object_schema
from perfctl.orchestrator.report.numbers import time
from perfctl.orchestrator.report.tables import Cell, Column, Table, nothing, table, text_cell
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
    "serving": Column("serving", style="text"),
    "mode": Column("mode", style="text"),
    "device_name": Column("device", style="code"),
    "kernels": Column("kernels"),
    "started": Column("started"),
    "duration": Column("duration", is_optional=True),
    "state": Column("status", style="text"),
}
"""Fact of a run -> its column."""


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
            column.name: column_schema(_JSON_TYPES[kind], column.meaning, column.unit, column.null)
            for column, kind in query.columns_of("run")
        }
        for name in ("kernels", "ranges", "copies", "operations"):
            properties[name] = column_schema("integer", f"rows of {name}", null="not collected")
        return object_schema(
            {
                **properties,
                "sweep_name": column_schema("string", "name of the sweep"),
                "device_name": column_schema("string", "name of the device", null="not known"),
                "counters": column_schema("integer", "values of counters"),
                "serving": column_schema(
                    "string",
                    "phases of text generation and their tokens",
                    null="no step is known",
                ),
            }
        )


def run(asked: RunsOptions, events: Events) -> list[StoredRun]:
    """Read the rows of the table run."""
    with database.reading(asked.store) as connection:
        return [StoredRun(row) for row in read.run_rows(connection)]


def view(rows: list[StoredRun]) -> View:
    """Return one line a run, and below it what is the same in all."""
    if not rows:
        return View("The results database has no runs.")
    return whole(rows, _view_of, lambda row: f"run {row['id']}")


def _view_of(rows: Sequence[StoredRun]) -> View:
    hidden, shared = _shared_facts(rows)
    facts = [_facts_of(row) for row in rows]
    optional = ("workload", "batch_size", "file", "rank")
    hidden |= {name for name in optional if all(row.get(name) is None for row in facts)}
    columns = {name: column for name, column in _COLUMNS.items() if name not in hidden}
    cells = [[_cell(row[name]) for name in columns] for row in facts]
    drawn = table("", tuple(columns.values()), cells, limit=len(rows), whole=True)
    count = "1 run" if len(rows) == 1 else f"{len(rows):,} runs"
    note = f"{', '.join([count, *shared])}."
    return View(
        "",
        tables=(drawn,) if isinstance(drawn, Table) else (),
        notes=(note if "started" in hidden else f"{note} Times in UTC.",),
    )


def _shared_facts(rows: Sequence[Mapping[str, Any]]) -> tuple[set[str], list[str]]:
    """Return the facts that need no column, and what is said of them instead."""
    hidden: set[str] = set()
    shared: list[str] = []
    columns = {"started": "started_at", "duration": "duration_ns"}
    for fact in ("mode", "kernels", "started", "duration", "serving"):
        values = {row.get(columns.get(fact, fact)) for row in rows}
        if values == {None}:
            hidden.add(fact)
            shared += ["no GPU kernels"] if fact == "kernels" else []
        elif len(values) == 1 and fact == "mode":
            hidden.add(fact)
            mode = str(*values)
            shared.append({"train": "training", "infer": "inference"}.get(mode, mode))
    return hidden, shared


def _facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a run as they are shown."""
    started, duration_ns, kernels = row["started_at"], row["duration_ns"], row["kernels"]
    status, origin = row["status"], row["origin"]
    is_measured_here = origin in (None, "measured")
    return {
        **row,
        "file": None
        if is_measured_here or row.get("workload")
        else Path(row.get("artifact") or "").name,
        "kernels": None if kernels is None else f"{kernels:,}",
        "started": started and started[:16].replace("T", " "),
        "duration": None if duration_ns is None else time(duration_ns),
        "state": origin if status == "ok" and not is_measured_here else status,
    }


def _cell(value: Any) -> Cell:
    if value is None:
        return nothing("not known")
    return Cell("failed", style="bad", value="failed") if value == "failed" else text_cell(value)


COMMAND = Command(RunsOptions, run, view)
