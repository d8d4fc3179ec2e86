"""The process that reads reports for ``perfctl ingest --jobs``; ``parallel.py`` starts it::

    python -P -m perfctl.orchestrator.actions.ingest.reader

It gets a ``Setting`` and then one ``Task`` after another on stdin, and answers each with a ``Read``
on stdout. It ends when its stdin does: whoever started it is done or gone.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sqlite3
import sys
import threading
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TextIO

from perfctl.orchestrator.actions.ingest.ingest import read_source
from perfctl.orchestrator.actions.ingest.parallel import (
    Event,
    Made,
    Read,
    Setting,
    Task,
    answer_line,
    setting_of,
    task_of,
)
from perfctl.orchestrator.actions.ingest.sources import Named, Source
from perfctl.orchestrator.actions.messages import Silent
from perfctl.orchestrator.actions.wall import memory
from perfctl.orchestrator.launch.sweep.folders import read_run_record
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import Written


class _Recorder(Silent):
    """Keeps what is said of one report."""

    def __init__(self, own: sqlite3.Connection, *, is_folder: bool) -> None:
        self._own, self._is_folder = own, is_folder
        self.events: list[Event] = []

    def begin(self, path: Path, what: str = "reading") -> None: ...

    def note(self, text: str) -> None:
        self.events.append(("note", text))

    def warning(self, text: str) -> None:
        self.events.append(("warning", text))

    def fail(self, why: str) -> None:
        self.events.append(("fail", why))

    def secrets(self, names: list[str]) -> None:
        self.events.append(("secrets", names))

    def stored(self, written: Written) -> None:
        if not written.new:
            self.events.append(("stored", written))
            return
        query = "SELECT id FROM run WHERE id > ? ORDER BY id"
        ranks = tuple(number for (number,) in self._own.execute(query, (written.run_id,)))
        self.events.append(Made(written, ranks if self._is_folder else None))


def read(task: Task, setting: Setting, store: sqlite3.Connection) -> list[Read]:
    """Read reports into a store of their own. ``store`` is the real one, for what it
    has already."""
    shutil.copyfile(setting.empty, task.target)
    with closing(sqlite3.connect(task.target, isolation_level=None, uri=True)) as own:
        # Nobody else sees this file before it is whole, and it need not survive a power cut.
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            own.execute(f"PRAGMA {pragma}")
        return [
            _read(number, *report, setting, own, store)
            for number, report in enumerate(task.reports)
        ]


def _read(
    number: int,
    source: Source,
    named: Named,
    setting: Setting,
    own: sqlite3.Connection,
    store: sqlite3.Connection,
) -> Read:
    hearer = _Recorder(
        own, is_folder=source.path.is_dir() and read_run_record(source.path) is not None
    )
    # none takes the place of another's run here
    sweep = replace(setting.sweep, name=f"{setting.sweep.name} {number}")
    try:
        with warnings.catch_warnings(record=True) as said:
            read_source(
                own,
                source,
                sweep,
                setting.hints,
                setting.store,
                setting.again,
                named,
                hearer,
                stored=store,
                limit=setting.limit,
            )
        return Read([*(("warn", one.message) for one in said), *hearer.events])
    except Exception as error:
        # raised again by the process that asked, as if it had read the report itself
        return Read(hearer.events, error)


def main() -> None:
    """The process."""
    tasks: queue.Queue[Task] = queue.Queue()
    setting = setting_of(sys.stdin.readline())
    memory.keep_for_good(setting.limit)
    threading.Thread(
        target=_listen, args=(sys.stdin, tasks, setting.empty.parent), daemon=True
    ).start()
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints is no answer
    with database.reading(setting.store) as store:
        while True:
            answer = answer_line(read(tasks.get(), setting, store))
            try:
                answers.write(f"{answer}\n")
                answers.flush()
            except BrokenPipeError:
                _leave(setting.empty.parent)


def _listen(stdin: TextIO, tasks: queue.Queue[Task], folder: Path) -> None:
    """Take tasks until nobody is left to answer, which ends this process in the middle of whatever
    it does."""
    while line := stdin.readline():
        tasks.put(task_of(line))
    _leave(folder)


def _leave(folder: Path) -> NoReturn:
    shutil.rmtree(folder, ignore_errors=True)  # where that process was killed, nobody else does it
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
