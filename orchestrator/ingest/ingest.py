"""Take reports that were made elsewhere, and folders of perfctl's own runs, from disk into the
database.

Each file is read by a worker process. A single worker writes into the database itself. Several
write each file into a small database of its own, from where this process copies the runs in the
order of the files: the result does not depend on the number of workers.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator import memory, pool
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.flops import registered
from perfctl.orchestrator.faults import isolate_unexpected_exception
from perfctl.orchestrator.files import make_locked_scratch_folder, remove_unlocked_scratch_folders
from perfctl.orchestrator.ingest.context import (
    NO_HINTS,
    Estimate,
    Event,
    FileEnded,
    FileStarted,
    Hear,
    IngestResult,
    IngestSettings,
    IngestTask,
    NameFacts,
    NoteSent,
    ReportFailed,
    RunStored,
    SourcesCounted,
    StoredRanks,
    UserHints,
    WarningSent,
    ignore_event,
)
from perfctl.orchestrator.ingest.derive import derive_counts_of_underived_runs
from perfctl.orchestrator.ingest.expect import (
    parse_formulas_and_formula_files,
    parse_parameters,
    store_expectations_and_yield_problems,
)
from perfctl.orchestrator.ingest.find import (
    Ask,
    ReportSource,
    describe_batches_from_names,
    find_batches_in_names,
    find_ranks_in_names,
    find_report_sources,
    is_perfctl_run_folder,
)
from perfctl.orchestrator.ingest.reports import ingest_report
from perfctl.orchestrator.ingest.run_folders import ingest_run_folder
from perfctl.orchestrator.store import bulk, database, merge, write
from perfctl.orchestrator.store.write import SweepFacts, WrittenRun
from perfctl.parsers import ReportError
from perfctl.workloads.spec import MODES, PRECISIONS

OWN_RECORD = "workload.json"
"""perfctl's own record of a run, which says its batch size."""
WORTH_BYTES = 16 << 20
"""Large files are worth a process each, and smaller ones several where they are as large together:
the runs that several processes read are copied."""
_PARTS = "perfctl-ingest"
"""Name of the folder of small databases; what a killed ingest left of it goes with the next."""
_EMPTY = "empty.db"
"""Without runs; each small database begins as a copy of it."""
_PAGE_BYTES = 4096
"""Of a small database: each of its hundred tables and indexes takes a page."""
_SECONDS, _BYTES_A_SECOND = 3600, 500_000
"""A worker that takes longer for a file than an hour, and this, hangs; the slowest format reads
eight times as much."""
_CALLS = count()


