"""Damage real reports in many ways and ingest each: ``python fuzz/attack.py [--mutants N] [--seed N] [REPORT...]``.

For each report the rows of the undamaged one are kept. A mutant is refused, or read with the same rows, or with other
rows and a word about it (a gap, a diagnostic, a warning, a partial run), or with other rows and **no word**: silent. Silent
mutants are listed by format and damage: a digit that another digit replaced cannot be noticed where nothing else in
the format says it again (``fuzz/redundancy.py`` says which and why). A silent mutant of which the format could tell is a
finding, as are a traceback, more than 60 s, or more memory than ``--memory-limit``: the file is kept in build/attack/, and
the exit code is 1. Memory is that of the process and of the children that it read in, whichever has most.

Without reports: those of tests/data, and of REPORTS (a folder, ../shared/reports by default) where it is there.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from redundancy import excuse, place_of  # beside this file

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "attack"
LARGEST = 1_500_000
"""Bytes of a report that is damaged; a larger one takes too long to read so often."""
HANGS_AFTER_S = 60
SPEAKING = ("gap", "diagnostic")
"""Tables in which a doubt is stored."""
IGNORED = {
    "sweep": None,
    "store_info": None,
    "run": {"artifact", "artifact_sha256", "sweep_id", "command", "started_at", "ingested_at"},
}
"""Tables (None) and columns that differ between two readings of the same report."""

_COULD_TELL = "COULD BE TOLD"

Damage = Callable[[bytes, Random], bytes]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(1, max(2, len(data)))]


def _flip(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 4, 32))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _hole(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice((1, 16, 512, 4096)))
    return data[:start] + random.choice((b"", b"\0" * (end - start))) + data[end:]


def _repeat(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice((1, 64, 4096)))
    return data[:end] + data[start:end] * random.choice((1, 2, 50)) + data[end:]


BYTES: dict[str, Damage] = {"cut": _cut, "flipped bits": _flip, "hole": _hole, "repeated bytes": _repeat}


def _lines(change: Callable[[list[bytes], Random], None]) -> Damage:
    def damage(data: bytes, random: Random) -> bytes:
        lines = data.splitlines(keepends=True)
        change(lines, random)
        return b"".join(lines)

    return damage


def _drop_line(lines: list[bytes], random: Random) -> None:
    del lines[random.randrange(len(lines))]


def _double_line(lines: list[bytes], random: Random) -> None:
    lines.insert(at := random.randrange(len(lines)), lines[at])


def _swap_lines(lines: list[bytes], random: Random) -> None:
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


def _drop_cell(lines: list[bytes], random: Random) -> None:
    at = random.randrange(len(lines))
    cells = lines[at].split(b",")
    del cells[random.randrange(len(cells))]
    lines[at] = b",".join(cells)


def _drop_block(lines: list[bytes], random: Random) -> None:
    start = random.randrange(len(lines))
    del lines[start : start + random.randrange(2, 40)]


def _number(data: bytes, random: Random) -> bytes:
    """Another number in the place of one: a digit, the sign, or far too large."""
    places = [at for at in range(len(data)) if 48 <= data[at] <= 57]
    if not places:
        return _flip(data, random)
    at = random.choice(places)
    new = random.choice((b"%d" % random.randrange(10), b"-", b"9" * 30, b"nan", b"1e400"))
    return data[:at] + new + data[at + 1 :]


TEXT: dict[str, Damage] = {
    "line missing": _lines(_drop_line), "line twice": _lines(_double_line), "lines swapped": _lines(_swap_lines),
    "cell missing": _lines(_drop_cell), "lines missing": _lines(_drop_block), "number": _number,
}  # fmt: skip


def _odd(random: Random) -> Any:
    return random.choice((None, -1, 1 << 62, 1 << 70, -1e308, "x", "", "\ud800", [], {}, True, [[]] * 3, "9" * 5000))


def _json_value(data: bytes, random: Random) -> bytes:
    """One value somewhere in the tree is another, is missing or stands there twice."""
    try:
        tree = json.loads(data)
    except ValueError:
        return _flip(data, random)
    at = tree
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        if not len(keys):
            return data + b" "
        key = random.choice(keys)
        if isinstance(at[key], (dict, list)) and len(at[key]) and random.random() < 0.85:
            at = at[key]
            continue
        how = random.randrange(3)
        if how == 0:
            del at[key]
        elif how == 1 and isinstance(at, list):
            at.insert(key, at[key])
        else:
            at[key] = _odd(random)
        return json.dumps(tree).encode("utf-8", "surrogatepass")


def _sqlite(change: Callable[[sqlite3.Connection, str, Random], None]) -> Damage:
    def damage(data: bytes, random: Random) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.sqlite")
            path.write_bytes(data)
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                names = [
                    name
                    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                    if not name.startswith("sqlite_") and connection.execute(f'SELECT 1 FROM "{name}"').fetchone()
                ]
                if names:
                    change(connection, random.choice(names), random)
            return path.read_bytes()

    return damage


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]


def _rowid(connection: sqlite3.Connection, table: str, random: Random) -> int:
    (total,) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
    return int(
        connection.execute(f'SELECT rowid FROM "{table}" LIMIT 1 OFFSET ?', (random.randrange(total),)).fetchone()[0]
    )


def _db_value(connection: sqlite3.Connection, table: str, random: Random) -> None:
    column, row = random.choice(_columns(connection, table)), _rowid(connection, table, random)
    value = random.choice((None, -1, 0, (1 << 63) - 1, -(1 << 63), 1e308, "x", "", b"\xff\xfe", "9" * 5000))
    bad = "CAST(x'ff41' AS TEXT)" if random.random() < 0.15 else "?"
    connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = {bad} WHERE rowid = ?', (value, row)[bad != "?" :])


def _db_column(connection: sqlite3.Connection, table: str, random: Random) -> None:
    column = random.choice(_columns(connection, table))
    value = random.choice((None, -1, 0, (1 << 63) - 1, "x", b"\xff"))
    connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', (value,))


def _db_delete(connection: sqlite3.Connection, table: str, random: Random) -> None:
    how = random.choice(("rowid = ?", "rowid > ?", "rowid % 3 = ? % 3"))
    connection.execute(f'DELETE FROM "{table}" WHERE {how}', (_rowid(connection, table, random),))


def _db_shape(connection: sqlite3.Connection, table: str, random: Random) -> None:
    column = random.choice(_columns(connection, table))
    how = random.choice(
        ("DROP TABLE {0}", "ALTER TABLE {0} RENAME TO gone", "ALTER TABLE {0} RENAME COLUMN {1} TO gone")
    )
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute(how.format(f'"{table}"', f'"{column}"'))


SQLITE: dict[str, Damage] = {
    "value": _sqlite(_db_value), "whole column": _sqlite(_db_column), "rows missing": _sqlite(_db_delete),
    "table or column missing": _sqlite(_db_shape),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one ingest did."""

    rows: Mapping[str, str] = field(default_factory=dict)
    """Table -> digest of its rows."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """The same of its numbers alone."""
    form: str = ""
    rhythm: bool = False
    """Readings follow each other evenly, and there are enough to know."""
    words: tuple[str, ...] = ()
    failed: bool = False
    broken: str = ""
    """A traceback's last line, or what limit was passed."""
    seconds: float = 0.0
    megabytes: float = 0.0


