"""Take reports that were made elsewhere, and folders of perfctl's own runs, from disk into
the store.

Each file is read by a worker process. A single worker writes into the store itself. Several write
each file into a small store of its own, from where this process copies the runs in the order of
the files: the result does not depend on the number of workers.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator import pool
from perfctl.orchestrator.analyse.kernels.names import family
from perfctl.orchestrator.analyse.usage.served import placed
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.faults import alone
from perfctl.orchestrator.files import scratch, sha256
from perfctl.orchestrator.ingest.complete import complete, estimate_calls
from perfctl.orchestrator.ingest.context import (
    Context,
    NameFacts,
    Settings,
    Task,
    UserHints,
    relative_path,
)
from perfctl.orchestrator.ingest.derive import derive, derive_missing
from perfctl.orchestrator.ingest.events import (
    Ended,
    Event,
    Failed,
    Note,
    Started,
    Stored,
    Warned,
)
from perfctl.orchestrator.ingest.find import Source, is_run_folder
from perfctl.orchestrator.ingest.names import Ask, batches_in_names, ranks_in_names
from perfctl.orchestrator.ingest.run_folder import take_run
from perfctl.orchestrator.store import database, merge
from perfctl.orchestrator.store.write import (
    RunFacts,
    SweepFacts,
    Written,
    holds_rows,
    set_partial,
    write_run,
)
from perfctl.parsers import ReportError
from perfctl.parsers.text.doubts import SOURCE
from perfctl.records.report import Report

OWN_RECORD = "workload.json"
"""perfctl's own record of a run, which says its batch size."""
WORTH_BYTES = 16 << 20
"""Large files are worth a process each, and smaller ones several where they are as large together:
the runs that several processes read are copied."""
_EMPTY = "empty.db"
"""Without runs; each small store begins as a copy of it."""
_PAGE_BYTES = 4096
"""Of a small store: each of its hundred tables and indexes takes a page."""
_TABLES = ("kernel", "operation", "range", "sample", "summary", "copy", "counter")
"""Quantities of gaps that are whole tables, what is looked for most first."""
_SECONDS, _BYTES_A_SECOND = 3600, 500_000
"""A worker that takes longer for a file than an hour, and this, hangs; the slowest format reads
eight times as much."""


def read_names(
    sources: Sequence[Source], hints: UserHints, ask: Ask | None
) -> dict[Path, NameFacts]:
    """Return what the name of each says, by ``Source.shown``. A run folder says its batch size
    itself; the name of a DLProf folder may say it. Raises UsageError."""
    silent = [
        source.shown
        for source in sources
        if hints.batch_size is None
        and source.path.name != OWN_RECORD
        and not is_run_folder(source.path)
    ]
    batches = batches_in_names(silent, hints.batch_pattern, ask)
    ranks = ranks_in_names(source.shown for source in sources if not source.path.is_dir())
    return {
        source.shown: NameFacts(batches.get(source.shown), *ranks.get(source.shown, (None, None)))
        for source in sources
    }


def count_jobs(asked: int | None, sources: Sequence[Source]) -> int:
    """Return how many processes read: as many as asked for, else one a core where there is enough
    to read. Raises UsageError."""
    if asked is not None and asked < 1:
        raise UsageError(
            f"`jobs` must be at least 1, got {asked}", "Leave `jobs` out for one a core"
        )
    jobs = asked or len(os.sched_getaffinity(0))
    if asked is None:
        sizes = [_size(source.path) for source in sources]
        large = [size for size in sizes if size >= WORTH_BYTES]
        if sum(sizes) - sum(large) < WORTH_BYTES:
            jobs = min(jobs, max(1, len(large)))
    return max(1, min(jobs, len(sources)))


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files in a run's folder."""
    try:
        return sum(map(_size, path.iterdir())) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0


def take(
    tasks: Sequence[Task], settings: Settings, jobs: int = 1
) -> Generator[tuple[Task, Iterator[Event]]]:
    """Yield each task with its events, in order, while ``jobs`` workers take them into the store.

    Raises what ends an ingest: StoreError, ToolMissing and their like. No worker, temporary file or
    empty store is left behind.
    """
    store, known_runs = settings.store, set[int]()
    with ExitStack() as stack:
        stack.enter_context(database.no_empty(store))
        with database.writing(store) as connection:
            query = (
                "SELECT artifact_sha256, max(id) FROM run WHERE artifact_sha256 IS NOT NULL "
                "GROUP BY artifact_sha256"
            )
            known = {} if settings.again else dict(connection.execute(query).fetchall())
        settings = replace(settings, known=known)
        if jobs > 1:
            parts = stack.enter_context(scratch(store.absolute().parent, "perfctl-ingest"))
            settings = replace(settings, parts=parts)
            _make_empty_store(parts / _EMPTY)
        running = pool.run(
            tasks,
            partial(_open_worker, settings),
            processes=jobs,
            limit=settings.limit,
            seconds=lambda task: _SECONDS + _size(task.source.path) / _BYTES_A_SECOND,
            store=store if jobs == 1 else None,
        )
        stack.enter_context(closing(running))
        # Workers with small stores never open the real one: it may be open here while they start.
        copies = stack.enter_context(database.writing(store)) if jobs > 1 else None
        for task, heard in running:
            yield task, _hear(task, heard, copies, settings, known_runs)
    if known_runs:
        with database.writing(store) as connection:
            for run_id in sorted(known_runs):
                derive_missing(connection, run_id)


