"""Write the runs of a store as partitioned Parquet files::

    DIR/run/part-0.parquet                                   one row a run; so with sweep and device
    DIR/kernel/sweep=3/profiler=nsys/part-0.parquet          so with every other table
    DIR/columns/part-0.parquet                               meaning, unit and NULL of every column

A later export adds the runs that are new as part-1, part-2, ...; no file is written twice. The
runs' own file is the last that comes into place: an export that was killed left none, and the next
one takes its number and puts its files right.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.store import database, query

if TYPE_CHECKING:
    from perfctl.orchestrator.report.files.tables import Table

WHOLE = ("run", "sweep", "device")
"""Tables without partitions: small, and asked for as a whole. ``run`` has a column ``profiler`` of
its own."""
_NEW = ".perfctl-new"
_IDENTITY = ("id", "artifact_sha256", "started_at", "profiler")
"""Columns by which a run is known to be the same."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """What an export added."""

    JSON_NAMES: ClassVar = {"folder": "path"}

    folder: Path
    runs: int
    """Runs that are new in it."""
    files: int
    rows: int


def export_dataset(folder: Path, store: Path = DEFAULT) -> Dataset:
    """Write the runs of ``store`` that ``folder`` does not have; with memory for a few ten
    thousand rows.

    Raises UsageError for a folder that is none of perfctl's, or that has runs which the store no
    longer has; ToolMissing without pyarrow; StoreError when there is no store.
    """
    from perfctl.orchestrator.report.files import tables as files_tables

    files_tables.need("parquet")
    if folder.exists() and (
        not folder.is_dir() or (any(folder.iterdir()) and not (folder / "run").is_dir())
    ):
        raise UsageError(
            f"`dataset`: {folder} is there, and no dataset of perfctl's", "Name a new folder"
        )
    with database.reading(store) as connection, _only_one(folder):
        number, known = _known(folder)
        rows = connection.execute(
            f"SELECT sweep_id, {', '.join(_IDENTITY)} FROM run ORDER BY sweep_id, profiler, id"
        )
        runs = rows.fetchall()
        if gone := known - {tuple(row[1:]) for row in runs}:
            problem = (
                f"`dataset`: run {min(gone)[0]} in {folder} is not the run {min(gone)[0]} of "
                f"{store}"
            )
            raise UsageError(
                problem, "Runs were deleted, or this is another store: export into a new folder"
            )
        new = [row for row in runs if tuple(row[1:]) not in known]
        if not new:
            return Dataset(folder, 0, 0, 0)
        return _write(connection, folder, number, new)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Two exports into one folder would give the same number to different files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise PerfctlError(
            f"{folder}: cannot be written ({error.strerror})", "Choose another folder"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise PerfctlError(
            f"{folder}: another export is writing to it", "Wait until it has ended"
        ) from error
    finally:
        os.close(handle)


def _known(folder: Path) -> tuple[int, set[tuple[Any, ...]]]:
    """(number of the next part, what the runs in the folder are)"""
    parts = sorted((folder / "run").glob("part-*.parquet"))
    return len(parts), set(chain.from_iterable(_column_values(part, _IDENTITY) for part in parts))


def _column_values(file: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    import pyarrow.parquet as parquet

    try:
        table = parquet.ParquetFile(file).read(columns=list(columns))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"`dataset`: {file} cannot be read ({error})", "Export into a new folder"
        ) from error
    return zip(*(table.column(column).to_pylist() for column in columns), strict=True)


def _write(
    connection: sqlite3.Connection, folder: Path, number: int, runs: Sequence[tuple[Any, ...]]
) -> Dataset:
    """``runs``: sweep, then ``_IDENTITY``; ordered by sweep and profiler."""
    from perfctl.orchestrator.report.files import tables as files_tables

    partial = folder / _NEW
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    for left in folder.glob(f"*/**/part-{number}.parquet"):
        left.unlink()
    name = f"part-{number}.parquet"
    written = rows = 0
    empty = [_table(table, ()) for table in query.table_names()]
    try:
        for table in query.table_names():
            if table in WHOLE:
                parts: Iterable[tuple[str, Iterable[Sequence[Any]]]] = [
                    (table, _of_all(connection, folder, table, runs))
                ]
            else:
                parts = _partitions(connection, table, runs)
            for place, found in parts:
                first = next(found := iter(found), None)
                if first is None:
                    continue
                target = partial / place / name
                target.parent.mkdir(parents=True)
                rows += files_tables.write_parquet(target, _table(table, chain([first], found)))
                written += 1
        (partial / "columns").mkdir()
        files_tables.write_parquet(
            partial / "columns" / "part-0.parquet", files_tables.described(empty)
        )
        made = sorted(partial.rglob("*.parquet"), key=lambda file: file.parent == partial / "run")
        for file in made:
            target = folder / file.relative_to(partial)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
    except OSError as error:
        raise PerfctlError(
            f"{folder}: cannot be written ({error.strerror})", "Check free disk space"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Dataset(folder, len(runs), written, rows)


def _partitions(
    connection: sqlite3.Connection, table: str, runs: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[str, Iterator[Sequence[Any]]]]:
    """(folder, rows) of each sweep and profiler; rows run by run, so that SQLite sorts nothing."""
    for (sweep, profiler), some in groupby(runs, key=lambda row: (row[0], row[-1])):
        place = f"{table}/sweep={sweep}/profiler={quote(str(profiler), safe=' ')}"
        yield (
            place,
            chain.from_iterable(query.rows_of_run(connection, table, run[1]) for run in some),
        )


def _of_all(
    connection: sqlite3.Connection, folder: Path, table: str, runs: Sequence[tuple[Any, ...]]
) -> Iterator[Sequence[Any]]:
    """Rows of the new runs; of sweeps and devices, those that no part has."""
    have: set[Any] = set()
    for part in (folder / table).glob("part-*.parquet"):
        have |= {number for (number,) in _column_values(part, ("id",))}
    wanted = {run[1] for run in runs} if table == "run" else None
    for row in query.table_rows(connection, table, None):  # the id is the first column
        if row[0] not in have and (wanted is None or row[0] in wanted):
            yield row


def _table(name: str, rows: Iterable[Sequence[Any]]) -> Table:
    from perfctl.orchestrator.report.files.tables import Column, Table

    columns = (
        Column(one.name, kind, one.meaning, one.unit, one.null)
        for one, kind in query.columns_of(name)
    )
    return Table(name, tuple(columns), rows)
