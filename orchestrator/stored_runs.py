"""Runs of a store, each by itself: one that cannot be read or analysed is said and left out."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from perfctl.orchestrator import pool
from perfctl.orchestrator.errors import PartlyDone, PerfctlError
from perfctl.orchestrator.faults import (
    isolate_unexpected_exception,
    process_all_but_failing_items,
    warn_run_or_file_skipped,
)
from perfctl.orchestrator.ledger.prepared import Study, group_into_studies
from perfctl.orchestrator.store import DEFAULT_STORE, database, read
from perfctl.parsers import pause_garbage_collection
from perfctl.records.run import Run

R = TypeVar("R")

MANY = 50
"""Runs from which on a second process takes less time than it costs."""
MOST = 4
"""Processes, each of which holds a study."""

_REMEDY = "Ingest its report again into a new database"

_Outcome = tuple[Any, PartlyDone | None]
"""What was made of a group of runs, or None; and the error where nothing was left of it."""


def load_readable_runs(
    connection: sqlite3.Connection, ids: Iterable[int], max_op_calls: int = 0
) -> list[Run]:
    """Whole runs, in the order asked for, without those that cannot be read, with the
    ``max_op_calls`` longest operators and calls of each. Raises StoreError when one is not
    there."""
    return _read_runs_skipping_unreadable(
        connection, ids, lambda run_id: read.load_run(connection, run_id, max_op_calls)
    )


def runs(store: Path | str = DEFAULT_STORE, *, sweep: int | None = None) -> list[Run]:
    """Return every run of a results database, or of one sweep, with all of its rows, oldest first.
    Raises StoreError if there is no database."""
    return _load_store_runs(Path(store), sweep, latest_per_configuration=False)


def load_latest_runs_per_configuration(store: Path, sweep: int | None = None) -> list[Run]:
    """Return the newest run of each kind, whole: what a page shows. Raises StoreError if there is
    no store."""
    return _load_store_runs(store, sweep, latest_per_configuration=True)


def _load_store_runs(
    store: Path, sweep: int | None, *, latest_per_configuration: bool
) -> list[Run]:
    with database.open_store_for_reading(store) as connection, pause_garbage_collection():
        return load_readable_runs(
            connection,
            read.list_run_ids(
                connection, sweep=sweep, latest_per_configuration=latest_per_configuration
            ),
        )


def load_runs_without_report_rows(connection: sqlite3.Connection, ids: Iterable[int]) -> list[Run]:
    """These runs with their devices and nothing else of their reports. Raises what
    :func:`load_readable_runs` raises."""
    return _read_runs_skipping_unreadable(
        connection, ids, lambda run_id: read.load_run_without_report_rows(connection, run_id)
    )


def _read_runs_skipping_unreadable(
    connection: sqlite3.Connection, ids: Iterable[int], read_one: Callable[[int], Run]
) -> list[Run]:
    store = Path(connection.execute("PRAGMA database_list").fetchone()[2]).name
    runs: list[Run] = []
    for run_id in ids:
        with _skip_unreadable_run(f"{store}: run {run_id}", warn_run_or_file_skipped):
            runs.append(read_one(run_id))
    return runs


def load_sweep_runs(
    store: Path,
    sweep_names: Sequence[str],
    *,
    latest_per_configuration: bool = True,
    artifact_folder: str = "",
) -> list[Run]:
    """Return the newest run of each kind, or every run, of these sweeps, whole, oldest sweep first;
    without those whose reports lie outside of ``artifact_folder`` (a path as the database has
    them).

    A sweep has no runs of its own if all its reports are in the store already, as runs of another
    sweep.
    """
    with database.open_store_for_reading(store) as connection:
        numbers = {row["name"]: row["id"] for row in reversed(read.list_sweeps(connection))}
        chosen = sorted(numbers[name] for name in sweep_names if name in numbers)
        ids = (
            read.list_run_ids(
                connection,
                sweep=number,
                latest_per_configuration=latest_per_configuration,
                artifact_folder=artifact_folder,
            )
            for number in chosen
        )
        return load_readable_runs(connection, chain.from_iterable(ids))


@contextmanager
def _skip_unreadable_run(name: str, on_failure: Callable[[str], None]) -> Iterator[None]:
    """Skip the block if its stored run cannot be read or analysed, and give ``on_failure`` one
    line."""
    name = f"{name} cannot be analysed"
    with isolate_unexpected_exception(name, on_failure):
        try:
            yield
        except read.BadStoredRecord as error:
            on_failure(f"{name}: {error}. {_REMEDY}")
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            on_failure(f"{name}: the store is damaged ({error}). {_REMEDY}")


def run_work_per_study(
    store: Path,
    run_outlines: Sequence[Run],
    work: Callable[[Sequence[Run]], R],
    *,
    group_related_studies: bool = False,
    is_result_picklable: bool = False,
) -> Iterator[R]:
    """Yield what ``work`` makes of the runs of each study, whole, one study after the other: a
    process holds no more than one.

    ``group_related_studies``: with the studies of the same sweep, workload and mode,
    and with those in between. ``is_result_picklable``: what ``work`` makes can be pickled, so that
    several processes share the studies of many runs. Raises StoreError where one is not there,
    PartlyDone where nothing is left of one.
    """

    all_studies = (
        run_work_without_failing_runs(run_outlines, lambda some: list(group_into_studies(some)))
        if run_outlines
        else []
    )
    groups = [
        sorted(ids) if len(group) > 1 else ids
        for group in (
            _batch_related_studies(all_studies)
            if group_related_studies
            else ([study] for study in all_studies)
        )
        if (ids := [run.id for study in group for run in study.runs])
    ]

    @contextmanager
    def open_store() -> Iterator[Callable[[list[int], object], _Outcome]]:
        with database.open_store_for_reading(store) as connection, pause_garbage_collection():
            yield lambda ids, _: _run_work_or_catch_partly_done(
                load_readable_runs(connection, ids), work
            )

    processes = min(len(os.sched_getaffinity(0)), MOST, len(groups))
    if (
        is_result_picklable
        and len(run_outlines) >= MANY
        and processes > 1
        and pool.can_fork_safely(store)
    ):
        yield from _yield_results_or_raise_last_error(
            _run_in_workers(groups, open_store, processes)
        )
        return
    with open_store() as make:
        yield from _yield_results_or_raise_last_error(make(ids, None) for ids in groups)


def _run_in_workers(
    groups: Sequence[list[int]], opened: pool.Opened[list[int]], processes: int
) -> Iterator[_Outcome]:
    with closing(pool.run_in_workers(groups, opened, processes=processes)) as running:
        for _, events in running:
            (last,) = events
            if isinstance(last, pool.WorkerLost):
                remedy = "Try again; if memory ran out, close other programs first"
                raise PerfctlError(f"the analysis stopped early: {last.why}", remedy)
            yield last.result


def _batch_related_studies(studies_: Sequence[Study]) -> Iterator[list[Study]]:
    last: dict[tuple[object, ...], int] = {}
    keys = [
        {(run.sweep_id, study.workload, study.mode) for run in study.runs} for study in studies_
    ]
    for index, study_keys in enumerate(keys):
        last |= dict.fromkeys(study_keys, index)
    batch: list[Study] = []
    until = 0
    for index, (study, study_keys) in enumerate(zip(studies_, keys, strict=True)):
        batch.append(study)
        until = max(until, *(last[key] for key in study_keys))
        if index == until:
            yield batch
            batch, until = [], index + 1


def load_single_run(connection: sqlite3.Connection, run_id: int) -> Run:
    """One run. Raises StoreError where it is not there, PartlyDone where it cannot be read."""
    with _skip_unreadable_run(f"run {run_id}", _raise_partly_done):
        return read.load_run(connection, run_id)


def _raise_partly_done(message: str) -> NoReturn:
    raise PartlyDone(message)


def run_work_or_raise_partly_done(run: Run, work: Callable[[], R]) -> R:
    """What ``work`` makes of one run. Raises PartlyDone where it fails unexpectedly."""
    with isolate_unexpected_exception(
        f"run {run.id} cannot be analysed", _raise_partly_done, exceptions_to_reraise=(OSError,)
    ):
        return work()


def run_work_without_failing_runs(runs: Sequence[Run], work: Callable[[Sequence[Run]], R]) -> R:
    """What ``work`` makes of these runs, or of those of them that it does not fail on
    unexpectedly."""
    return process_all_but_failing_items(
        runs,
        work,
        lambda run: (
            f"run {run.id} ({run.profiler}, {run.artifact or 'no report'}) cannot be analysed"
        ),
    )


def run_work_per_group(
    groups: Iterable[Sequence[Run]], work: Callable[[Sequence[Run]], R]
) -> Iterator[R]:
    """The same for one group of runs after the other; one of which nothing is left is passed over,
    if there are others."""
    yield from _yield_results_or_raise_last_error(
        _run_work_or_catch_partly_done(runs, work) for runs in groups
    )


def _run_work_or_catch_partly_done(
    runs: Sequence[Run], work: Callable[[Sequence[Run]], R]
) -> _Outcome:
    try:
        return (run_work_without_failing_runs(runs, work) if runs else None), None
    except PartlyDone as error:
        return None, error


def _yield_results_or_raise_last_error(outcomes: Iterable[_Outcome]) -> Iterator[Any]:
    """Yield what was made of groups; raise the last error where nothing was made of any."""
    failed, has_result = None, False
    for result, error in outcomes:
        failed = error or failed
        if result is not None:
            has_result = True
            yield result
    if failed is not None and not has_result:
        raise failed