def take_runs(tasks: Sequence[Task], settings: Settings) -> Iterator[tuple[Task, Stored | Failed]]:
    """Yield what became of each run folder. Raises what ``take`` raises."""
    for task, events in take(tasks, settings):
        outcomes = [event for event in events if isinstance(event, (Stored, Failed))]
        yield task, outcomes[-1]


def _make_empty_store(path: Path) -> None:
    """Make a store with small pages, of which each report gets a copy."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"PRAGMA page_size = {_PAGE_BYTES}; CREATE TABLE t (c); DROP TABLE t"
        )
    with database.writing(path):
        pass


def _hear(
    task: Task,
    heard: Iterator[object],
    connection: sqlite3.Connection | None,
    settings: Settings,
    known_runs: set[int],
) -> Iterator[Event]:
    """Yield the events of a task; with ``connection``, once its runs were copied there."""
    source = task.source
    yield Started(source.path)
    if connection is not None:
        heard = iter(_copy_runs(list(heard), connection, task.sweep, settings.again))
    for event in heard:
        match event:
            case pool.Lost(why):
                more = " Read it with fewer `jobs`" if connection else ""
                why = f"{source.shown}: {why}. It was left out.{more}"
                yield Failed(why.removesuffix("."), is_expected=False)
            case Stored(path, written, doubts):
                if not written.new:
                    known_runs.add(written.run_id)
                yield event
                for doubt in doubts:
                    yield Warned(f"{path}: {doubt}")
            case Note() | Started() | Warned() | Failed():
                yield event
    yield Ended(source.path)


def _copy_runs(
    events: list[object], connection: sqlite3.Connection, sweep: SweepFacts, again: bool
) -> list[object]:
    """Copy the runs of a small store; the events, with the numbers that the runs have now."""
    if not isinstance(events[-1], pool.Done):
        return events[-1:]  # what a worker wrote before it died is gone with it
    part: Path = events[-1].result
    with merge.attached(connection, part):
        for place, event in enumerate(events):
            if not isinstance(event, Stored) or not event.written.new:
                continue
            run_id, is_new = merge.copy_run(
                connection, event.written.run_id, sweep, again=again, beside=event.ranks is None
            )
            for rank in (event.ranks or ()) if is_new else ():
                merge.copy_run(connection, rank, sweep, again=again, beside=True)
            written = replace(event.written, run_id=run_id)
            events[place] = (
                replace(event, written=written)
                if is_new
                else Stored(event.path, Written(run_id, new=False))
            )
    part.unlink()
    return events


@contextmanager
def _open_worker(settings: Settings) -> Iterator[Callable[[Task, pool.Tell], Path | None]]:
    """What a worker needs for all its tasks; gives what takes one."""
    if settings.parts is not None:
        yield partial(_take_into_part, settings, settings.parts)
        return
    with database.writing(settings.store) as connection:

        def take_into_store(task: Task, tell: pool.Tell) -> None:
            _take_one(connection, task, settings, tell)

        yield take_into_store


def _take_into_part(settings: Settings, parts: Path, task: Task, tell: pool.Tell) -> Path:
    """Take a task into a small store of its own, and return that store's path."""
    handle, name = tempfile.mkstemp(suffix=".db", dir=parts)
    os.close(handle)
    shutil.copyfile(parts / _EMPTY, name)
    with closing(sqlite3.connect(name, isolation_level=None, uri=True)) as own:
        # Nobody else sees this file before it is whole, and it need not survive a power cut.
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            own.execute(f"PRAGMA {pragma}")
        _take_one(own, task, settings, tell)
    return Path(name)


def _take_one(
    connection: sqlite3.Connection, task: Task, settings: Settings, tell: pool.Tell
) -> None:
    """Take one report or run folder into the store behind ``connection``, and tell what came
    of it."""
    source = task.source

    def fail(why: str) -> None:
        tell(Failed(why, is_expected=False))

    try:
        is_damaged = partial(database.is_damaged, connection)
        with alone(
            source.shown, fail, limit=settings.limit, is_of_store=is_damaged, passing=(OSError,)
        ):
            if is_run_folder(source.path):
                take_run(connection, task, settings, tell)
                return
            parsers.refuse_special(source.path)
            source.path.stat()  # raises FileNotFoundError
            with parsers.no_collection():
                take_report(connection, task, settings, cache(partial(sha256, source.path)), tell)
    except FileNotFoundError:
        tell(Failed(f"{source.shown}: there is no such file. Check the path"))
    except OSError as error:
        place = source.said(str(error.filename or source.path))
        tell(Failed(f"{place}: {error.strerror or error}. Check who may read there"))
    except ReportError as error:
        tell(Failed(source.said(str(error))))


