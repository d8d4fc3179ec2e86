"""perfctl export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console as output
from perfctl.orchestrator.cli import options
from perfctl.orchestrator.errors import UsageError


def export(
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="csv, parquet, json or xlsx. Default: what --out ends with, else csv.",
        ),
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="This table (repeatable). Default: ledger.")
    ] = None,
    all_tables: Annotated[bool, typer.Option("--all", help="The ledger and every table.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File, or folder for several tables as csv or parquet. Default: perfctl-export*.",
        ),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Folder of Parquet files, a folder a table, by sweep and profiler; later calls add "
                "new runs."
            )
        ),
    ] = None,
    sweep: Annotated[int | None, typer.Option(help="Only this sweep.")] = None,
    runs: Annotated[
        list[int] | None, typer.Option("--run", help="Only these runs (repeatable).")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV: leave text alone that a spreadsheet would run.")
    ] = False,
    force: output.Force = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Write tables of the store as CSV, Parquet, JSON or Excel, with a table 'columns' that says
    unit and meaning.

    NULL (not known) stays empty, or null. In CSV, text that a spreadsheet would run as a formula
    gets an apostrophe.
    """
    from perfctl.orchestrator.actions import export as actions

    if dataset is not None:
        if any((format, tables, all_tables, out, sweep, runs, raw)):
            raise UsageError(
                "--dataset takes every table of every run", "Leave the other options out"
            )
        _dataset(dataset, store or DEFAULT, as_json=as_json)
        return
    if all_tables and tables:
        raise UsageError("--all and --table together", "Choose one")
    written = actions.export(
        tables or (actions.LEDGER,),
        all_tables=all_tables,
        out=out,
        format=format,
        sweep=sweep,
        runs=runs or (),
        raw=raw,
        force=force,
        store=store or DEFAULT,
    )
    if as_json:
        output.as_json(written, "export")
    else:
        output.result(f"Wrote {written.path} ({', '.join(written.tables)})")


def _dataset(folder: Path, store: Path, *, as_json: bool) -> None:
    from perfctl.orchestrator.actions.dataset.write import export_dataset

    added = export_dataset(folder, store)
    if as_json:
        output.as_json(added, "export-dataset")
    elif added.runs:
        output.result(
            f"Added {added.runs:,} runs to {folder}: {added.rows:,} rows in {added.files:,} files"
        )
    else:
        output.result(f"{folder} has every run of {store} already")