def ingest_paths(
    paths: Path | str | Iterable[Path | str],
    store: Path | str,
    *,
    hints: UserHints = NO_HINTS,
    again: bool = False,
    listener: Hear = ignore_event,
    command_line: str | None = None,
    ask: Ask | None = None,
    jobs: int | None = None,
    memory_limit: str | int | None = None,
    estimate: Estimate | None = None,
) -> IngestResult:
    """Take reports of any profiler that perfctl knows, and run folders, into ``store``, which is
    made if need be.

    ``paths``: report files, archives and folders that hold some, and patterns for them
    (``runs/*.csv``). Each report goes in whole or not at all; one that cannot be read is in
    ``failed`` and does not stop the others. ``again`` takes in once more what the database has
    already. ``listener`` is called with each event. ``command_line`` is stored with the runs.
    ``ask`` is called for a report whose name may say several batch sizes. ``jobs``: processes that
    read at the same time; the result does not depend on it. ``memory_limit``: how much memory the
    reading of a report may take ("2GiB", or bytes; 0 is no limit). ``estimate``: estimates the
    workload whose layers are guessed.

    Raises UsageError for hints that make no sense and, without ``ask``, for such a name;
    what ``estimate`` raises; StoreError.
    """
    _raise_if_hints_invalid(hints)
    if not hints.guess_layers:
        estimate = None
    if estimate is not None:  # what is wrong with the workload is said before anything is read
        estimate(str(hints.workload), hints.mode or "train", 1)
    if hints.formulas is not None:
        registered.execute_formula_file_once(hints.formulas)
    parameters, formulas = (
        parse_parameters(hints.parameters),
        parse_formulas_and_formula_files(hints.expect),
    )
    store, limit = Path(store), memory.parse_memory_limit(memory_limit)
    requested = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    now, number = write.format_utc_now(), next(_CALLS)
    again_here = f".{number}" if number else ""  # keeps calls within a second apart
    name = f"ingest {now} {os.getpid()}{again_here}"
    sweep = SweepFacts(name, "ingest", command_line, None, now)
    written_reports: list[tuple[Path, WrittenRun]] = []
    failed: list[str] = []
    empty: list[Path] = []
    with find_report_sources(requested, limit) as findings:
        listener(SourcesCounted(len(findings.list_report_sources())))
        names = find_name_batches_and_ranks(findings.list_report_sources(), hints, ask)
        batches = {path: name.batch_size for path, name in names.items() if name.batch_size}
        for text in (*findings.notes, *describe_batches_from_names(batches)):
            listener(NoteSent(text))
        tasks = [
            IngestTask(source, sweep, names[source.shown])
            for source in findings.list_report_sources()
        ]
        jobs = choose_job_count(jobs, findings.list_report_sources())
        settings = IngestSettings(store, hints, again, limit, estimate=estimate)
        with closing(ingest_tasks(tasks, settings, jobs)) as taking:
            for entry in findings.entries:
                events = [ReportFailed(entry)] if isinstance(entry, str) else next(taking)[1]
                for event in events:
                    listener(event)
                    match event:
                        case ReportFailed(text):
                            failed.append(text)
                        case RunStored(path, written):
                            written_reports.append((path, written))
                            empty += [path] if event.is_empty else []
            next(taking, None)
    updated = ["parameters"] if parameters else []
    updated += ["formulas"] if formulas or registered.KERNELS else []
    if updated:
        run_ids = [written.run_id for _, written in written_reports]
        for text in store_expectations_and_yield_problems(store, run_ids, formulas, parameters):
            listener(WarningSent(text))
    return IngestResult(
        store, tuple(written_reports), tuple(failed), tuple(empty), " and ".join(updated)
    )


def _raise_if_hints_invalid(hints: UserHints) -> None:
    """Raise UsageError for hints that make no sense."""
    for field_name, value, allowed in (
        ("mode", hints.mode, MODES),
        ("precision", hints.precision, PRECISIONS),
    ):
        if value is not None and value not in allowed:
            raise UsageError(
                f"invalid value '{value}' for `{field_name}`", f"Choose {', '.join(allowed)}"
            )
    if hints.batch is not None and hints.batch < 1:
        raise UsageError(f"`batch` must be at least 1, got {hints.batch}")
    if hints.guess_layers and hints.workload is None:
        remedy = "Set it with `workload`: mnist_cnn, torchvision:resnet18, ..."
        raise UsageError("`guess_layers` needs the name of the network", remedy)


def find_name_batches_and_ranks(
    sources: Sequence[ReportSource], hints: UserHints, ask: Ask | None
) -> dict[Path, NameFacts]:
    """Return what the name of each says, by ``ReportSource.shown``. A run folder says its batch
    size itself; the name of a DLProf folder may say it. Raises UsageError."""
    silent = [
        source.shown
        for source in sources
        if hints.batch is None
        and source.path.name != OWN_RECORD
        and not is_perfctl_run_folder(source.path)
    ]
    batches = find_batches_in_names(silent, hints.batch_pattern, ask)
    ranks = find_ranks_in_names(source.shown for source in sources if not source.path.is_dir())
    return {
        source.shown: NameFacts(batches.get(source.shown), *ranks.get(source.shown, (None, None)))
        for source in sources
    }


def choose_job_count(requested: int | None, sources: Sequence[ReportSource]) -> int:
    """Return how many processes read: as many as asked for, else one a core where there is enough
    to read. Raises UsageError."""
    if requested is not None and requested < 1:
        raise UsageError(
            f"`jobs` must be at least 1, got {requested}", "Omit `jobs` for one per core"
        )
    jobs = requested or len(os.sched_getaffinity(0))
    if requested is None:
        sizes = [_measure_file_or_folder_bytes(source.path) for source in sources]
        large = [size for size in sizes if size >= WORTH_BYTES]
        if sum(sizes) - sum(large) < WORTH_BYTES:
            jobs = min(jobs, max(1, len(large)))
    return max(1, min(jobs, len(sources)))


