"""Write tables of the results database as files for other programs, or all its runs as a dataset:
partitioned Parquet files, for data that is larger than one file or the memory::

    DIR/run/part-0.parquet                              one row per run; also sweep and device
    DIR/kernel/sweep=3/profiler=nsys/part-0.parquet     also every other table
    DIR/columns/part-0.parquet                          meaning, unit and NULL of every column

A later export adds the new runs as part-1, part-2, ...; no file is written twice. The file of the
runs comes into place last: if an export is killed, it leaves none, and the next export uses its
number and replaces its files.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
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
    make_api_function,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import (
    convert_write_errors,
    raise_if_output_not_replaceable,
    replace_when_done,
)
from perfctl.orchestrator.report.files import tables as files
from perfctl.orchestrator.report.files import trace as trace_file
from perfctl.orchestrator.report.files.tables import ExportColumn, ExportTable
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, query, read
from perfctl.orchestrator.stored_runs import (
    load_runs_without_report_rows,
    load_single_run,
    run_work_or_raise_partly_done,
    run_work_per_study,
)
from perfctl.version import __version__

if TYPE_CHECKING:
    from perfctl.orchestrator.report.ledger.rows import LedgerColumns
    from perfctl.records.run import Run

FORMATS = ("csv", "parquet", "json", "xlsx")
LEDGER = "ledger"
UNPARTITIONED = ("run", "sweep", "device")
"""Small tables without partitions. ``run`` has its own column ``profiler``."""
PARTIAL_FOLDER = ".perfctl-new"
IDENTITY = ("id", "artifact_sha256", "started_at", "profiler")
"""Columns that identify a run."""
RunKey = tuple[Any, ...]
"""Sweep of a run, then the values of IDENTITY."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Tables that were written."""

    path: Path
    """A file, or a folder with a file for each table."""
    format: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dataset:
    """The files that an export added to a dataset."""

    path: Path
    runs: int
    """New runs."""
    files: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Write tables of the results database as CSV, Parquet, JSON or Excel; the table 'columns' has
    units and meanings.

    NULL (a missing value) stays empty, or null. In CSV, perfctl puts an apostrophe before text that
    a spreadsheet would run as a formula.

    Raises UsageError for a contradictory request, ToolMissing if the library of a format is not
    installed, StoreError if there is no database.
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


def export_tables_or_dataset(options: ExportOptions, events: Events) -> Exported | Dataset:
    """Write the tables."""
    if options.dataset is None:
        if options.all_tables and options.tables:
            raise UsageError("`all_tables` and `tables` exclude each other", "Choose one")
        return _export_tables(options)
    table_options = ("format", "tables", "all_tables", "out", "sweep", "runs", "raw")
    if any(getattr(options, name) for name in table_options):
        raise UsageError("`dataset` exports every table of every run", "Omit the other options")
    return export_new_runs_to_dataset(options.dataset, options.store)


def build_export_view(written: Exported | Dataset) -> View:
    """Return what was written."""
    if isinstance(written, Exported):
        return View(f"Wrote {written.path} ({', '.join(written.tables)})")
    if not written.runs:
        return View(f"{written.path} already has every run of the database")
    return View(
        f"Added {written.runs:,} runs to {written.path}: {written.rows:,} rows in "
        f"{written.files:,} files"
    )


