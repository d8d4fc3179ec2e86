"""Records into the store: one run is one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from perfctl.orchestrator.store import bulk, checks, clean_text, schema
from perfctl.orchestrator.store.database import now, transaction
from perfctl.orchestrator.store.read import OF_REPORT, SHAPE_COLUMNS, TABLES
from perfctl.records.errors import ReportError
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.possible import is_moment
from perfctl.records.report import Counter, DerivedCount, Gap, OpCall, Report, SourceCounter
from perfctl.redact import mask, mask_line, mask_words

LARGE: Mapping[str, tuple[str, type[Any]]] = {
    "counters": ("metric_value", Counter),
    "source_counters": ("source_counter", SourceCounter),
    "op_calls": ("op_instance", OpCall),
}
"""Field of Report -> (its table, its record), where rows share names: see ``bulk.SHARED``."""
COUNTED: Mapping[str, str] = {
    "kernels": "kernel_launch",
    "counters": "metric_value",
    "ranges": "range",
    "copies": "copy",
    "operations": "operation",
    "samples": "sample",
    "op_calls": "op_instance",
}
"""Field of Written -> the table whose rows it counts."""
_SHAPE_RECORD = [field.name for field in fields(OpShape) if field.name not in SHAPE_COLUMNS]


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """What a run belongs to, found again by name and kind; every ingest has a name of its own."""

    name: str
    kind: str
    """sweep or ingest."""
    command: str | None
    host: str | None
    created_at: str | None = None
    """UTC, ISO 8601; None for now."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run besides its report. None where it is not."""

    profiler: str
    status: str
    origin: str
    workload: str | None = None
    batch_size: int | None = None
    mode: str | None = None
    precision: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    started_at: str | None = None
    duration_ns: int | None = None
    artifact: str | None = None
    artifact_sha256: str | None = None
    command: tuple[str, ...] = ()
    variant: str | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    phase: str | None = None
    effective_batch: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """``new`` is False when the same artifact was there already, and nothing was written."""

    JSON_NAMES: ClassVar = {"placed": "kernel_time_with_module"}

    run_id: int
    new: bool
    kernels: int = 0
    counters: int = 0
    ranges: int = 0
    copies: int = 0
    operations: int = 0
    samples: int = 0
    op_calls: int = 0
    reason: str | None = None
    """Why the run is partial or failed; None when it is whole."""
    placed: float | None = None
    """0..1: share of the kernel time that has a module, where graphs or a server's steps were
    recorded; None elsewhere."""


def find_artifact(connection: sqlite3.Connection, sha256: str) -> int | None:
    """The newest run made from this artifact; None when it is not in the store."""
    row = connection.execute(
        "SELECT max(id) FROM run WHERE artifact_sha256 = ?", (sha256,)
    ).fetchone()
    return int(row[0]) if row[0] is not None else None


def holds_rows(connection: sqlite3.Connection, run: Written) -> bool:
    """Has the run anything but facts about itself, and reasons for what it has not?"""
    said = ("gap", "diagnostic", "feature")
    tables = [table for table, _ in TABLES.values() if table not in said]
    tables += ["kernel_launch", "range", "layer_call", "op_shape"]
    rows = " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE run_id = :run" for table in tables)
    return bool(connection.execute(f"SELECT EXISTS ({rows})", {"run": run.run_id}).fetchone()[0])


def set_partial(connection: sqlite3.Connection, run_id: int, reason: str) -> None:
    """Say of a run that is in the store that it is not whole."""
    with transaction(connection):
        query = "UPDATE run SET status = 'partial', reason = ? WHERE id = ?"
        connection.execute(query, (clean_text.clean(reason), run_id))