def _measure_file_or_folder_bytes(path: Path) -> int:
    """Return the bytes of a file, or of the files in a run's folder."""
    try:
        return (
            sum(map(_measure_file_or_folder_bytes, path.iterdir()))
            if path.is_dir()
            else path.stat().st_size
        )
    except OSError:
        return 0


def ingest_tasks(
    tasks: Sequence[IngestTask], settings: IngestSettings, jobs: int = 1
) -> Generator[tuple[IngestTask, Iterator[Event]]]:
    """Yield each task with its events, in order, while ``jobs`` workers take them into the
    database.

    Raises what ends an ingest: StoreError, ToolMissing and their like. No worker, temporary file or
    empty database is left behind.
    """
    store = settings.store
    with ExitStack() as stack:
        stack.enter_context(database.remove_new_empty_store_on_exit(store))
        with database.open_store_for_writing(store) as connection:
            derive_counts_of_underived_runs(connection)
            query = (
                "SELECT artifact_sha256, max(id) FROM run WHERE artifact_sha256 IS NOT NULL "
                "GROUP BY artifact_sha256"
            )
            known_digests = {} if settings.again else dict(connection.execute(query).fetchall())
            settings = replace(
                settings,
                known=known_digests,
                ranks=_find_stored_nonzero_rank_runs(connection),
                formulas=tuple(registered.LOADED),
            )
        remove_unlocked_scratch_folders(store.absolute().parent, _PARTS)
        if jobs > 1:
            parts = stack.enter_context(make_locked_scratch_folder(store.absolute().parent, _PARTS))
            settings = replace(settings, parts=parts)
            with closing(sqlite3.connect(parts / _EMPTY)) as empty:
                empty.executescript(
                    f"PRAGMA page_size = {_PAGE_BYTES}; CREATE TABLE t (c); DROP TABLE t"
                )
            with database.open_store_for_writing(parts / _EMPTY):
                pass
        running = pool.run_in_workers(
            tasks,
            partial(_open_task_ingester, settings),
            processes=jobs,
            memory_limit_bytes=settings.limit,
            get_time_limit_s=lambda task: (
                _SECONDS + _measure_file_or_folder_bytes(task.source.path) / _BYTES_A_SECOND
            ),
            store_path=store if jobs == 1 else None,
            # torch's OpenMP threads, which the estimate started here, do not survive a fork
            may_fork=settings.estimate is None,
        )
        stack.enter_context(closing(running))
        # Workers with small stores never open the real one: it may be open here while they start.
        copies = stack.enter_context(database.open_store_for_writing(store)) if jobs > 1 else None
        for task, heard in running:
            yield task, _convert_events_and_copy_runs(task, heard, copies, settings)


def _find_stored_nonzero_rank_runs(connection: sqlite3.Connection) -> dict[int, StoredRanks]:
    """Return for each run folder's run that is the rank 0 of its job its other ranks."""
    query = """
        SELECT first.id, sweep.name, sweep.kind, other.rank, other.id
        FROM run AS first JOIN sweep ON sweep.id = first.sweep_id
        LEFT JOIN run AS other ON other.sweep_id = first.sweep_id AND other.rank > 0
            AND other.profiler = first.profiler AND other.batch_size IS first.batch_size
            AND other.started_at IS first.started_at
        WHERE first.rank = 0 AND first.origin <> 'ingested'"""
    ranks: dict[int, StoredRanks] = {}
    for run_id, name, kind, rank, other in connection.execute(query):
        stored = ranks.setdefault(run_id, StoredRanks(SweepFacts(name, kind, None, None)))
        if other is not None:
            stored.runs[rank] = other
    return ranks


def ingest_run_folders(
    tasks: Sequence[IngestTask], settings: IngestSettings
) -> Iterator[tuple[IngestTask, RunStored | ReportFailed]]:
    """Yield what became of each run folder. Raises what ``ingest_tasks`` raises."""
    for task, events in ingest_tasks(tasks, settings):
        *_, outcome = (event for event in events if isinstance(event, (RunStored, ReportFailed)))
        yield task, outcome


