"""Write tables of a store as files for other programs, or all its runs as a dataset: partitioned
Parquet files, for what is larger than one file or one memory::

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
from dataclasses import KW_ONLY, dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import quote

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Option,
    Runs,
    Store,
    Sweep,
    api,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import check_free, replacing
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, query, read
from perfctl.orchestrator.stored_runs import each_study, outlines
from perfctl.version import __version__

if TYPE_CHECKING:
    from perfctl.orchestrator.report.files.tables import Table
    from perfctl.orchestrator.report.ledger.rows import LedgerColumns
    from perfctl.records.run import Run

FORMATS = ("csv", "parquet", "json", "xlsx")
LEDGER = "ledger"
WHOLE = ("run", "sweep", "device")
"""Tables without partitions: small, and asked for as a whole. ``run`` has a column ``profiler`` of
its own."""
_NEW = ".perfctl-new"
_IDENTITY = ("id", "artifact_sha256", "started_at", "profiler")
"""Columns by which a run is known to be the same."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Tables that were written."""

    path: Path
    """A file, or a folder with a file for each table."""
    format: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dataset:
    """What an export added."""

    JSON_NAMES: ClassVar = {"folder": "path"}

    folder: Path
    runs: int
    """Runs that are new in it."""
    files: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Write tables of the results database as CSV, Parquet, JSON or Excel; the table 'columns' has
    units and meanings.

    NULL (a missing value) stays empty, or null. In CSV, perfctl puts an apostrophe before text that
    a spreadsheet would run as a formula.

    Raises UsageError for a request that makes no sense, ToolMissing if the library of a format is
    not installed, StoreError if there is no store.
    """

    tables: Annotated[
        Sequence[str],
        Option(
            "Table to export (repeatable). Default: ledger.", names=("--table",), metavar="NAME"
        ),
    ] = ()
    _: KW_ONLY
    format: Annotated[
        str | None,
        Option(
            "csv, parquet, json or xlsx. Default: from the ending of --out, otherwise csv.",
            names=("--format", "-f"),
        ),
    ] = None
    all_tables: Annotated[bool, Option("Export the ledger and every table.", names=("--all",))] = (
        False
    )
    out: Annotated[
        Path | None,
        Option(
            "Output file, or folder for several tables as csv or parquet. Default: "
            "perfctl-export*.",
            group="Output",
            names=("--out", "-o"),
        ),
    ] = None
    dataset: Annotated[
        Path | None,
        Option(
            "Folder of Parquet files, one folder per table, by sweep and profiler; later calls "
            "add new runs."
        ),
    ] = None
    sweep: Sweep = None
    runs: Runs = ()
    raw: Annotated[
        bool, Option("Do not escape text that a spreadsheet could run as a formula (CSV).")
    ] = False
    force: Force = False
    store: Store = DEFAULT_STORE


def run(asked: ExportOptions, events: Events) -> Exported | Dataset:
    """Write the tables."""
    if asked.dataset is None:
        if asked.all_tables and asked.tables:
            raise UsageError("`all_tables` and `tables` exclude each other", "Choose one")
        return _tables(asked)
    others = ("format", "tables", "all_tables", "out", "sweep", "runs", "raw")
    if any(getattr(asked, name) for name in others):
        raise UsageError("`dataset` exports every table of every run", "Omit the other options")
    return export_dataset(asked.dataset, asked.store)


def view(written: Exported | Dataset) -> View:
    """What was written."""
    if isinstance(written, Exported):
        return View(f"Wrote {written.path} ({', '.join(written.tables)})")
    if not written.runs:
        return View(f"{written.folder} already has every run of the store")
    return View(
        f"Added {written.runs:,} runs to {written.folder}: {written.rows:,} rows in "
        f"{written.files:,} files"
    )


def _tables(asked: ExportOptions) -> Exported:
    from perfctl.orchestrator.report.files import tables as files_tables

    form = _form(asked.format, asked.out)
    known = (LEDGER, *query.table_names())
    for name in asked.tables:
        if name not in known:
            raise UsageError(f"invalid value '{name}' for `tables`", f"Choose {', '.join(known)}")
    wanted = known if asked.all_tables else tuple(dict.fromkeys(asked.tables or (LEDGER,)))
    out = asked.out
    is_file = out is not None and out.suffix.lower() == f".{form}"
    single = form in ("json", "xlsx")
    alone = not single and len(wanted) == 1 and is_file
    folder = not single and not alone
    target = out or Path("perfctl-export" + (f".{form}" if single else ""))
    if folder and is_file:
        problem = f"`out` {out}: several {form} tables need a folder"
        raise UsageError(problem, "Set a folder, or a file that ends with .xlsx or .json")
    check_free(target, force=asked.force, folder=folder)
    files_tables.need(form)
    with database.reading(asked.store) as connection:
        chosen = _runs(connection, asked.sweep, asked.runs)
        for name in wanted if form == "xlsx" else ():
            rows = query.count_rows(connection, name, chosen) if name != LEDGER else 0
            if rows >= files_tables.SHEET_ROWS:
                problem = (
                    f"{name} has {rows:,} rows, but an Excel sheet holds at most "
                    f"{files_tables.SHEET_ROWS - 1:,}"
                )
                raise UsageError(problem, "Use `format` parquet or csv, or fewer `runs`")
    with database.reading(asked.store) as connection:
        found = [
            files_tables.ledger_table(values_of_ledger(asked.store, chosen))
            if name == LEDGER
            else _store_table(name, query.table_rows(connection, name, chosen))
            for name in wanted
        ]
        with replacing(target, force=asked.force, folder=folder) as partial:
            _write(partial, form, found, alone=alone, raw=asked.raw)
    return Exported(target, form, wanted)


def _form(asked: str | None, out: Path | None) -> str:
    ending = out.suffix.removeprefix(".").lower() if out is not None else ""
    named = ending if ending in FORMATS else None
    if asked is not None and asked not in FORMATS:
        raise UsageError(f"invalid value '{asked}' for `format`", f"Choose {', '.join(FORMATS)}")
    if asked and named and asked != named:
        raise UsageError(
            f"`format` {asked}, but `out` {out} ends like {named}", "Omit one of the two"
        )
    return asked or named or "csv"


def _runs(
    connection: sqlite3.Connection, sweep: int | None, asked: Sequence[int]
) -> list[int] | None:
    """Numbers of the runs asked for; None for all."""
    if sweep is not None and asked:
        raise UsageError("`sweep` and `runs` exclude each other", "Choose one")
    if sweep is None and not asked:
        return None
    known = read.run_ids(connection, sweep=sweep)
    if not known:
        remedy = "List the sweeps with 'perfctl query \"select * from sweep\"'"
        raise UsageError(f"`sweep`: sweep {sweep} has no runs", remedy)
    for number in asked:
        if number not in known:
            raise UsageError(f"run {number} not found", "Run 'perfctl runs' to list the runs")
    return list(dict.fromkeys(asked)) if asked else known


def _store_table(name: str, rows: Iterable[Sequence[Any]]) -> Table:
    from perfctl.orchestrator.report.files.tables import Column, Table

    columns = (
        Column(column.name, kind, column.meaning, column.unit, column.null)
        for column, kind in query.columns_of(name)
    )
    return Table(name, tuple(columns), rows)


def _write(path: Path, form: str, found: list[Table], *, alone: bool, raw: bool) -> None:
    from perfctl.orchestrator.report.files import tables as files_tables

    whole = [*found, files_tables.described(found)]
    if form == "xlsx":
        files_tables.write_xlsx(path, whole)
    elif form == "json":
        about = {
            "written_by": f"perfctl {__version__}",
            "flops": "1 multiply-add = 2 FLOPs",
            "null": "not known",
        }
        files_tables.write_json(path, whole, about)
    else:
        for table in found if alone else whole:
            file = path if alone else path / f"{table.name}.{form}"
            if form == "csv":
                files_tables.write_csv(file, table, raw=raw)
            else:
                files_tables.write_parquet(file, table)


def values_of_ledger(store: Path, ids: Iterable[int] | None) -> Iterator[list[Any]]:
    """Yield the values of the ledger's rows for these runs of a store, or for the newest of each
    kind, study by study."""
    with database.reading(store) as connection:
        chosen = read.run_ids(connection, latest_of_each=True) if ids is None else ids
        known = outlines(connection, chosen)

    def work(runs: Sequence[Run]) -> list[list[Any]]:
        return [list(row.values()) for row in rows_of_runs(runs)]

    yield from chain.from_iterable(each_study(store, known, work, plain=True))


def rows_of_runs(runs: Sequence[Run]) -> list[LedgerColumns]:
    """Return the rows of ``perfctl ledger --json``, which have the whole names of kernels."""
    from perfctl.orchestrator.ledger.analysis import analyse
    from perfctl.orchestrator.ledger.prepared import studies
    from perfctl.orchestrator.report.ledger.rows import ledger_rows

    return list(ledger_rows([analyse(study, names={}) for study in studies(runs)]))


def export_dataset(folder: Path, store: Path = DEFAULT_STORE) -> Dataset:
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
            f"`dataset`: {folder} exists and is not a perfctl dataset", "Choose a new folder"
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
                problem,
                "Runs were deleted, or the dataset belongs to another database: export into a "
                "new folder",
            )
        new = [row for row in runs if tuple(row[1:]) not in known]
        if not new:
            return Dataset(folder, 0, 0, 0)
        return _write_parts(connection, folder, number, new)


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
            f"{folder}: another export is writing to this folder",
            "Wait until the other export has ended",
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


def _write_parts(
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
    empty = [_store_table(table, ()) for table in query.table_names()]
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
                rows += files_tables.write_parquet(
                    target, _store_table(table, chain([first], found))
                )
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


COMMAND = Command(ExportOptions, run, view, has_document=False)
export = api(ExportOptions, run)
