"""The sides of a comparison; each is a run, a sweep, a store, a report, or a folder of reports."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator import memory
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.faults import process_all_but_failing_items, warn_run_or_file_skipped
from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import load_readable_runs
from perfctl.records.sqlite_header import HEADER_BYTES, read_application_id

if TYPE_CHECKING:
    from perfctl.orchestrator.compare.compare import Comparison, ComparisonSide
    from perfctl.records.run import Run


def compare_sides(
    a: Path | str | int,
    b: Path | str | int,
    *,
    gate: float = 0.05,
    anyway: bool = False,
    store: Path | str = DEFAULT,
    messages: Events = SILENT,
    memory_limit: str | int | None = None,
) -> Comparison:
    """Compare B with A, each as :func:`load_comparison_side` takes it."""
    from perfctl.orchestrator.compare import compare as comparing

    raise_if_invalid_gate_share(gate)
    limit = memory.parse_memory_limit(memory_limit)
    sides = [load_comparison_side(text, Path(store), messages, limit) for text in (a, b)]

    def compare_runs(runs: Sequence[tuple[ComparisonSide, Run]]) -> Comparison:
        whole_sides = (
            replace(side, runs=tuple(run for of_side, run in runs if of_side is side))
            for side in sides
        )
        return comparing.compare_two_sides(*whole_sides, gate=gate, is_forced=anyway)

    runs = [(side, run) for side in sides for run in side.runs]
    return process_all_but_failing_items(runs, compare_runs, lambda item: _format_run_name(*item))


def raise_if_invalid_gate_share(gate: float) -> None:
    """Raise UsageError for what is no share."""
    if not (isfinite(gate) and gate >= 0):
        raise UsageError(f"`gate` must be 0 or more, got {gate}", "0.05 is 5%")


def _format_run_name(side: ComparisonSide, run: Run) -> str:
    """Return "run 3 of before.db", or "run 3"."""
    name = f"run {run.id}"
    return name if side.label == name else f"{name} of {side.label}"


def load_comparison_side(
    reference: Path | str | int,
    store: Path,
    messages: Events = SILENT,
    memory_limit: int = 0,
) -> ComparisonSide:
    """The runs of one side. Raises UsageError when nothing has that name, PerfctlError,
    ReportError, StoreError.

    A file or folder of that name comes first, then a sweep of ``store`` (its
    name, the beginning of it, or sweep:3), then a run of it (its number, or run:12).
    """
    from perfctl.orchestrator.compare.compare import ComparisonSide

    text = str(reference)
    path = Path(text)
    if path.exists():
        label = path.name or str(path.resolve())
        if path.name == DEFAULT.name:  # the folder's name tells two of them apart
            label = f"{path.resolve().parent.name}/{path.name}"
        runs = (
            _load_newest_runs_with_repeats(path)
            if is_results_database(path)
            else _ingest_into_temporary_store(path, messages, memory_limit)
        )
    else:
        label, runs = _load_runs_and_label_from_store(text, store)
    if not any(run.status == "ok" for run in runs):
        reason = next((f": {run.reason}" for run in runs if run.reason), "")
        raise PerfctlError(
            f"{text}: no complete run to compare{reason}",
            "Run 'perfctl runs' to list the runs",
        )
    return ComparisonSide(label, tuple(runs))


def is_results_database(path: Path) -> bool:
    """Whether it is a perfctl store, and not an SQLite file that a profiler wrote."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    return read_application_id(head) == database.APPLICATION_ID


def _load_newest_runs_with_repeats(path: Path) -> list[Run]:
    with database.open_store_for_reading(path) as connection:
        newest = read.list_run_ids(connection, latest_per_configuration=True)
        with_repeats = {
            run_id for run in newest for run_id in (run, *read.list_repeat_ids(connection, run))
        }
        return load_readable_runs(connection, sorted(with_repeats))


def _load_runs_and_label_from_store(text: str, store: Path) -> tuple[str, list[Run]]:
    if not store.is_file():
        problem = f"file '{text}' not found, and database {store} does not exist"
        raise UsageError(problem, "Name an existing file, folder or database")
    kind, colon, number = text.partition(":")
    with database.open_store_for_reading(store) as connection:
        if text.isdecimal() or (kind == "run" and number.isdecimal()):
            return f"run {number or text}", load_readable_runs(connection, [int(number or text)])
        sweeps = read.list_sweeps(connection)
        if kind == "sweep" and colon:
            chosen = [row for row in sweeps if str(row["id"]) == number]
        else:
            chosen = [row for row in sweeps if row["name"] == text]
            chosen = chosen or [row for row in sweeps if text and row["name"].startswith(text)]
        if len(chosen) == 1:
            return chosen[0]["name"], load_readable_runs(
                connection, read.list_run_ids(connection, sweep=chosen[0]["id"])
            )
    problem = f"'{text}' is not a file, and not a sweep or run in {store}"
    if chosen:
        problem = f"{len(chosen)} sweeps of {store} begin with '{text}'"
    listed = "; ".join(f"sweep:{row['id']} is {row['name']}" for row in sweeps[-6:])
    other = (
        "Name a database, a report, a folder, or the number of a run ('perfctl runs' lists them)"
    )
    raise UsageError(problem, f"Known: {listed}" if listed else other)


def _ingest_into_temporary_store(path: Path, messages: Events, memory_limit: int) -> list[Run]:
    """Read reports into a temporary store, as ``perfctl ingest`` does. Of several, those that
    cannot be read are skipped."""
    from perfctl.orchestrator.ingest.context import (
        IngestSettings,
        IngestTask,
        NameFacts,
        NoteSent,
        ReportFailed,
    )
    from perfctl.orchestrator.ingest.find import (
        ReportSource,
        find_single_batch_in_name,
        list_report_and_run_paths,
    )
    from perfctl.orchestrator.ingest.ingest import ingest_tasks
    from perfctl.orchestrator.store.write import SweepFacts

    files = list_report_and_run_paths(path) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: no report in this folder", "Name the report file itself")
    sweep = SweepFacts(path.name, "ingest", None, None)
    tasks = [
        IngestTask(ReportSource(file, file), sweep, NameFacts(find_single_batch_in_name(file)))
        for file in files
    ]
    with tempfile.TemporaryDirectory(prefix="perfctl-compare-") as folder:
        store = Path(folder, DEFAULT)
        settings = IngestSettings(store, again=True, limit=memory_limit)
        for _, events in ingest_tasks(tasks, settings):
            for event in events:
                match event:
                    case NoteSent(text):
                        messages.note(text)
                    case ReportFailed(text) if len(files) == 1:
                        raise PerfctlError(text)
                    case ReportFailed(text, is_expected):
                        warn_run_or_file_skipped(f"skipped: {text}" if is_expected else text)
        if not store.exists():
            return []
        with database.open_store_for_reading(store) as connection:
            return load_readable_runs(connection, read.list_run_ids(connection))
