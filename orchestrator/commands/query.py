"""Query the store with SQL, or by parts of names."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfctl.orchestrator.commands.declare import DEFAULT_STORE, Command, Events, Option, Store
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.report.files.tables import json_value, lines, unique
from perfctl.orchestrator.report.numbers import DASH
from perfctl.orchestrator.report.text_tables import add_rows, grid, text
from perfctl.orchestrator.report.view import Layout, Lines, Paper
from perfctl.orchestrator.store import query

if TYPE_CHECKING:
    from perfctl.orchestrator.report.view import Block

SHORTEST = 14
"""Characters that a column of text keeps at least; where they do not fit, each row is shown as
a list."""


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """Query the store with SQL, read-only: nothing in the store or elsewhere is changed.
    docs/schema.md lists the tables.

    Raises UsageError for anything but one SELECT that ends in time, StoreError if there is
    no store.
    """

    sql: Annotated[
        str | None,
        Option("One SELECT, in quotes; - reads it from standard input.", is_argument=True),
    ] = None
    search: Annotated[
        str | None, Option("Find kernels and layers by parts of their names instead.")
    ] = None
    dataset: Annotated[
        Path | None,
        Option("Ask this folder of 'perfctl export --dataset' instead of a store, by DuckDB."),
    ] = None
    rows: Annotated[
        int, Option("Rows of the printed table; JSON and CSV give all.", "Output", least=1)
    ] = 100
    timeout: Annotated[
        float, Option("Seconds after which the query is ended.", metavar="SECONDS", least=0.1)
    ] = 30.0
    csv: Annotated[bool, Option("Print CSV.", "Output")] = False
    store: Store = DEFAULT_STORE


class QueryRow(dict[str, Any]):
    """One object a row, by the names of its columns; a second column of a name is name_2. Bytes are
    hexadecimal digits. With --search the columns are what, name, kind, runs, launches,
    duration_ns."""

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the schema of any row."""
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}}


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query, which can be read once."""

    asked: QueryOptions
    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def run(asked: QueryOptions, events: Events) -> Answer:
    """Start the query."""
    if (asked.sql is None) == (asked.search is None):
        raise UsageError(
            "give either a SELECT or `search`", "For example: perfctl query 'select * from run'"
        )
    if asked.search is not None:
        if asked.dataset is not None:
            raise UsageError("`dataset` together with `search`", "A dataset is asked with SQL")
        names = query.names_like(asked.store, asked.search)
        return Answer(asked, query.FOUND_COLUMNS, iter(names))
    if asked.dataset is not None and asked.store != DEFAULT_STORE:
        raise UsageError("`dataset` together with `store`", "A dataset is no store")
    sql = sys.stdin.read() if asked.sql == "-" else str(asked.sql)
    rows = _rows_of(asked, sql)
    return Answer(asked, next(rows), rows)


def _rows_of(asked: QueryOptions, sql: str) -> Iterator[tuple[Any, ...]]:
    """Yield the names of the columns, then the rows."""
    if asked.dataset is None:
        opened = query.answers(asked.store, sql, asked.timeout)
    else:
        from perfctl.orchestrator.actions.dataset import ask

        opened = ask.answers(asked.dataset, sql, asked.timeout)
    with opened as (columns, rows):
        yield columns
        yield from rows


def record(answer: Answer) -> list[QueryRow]:
    """Return all rows for programs."""
    if answer.asked.csv:
        raise UsageError("--json and `csv` together", "Choose one")
    names = unique(answer.columns)
    return [QueryRow(zip(names, map(json_value, row), strict=True)) for row in answer.rows]


def view(answer: Answer) -> Layout | Lines:
    """Return a table of the first rows, or all rows as CSV."""
    names = unique(answer.columns)

    if answer.asked.csv:
        return Lines(lines(names, answer.rows), "`csv`")

    def draw(paper: Paper) -> Iterator[Block]:
        rows = list(islice(answer.rows, answer.asked.rows))
        yield _draw_rows(names, rows, paper.width)
        if next(answer.rows, None) is not None:
            yield text(f"the first {len(rows)} rows; --rows shows more")
        else:
            yield text("1 row" if len(rows) == 1 else f"{len(rows)} rows")

    return Layout(draw)


def _draw_rows(names: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> Block:
    """Return rows below their column names; rows of more columns than fit one below the other, each
    as a list."""
    texts = [
        [
            DASH if value is None else value.hex() if isinstance(value, bytes) else str(value)
            for value in row
        ]
        for row in rows
    ]
    words = {
        name
        for index, name in enumerate(names)
        if any(isinstance(row[index], (str, bytes)) for row in rows)
    }
    needed = 2 * len(names)
    for index, name in enumerate(names):
        longest = max([len(name), *(len(row[index]) for row in texts)])
        needed += min(longest, SHORTEST) if name in words else longest
    if needed > width:
        table = grid(("", "left"), ("", "left"), heads=False)
        for number, row in enumerate(texts, 1):
            values = zip(names, row, strict=True)
            facts = [(f"row {number}", ""), *((f"  {name}", value) for name, value in values)]
            add_rows(table, [(text(name, "dim"), value) for name, value in facts])
        return table
    sides = ((name, "left" if name in words else "right") for name in names)
    return add_rows(grid(*sides, whole=set(names) - words), texts)


COMMAND = Command(QueryOptions, run, view, record, has_document=False)
