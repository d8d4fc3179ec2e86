"""Shared by the faults: a scratch folder, perfctl as a process, processes that it left, and checks
of its store."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "tests" / "data" / "recorded-cpu"
PERFCTL = (sys.executable, "-m", "perfctl")
GONE_WITHIN_S = 5.0
COUNTED = ("operation", "step", "layer_call", "kernel_launch", "range", "memory")
"""Tables whose row counts show whether a run is stored completely."""
LIMIT_S = 600.0
"""Time limit of one command of perfctl, even on a busy machine."""


Run = tuple[str, int | None, str, int]
"""Of a stored run: profiler, batch size, status, rows of its own."""


class Broken(Exception):
    """A promise was not kept; the message says which, and what happened."""


class Skipped(Exception):
    """This machine lacks something that the fault needs."""


@dataclass(slots=True)
class Ended:
    """How a command of perfctl ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The last non-empty line: perfctl's own message if there is one."""
        lines = [line.strip() for line in (self.out + "\n" + self.err).splitlines() if line.strip()]
        own = [line for line in lines if line.startswith("perfctl:")]
        return (own or lines or ["nothing"])[-1]


@dataclass(slots=True)
class Scene:
    """One fault being tried, in its own folder, whose name marks all processes that
    perfctl starts."""

    folder: Path
    random: Random
    moments: int
    tried: int = 0
    seen: list[str] = field(default_factory=list)
    """What the table shows."""

    def fresh(self, name: str = "try") -> Path:
        """An empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of this process, with the folder's name as a mark, and a TMPDIR in
        the folder."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        marked = {"PERFCTL_FAULTS": str(self.folder), "TMPDIR": str(temporary)}
        return {**os.environ, **marked, **(more or {})}

    def start(
        self,
        *arguments: str,
        cwd: Path,
        more: Mapping[str, str] | None = None,
        run: Sequence[str] = PERFCTL,
    ) -> subprocess.Popen[str]:
        """perfctl (or ``run``) in a session of its own, its output in files, so that no pipe
        stalls it."""
        logs = self._logs(cwd)
        with logs.with_suffix(".out").open("w") as out, logs.with_suffix(".err").open("w") as err:
            return subprocess.Popen(
                [*run, *arguments],
                cwd=cwd,
                env=self.environment(more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
                preexec_fn=_hears_signals,
            )

    def _logs(self, cwd: Path) -> Path:
        name = (
            "-".join(cwd.relative_to(self.folder).parts)
            if cwd.is_relative_to(self.folder)
            else cwd.name
        )
        return self.folder / f"{name[:60]}.log".replace("\n", " ")

    def ended(self, child: subprocess.Popen[str], cwd: Path) -> Ended:
        """Wait for it."""
        try:
            code = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise Broken(f"it was still running after {LIMIT_S:.0f} s") from None
        logs = self._logs(cwd)
        texts = [logs.with_suffix(kind).read_text(errors="replace") for kind in (".out", ".err")]
        return Ended(code, *texts)

    def perfctl(
        self,
        *arguments: str,
        cwd: Path,
        more: Mapping[str, str] | None = None,
        run: Sequence[str] = PERFCTL,
    ) -> Ended:
        """Run it to its end. Raises Broken where it shows a traceback."""
        ended = self.ended(self.start(*arguments, cwd=cwd, more=more, run=run), cwd)
        no_traceback(ended)
        return ended

    def left(self) -> list[str]:
        """Command lines of processes that carry the folder's name in their environment
        or arguments."""
        return [line for _, line in self.left_with_ids()]

    def left_with_ids(self) -> list[tuple[int, str]]:
        """The same, each with its process id."""
        mark, found = os.fsencode(self.folder), []
        # half the time of iterdir
        for entry in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
            try:
                line = Path("/proc", entry, "cmdline").read_bytes()
                if line and (mark in line or mark in Path("/proc", entry, "environ").read_bytes()):
                    found.append(
                        (int(entry), line.replace(b"\0", b" ").decode(errors="replace")[:400])
                    )
            except OSError:  # it has ended
                continue
        return [(pid, line) for pid, line in found if pid != os.getpid()]

    def nothing_left(self, but: str = "\0") -> None:
        """Raises Broken if a process is still running after five seconds; ``but``: words of a
        command line that may."""
        until = time.monotonic() + GONE_WITHIN_S
        while left := [line for line in self.left() if but not in line]:
            if time.monotonic() > until:
                raise Broken(f"still running {GONE_WITHIN_S:.0f} s later: {left[0]}")
            time.sleep(0.1)

    def attempt(self, what: Callable[[], str | None]) -> None:
        """Run and count one try; its result is shown."""
        self.tried += 1
        said = what()
        if said and said not in self.seen:
            self.seen.append(said)


def _hears_signals() -> None:
    """Under nohup, or in the background of a script, signals are ignored, and perfctl leaves
    them so."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    name: str
    what: str
    act: Callable[[Scene], None]
    """Raises Broken or Skipped."""


def no_traceback(ended: Ended) -> None:
    """Raises Broken if the user saw a Python traceback."""
    if "Traceback (most recent call last)" in ended.err + ended.out:
        raise Broken(f"a traceback: {(ended.err + ended.out).strip().splitlines()[-1][:200]}")


def expect(ended: Ended, *codes: int, says: str = "") -> str:
    """Return the output. Raises Broken for another exit code, or if ``says`` is not in
    the output."""
    if ended.code not in codes:
        raise Broken(
            f"exit code {ended.code}, not {' or '.join(map(str, codes))}: {ended.said[:300]}"
        )
    if says not in ended.out + ended.err:
        raise Broken(f"it did not say '{says}': {ended.said[:300]}")
    return ended.said


def store_is_whole(store: Path) -> None:
    """Raises Broken if SQLite finds damage, a foreign key has no target, or a report is
    stored twice."""
    if not store.exists():
        return
    with closing(sqlite3.connect(store)) as connection:
        damage = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
        loose = connection.execute("PRAGMA foreign_key_check").fetchall()
        tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        twice = (
            "SELECT artifact FROM run WHERE artifact_sha256 IS NOT NULL GROUP BY artifact_sha256 "
            "HAVING count(*) > 1"
        )
        double = connection.execute(twice).fetchall() if "run" in tables else []
    if damage or loose or double:
        raise Broken(
            "the store is not whole: "
            f"{damage[:1] or loose[:1] or ''}{f' twice: {double[0]}' if double else ''}"
        )


def runs_of(store: Path) -> list[Run]:
    """All runs, in order; empty where there is no store, or none of its tables yet."""
    if not store.exists():
        return []
    counts = " + ".join(
        f"(SELECT count(*) FROM {table} WHERE run_id = run.id)" for table in COUNTED
    )
    rows = (
        f"SELECT profiler, batch_size, status, {counts} FROM run ORDER BY profiler, batch_size, id"
    )
    with closing(sqlite3.connect(store)) as connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return []
        return [tuple(row) for row in connection.execute(rows)]


def expect_runs(store: Path, wanted: list[Run]) -> None:
    """Raises Broken unless the store is intact and has exactly these runs."""
    store_is_whole(store)
    if (there := runs_of(store)) != wanted:
        raise Broken(f"the store holds {there}, not {wanted}")


def expect_count(store: Path, wanted: int) -> None:
    """Raises Broken unless the store is intact and has this many runs."""
    store_is_whole(store)
    if len(there := runs_of(store)) != wanted:
        raise Broken(f"the store holds {there}, not {wanted} runs")


def removed(folder: Path) -> None:
    """Remove the folder of a try that succeeded."""
    shutil.rmtree(folder, ignore_errors=True)
