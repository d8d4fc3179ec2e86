"""Query the results database with SQL or by parts of names, or a dataset by DuckDB; list its runs.

The SQL may come from someone else, so a worker with a limit on time and memory runs it, and it can
read the files of a dataset and nothing else. DuckDB may open no other file, load no extension, and
change no setting. perfctl refuses anything but a SELECT before it runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from perfctl.orchestrator import pool
from perfctl.orchestrator.commands.declare import DEFAULT_STORE, Command, Events, Option, Store
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.faults import process_all_but_failing_items
from perfctl.orchestrator.outputs import build_column_schema, build_object_schema
from perfctl.orchestrator.report.files.tables import (
    convert_to_json_value,
    convert_value_to_text,
    format_csv_lines,
    make_names_unique,
)
from perfctl.orchestrator.report.numbers import DASH, format_time
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_table,
    missing_cell,
    text_cell,
)
from perfctl.orchestrator.report.view import RawLines, View
from perfctl.orchestrator.store import database, query, read

MOST_MEMORY = 2 << 30
"""Bytes that a query may take."""
DUCKDB_MEMORY = "2GiB"
"""Memory limit of DuckDB without its threads; the rest goes to files in the temporary folder
(TMPDIR)."""
ROWS_PER_FETCH = 1000
MOST_COLUMNS = 500
LONGEST_SHOWN = 16_000
"""Characters of a value in a table."""
ROW_BYTES, VALUE_BYTES = 300, 60
"""What a row and a value take besides its text."""
MOST_SHOWN, MOST_SENT, MOST_JSON = 4 << 20, 1 << 20, 256 << 20
"""Bytes of the rows of a table, of those that a worker sends at a time, and of JSON."""
_TYPES = {"INTEGER": "BIGINT", "REAL": "DOUBLE", "NUMERIC": "DOUBLE", "TEXT": "VARCHAR"}
_JSON_TYPES = {"INTEGER": "integer", "REAL": "number", "NUMERIC": "number", "TEXT": "string"}
_COLUMNS = {
    "id": Column("run"),
    "profiler": Column("tool", style="text"),
    "workload": Column("workload", style="code"),
    "file": Column("file", style="code"),
    "rank": Column("rank"),
    "batch_size": Column("batch"),
    "parameters": Column("parameters", style="text"),
    "serving": Column("serving", style="text"),
    "mode": Column("mode", style="text"),
    "device_name": Column("device", style="code"),
    "kernels": Column("kernels"),
    "started_at": Column("started (UTC)", is_optional=True),
    "duration_ns": Column("duration", is_optional=True),
    "status": Column("status", style="text"),
}
"""JSON key of a run -> its column."""


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """Query the results database with SQL (read-only).

    perfctl query "select name from sqlite_schema" lists the tables.

    Raises UsageError for anything but one SELECT that ends in time, StoreError if there is
    no store.
    """

    sql: Annotated[
        str | None,
        Option("One SELECT, in quotes; - reads it from standard input.", is_argument=True),
    ] = None
    search: Annotated[str | None, Option("Find kernels and layers by a part of their names.")] = (
        None
    )
    dataset: Annotated[
        Path | None,
        Option(
            "Query this folder of 'perfctl export --dataset' with DuckDB, instead of a database.",
            metavar="FOLDER",
        ),
    ] = None
    rows: Annotated[
        int,
        Option("Maximum number of printed rows; JSON and CSV contain all rows.", "Output", least=1),
    ] = 100
    timeout: Annotated[
        float, Option("Stop the query after this many seconds.", metavar="SECONDS", least=0.1)
    ] = 30.0
    csv: Annotated[bool, Option("Print CSV.", "Output")] = False
    store: Store = DEFAULT_STORE


class QueryRow(dict[str, Any]):
    """One object per row, by the names of its columns; a second column of a name is name_2. Bytes
    are hexadecimal digits. With --search the columns are type, name, kind, runs, launches,
    duration_ns."""

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the schema of any row."""
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}}


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The rows of a query, which can be read once."""

    options: QueryOptions
    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def start_query(options: QueryOptions, events: Events) -> QueryAnswer:
    """Start the query."""
    if (options.sql is None) == (options.search is None):
        raise UsageError(
            "exactly one of a SELECT and `search` is needed",
            "For example: perfctl query 'select * from run'",
        )
    if options.search is not None:
        if options.dataset is not None:
            raise UsageError(
                "`dataset` and `search` exclude each other", "Query a dataset with SQL"
            )
    elif options.dataset is not None and options.store != DEFAULT_STORE:
        raise UsageError("`dataset` and `store` exclude each other", "Omit one of them")
    sql = sys.stdin.read(query.LONGEST_SQL + 1) if options.sql == "-" else options.sql or ""
    rows = _stream_column_names_then_rows(options, sql)
    columns = next(rows)
    if len(columns) > MOST_COLUMNS:
        problem = f"the result has {len(columns):,} columns, more than {MOST_COLUMNS}"
        raise UsageError(problem, "Name the columns that you need")
    return QueryAnswer(options, columns, rows)


def _stream_column_names_then_rows(options: QueryOptions, sql: str) -> Iterator[tuple[Any, ...]]:
    """Yield the names of the columns, then the rows, from a worker."""
    until, limit = time.monotonic() + options.timeout, MOST_MEMORY
    with ExitStack() as stack:
        temporary = Path()
        if options.dataset is not None:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory("", "perfctl-query-")))
            limit *= 2
        else:
            with database.open_store_for_reading(options.store):
                pass  # migrating takes longer than a query may
        opened = partial(_open_query_worker, options, sql, temporary)
        running = pool.run_in_workers(
            [None], opened, memory_limit_bytes=limit, get_time_limit_s=lambda item: options.timeout
        )
        for _, events in stack.enter_context(closing(running)):
            for event in events:
                if time.monotonic() > until:
                    raise UsageError(
                        f"the query took longer than {options.timeout:g} s",
                        "Narrow the query, or raise `timeout`",
                    )
                if isinstance(event, pool.WorkerLost):
                    raise PerfctlError(f"the query failed, because {event.why}", "Narrow it")
                if not isinstance(event, pool.WorkDone):
                    yield from event


@contextmanager
def _open_query_worker(
    options: QueryOptions, sql: str, temporary: Path
) -> Iterator[Callable[[None, pool.Tell], None]]:
    """Open what a worker does: send the names of the columns, then the rows."""

    def send_rows(item: None, tell: pool.Tell) -> None:
        opened: AbstractContextManager[tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]]
        if options.search is not None:
            names = query.search_kernel_and_layer_names(options.store, options.search)
            opened = nullcontext((query.FOUND_COLUMNS, names))
        elif options.dataset is not None:
            opened = query_parquet_dataset(options.dataset, sql, temporary)
        else:
            opened = query.run_select(options.store, sql)
        try:
            with opened as (columns, rows):
                tell([columns])
                batch, size = [], 0
                for row in rows:
                    batch.append(row)
                    size += _estimate_row_bytes(row)
                    if size > MOST_SENT:
                        tell(batch)
                        batch, size = [], 0
                tell(batch)
        except MemoryError as error:
            problem = f"the query needs more than {MOST_MEMORY >> 20:,} MiB of memory"
            raise UsageError(problem, "Narrow it") from error

    yield send_rows


def _estimate_row_bytes(row: Sequence[Any], max_value_bytes: int = query.LONGEST_BYTES) -> int:
    """Return the bytes of a row, with the beginning of a long text only."""
    texts = (len(value) for value in row if isinstance(value, str | bytes))
    values = VALUE_BYTES * len(row) + sum(min(length, max_value_bytes) for length in texts)
    return ROW_BYTES + values


def collect_json_rows(answer: QueryAnswer) -> list[QueryRow]:
    """Return all rows for programs."""
    if answer.options.csv:
        raise UsageError("--json and `csv` exclude each other", "Choose one")
    names = make_names_unique(answer.columns)
    records, size = [], 0
    for row in answer.rows:
        size += _estimate_row_bytes(row)
        if size > MOST_JSON:
            problem = f"the rows take more than {MOST_JSON >> 20} MiB as JSON"
            raise UsageError(problem, "Narrow the query, or use `csv`")
        records.append(QueryRow(zip(names, map(convert_to_json_value, row), strict=True)))
    return records


def build_query_view(answer: QueryAnswer) -> View | RawLines:
    """Return a table of the first rows, or all rows as CSV."""
    names = make_names_unique(answer.columns)

    if answer.options.csv:
        return RawLines(format_csv_lines(names, answer.rows), "`csv`")
    values: list[tuple[Any, ...]] = []
    size, remedy = 0, ""
    for row in answer.rows:
        size += _estimate_row_bytes(row, LONGEST_SHOWN)
        if len(values) == answer.options.rows or (values and size > MOST_SHOWN):
            remedy = "use --rows to show more" if size <= MOST_SHOWN else "--csv prints all"
            break
        values.append(row)
    rows = "1 row" if len(values) == 1 else f"{len(values)} rows"
    note = f"first {rows}; {remedy}" if remedy else rows
    columns = zip(names, zip(*values, strict=True), strict=True) if values else ()
    text_columns = {
        name for name, column in columns if any(isinstance(value, str | bytes) for value in column)
    }
    table = Table(
        tuple(Column(name, style="text" if name in text_columns else "num") for name in names),
        tuple(tuple(map(_format_query_cell, row)) for row in values),
        "",
        notes=(note,),
    )
    return View(tables=(table,))


def _format_query_cell(value: object) -> Cell:
    if value is None:
        return Cell(DASH, "NULL", "no")
    text = convert_value_to_text(value[:LONGEST_SHOWN] if isinstance(value, bytes) else value)
    if len(text) <= LONGEST_SHOWN:
        return Cell(text)
    length = len(value) if isinstance(value, bytes) else len(text)
    kind = "bytes" if isinstance(value, bytes) else "characters"
    return Cell(f"{text[:LONGEST_SHOWN]}… ({length:,} {kind})")


@contextmanager
def query_parquet_dataset(
    folder: Path, sql: str, temporary: Path
) -> Iterator[tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]]:
    """Yield (column names, streamed rows) of one SELECT. The rows are valid inside the block only.

    Raises UsageError for a folder that is no dataset, for anything but one SELECT, and for a query
    that DuckDB refuses; ToolMissing without DuckDB.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ToolMissing(
            "`dataset` needs DuckDB, which is not installed", "pip install 'perfctl[duckdb]'"
        ) from error
    if not any((folder / "run").glob("*.parquet")):
        raise UsageError(
            f"`dataset`: {folder} is not a dataset",
            f"Create it with 'perfctl export --dataset {folder}'",
        )
    with closing(duckdb.connect(":memory:")) as connection:
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1:
                problem = "has more than one statement" if statements else "is empty"
                raise UsageError(f"the query {problem}", "Run one SELECT at a time")
            reading = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
            if statements[0].type not in reading:
                raise UsageError("the query may only read", "Use SELECT")
            _create_views_and_lock_duckdb(connection, folder, temporary, sql)
            cursor = connection.execute(statements[0])
            yield tuple(column[0] for column in cursor.description), _fetch_rows_in_batches(cursor)
        except duckdb.Error as error:
            problem = f"DuckDB rejected the query: {str(error).splitlines()[0]}"
            remedy = "'select * from TABLE limit 1' shows the columns of a table"
            raise UsageError(problem, remedy) from error


