"""perfctl gets KILL, TERM, HUP or Ctrl-C at random moments of its work.

Each time, none of its processes is left five seconds later, the store is intact, and the same command, given again,
completes the work and stores nothing twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scene import (
    RECORDED,
    Broken,
    Fault,
    Scene,
    Skipped,
    expect,
    expect_runs,
    no_traceback,
    removed,
    runs_of,
    store_is_whole,
)

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
RECORDING = RECORDED / "torch"


@dataclass(frozen=True, slots=True)
class Work:
    """A command that is stopped, and given again."""

    arguments: tuple[str, ...]
    prepare: Callable[[Scene, Path], None]
    whole: Callable[[Path], None] = lambda folder: None
    """Raises Broken if the command left something incomplete."""


def _nothing(scene: Scene, folder: Path) -> None:
    pass


def _left_runs(scene: Scene, folder: Path) -> None:
    """What tasks of an array leave: a sweep's folder, and no store."""
    shutil.copytree(
        _made_once(scene, "runs", "replay", str(RECORDING), "--no-store") / "perfctl-runs", folder / "perfctl-runs"
    )


def _filled_store(scene: Scene, folder: Path) -> None:
    shutil.copy(
        _made_once(scene, "store", "ingest", str(RECORDED / "torch"), str(RECORDED / "nsys")) / "perfctl.db", folder
    )


def _made_once(scene: Scene, name: str, *arguments: str) -> Path:
    folder = scene.folder / name
    if not folder.exists():
        folder.mkdir()
        expect(scene.perfctl(*arguments, cwd=folder), 0)
    return folder


def _page_is_whole(folder: Path) -> None:
    for page in folder.glob("*.html"):
        if not page.read_text(encoding="utf-8").rstrip().endswith("</html>"):
            raise Broken(f"{page.name} is not whole")


WORKS = {
    "sweep": Work(("replay", str(RECORDING)), _nothing),
    "ingest": Work(("ingest", str(RECORDED / "torch"), str(RECORDED / "nsys")), _nothing),
    "gather": Work(("slurm", "gather", "perfctl-runs"), _left_runs, _page_is_whole),
    "report": Work(("report",), _filled_store, _page_is_whole),
}


def _stopped(name: str, scene: Scene) -> None:
    work = WORKS[name]
    undisturbed = scene.fresh("undisturbed")
    work.prepare(scene, undisturbed)
    began = time.monotonic()
    expect(scene.perfctl(*work.arguments, cwd=undisturbed), 0)
    took, wanted = time.monotonic() - began, runs_of(undisturbed / "perfctl.db")
    how: Counter[str] = Counter()
    for turn in range(scene.moments):
        number = SIGNALS[turn % len(SIGNALS)]
        scene.attempt(partial(_once, scene, work, number, scene.random.uniform(0.0, took), wanted, how))
    told = ", ".join(f"{count} {what}" for what, count in sorted(how.items()))
    scene.seen.append(f"{told}; {len(wanted)} runs whole each time, none twice")


def _once(
    scene: Scene, work: Work, number: signal.Signals, after_s: float, wanted: list[tuple[str, int | None, str, int]],
    how: Counter[str],
) -> None:  # fmt: skip
    folder = scene.fresh()
    work.prepare(scene, folder)
    child = scene.start(*work.arguments, cwd=folder)
    try:
        child.wait(after_s)
    except subprocess.TimeoutExpired:
        _send(child, number)
    ended = scene.ended(child, folder)
    how[f"{number.name} ended with {ended.code}"] += 1
    try:
        if number != signal.SIGINT or "orchestrator" in ended.err:  # Python itself can show one while it starts
            no_traceback(ended)
        scene.nothing_left()
        store_is_whole(folder / "perfctl.db")
        work.whole(folder)
        expect(scene.perfctl(*work.arguments, cwd=folder), 0)
        expect_runs(folder / "perfctl.db", wanted)
        work.whole(folder)
        _no_scraps(folder)
    except Broken as error:
        raise Broken(f"{number.name} after {after_s:.2f} s: {error}") from None
    removed(folder)


def _send(child: subprocess.Popen[str], number: signal.Signals) -> None:
    """Ctrl-C and a hang-up reach the whole group of the terminal, the others perfctl alone."""
    if number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(child.pid, number)
    else:
        child.send_signal(number)


def _no_scraps(folder: Path) -> None:
    """Half-made runs of the interrupted call are gone once the same command completed."""
    scraps = [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".old"))]
    if scraps:
        raise Broken(f"left behind: {', '.join(scraps)}")


def _nsys_stopped(scene: Scene) -> None:
    """nsys and its agent are the hardest to end: sessions of their own, started while perfctl is being stopped."""
    if shutil.which("nsys") is None:
        raise Skipped("nsys is not installed")
    script = scene.folder / "tiny.py"
    script.write_text("import time\ntime.sleep(2)\n")
    arguments = ("nsys", "--device", "cpu", "--batches", "1,2", "--", sys.executable, str(script), "{batch}")
    how: Counter[str] = Counter()
    for turn in range(scene.moments):
        number = SIGNALS[turn % len(SIGNALS)]
        scene.attempt(partial(_nsys_once, scene, arguments, number, how))
    scene.seen.append(", ".join(f"{count} {what}" for what, count in sorted(how.items())))


def _nsys_once(scene: Scene, arguments: tuple[str, ...], number: signal.Signals, how: Counter[str]) -> None:
    """Three sweeps at once, each stopped at a moment of its own after nsys began."""
    folders = [scene.fresh() for _ in range(3)]
    children = [scene.start(*arguments, cwd=folder) for folder in folders]
    for child, folder in zip(children, folders, strict=True):
        while child.poll() is None and not list(folder.glob("perfctl-runs/*/b1.part/tmp/.perfctl-started")):
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
        Fault(f"stop-{name}", f"kill -9, TERM, HUP and Ctrl-C at random moments of {name}", partial(_stopped, name))
        for name in WORKS
    ),
    Fault("stop-nsys", "the same to three sweeps under nsys at once", _nsys_stopped),
)
