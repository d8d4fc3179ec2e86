"""Records into the database: one run is one transaction.

Triggers of a database's user do not fire while perfctl writes. SQLite has no switch for them that
Python 3.11 reaches. Schema changes are part of a transaction, though: triggers are dropped at its
beginning and created again, word for word, before it is committed. No other process ever sees the
file without them, and a kill in between leaves them where they were.

What sqlite-utils keeps up to date by triggers (full-text search, ``_counts``) is brought up to date
in one go instead.
"""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, ClassVar

from perfctl.orchestrator.errors import StoreNote
from perfctl.orchestrator.store import bulk, schema
from perfctl.orchestrator.store.read import OF_REPORT, SHAPE_COLUMNS, TABLES
from perfctl.records.bulk import SqlKernels
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.possible import FINITE, MOST_COUNT, starts_with_plausible_date
from perfctl.records.report import (
    Counter,
    DerivedCount,
    Gap,
    Kernel,
    OpCall,
    Range,
    Report,
    SourceCounter,
)
from perfctl.records.run import Expectation, Parameter, make_parameter
from perfctl.records.sqlite_header import quote_sql_name
from perfctl.redact import (
    LONGEST,
    collect_truncated_text_lengths,
    mask_and_truncate_row,
    mask_and_truncate_text,
    mask_arguments,
    mask_command_line,
    mask_secrets,
    select_storable_environment,
)

NUMBERED: Mapping[str, tuple[str, type[Any]]] = {
    "ranges": ("range", Range),
    "kernels": ("kernel_launch", Kernel),
    "counters": ("metric_value", Counter),
    "source_counters": ("source_counter", SourceCounter),
    "op_calls": ("op_instance", OpCall),
}
"""Field of Report -> (its table, its record), where rows have an id; others refer to the first
two."""
_ABOUT_A_RUN = (
    *("run_device", "environment", "gap", "diagnostic", "feature"),
    *("parameter", "expectation"),
)
"""Tables that say something of every run."""
COUNTED: Mapping[str, str] = {
    "kernels": "kernel_launch",
    "counters": "metric_value",
    "ranges": "range",
    "copies": "copy",
    "operations": "operation",
    "samples": "sample",
    "op_calls": "op_instance",
}
"""Field of WrittenRun -> the table whose rows it counts."""
_VIEWED = {
    "kernel_launch": "kernel",
    "op_instance": "op_call",
    "derived_value": "derived_count",
    "metric_value": "counter",
}
"""Table -> the view through which it is read."""
_TOO_LOW: Mapping[float, str] = {
    -FINITE: "infinite or not a number",
    -MOST_COUNT: "not a number",
}
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
    parameters: tuple[Parameter, ...] = ()
    """The writer adds the batch size."""


@dataclass(frozen=True, slots=True)
class WrittenRun:
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


def find_newest_run_by_artifact_hash(connection: sqlite3.Connection, sha256: str) -> int | None:
    """The newest run made from this artifact; None when it is not in the database."""
    newest = "SELECT max(id) FROM run WHERE artifact_sha256 = ?"
    number: int | None = connection.execute(newest, (sha256,)).fetchone()[0]
    return number


def has_report_rows(connection: sqlite3.Connection, run: WrittenRun) -> bool:
    """Has the run anything but facts about itself, and reasons for what it has not?"""
    return any(
        connection.execute(
            f"SELECT 1 FROM {table} WHERE run_id = ? LIMIT 1", (run.run_id,)
        ).fetchone()
        for table in schema.describe_store_tables()
        if table not in _ABOUT_A_RUN and "run_id" in schema.read_column_types(table)
    )


def mark_run_partial(connection: sqlite3.Connection, run_id: int, reason: str) -> None:
    """Say of a run that is in the database that it is not whole."""
    with write_in_transaction_without_triggers(connection):
        query = "UPDATE run SET status = 'partial', reason = ? WHERE id = ?"
        connection.execute(query, (mask_and_truncate_text(reason), run_id))


def replace_parameters_and_expectations(
    connection: sqlite3.Connection,
    run_id: int,
    parameters: Sequence[Parameter],
    expectations: Sequence[Expectation],
) -> None:
    """Give a run that is in the database other parameters and expectations."""
    tables: tuple[tuple[str, type[Any], Sequence[Any]], ...] = (
        ("parameter", Parameter, parameters),
        ("expectation", Expectation, expectations),
    )
    with write_in_transaction_without_triggers(connection):
        for table, record, rows in tables:
            delete_rows_cascading(connection, table, "run_id = ?", (run_id,))
            bulk.write_records(connection, table, record, run_id, rows)


