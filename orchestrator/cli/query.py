"""perfctl query"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.errors import UsageError


def query(
    sql: Annotated[str | None, typer.Argument(help="One SELECT, in quotes; - reads it from standard input.")] = None,
    search: Annotated[str | None, typer.Option(help="Find kernels and layers by parts of their names instead.")] = None,
    store: options.Store = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table that is printed; JSON and CSV give all.")] = 100,
    seconds: Annotated[float, typer.Option(min=0.1, help="Longer than this it is stopped.")] = 30.0,
    as_json: options.Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Ask the store with SQL. It can only read: nothing in the store or elsewhere is changed. docs/schema.md has the tables."""
    from perfctl.orchestrator.store.query import FOUND_COLUMNS, answers, names_like

    if as_json and as_csv:
        raise UsageError("--json and --csv together", "Choose one")
    if (sql is None) == (search is None):
        raise UsageError("give either a SELECT or --search", "Say for instance: perfctl query 'select * from run'")
    if search is not None:
        _print(FOUND_COLUMNS, iter(names_like(store or DEFAULT, search)), rows, as_json=as_json, as_csv=as_csv)
        return
    with answers(store or DEFAULT, sys.stdin.read() if sql == "-" else str(sql), seconds) as (columns, found):
        _print(columns, found, rows, as_json=as_json, as_csv=as_csv)


def _print(columns: Sequence[str], found: Iterator[tuple[Any, ...]], rows: int, *, as_json: bool, as_csv: bool) -> None:
    """The answer as a table of at most ``rows`` rows, or all of it for programs."""
    from perfctl.orchestrator.report import csv_text, query_view

    names = query_view.unique(columns)
    if as_json:
        console.as_json([dict(zip(names, map(query_view.plain, row), strict=True)) for row in found])
    elif as_csv:
        for line in csv_text.lines(names, found):
            console.raw(line)
    else:
        shown = list(islice(found, rows))
        more = next(found, None) is not None
        console.show(query_view.answer(names, shown, console.width()))
        said = f"the first {len(shown)} rows; --rows shows more" if more else f"{len(shown)} rows"
        console.note(said if more or len(shown) != 1 else "1 row")