def write_run(
    connection: sqlite3.Connection,
    sweep: SweepFacts,
    run: RunFacts,
    report: Report | None,
    layer_calls: Sequence[LayerCall] = (),
    *,
    family: Callable[[str], str | None],
    again: bool = False,
    beside: bool = False,
) -> Written:
    """Write one run with everything its report holds, or nothing at all.

    ``family`` names a kernel's algorithm from its name. Errors while the report is read (it may be
    a stream) leave the store as it was. The same artifact is written once, unless ``again``.
    ``beside``: it belongs to the run just written (another rank of it), and takes no other's place.
    """
    sweep = _masked(sweep)
    run = replace(run, command=mask_words(run.command), reason=run.reason and mask(run.reason))
    with (
        _fitting(run, report),
        bulk.attached(connection, report),
        unchecked(connection),
        transaction(connection),
        clean_text.counting_cuts() as cut,
    ):
        if (
            run.artifact_sha256
            and not again
            and (known := find_artifact(connection, run.artifact_sha256)) is not None
        ):
            return Written(known, new=False)
        sweep_id = sweep_number(connection, sweep)
        if not beside:
            forget_failed(connection, sweep_id, run.profiler, run.batch_size)
        run_id = _run(connection, sweep_id, run, report)
        if report is None:
            return Written(run_id, new=True, reason=run.reason)
        rows = _write_tables(connection, run_id, report, layer_calls, family)
        if cut:
            texts = "1 text has" if len(cut) == 1 else f"{len(cut):,} texts have"
            kept = f"the store keeps {clean_text.LONGEST:,} of each"
            gap = Gap(
                "text", "not_available", f"{texts} up to {max(cut.values()):,} characters; {kept}"
            )
            _rows(connection, "gap", Gap._fields, run_id, [gap])
        counts = {name: rows[table] for name, table in COUNTED.items()}
        return Written(run_id, new=True, reason=run.reason, **counts)


@lru_cache(maxsize=16)
def _masked(sweep: SweepFacts) -> SweepFacts:
    """Without secrets; many runs are of one sweep."""
    return replace(sweep, name=mask(sweep.name), command=sweep.command and mask_line(sweep.command))


@contextmanager
def _fitting(run: RunFacts, report: Report | None) -> Iterator[None]:
    """Numbers beyond 64 bits, which SQLite does not hold and no profiler counts, become a
    ReportError."""
    try:
        yield
    except OverflowError as error:
        place = report.path if report is not None else Path(run.artifact or "")
        problem = f"a number in it is beyond 64 bits ({error})"
        raise ReportError(place, run.profiler, problem, "Make it again") from error


def sweep_number(connection: sqlite3.Connection, sweep: SweepFacts) -> int:
    """Its id; it is made where it is not there yet."""
    row = connection.execute(
        "SELECT id FROM sweep WHERE name = ? AND kind = ?", (sweep.name, sweep.kind)
    ).fetchone()
    if row:
        return int(row[0])
    return insert_row(
        connection, "sweep", {**asdict(sweep), "created_at": sweep.created_at or now()}
    )


def _run(
    connection: sqlite3.Connection, sweep_id: int, run: RunFacts, report: Report | None
) -> int:
    row: dict[str, Any] = {**asdict(run), "sweep_id": sweep_id, "ingested_at": now()}
    row["command"] = json.dumps(run.command) if run.command else None
    if report is None:
        return insert_row(connection, "run", row)
    row |= {
        "profiler_version": report.tool_version,
        "form": report.form,
        "clock": report.environment.get("clock"),
    }
    row |= {field: getattr(report, field) for field in OF_REPORT if row[field] is None}
    devices: dict[tuple[Any, int], None] = {}
    for device in report.devices:
        facts = checks.clean_device(clean_text.of_row(asdict(device)))
        index = facts.pop("index")
        devices[index, find_or_insert(connection, "device", facts)] = None
    row["device_id"] = next((number for _, number in devices), None)
    started = row["started_at"]
    if started is not None and not is_moment(str(started)):
        row["started_at"] = None
    run_id = insert_row(connection, "run", row)
    if row["started_at"] != started:
        gap = Gap(
            "run.started_at",
            "unreadable",
            f"'{mask(str(started))[:40]}' is not a moment between 1970 and 2099",
        )
        _rows(connection, "gap", Gap._fields, run_id, [gap])
    into = "INSERT INTO run_device (run_id, device_index, device_id) VALUES (?, ?, ?)"
    connection.executemany(into, [(run_id, *device) for device in devices])
    return run_id


