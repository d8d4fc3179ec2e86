"""One SELECT over a dataset, run by DuckDB: by all cores, on disk where memory does not suffice.

The SQL is the user's, or of somebody who gave it to him: it reads the files of the dataset and
nothing else. DuckDB may open no other file, load no extension, and change no setting; anything but
a SELECT is refused before it runs.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.store import query

MEMORY = "2GiB"
"""What DuckDB may take; what does not fit goes to files in the temporary folder (TMPDIR)."""
_AT_ONCE = 1000
_TYPES = {"INTEGER": "BIGINT", "REAL": "DOUBLE", "NUMERIC": "DOUBLE", "TEXT": "VARCHAR"}


@contextmanager
def answers(
    folder: Path, sql: str, seconds: float
) -> Iterator[tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]]:
    """(column names, rows, streamed) of one SELECT. The rows may be read inside the block only.

    Raises UsageError for a folder that is no dataset, for anything but one SELECT, for what DuckDB
    refuses, and for a query that takes longer than ``seconds``; ToolMissing without DuckDB.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ToolMissing(
            "this needs DuckDB, which is not installed", "pip install 'perfctl[duckdb]'"
        ) from error
    if not any((folder / "run").glob("*.parquet")):
        raise UsageError(
            f"`dataset`: {folder} is no dataset", f"Make one: perfctl export --dataset {folder}"
        )
    too_long = threading.Event()
    with tempfile.TemporaryDirectory(prefix="perfctl-query-") as temporary:
        connection = duckdb.connect(":memory:")

        def stop() -> None:
            too_long.set()
            connection.interrupt()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1:
                said = "there is more than one statement" if statements else "the query is empty"
                raise UsageError(said, "Give one SELECT at a time")
            if statements[0].type not in (
                duckdb.StatementType.SELECT,
                duckdb.StatementType.EXPLAIN,
            ):
                raise UsageError("the query may only read", "Use SELECT")
            _prepare(connection, folder, Path(temporary), sql)
            timer.start()
            cursor = connection.execute(statements[0])
            yield tuple(column[0] for column in cursor.description), _rows(cursor)
        except duckdb.Error as error:
            first = str(error).splitlines()[0]
            if too_long.is_set():
                raise UsageError(
                    f"the query took longer than {seconds:g} s",
                    "Narrow it, or give it more `seconds`",
                ) from error
            raise UsageError(
                f"DuckDB refuses the query: {first}", "docs/schema.md names tables and columns"
            ) from error
        finally:
            timer.cancel()
            connection.close()


def _rows(cursor: Any) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(_AT_ONCE):
        yield from rows


def _prepare(connection: Any, folder: Path, temporary: Path, sql: str) -> None:
    """The views that the query may name, and the fence around them. To make one reads the end of
    each of its files."""
    home = str(folder.resolve())
    settings = {
        "memory_limit": MEMORY,
        "temp_directory": str(temporary),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "preserve_insertion_order": False,
    }
    for name, value in settings.items():
        connection.execute(f"SET {name} = {_literal(value)}")
    for table in (name for name in query.table_names() if name in sql.lower()):
        files = any((folder / table).rglob("*.parquet"))
        source = (
            f"read_parquet({_literal(f'{_plain(home)}/{table}/**/*.parquet')}, union_by_name = "
            "true)"
        )
        none = ", ".join(
            f'CAST(NULL AS {_TYPES[kind]}) AS "{one.name}"' for one, kind in query.columns_of(table)
        )
        connection.execute(
            f'CREATE VIEW "{table}" AS SELECT '
            f"{'* FROM ' + source if files else none + ' WHERE FALSE'}"
        )
    connection.execute(f"SET allowed_directories = [{_literal(home + '/')}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _literal(value: object) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else "'" + str(value).replace("'", "''") + "'"
    )


def _plain(path: str) -> str:
    """A path whose own ``*``, ``?`` and ``[`` are no pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
