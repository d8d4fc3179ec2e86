"""perfctl gets KILL, TERM, HUP or Ctrl-C at random moments of its work.

Each time, none of its processes is left five seconds later, the store is intact and holds all runs
that it held before, runs that were complete stay, and the same command, given again, completes the
work, stores nothing twice and tidies up.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scene import (
    RECORDED,
    Broken,
    Fault,
    Run,
    Scene,
    Skipped,
    expect,
    no_traceback,
    removed,
    runs_of,
    store_is_whole,
)

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
RECORDING = RECORDED / "torch"
TRAINING = """
import sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.zeros(int(sys.argv[1]), 8)).sum().backward()
    optimizer.step()
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A command that is stopped, and given again."""

    arguments: tuple[str, ...]
    prepare: Callable[[Scene, Path], None]
    whole: Callable[[Path], None] = lambda folder: None
    """Raises Broken if the command left something incomplete."""
    begins: str = ""
    """A file of this pattern shows that it begins to write: the moments lie after that. Empty: from
    its first moment on."""
    store: str = "perfctl.db"
    same_rows: bool = True
    """Do two undisturbed calls store the same number of rows? Not where they measure."""


def _nothing(scene: Scene, folder: Path) -> None:
    pass


def _left_runs(scene: Scene, folder: Path) -> None:
    """What tasks of an array leave: a sweep's folder, and no store."""
    shutil.copytree(
        _made_once(scene, "runs", "replay", str(RECORDING), "--no-store") / "perfctl-runs",
        folder / "perfctl-runs",
    )


def _filled_store(scene: Scene, folder: Path) -> None:
    shutil.copy(
        _made_once(scene, "store", "ingest", str(RECORDED / "torch"), str(RECORDED / "nsys"))
        / "perfctl.db",
        folder,
    )


def _made_once(scene: Scene, name: str, *arguments: str) -> Path:
    folder = scene.folder / name
    if not folder.exists():
        folder.mkdir()
        expect(scene.perfctl(*arguments, cwd=folder), 0)
    return folder


def _many_reports(scene: Scene, folder: Path) -> None:
    """Five Kineto traces that differ."""
    (folder / "reports").mkdir()
    trace = gzip.decompress((RECORDING / "b16" / "report.pt.trace.json.gz").read_bytes())
    for number in range(5):
        (folder / "reports" / f"b{16 + number}.pt.trace.json").write_bytes(trace + b"\n" * number)


def _large_database(scene: Scene, folder: Path) -> None:
    """An nsys database with strings that scrub has to look through, a secret among them."""
    shutil.copy(RECORDED / "nsys" / "b16" / "report.sqlite", folder)
    with closing(sqlite3.connect(folder / "report.sqlite")) as connection:
        connection.execute("CREATE TABLE of_mine (line TEXT)")
        lines = ((f"line {number} of a log, with some words in it",) for number in range(20_000))
        connection.executemany(
            "INSERT INTO of_mine VALUES (?)", [*lines, ("password=" + "geheim" * 3,)]
        )
        connection.commit()


