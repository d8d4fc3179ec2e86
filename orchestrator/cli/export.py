"""perfctl export"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl import __version__
from perfctl.orchestrator.cli import console, options, output
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.errors import UsageError

if TYPE_CHECKING:
    import sqlite3

    from perfctl.orchestrator.report.table_files import Table

FORMATS = ("csv", "parquet", "json", "xlsx")
LEDGER = "ledger"


def export(
    form: Annotated[
        str | None,
        typer.Option("--format", "-f", help="csv, parquet, json or xlsx. Default: what --out ends with, else csv."),
    ] = None,
    table: Annotated[list[str] | None, typer.Option(help="This table (repeatable). Default: ledger.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="The ledger and every table.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="File, or folder for several tables as csv or parquet. Default: perfctl-export*."),
    ] = None,
    sweep: Annotated[int | None, typer.Option(help="Only this sweep.")] = None,
    run: Annotated[list[int] | None, typer.Option(help="Only these runs (repeatable).")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="CSV: leave text alone that a spreadsheet would run.")] = False,
    force: output.Force = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Write tables of the store as CSV, Parquet, JSON or Excel, with a table 'columns' that says unit and meaning.

    NULL (not known) stays empty, or null. In CSV, text that a spreadsheet would run as a formula gets an apostrophe.
    """
    from perfctl.orchestrator.report import table_files
    from perfctl.orchestrator.store import database, query, read

    form = _form(form, out)
    wanted = _wanted(table, everything, (LEDGER, *query.table_names()))
    is_file = out is not None and out.suffix.lower() == f".{form}"
    alone = form in ("csv", "parquet") and len(wanted) == 1 and is_file
    target = out or Path("perfctl-export" + (f".{form}" if form in ("json", "xlsx") else ""))
    folder = form in ("csv", "parquet") and not alone
    if folder and is_file:
        raise UsageError(
            f"--out {out}: several tables as {form} go into a folder", "Name one, or a file .xlsx or .json"
        )
    output.check_free(target, force=force, folder=folder)
    table_files.need(form)
    with database.reading(store or DEFAULT) as connection:
        runs = _runs(connection, sweep, run)
        ledger_runs = runs if runs is not None else read.run_ids(connection, latest_of_each=True)
        if form == "xlsx":
            _check_sheets(connection, wanted, runs)
        found = [_table(connection, name, runs, ledger_runs) for name in wanted]
        with output.replacing(target, force=force, folder=folder) as partial:
            _write(partial, form, found, alone=alone, raw=raw)
    if as_json:
        console.as_json({"path": str(target), "format": form, "tables": list(wanted)})
    else:
        console.result(f"Wrote {target} ({', '.join(wanted)})")


def _form(said: str | None, out: Path | None) -> str:
    """The format that was asked for, or that the name of the file tells."""
    ending = out.suffix.removeprefix(".").lower() if out is not None else ""
    told = ending if ending in FORMATS else None
    if said is not None and said not in FORMATS:
        raise UsageError(f"--format: '{said}' is not known", f"Say {', '.join(FORMATS)}")
    if said and told and said != told:
        raise UsageError(f"--format {said}, and --out {out} is a name for {told}", "Leave one of the two out")
    return said or told or "csv"


def _wanted(asked: Sequence[str] | None, everything: bool, known: Sequence[str]) -> tuple[str, ...]:
    if everything and asked:
        raise UsageError("--all and --table together", "Choose one")
    for name in asked or ():
        if name not in known:
            raise UsageError(f"--table: there is no table '{name}'", f"There are {', '.join(known)}")
    return tuple(known) if everything else tuple(dict.fromkeys(asked or (LEDGER,)))


def _runs(connection: sqlite3.Connection, sweep: int | None, asked: list[int] | None) -> list[int] | None:
    """Ids of the runs asked for; None for all."""
    from perfctl.orchestrator.store import read

    if sweep is not None and asked:
        raise UsageError("--sweep and --run together", "Choose one")
    if sweep is None and not asked:
        return None
    known = read.run_ids(connection, sweep=sweep)
    if not known:
        raise UsageError(
            f"--sweep: no run is of sweep {sweep}", "See them with 'perfctl query \"select * from sweep\"'"
        )
    for number in asked or ():
        if number not in known:
            raise UsageError(f"there is no run {number} in this store", "See which there are with 'perfctl runs'")
    return list(dict.fromkeys(asked)) if asked else known


def _check_sheets(connection: sqlite3.Connection, wanted: Sequence[str], runs: list[int] | None) -> None:
    """Raises UsageError where a table is longer than a sheet."""
    from perfctl.orchestrator.report.table_files import SHEET_ROWS
    from perfctl.orchestrator.store import query

    for name in wanted:
        rows = query.count_rows(connection, name, runs) if name != LEDGER else 0
        if rows >= SHEET_ROWS:
            raise UsageError(
                f"{name} has {rows:,} rows, an Excel sheet holds {SHEET_ROWS - 1:,}",
                "Use --format parquet or csv, or fewer runs (--run)",
            )


def _table(connection: sqlite3.Connection, name: str, runs: list[int] | None, ledger_runs: list[int]) -> Table:
    from perfctl.orchestrator.report.table_files import Column, Table, ledger_table
    from perfctl.orchestrator.store import query, read

    if name == LEDGER:
        from perfctl.orchestrator.analyse.analysis import analyse
        from perfctl.orchestrator.analyse.grouping import studies
        from perfctl.orchestrator.report.ledger_rows import ledger_rows
        from perfctl.parsers import no_collection

        with no_collection():
            return ledger_table(ledger_rows([analyse(study) for study in studies(read.load(connection, ledger_runs))]))
    shape = query.table_shape(name)
    columns = (
        Column(c.name, kind, c.meaning, c.unit, c.null) for c, kind in zip(shape.columns, shape.types, strict=True)
    )
    return Table(name, tuple(columns), query.table_rows(connection, name, runs))


def _write(path: Path, form: str, found: list[Table], *, alone: bool, raw: bool) -> None:
    from perfctl.orchestrator.report import table_files

    whole = [*found, table_files.described(found)]
    if form == "xlsx":
        table_files.write_xlsx(path, whole)
    elif form == "json":
        about = {"written_by": f"perfctl {__version__}", "flops": "1 multiply-add = 2 FLOPs", "null": "not known"}
        table_files.write_json(path, whole, about)
    else:
        for table in found if alone else whole:
            file = path if alone else path / f"{table.name}.{form}"
            if form == "csv":
                table_files.write_csv(file, table, raw=raw)
            else:
                table_files.write_parquet(file, table)