def _export_tables(options: ExportOptions) -> Exported:
    """Write one file, or a folder with a file per table."""

    ending = options.out.suffix.lower().removeprefix(".") if options.out is not None else ""
    form = _choose_format(options, ending)
    available = (LEDGER, *query.list_public_table_names())
    for name in options.tables:
        if name not in available:
            remedy = f"Choose {', '.join(available)}"
            raise UsageError(f"invalid value '{name}' for `tables`", remedy)
    names = available if options.all_tables else tuple(dict.fromkeys(options.tables or (LEDGER,)))
    is_combined = form in ("json", "xlsx")
    is_folder = not is_combined and (len(names) > 1 or ending != form)
    target = options.out or Path(f"perfctl-export.{form}" if is_combined else "perfctl-export")
    if is_folder and ending == form:
        problem = f"`out` {target}: several {form} tables need a folder"
        raise UsageError(problem, "Set a folder, or a file that ends with .xlsx or .json")
    raise_if_output_not_replaceable(target, force=options.force, is_folder=is_folder)
    files.raise_if_format_library_missing(form)
    with database.open_store_for_reading(options.store) as connection:
        ids = _select_run_ids(connection, options.sweep, options.runs)
        for name in names if form == "xlsx" else ():
            rows = query.count_table_rows(connection, name, ids) if name != LEDGER else 0
            if rows >= files.SHEET_ROWS:
                problem = (
                    f"{name} has {rows:,} rows, but an Excel sheet holds at most "
                    f"{files.SHEET_ROWS - 1:,}"
                )
                raise UsageError(problem, "Use `format` parquet or csv, or fewer `runs`")
        tables = [
            files.build_ledger_export_table(compute_ledger_values(options.store, ids))
            if name == LEDGER
            else _build_store_table(name, query.read_table_rows(connection, name, ids))
            for name in names
        ]
        with replace_when_done(target, force=options.force, is_folder=is_folder) as partial:
            if is_combined:
                _write_combined_file(partial, form, tables)
            else:
                described = (
                    [*tables, files.build_column_descriptions_table(tables)]
                    if is_folder
                    else tables
                )
                for table in described:
                    file = partial / f"{table.name}.{form}" if is_folder else partial
                    if form == "csv":
                        files.write_csv(file, table, keeps_formulas=options.raw)
                    else:
                        files.write_parquet_and_count_rows(file, table)
    return Exported(target, form, names)


def _choose_format(options: ExportOptions, ending: str) -> str:
    """Return the format of the option, otherwise that of the file's ending."""
    form, ended = options.format, ending if ending in FORMATS else None
    if form is not None and form not in FORMATS:
        raise UsageError(f"invalid value '{form}' for `format`", f"Choose {', '.join(FORMATS)}")
    if form and ended and form != ended:
        problem = f"`format` {form}, but `out` {options.out} ends like {ended}"
        raise UsageError(problem, "Omit one of the two")
    return form or ended or "csv"


def _select_run_ids(
    connection: sqlite3.Connection, sweep: int | None, runs: Sequence[int]
) -> list[int] | None:
    """Return the ids of the requested runs; None for all."""
    if sweep is not None and runs:
        raise UsageError("`sweep` and `runs` exclude each other", "Choose one")
    if sweep is None and not runs:
        return None
    stored = read.list_run_ids(connection, sweep=sweep)
    if not stored:
        remedy = "List the sweeps with 'perfctl query \"select * from sweep\"'"
        raise UsageError(f"`sweep`: sweep {sweep} has no runs", remedy)
    for number in runs:
        if number not in stored:
            raise UsageError(f"run {number} not found", "Run 'perfctl runs' to list the runs")
    return list(dict.fromkeys(runs)) or stored


def _build_store_table(name: str, rows: Iterable[Sequence[Any]]) -> ExportTable:

    columns = (
        ExportColumn(column.name, kind, column.meaning, column.unit, column.null)
        for column, kind in query.list_table_columns(name)
    )
    return ExportTable(name, tuple(columns), rows)


def _write_combined_file(path: Path, form: str, tables: list[ExportTable]) -> None:
    """Write all tables and the description of their columns as one file."""

    tables = [*tables, files.build_column_descriptions_table(tables)]
    if form == "xlsx":
        files.write_xlsx(path, tables)
        return
    about = {
        "written_by": f"perfctl {__version__}",
        "flops": "1 multiply-add = 2 FLOPs",
        "null": "missing value",
    }
    files.write_tables_as_json(path, tables, about)


def compute_ledger_values(store: Path, ids: Iterable[int] | None) -> Iterator[list[Any]]:
    """Yield the values of the ledger's rows for these runs, or for the newest of each kind, run
    group by run group."""
    with database.open_store_for_reading(store) as connection:
        chosen = (
            read.list_run_ids(connection, latest_per_configuration=True) if ids is None else ids
        )
        groups = load_runs_without_report_rows(connection, chosen)

    def compute_group_values(runs: Sequence[Run]) -> list[list[Any]]:
        return [list(row.values()) for row in compute_ledger_rows(runs)]

    yield from chain.from_iterable(
        run_work_per_study(store, groups, compute_group_values, is_result_picklable=True)
    )