def _convert_events_and_copy_runs(
    task: IngestTask,
    worker_events: Iterator[object],
    connection: sqlite3.Connection | None,
    settings: IngestSettings,
) -> Iterator[Event]:
    """Yield the events of a task; with ``connection``, once its runs were copied there."""
    source = task.source
    yield FileStarted(source.path)
    if connection is not None:
        worker_events = iter(
            _copy_runs_from_part_database(list(worker_events), connection, task.sweep, settings)
        )
    for event in worker_events:
        match event:
            case pool.WorkerLost(why):
                suffix = " Parse it with fewer `jobs`" if connection else ""
                reason = f"{source.shown}: {why}. perfctl skipped it.{suffix}"
                yield ReportFailed(reason.removesuffix("."), is_expected=False)
            case NoteSent() | WarningSent() | RunStored() | ReportFailed():
                yield event
    yield FileEnded()


def _copy_runs_from_part_database(
    events: list[object],
    connection: sqlite3.Connection,
    sweep: SweepFacts,
    settings: IngestSettings,
) -> list[object]:
    """Copy the runs of a small database; the events, with the numbers that the runs have now."""
    if not isinstance(events[-1], pool.WorkDone):
        return events[-1:]  # what a worker wrote before it died is gone with it
    part: Path = events[-1].result
    with bulk.attach_read_only(connection, part, merge.PART):
        for index, event in enumerate(events):
            if not isinstance(event, RunStored):
                continue
            again, run_id, ranks = settings.again, event.written.run_id, event.ranks or ()
            if event.written.new:
                run_id, is_new = merge.copy_run_from_attached_database(
                    connection,
                    run_id,
                    sweep,
                    allow_duplicate_artifact=again,
                    keep_failed_runs=event.ranks is None,
                )
                events[index] = (
                    replace(event, written=replace(event.written, run_id=run_id))
                    if is_new
                    else RunStored(event.path, WrittenRun(run_id, new=False))
                )
                ranks = ranks if is_new else ()
            elif ranks:
                sweep = settings.ranks[run_id].sweep
            for rank in ranks:
                merge.copy_run_from_attached_database(
                    connection, rank, sweep, allow_duplicate_artifact=again, keep_failed_runs=True
                )
    part.unlink()
    return events


@contextmanager
def _open_task_ingester(
    settings: IngestSettings,
) -> Iterator[Callable[[IngestTask, pool.Tell], Path | None]]:
    """What a worker needs for all its tasks; gives what takes one: into the database, or into a
    small database of its own, whose path it returns."""
    for path in settings.formulas:
        registered.execute_formula_file_once(path)
    if settings.parts is not None:
        yield partial(_ingest_into_part_database, settings, settings.parts)
        return
    with database.open_store_for_writing(settings.store) as connection:
        yield partial(_ingest_report_or_run_folder, connection, settings)


def _ingest_into_part_database(
    settings: IngestSettings, parts_folder: Path, task: IngestTask, tell: pool.Tell
) -> Path:
    handle, name = tempfile.mkstemp(suffix=".db", dir=parts_folder)
    os.close(handle)
    shutil.copyfile(parts_folder / _EMPTY, name)
    with closing(sqlite3.connect(name, isolation_level=None, uri=True)) as part_connection:
        # Nobody else sees this file before it is whole, and it need not survive a power cut.
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            part_connection.execute(f"PRAGMA {pragma}")
        _ingest_report_or_run_folder(part_connection, settings, task, tell)
    return Path(name)


def _ingest_report_or_run_folder(
    connection: sqlite3.Connection, settings: IngestSettings, task: IngestTask, tell: pool.Tell
) -> None:
    """Take one report or run folder into the database behind ``connection``, and tell what came
    of it."""
    source = task.source
    is_of_store = partial(database.is_store_damaged, connection)
    try:
        with isolate_unexpected_exception(
            source.shown,
            lambda why: tell(ReportFailed(why, is_expected=False)),
            memory_limit_bytes=settings.limit,
            is_store_damaged=is_of_store,
            exceptions_to_reraise=(OSError,),
        ):
            if is_perfctl_run_folder(source.path):
                ingest_run_folder(connection, task, settings, tell)
                return
            parsers.raise_if_pipe_socket_or_device(source.path)
            source.path.stat()  # raises FileNotFoundError
            with parsers.pause_garbage_collection():
                ingest_report(connection, task, settings, tell)
    except FileNotFoundError:
        tell(ReportFailed(f"{source.shown}: file not found"))
    except OSError as error:
        path_name = source.replace_path_with_user_path(str(error.filename or source.path))
        tell(ReportFailed(f"{path_name}: {error.strerror or error}. Check the permissions"))
    except ReportError as error:
        tell(ReportFailed(source.replace_path_with_user_path(str(error))))
