"""Take data out of a store for other programs: tables as files, one run as a trace."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.stored_runs import only_run, shown
from perfctl.orchestrator.actions.tables import DEFAULT, values_of_ledger
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import check_free, replacing
from perfctl.orchestrator.report.files.trace import Counted
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


def export(
    tables: Sequence[str] = (LEDGER,),
    *,
    all_tables: bool = False,
    out: Path | None = None,
    format: str | None = None,
    sweep: int | None = None,
    runs: Sequence[int] = (),
    raw: bool = False,
    force: bool = False,
    store: Path = DEFAULT,
) -> Exported:
    """Write tables of a store as CSV, Parquet, JSON or Excel, with a table "columns" that says unit
    and meaning of each.

    tables: names of the store's tables, and "ledger"; all_tables: every one of them.
    out: a file, or a folder for several tables as csv or parquet; None for perfctl-export here.
    format: one of ``FORMATS``; None for what the name of ``out`` says, else csv.
    sweep, runs: only this sweep, or only these runs (their numbers).
    raw: in CSV, leave text alone that a spreadsheet would run as a formula; otherwise it gets
    an apostrophe.
    force: replace files that exist.

    What is not known (NULL) stays empty, or null. Raises UsageError for a request that makes no
    sense, ToolMissing when the library of a format is not installed, StoreError when there is
    no store.
    """
    from perfctl.orchestrator.report.files import tables as files_tables

    form = _form(format, out)
    known = (LEDGER, *query.table_names())
    for name in tables:
        if name not in known:
            raise UsageError(
                f"`tables`: there is no table '{name}'", f"There are {', '.join(known)}"
            )
    wanted = known if all_tables else tuple(dict.fromkeys(tables or (LEDGER,)))
    is_file = out is not None and out.suffix.lower() == f".{form}"
    single = form in ("json", "xlsx")
    alone = not single and len(wanted) == 1 and is_file
    folder = not single and not alone
    target = out or Path("perfctl-export" + (f".{form}" if single else ""))
    if folder and is_file:
        problem = f"`out` {out}: several tables as {form} go into a folder"
        raise UsageError(problem, "Name a folder, or a file .xlsx or .json")
    check_free(target, force=force, folder=folder)
    files_tables.need(form)
    with database.reading(store) as connection:
        chosen = _runs(connection, sweep, runs)
        for name in wanted if form == "xlsx" else ():
            rows = query.count_rows(connection, name, chosen) if name != LEDGER else 0
            if rows >= files_tables.SHEET_ROWS:
                problem = (
                    f"{name} has {rows:,} rows, an Excel sheet holds "
                    f"{files_tables.SHEET_ROWS - 1:,}"
                )
                raise UsageError(problem, "Use `format` parquet or csv, or fewer `runs`")
    with database.reading(store) as connection:
        found = [
            files_tables.ledger_table(values_of_ledger(store, chosen))
            if name == LEDGER
            else _table(connection, name, chosen)
            for name in wanted
        ]
        with replacing(target, force=force, folder=folder) as partial:
            _write(partial, form, found, alone=alone, raw=raw)
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


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was written."""

    JSON_INLINED = ("counted",)

    path: Path
    run: int
    step: int | None
    """None: everything that was captured."""
    events: int
    counted: Counted
    """Events by what they are of: kernels, copies, ranges, operators, readings, arrows."""


def trace(
    run: int,
    *,
    step: int | None = None,
    whole: bool = False,
    out: Path | None = None,
    force: bool = False,
    store: Path = DEFAULT,
    messages: Messages = SILENT,
) -> Trace:
    """Write one step of a run as a trace for Perfetto or chrome://tracing: kernels, copies, ranges,
    operators, readings.

    run: its number. step: the measured step; None for the last one. whole: everything that
    was captured.
    out: FILE.json or FILE.json.gz; None for trace-runN.json.gz. The same run gives the same bytes.

    Raises UsageError for a request that makes no sense, StoreError when there is no store or no
    such run.
    """
    from perfctl.orchestrator.report.files import trace as files_trace

    if whole and step is not None:
        raise UsageError("`whole` and `step` together", "Choose one")
    target = out or Path(f"trace-run{run}.json.gz")
    if not target.name.endswith((".json", ".json.gz")):
        raise UsageError(
            f"`out`: '{target}' does not end with .json or .json.gz", "Perfetto opens these"
        )
    check_free(target, force=force)
    with database.reading(store) as connection:
        found = only_run(connection, run)
        known = shown(found, lambda: files_trace.steps(found))
        if step is None and not whole:
            step = known[-1] if known else None
            if step is None:
                messages.note(
                    f"run {run} has no measured steps: everything that was captured is written"
                )
        content, counted = shown(
            found, lambda: files_trace.trace(found, step, read.op_calls(connection, run))
        )
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    with replacing(target, force=force) as partial:
        partial.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)
    events = sum(event["ph"] != "M" for event in content["traceEvents"])
    return Trace(target, run, step, events, counted)
