"""Reports read in several processes at once, and written by this one.

Each report is read by a process of its own kind (``reader.py``) into a small store beside the real
one. From there its runs are copied by SQL, in the order of the files: what the store holds and what
is said does not depend on timing, nor on the number of processes.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perfctl import parsers
from perfctl.orchestrator.actions.files import scratch
from perfctl.orchestrator.actions.ingest.hints import UserHints
from perfctl.orchestrator.actions.ingest.sources import Named, Source
from perfctl.orchestrator.actions.wall.child import Ended
from perfctl.orchestrator.actions.wall.items import heard_error, told_error
from perfctl.orchestrator.errors import StoreNote, UsageError
from perfctl.orchestrator.store import database, merge
from perfctl.orchestrator.store.write import SweepFacts, Written

READER = "perfctl.orchestrator.actions.ingest.reader"
TOGETHER, TOGETHER_BYTES = 16, 4 << 20
"""Small reports that share a store on their way: to open, attach and delete one takes as long as to
copy a small run."""
AHEAD = 8
"""Stores of small reports that may wait per process: while one large file is read, other processes
go on."""
PAGE_BYTES = 4096
WORTH_BYTES = 16 << 20
"""Large files are worth a process each, and smaller ones several where they are as large together:
each process loads all modules anew, and its runs are copied."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the reader of every report needs to know."""

    store: Path
    sweep: SweepFacts
    hints: UserHints
    again: bool
    limit: int = 0
    """Bytes of memory that a reader may take; 0 for no limit."""
    empty: Path = Path()
    """A store without runs, of which each report gets a copy."""


@dataclass(frozen=True, slots=True)
class Task:
    """Some reports for a reader."""

    reports: Sequence[tuple[Source, Named]]
    """With what their names say."""
    target: Path
    """The store that it makes of them."""


@dataclass(frozen=True, slots=True)
class Made:
    """A reader has stored a run in its own store."""

    written: Written
    ranks: tuple[int, ...] | None
    """Of a run folder: runs that are its other ranks. None for a report made elsewhere."""


Event = Made | tuple[str, Any]
"""What came of a report: a run, or the name and argument of a method of ``Hearer``."""


@dataclass(frozen=True, slots=True)
class Read:
    """What became of one report."""

    events: Sequence[Event]
    error: Exception | None = None
    """What ends the whole ingest, as it would if this process had read the report."""


Result = tuple[Read, Mapping[int, tuple[int, bool]]]
"""With those of its runs that are copied already: number in its store -> number in the real one,
whether it is new."""


def setting_line(setting: Setting) -> str:
    """A line of JSON, as are all that the processes tell each other; names that are no UTF-8 stay
    what they are."""
    return json.dumps({**asdict(setting), "store": str(setting.store), "empty": str(setting.empty)})


def setting_of(line: str) -> Setting:
    """What ``setting_line`` wrote."""
    said = json.loads(line)
    sweep, hints = SweepFacts(**said["sweep"]), UserHints(**said["hints"])
    return Setting(
        Path(said["store"]),
        sweep,
        hints,
        bool(said["again"]),
        int(said["limit"]),
        Path(said["empty"]),
    )


def task_line(task: Task) -> str:
    """A line of JSON, with what is known already of each file's format."""
    return json.dumps(
        [
            str(task.target),
            [
                (str(one.path), str(one.shown), named, parsers.known_kind(one.path))
                for one, named in task.reports
            ],
        ]
    )


def task_of(line: str) -> Task:
    """What ``task_line`` wrote."""
    target, reports = json.loads(line)
    for path, _, _, kind in reports:
        if kind is not None:
            version, name = kind
            parsers.remember(Path(path), tuple(version), name)
    return Task(
        [(Source(Path(path), Path(shown)), Named(*named)) for path, shown, named, _ in reports],
        Path(target),
    )


def answer_line(answer: Sequence[Read]) -> str:
    """A line of JSON."""
    return json.dumps([(list(map(_told, read.events)), told_error(read.error)) for read in answer])


def answer_of(line: str) -> list[Read]:
    """What ``answer_line`` wrote. Raises ValueError for a part of it."""
    return [
        Read(list(map(_heard, events)), heard_error(error)) for events, error in json.loads(line)
    ]