def compute_ledger_rows(runs: Sequence[Run]) -> list[LedgerColumns]:
    """Return the rows of ``perfctl ledger --json``, with complete kernel names."""
    from perfctl.orchestrator.ledger.analysis import analyse_study
    from perfctl.orchestrator.ledger.prepared import group_into_studies
    from perfctl.orchestrator.report.ledger.rows import list_ledger_rows

    return list(
        list_ledger_rows(
            [analyse_study(study, short_kernel_names={}) for study in group_into_studies(runs)]
        )
    )


def export_new_runs_to_dataset(folder: Path, store: Path = DEFAULT_STORE) -> Dataset:
    """Write the runs of ``store`` that ``folder`` lacks, with memory for a few ten thousand rows.

    Raises UsageError for a folder that is no dataset of perfctl, or that has runs which the
    database no longer has; ToolMissing without pyarrow; StoreError if there is no database.
    """

    files.raise_if_format_library_missing("parquet")
    is_dataset = not folder.exists() or (folder / "run").is_dir()
    if not is_dataset and not (folder.is_dir() and not any(folder.iterdir())):
        problem = f"`dataset`: {folder} exists and is not a perfctl dataset"
        raise UsageError(problem, "Choose a new folder")
    with database.open_store_for_reading(store) as connection, _lock_folder(folder):
        exported = set(_read_part_columns(folder, "run", IDENTITY))
        columns = ", ".join(IDENTITY)
        runs = connection.execute(
            f"SELECT sweep_id, {columns} FROM run ORDER BY sweep_id, profiler, id"
        ).fetchall()
        if gone := exported - {tuple(run[1:]) for run in runs}:
            number = min(gone)[0]
            raise UsageError(
                f"`dataset`: run {number} in {folder} is not the run {number} of {store}",
                "Runs were deleted, or the dataset belongs to another database: export into a "
                "new folder",
            )
        new = [run for run in runs if tuple(run[1:]) not in exported]
        return _write_new_parts(connection, folder, new) if new else Dataset(folder, 0, 0, 0)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Keep other exports out of the folder, which would use the same number for other files."""
    with convert_write_errors(folder, "Choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        problem = f"{folder}: another export is writing to this folder"
        raise PerfctlError(problem, "Wait until the other export has ended") from error
    finally:
        os.close(handle)


def _list_part_files(folder: Path, table: str) -> list[Path]:
    return list((folder / table).glob("part-*.parquet"))


def _read_part_columns(
    folder: Path, table: str, columns: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield these columns of every exported row of a table without partitions."""
    import pyarrow.parquet as parquet

    for file in _list_part_files(folder, table):
        try:
            rows = parquet.ParquetFile(file).read(columns=list(columns))
        except (OSError, ValueError) as error:
            problem = f"`dataset`: {file} cannot be read ({error})"
            raise UsageError(problem, "Export into a new folder") from error
        yield from zip(*(rows.column(column).to_pylist() for column in columns), strict=True)


def _write_new_parts(
    connection: sqlite3.Connection, folder: Path, runs: Sequence[RunKey]
) -> Dataset:
    """Write the next part of each table. ``runs``: ordered by sweep and profiler."""

    partial, name = folder / PARTIAL_FOLDER, f"part-{len(_list_part_files(folder, 'run'))}.parquet"
    shutil.rmtree(partial, ignore_errors=True)  # left by an export that was killed
    for file in folder.glob(f"*/**/{name}"):
        file.unlink()
    written = count = 0
    empty = [_build_store_table(table, ()) for table in query.list_public_table_names()]
    try:
        with convert_write_errors(folder, "Check free disk space"):
            for table in query.list_public_table_names():
                for partition, rows in _yield_partition_rows(connection, folder, table, runs):
                    first = next(rows, None)
                    if first is not None:
                        target = partial / partition / name
                        target.parent.mkdir(parents=True)
                        part = _build_store_table(table, chain([first], rows))
                        count += files.write_parquet_and_count_rows(target, part)
                        written += 1
            (partial / "columns").mkdir()
            description = files.build_column_descriptions_table(empty)
            files.write_parquet_and_count_rows(partial / "columns" / "part-0.parquet", description)
            parts = sorted(
                partial.rglob("*.parquet"), key=lambda file: file.parent == partial / "run"
            )
            for file in parts:
                target = folder / file.relative_to(partial)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Dataset(folder, len(runs), written, count)


