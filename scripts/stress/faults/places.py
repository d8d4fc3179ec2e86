"""Unusual surroundings: names of folders, locale, no HOME, a clock that runs backwards."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from scene import RECORDED, Broken, Fault, Scene, expect, runs_of, store_is_whole

NAMES = (
    "with spaces",
    "it's quoted",
    'with "two"',
    "two\nlines",
    "Größe ✓ 批",
    "-b",
    "a;b$(c)`d`*?",
    "%q{HOME}%n",
    "x" * 200,
)
NO_HOME = (
    "import os, sys\nos.environ.pop('HOME', None)\nos.execv(sys.executable, [sys.executable, '-m', "
    "'perfctl', *sys.argv[1:]])\n"
)

BACKWARDS = """
import datetime, time
real, clock, looks = datetime.datetime, time.time, [0]
class Backwards(real):
    @classmethod
    def now(cls, tz=None):
        looks[0] += 1
        return real.now(tz) - datetime.timedelta(hours=looks[0])
def earlier():
    looks[0] += 1
    return clock() - 3600 * looks[0]
datetime.datetime, time.time = Backwards, earlier
"""
"""sitecustomize.py: only the clock of these processes changes."""


def _all_through(scene: Scene, folder: Path, more: Mapping[str, str] | None = None) -> None:
    """A sweep, an ingest, a page and tables in ``folder``."""
    shutil.copytree(RECORDED / "torch", folder / "their reports")
    for command in (
        ("replay", "their reports"),
        ("ingest", str(RECORDED / "nsys")),
        ("report",),
        ("export", "--out", "tables"),
        ("trace", "1", "--out", "trace.json"),
    ):
        expect(scene.perfctl(*command, cwd=folder, more=more), 0)
    store_is_whole(folder / "perfctl.db")
    if len(runs_of(folder / "perfctl.db")) != 4:
        raise Broken(f"the store holds {runs_of(folder / 'perfctl.db')}, not four runs")


def _names(scene: Scene) -> None:
    def once(name: str) -> str:
        folder = scene.fresh() / name
        folder.mkdir()
        _all_through(scene, folder)
        return repr(name if len(name) < 50 else f"{name[:10]}... ({len(name)} characters)")

    for name in NAMES:
        scene.attempt(partial(once, name))


def _locale(scene: Scene) -> None:
    """German numbers, an encoding without umlauts, and a locale that does not exist."""

    def once(locale: str) -> str:
        folder = scene.fresh()
        _all_through(scene, folder, {"LC_ALL": locale, "LANG": locale, "LANGUAGE": locale[:2]})
        page = (folder / "perfctl-report.html").read_bytes()
        pages.add(page.replace(bytes(folder), b""))
        return locale

    pages: set[bytes] = set()
    for locale in ("de_DE.UTF-8", "C", "POSIX", "xx_YY.ISO-8859-15"):
        scene.attempt(partial(once, locale))


def _no_home(scene: Scene) -> None:
    def once() -> str:
        folder = scene.fresh()
        script = scene.folder / "no_home.py"
        script.write_text(NO_HOME)
        expect(
            scene.perfctl(
                "replay", str(RECORDED / "torch"), cwd=folder, run=(sys.executable, str(script))
            ),
            0,
        )
        expect(scene.perfctl("report", cwd=folder, run=(sys.executable, str(script))), 0)
        expect(scene.perfctl("doctor", cwd=folder, run=(sys.executable, str(script))), 0, 1)
        return "sweep, page, doctor"

    scene.attempt(once)


def _clock(scene: Scene) -> None:
    """Each reading of the clock is an hour earlier than the one before, in perfctl and in all
    Python processes that it starts."""

    def once() -> str:
        folder, site = scene.fresh(), scene.fresh("site")
        (site / "sitecustomize.py").write_text(BACKWARDS)
        more = {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
        }
        _all_through(scene, folder, more)
        with closing(sqlite3.connect(folder / "perfctl.db")) as connection:
            times = [
                row[0]
                for row in connection.execute(
                    "SELECT duration_ns FROM run WHERE duration_ns IS NOT NULL"
                )
            ]
            dates = [
                row[0] for row in connection.execute("SELECT ingested_at FROM run ORDER BY id")
            ]
        if min(times) < 0:
            raise Broken(f"durations {times}")
        if dates == sorted(dates):
            raise Broken("the clock did not go backwards: nothing was tried")
        return f"whole, durations positive; dates of the runs, in order: {', '.join(dates)}"

    scene.attempt(once)


FAULTS = (
    Fault(
        "names",
        "folders with spaces, quotes, newlines, signs of shells and other alphabets",
        _names,
    ),
    Fault("locale", "locale de_DE, C, and one that is not there", _locale),
    Fault("no-home", "HOME is not set", _no_home),
    Fault("clock-back", "the clock goes backwards in a sweep", _clock),
)