def find_or_insert(connection: sqlite3.Connection, table: str, facts: Mapping[str, Any]) -> int:
    """Return the id of the row with these facts; it is made where it is not there yet."""
    same = " AND ".join(f"{column} IS :{column}" for column in facts)
    row = connection.execute(f"SELECT id FROM main.{table} WHERE {same}", facts).fetchone()
    return int(row[0]) if row else insert_row(connection, table, facts)


def insert_row(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> int:
    """Insert one row and return its id."""
    clean = clean_text.of_row(row)
    clean = {name: checks.fit_type(table, name, [value])[0] for name, value in clean.items()}
    marks = ", ".join(f":{name}" for name in clean)
    cursor = connection.execute(
        f"INSERT INTO main.{table} ({', '.join(clean)}) VALUES ({marks})", clean
    )
    return int(cursor.lastrowid or 0)


def _rows(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    run_id: int,
    rows: Iterable[tuple[Any, ...]],
) -> int:
    """Insert rows as they come, with the run's id before them; how many there were."""
    into = f"{table} (run_id, {schema.name_list(columns)})"
    return bulk.insert(
        connection, into, [f"{run_id:d}"], ["?"] * len(columns), bulk.columns_of(rows)
    )


def _write_tables(
    connection: sqlite3.Connection,
    run_id: int,
    report: Report,
    layer_calls: Sequence[LayerCall],
    family: Callable[[str], str | None],
) -> dict[str, int]:
    """Write all rows of a report, without impossible values; table -> how many it got.

    Ranges, kernels and counters refer to each other by their order in the report: id = base
    + order.
    """
    facts = clean_text.of_facts(report.environment)
    _rows(connection, "environment", ("key", "value"), run_id, facts)
    firsts = {
        table: bulk.next_id(connection, table)
        for table in ("range", "kernel_launch", *(table for table, _ in LARGE.values()))
    }
    rows: dict[str, int] = {}
    rows["range"], first_range = bulk.write_ranges(connection, run_id, report.ranges)
    kernels = bulk.write_kernels(connection, run_id, report.kernels, first_range, family)
    rows["kernel_launch"] = kernels.number
    for field, (table, record) in LARGE.items():
        records = getattr(report, field)
        rows[table] = bulk.write_large(connection, table, record, run_id, kernels.first_id, records)
    for field, (table, record) in TABLES.items():
        rows[table] = _rows(connection, table, record._fields, run_id, getattr(report, field))
    rows["layer_call"] = _rows(connection, "layer_call", LayerCall._fields, run_id, layer_calls)
    shapes = [
        (*(getattr(op, name) for name in SHAPE_COLUMNS), _shape_json(op)) for op in report.ops
    ]
    _rows(connection, "op_shape", (*SHAPE_COLUMNS, "record"), run_id, shapes)
    new_rows = {
        table: f"id >= {firsts[table]}" if table in firsts else f"run_id = {run_id:d}"
        for table, count in rows.items()
        if count and not (table == "kernel_launch" and kernels.are_checked)
    }
    gaps = checks.refuse_impossible(connection, {**new_rows, "run": f"id = {run_id:d}"})
    _rows(connection, "gap", Gap._fields, run_id, gaps)
    return rows


def _shape_json(op: OpShape) -> str:
    return json.dumps({name: getattr(op, name) for name in _SHAPE_RECORD}, sort_keys=True)


def write_derived(connection: sqlite3.Connection, run_id: int, rows: Iterable[DerivedCount]) -> int:
    """Write the derived counts of a stored run in place of those it had; how many there are.

    All of it or none. Launches without a ``source`` become "derived". Raises ValueError for a
    launch that the run does not have.
    """
    with unchecked(connection), transaction(connection):
        forget(connection, "derived_rule", "run_id = ?", (run_id,))
        launches = "SELECT id FROM kernel_launch WHERE run_id = ?"
        forget(connection, "derived_value", f"kernel_id IN ({launches})", (run_id,))
        connection.execute(
            "UPDATE kernel_launch SET source = NULL WHERE run_id = ? AND source = 'derived'",
            (run_id,),
        )
        (base,) = connection.execute(
            "SELECT min(id - launch) FROM kernel_launch WHERE run_id = ?", (run_id,)
        ).fetchone()
        first = bulk.next_id(connection, "derived_value")
        written = bulk.write_large(
            connection, "derived_value", DerivedCount, run_id, base or 0, rows
        )
        if connection.execute(
            f"SELECT EXISTS (SELECT 1 FROM derived_value WHERE id >= {first} AND kernel_id NOT IN "
            f"({launches}))",
            (run_id,),
        ).fetchone()[0]:
            raise ValueError(f"a derived count is of a launch that run {run_id} does not have")
        connection.execute(
            "UPDATE kernel_launch SET source = 'derived' WHERE run_id = ? AND source IS NULL"
            " AND id IN (SELECT kernel_id FROM derived_value WHERE id >= ?)",
            (run_id, first),
        )
        gaps = checks.refuse_impossible(connection, {"derived_value": f"id >= {first}"})
        _rows(connection, "gap", Gap._fields, run_id, gaps)
    return written


@contextmanager
def unchecked(connection: sqlite3.Connection) -> Iterator[None]:
    """Inside, foreign keys are neither checked nor followed. SQLite heeds it only outside of a
    transaction.

    A run's rows refer to rows that the same transaction makes, and a million lookups take an eighth
    of the time that a large report takes. What goes with a deleted row is found by ``forget``.
    """
    connection.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        connection.execute("PRAGMA foreign_keys = ON")


def forget_failed(
    connection: sqlite3.Connection, sweep_id: object, profiler: object, batch_size: object
) -> None:
    """Delete the failed or partial attempts at a batch size that a new one in the same sweep
    replaces."""
    failed = "sweep_id = ? AND profiler = ? AND batch_size = ? AND status <> 'ok'"
    forget(connection, "run", failed, (sweep_id, profiler, batch_size))


def forget(
    connection: sqlite3.Connection, table: str, where: str, values: Sequence[object]
) -> None:
    """Delete the rows of ``table`` and, before them, those of other tables that are theirs (ON
    DELETE CASCADE)."""
    rows = f"main.{schema.quote_name(table)} WHERE {where}"
    if connection.execute(f"SELECT 1 FROM {rows} LIMIT 1", values).fetchone() is None:
        return
    for child, column, key in sorted(_belonging(connection, table)):
        forget(
            connection,
            child,
            f"{schema.quote_name(column)} IN (SELECT {schema.quote_name(key)} FROM {rows})",
            values,
        )
    connection.execute(f"DELETE FROM {rows}", values)


def _belonging(connection: sqlite3.Connection, table: str) -> set[tuple[str, str, str]]:
    """Return (table, column, key it refers to) of what goes with this table's rows: perfctl's own
    tables, and those of the store's user that say ON DELETE CASCADE."""
    rows = connection.execute(
        'SELECT t.name, k."from", coalesce(k."to", \'id\') FROM main.sqlite_master AS t '
        "JOIN pragma_foreign_key_list(t.name) AS k "
        "WHERE t.type = 'table' AND k.on_delete = 'CASCADE' AND lower(k.\"table\") = lower(?)",
        (table,),
    )
    return set(rows)