def _yield_partition_rows(
    connection: sqlite3.Connection, folder: Path, table: str, runs: Sequence[RunKey]
) -> Iterator[tuple[str, Iterator[Sequence[Any]]]]:
    """Yield (folder, rows) of each sweep and profiler, run by run, so that SQLite sorts nothing; of
    a table without partitions, the rows of new runs, or those that no part has."""
    if table in UNPARTITIONED:
        ids = {run[1] for run in runs}
        exported = {number for (number,) in _read_part_columns(folder, table, ("id",))}
        rows = query.read_table_rows(connection, table, None)  # the id is the first column
        yield (
            table,
            (row for row in rows if (row[0] in ids if table == "run" else row[0] not in exported)),
        )
        return
    for (sweep, profiler), group in groupby(runs, key=lambda run: (run[0], run[-1])):
        yield (
            f"{table}/sweep={sweep}/profiler={quote(str(profiler), safe=' ')}",
            chain.from_iterable(query.read_run_rows(connection, table, run[1]) for run in group),
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was written."""

    JSON_INLINED = ("counts",)

    path: Path
    run: int
    step: int | None
    """None: everything that was captured."""
    events: int
    counts: trace_file.TraceCounts
    """Number of events by kind: kernels, copies, ranges, operators, samples, arrows."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Write one step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: kernels,
    copies, ranges, operators and samples. The same run gives the same bytes.

    Raises UsageError for a request that makes no sense, StoreError if there is no store or no such
    run.
    """

    run: Annotated[int, Option("Number of the run, from 'perfctl runs'.", is_argument=True)]
    _: KW_ONLY
    step: Annotated[int | None, Option("Measured step. Default: the last one.")] = None
    whole: Annotated[bool, Option("Write the complete capture, not one step.")] = False
    out: Annotated[
        Path | None,
        Option(
            "Output file: .json or .json.gz. Default: trace-runN.json.gz.",
            group="Output",
        ),
    ] = None
    force: Force = False
    store: Store = DEFAULT_STORE


def write_trace(options: TraceOptions, events: Events) -> Trace:
    """Write the trace."""
    step = options.step
    if options.whole and step is not None:
        raise UsageError("`whole` and `step` exclude each other", "Choose one")
    trace_path = options.out or Path(f"trace-run{options.run}.json.gz")
    if not trace_path.name.endswith((".json", ".json.gz")):
        raise UsageError(
            f"invalid file name '{trace_path}' for `out`",
            "Use a name that ends with .json or .json.gz",
        )
    raise_if_output_not_replaceable(trace_path, force=options.force)
    with database.open_store_for_reading(options.store) as connection:
        stored = load_single_run(connection, options.run)
        is_step_chosen = step is None and not options.whole
        if is_step_chosen:
            step = next(
                iter(
                    run_work_or_raise_partly_done(
                        stored, lambda: trace_file.list_traceable_steps(stored)
                    )[::-1]
                ),
                None,
            )
        calls = read.read_op_calls(connection, options.run)
        content, counts = run_work_or_raise_partly_done(
            stored, lambda: trace_file.build_chrome_trace(stored, step, calls)
        )
    if is_step_chosen and step is None:
        events.note(
            f"run {options.run} has no measured steps, so perfctl writes the complete capture"
        )
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    with replace_when_done(trace_path, force=options.force) as partial:
        partial.write_bytes(gzip.compress(text, mtime=0) if trace_path.suffix == ".gz" else text)
    written = sum(event["ph"] != "M" for event in content["traceEvents"])
    return Trace(trace_path, options.run, step, written, counts)


def build_trace_view(written: Trace) -> View:
    """Return what was written, and how to open it."""
    singular = {"copies": "copy"}
    parts = [
        f"{count:,} {singular.get(kind, kind[:-1]) if count == 1 else kind}"
        for kind, count in written.counts._asdict().items()
        if count
    ]
    return View(
        f"Wrote {written.path} ({', '.join(parts)})",
        ("Next: open the file in ui.perfetto.dev, which does not upload it",),
    )


COMMAND = Command(ExportOptions, export_tables_or_dataset, build_export_view, has_document=False)
export = make_api_function(ExportOptions, export_tables_or_dataset)
TRACE = Command(TraceOptions, write_trace, build_trace_view, has_document=False)
trace = make_api_function(TraceOptions, write_trace)
