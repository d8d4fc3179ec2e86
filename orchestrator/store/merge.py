"""Runs from one database into another, row by row as they are, inside SQLite: ids are shifted,
nothing passes through Python."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from functools import cache

from perfctl.orchestrator.store import bulk, schema
from perfctl.orchestrator.store.write import (
    SweepFacts,
    delete_failed_and_partial_runs,
    disable_foreign_keys,
    find_newest_run_by_artifact_hash,
    find_or_insert_row,
    find_or_insert_sweep,
    insert_row,
    write_in_transaction_without_triggers,
)

PART = "part"
"""Schema under which ``bulk.attach_read_only`` has the database that runs are copied from."""
_BY_ROW = ("store_info", "sweep", "device", "run", "run_device")
"""Tables that are not copied as they are."""


def list_attached_run_ids(connection: sqlite3.Connection) -> list[int]:
    """Runs of the attached database, in its order."""
    return [number for (number,) in connection.execute(f"SELECT id FROM {PART}.run ORDER BY id")]


def copy_run_from_attached_database(
    connection: sqlite3.Connection,
    run_id: int,
    sweep: SweepFacts,
    *,
    allow_duplicate_artifact: bool = False,
    keep_failed_runs: bool = False,
    map_artifact_path: Callable[[str], str] | None = None,
) -> tuple[int, bool]:
    """Copy one run of the attached database with all that is its own, or nothing; (its number here,
    whether it is new).

    The same artifact is there once, unless ``allow_duplicate_artifact``. ``keep_failed_runs``: it
    takes no other's place, as in ``write.write_run``. ``map_artifact_path`` gives the path of its
    report as this database says it; with it, a run without a report is there once, too.
    """
    with disable_foreign_keys(connection), write_in_transaction_without_triggers(connection):
        run = _read_attached_row(connection, "run", run_id)
        digest = run["artifact_sha256"]
        if (
            digest
            and not allow_duplicate_artifact
            and (existing := find_newest_run_by_artifact_hash(connection, str(digest))) is not None
        ):
            return existing, False
        run["sweep_id"] = find_or_insert_sweep(connection, sweep)
        if map_artifact_path is not None:
            if (
                digest is None
                and (existing := _find_run_with_equal_facts(connection, run)) is not None
            ):
                return existing, False
            run["artifact"] = map_artifact_path(str(run["artifact"])) if run["artifact"] else None
        if not keep_failed_runs:
            delete_failed_and_partial_runs(
                connection, run["sweep_id"], run["profiler"], run["batch_size"]
            )
        devices = connection.execute(
            f"SELECT device_index, device_id FROM {PART}.run_device WHERE run_id = ?"
            " ORDER BY rowid",
            (run_id,),
        ).fetchall()
        numbers = {
            old: find_or_insert_row(
                connection, "device", _read_attached_row(connection, "device", old)
            )
            for old in {run["device_id"], *(old for _, old in devices)} - {None}
        }
        run["device_id"] = numbers.get(run["device_id"])
        new = insert_row(connection, "run", run)
        into = "INSERT INTO main.run_device (run_id, device_index, device_id) VALUES (?, ?, ?)"
        connection.executemany(into, [(new, index, numbers[old]) for index, old in devices])
        _copy_run_tables(connection, run_id, new)
        return new, True


def _find_run_with_equal_facts(
    connection: sqlite3.Connection, run: Mapping[str, object]
) -> int | None:
    """A run of the same sweep that says the same of itself."""
    facts = (
        "sweep_id",
        "profiler",
        "workload",
        "variant",
        "batch_size",
        "rank",
        "started_at",
        "status",
        "reason",
    )
    same = " AND ".join(f"{column} IS :{column}" for column in (*facts, "ingested_at"))
    row = connection.execute(f"SELECT min(id) FROM main.run WHERE {same}", dict(run)).fetchone()
    return None if row[0] is None else int(row[0])


def _read_attached_row(
    connection: sqlite3.Connection, table: str, row_id: int
) -> dict[str, object]:
    """Return a row of the attached database, without its number."""
    names = [name for name in schema.read_column_types(table) if name != "id"]
    row = connection.execute(
        f"SELECT {schema.format_column_list(names)} FROM {PART}.{table} WHERE id = ?", (row_id,)
    ).fetchone()
    return dict(zip(names, row, strict=True))


def _copy_run_tables(connection: sqlite3.Connection, old_run_id: int, new_run_id: int) -> None:
    """Copy every table of a run; each table's new ids follow its last, in the order of the old."""
    numbers: dict[str, int] = {"old": old_run_id, "run": new_run_id - old_run_id}
    """What is added to the ids of each table; bound by name, so that SQLite prepares each
    statement once for many runs."""
    for table in _list_tables_in_copy_order():
        names = tuple(schema.read_column_types(table))
        condition = "run_id = :old"
        if "run_id" not in names:
            condition = f"kernel_id IN (SELECT id FROM {PART}.kernel_launch WHERE {condition})"
        rows = f"{PART}.{table} WHERE {condition}"
        if "id" in names:
            (least,) = connection.execute(f"SELECT min(id) FROM {rows}", numbers).fetchone()
            if least is None:
                continue
            numbers[table] = bulk.find_next_id(connection, table) - least
        refers = {"id": table, "run_id": "run", **bulk.REFERENCES}
        values = (
            f"{name} + :{refers[name]}"
            if refers.get(name) in numbers
            else schema.format_column_list([name])
            for name in names
        )
        into = f"INSERT INTO main.{table} ({schema.format_column_list(names)})"
        connection.execute(f"{into} SELECT {', '.join(values)} FROM {rows} ORDER BY rowid", numbers)


@cache
def _list_tables_in_copy_order() -> list[str]:
    """What is copied, those first that others refer to."""
    names = [name for name in schema.describe_store_tables() if name not in _BY_ROW]
    return sorted(
        names,
        key=lambda name: (name in bulk.SHARED, name != "kernel_launch", name),
    )