def taken_in(report: Path, folder: Path) -> Outcome:
    """Ingest into a new store, in a process of its own."""
    answer = folder / "answer"
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        _as_child(report, folder, answer)
    until = started + HANGS_AFTER_S
    while True:
        pid, _, used = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.wait4(child, 0)
            return Outcome(broken=f"over {HANGS_AFTER_S} s", seconds=time.monotonic() - started)
        time.sleep(0.002)
    spent = time.monotonic() - started
    if not answer.exists():
        return Outcome(broken="it died without a word", seconds=spent)
    found = Outcome(**json.loads(answer.read_text()))
    return replace(found, seconds=spent, megabytes=used.ru_maxrss / 1024)


def _as_child(report: Path, folder: Path, answer: Path) -> None:
    try:
        outcome = _ingested(report, folder)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome(
            broken=f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {str(error)[:150]}"
        )
    answer.write_text(json.dumps(asdict(outcome)))
    os._exit(0)


def _ingested(report: Path, folder: Path) -> Outcome:
    from perfctl.orchestrator.actions.ingest.ingest import ingest

    words: list[str] = []
    heard = Heard(words, str(report), report.name)
    store = folder / "s.db"
    found = ingest(report, store, listener=heard, jobs=1)
    if not found.taken:
        return Outcome(words=tuple(words), failed=True)
    rows: dict[str, str] = {}
    figures: dict[str, str] = {}
    with closing(sqlite3.connect(store)) as connection:
        connection.text_factory = bytes
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            table = name.decode()
            left_out = IGNORED.get(table, set())
            if left_out is None:
                continue
            columns = [column for column in map(_text, _columns(connection, table)) if column not in left_out]
            chosen = ", ".join(f'"{column}"' for column in columns)
            found_rows = connection.execute(f'SELECT {chosen} FROM "{table}"').fetchall()
            dumped = sorted(map(repr, found_rows))
            if table in SPEAKING:
                words += dumped
            elif dumped:
                rows[table] = _digest(dumped)
                figures[table] = _digest(
                    sorted(repr([one for one in row if not isinstance(one, bytes)]) for row in found_rows)
                )
        words += [_text(text) for (text,) in connection.execute("SELECT status || coalesce(reason, '') FROM run")]
        (form,) = connection.execute("SELECT coalesce(min(form), '') FROM run").fetchone()
        times = connection.execute("SELECT device_index, at_ns FROM sample ORDER BY device_index, at_ns").fetchall()
    return Outcome(rows, figures, _text(form), _is_even(times), tuple(sorted(words)), bool(found.failed))