def _told(event: Event) -> tuple[str, Any]:
    if isinstance(event, Made):
        return "made", (asdict(event.written), event.ranks)
    name, what = event
    if isinstance(what, Warning):
        return name, (isinstance(what, StoreNote), str(what))
    return name, asdict(what) if isinstance(what, Written) else what


def _heard(told: tuple[str, Any]) -> Event:
    name, what = told
    if name == "made":
        written, ranks = what
        return Made(Written(**written), None if ranks is None else tuple(ranks))
    if name == "warn":
        is_note, text = what
        return name, StoreNote(text) if is_note else UserWarning(text)
    return name, Written(**what) if name == "stored" else what


def number_of_jobs(asked: int | None, sources: Sequence[Source]) -> int:
    """How many processes read: as many as asked for, else one a core where there is enough to read.
    Raises UsageError."""
    if asked is not None and asked < 1:
        raise UsageError(
            f"`jobs` must be at least 1, got {asked}", "Leave `jobs` out for one a core"
        )
    cores = asked or len(os.sched_getaffinity(0))
    if asked is None:
        sizes = [_bytes(source.path) for source in sources]
        large = [size for size in sizes if size >= WORTH_BYTES]
        if sum(sizes) - sum(large) < WORTH_BYTES:
            cores = min(cores, max(1, len(large)))
    return max(1, min(cores, len(sources)))


def _bytes(path: Path) -> int:
    """Of a file, or of the files in a run's folder."""
    try:
        return sum(map(_bytes, path.iterdir())) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0


@contextmanager
def reading(
    sources: Sequence[tuple[Source, Named]],
    jobs: int,
    setting: Setting,
    connection: sqlite3.Connection,
) -> Iterator[Iterator[Result]]:
    """Inside, what became of each source, in order; its runs are in the store attached to
    ``connection`` until the next.

    No process is left after the block, whatever ended it.
    """
    with scratch(setting.store.absolute().parent, "perfctl-ingest") as folder:
        setting = replace(setting, empty=_empty_store(Path(folder, "empty.db")))
        tasks = [
            Task(some, Path(folder, f"{at}.db")) for at, some in enumerate(_chunks(sources, jobs))
        ]
        readers = _Readers(tasks, jobs, setting)
        results = _results(readers, connection, setting)
        try:  # before the first thread: Ctrl-C may arrive while they begin
            readers.start()
            yield results
        finally:
            readers.stop()
            results.close()


def _results(
    readers: _Readers, connection: sqlite3.Connection, setting: Setting
) -> Generator[Result]:
    for answer, made in readers.answers():
        with merge.attached(connection, made) if made.exists() else nullcontext():
            copied: Mapping[int, tuple[int, bool]] = {}
            if made.exists() and _are_plain(answer, merge.run_numbers(connection)):
                copied = merge.copy_runs(connection, setting.sweep, again=setting.again)
            for read in answer:
                yield read, copied


def _are_plain(answer: Sequence[Read], runs: Sequence[int]) -> bool:
    """Whether all these runs may be copied at once: they were said to be made, nothing ends the
    ingest, none has ranks."""
    made = [event for read in answer for event in read.events if isinstance(event, Made)]
    is_whole = not any(read.error for read in answer) and not any(event.ranks for event in made)
    return is_whole and [event.written.run_id for event in made] == runs


