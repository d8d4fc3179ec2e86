"""A disk of a few MB that is full at each stage, and read-only folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from scene import RECORDED, Broken, Ended, Fault, Scene, Skipped, expect, expect_runs, runs_of, store_is_whole

REPORTS = (str(RECORDED / "torch"), str(RECORDED / "nsys"))
STAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "sweep": (("replay", str(RECORDED / "torch")),),
    "ingest": (("ingest", *REPORTS),),
    "gather": (("replay", str(RECORDED / "torch"), "--no-store"), ("slurm", "gather", "perfctl-runs")),
    "report": (("ingest", *REPORTS), ("report",)),
    "export": (("ingest", *REPORTS), ("export", "--out", "tables")),
}
"""Commands that run first, and last the command that finds the disk full."""
FREE_KB = (0, 64, 200, 600, 1500)
"""Room that is left when it begins."""


@contextmanager
def _small_disk(scene: Scene) -> Iterator[Path]:
    if os.getuid() != 0:
        raise Skipped("only root can mount a small disk")
    place = scene.fresh("disk")
    mounted = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)), capture_output=True, text=True, check=False
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
    """One clear line and a failure; with free space, the same command completes and stores nothing twice."""
    *before, last = STAGES[stage]
    undisturbed = scene.fresh("undisturbed")
    for command in (*before, last):
        expect(scene.perfctl(*command, cwd=undisturbed), 0)
    wanted = runs_of(undisturbed / "perfctl.db")
    for free in FREE_KB:
        scene.attempt(partial(_once, scene, before, last, free, wanted))


def _once(scene: Scene, before: list[tuple[str, ...]], last: tuple[str, ...], free: int, wanted: list[object]) -> str:
    with _small_disk(scene) as place:
        for command in before:
            expect(scene.perfctl(*command, cwd=place), 0)
        filler = _fill(place, free)
        ended = scene.perfctl(*last, cwd=place)
        _one_line(ended)
        filler.unlink()
        store_is_whole(place / "perfctl.db")
        more = ("--force",) if last[0] == "export" and ended.code == 0 else ()
        expect(scene.perfctl(*last, *more, cwd=place), 0)
        expect_runs(place / "perfctl.db", wanted)  # type: ignore[arg-type]
        return f"{free} kB left: {ended.code}: {ended.said[:120] if ended.code else 'fits'}"


def _one_line(ended: Ended) -> None:
    if ended.code and not any(line.startswith("perfctl:") for line in ended.err.splitlines()):
        raise Broken(f"exit code {ended.code} without a word of perfctl's: {ended.said[:200]}")


def _read_only(scene: Scene) -> None:
    """perfctl cannot write to its folder: it says so at once, with what to do; reading works."""
    with _small_disk(scene) as place:
        expect(scene.perfctl("ingest", *REPORTS, cwd=place), 0)
        subprocess.run(("mount", "-o", "remount,ro", str(place)), check=True)
        for command in (
            ("replay", str(RECORDED / "torch")), ("ingest", *REPORTS), ("report",), ("export", "--out", "tables"),
            ("torch", "--device", "cpu", "--batches", "1"), ("slurm", "gather", str(RECORDED)),
        ):  # fmt: skip
            scene.attempt(partial(_refused, scene, place, command))
        for command in (("runs",), ("ledger",), ("show", "1"), ("report", "--out", str(scene.folder / "page.html"))):
            scene.attempt(partial(_works, scene, place, command))


def _refused(scene: Scene, place: Path, command: tuple[str, ...]) -> str:
    ended = scene.perfctl(*command, cwd=place)
    _one_line(ended)
    return f"{command[0]}: {expect(ended, 1, 2, 4)[:120]}"


def _works(scene: Scene, place: Path, command: tuple[str, ...]) -> str:
    expect(scene.perfctl(*command, cwd=place), 0)
    return f"{command[0]} works"


FAULTS = (
    *(Fault(f"disk-full-{stage}", f"{stage} on a disk that gets full", partial(_full, stage)) for stage in STAGES),
    Fault("read-only", "the folder cannot be written to", _read_only),
)
