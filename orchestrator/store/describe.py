"""docs/schema.md, made from the comments in the migrations.

``python -m perfctl.orchestrator.store.describe > docs/schema.md``
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from perfctl.orchestrator.store.migrations import MIGRATIONS


@dataclass(frozen=True, slots=True)
class Column:
    """One column as its comment describes it."""

    name: str
    meaning: str
    unit: str
    null: str


_TABLE = re.compile(r"CREATE TABLE (\w+) \(\s*-- (.*)")
_COLUMN = re.compile(r"\s{4}(\w+) [A-Z].*?-- (.+?); (.+?); NULL: (.+)")
_VIEW = re.compile(r"CREATE VIEW (\w+) AS\s+-- (.*)")
_SHOWN = re.compile(r"\s{4}\w+\.(?:\w+ AS )?(\w+),?\s+-- (.+?); (.+?); NULL: (.+)")
_ADDED = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+) .*?-- (.+?); (.+?); NULL: (.+)")

INTRODUCTION = """# The store

One SQLite file, `perfctl.db`, in WAL mode; `PRAGMA user_version` is the schema's version. Open it with any SQLite tool.
Units are nanoseconds, bytes, hertz, watts and counts; FLOPs count 1 multiply-add as 2.
**NULL means not known; 0 means counted, and zero.** Where a quantity is NULL, `gap` says why.
`kernel` and `counter` are views: what many of their rows share is kept once, in tables of its own.
`phase` can also be copy (to the device and back) or rest (images after the last full batch of inference, in no figure of time).

This page is made from the migrations: `python -m perfctl.orchestrator.store.describe`.
"""


def tables() -> dict[str, tuple[str, list[Column]]]:
    """{table: (what one row is, its columns)}, in the order of the schema."""
    found: dict[str, tuple[str, list[Column]]] = {}
    columns: list[Column] = []
    for line in _lines():
        if table := _TABLE.match(line):
            columns = []
            found[table[1]] = (table[2], columns)
        elif column := _COLUMN.match(line):
            columns.append(Column(*column.groups()))
        elif added := _ADDED.match(line):
            found[added[1]][1].append(Column(*added.groups()[1:]))
    return found


def views() -> dict[str, tuple[str, list[Column]]]:
    """The same of the views: what is to be read in place of two tables, of which one holds each name once."""
    found: dict[str, tuple[str, list[Column]]] = {}
    columns: list[Column] = []
    for line in _lines():
        if view := _VIEW.match(line):
            columns = []
            found[view[1]] = (view[2], columns)
        elif column := _SHOWN.match(line):
            columns.append(Column(*column.groups()))
    return found


def _lines() -> list[str]:
    return [line for migration in MIGRATIONS for line in migration.sql.splitlines()]


def markdown() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    both = {**{f"{name} (a view)": described for name, described in views().items()}, **tables()}
    for name, (row, columns) in both.items():
        parts.append(f"## {name}\nOne row is {row}.\n")
        parts.append("| column | meaning | unit | NULL means |\n|---|---|---|---|")
        parts.extend(f"| {c.name} | {c.meaning} | {c.unit} | {c.null} |" for c in columns)
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(markdown())
