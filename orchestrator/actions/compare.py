"""Compare two sides: each is a run, a sweep, a store, a report, or a folder of reports."""

from __future__ import annotations

import sqlite3
import tempfile
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.records.sqlite_header import HEADER_BYTES, application_id

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.compare.records import Comparison, Side
    from perfctl.records.run import Run


def compare(
    a: Path | str | int,
    b: Path | str | int,
    *,
    gate: float = 0.05,
    force: bool = False,
    store: Path | str = "perfctl.db",
    messages: Messages = SILENT,
) -> Comparison:
    """Compare B with A: what became slower, what faster, which kernels are new or gone.

    a, b: a store, a report or a folder of reports (paths); a sweep of ``store`` (its name, the beginning of it, or
    "sweep:3"); or a run of it (its number, or "run:12").
    gate: a change up to this share does not count; 0.05 is 5 %.
    force: compare what is not comparable, too; every page then says so.

    Nothing is raised because B is worse: see ``Comparison.regressions``, ``not_comparable`` and ``failed``. Raises
    UsageError for a side that does not exist or a gate that is not a share, PerfctlError for a side without a whole run,
    StoreError and ReportError for files that cannot be read.
    """
    from perfctl.orchestrator.analyse.compare import compare as comparing

    if not (isfinite(gate) and gate >= 0):
        raise UsageError(f"`gate` must be 0 or more, got {gate}", "0.05 is 5 %")
    where = Path(store)
    return comparing.compare(side(a, where, messages), side(b, where, messages), gate=gate, force=force)


def side(given: Path | str | int, store: Path, messages: Messages = SILENT) -> Side:
    """The runs of one side. Raises UsageError when nothing has that name, PerfctlError, ReportError, StoreError.

    A file or folder of that name comes first, then a sweep of ``store`` (its name, the beginning of it, or sweep:3),
    then a run of it (its number, or run:12).
    """
    from perfctl.orchestrator.analyse.compare.records import Side

    named = str(given)
    path = Path(named)
    if path.exists():
        runs = _of_store(path) if _is_store(path) else _of_reports(path, messages)
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
    """The file's name; of a perfctl.db the folder's name, too, which tells two of them apart."""
    return (
        f"{path.resolve().parent.name}/{path.name}" if path.name == "perfctl.db" else path.name or str(path.resolve())
    )


def _is_store(path: Path) -> bool:
    """Whether it is a perfctl store, and not an SQLite file that a profiler wrote."""
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
            f"'{named}' is not a file here, and there is no store {store} to look it up in", "Name another `store`"
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
        return f"{len(chosen)} sweeps of {store} begin with '{named}'"
    return f"'{named}' is neither a file nor a sweep or run of {store}"


def _known(sweeps: list[dict[str, Any]]) -> str:
    named = "; ".join(f"sweep:{row['id']} is {row['name']}" for row in sweeps[-6:])
    return f"Known: {named}" if named else "Give a store, a report, a folder, or the number of a run ('perfctl runs')"


def _of_reports(path: Path, messages: Messages) -> list[Run]:
    """Read reports into a temporary store, as ``perfctl ingest`` does. Of several, those that cannot be read are skipped."""
    from perfctl.orchestrator.actions.ingest.ingest import sources
    from perfctl.orchestrator.store import database, read
    from perfctl.orchestrator.store.write import SweepFacts
    from perfctl.parsers import ReportError

    files = sources(path) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: there is no report in this folder", "Give the report file itself")
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
                    messages.warning(f"skipped: {error}")
            return read.load(connection, read.run_ids(connection))


def _take(connection: sqlite3.Connection, file: Path, facts: Any, store: Path) -> None:
    from perfctl.orchestrator.actions.ingest.ingest import UserHints, take_report
    from perfctl.orchestrator.actions.ingest.run import take_run
    from perfctl.orchestrator.actions.ingest.scan_file import sha256
    from perfctl.orchestrator.launch.sweep.folders import read_run_record

    if file.is_dir() and read_run_record(file) is not None:
        take_run(connection, file, facts, store=store, again=True)
    else:
        take_report(connection, file, partial(sha256, file), facts, UserHints(), store=store, again=True)
