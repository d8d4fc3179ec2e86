"""What may stand for A and B: a run, a sweep, a store, a report or a folder of them."""

from __future__ import annotations

import sqlite3
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.sqlite_header import HEADER_BYTES, application_id

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.compare_records import Side
    from perfctl.parsers.stored import Run


def side(named: str, store: Path) -> Side:
    """The runs that ``named`` stands for. Raises UsageError when it stands for nothing, ReportError, StoreError.

    A file or folder of that name comes first, then a sweep of ``store`` (its name, the beginning of it, or sweep:3),
    then a run of it (its number, or run:12).
    """
    from perfctl.orchestrator.analyse.compare_records import Side

    path = Path(named)
    if path.exists():
        runs = _of_store(path) if _is_store(path) else _of_reports(path)
        return Side(_label(path), tuple(_some(runs, named)))
    label, runs = _in_store(named, store)
    return Side(label, tuple(_some(runs, named)))


def _some(runs: list[Run], named: str) -> list[Run]:
    if not any(run.status == "ok" for run in runs):
        why = next((run.reason for run in runs if run.reason), None)
        said = f": {why}" if why else ""
        raise PerfctlError(f"{named}: holds no whole run, so there is nothing to compare{said}", "See 'perfctl runs'")
    return runs


def _label(path: Path) -> str:
    """A name that tells two of the same kind apart: perfctl.db of two folders by their folder."""
    return (
        f"{path.resolve().parent.name}/{path.name}" if path.name == "perfctl.db" else path.name or str(path.resolve())
    )


def _is_store(path: Path) -> bool:
    """A perfctl store, and not one of the other SQLite files that profilers write."""
    from perfctl.orchestrator.store.database import APPLICATION_ID

    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    return application_id(head) == APPLICATION_ID


def _of_store(path: Path) -> list[Run]:
    """The newest run of each kind, with its repeats."""
    from perfctl.orchestrator.store import database, read

    with database.reading(path) as connection:
        newest = read.run_ids(connection, latest_of_each=True)
        return read.load(
            connection, sorted({one for run in newest for one in (run, *read.repeat_ids(connection, run))})
        )


def _in_store(named: str, store: Path) -> tuple[str, list[Run]]:
    from perfctl.orchestrator.store import database, read

    if not store.is_file():
        raise UsageError(
            f"'{named}' is no file here, and there is no store {store} to look it up in", "Name the store with --store"
        )
    kind, colon, number = named.partition(":")
    with database.reading(store) as connection:
        sweeps = read.sweeps(connection)
        if (named.isdecimal() and kind == named) or (kind == "run" and colon and number.isdecimal()):
            runs = read.load(connection, [int(number or named)])
            return f"run {number or named}", runs
        if kind == "sweep" and colon:
            chosen = [row for row in sweeps if str(row["id"]) == number]
        else:
            chosen = [row for row in sweeps if row["name"] == named] or [
                row for row in sweeps if named and row["name"].startswith(named)
            ]
        if len(chosen) != 1:
            raise UsageError(_not_one(named, store, chosen), _known(sweeps))
        return chosen[0]["name"], read.load(connection, read.run_ids(connection, sweep=chosen[0]["id"]))


def _not_one(named: str, store: Path, chosen: list[dict[str, Any]]) -> str:
    if chosen:
        return f"'{named}' is the beginning of {len(chosen)} sweeps of {store}"
    return f"'{named}' is no file, and no sweep or run of {store}"


def _known(sweeps: list[dict[str, Any]]) -> str:
    named = "; ".join(f"sweep:{row['id']} is {row['name']}" for row in sweeps[-6:])
    return f"Known: {named}" if named else "Give a store, a report, a folder, or the number of a run ('perfctl runs')"


def _of_reports(path: Path) -> list[Run]:
    """Read reports into a store that is thrown away: the same way in as for every other report."""
    from perfctl.orchestrator.cli.intake import sources
    from perfctl.orchestrator.store import database, read
    from perfctl.orchestrator.store.write import SweepFacts
    from perfctl.parsers import ReportError

    files = sources(path) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: no report was found in this folder", "Give the report file itself")
    with tempfile.TemporaryDirectory(prefix="perfctl-compare-") as folder:
        store = Path(folder, "perfctl.db")
        facts = SweepFacts(path.name, "ingest", None, None)
        with database.writing(store) as connection:
            for file in files:
                try:
                    _take(connection, file, facts, store)
                except ReportError as error:
                    if len(files) == 1:
                        raise
                    console.error(str(error))
            return read.load(connection, read.run_ids(connection))


def _take(connection: sqlite3.Connection, file: Path, facts: Any, store: Path) -> None:
    from perfctl.orchestrator.cli.intake import Told, take_report
    from perfctl.orchestrator.cli.look import sha256
    from perfctl.orchestrator.cli.run_intake import take_run
    from perfctl.orchestrator.launch.run_folder import read_run_record

    if file.is_dir() and read_run_record(file) is not None:
        take_run(connection, file, facts, store=store, again=True)
    else:
        take_report(connection, file, partial(sha256, file), facts, Told(), store=store, again=True)