def _is_even(times: list[tuple[Any, int]]) -> bool:
    steps = sorted(two[1] - one[1] for one, two in pairwise(times) if one[0] == two[0])
    gpus = len({gpu for gpu, _ in times})
    usual = steps[len(steps) // 2] if steps else 0
    even = sum(abs(step - usual) <= usual / 5 for step in steps)
    return usual > 1 and len(times) >= 10 * gpus and even >= 0.9 * len(steps)


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Heard:
    """Keeps what a listener hears, without the report's name."""

    def __init__(self, words: list[str], *names: str) -> None:
        self._words, self._names = words, names

    def __getattr__(self, name: str) -> Callable[..., None]:
        def hear(*said: Any) -> None:
            if name in ("note", "warning", "warn", "failed"):
                text = " ".join(map(str, said))
                for known in self._names:
                    text = text.replace(known, "REPORT")
                self._words.append(text)

        return hear


def damages(name: str, data: bytes) -> Mapping[str, Damage]:
    """The kinds of damage that fit this content."""
    if data.startswith(b"SQLite format 3"):
        return SQLITE | {"flipped bits": _flip, "hole": _hole, "cut": _cut}
    if name.endswith(".ncu-rep") or b"\0" in data[:4096]:
        return BYTES
    more = {"value in the tree": _json_value} if data.lstrip()[:1] in (b"{", b"[") else {}
    return BYTES | TEXT | more


def reports() -> list[Path]:
    """Files that perfctl reads, small enough, each format's smaller ones first."""
    shared = Path(os.environ.get("REPORTS", ROOT.parent / "shared" / "reports"))
    found = [
        path for folder in (ROOT / "tests" / "data", shared) for path in sorted(folder.rglob("*")) if path.is_file()
    ]
    return [path for path in found if 0 < path.stat().st_size <= LARGEST and path.suffix not in (".md", ".py", ".sql")]


def main() -> int:
    """Attack; 1 when anything was found."""
    asked = _arguments()
    random = Random(asked.seed)  # noqa: S311
    import perfctl.orchestrator.actions.ingest.ingest  # noqa: F401 - every child has it

    chosen = [Path(name) for name in asked.reports] or reports()
    if not asked.reports:
        random.shuffle(chosen)
    scratch = Path(tempfile.mkdtemp(prefix="perfctl-attack-"))
    counts: Counter[str] = Counter()
    silent: Counter[tuple[str, str, str]] = Counter()
    tried, attacked, worst, most = 0, 0, 0.0, 0.0
    findings: list[str] = []
    for report in chosen:
        if attacked >= asked.files:
            break
        raw = report.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" and report.suffix == ".gz" else raw
        name = report.name.removesuffix(".gz")
        if len(data) > LARGEST:
            continue
        whole = _tried(scratch, name, data)
        if whole.failed or whole.broken or not whole.rows or whole.seconds > 3:
            if whole.broken:
                findings.append(f"{report}: undamaged: {whole.broken}")
            continue
        attacked += 1
        kinds = damages(name, data)
        for number in range(asked.mutants // asked.files):
            kind = list(kinds)[number % len(kinds)]
            try:
                mutant = kinds[kind](data, random)
            except (sqlite3.Error, IndexError, ValueError, RecursionError):
                continue
            if mutant == data:
                continue
            found = _tried(scratch, name, mutant)
            tried += 1
            worst, most = max(worst, found.seconds), max(most, found.megabytes)
            if found.megabytes > asked.memory_limit:
                found = Outcome(broken=f"{found.megabytes:.0f} MB")
            verdict = _verdict(found, whole)
            counts[verdict] += 1
            why: str | None = None
            changed: list[str] = []
            if verdict == "silent":
                changed = _changed(found.rows, whole.rows)
                numbers = bool(_changed(found.figures, whole.figures))
                why = excuse(
                    whole.form, kind, changed, figures=numbers, place=place_of(data, mutant), even=whole.rhythm
                )
                silent[whole.form, kind, why or _COULD_TELL] += 1
            could_tell = verdict == "silent" and why is None
            if verdict == "BROKEN" or could_tell or (verdict == "silent" and asked.keep_silent):
                KEPT.mkdir(parents=True, exist_ok=True)
                kept = KEPT / f"{verdict}-{kind.replace(' ', '_')}-{hashlib.sha256(mutant).hexdigest()[:8]}-{name}"
                kept.write_bytes(mutant)
                if verdict == "BROKEN" or could_tell:
                    what = found.broken or f"silent, though the format could tell: {', '.join(changed)}"
                    findings.append(f"{report}, {kind}: {what}: {kept}")
                else:
                    print(f"silent: {report}, {kind}: {', '.join(changed)}: {why}: {kept.name}", flush=True)
    shutil.rmtree(scratch, ignore_errors=True)
    print(
        f"{tried} mutants of {attacked} reports, seed {asked.seed}: "
        + ", ".join(f"{v} {k}" for k, v in counts.most_common())
    )
    print(f"slowest {worst:.1f} s, most memory {most:.0f} MB")
    could_tell = sum(times for (*_, why), times in silent.items() if why == _COULD_TELL)
    print(f"silent where the format could tell: {could_tell}")
    for (form, kind, why), times in sorted(silent.items()):
        print(f"  silent: {times} of {form}, {kind}: {why}")
    print("\n".join(findings) or "No findings.")
    return int(bool(findings))


def _changed(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _verdict(found: Outcome, whole: Outcome) -> str:
    if found.broken:
        return "BROKEN"
    if not found.rows:
        return "refused"
    if found.rows == whole.rows:
        return "same rows"
    return "said" if found.words != whole.words or found.failed else "silent"


def _tried(scratch: Path, name: str, data: bytes) -> Outcome:
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        (folder / name).write_bytes(data)
        return taken_in(folder / name, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", metavar="REPORT")
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--files", type=int, default=40, help="reports that are damaged, each the same number of times")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-limit", type=float, default=2048, help="MB")
    parser.add_argument("--keep-silent", action="store_true", help="keep and name silent mutants, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
