"""A disk of a few MB that is full at each stage, and read-only folders."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from scene import (
    RECORDED,
    Broken,
    Ended,
    Fault,
    Run,
    Scene,
    Skipped,
    expect,
    expect_count,
    expect_runs,
    no_traceback,
    runs_of,
    store_is_whole,
)
from stores import many_writers_and_readers

REPORTS = (str(RECORDED / "torch"), str(RECORDED / "nsys"))
SQLITE = RECORDED / "nsys" / "b16" / "report.sqlite"
SIDES = (str(RECORDED / "torch" / "b16"), str(RECORDED / "torch" / "b32"))
STAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "sweep": (("replay", str(RECORDED / "torch")),),
    "ingest": (("ingest", *REPORTS),),
    "gather": (
        ("replay", str(RECORDED / "torch"), "--no-store"),
        ("slurm", "gather", "perfctl-runs"),
    ),
    "report": (("ingest", *REPORTS), ("report",)),
    "export": (("ingest", *REPORTS), ("export", "--out", "tables")),
    "jobs": (("ingest", *REPORTS, "--jobs", "2"),),
    "trace": (("ingest", *REPORTS), ("trace", "1", "--out", "trace.json")),
    "scrub": (("scrub", str(SQLITE), "--out", "clean.sqlite"),),
    "compare": (("compare", *SIDES, "--anyway", "--out", "page.html"),),
    "study": (("study", "flops", "--from", str(RECORDED / "torch"), "--out", "study"),),
}
"""Commands that run first, and last the command that finds the disk full."""
LATE_MS = 4
FREE_KB = (0, 64, 200, 600, 1500)
"""Room that is left when it begins; every second of them with fewer than 20 --moments."""


@contextmanager
def _small_disk(scene: Scene) -> Iterator[Path]:
    if os.getuid() != 0:
        raise Skipped("only root can mount a small disk")
    place = scene.fresh("disk")
    mounted = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)),
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        raise Skipped(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(("umount", "--lazy", str(place)), check=False)


def _fill(place: Path, free_kb: int) -> Path:
    """Fill the disk up to this much space; return the file to remove later."""
    filler = place / "filler"
    room = shutil.disk_usage(place).free - free_kb * 1024
    with filler.open("wb") as file:
        file.write(bytes(max(room, 0)))
    return filler


def _full(stage: str, scene: Scene) -> None:
    """One clear line and a failure; with free space, the same command completes and stores
    nothing twice."""
    *before, last = STAGES[stage]
    undisturbed = scene.fresh("undisturbed")
    for command in before:
        expect(scene.perfctl(*command, cwd=undisturbed), 0)
    usual = scene.perfctl(*last, cwd=undisturbed)
    if usual.code not in (0, 3):  # compare: something is worse
        raise Broken(f"undisturbed it ends with {usual.code}: {usual.said}")
    wanted = runs_of(undisturbed / "perfctl.db")
    for free in FREE_KB if scene.moments >= 20 else FREE_KB[::2]:
        scene.attempt(partial(_once, scene, before, last, free, usual.code, wanted))


def _once(
    scene: Scene,
    before: list[tuple[str, ...]],
    last: tuple[str, ...],
    free: int,
    code: int,
    wanted: list[Run],
) -> str:
    with _small_disk(scene) as place:
        for command in before:
            expect(scene.perfctl(*command, cwd=place), 0)
        filler = _fill(place, free)
        ended = scene.perfctl(*last, cwd=place)
        _one_line(ended)
        filler.unlink()
        store_is_whole(place / "perfctl.db")
        scraps = [path.name for path in place.iterdir() if path.name.endswith(".tmp")]
        if scraps:
            raise Broken(f"left behind: {', '.join(scraps)}")
        more = ("--force",) if last[0] in ("export", "trace", "scrub") and ended.code == 0 else ()
        expect(scene.perfctl(*last, *more, cwd=place), code)
        expect_runs(place / "perfctl.db", wanted)
        return f"{free} kB left: {ended.code}: {ended.said[:120] if ended.code else 'fits'}"


def _one_line(ended: Ended) -> None:
    if ended.code and not any(line.startswith("perfctl:") for line in ended.err.splitlines()):
        raise Broken(f"exit code {ended.code} without a word of perfctl's: {ended.said[:200]}")


def _read_only(scene: Scene) -> None:
    """perfctl cannot write to its folder: it says so at once, with what to do; reading works."""
    with _small_disk(scene) as place:
        expect(scene.perfctl("ingest", *REPORTS, cwd=place), 0)
        shutil.copy(SQLITE, place)
        subprocess.run(("mount", "-o", "remount,ro", str(place)), check=True)
        for command in (
            ("replay", str(RECORDED / "torch")),
            ("ingest", *REPORTS),
            ("report",),
            ("export", "--out", "tables"),
            ("torch", "--device", "cpu", "--batches", "1"),
            ("slurm", "gather", str(RECORDED)),
            ("ingest", *REPORTS, "--jobs", "2"),
            ("trace", "1"),
            ("scrub", "report.sqlite"),
            ("compare", *SIDES, "--anyway", "--out", "page.html"),
            ("plot", "shares"),
            ("study", "flops", "--from", str(RECORDED / "torch")),
        ):
            scene.attempt(partial(_refused, scene, place, command))
        for command in (
            ("runs",),
            ("ledger",),
            ("show", "1"),
            ("report", "--out", str(scene.folder / "page.html")),
            ("query", "select count(*) from run"),
            ("export", "--out", str(scene.folder / "tables")),
            ("scrub", "report.sqlite", "--out", str(scene.folder / "clean.sqlite")),
        ):
            scene.attempt(partial(_works, scene, place, command))


def _refused(scene: Scene, place: Path, command: tuple[str, ...]) -> str:
    ended = scene.perfctl(*command, cwd=place)
    _one_line(ended)
    return f"{command[0]}: {expect(ended, 1, 2, 4)[:120]}"


def _works(scene: Scene, place: Path, command: tuple[str, ...]) -> str:
    expect(scene.perfctl(*command, cwd=place), 0)
    return f"{command[0]} works"


@contextmanager
def _late_disk(scene: Scene) -> Iterator[Path]:
    """A folder on which each operation is late (``slow_disk.py``)."""
    if importlib.util.find_spec("fuse") is None or not Path("/dev/fuse").exists():
        raise Skipped("a slow disk needs fusepy, libfuse 2 and /dev/fuse")
    source, place = scene.fresh("source"), scene.fresh("late")
    server = subprocess.Popen(
        (
            sys.executable,
            str(Path(__file__).with_name("slow_disk.py")),
            str(source),
            str(place),
            str(LATE_MS),
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 20
        while not place.is_mount():
            if server.poll() is not None or time.monotonic() > until:
                raise Skipped("FUSE cannot mount here")
            time.sleep(0.05)
        yield place
    finally:
        subprocess.run(("umount", "--lazy", str(place)), check=False, stderr=subprocess.DEVNULL)
        server.terminate()
        server.wait()


def _late(scene: Scene) -> None:
    """Everything works, only later; four writers and four readers meet as on a fast disk, and a
    killed ingest is completed."""
    with _late_disk(scene) as place:
        for command in (
            ("replay", str(RECORDED / "torch")),
            ("ingest", *REPORTS),
            ("runs",),
            ("show", "1"),
            ("ledger",),
            ("report",),
            ("export", "--out", "tables"),
            ("scrub", str(SQLITE), "--out", "clean.sqlite"),
        ):
            scene.attempt(partial(_works, scene, place, command))
        expect_count(place / "perfctl.db", 4)
        folders = iter(range(100))

        def fresh() -> Path:
            folder = place / str(next(folders))
            folder.mkdir()
            return folder

        many_writers_and_readers(scene, fresh, 1)
        for number in (signal.SIGKILL, signal.SIGTERM) * max(scene.moments // 10, 1):
            scene.attempt(partial(_killed_late, scene, fresh(), number))


def _killed_late(scene: Scene, folder: Path, number: signal.Signals) -> str:
    child = scene.start("ingest", *REPORTS, cwd=folder)
    while child.poll() is None and not (folder / "perfctl.db").exists():
        time.sleep(0.01)
    time.sleep(scene.random.uniform(0.0, 6.0))
    child.send_signal(number)
    no_traceback(scene.ended(child, folder))
    scene.nothing_left(but="slow_disk.py")
    store_is_whole(folder / "perfctl.db")
    expect(scene.perfctl("ingest", *REPORTS, cwd=folder), 0)
    expect_count(folder / "perfctl.db", 4)
    return "an ingest that was killed is completed"


FAULTS = (
    *(
        Fault(f"disk-full-{stage}", f"{stage} on a disk that gets full", partial(_full, stage))
        for stage in STAGES
    ),
    Fault("slow-disk", f"every operation of the file system takes {LATE_MS} ms more", _late),
    Fault("read-only", "the folder cannot be written to", _read_only),
)
