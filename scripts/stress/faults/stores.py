"""Several commands on one store, and stores of an older and of a newer perfctl."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from scene import (
    RECORDED,
    ROOT,
    Broken,
    Ended,
    Fault,
    Run,
    Scene,
    expect,
    expect_count,
    no_traceback,
    removed,
    runs_of,
    store_is_whole,
)

TOGETHER = (
    ("replay", str(RECORDED / "torch"), "--sweep-name", "one"),
    ("replay", str(RECORDED / "nsys"), "--sweep-name", "two"),
    (
        "ingest",
        str(RECORDED / "torch" / "b16" / "workload.json"),
        str(RECORDED / "nsys" / "b32" / "workload.json"),
    ),
)
NOTHING_YET = (
    "no store here yet",
    "no runs",
    "it holds no run",
    "there is no run",
    "not a store yet",
    "nothing on paper to compare with",
)
READ_AND_WRITE = (
    ("runs",),
    ("ingest", str(RECORDED / "torch")),
    ("replay", str(RECORDED / "torch")),
    ("report",),
)
WRITTEN_BY_1_0 = ROOT / "scripts" / "proof" / "guard" / "stores" / "mnist-v100.sql.gz"
MIGRATED_ROWS = 400_000
"""Rows that make a migration last long enough to be hit by a kill."""
Rows = list[tuple[object, ...]]
READERS = (("runs",), ("show", "1"), ("ledger",), ("report", "--out", "page.html"))


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
    expect_count(store, 6)
    return "six runs, each once"


def _every_command(scene: Scene) -> None:
    """An ingest, a gather, a page and a gate at once, while the ingested reports vanish."""
    for _ in range(max(scene.moments // 25, 1)):
        scene.attempt(partial(_all_at_once, scene))


def _all_at_once(scene: Scene) -> str:
    folder = scene.fresh()
    store, inputs = str(folder / "perfctl.db"), folder / "inputs"
    swept, gated = folder / "swept", folder / "gated"
    for place in (inputs, swept, gated):
        place.mkdir()
    _reports(inputs / "1", 1)
    expect(scene.perfctl("replay", str(RECORDED / "torch"), "--no-store", cwd=swept), 0)
    expect(scene.perfctl("ingest", str(RECORDED / "torch"), "--store", store, cwd=folder), 0)
    expect(scene.perfctl("gate", "--update", "--runs", store, cwd=gated), 0)
    commands = (
        (inputs, ("ingest", "1", "--store", store), (0, 1, 4)),
        (swept, ("slurm", "gather", "perfctl-runs", "--store", store), (0,)),
        (folder, ("report", "--store", store), (0,)),
        (gated, ("gate", "--runs", store), (0, 3, 4)),
    )
    children = [scene.start(*command, cwd=place) for place, command, _ in commands]
    time.sleep(scene.random.uniform(0, 3))
    shutil.rmtree(inputs / "1")
    codes = []
    for child, (place, _, allowed) in zip(children, commands, strict=True):
        ended = scene.ended(child, place)
        no_traceback(ended)
        expect(ended, *allowed)
        codes.append(str(ended.code))
    store_is_whole(folder / "perfctl.db")
    removed(folder)
    return f"ingest, gather, report, gate: {', '.join(codes)}"


def _four_and_four(scene: Scene) -> None:
    """Four ingests and four readers that start again and again: on a store that has runs, then
    on none."""
    many_writers_and_readers(scene, scene.fresh, max(scene.moments // 10, 2))


def many_writers_and_readers(scene: Scene, fresh: Callable[[], Path], times: int) -> None:
    inputs = scene.fresh("inputs")
    for writer in range(4):
        _reports(inputs / str(writer), writer)
    alone = scene.fresh("alone")
    expect(
        scene.perfctl("ingest", *(str(inputs / str(writer)) for writer in range(4)), cwd=alone), 0
    )
    new = runs_of(alone / "perfctl.db")
    expect(scene.perfctl("ingest", str(RECORDED / "torch"), cwd=alone), 0)
    both = runs_of(alone / "perfctl.db")
    for turn in range(times):
        has_store = turn % 2 == 0
        scene.attempt(
            partial(
                _writers_and_readers,
                scene,
                fresh(),
                inputs,
                both if has_store else new,
                has_store=has_store,
            )
        )


def _reports(folder: Path, writer: int) -> None:
    """Two traces of torch and an nsys database, of the same runs but not the same bytes as
    another writer's."""
    folder.mkdir()
    for batch in (16, 32):
        trace = gzip.decompress(
            (RECORDED / "torch" / f"b{batch}" / "report.pt.trace.json.gz").read_bytes()
        )
        (folder / f"b{batch}.pt.trace.json").write_bytes(trace + b"\n" * writer)
    shutil.copy(RECORDED / "nsys" / "b16" / "report.sqlite", folder / "b16.sqlite")
    with closing(sqlite3.connect(folder / "b16.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version = {writer + 7}")
        connection.commit()


def _writers_and_readers(
    scene: Scene, folder: Path, inputs: Path, wanted: list[Run], *, has_store: bool
) -> str:
    store = folder / "perfctl.db"
    if has_store:
        expect(scene.perfctl("ingest", str(RECORDED / "torch"), cwd=folder), 0)
    writers, readers = [], []
    for number in range(4):
        place = _made(folder / f"writer{number}")
        writers.append(
            (
                place,
                scene.start("ingest", str(inputs / str(number)), "--store", str(store), cwd=place),
            )
        )
    read = looks = 0
    while any(child.poll() is None for _, child in writers) or readers:
        is_over = all(child.poll() is not None for _, child in writers)
        for number, command in enumerate(() if is_over else READERS):
            place = _made(folder / f"reader{number}")
            if all(place != other for other, _ in readers):
                readers.append((place, scene.start(*command, "--store", str(store), cwd=place)))
        for place, child in [one for one in readers if one[1].poll() is not None]:
            readers.remove((place, child))
            read += _read_whole(scene.ended(child, place))
        looks += _no_half_run(store, wanted)
        time.sleep(0.05)
    for place, child in writers:
        expect(scene.ended(child, place), 0)
    store_is_whole(store)
    if Counter(there := runs_of(store)) != Counter(wanted):
        raise Broken(f"the store holds {there}, not {wanted}")
    removed(folder)
    return (
        f"{len(wanted)} runs, each once; {read} commands read while it was written, {looks} looks "
        "saw whole runs only"
    )


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _read_whole(ended: Ended) -> int:
    """A reader succeeds, or says that nothing is there yet."""
    no_traceback(ended)
    if "locked" in ended.out + ended.err:
        raise Broken(f"a reader was told: {ended.said}")
    if ended.code and not any(words in ended.said for words in NOTHING_YET):
        raise Broken(f"a reader ended with {ended.code}: {ended.said[:300]}")
    return int(ended.code == 0)


def _no_half_run(store: Path, wanted: list[Run]) -> int:
    """1, or 0 where there is no table yet. One SELECT sees one moment."""
    try:
        seen = runs_of(store)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return 0
        raise Broken(f"a look at the store: {error}") from None
    if half := [run for run in seen if run not in wanted]:
        raise Broken(f"half a run was seen: {half[0]}, of {wanted}")
    return 1


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
    """Refused with the release that upgrades it, and not a byte changed."""
    for version in (1, 2, 3):
        for command in READ_AND_WRITE:
            scene.attempt(
                partial(
                    _refused, scene, version, "0.3.0", command, "perfctl 1.0.0, which upgrades it"
                )
            )


def _migrated(scene: Scene) -> None:
    """A store of 1.0 whose migration is killed: what is there is the old store or the new one, and
    the next command goes on."""
    old = scene.fresh("old") / "perfctl.db"
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript(gzip.decompress(WRITTEN_BY_1_0.read_bytes()).decode())
        connection.executemany(
            "INSERT INTO step (run_id, number, phase, duration_ns) VALUES (1, ?, 'step', 5)",
            ((number,) for number in range(MIGRATED_ROWS)),
        )
        connection.execute("CREATE TABLE notes AS SELECT id, 'mine' AS text FROM run")
        connection.execute("CREATE INDEX by_length ON step(duration_ns)")
        connection.commit()
        connection.execute("PRAGMA journal_mode = WAL")
    whole = scene.fresh()
    shutil.copy(old, whole)
    started = time.monotonic()
    expect(scene.perfctl("runs", cwd=whole), 0)
    length = time.monotonic() - started
    wanted = _rows_of_step(whole / "perfctl.db")
    for _ in range(scene.moments):
        scene.attempt(
            partial(_migration_killed, scene, old, scene.random.uniform(0, length), wanted)
        )
    scene.attempt(partial(_readers_of_old, scene, old, wanted))


def _migration_killed(scene: Scene, old: Path, after: float, wanted: Rows) -> str:
    folder = scene.fresh()
    store = Path(shutil.copy(old, folder))
    child = scene.start("runs", cwd=folder)
    time.sleep(after)
    child.kill()
    scene.ended(child, folder)
    version = _version_of(store)
    if version not in (4, 5) or _rows_of_step(store) != wanted:
        raise Broken(f"after a kill the store has version {version} and other rows")
    expect(scene.perfctl("runs", cwd=folder), 0)
    store_is_whole(store)
    if (_version_of(store), _rows_of_step(store)) != (5, wanted):
        raise Broken("the next command did not bring the store up to date")
    if left := [path.name for path in folder.iterdir() if "migrating" in path.name]:
        raise Broken(f"{left[0]} was left behind")
    removed(folder)
    return f"killed at version {version}, then up to date"


def _readers_of_old(scene: Scene, old: Path, wanted: Rows) -> str:
    """Four commands open a store of 1.0 at the same time: one migrates it, the others wait."""
    folder = scene.fresh()
    store = Path(shutil.copy(old, folder))
    places = [folder / str(number) for number in range(4)]
    for place in places:
        place.mkdir()
    children = [scene.start("runs", "--store", str(store), cwd=place) for place in places]
    for place, child in zip(places, children, strict=True):
        expect(scene.ended(child, place), 0)
    store_is_whole(store)
    if (_version_of(store), _rows_of_step(store)) != (5, wanted):
        raise Broken("four readers at once did not bring the store up to date")
    return "four at once: up to date"


def _version_of(store: Path) -> int:
    with closing(sqlite3.connect(store)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _rows_of_step(store: Path) -> Rows:
    """Return counts and sums of the rows, and of what the store's owner made."""
    with closing(sqlite3.connect(store)) as connection:
        return [
            connection.execute(
                "SELECT count(*), sum(number), sum(duration_ns) FROM step"
            ).fetchone(),
            connection.execute("SELECT count(*), sum(duration_ns) FROM kernel").fetchone(),
            connection.execute("SELECT count(*), min(text) FROM notes").fetchone(),
            connection.execute(
                "SELECT name, tbl_name FROM sqlite_master WHERE name = 'by_length'"
            ).fetchone(),
        ]


def _newer(scene: Scene) -> None:
    """Refused with the version to install, and not a byte changed."""
    for command in READ_AND_WRITE:
        scene.attempt(
            partial(_refused, scene, 99, "9.1.0", command, "Install perfctl 9.1.0 or later")
        )


def _refused(
    scene: Scene, version: int, written_by: str, command: tuple[str, ...], says: str
) -> str:
    folder = scene.fresh()
    store = folder / "perfctl.db"
    expect(scene.perfctl("ingest", str(RECORDED / "nsys"), cwd=folder), 0)
    with closing(sqlite3.connect(store)) as connection:
        connection.execute(
            "INSERT OR REPLACE INTO store_info VALUES ('written_by', ?)", (written_by,)
        )
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
    before = store.read_bytes()
    said = expect(scene.perfctl(*command, cwd=folder), 1, says=says)
    if store.read_bytes() != before:
        raise Broken(f"{command[0]} changed it")
    return said


FAULTS = (
    Fault("together", "two sweeps and an ingest on one store at once", _together),
    Fault("every-command", "ingest, gather, report and gate on one store at once", _every_command),
    Fault("four-and-four", "four ingests and four readers on one store at once", _four_and_four),
    Fault("same-sweep", "the same sweep twice at once", _same_sweep),
    Fault("older-store", "a store of perfctl 0.x", _older),
    Fault("migrate", "a store of perfctl 1.0 whose migration is killed", _migrated),
    Fault("newer-store", "a store of a newer version", _newer),
)