def _fetch_rows_in_batches(cursor: Any) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(ROWS_PER_FETCH):
        yield from rows


def _create_views_and_lock_duckdb(connection: Any, folder: Path, temporary: Path, sql: str) -> None:
    """Create the views that the query may name, then forbid everything else. Each view reads the
    end of each of its files."""
    home = str(folder.resolve())
    settings = {
        "memory_limit": DUCKDB_MEMORY,
        "temp_directory": str(temporary),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "preserve_insertion_order": False,
    }
    for name, value in settings.items():
        connection.execute(f"SET {name} = {_quote_sql_literal(value)}")
    for table in (name for name in query.list_public_table_names() if name in sql.lower()):
        files = any((folder / table).rglob("*.parquet"))
        pattern = _quote_sql_literal(f"{_escape_glob_pattern(home)}/{table}/**/*.parquet")
        rows = f"* FROM read_parquet({pattern}, union_by_name = true)"
        if not files:
            columns = (
                f'CAST(NULL AS {_TYPES[kind]}) AS "{column.name}"'
                for column, kind in query.list_table_columns(table)
            )
            rows = f"{', '.join(columns)} WHERE FALSE"
        connection.execute(f'CREATE VIEW "{table}" AS SELECT {rows}')
    connection.execute(f"SET allowed_directories = [{_quote_sql_literal(home + '/')}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _quote_sql_literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + str(value).replace("'", "''") + "'"


def _escape_glob_pattern(path: str) -> str:
    """Return a path whose own ``*``, ``?`` and ``[`` are no pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """List the runs in the results database: workload, device, start, status and number of kernels.

    Raises StoreError if there is no store.
    """

    store: Store = DEFAULT_STORE


class StoredRun(dict[str, Any]):
    """One object a run, oldest first."""

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the columns of the table run, and what ``perfctl runs`` adds to them."""
        properties: dict[str, Any] = {
            column.name: build_column_schema(
                _JSON_TYPES[kind], column.meaning, column.unit, column.null
            )
            for column, kind in query.list_table_columns("run")
        }
        for name in ("kernels", "ranges", "copies", "operations"):
            properties[name] = build_column_schema(
                "integer", f"rows of {name}", null_meaning="not collected"
            )
        return build_object_schema(
            {
                **properties,
                "sweep_name": build_column_schema(
                    "string", "name of the sweep", null_meaning="the sweep is gone"
                ),
                "device_name": build_column_schema(
                    "string", "name of the device", null_meaning="unknown"
                ),
                "counters": build_column_schema("integer", "values of counters"),
                "parameters": build_column_schema(
                    "string",
                    "parameters of the sweep other than the batch size",
                    null_meaning="none",
                ),
                "serving": build_column_schema(
                    "string",
                    "phases of text generation and their tokens",
                    null_meaning="no known step",
                ),
            }
        )


def list_stored_runs(options: RunsOptions, events: Events) -> list[StoredRun]:
    """Read the rows of the table run."""
    with database.open_store_for_reading(options.store) as connection:
        return [StoredRun(row) for row in read.list_run_summaries(connection)]


def build_runs_view(rows: list[StoredRun]) -> View:
    """Return one line a run, and below it what is the same in all."""
    if not rows:
        return View("The results database has no runs.")
    return process_all_but_failing_items(rows, _build_run_list_view, lambda row: f"run {row['id']}")


def _build_run_list_view(rows: Sequence[StoredRun]) -> View:
    notes = ["1 run" if len(rows) == 1 else f"{len(rows):,} runs"]
    facts = [{**row, "file": _get_ingested_file_name(row)} for row in rows]
    values = {name: {row.get(name) for row in facts} for name in _COLUMNS}
    names = [name for name in _COLUMNS if values[name] != {None}]
    if "kernels" not in names:
        notes.append("no GPU kernels")
    if "mode" in names and len(values["mode"]) == 1:
        names.remove("mode")
        mode = str(*values["mode"])
        notes.append({"train": "training", "infer": "inference"}.get(mode, mode))
    if values["rank"] == {0}:
        names.remove("rank")
    statuses = {_choose_status_or_origin(row) for row in rows}
    if len(rows) > 1 and statuses in ({"ok"}, {"ingested"}):
        names.remove("status")
        notes += [f"all {status}" for status in statuses]
    devices = values["device_name"]
    if len(rows) > 1 and "device_name" in names and len(devices) == 1:
        names.remove("device_name")
        notes += map(str, devices)
    cells = [[_format_run_cell(name, row) for name in names] for row in facts]
    columns = [_COLUMNS[name] for name in names]
    drawn = build_table("", columns, cells, max_rows=len(rows), keep_empty_columns=True)
    return View(
        "",
        tables=(drawn,) if isinstance(drawn, Table) else (),
        notes=(f"{', '.join(notes)}.",),
    )


def _get_ingested_file_name(row: Mapping[str, Any]) -> str | None:
    """Return the name of an ingested report, which has no workload that tells it from others."""
    if row["origin"] in (None, "measured") or row.get("workload"):
        return None
    return Path(row.get("artifact") or "").name or None


def _choose_status_or_origin(row: Mapping[str, Any]) -> str:
    """Return the status of a run; of a complete one that was not measured here, its origin."""
    is_measured = row["origin"] in (None, "measured")
    return str(row["status"] if row["status"] != "ok" or is_measured else row["origin"])


def _format_run_cell(name: str, row: Mapping[str, Any]) -> Cell:
    value = row.get(name)
    if name == "status":
        status = _choose_status_or_origin(row)
        return Cell(status, style="bad" if status == "failed" else "", value=status)
    if value is None:
        return missing_cell("unknown")
    if name == "kernels":
        value = f"{value:,}"
    elif name == "started_at":
        value = value[:16].replace("T", " ")
    elif name == "duration_ns":
        value = format_time(value)
    return text_cell(value)


COMMAND = Command(QueryOptions, start_query, build_query_view, collect_json_rows)
RUNS = Command(RunsOptions, list_stored_runs, build_runs_view)
