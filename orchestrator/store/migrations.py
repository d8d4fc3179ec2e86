"""The schema, step by step. ``PRAGMA user_version`` is the number of the last migration applied.

A migration that has been released is never edited: the next change is a new one. Every column says in
its comment ``meaning; unit; NULL: when``, in that order, and ``docs/schema.md`` is made from these
comments (``python -m perfctl.orchestrator.store.describe``), so they also reach anyone who types
``.schema`` in SQLite.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfctl.orchestrator.store.first_schema import FIRST


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

MIGRATIONS: tuple[Migration, ...] = (Migration(1, "0.1.0", FIRST), Migration(2, "0.2.0", _SAMPLED_BESIDE))