def take_report(
    connection: sqlite3.Connection,
    task: Task,
    settings: Settings,
    digest: Callable[[], str],
    tell: pool.Tell,
) -> None:
    """Take each run that a report holds: parse -> complete -> write -> derive.

    ``digest`` gives its SHA-256, by which a report that is in the store already is recognised. It
    is called late, so that another thread may work it out during the parsing. Of a file with
    several runs each has its number behind it. Raises ReportError.
    """
    source, hints = task.source, settings.hints
    known = settings.known.get(digest()) if settings.known else None
    if known is not None:
        tell(Stored(source.shown, Written(known, new=False)))
        return
    capture = Path(hints.capture) if hints.capture else None
    if capture is not None and capture.resolve() == source.path.resolve():
        capture = None  # it stands in a folder with the traces that it tells of
    context = Context(source.shown, hints, task.name, estimate=settings.estimate)
    for part in parsers.reports(
        source.path, capture=capture, source=hints.source, single_operators=hints.op_calls
    ):
        facts = RunFacts(
            "unknown",
            "ok",
            "ingested",
            artifact=relative_path(source.shown, settings.store),
            artifact_sha256=f"{digest()}#{part.number}" if part.is_of_several else digest(),
        )
        if part.twin is not None:
            text = f"run {part.number} is run {part.twin} again and was left out"
            tell(Note(f"{source.shown}: {text}"))
        elif part.report is not None:
            report = complete(part.report, context)
            written = _write(connection, task, settings, report, facts)
            if written.new and written.kernels and report.ops:
                derive(connection, written.run_id)
            tell(_name_doubts(connection, source, report, written))
        elif part.error is not None:
            reason = f"{part.error.reason}. {part.error.remedy}"
            facts = replace(facts, profiler=part.error.tool, status="failed", reason=reason)
            written = write_run(
                connection,
                task.sweep,
                facts,
                None,
                family=family,
                again=settings.again,
                beside=True,
            )
            tell(Stored(source.shown, written))


def _write(
    connection: sqlite3.Connection, task: Task, settings: Settings, report: Report, facts: RunFacts
) -> Written:
    """Write a report that was made elsewhere, with the FLOPs on paper of its shapes."""
    reason = _why_partial(report)
    facts = replace(
        facts, profiler=report.tool, status="partial" if reason else "ok", reason=reason
    )
    calls = estimate_calls(task.source.path, report)
    # A trace knows no parameters, and bytes only with its tensors' types.
    if not any(op.parameters for op in report.ops):
        calls = tuple(call._replace(parameters=None) for call in calls)
    if any(not op.dtypes for op in report.ops):
        calls = tuple(call._replace(read_bytes=None, write_bytes=None) for call in calls)
    written = write_run(
        connection,
        task.sweep,
        facts,
        report,
        calls,
        family=family,
        again=settings.again,
        beside=True,
    )
    return replace(written, placed=placed(report))


def _why_partial(report: Report) -> str | None:
    """Return errors that the tool stated, or parts that cannot be read; None without any."""
    own = [d for d in report.diagnostics if d.severity == "error" and d.source == report.tool]
    reasons = [f"{report.tool} reported an error: {error.text[:300]}" for error in own]
    reasons += [f"{gap.quantity}: {gap.reason}" for gap in report.gaps if gap.state == "unreadable"]
    if not reasons:
        return None
    return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")


def _name_doubts(
    connection: sqlite3.Connection, source: Source, report: Report, written: Written
) -> Stored:
    """Return that a run is stored, with what perfctl did not understand of a format newer than
    itself; one without rows becomes partial."""
    if not written.new:
        return Stored(source.shown, written)
    query = "SELECT text FROM diagnostic WHERE run_id = ? AND source = ? AND severity = 'warning'"
    rows = connection.execute(query, (written.run_id, SOURCE)).fetchall()
    doubts = ["; ".join(text for (text,) in rows)] if rows else []
    is_empty = not holds_rows(connection, written)
    if is_empty:
        gaps = [gap.reason for about in _TABLES for gap in report.gaps if gap.quantity == about]
        header = f"it was recognised as {report.form}; its header may be missing or changed"
        reason = f"no rows were read: {written.reason or next(iter(gaps), header)}"
        set_partial(connection, written.run_id, reason)
        written = replace(written, reason=reason)
        doubts.append(reason)
    return Stored(source.shown, written, tuple(doubts), is_empty=is_empty)