def write_run(
    connection: sqlite3.Connection,
    sweep: SweepFacts,
    run: RunFacts,
    report: Report | None,
    layer_calls: Sequence[LayerCall] = (),
    *,
    allow_duplicate_artifact: bool = False,
    keep_failed_runs: bool = False,
) -> WrittenRun:
    """Write one run with its parameters and everything its report holds, or nothing at all.

    Errors while the report is read (it may be a stream) leave the database as it was. The same
    artifact is written once, unless ``allow_duplicate_artifact``. ``keep_failed_runs``: it belongs
    to the run just written (another rank of it), and takes no other's place. Raises OverflowError
    for a number beyond 64 bits, which SQLite does not hold and no profiler counts.
    """
    command = sweep.command and mask_command_line(sweep.command)
    sweep = replace(sweep, name=mask_secrets(sweep.name), command=command)
    run = replace(
        run, command=mask_arguments(run.command), reason=run.reason and mask_secrets(run.reason)
    )
    with ExitStack() as stack:
        if report is not None and isinstance(report.kernels, SqlKernels):
            path = report.kernels.path
            with suppress(sqlite3.Error):  # another text encoding: it is read row by row
                stack.enter_context(bulk.attach_read_only(connection, path, bulk.SCHEMA))
        stack.enter_context(disable_foreign_keys(connection))
        stack.enter_context(write_in_transaction_without_triggers(connection))
        cut = stack.enter_context(collect_truncated_text_lengths())
        if (
            run.artifact_sha256
            and not allow_duplicate_artifact
            and (existing := find_newest_run_by_artifact_hash(connection, run.artifact_sha256))
            is not None
        ):
            return WrittenRun(existing, new=False)
        sweep_id = find_or_insert_sweep(connection, sweep)
        if not keep_failed_runs:
            delete_failed_and_partial_runs(connection, sweep_id, run.profiler, run.batch_size)
        run_id = _insert_run_and_devices(connection, sweep_id, run, report)
        if report is None:
            return WrittenRun(run_id, new=True, reason=run.reason)
        rows = _write_report_tables(connection, run_id, report, layer_calls)
        if cut:
            texts = "1 text has" if len(cut) == 1 else f"{len(cut):,} texts have"
            lengths = f"up to {max(cut.values()):,} characters"
            reason = f"{texts} {lengths}; perfctl truncates each to {LONGEST:,}"
            gap = Gap("text", "not_available", reason)
            bulk.write_records(connection, "gap", Gap, run_id, [gap])
        counts = {name: rows[table] for name, table in COUNTED.items()}
        return WrittenRun(run_id, new=True, reason=run.reason, **counts)


def find_or_insert_sweep(connection: sqlite3.Connection, sweep: SweepFacts) -> int:
    """Its id; it is made where it is not there yet."""
    facts = {**asdict(sweep), "created_at": sweep.created_at or format_utc_now()}
    keys = {name: facts.pop(name) for name in ("name", "kind")}
    return find_or_insert_row(connection, "sweep", keys, facts)


def _insert_run_and_devices(
    connection: sqlite3.Connection, sweep_id: int, run: RunFacts, report: Report | None
) -> int:
    """Insert the row of a run, its parameters and its devices; return the run's id."""
    row: dict[str, Any] = {**asdict(run), "sweep_id": sweep_id, "ingested_at": format_utc_now()}
    del row["parameters"]
    row["command"] = json.dumps(run.command) if run.command else None
    devices: dict[tuple[Any, int], None] = {}
    if report is not None:
        row |= {
            "profiler_version": report.tool_version,
            "form": report.form,
            "clock": report.environment.get("clock"),
        }
        row |= {field: getattr(report, field) for field in OF_REPORT if row.get(field) is None}
        for device in report.devices:
            facts = mask_and_truncate_row(asdict(device))
            index = facts.pop("index")
            for name, (low, high) in schema.find_value_limits("device").items():
                value = facts[name]
                if not isinstance(value, (int, float)) or not low <= value <= high:
                    facts[name] = None
            devices[index, find_or_insert_row(connection, "device", facts)] = None
        row["device_id"] = next((number for _, number in devices), None)
    gaps = []
    started = row["started_at"]
    if started is not None and not starts_with_plausible_date(str(started)):
        row["started_at"] = None
        text = mask_secrets(str(started))[:40]
        reason = f"'{text}' is not a timestamp between 1970 and 2099"
        gaps.append(Gap("run.started_at", "unreadable", reason))
    run_id = insert_row(connection, "run", row)
    bulk.write_records(connection, "gap", Gap, run_id, gaps)
    batch = row["batch_size"]
    parameters = [parameter for parameter in run.parameters if parameter.name != "batch"]
    parameters += [make_parameter("batch", batch)] if batch is not None else []
    bulk.write_records(connection, "parameter", Parameter, run_id, parameters)
    into = "INSERT INTO run_device (run_id, device_index, device_id) VALUES (?, ?, ?)"
    connection.executemany(into, [(run_id, *device) for device in devices])
    return run_id


