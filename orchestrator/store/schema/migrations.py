"""The schema, step by step. ``PRAGMA user_version`` is the number of the last migration applied.

``N-perfctl-VERSION.sql`` is migration N and names the perfctl that brought it. The first one
creates the schema of 1.0.0; perfctl 0.x wrote stores with a lower number. A migration that has been
released is never edited: the next change is a new one. Every column says in its comment
``meaning; unit; NULL: when``, in that order, and ``docs/schema.md`` is made from these comments
(``python -m perfctl.orchestrator.store.schema.migrations``), so they also reach anyone who types
``.schema`` in SQLite.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

_FILES = Path(__file__).parent


class Migration(NamedTuple):
    """One step of the schema; ``since`` is the perfctl version that brought it."""

    number: int
    since: str
    sql: str


def _read(path: Path) -> Migration:
    number, since = path.stem.split("-perfctl-")
    return Migration(int(number), since, path.read_text(encoding="utf-8"))


MIGRATIONS = tuple(sorted(map(_read, _FILES.glob("*-perfctl-*.sql"))))
OLDEST, NEWEST = MIGRATIONS[0].number, MIGRATIONS[-1].number
"""Versions of the schema that perfctl opens; it brings an older one up to date."""


class Column(NamedTuple):
    """One column as its comment describes it."""

    name: str
    meaning: str
    unit: str
    null: str


Described = dict[str, tuple[str, list[Column]]]
"""Table or view -> (what one row is, its columns), in the order of the schema."""
_TABLE = re.compile(r"CREATE (TABLE|VIEW) (\w+) (?:\(|AS)\s*-- (.*)")
_COLUMN = re.compile(r"\s{4}(?:\w+\.(?:\w+ AS )?)?\[?(\w+).*?-- (.+?); (.+?); NULL: (.+)")
_ADDED = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+) .*?-- (.+?); (.+?); NULL: (.+)")


def tables() -> Described:
    """The tables, with the columns that later versions added."""
    return _described("TABLE")


def views() -> Described:
    """The views. Each puts together tables of which one holds each name once."""
    return _described("VIEW")


def _described(kind: str) -> Described:
    found: Described = {}
    columns: list[Column] = []
    for line in (line for migration in MIGRATIONS for line in migration.sql.splitlines()):
        if made := _TABLE.match(line):
            columns = []
            if made[1] == kind:
                found[made[2]] = (made[3], columns)
        elif column := _COLUMN.match(line):
            columns.append(Column(*column.groups()))
        elif (added := _ADDED.match(line)) and added[1] in found:
            found[added[1]][1].append(Column(*added.groups()[1:]))
    return found


def markdown() -> str:
    """The whole page."""
    parts = [(_FILES / "introduction.md").read_text(encoding="utf-8")]
    both = {f"{view} (a view)": described for view, described in views().items()} | tables()
    for name, (row, columns) in both.items():
        parts.append(f"## {name}\nOne row is {row}.\n")
        parts.append("| column | meaning | unit | NULL means |\n|---|---|---|---|")
        parts.extend(f"| {' | '.join(column)} |" for column in columns)
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(markdown())
