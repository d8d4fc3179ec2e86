"""Write tables of a store as files for other programs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.actions.dataset.write import Dataset
from perfctl.orchestrator.actions.tables import values_of_ledger
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
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import check_free, replacing
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, query, read
from perfctl.version import __version__

if TYPE_CHECKING:
    from perfctl.orchestrator.report.files.tables import Table

FORMATS = ("csv", "parquet", "json", "xlsx")
LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class Exported:
    """Tables that were written."""

    path: Path
    """A file, or a folder with a file for each table."""
    format: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Write tables of the store as CSV, Parquet, JSON or Excel, with a table 'columns' that says
    unit and meaning.

    NULL (not known) stays empty, or null. In CSV, text that a spreadsheet would run as a formula
    gets an apostrophe.

    Raises UsageError for a request that makes no sense, ToolMissing if the library of a format is
    not installed, StoreError if there is no store.
    """

    tables: Annotated[
        Sequence[str],
        Option("This table (repeatable). Default: ledger.", names=("--table",), metavar="NAME"),
    ] = ()
    _: KW_ONLY
    format: Annotated[
        str | None,
        Option(
            "csv, parquet, json or xlsx. Default: what --out ends with, else csv.",
            names=("--format", "-f"),
        ),
    ] = None
    all_tables: Annotated[bool, Option("The ledger and every table.", names=("--all",))] = False
    out: Annotated[
        Path | None,
        Option(
            "File, or folder for several tables as csv or parquet. Default: perfctl-export*.",
            group="Output",
            names=("--out", "-o"),
        ),
    ] = None
    dataset: Annotated[
        Path | None,
        Option(
            "Folder of Parquet files, a folder a table, by sweep and profiler; later calls add new "
            "runs."
        ),
    ] = None
    sweep: Sweep = None
    runs: Runs = ()
    raw: Annotated[bool, Option("CSV: leave text alone that a spreadsheet would run.")] = False
    force: Force = False
    store: Store = DEFAULT_STORE


def run(asked: ExportOptions, events: Events) -> Exported | Dataset:
    """Write the tables."""
    if asked.dataset is None:
        if asked.all_tables and asked.tables:
            raise UsageError("`all_tables` and `tables` together", "Choose one")
        return _tables(asked)
    from perfctl.orchestrator.actions.dataset.write import export_dataset

    others = ("format", "tables", "all_tables", "out", "sweep", "runs", "raw")
    if any(getattr(asked, name) for name in others):
        raise UsageError("`dataset` takes every table of every run", "Leave the other options out")
    return export_dataset(asked.dataset, asked.store)


def view(written: Exported | Dataset) -> View:
    """What was written."""
    if isinstance(written, Exported):
        return View(f"Wrote {written.path} ({', '.join(written.tables)})")
    if not written.runs:
        return View(f"{written.folder} has every run of the store already")
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
            raise UsageError(
                f"`tables`: there is no table '{name}'", f"There are {', '.join(known)}"
            )
    wanted = known if asked.all_tables else tuple(dict.fromkeys(asked.tables or (LEDGER,)))
    out = asked.out
    is_file = out is not None and out.suffix.lower() == f".{form}"
    single = form in ("json", "xlsx")
    alone = not single and len(wanted) == 1 and is_file
    folder = not single and not alone
    target = out or Path("perfctl-export" + (f".{form}" if single else ""))
    if folder and is_file:
        problem = f"`out` {out}: several tables as {form} go into a folder"
        raise UsageError(problem, "Name a folder, or a file .xlsx or .json")
    check_free(target, force=asked.force, folder=folder)
    files_tables.need(form)
    with database.reading(asked.store) as connection:
        chosen = _runs(connection, asked.sweep, asked.runs)
        for name in wanted if form == "xlsx" else ():
            rows = query.count_rows(connection, name, chosen) if name != LEDGER else 0
            if rows >= files_tables.SHEET_ROWS:
                problem = (
                    f"{name} has {rows:,} rows, an Excel sheet holds "
                    f"{files_tables.SHEET_ROWS - 1:,}"
                )
                raise UsageError(problem, "Use `format` parquet or csv, or fewer `runs`")
    with database.reading(asked.store) as connection:
        found = [
            files_tables.ledger_table(values_of_ledger(asked.store, chosen))
            if name == LEDGER
            else _table(connection, name, chosen)
            for name in wanted
        ]
        with replacing(target, force=asked.force, folder=folder) as partial:
            _write(partial, form, found, alone=alone, raw=asked.raw)
    return Exported(target, form, wanted)


def _form(asked: str | None, out: Path | None) -> str:
    ending = out.suffix.removeprefix(".").lower() if out is not None else ""
    named = ending if ending in FORMATS else None
    if asked is not None and asked not in FORMATS:
        raise UsageError(f"`format`: '{asked}' is not known", f"Use {', '.join(FORMATS)}")
    if asked and named and asked != named:
        raise UsageError(
            f"`format` {asked}, and `out` {out} is a name for {named}", "Leave one of the two out"
        )
    return asked or named or "csv"


def _runs(
    connection: sqlite3.Connection, sweep: int | None, asked: Sequence[int]
) -> list[int] | None:
    """Numbers of the runs asked for; None for all."""
    if sweep is not None and asked:
        raise UsageError("`sweep` and `runs` together", "Choose one")
    if sweep is None and not asked:
        return None
    known = read.run_ids(connection, sweep=sweep)
    if not known:
        remedy = "See them with 'perfctl query \"select * from sweep\"'"
        raise UsageError(f"`sweep`: no run is of sweep {sweep}", remedy)
    for number in asked:
        if number not in known:
            raise UsageError(
                f"there is no run {number} in this store", "See which there are with 'perfctl runs'"
            )
    return list(dict.fromkeys(asked)) if asked else known


def _table(connection: sqlite3.Connection, name: str, runs: list[int] | None) -> Table:
    from perfctl.orchestrator.report.files.tables import Column, Table

    columns = (
        Column(one.name, kind, one.meaning, one.unit, one.null)
        for one, kind in query.columns_of(name)
    )
    return Table(name, tuple(columns), query.table_rows(connection, name, runs))


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


COMMAND = Command(ExportOptions, run, view, has_document=False)
export = api(ExportOptions, run)