def find_or_insert_row(
    connection: sqlite3.Connection,
    table: str,
    key_values: Mapping[str, Any],
    extra_values: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Return the id of the row with ``key_values``; one that is not there yet is made, with the
    ``extra_values`` too."""
    same = " AND ".join(f"{column} IS :{column}" for column in key_values)
    row = connection.execute(f"SELECT id FROM main.{table} WHERE {same}", key_values).fetchone()
    return int(row[0]) if row else insert_row(connection, table, {**key_values, **extra_values})


def insert_row(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> int:
    """Insert one row and return its id."""
    values = {
        name: schema.convert_to_column_type(table, name, [value])[0]
        for name, value in mask_and_truncate_row(row).items()
    }
    marks = ", ".join(f":{name}" for name in values)
    cursor = connection.execute(
        f"INSERT INTO main.{table} ({', '.join(values)}) VALUES ({marks})", values
    )
    return int(cursor.lastrowid or 0)


def _write_report_tables(
    connection: sqlite3.Connection,
    run_id: int,
    report: Report,
    layer_calls: Sequence[LayerCall],
) -> dict[str, int]:
    """Write all rows of a report, without impossible values; table -> how many it got.

    Ranges, kernels and counters refer to each other by their order in the report: id = base
    + order.
    """
    known_facts = {
        key: str(value) for key, value in report.environment.items() if value is not None
    }
    facts = bulk.convert_rows_to_column_chunks(select_storable_environment(known_facts).items())
    bulk.insert_columns(connection, "environment", run_id, {"key": "?", "value": "?"}, facts)
    shapes = bulk.convert_rows_to_column_chunks(
        (
            *(getattr(op, name) for name in SHAPE_COLUMNS),
            json.dumps({name: getattr(op, name) for name in _SHAPE_RECORD}, sort_keys=True),
        )
        for op in report.ops
    )
    bulk.insert_columns(
        connection, "op_shape", run_id, dict.fromkeys((*SHAPE_COLUMNS, "record"), "?"), shapes
    )
    first = {table: bulk.find_next_id(connection, table) for table, _ in NUMBERED.values()}
    rows: dict[str, int] = {}
    are_checked = False
    for field, (table, record) in {**NUMBERED, **TABLES}.items():
        records = getattr(report, field)
        if field == "kernels":
            rows[table], are_checked = bulk.write_kernels(connection, run_id, records, first)
        else:
            rows[table] = bulk.write_records(connection, table, record, run_id, records, first)
    rows["layer_call"] = bulk.write_records(
        connection, "layer_call", LayerCall, run_id, layer_calls
    )
    new_rows = {
        table: f"id >= {first[table]}" if table in first else f"run_id = {run_id:d}"
        for table, count in rows.items()
        if count and not (table == "kernel_launch" and are_checked)
    }
    gaps = _remove_impossible_values(connection, {**new_rows, "run": f"id = {run_id:d}"})
    bulk.write_records(connection, "gap", Gap, run_id, gaps)
    return rows


def replace_derived_counts(
    connection: sqlite3.Connection,
    run_id: int,
    rows: Iterable[DerivedCount],
    family_by_name_id: Mapping[int, str | None] = MappingProxyType({}),
) -> int:
    """Write the derived counts of a stored run in place of those it had, and the families of its
    kernels by the id of their names; how many counts there are.

    All of it or none. Launches without a ``source`` become "derived". Raises ValueError for a
    launch that the run does not have. Launches, which may be millions, are not read for a run that
    has no derived counts.
    """
    launches = "SELECT id FROM kernel_launch WHERE run_id = ?"
    had_counts = "SELECT EXISTS (SELECT 1 FROM derived_rule WHERE run_id = ?)"
    with disable_foreign_keys(connection), write_in_transaction_without_triggers(connection):
        connection.executemany(
            "UPDATE kernel_name SET family = ? WHERE id = ?",
            [(family, name_id) for name_id, family in family_by_name_id.items()],
        )
        if connection.execute(had_counts, (run_id,)).fetchone()[0]:
            delete_rows_cascading(connection, "derived_rule", "run_id = ?", (run_id,))
            delete_rows_cascading(
                connection, "derived_value", f"kernel_id IN ({launches})", (run_id,)
            )
            connection.execute(
                "UPDATE kernel_launch SET source = NULL WHERE run_id = ? AND source = 'derived'",
                (run_id,),
            )
        remaining = iter(rows)
        head = list(islice(remaining, 1))
        if not head:
            return 0
        (base,) = connection.execute(
            "SELECT coalesce(min(id - launch), 0) FROM kernel_launch WHERE run_id = ?", (run_id,)
        ).fetchone()
        first = bulk.find_next_id(connection, "derived_value")
        written = bulk.write_records(
            connection,
            "derived_value",
            DerivedCount,
            run_id,
            chain(head, remaining),
            {"kernel_launch": base},
        )
        new = f"derived_value WHERE id >= {first}"
        if connection.execute(
            f"SELECT EXISTS (SELECT 1 FROM {new} AND kernel_id NOT IN ({launches}))", (run_id,)
        ).fetchone()[0]:
            raise ValueError(f"a derived count is of a launch that run {run_id} does not have")
        connection.execute(
            "UPDATE kernel_launch SET source = 'derived' WHERE run_id = ? AND source IS NULL"
            f" AND id IN (SELECT kernel_id FROM {new})",
            (run_id,),
        )
        gaps = _remove_impossible_values(connection, {"derived_value": f"id >= {first}"})
        bulk.write_records(connection, "gap", Gap, run_id, gaps)
    return written


def _remove_impossible_values(
    connection: sqlite3.Connection, conditions_by_table: Mapping[str, str]
) -> list[Gap]:
    """Replace values of a run that cannot be by NULL; where a column has to have a value, delete
    the row. Return the gaps that say so.

    ``conditions_by_table``: table -> SQL that finds its new rows, without its index where there are
    many.
    """
    gaps: list[Gap] = []
    for table, of_run in conditions_by_table.items():
        checked = dict(schema.find_value_limits(table))
        checked |= {
            name: (-MOST_COUNT, MOST_COUNT) for table_, name in schema.NO_NUMBER if table_ == table
        }
        if not checked:
            continue
        wrong = " OR ".join(
            f"{column} NOT BETWEEN {low!r} AND {high!r}" for column, (low, high) in checked.items()
        )
        seek = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {of_run} AND ({wrong}))"
        if not connection.execute(seek).fetchone()[0]:
            continue
        needed = {
            row[1] for row in connection.execute(f"PRAGMA main.table_info({table})") if row[3]
        }
        for column, (low, high) in checked.items():
            above = f"{column} > {high!r} AND {column} < 9e999 AND typeof({column}) <> 'text'"
            below = f"{column} NOT BETWEEN {low!r} AND {high!r}"
            too_low = _TOO_LOW.get(low, f"below {low:,} or not a number")
            for condition, reason in (
                (above, f"above the maximum of {high:,}"),
                (below, too_low),
            ):
                rows = f"{table} WHERE {of_run} AND {condition}"
                left_out = ""
                if column in needed:
                    if table == "range":
                        _clear_references_to_ranges(connection, rows)
                    count = connection.execute(f"DELETE FROM {rows}").rowcount
                    left_out = f", so {'that row is' if count == 1 else 'those rows are'} left out"
                else:
                    sql = f"UPDATE {table} SET {column} = NULL WHERE {of_run} AND {condition}"
                    count = connection.execute(sql).rowcount
                if count:
                    values = "1 value is" if count == 1 else f"{count} values are"
                    quantity = f"{_VIEWED.get(table, table)}.{column}"
                    gaps.append(Gap(quantity, "unreadable", f"{values} {reason}{left_out}"))
    return gaps


def _clear_references_to_ranges(connection: sqlite3.Connection, rows_sql: str) -> None:
    """Let nothing refer to these ranges any more."""
    if connection.execute(f"SELECT 1 FROM {rows_sql} LIMIT 1").fetchone():
        for table, column in (("range", "parent"), ("kernel_launch", "range_id")):
            connection.execute(
                f"UPDATE {table} SET {column} = NULL WHERE {column} IN (SELECT id FROM {rows_sql})"
            )


@contextmanager
def disable_foreign_keys(connection: sqlite3.Connection) -> Iterator[None]:
    """Inside, foreign keys are neither checked nor followed. SQLite heeds it only outside of a
    transaction.

    A run's rows refer to rows that the same transaction makes, and a million lookups take an eighth
    of the time that a large report takes. ``delete_rows_cascading`` finds what goes with a deleted
    row."""
    connection.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        connection.execute("PRAGMA foreign_keys = ON")


def delete_failed_and_partial_runs(
    connection: sqlite3.Connection, sweep_id: object, profiler: object, batch_size: object
) -> None:
    """Delete the failed or partial attempts at a batch size that a new one in the same sweep
    replaces."""
    failed = "sweep_id = ? AND profiler = ? AND batch_size = ? AND status <> 'ok'"
    delete_rows_cascading(connection, "run", failed, (sweep_id, profiler, batch_size))


def delete_rows_cascading(
    connection: sqlite3.Connection, table: str, condition: str, values: Sequence[object]
) -> None:
    """Delete the rows of ``table`` and, before them, those of other tables that are theirs (ON
    DELETE CASCADE)."""
    rows = f"main.{quote_sql_name(table)} WHERE {condition}"
    if connection.execute(f"SELECT 1 FROM {rows} LIMIT 1", values).fetchone() is None:
        return
    for child, column, key in sorted(_find_cascading_tables(connection, table)):
        delete_rows_cascading(
            connection,
            child,
            f"{quote_sql_name(column)} IN (SELECT {quote_sql_name(key)} FROM {rows})",
            values,
        )
    connection.execute(f"DELETE FROM {rows}", values)


def _find_cascading_tables(connection: sqlite3.Connection, table: str) -> set[tuple[str, str, str]]:
    """Return (table, column, key it refers to) of what goes with this table's rows: perfctl's own
    tables, and those of the database's user that say ON DELETE CASCADE."""
    rows = connection.execute(
        'SELECT t.name, k."from", coalesce(k."to", \'id\') FROM main.sqlite_master AS t '
        "JOIN pragma_foreign_key_list(t.name) AS k "
        "WHERE t.type = 'table' AND k.on_delete = 'CASCADE' AND lower(k.\"table\") = lower(?)",
        (table,),
    )
    return set(rows)


def format_utc_now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def write_in_transaction_without_triggers(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or none of it; waits for other writers before it begins. Triggers of the database's
    user do not fire: the file has none inside."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        triggers = connection.execute(
            "SELECT name, tbl_name, sql FROM main.sqlite_master WHERE type = 'trigger'"
            " ORDER BY rowid"
        ).fetchall()
        for name, _, _ in triggers:
            connection.execute(f"DROP TRIGGER main.{quote_sql_name(name)}")
        before = connection.total_changes
        yield
        silent = {
            name: table
            for name, table, _ in triggers
            if table.lower() in schema.describe_store_tables()
        }
        if silent and connection.total_changes != before:
            _warn_and_refresh_triggered_tables(connection, silent)
        for _, _, sql in triggers:
            connection.execute(sql)


def _warn_and_refresh_triggered_tables(
    connection: sqlite3.Connection, triggers: Mapping[str, str]
) -> None:
    """Warn (StoreNote) of triggers (name -> table) that would have fired, and bring up to date what
    sqlite-utils keeps by some of them.

    What SQLite cannot rebuild (a tokenizer that is not here) stays as it is.
    """
    from sqlite_utils import Database  # 0.7 s, for a few stores only

    store = Database(connection, recursive_triggers=False, execute_plugins=False)
    refreshed = []
    for table in map(store.table, dict.fromkeys(triggers.values())):
        if index := table.detect_fts():
            with suppress(sqlite3.Error):
                table.rebuild_fts()
                refreshed.append(index)
    counted = {
        table
        for name, table in triggers.items()
        if name.lower() == f"{table}_counts_insert".lower()
    }
    if counted and "_counts" in store.table_names():
        rows = [{"table": table, "count": store.table(table).count} for table in sorted(counted)]
        with suppress(sqlite3.Error):
            store.table("_counts").upsert_all(rows, pk="table")
            refreshed.append("_counts")
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    names = ", ".join(f"{name} on {table}" for name, table in triggers.items())
    refreshed_text = f"; updated instead: {', '.join(refreshed)}" if refreshed else ""
    warnings.warn(
        f"{path}: perfctl disables triggers while it writes ({names}){refreshed_text}",
        StoreNote,
        stacklevel=1,
    )