def _chunks(
    sources: Sequence[tuple[Source, Named]], jobs: int
) -> Iterator[list[tuple[Source, Named]]]:
    # few enough that all processes end at about the same time
    most = max(1, min(TOGETHER, len(sources) // (4 * jobs)))
    together, size = list[tuple[Source, Named]](), 0
    for source, named in sources:
        own = _bytes(source.path)
        if together and (len(together) == most or size + own > TOGETHER_BYTES):
            yield together
            together, size = [], 0
        together.append((source, named))
        size += own
    if together:
        yield together


def _empty_store(path: Path) -> Path:
    """With small pages: each of its hundred tables and indexes takes one, and there is a copy for
    each report."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"PRAGMA page_size = {PAGE_BYTES}; CREATE TABLE t (c); DROP TABLE t"
        )
    with database.writing(path):
        pass
    return path


class _Readers:
    """A thread for each process, which hands it one task after another."""

    def __init__(self, tasks: Sequence[Task], jobs: int, setting: Setting) -> None:
        self._tasks, self._setting = tasks, setting
        self._ahead = AHEAD * jobs
        self._changed = threading.Condition()
        self._next = 0
        """Task that the next free process gets."""
        self._taken = 0
        """Task whose result is awaited."""
        self._results: dict[int, Sequence[Read]] = {}
        self._stopped = False
        self._processes: set[subprocess.Popen[str]] = set()
        self._threads = [threading.Thread(target=self._hand_out, daemon=True) for _ in range(jobs)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def answers(self) -> Iterator[tuple[Sequence[Read], Path]]:
        """What became of each task's reports, and where they are; they go with the next."""
        for number, task in enumerate(self._tasks):
            with self._changed:
                self._changed.wait_for(lambda number=number: number in self._results)  # type: ignore[misc]
                self._taken = number
                self._changed.notify_all()
                result = self._results.pop(number)
            yield result, task.target
            task.target.unlink(missing_ok=True)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            for process in self._processes:
                _kill(process)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _hand_out(self) -> None:
        process: subprocess.Popen[str] | None = None
        try:
            while (number := self._number()) is not None:
                process = process or self._start()
                read = self._ask(process, self._tasks[number]) if process else None
                if read is None:
                    status = self._end(process) if process else None
                    process = None
                    read = self._one_by_one(self._tasks[number], status)
                with self._changed:
                    self._results[number] = read
                    self._changed.notify_all()
        finally:
            if process is not None:
                self._end(process)

    def _one_by_one(self, task: Task, status: int | None) -> Sequence[Read]:
        """What became of the reports that a process took with it: only those that end another one
        alone are lost."""
        task.target.unlink(missing_ok=True)
        lost: dict[int, Read] = {}
        for at, report in enumerate(
            task.reports if len(task.reports) > 1 and status is not None else ()
        ):
            process = self._start()
            if process is not None and self._ask(process, Task([report], task.target)) is None:
                lost[at] = _lost(report[0], self._end(process))
            elif process is not None:
                self._end(process)
            task.target.unlink(missing_ok=True)
        rest = [report for at, report in enumerate(task.reports) if at not in lost]
        process = self._start() if lost and rest else None
        answers = iter((self._ask(process, Task(rest, task.target)) if process else None) or ())
        if process is not None:
            self._end(process)
        return [
            lost.get(at) or next(answers, _lost(one, status))
            for at, (one, _) in enumerate(task.reports)
        ]

    def _number(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._next < self._taken + self._ahead)
            if self._stopped or self._next >= len(self._tasks):
                return None
            self._next += 1
            return self._next - 1

    def _start(self) -> subprocess.Popen[str] | None:
        command = (sys.executable, "-P", "-m", READER)
        pipe = subprocess.PIPE
        with self._changed:
            if self._stopped:
                return None
            try:  # a session of its own: Ctrl-C reaches this process only, which ends the others
                process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, start_new_session=True, encoding="ascii"
                )
            except OSError:
                return None
            self._processes.add(process)
        with suppress(OSError):
            _send(process, setting_line(self._setting))
        return process

    def _ask(self, process: subprocess.Popen[str], task: Task) -> Sequence[Read] | None:
        """None where the process is gone."""
        assert process.stdout is not None
        try:
            _send(process, task_line(task))
            return answer_of(process.stdout.readline())
        except (OSError, ValueError):
            return None

    def _end(self, process: subprocess.Popen[str]) -> int:
        """Its exit status. A process whose stdin ends would take it that this one is gone: it is
        killed instead."""
        with self._changed:
            _kill(process)
            self._processes.discard(process)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        return process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    """With what it started itself: nsys, where it reads an .nsys-rep."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _send(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _lost(source: Source, status: int | None) -> Read:
    """What is said of a report that a process took with it."""
    why = "no process could be started to read it" if status is None else str(Ended(status))
    return Read([("fail", f"{source.shown}: {why}. Read it with fewer --jobs")])
