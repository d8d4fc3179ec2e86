"""The schema, step by step. ``PRAGMA user_version`` is the number of the last migration applied.

A migration that has been released is never edited: the next change is a new one. Every column says in
its comment ``meaning; unit; NULL: when``, in that order, and ``docs/schema.md`` is made from these
comments (``python -m perfctl.orchestrator.store.schema.migrations``), so they also reach anyone who types
``.schema`` in SQLite.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from perfctl.orchestrator.store.schema.v1 import FIRST


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; ``since`` is the perfctl version that brought it."""

    number: int
    since: str
    sql: str


_SAMPLED_BESIDE = """
ALTER TABLE sample ADD COLUMN memory_clock_hz INTEGER; -- current; Hz; NULL: not collected
ALTER TABLE sample ADD COLUMN energy_j REAL; -- since the driver was loaded; two readings give a run's; J; NULL: not collected
ALTER TABLE sample ADD COLUMN throttle_reasons TEXT; -- what holds the clocks back, joined by +, or none; -; NULL: not collected
ALTER TABLE sample ADD COLUMN process_memory_bytes INTEGER; -- on the device, by the run's processes; byte; NULL: not told
ALTER TABLE sample ADD COLUMN process_utilisation REAL; -- the same of gpu_utilisation; 0..1; NULL: not told by the driver
ALTER TABLE sample ADD COLUMN host_cpu REAL; -- cores the run's processes kept busy since the last; count; NULL: a GPU's reading
ALTER TABLE sample ADD COLUMN host_memory_bytes INTEGER; -- resident, shared pages once each; byte; NULL: a GPU's reading
"""

_BENCH = """
CREATE TABLE layer_time (         -- how long one layer took in one direction, in steps of their own (perfctl bench)
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    layer TEXT NOT NULL,          -- dotted module path, (model) for the model between its layers; -; NULL: never
    kind TEXT NOT NULL,           -- class of the module; -; NULL: never
    direction TEXT NOT NULL,      -- forward, backward, grad_input, grad_weight, recompute; -; NULL: never
    duration_ns INTEGER NOT NULL, -- median over the steps, without layers within it; ns; NULL: never
    low_ns INTEGER NOT NULL,      -- of the fastest step; ns; NULL: never
    high_ns INTEGER NOT NULL,     -- of the slowest step; ns; NULL: never
    steps INTEGER NOT NULL        -- how many steps; count; NULL: never
);
CREATE INDEX layer_time_by_run ON layer_time(run_id);
CREATE TABLE feature (            -- one figure of a step from pen and paper, that times are set against
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- what it counts, macs, macs:Conv2d, bytes, layers, parameters, ...; -; NULL: never
    value REAL NOT NULL,          -- the figure; in the unit beside it; NULL: never
    unit TEXT                     -- its unit; -; NULL: a plain count
);
CREATE INDEX feature_by_run ON feature(run_id);
"""

MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "0.1.0", FIRST),
    Migration(2, "0.2.0", _SAMPLED_BESIDE),
    Migration(3, "0.3.0", _BENCH),
)


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

This page is made from the migrations: `python -m perfctl.orchestrator.store.schema.migrations`.

## Changes of your own

The store is yours. Add columns, tables, views and indexes, rebuild a table, make a search index: with
`sqlite-utils`, which is installed with perfctl, Datasette, or any SQLite tool. perfctl needs
its own columns and looks at nothing else.

| you did | perfctl |
|---|---|
| `sqlite-utils add-column`, `create-index`, `create-view`, `create-table`, `insert` | leaves it; NOT NULL needs a default |
| `sqlite-utils transform`: another order, other types, no foreign keys | reads every value as the type given below |
| a trigger on one of these tables | it does not fire while perfctl writes, and a note names it once a command. It stays in the store |
| `sqlite-utils enable-fts --create-triggers`, `enable-counts` | rebuilds these after each run it writes; the triggers do not fire |
| a view or virtual table in place of a table | reads it, with a note, if it has the columns; refuses to write to it, with what to do |
| another `kernel` or `counter` view, or none | reads the tables behind its own view, with a note if there is another |
| a column renamed or dropped | names it, with the command that adds it |

`perfctl query --search` finds kernels and layers by name; it needs no index in the store.
A time below 0, or a count that is not a number, is stored as NULL with a row in `gap`.
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
    """{view: (what one row is, its columns)}. A view puts together tables of which one holds each name once."""
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
