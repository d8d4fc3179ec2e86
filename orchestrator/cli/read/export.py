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
        typer.Option("--format", "-f", help="csv, parquet, json or xlsx. Default: what --out ends with, else csv."),
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="This table (repeatable). Default: ledger.")
    ] = None,
    all_tables: Annotated[bool, typer.Option("--all", help="The ledger and every table.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File, or folder for several tables as csv or parquet. Default: perfctl-export*."
        ),
    ] = None,
    sweep: Annotated[int | None, typer.Option(help="Only this sweep.")] = None,
    runs: Annotated[list[int] | None, typer.Option("--run", help="Only these runs (repeatable).")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="CSV: leave text alone that a spreadsheet would run.")] = False,
    force: output.Force = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Write tables of the store as CSV, Parquet, JSON or Excel, with a table 'columns' that says unit and meaning.

    NULL (not known) stays empty, or null. In CSV, text that a spreadsheet would run as a formula gets an apostrophe.
    """
    from perfctl.orchestrator.actions import export as actions

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
        output.as_json({"path": str(written.path), "format": written.format, "tables": list(written.tables)})
    else:
        output.result(f"Wrote {written.path} ({', '.join(written.tables)})")