def _tiny_training(scene: Scene, folder: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        raise Skipped("PyTorch is not installed")
    (folder / "train.py").write_text(TRAINING)


def _tiny_program(scene: Scene, folder: Path) -> None:
    if shutil.which("nsys") is None:
        raise Skipped("nsys is not installed")
    (folder / "tiny.py").write_text("import time\ntime.sleep(0.5)\n")


def _page_is_whole(folder: Path) -> None:
    for page in folder.rglob("*.html"):
        if not page.read_text(encoding="utf-8").rstrip().endswith("</html>"):
            raise Broken(f"{page.name} is not whole")


def _tables_are_whole(folder: Path) -> None:
    """The folder gets its name when all tables are in it."""
    made = sorted(path.name for path in (folder / "tables").glob("*"))
    if made and ("columns.csv" not in made or len(made) < 10):
        raise Broken(f"tables holds only {made}")


def _scrubbed_is_whole(folder: Path) -> None:
    for copy in folder.glob("clean.sqlite"):
        store_is_whole_sqlite(copy)
        if b"geheim" in copy.read_bytes():
            raise Broken("the copy still holds the secret")


def store_is_whole_sqlite(path: Path) -> None:
    """Raises Broken if SQLite finds damage."""
    with closing(sqlite3.connect(path)) as connection:
        if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise Broken(f"{path.name} is not whole")


WORKS = {
    "sweep": Work(("replay", str(RECORDING)), _nothing),
    "ingest": Work(("ingest", str(RECORDED / "torch"), str(RECORDED / "nsys")), _nothing),
    "gather": Work(("slurm", "gather", "perfctl-runs"), _left_runs, _page_is_whole),
    "report": Work(("report",), _filled_store, _page_is_whole),
    "jobs": Work(("ingest", "reports", "--jobs", "2"), _many_reports, begins="perfctl.db"),
    "export": Work(
        ("export", "--all", "--out", "tables", "--force"),
        _filled_store,
        _tables_are_whole,
        begins=".tables*",
    ),
    "compare": Work(
        (
            "compare",
            str(RECORDING / "b16"),
            str(RECORDING / "b32"),
            "--anyway",
            "--out",
            "page.html",
        ),
        _nothing,
        _page_is_whole,
    ),
    "scrub": Work(
        ("scrub", "report.sqlite", "--out", "clean.sqlite", "--force"),
        _large_database,
        _scrubbed_is_whole,
        begins=".clean.sqlite*",
    ),
    "torch": Work(
        (
            "torch",
            "--device",
            "cpu",
            "--batches",
            "1,2",
            "--steps",
            "2",
            "--warmup",
            "1",
            "--sample",
            "off",
            "--",
            sys.executable,
            "train.py",
            "{batch}",
        ),
        _tiny_training,
        same_rows=False,
    ),
    "one-nsys": Work(
        (
            "nsys",
            "--device",
            "cpu",
            "--batches",
            "1,2",
            "--sample",
            "off",
            "--",
            sys.executable,
            "tiny.py",
            "{batch}",
        ),
        _tiny_program,
        same_rows=False,
    ),
    "study": Work(
        (
            "study",
            "flops",
            "--device",
            "cpu",
            "-b",
            "2",
            "--batch",
            "2",
            "--epochs",
            "0",
            "--steps",
            "1",
            "--out",
            "study",
            "--",
            sys.executable,
            "train.py",
            "{batch}",
        ),
        _tiny_training,
        _page_is_whole,
        store="study/perfctl.db",
        same_rows=False,
    ),
    "read-study": Work(
        ("study", "flops", "--from", str(RECORDING), "--out", "study"),
        _nothing,
        _page_is_whole,
        store="study/perfctl.db",
    ),
}


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What the command does when nothing stops it."""

    code: int
    runs: list[Run]
    starts_s: float
    """Until it begins to write."""
    takes_s: float


def _stopped(name: str, scene: Scene) -> None:
    work = WORKS[name]
    usual = _undisturbed(scene, work)
    how: Counter[str] = Counter()
    for turn in range(scene.moments):
        number = SIGNALS[turn % len(SIGNALS)]
        scene.attempt(partial(_until_hit, scene, work, number, usual, how))
    told = ", ".join(f"{count} {what}" for what, count in sorted(how.items()))
    scene.seen.append(f"{told}; {len(usual.runs)} runs whole each time, none twice")


def _until_hit(
    scene: Scene, work: Work, number: signal.Signals, usual: Undisturbed, how: Counter[str]
) -> None:
    """On a busy machine a command can have ended before its signal comes: that is no try."""
    longest = usual.takes_s - usual.starts_s
    while not _once(scene, work, number, scene.random.uniform(0.0, longest), usual, how):
        longest *= 0.8


def _undisturbed(scene: Scene, work: Work) -> Undisturbed:
    folder = scene.fresh("undisturbed")
    work.prepare(scene, folder)
    began = time.monotonic()
    child = scene.start(*work.arguments, cwd=folder)
    _begun(child, folder, work.begins)
    starts = time.monotonic() - began
    ended = scene.ended(child, folder)
    took = time.monotonic() - began
    no_traceback(ended)
    expect(ended, 0, 1, 3) if work.arguments[0] == "compare" else expect(ended, *work_codes(work))
    return Undisturbed(ended.code, _runs(work, folder), starts if work.begins else 0.0, took)


def work_codes(work: Work) -> tuple[int, ...]:
    """Under nsys a program without PyTorch is partial: nothing marks its layers."""
    return (4,) if work.arguments[0] == "nsys" else (0,)


def _begun(child: subprocess.Popen[str], folder: Path, pattern: str) -> None:
    while pattern and child.poll() is None and not list(folder.glob(pattern)):
        time.sleep(0.002)


def _runs(work: Work, folder: Path) -> list[Run]:
    runs = runs_of(folder / work.store)
    return runs if work.same_rows else [(*run[:3], int(run[3] > 0)) for run in runs]


def _once(
    scene: Scene,
    work: Work,
    number: signal.Signals,
    after_s: float,
    usual: Undisturbed,
    how: Counter[str],
) -> bool:
    """Stop it, look, and give it again. False where it had ended before."""
    folder = scene.fresh()
    work.prepare(scene, folder)
    before = _runs(work, folder)
    child = scene.start(*work.arguments, cwd=folder)
    sent = False
    try:
        _begun(child, folder, work.begins)
        child.wait(after_s)
    except subprocess.TimeoutExpired:
        sent = True
        _send(child, number)
    ended = scene.ended(child, folder)
    if sent:
        how[f"{number.name} ended with {ended.code}"] += 1
    try:
        starting = (
            number == signal.SIGINT and "orchestrator" not in ended.err
        )  # Python itself shows one while it starts
        if sent and ended.code not in (
            -number,
            128 + number,
            usual.code,
            *([1] if starting and after_s < 0.1 else []),
        ):
            raise Broken(f"it ended with {ended.code}: {ended.said[:200]}")
        if not starting:
            no_traceback(ended)
        scene.nothing_left()
        store_is_whole(folder / work.store)
        _nothing_lost(before, _runs(work, folder), usual.runs)
        work.whole(folder)
        complete = _complete(folder)
        expect(scene.perfctl(*work.arguments, cwd=folder), usual.code)
        store_is_whole(folder / work.store)
        if (there := _runs(work, folder)) != usual.runs:
            raise Broken(f"the store holds {there}, not {usual.runs}")
        if again := [path for path, when in complete.items() if path.stat().st_mtime_ns != when]:
            raise Broken(f"{again[0]} was complete, and was run again")
        work.whole(folder)
        _no_scraps(folder)
    except Broken as error:
        raise Broken(f"{number.name} after {after_s:.2f} s: {error}") from None
    removed(folder)
    return sent


def _nothing_lost(before: list[Run], there: list[Run], wanted: list[Run]) -> None:
    """All runs of the store are still in it, and those that came are whole."""
    if lost := Counter(before) - Counter(there):
        raise Broken(f"lost from the store: {list(lost)}")
    if half := Counter(there) - Counter(before) - Counter(wanted):
        raise Broken(f"not a whole run: {list(half)}, of {wanted}")


def _complete(folder: Path) -> dict[Path, int]:
    """Records of the batch sizes that had ended well, with the time of their last change."""
    records = folder.glob("**/perfctl-runs/*/b*/run.json")
    return {
        path: path.stat().st_mtime_ns
        for path in records
        if path.parent.suffix != ".part" and json.loads(path.read_text()).get("status") == "ok"
    }


def _send(child: subprocess.Popen[str], number: signal.Signals) -> None:
    """Ctrl-C and a hang-up reach the whole group of the terminal, the others perfctl alone."""
    if number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(child.pid, number)
    else:
        child.send_signal(number)


def _no_scraps(folder: Path) -> None:
    """What the interrupted call had half made is gone once the same command completed."""
    scraps = [
        path.name
        for path in folder.rglob("*")
        if path.name.endswith((".part", ".old", ".tmp")) or path.name.startswith(".perfctl-ingest-")
    ]
    if scraps:
        raise Broken(f"left behind: {', '.join(scraps)}")


def _nsys_stopped(scene: Scene) -> None:
    """nsys and its agent are the hardest to end: sessions of their own, started while perfctl is
    being stopped."""
    if shutil.which("nsys") is None:
        raise Skipped("nsys is not installed")
    script = scene.folder / "tiny.py"
    script.write_text("import time\ntime.sleep(2)\n")
    arguments = (
        "nsys",
        "--device",
        "cpu",
        "--batches",
        "1,2",
        "--",
        sys.executable,
        str(script),
        "{batch}",
    )
    how: Counter[str] = Counter()
    for turn in range(scene.moments):
        number = SIGNALS[turn % len(SIGNALS)]
        scene.attempt(partial(_nsys_once, scene, arguments, number, how))
    scene.seen.append(", ".join(f"{count} {what}" for what, count in sorted(how.items())))


def _nsys_once(
    scene: Scene, arguments: tuple[str, ...], number: signal.Signals, how: Counter[str]
) -> None:
    """Three sweeps at once, each stopped at a moment of its own after nsys began."""
    folders = [scene.fresh() for _ in range(3)]
    children = [scene.start(*arguments, cwd=folder) for folder in folders]
    for child, folder in zip(children, folders, strict=True):
        while child.poll() is None and not list(
            folder.glob("perfctl-runs/*/b1.part/tmp/.perfctl-started")
        ):
            time.sleep(0.02)
        time.sleep(scene.random.uniform(0.0, 3.0))
        if child.poll() is None:
            _send(child, number)
    for child, folder in zip(children, folders, strict=True):
        ended = scene.ended(child, folder)
        how[f"{number.name} ended with {ended.code}"] += 1
        if number != signal.SIGINT or "orchestrator" in ended.err:
            no_traceback(ended)
    scene.nothing_left()
    for folder in folders:
        store_is_whole(folder / "perfctl.db")
        removed(folder)


FAULTS = (
    *(
        Fault(
            f"stop-{name}",
            f"kill -9, TERM, HUP and Ctrl-C at random moments of {name}",
            partial(_stopped, name),
        )
        for name in WORKS
    ),
    Fault("stop-nsys", "the same to three sweeps under nsys at once", _nsys_stopped),
)
