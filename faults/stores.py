"""Several commands on one store, and stores of an older and of a newer perfctl."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from scene import RECORDED, ROOT, Broken, Fault, Scene, expect, no_traceback, runs_of, store_is_whole

OLD = ROOT / "tests" / "data" / "stores"
TOGETHER = (
    ("replay", str(RECORDED / "torch"), "--sweep-name", "one"),
    ("replay", str(RECORDED / "nsys"), "--sweep-name", "two"),
    ("ingest", str(RECORDED / "torch" / "b16" / "workload.json"), str(RECORDED / "nsys" / "b32" / "workload.json")),
)


def _together(scene: Scene) -> None:
    """Two sweeps and an ingest at the same time, on a store that does not exist yet."""
    for _ in range(max(scene.moments // 10, 1)):
        scene.attempt(partial(_once, scene))


def _once(scene: Scene) -> str:
    folder = scene.fresh()
    places = [folder / str(number) for number, _ in enumerate(TOGETHER)]
    for place in places:
        place.mkdir()
    store = folder / "perfctl.db"
    started = [
        (place, scene.start(*command, "--store", str(store), cwd=place))
        for place, command in zip(places, TOGETHER, strict=True)
    ]
    for place, child in started:
        ended = scene.ended(child, place)
        no_traceback(ended)
        expect(ended, 0)
    store_is_whole(store)
    if len(runs_of(store)) != 6:
        raise Broken(f"the store holds {runs_of(store)}, not six runs")
    return "six runs, each once"


def _same_sweep(scene: Scene) -> None:
    """Two perfctl on one sweep: one runs, the other is refused."""

    def once() -> str:
        folder = scene.fresh()
        children = [scene.start("replay", str(RECORDED / "torch"), cwd=folder) for _ in range(2)]
        codes = sorted(child.wait() for child in children)
        scene.nothing_left()
        store_is_whole(folder / "perfctl.db")
        if codes not in ([0, 0], [0, 2]) or len(runs_of(folder / "perfctl.db")) != 2:
            raise Broken(f"exit codes {codes}, runs {runs_of(folder / 'perfctl.db')}")
        return f"exit codes {codes}"

    scene.attempt(once)


def _older(scene: Scene) -> None:
    for dump in sorted(OLD.glob("version*.sql")):
        scene.attempt(partial(_opened, scene, dump))


def _opened(scene: Scene, dump: Path) -> str:
    folder = scene.fresh()
    with closing(sqlite3.connect(folder / "perfctl.db")) as connection:
        connection.executescript(dump.read_text())
    before = runs_of(folder / "perfctl.db")
    for command in (("runs",), ("report",), ("ledger",), ("ingest", str(RECORDED / "nsys"))):
        expect(scene.perfctl(*command, cwd=folder), 0)
    store_is_whole(folder / "perfctl.db")
    after = runs_of(folder / "perfctl.db")
    if [run for run in before if run not in after] or len(after) != len(before) + 2:
        raise Broken(f"of {before} it holds {after}")
    shutil.rmtree(folder)
    return f"{dump.stem}: {len(before)} runs kept, read, reported, and two added"


def _newer(scene: Scene) -> None:
    """Refused with the version to install, and not a byte changed."""

    def once(command: tuple[str, ...]) -> str:
        folder = scene.fresh()
        store = folder / "perfctl.db"
        expect(scene.perfctl("ingest", str(RECORDED / "nsys"), cwd=folder), 0)
        with closing(sqlite3.connect(store)) as connection:
            connection.execute("INSERT OR REPLACE INTO store_info VALUES ('written_by', '9.1.0')")
            connection.execute("PRAGMA user_version = 99")
            connection.commit()
        before = store.read_bytes()
        said = expect(scene.perfctl(*command, cwd=folder), 1, says="Install perfctl 9.1.0 or later")
        if store.read_bytes() != before:
            raise Broken(f"{command[0]} changed it")
        return said

    for command in (("runs",), ("ingest", str(RECORDED / "torch")), ("replay", str(RECORDED / "torch")), ("report",)):
        scene.attempt(partial(once, command))


FAULTS = (
    Fault("together", "two sweeps and an ingest on one store at once", _together),
    Fault("same-sweep", "the same sweep twice at once", _same_sweep),
    Fault("older-store", "a store of each earlier version", _older),
    Fault("newer-store", "a store of a newer version", _newer),
)
